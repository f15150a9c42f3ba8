"""`embed_dataset`: every row once with the vector of `encode`, in every format, after any interruption."""

from __future__ import annotations

import csv
import gzip
import json
import os
import signal
import time
from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest

import decoder2vec as d2v
from decoder2vec.bulk.dataset import MANIFEST_FILE, estimate, make_plan
from decoder2vec.bulk.output import OutputFolder
from decoder2vec.bulk.parts import PartEmbedder, store_vectors
from decoder2vec.bulk.plan import PLAN_FILE, VectorFormat
from decoder2vec.errors import DataFileError, InputError, StorageError

ROWS = [{"key": f"k{index}", "text": f"sentence {index} of many", "number": index} for index in range(23)]


@pytest.fixture(scope="module")
def encoder():
    return d2v.Encoder.from_pretrained("tiny-llama", device="cpu", dtype="float32")


def write_jsonl(file, rows=ROWS):
    opener = gzip.open if file.suffix == ".gz" else open
    with opener(file, "wt", encoding="utf-8") as handle:
        handle.writelines(json.dumps(row) + "\n" for row in rows)


def write_csv(file, rows=ROWS):
    with file.open("w", newline="", encoding="utf-8") as handle:
        writer = csv.DictWriter(handle, rows[0])
        writer.writeheader()
        writer.writerows(rows)


def write_parquet(file, rows=ROWS):
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), file, row_group_size=7)


def read(folder):
    """All rows of a folder of parts, in order."""
    files = sorted(Path(folder).glob("part-*.parquet"))
    return [row for file in files for row in pyarrow.parquet.read_table(file).to_pylist()]


def assert_equal_vectors(vectors, expected):
    """Up to what a vector may depend on the others of a batch."""
    assert np.abs(vectors - expected).max() < 1e-6 * np.linalg.norm(expected, axis=1).max()


WRITERS = {
    "rows.jsonl": write_jsonl,
    "rows.jsonl.gz": write_jsonl,
    "rows.csv": write_csv,
    "rows.parquet": write_parquet,
}


@pytest.mark.parametrize("name", WRITERS)
@pytest.mark.parametrize("rows_per_part", [1, 5, 7, 100])
def test_rows_keep_their_columns_and_get_the_vector_of_encode(encoder, tmp_path, name, rows_per_part):
    WRITERS[name](tmp_path / name)
    out = tmp_path / "out"
    result = d2v.embed_dataset(encoder, str(tmp_path / name), out, id_column="key", rows_per_part=rows_per_part)
    rows = read(out)
    assert (result.n_rows, result.n_skipped, result.n_parts) == (23, 0, -(-23 // rows_per_part))
    kept = [{key: row[key] for key in ROWS[0]} for row in rows]
    assert kept == [row | {"number": str(row["number"])} for row in ROWS] if name.endswith("csv") else kept == ROWS
    expected = encoder.encode([row["text"] for row in ROWS])
    assert_equal_vectors([row["embedding"] for row in rows], expected)


def test_plain_lines_are_named_by_file_and_number(encoder, tmp_path):
    (tmp_path / "a.txt").write_text("one\ntwo\n", "utf-8")
    (tmp_path / "b.txt").write_text("three\n", "utf-8")
    d2v.embed_dataset(encoder, str(tmp_path / "*.txt"), tmp_path / "out")
    assert [(row["id"], row["text"]) for row in read(tmp_path / "out")] == [
        ("a.txt:0", "one"),
        ("a.txt:1", "two"),
        ("b.txt:0", "three"),
    ]


def test_files_of_one_name_in_two_folders_have_other_ids(encoder, tmp_path):
    for name in ("a", "b"):
        (tmp_path / "data" / name).mkdir(parents=True)
        (tmp_path / "data" / name / "x.txt").write_text("one\n", "utf-8")
    d2v.embed_dataset(encoder, str(tmp_path / "data"), tmp_path / "out")
    assert [row["id"] for row in read(tmp_path / "out")] == ["a/x.txt:0", "b/x.txt:0"]


def test_names_that_are_not_utf8_are_escaped(encoder, tmp_path):
    folder = tmp_path / "in"
    folder.mkdir()
    try:
        (folder / os.fsdecode(b"\xff.txt")).write_text("Cats sleep.\n", encoding="utf-8")
    except OSError:
        pytest.skip("the file system takes names in UTF-8 only")
    for _ in range(2):  # the second time, nothing is left to do
        d2v.embed_dataset(encoder, str(folder), tmp_path / "out")
    assert [row["id"] for row in read(tmp_path / "out")] == ["\\xff.txt:0"]


def test_folder_and_list_of_files_are_read_in_order(encoder, tmp_path):
    data = tmp_path / "data"
    (data / "deep").mkdir(parents=True)
    write_jsonl(data / "b.jsonl", ROWS[10:])
    write_jsonl(data / "a.jsonl", ROWS[:10])
    (data / "notes.pdf").write_bytes(b"no rows")
    d2v.embed_dataset(encoder, data, tmp_path / "out", id_column="key")
    d2v.embed_dataset(encoder, [str(data / "b.jsonl"), data / "a.jsonl"], tmp_path / "list", id_column="key")
    assert [row["key"] for row in read(tmp_path / "out")] == [row["key"] for row in ROWS]
    assert [row["key"] for row in read(tmp_path / "list")] == [row["key"] for row in ROWS[10:] + ROWS[:10]]


def test_values_of_several_types_become_texts(encoder, tmp_path):
    rows = [{"text": "a", "x": 1, "y": 1}, {"text": "b", "x": "two", "y": 0.5}, {"text": "c", "x": [3], "z": True}]
    write_jsonl(tmp_path / "rows.jsonl", rows)
    d2v.embed_dataset(encoder, str(tmp_path / "rows.jsonl"), tmp_path / "out", rows_per_part=1)
    kept = [{key: row[key] for key in "xyz"} for row in read(tmp_path / "out")]
    assert kept == [
        {"x": "1", "y": 1.0, "z": None},
        {"x": "two", "y": 0.5, "z": None},
        {"x": "[3]", "y": None, "z": True},
    ]


@pytest.mark.parametrize("precision", ["float32", "float16", "int8", "binary"])
@pytest.mark.parametrize("dimensions", [None, 16])
def test_vectors_are_stored_as_asked(encoder, tmp_path, precision, dimensions):
    write_jsonl(tmp_path / "rows.jsonl")
    vectors = VectorFormat(precision, dimensions, normalize=True)
    d2v.embed_dataset(encoder, str(tmp_path / "rows.jsonl"), tmp_path / "out", id_column="key", vectors=vectors)
    stored = np.asarray([row["embedding"] for row in read(tmp_path / "out")])
    expected = encoder.encode([row["text"] for row in ROWS], truncate_dim=dimensions, normalize_embeddings=True)
    if precision == "binary":
        assert stored.shape[1] * 8 == expected.shape[1]
        signs = [[(byte >> (7 - bit)) & 1 for byte in row for bit in range(8)] for row in stored]
        np.testing.assert_array_equal(signs, expected > 0)
        return
    stored = stored.astype(np.float32)
    cosines = (stored * expected).sum(1) / np.linalg.norm(stored, axis=1)
    assert cosines.min() > {"float32": 0.999999, "float16": 0.99999, "int8": 0.999}[precision]
    if precision == "int8":
        assert (np.abs(stored).max(axis=1) == 127).all()


def test_vector_of_zeros_is_stored(encoder):
    zeros = np.zeros((2, 8), np.float32)
    assert not store_vectors(zeros, VectorFormat("int8")).any()


# --- interruptions --------------------------------------------------------------------------------------------------


def test_interrupted_run_computes_only_what_is_missing(encoder, tmp_path, monkeypatch):
    write_jsonl(tmp_path / "rows.jsonl")
    whole, out = tmp_path / "whole", tmp_path / "out"
    d2v.embed_dataset(encoder, str(tmp_path / "rows.jsonl"), whole, id_column="key", rows_per_part=4)
    original, calls = PartEmbedder.__call__, []

    def fail_at_the_third(self, part):
        if len(calls) == 2:
            raise KeyboardInterrupt
        calls.append(part)
        return original(self, part)

    monkeypatch.setattr(PartEmbedder, "__call__", fail_at_the_third)
    with pytest.raises(KeyboardInterrupt):
        d2v.embed_dataset(encoder, str(tmp_path / "rows.jsonl"), out, id_column="key", rows_per_part=4)
    monkeypatch.setattr(PartEmbedder, "__call__", original)
    assert not (out / MANIFEST_FILE).exists()
    with pytest.raises(StorageError, match="not finished: 2 parts"):
        d2v.verify_dataset(out, encoder)
    result = d2v.embed_dataset(encoder, str(tmp_path / "rows.jsonl"), out, id_column="key", rows_per_part=4)
    assert (result.n_computed, result.n_parts) == (4, 6)
    assert contents(out) == contents(whole)
    again = d2v.embed_dataset(encoder, str(tmp_path / "rows.jsonl"), out, id_column="key", rows_per_part=4)
    assert again.n_computed == 0


def contents(folder):
    return {file.name: file.read_bytes() for file in folder.iterdir()}


CHILD = """
import sys
import decoder2vec as d2v
encoder = d2v.Encoder.from_pretrained("tiny-llama", device="cpu", dtype="float32")
print("ready", flush=True)
d2v.embed_dataset(encoder, sys.argv[1], sys.argv[2], id_column="key", rows_per_part=1)
"""


def test_killed_runs_lose_and_double_nothing(encoder, tmp_path, quick_python):
    """Killed at moments spread over the run; the last one is left to end."""
    write_jsonl(tmp_path / "rows.jsonl")
    whole, out = tmp_path / "whole", tmp_path / "out"
    d2v.embed_dataset(encoder, str(tmp_path / "rows.jsonl"), whole, id_column="key", rows_per_part=1)
    for delay in (0.01, 0.03, 0.1):
        child = quick_python.start(CHILD, tmp_path / "rows.jsonl", out)
        assert child.stdout.readline() == "ready\n"
        time.sleep(delay)
        child.send_signal(signal.SIGKILL)
        child.communicate()
    d2v.embed_dataset(encoder, str(tmp_path / "rows.jsonl"), out, id_column="key", rows_per_part=1)
    assert contents(out) == contents(whole)
    assert not d2v.verify_dataset(out, encoder).problems


def test_plan_says_what_an_encoder_computes_in(tmp_path):
    (tmp_path / "rows.txt").write_text("one\ntwo\n", "utf-8")
    for dtype in ("float32", "int8"):
        encoder = d2v.Encoder.from_pretrained("tiny-llama", device="cpu", dtype=dtype)
        assert make_plan(encoder, tmp_path / "rows.txt").compute == dtype


def test_two_runs_at_once_are_refused(encoder, tmp_path):
    write_jsonl(tmp_path / "rows.jsonl")
    with OutputFolder(str(tmp_path / "out")).lock(), pytest.raises(StorageError, match="Another process"):
        d2v.embed_dataset(encoder, str(tmp_path / "rows.jsonl"), tmp_path / "out")


# --- what does not fit ----------------------------------------------------------------------------------------------


def test_another_encoder_or_changed_input_is_refused(encoder, tmp_path):
    file, out = tmp_path / "rows.jsonl", tmp_path / "out"
    write_jsonl(file)
    d2v.embed_dataset(encoder, str(file), out)
    before = contents(out)
    other = d2v.Encoder.from_pretrained("tiny-gpt2", device="cpu")
    with pytest.raises(StorageError, match="of another encoder"):
        d2v.embed_dataset(other, str(file), out)
    with pytest.raises(StorageError, match="rows_per_part = 10000, not 5"):
        d2v.embed_dataset(encoder, str(file), out, rows_per_part=5)
    write_jsonl(file, [*ROWS[:-1], ROWS[-1] | {"text": "another text of many"}])
    with pytest.raises(StorageError, match="has changed"):
        d2v.embed_dataset(encoder, str(file), out)
    assert contents(out) == before


def test_run_that_a_bad_row_stopped_goes_on_by_skipping(encoder, tmp_path):
    """What is there stays: it has no such rows."""
    write_jsonl(tmp_path / "rows.jsonl", [{"text": "a"}, {"text": "b"}, {"text": None}, {"text": "d"}])
    source, out = str(tmp_path / "rows.jsonl"), tmp_path / "out"
    with pytest.raises(DataFileError, match="--on-error skip"):
        d2v.embed_dataset(encoder, source, out, rows_per_part=2)
    result = d2v.embed_dataset(encoder, source, out, rows_per_part=2, on_error="skip", lance=True)
    assert (result.n_computed, result.n_skipped) == (1, 1)
    assert [row["text"] for row in read(out)] == ["a", "b", "d"]
    assert not d2v.verify_dataset(out, encoder).problems
    with pytest.raises(StorageError, match="on_error = skip, not stop"):
        d2v.embed_dataset(encoder, source, out, rows_per_part=2)


def test_finished_run_is_the_same_with_skipping(encoder, tmp_path):
    write_jsonl(tmp_path / "rows.jsonl")
    options = {"rows_per_part": 4, "lance": True}
    d2v.embed_dataset(encoder, str(tmp_path / "rows.jsonl"), tmp_path / "out", **options)
    again = d2v.embed_dataset(encoder, str(tmp_path / "rows.jsonl"), tmp_path / "out", on_error="skip", **options)
    assert again.n_computed == 0 and not d2v.verify_dataset(tmp_path / "out", encoder).problems


def test_cut_and_empty_texts_are_counted(encoder, tmp_path):
    write_jsonl(tmp_path / "rows.jsonl", [{"text": "a"}, {"text": " "}, {"text": "word " * 5000}])
    result = d2v.embed_dataset(encoder, str(tmp_path / "rows.jsonl"), tmp_path / "out", rows_per_part=2)
    assert (result.n_empty, result.n_cut) == (1, 1)
    in_chunks = d2v.Encoder.from_pretrained("tiny-llama", device="cpu", on_overflow="chunk")
    assert d2v.embed_dataset(in_chunks, str(tmp_path / "rows.jsonl"), tmp_path / "chunks").n_cut == 0


@pytest.mark.parametrize("lance", [False, True])
def test_not_a_number_is_no_damage(encoder, tmp_path, lance):
    rows = [{"text": f"text {index}", "value": float("nan"), "list": [1.0, float("nan")]} for index in range(6)]
    write_parquet(tmp_path / "rows.parquet", rows)
    d2v.embed_dataset(encoder, str(tmp_path / "rows.parquet"), tmp_path / "out", rows_per_part=2, lance=lance)
    assert not d2v.verify_dataset(tmp_path / "out", encoder).problems


def test_every_part_with_other_rows_is_named(encoder, finished):
    for file in sorted(finished.glob("part-*.parquet")):
        rewrite(file, lambda table: table.take([0, 0, *range(2, len(table))]))
    problems = d2v.verify_dataset(finished, encoder).problems
    n_parts = len(list(finished.glob("part-*.parquet")))
    assert sum("other rows" in problem for problem in problems) == n_parts > 1


def test_parquet_with_two_columns_of_one_name_is_refused(encoder, tmp_path):
    table = pyarrow.table([pyarrow.array(["a"]), pyarrow.array(["b"])], names=["text", "text"])
    pyarrow.parquet.write_table(table, tmp_path / "rows.parquet")
    with pytest.raises(DataFileError, match=r"rows\.parquet has two columns 'text'"):
        d2v.embed_dataset(encoder, str(tmp_path / "rows.parquet"), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_moved_input_is_the_same_input(encoder, tmp_path):
    """And the folder can be compared with it, once it was named."""
    write_jsonl(tmp_path / "rows.jsonl")
    d2v.embed_dataset(encoder, str(tmp_path / "rows.jsonl"), tmp_path / "out")
    (tmp_path / "new").mkdir()
    (tmp_path / "rows.jsonl").rename(tmp_path / "new" / "rows.jsonl")
    assert "cannot be read" in d2v.verify_dataset(tmp_path / "out", encoder).problems[0]
    assert d2v.embed_dataset(encoder, str(tmp_path / "new" / "rows.jsonl"), tmp_path / "out").n_computed == 0
    assert not d2v.verify_dataset(tmp_path / "out", encoder).problems


def test_folder_with_other_files_is_refused(encoder, tmp_path):
    write_jsonl(tmp_path / "rows.jsonl")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine.txt").write_text("precious")
    with pytest.raises(InputError, match=r"not empty: it holds mine\.txt"):
        d2v.embed_dataset(encoder, str(tmp_path / "rows.jsonl"), tmp_path / "out")
    assert [file.name for file in (tmp_path / "out").iterdir()] == ["mine.txt"]


@pytest.mark.parametrize(
    ("rows", "options", "message"),
    [
        ([{"body": "x"}], {}, "no column 'text'; there are: body"),
        ([{"text": 1}], {}, "holds int64 values, not texts"),
        ([{"text": "x", "embedding": 1}], {}, "a column 'embedding' already"),
        ([{"text": "x"}], {"id_column": "key"}, "no column 'key'"),
        ([{"text": "x"}], {"rows_per_part": 0}, "1 row or more"),
        ([{"text": "x"}], {"on_error": "ignore"}, "stop, skip|skip, stop"),
        ([{"text": "x"}], {"engine": "spark"}, "Unknown engine"),
        ([{"text": "x"}], {"workers": 4}, "need the engine ray"),
        ([{"text": "x"}], {"vectors": VectorFormat("int4")}, "Unknown precision"),
        ([{"text": "x"}], {"vectors": VectorFormat(dimensions=10_000)}, "10000 cannot be kept"),
        ([], {}, "holds no row"),
    ],
)
def test_bad_input_is_one_sentence_and_nothing_is_written(encoder, tmp_path, rows, options, message):
    write_jsonl(tmp_path / "rows.jsonl", rows)
    with pytest.raises(InputError, match=message):
        d2v.embed_dataset(encoder, str(tmp_path / "rows.jsonl"), tmp_path / "out", **options)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("source", ["absent.jsonl", "*.absent", "nowhere://bucket/x.jsonl"])
def test_sources_that_name_no_file_are_refused(encoder, tmp_path, source):
    name = source if "://" in source else str(tmp_path / source)
    with pytest.raises(InputError, match=r"names no file|Cannot open"):
        d2v.embed_dataset(encoder, name, tmp_path / "out")


def test_parquet_files_of_other_columns_are_refused(encoder, tmp_path):
    write_parquet(tmp_path / "a.parquet")
    write_parquet(tmp_path / "b.parquet", [{"text": "x", "key": 3, "number": 3}])
    with pytest.raises(InputError, match="differ in the column 'key'"):
        d2v.embed_dataset(encoder, str(tmp_path / "*.parquet"), tmp_path / "out")


# --- rows that cannot be embedded -----------------------------------------------------------------------------------


@pytest.fixture
def bad_rows(tmp_path):
    """A file whose rows 2, 4 and 6 are malformed, without a text, and too long for the encoder."""
    lines = [json.dumps({"key": f"k{index}", "text": f"text {index}"}) for index in range(8)]
    lines[2], lines[4] = "{not json", json.dumps({"key": "k4"})
    lines[6] = json.dumps({"key": "k6", "text": "word " * 5000})
    (tmp_path / "bad.jsonl").write_text("\n".join(lines) + "\n", "utf-8")
    return str(tmp_path / "bad.jsonl")


def test_bad_row_stops_the_run_with_its_place(encoder, tmp_path, bad_rows):
    with pytest.raises(DataFileError, match=r"bad\.jsonl, row 3: line 3: .*--on-error skip"):
        d2v.embed_dataset(encoder, bad_rows, tmp_path / "out")


def test_bad_rows_are_skipped_with_their_reasons(tmp_path, bad_rows):
    strict = d2v.Encoder.from_pretrained("tiny-llama", device="cpu", on_overflow="error")
    result = d2v.embed_dataset(strict, bad_rows, tmp_path / "out", id_column="key", rows_per_part=3, on_error="skip")
    assert (result.n_rows, result.n_skipped) == (8, 3)
    rows = read(tmp_path / "out")
    assert [row["key"] for row in rows] == ["k0", "k1", "k3", "k5", "k7"]
    assert_equal_vectors([row["embedding"] for row in rows], strict.encode([row["text"] for row in rows]))
    files = sorted((tmp_path / "out").glob("skipped-*.jsonl"))
    skipped = [json.loads(line) for file in files for line in file.read_text("utf-8").splitlines()]
    assert [row["row"] for row in skipped] == [2, 4, 6]
    assert "text is missing" in skipped[1]["reason"] and "tokens" in skipped[2]["reason"]
    verified = d2v.verify_dataset(tmp_path / "out", strict)
    assert not verified.problems and verified.n_vectors == 5


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"text": 5}, "text is int, not a text"),
        ({"text": ["a", "b"]}, "text is list, not a text"),
        ({"text": "half \ud83d"}, "text holds half of a surrogate pair"),
        ({"text": "fine", "title": "half \ud83d"}, "title holds half of a surrogate pair"),
    ],
)
def test_field_that_is_no_text_is_a_problem_of_its_row(encoder, tmp_path, row, reason):
    """It is never embedded as its JSON, and never a traceback."""
    write_jsonl(tmp_path / "rows.jsonl", [{"text": "first", "title": "a"}, row, {"text": "last", "title": "b"}])
    with pytest.raises(DataFileError, match=f"row 2: line 2: {reason}"):
        d2v.embed_dataset(encoder, str(tmp_path / "rows.jsonl"), tmp_path / "stopped")
    d2v.embed_dataset(encoder, str(tmp_path / "rows.jsonl"), tmp_path / "out", on_error="skip")
    assert [row["text"] for row in read(tmp_path / "out")] == ["first", "last"]
    assert not d2v.verify_dataset(tmp_path / "out", encoder).problems


def test_parquet_row_without_a_text_is_a_problem(encoder, tmp_path):
    write_parquet(tmp_path / "rows.parquet", [{"text": "first"}, {"text": None}, {"text": "last"}])
    with pytest.raises(DataFileError, match="row 2: text is missing"):
        d2v.embed_dataset(encoder, str(tmp_path / "rows.parquet"), tmp_path / "stopped")
    d2v.embed_dataset(encoder, str(tmp_path / "rows.parquet"), tmp_path / "out", on_error="skip")
    assert [row["id"] for row in read(tmp_path / "out")] == ["rows.parquet:0", "rows.parquet:2"]


def test_refused_text_does_not_split_up_the_others(tmp_path, monkeypatch):
    """The faulty variant encodes the rows of its part one by one."""
    rows = [{"text": "word " * 5000 if number == 40 else f"text {number}"} for number in range(64)]
    write_jsonl(tmp_path / "rows.jsonl", rows)
    strict = d2v.Encoder.from_pretrained("tiny-llama", device="cpu", on_overflow="error")
    original, calls = strict.encode, []
    monkeypatch.setattr(strict, "encode", lambda texts, **_: (calls.append(len(texts)), original(texts))[1])
    d2v.embed_dataset(strict, str(tmp_path / "rows.jsonl"), tmp_path / "out", on_error="skip")
    assert [row["text"] for row in read(tmp_path / "out")] == [row["text"] for row in rows if row["text"][0] == "t"]
    assert len(calls) == 13  # 64, then two halves at each of six levels


def test_lost_reasons_of_skipped_rows_are_found(encoder, tmp_path, bad_rows):
    d2v.embed_dataset(encoder, bad_rows, tmp_path / "out", on_error="skip")
    (tmp_path / "out" / "skipped-00000-000000000000.jsonl").unlink()
    (problem,) = d2v.verify_dataset(tmp_path / "out", encoder).problems
    assert "skipped-00000-000000000000.jsonl is missing" in problem


# --- proof ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def finished(encoder, tmp_path):
    write_jsonl(tmp_path / "rows.jsonl")
    d2v.embed_dataset(encoder, str(tmp_path / "rows.jsonl"), tmp_path / "out", id_column="key", rows_per_part=6)
    assert d2v.verify_dataset(tmp_path / "out", encoder).problems == ()
    return tmp_path / "out"


def rewrite(file, change):
    """Write a part with other rows, and record it as if it had been written so."""
    table = change(pyarrow.parquet.read_table(file))
    pyarrow.parquet.write_table(table, file)
    manifest = json.loads((file.parent / MANIFEST_FILE).read_text())
    for part in manifest["parts"]:
        if part["name"] == file.name:
            part["sha256"] = OutputFolder(str(file.parent)).sha256(file.name)
    (file.parent / MANIFEST_FILE).write_text(json.dumps(manifest))


def flip_a_byte(file):
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


def swap_vectors(table):
    order = [1, 0, *range(2, len(table))]
    return table.set_column(table.num_columns - 1, "embedding", table["embedding"].take(order))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda files: files[1].unlink(), "is missing"),
        (lambda files: flip_a_byte(files[1]), "not as it was written"),
        (lambda files: files[1].write_bytes(files[0].read_bytes()), "not as it was written"),
        (lambda files: files[1].with_name("part-9.parquet").write_bytes(b""), "belongs to no part"),
        (lambda files: rewrite(files[1], lambda table: table.slice(1)), "5 rows and 0 skipped"),
        (lambda files: rewrite(files[1], lambda table: table.take([0, 0, 2, 3, 4, 5])), "other rows"),
        (lambda files: rewrite(files[1], swap_vectors), "is not the one that the encoder gives"),
        (lambda files: write_jsonl(files[0].parents[1] / "rows.jsonl", ROWS[1:]), "has changed since"),
    ],
    ids=["missing", "bit", "copy", "foreign", "lost row", "doubled row", "swapped vectors", "input"],
)
def test_whatever_is_wrong_is_found(encoder, finished, damage, message):
    damage(sorted(finished.glob("part-*.parquet")))
    assert any(message in problem for problem in d2v.verify_dataset(finished, encoder).problems)


@pytest.mark.parametrize(
    ("dtype", "noise", "is_whole"), [("float32", 0.04, False), ("bfloat16", 0.04, True), ("bfloat16", 0.5, False)]
)
def test_rounding_in_16_bits_is_no_damage(own_cache, tmp_path, dtype, noise, is_whole):
    """A GPU that has compiled the model after 20 million tokens rounded otherwise: cosines of 0.998 in bfloat16."""
    encoder = d2v.Encoder.from_pretrained("tiny-llama", device="cpu", dtype=dtype)
    write_jsonl(tmp_path / "rows.jsonl")
    d2v.embed_dataset(encoder, str(tmp_path / "rows.jsonl"), tmp_path / "out", rows_per_part=6)
    rng = np.random.default_rng(0)

    def add_noise(table):
        vectors = np.stack(table["embedding"].to_numpy())
        errors = rng.standard_normal(vectors.shape)
        errors *= noise * np.linalg.norm(vectors, axis=1, keepdims=True) / np.linalg.norm(errors, axis=1, keepdims=True)
        column = pyarrow.FixedSizeListArray.from_arrays((vectors + errors).astype(np.float32).ravel(), vectors.shape[1])
        return table.set_column(table.num_columns - 1, "embedding", column)

    rewrite(sorted((tmp_path / "out").glob("part-*.parquet"))[1], add_noise)
    assert (not d2v.verify_dataset(tmp_path / "out", encoder).problems) == is_whole


def test_damaged_plan_is_refused(encoder, finished):
    (finished / PLAN_FILE).write_text("{}")
    with pytest.raises(StorageError, match="damaged"):
        d2v.verify_dataset(finished, encoder)


def test_other_encoder_is_refused(finished):
    with pytest.raises(StorageError, match="another encoder"):
        d2v.verify_dataset(finished, d2v.Encoder.from_pretrained("tiny-gpt2", device="cpu"))


# --- plans of any size ----------------------------------------------------------------------------------------------


def test_estimate_counts_what_is_left(encoder, tmp_path):
    write_jsonl(tmp_path / "rows.jsonl")
    plan = make_plan(encoder, str(tmp_path / "rows.jsonl"), rows_per_part=6)
    output = OutputFolder(str(tmp_path / "out"))
    guess = estimate(plan, encoder, output, workers=2, price_per_hour=3.0)
    before = encoder.stats.tokens
    encoder.encode([row["text"] for row in ROWS])
    assert guess.n_rows == 23 and guess.n_tokens == encoder.stats.tokens - before
    assert guess.cost == pytest.approx(guess.seconds / 3600 * 2 * 3.0)
    assert not (tmp_path / "out").exists()
    output.write_json(PLAN_FILE, plan.to_json())
    PartEmbedder(plan, encoder, output)(next(plan.parts()))
    assert estimate(plan, encoder, output).n_rows == 17
    other = make_plan(encoder, str(tmp_path / "rows.jsonl"), rows_per_part=5)
    with pytest.raises(StorageError, match="rows_per_part = 6, not 5"):
        estimate(other, encoder, output)


def test_estimate_counts_the_tokens_of_the_prompt(tmp_path):
    write_jsonl(tmp_path / "rows.jsonl")
    encoder = d2v.Encoder.from_pretrained("tiny-llama", device="cpu", prompts={"document": "A text to be found: "})
    plan = make_plan(encoder, str(tmp_path / "rows.jsonl"), prompt_name="document")
    guess = estimate(plan, encoder, OutputFolder(str(tmp_path / "out")))
    before = encoder.stats.tokens
    encoder.encode([row["text"] for row in ROWS], prompt_name="document")
    assert guess.n_tokens == encoder.stats.tokens - before


def test_only_the_file_system_of_this_machine_is_local(tmp_path):
    assert OutputFolder(str(tmp_path)).local == tmp_path
    for url in ("memory://bucket/out", "filecache::memory://bucket/out"):
        assert OutputFolder(url).local is None, url


def test_remote_folders_are_read_and_written(encoder, tmp_path):
    import fsspec

    memory = fsspec.filesystem("memory")
    write_jsonl(tmp_path / "rows.jsonl.gz")
    write_parquet(tmp_path / "rows.parquet")
    for name in ("rows.jsonl.gz", "rows.parquet"):
        memory.put_file(str(tmp_path / name), f"/bucket/{name}")
        source, out = f"memory://bucket/{name}", f"memory://bucket/out-{name}"
        assert d2v.embed_dataset(encoder, source, out, id_column="key", rows_per_part=5).n_computed == 5
        assert d2v.embed_dataset(encoder, source, out, id_column="key", rows_per_part=5).n_computed == 0
        assert not d2v.verify_dataset(out, encoder).problems
        memory.rm(f"/bucket/out-{name}/part-00000-000000000005.parquet")
        assert d2v.embed_dataset(encoder, source, out, id_column="key", rows_per_part=5).n_computed == 1
        assert not d2v.verify_dataset(out, encoder).problems
