"""`d2v embed`."""

from __future__ import annotations

import csv
import json

import numpy as np
import pytest

from toys.command import d2v, tiny_encoder

TEXTS = ["A man plays a guitar.", "Two dogs", "", "naïve café 😀"]


def test_lines_of_a_file_are_embedded(tmp_path):
    source, out = tmp_path / "texts.txt", tmp_path / "new" / "vectors.npy"
    source.write_text("\n".join(TEXTS) + "\n", encoding="utf-8")
    result = d2v("embed", source, "--out", out, "-e", "tiny-llama", "--layer", 2, "--pooling", "mean")
    assert result.exit_code == 0 and result.stdout == ""
    assert f"wrote 4 vectors of dimension 32 to {out}" in result.stderr
    assert np.allclose(np.load(out), tiny_encoder(layer=2, pooling="mean").encode(TEXTS), atol=1e-5)


def test_standard_input_is_embedded(tmp_path):
    out = tmp_path / "vectors.jsonl"
    result = d2v("embed", "-", "--out", out, "-e", "tiny-llama", "--normalize", stdin="\n".join(TEXTS))
    assert result.exit_code == 0
    rows = [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]
    assert [row["text"] for row in rows] == TEXTS
    vectors = tiny_encoder().encode(TEXTS)
    expected = vectors / np.linalg.norm(vectors, axis=1)[:, None]
    assert np.allclose([row["embedding"] for row in rows], expected, atol=1e-5)


def test_column_of_a_table_is_embedded(tmp_path):
    import pyarrow.parquet

    source, out = tmp_path / "table.csv", tmp_path / "vectors.parquet"
    with source.open("w", newline="", encoding="utf-8") as handle:
        csv.writer(handle).writerows([("id", "body"), *enumerate(TEXTS)])
    assert d2v("embed", source, "--column", "body", "--out", out, "-e", "tiny-llama").exit_code == 0
    table = pyarrow.parquet.read_table(out)
    assert table["text"].to_pylist() == TEXTS
    assert np.allclose(np.array(table["embedding"].to_pylist()), tiny_encoder().encode(TEXTS), atol=1e-5)


def test_json_field_of_standard_input_is_embedded(tmp_path):
    lines = "".join(json.dumps({"body": text}) + "\n" for text in TEXTS)
    args = ["--column", "body", "--out", tmp_path / "v.npy", "-e", "tiny-llama"]
    assert d2v("embed", "-", *args, stdin=lines).exit_code == 0
    assert np.allclose(np.load(tmp_path / "v.npy"), tiny_encoder().encode(TEXTS), atol=1e-5)


def test_empty_file_gives_no_vectors(tmp_path):
    (tmp_path / "empty.txt").write_text("")
    result = d2v("embed", tmp_path / "empty.txt", "--out", tmp_path / "v.npy", "-e", "tiny-llama")
    assert result.exit_code == 0
    assert np.load(tmp_path / "v.npy").shape == (0, 32)


@pytest.mark.parametrize("column", [None, "body"])
def test_unreadable_texts_leave_no_file_and_no_bar(column, tmp_path, run_main):
    out = tmp_path / "new" / "v.npy"
    (tmp_path / "table.csv").write_text("id,text\n1,a\n")
    source = tmp_path / ("table.csv" if column else "absent.txt")
    options = ["--column", column] if column else []
    code, stdout, stderr = run_main("embed", source, *options, "--out", out, "-e", "tiny-llama")
    assert (code, stdout) == (1, "")
    assert stderr.startswith("error: ") and stderr.count("\n") == 1
    assert not out.parent.exists() or list(out.parent.iterdir()) == []


@pytest.mark.parametrize(
    ("content", "rows", "warning"),
    [
        ("", 0, "texts.txt holds no text"),
        ("\n \n", 2, "2 of 2 texts are empty"),
        ("A\n\nB\n", 3, "1 of 3 texts are empty"),
    ],
)
def test_empty_texts_are_warned_of_and_keep_their_rows(tmp_path, run_main, content, rows, warning):
    (tmp_path / "texts.txt").write_text(content, encoding="utf-8")
    out = tmp_path / "v.npy"
    code, _, err = run_main("embed", tmp_path / "texts.txt", "--encoder", "tiny-llama", "--out", out)
    assert code == 0 and "warning: " in err and warning in err and len(np.load(out)) == rows


def test_similarity_warns_of_an_empty_text(run_main):
    code, out, err = run_main("similarity", "", "A dog.", "--encoder", "tiny-llama")
    assert code == 0 and float(out) < 1 and "warning: a text is empty" in err
