"""Documents that come with vectors: given one by one, or by a folder that `embed_dataset` wrote."""

from __future__ import annotations

import json

import numpy as np
import pytest

from decoder2vec.backbone.backbone import Backbone
from decoder2vec.bulk.dataset import MANIFEST_FILE, embed_dataset
from decoder2vec.bulk.plan import VectorFormat
from decoder2vec.encoder import Encoder
from decoder2vec.errors import InputError, StorageError
from decoder2vec.search import indexing
from decoder2vec.search.documents import Document
from decoder2vec.search.index import Index
from toys.command import d2v
from toys.encoder import WordEncoder

ROWS = [{"key": f"r{i}", "text": f"Ship {i} sails to port {i % 3}.", "year": 2000 + i % 4} for i in range(25)]


@pytest.fixture(scope="module")
def encoder():
    return Encoder.from_pretrained("tiny-llama", device="cpu", dtype="float32", prompts={"document": "passage: "})


@pytest.fixture
def folder(tmp_path, encoder):
    """folder(**options) -> a folder of vectors of ROWS."""
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in ROWS), encoding="utf-8")

    def embed(**options):
        defaults = {"id_column": "key", "rows_per_part": 10, "prompt_name": "document"}
        embed_dataset(encoder, str(file), tmp_path / "vectors", **{**defaults, **options})
        return tmp_path / "vectors"

    return embed


def stored(index):
    keys, vectors = index.store.read_vectors()
    return {key: (chunk, vectors[keys.index(key)]) for key, chunk in index.store.read_chunks(keys).items()}


def test_folder_gives_the_index_that_encoding_gives(location, closing, folder, encoder, tmp_path, monkeypatch):
    encoded = Index.create(tmp_path / "encoded", encoder)
    encoded.add([{"id": row["key"], "text": row["text"], "year": row["year"]} for row in ROWS])
    index = closing(Index.create(location, encoder))
    vectors = folder()
    monkeypatch.setattr(indexing, "encode_texts", None)  # it is not called
    assert index.add(vectors).added == len(ROWS)
    monkeypatch.undo()
    found, expected = stored(index), stored(encoded)
    assert found.keys() == expected.keys()
    for key, (chunk, vector) in expected.items():
        assert found[key][0] == chunk
        np.testing.assert_allclose(found[key][1], vector, atol=1e-6)
    index.verify()
    assert index.add(vectors).unchanged == len(ROWS)
    assert [hit.id for hit in index.search("ship 7", 3)] == [hit.id for hit in encoded.search("ship 7", 3)]


def test_documents_with_and_without_vectors_mix(location, closing):
    index = closing(Index.create(location, WordEncoder()))
    vector = WordEncoder().encode(["gold"])[0]
    index.add([Document("a", "a red boat"), Document("b", "what nobody reads", vector=vector), Document("c", "a tree")])
    assert index.search("gold", mode="dense")[0].id == "b"
    assert index.search("tree", mode="dense")[0].id == "c"
    index.verify()


@pytest.mark.parametrize("vector", [[1.0, 2.0], [float("nan")] * 32])
def test_vector_that_does_not_fit_is_refused(tmp_path, vector):
    index = Index.create(tmp_path / "index", WordEncoder())
    with pytest.raises(InputError, match="'a' comes with a vector that does not fit"):
        index.add([Document("a", "text", vector=np.array(vector, np.float32))])
    assert index.count() == (0, 0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"prompt_name": None}, "with --prompt-name document"),
        ({"vectors": VectorFormat("int8")}, "reduced vectors"),
        ({"vectors": VectorFormat(dimensions=4)}, "reduced vectors"),
    ],
)
def test_vectors_of_another_kind_are_refused(tmp_path, folder, encoder, options, message):
    index = Index.create(tmp_path / "index", encoder)
    with pytest.raises(InputError, match=message):
        index.add(folder(**options))
    assert index.count() == (0, 0)


def test_vectors_of_another_encoder_are_refused(tmp_path, folder):
    index = Index.create(tmp_path / "index", "tiny-gpt2")
    with pytest.raises(InputError, match="another encoder"):
        index.add(folder())


def test_damaged_part_is_refused_and_what_was_added_stays(tmp_path, folder, encoder):
    vectors = folder()
    (vectors / "part-00000-000000000010.parquet").write_bytes(b"PAR1")
    index = Index.create(tmp_path / "index", encoder)
    with pytest.raises(StorageError, match=f"{vectors}/part-00000-000000000010.parquet is not as it was written"):
        index.add(vectors)
    index.verify()


@pytest.mark.parametrize("has_index", [False, True])
def test_unfinished_folder_is_refused_before_a_model_is_loaded(tmp_path, folder, encoder, has_index, monkeypatch):
    vectors, out = folder(), tmp_path / "index"
    if has_index:
        Index.create(out, encoder)
    (vectors / MANIFEST_FILE).unlink()
    monkeypatch.setattr(Backbone, "load", None)  # it is not called
    with pytest.raises(StorageError, match=f"{vectors} is not finished: 3 parts are there; run the same command again"):
        d2v("index", vectors, "--out", out)
    assert Index.exists(out) == has_index


def test_vectors_at_a_url_are_indexed(tmp_path, folder):
    options = {"device": "cpu", "dtype": "float32", "rows_per_part": 10, "id_column": "key"}
    folder()
    embed_dataset("tiny-llama", str(tmp_path / "rows.jsonl"), "memory://store/vectors", **options)
    index, encoder = tmp_path / "index", ("--encoder", "tiny-llama", "--device", "cpu", "--dtype", "float32")
    with pytest.raises(StorageError, match=r"memory://store/other has no plan\.json"):
        d2v("index", "memory://store/other", "--out", index, *encoder)
    d2v("index", "memory://store/vectors", "--out", index, *encoder)
    again = d2v("index", "memory://store/vectors", "--out", index)
    assert f"added 0, updated 0, unchanged {len(ROWS)}" in again.output
    _, vectors = Index.open(index).store.read_vectors(["r3"])
    expected = Encoder.from_pretrained("tiny-llama", device="cpu", dtype="float32").encode([ROWS[3]["text"]])
    np.testing.assert_allclose(vectors, expected, rtol=1e-4, atol=1e-4)


def test_plan_of_the_user_is_no_folder_of_vectors(tmp_path):
    (tmp_path / "papers").mkdir()
    (tmp_path / "papers" / "plan.json").write_text('{"goals": ["sail"]}', encoding="utf-8")
    (tmp_path / "papers" / "boat.txt").write_text("A red boat.", encoding="utf-8")
    assert Index.create(tmp_path / "index", WordEncoder()).add(tmp_path / "papers").added == 1


def test_prompt_that_an_encoder_lacks_is_named(tmp_path):
    (tmp_path / "rows.txt").write_text("one\n", encoding="utf-8")
    with pytest.raises(InputError, match="this encoder has no prompts"):
        embed_dataset("tiny-llama", str(tmp_path / "rows.txt"), tmp_path / "out", prompt_name="document", device="cpu")
