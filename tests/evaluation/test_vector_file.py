"""Files of vectors as encoders: every format gives the vectors it holds, and says what is missing."""

from __future__ import annotations

import gzip
import json

import numpy as np
import pytest

from decoder2vec.bulk.one_file import embed_texts
from decoder2vec.encoder import Encoder
from decoder2vec.errors import DataFileError, InputError
from decoder2vec.evaluation.baselines import load_encoder

TEXTS = [f"Order {number} was sent to the café." for number in range(30)]
VECTORS = np.random.default_rng(0).normal(size=(30, 5)).astype(np.float32)


def write(folder, name):
    file = folder / name
    if name.endswith(".npy"):
        np.save(file, VECTORS)
        (folder / "vectors.tsv").write_text("source\ttext\n" + "".join(f"x\t{text}\n" for text in TEXTS), "utf-8")
    elif name.endswith(".npz"):
        np.savez(file, text=TEXTS, embedding=VECTORS)
    elif name.endswith(".parquet"):
        arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
        parquet.write_table(arrow.table({"text": TEXTS, "embedding": VECTORS.tolist(), "n": [1] * 30}), file)
    else:
        rows = (json.dumps({"text": t, "embedding": v.tolist()}) for t, v in zip(TEXTS, VECTORS, strict=True))
        content = "\n".join(rows).encode()
        file.write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    return file


NAMES = ["vectors.npy", "vectors.npz", "vectors.parquet", "vectors.jsonl", "vectors.jsonl.gz"]


@pytest.mark.parametrize("name", NAMES)
def test_texts_have_the_vectors_of_the_file(name, tmp_path, monkeypatch):
    monkeypatch.setattr("decoder2vec.evaluation.vector_file._ROWS_AT_ONCE", 7)
    encoder = load_encoder(write(tmp_path, name))
    order = [3, 0, 29, 3]
    assert np.allclose(encoder.encode([TEXTS[row] for row in order]), VECTORS[order], atol=1e-6)
    assert (encoder.kind, encoder.dim, len(encoder.fingerprint)) == ("vectors", 5, 16)
    with pytest.raises(InputError, match=r"has no vector for 2 of 3 texts, such as 'Nothing'"):
        encoder.encode([TEXTS[0], "Nothing", "else"])


def test_texts_may_be_gzipped_lines(tmp_path):
    np.save(tmp_path / "v.npy", VECTORS.astype(np.float16))
    (tmp_path / "v.txt.gz").write_bytes(gzip.compress("\n".join(TEXTS).encode()))
    assert np.allclose(load_encoder(tmp_path / "v.npy").encode(TEXTS), VECTORS, atol=1e-2)


@pytest.mark.parametrize("ending", ["jsonl", "parquet"])
def test_output_of_embed_is_such_a_file(ending, own_cache, tmp_path):
    encoder = Encoder.from_pretrained("tiny-llama", device="cpu")
    embed_texts(encoder, TEXTS, tmp_path / f"out.{ending}")
    assert np.allclose(load_encoder(tmp_path / f"out.{ending}").encode(TEXTS), encoder.encode(TEXTS), atol=1e-5)


def test_other_content_is_another_fingerprint(tmp_path):
    first = load_encoder(write(tmp_path, "vectors.npy")).fingerprint
    (tmp_path / "vectors.tsv").write_text("text\n" + "".join(f"{text}\n" for text in TEXTS[::-1]), "utf-8")
    assert load_encoder(tmp_path / "vectors.npy").fingerprint != first


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({}, "There is no file"),
        ({"v.npy": VECTORS}, "needs its texts in the same order in v.txt"),
        ({"v.npy": VECTORS, "v.txt": "a\nb\n"}, r"has 30 vectors, .*v.txt 2 texts"),
        ({"v.npy": VECTORS[0], "v.txt": "a\nb\n"}, "does not hold a table of numbers"),
        ({"v.npy": "broken", "v.txt": "a\nb\n"}, "Cannot read"),
        ({"v.jsonl": '{"text": "a", "embedding": [1, 2]}\n{"text": "b"}\n'}, "line 2: give text"),
        ({"v.jsonl": '{"text": "a", "embedding": [1]}\n\n{"text": "b", "embedding": [1, 2]}'}, "line 3: .* has 2"),
        ({"v.jsonl": '{"text": "a", "embedding": [1]}\nb'}, "line 2: not JSON"),
        ({"v.jsonl": "[1, 2]"}, "line 1: expected a JSON object"),
        ({"v.jsonl": '{"text": "a", "embedding": [1, NaN]}'}, "line 1: give text .* finite numbers"),
        ({"v.jsonl": '{"text": "a", "embedding": [1, 1e39]}'}, "line 1: give text .* finite numbers"),
        ({"v.jsonl": '{"text": "a", "embedding": [1, null]}'}, "line 1: give text .* finite numbers"),
        ({"v.jsonl": '{"text": "a", "embedding": ["1", "2.5"]}'}, "line 1: give text .* finite numbers"),
        ({"v.jsonl": '{"text": "a", "embedding": [true, false]}'}, "line 1: give text .* finite numbers"),
        ({"v.jsonl": '{"text": "a", "embedding": [[1, 2], [3, 4]]}'}, "line 1: give text"),
        ({"v.jsonl": '{"text": "a", "embedding": []}'}, "line 1: there is no vector"),
        ({"v.jsonl": '{"text": "\\ud800", "embedding": [1]}'}, "half of a surrogate pair"),
        ({"v.jsonl": ""}, "holds no vectors"),
        ({"v.npy": np.array([[1.0], [np.nan]]), "v.txt": "a\nb\n"}, "v.npy, row 2: .* NaN or infinite"),
        ({"v.npy": VECTORS[:, :0], "v.txt": "\n".join(TEXTS)}, "does not hold a table of numbers"),
        ({"v.npy": {"text": TEXTS, "embedding": VECTORS}, "v.txt": "a\nb\n"}, "does not hold a table of numbers"),
        ({"v.npz": {"text": TEXTS}}, "Cannot read the arrays text and embedding .*: embedding is not"),
        ({"v.npz": {"text": TEXTS, "embedding": VECTORS[:, 0]}}, "does not hold a table of numbers"),
        ({"v.npz": {"text": ["a", "b"], "embedding": [[1.0], [np.inf]]}}, "v.npz, row 2: .* NaN or infinite"),
        ({"v.npz": {"text": [b"a", b"b"], "embedding": [[1.0], [2.0]]}}, "array text .* not a list of texts"),
        ({"v.npz": VECTORS}, "is an .npy file"),
        ({"v.npz": "PK\x03\x04broken"}, "Cannot read"),
        ({"v.parquet": "broken"}, "needs a column text"),
        ({"v.npz": "broken"}, "Cannot read"),
    ],
)
def test_unfit_files_are_errors(files, message, tmp_path):
    for name, content in files.items():
        if isinstance(content, str):
            (tmp_path / name).write_text(content)
        else:
            with (tmp_path / name).open("wb") as file:
                np.savez(file, **content) if isinstance(content, dict) else np.save(file, content)
    with pytest.raises(DataFileError, match=message):
        load_encoder(tmp_path / next(iter(files), "v.npy"))


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"text": ["a", "b"], "embedding": [[1.0, 2.0, 3.0], [4.0]]}, "row 2: the vector has 1 dimension"),
        ({"text": ["a", "b"], "embedding": [[1.0], None]}, "row 2: there is no vector"),
        ({"text": ["a", "b"], "embedding": [[], []]}, "row 1: there is no vector"),
        ({"text": ["a", "b"], "embedding": [[1.0], [None]]}, "row 2: .* missing, NaN or infinite"),
        ({"text": ["a", "b"], "embedding": [[1.0], [np.inf]]}, "row 2: .* missing, NaN or infinite"),
        ({"text": ["a", None], "embedding": [[1.0], [2.0]]}, "row 2: there is no text"),
        ({"text": ["a", "b"], "embedding": [1.0, 2.0]}, "needs a column text and a column embedding of lists"),
        ({"text": ["a", "b"], "embedding": [["x"], ["y"]]}, "needs a column text and a column embedding of lists"),
        ({"text": ["a", "b"]}, 'Field "embedding" does not exist'),
    ],
)
def test_unfit_parquet_files_are_errors(columns, message, tmp_path):
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    parquet.write_table(arrow.table(columns), tmp_path / "v.parquet")
    with pytest.raises(DataFileError, match=message):
        load_encoder(tmp_path / "v.parquet")


def test_rows_are_counted_from_the_first_batch(tmp_path, monkeypatch):
    monkeypatch.setattr("decoder2vec.evaluation.vector_file._ROWS_AT_ONCE", 2)
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    for last, message in (([1.0, 2.0], "row 5: the vector has 2"), ([np.nan], "row 5: .* NaN")):
        columns = {"text": list("abcde"), "embedding": [[1.0], [2.0], [3.0], [4.0], last]}
        parquet.write_table(arrow.table(columns), tmp_path / "v.parquet")
        with pytest.raises(DataFileError, match=message):
            load_encoder(tmp_path / "v.parquet")
