"""Files of vectors as encoders: every format gives the vectors it holds, and says what is missing."""

from __future__ import annotations

import gzip
import json

import numpy as np
import pytest

from decoder2vec.bulk import embed_texts
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
        ({"v.jsonl": '{"text": "a", "embedding": [1]}\n{"text": "b", "embedding": [1, 2]}'}, "same length"),
        ({"v.jsonl": ""}, "0 different lengths"),
        ({"v.parquet": "broken"}, "needs a column text"),
        ({"v.npz": "broken"}, "Cannot read"),
    ],
)
def test_unfit_files_are_errors(files, message, tmp_path):
    for name, content in files.items():
        if isinstance(content, str):
            (tmp_path / name).write_text(content)
        else:
            np.save(tmp_path / name, content)
    with pytest.raises(DataFileError, match=message):
        load_encoder(tmp_path / next(iter(files), "v.npy"))
