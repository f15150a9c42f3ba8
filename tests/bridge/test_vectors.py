"""Files of vectors with captions, and one sentence for each way in which they cannot be used."""

from __future__ import annotations

import gzip
import json

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest

from decoder2vec.bridge.vectors import CaptionedVectors, check_vectors, read_captioned_vectors, read_vectors
from decoder2vec.errors import DataFileError, InputError
from toys.bridge import toy_items

VECTORS = np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32)
CAPTIONS = ["one", "two, with a comma", "three", "vier ü", "five"]


def write_parquet(file, vectors=VECTORS, captions=CAPTIONS, caption_column="caption", kind=None):
    table = pyarrow.table(
        {"embedding": pyarrow.array(list(map(list, vectors)), kind), caption_column: captions, "id": range(5)}
    )
    pyarrow.parquet.write_table(table, file)
    return file


@pytest.mark.parametrize("column", ["caption", "text", "sentence"])
@pytest.mark.parametrize("kind", [None, pyarrow.list_(pyarrow.float16()), pyarrow.list_(pyarrow.float64(), 3)])
def test_parquet_files_hold_both(column, kind, tmp_path):
    vectors = VECTORS.astype(np.float16) if kind == pyarrow.list_(pyarrow.float16()) else VECTORS.astype(np.float64)
    items = read_captioned_vectors(write_parquet(tmp_path / "items.parquet", vectors, CAPTIONS, column, kind))
    assert np.array_equal(items.vectors, vectors.astype(np.float32)) and items.captions == CAPTIONS


@pytest.mark.parametrize("name", ["items.txt", "items.jsonl", "items.jsonl.gz", "items.tsv", "other.jsonl"])
def test_npy_files_have_their_captions_in_another_file(name, tmp_path):
    np.save(tmp_path / "items.npy", VECTORS)
    lines = {
        "txt": CAPTIONS,
        "tsv": ["id\tcaption", *(f"{n}\t{caption}" for n, caption in enumerate(CAPTIONS))],
        "jsonl": [json.dumps({"caption": caption, "text": "not this"}) for caption in CAPTIONS],
    }[name.removesuffix(".gz").rpartition(".")[2]]
    content = "".join(f"{line}\n" for line in lines).encode()
    (tmp_path / name).write_bytes(gzip.compress(content) if name.endswith("gz") else content)
    named = tmp_path / name if name.startswith("other") else None
    items = read_captioned_vectors(tmp_path / "items.npy", named)
    assert np.array_equal(items.vectors, VECTORS) and items.captions == CAPTIONS


def test_columns_can_be_named(tmp_path):
    file = write_parquet(tmp_path / "items.parquet", caption_column="title")
    assert read_captioned_vectors(file, column="title").captions == CAPTIONS
    with pytest.raises(DataFileError, match="has no column caption or text or sentence; it has embedding, title, id"):
        read_captioned_vectors(file)
    with pytest.raises(DataFileError, match="needs a column vector of lists"):
        read_vectors(file, "vector")


def nan(vectors):
    vectors[2, 1] = np.nan


def infinite(vectors):
    vectors[2, 1] = np.inf


def constant(vectors):
    vectors[2] = 0


def equal(vectors):
    vectors[:] = vectors[0]


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (nan, r"items, row 3: the vector has numbers that are missing, NaN or infinite; leave it out\."),
        (infinite, r"items, row 3: the vector has numbers that are missing, NaN or infinite; leave it out\."),
        (constant, r"items, row 3: all numbers of the vector are 0, so it says nothing; leave it out\."),
        (equal, r"items: all 5 vectors are equal, so nothing can be learned from them\."),
    ],
)
def test_vectors_that_say_nothing_are_one_sentence(damage, message):
    vectors = VECTORS.copy()
    damage(vectors)
    with pytest.raises(InputError, match=message):
        CaptionedVectors(vectors, CAPTIONS, "items")


def test_counts_and_captions_are_checked():
    with pytest.raises(InputError, match="items has 5 vectors and 4 captions; give one caption for each vector"):
        CaptionedVectors(VECTORS, CAPTIONS[:4], "items")
    with pytest.raises(InputError, match="items, row 2: the caption is empty"):
        CaptionedVectors(VECTORS, ["a", " ", "c", "d", "e"], "items")


@pytest.mark.parametrize("vectors", [[1.0, 2.0], [["a"]], np.empty((0, 3)), [[1.0], [2.0, 3.0]], None, "x", [[None]]])
def test_what_is_no_table_of_numbers_is_one_sentence(vectors):
    with pytest.raises(InputError, match="does not hold a table of numbers, one row for each item"):
        check_vectors(vectors, "items")


def test_numbers_of_any_type_are_vectors():
    for dtype in (np.float16, np.float64, np.int32, np.uint8):
        table = np.arange(6).reshape(2, 3).astype(dtype)
        assert np.array_equal(check_vectors(table), table) and check_vectors(table).dtype == np.float32
    with pytest.raises(InputError, match="has vectors of 3 dimensions; this bridge takes those of 4"):
        check_vectors(VECTORS, "items", dim=4)
    assert len(check_vectors(VECTORS[[0, 0]], dim=3)) == 2, "an item may be described twice"


def test_files_that_cannot_be_read_are_one_sentence(tmp_path):
    with pytest.raises(DataFileError, match="There is no file"):
        read_vectors(tmp_path / "absent.npy")
    (tmp_path / "broken.npy").write_bytes(b"no array")
    with pytest.raises(DataFileError, match=r"Cannot read .* not a whole \.npy file of numbers"):
        read_vectors(tmp_path / "broken.npy")
    np.save(tmp_path / "objects.npy", np.array([{}], object))
    with pytest.raises(DataFileError, match=r"Cannot read .* not a whole \.npy file of numbers"):
        read_vectors(tmp_path / "objects.npy")
    (tmp_path / "broken.parquet").write_bytes(b"no table")
    with pytest.raises(DataFileError, match="needs a column embedding"):
        read_vectors(tmp_path / "broken.parquet")
    write_parquet(tmp_path / "ragged.parquet", [[1.0], [1.0, 2.0], [1.0], [1.0], [1.0]])
    with pytest.raises(DataFileError, match="there are vectors of 1 and of 2 dimensions"):
        read_vectors(tmp_path / "ragged.parquet")
    (tmp_path / "table.csv").write_text("a")
    with pytest.raises(DataFileError, match=r"is no file of vectors; give \.npy or \.parquet"):
        read_vectors(tmp_path / "table.csv")
    np.save(tmp_path / "alone.npy", VECTORS)
    with pytest.raises(DataFileError, match="needs captions, in the same order"):
        read_captioned_vectors(tmp_path / "alone.npy")


def test_no_caption_is_in_two_parts():
    items = toy_items(400)
    parts = items.split(seed=1)
    assert sum(map(len, parts)) == 400 and all(len(part) >= 40 for part in parts)
    captions = [set(part.captions) for part in parts]
    assert not captions[0] & captions[1] and not captions[0] & captions[2] and not captions[1] & captions[2]
    rows = {tuple(vector): caption for vector, caption in zip(items.vectors.tolist(), items.captions, strict=True)}
    for part in parts:
        assert [rows[tuple(vector)] for vector in part.vectors.tolist()] == part.captions
    assert parts[2].captions == items.split(seed=1)[2].captions != items.split(seed=2)[2].captions
    with pytest.raises(InputError, match="has 5 different captions; give 8 or more"):
        CaptionedVectors(VECTORS, CAPTIONS, "items").split()
