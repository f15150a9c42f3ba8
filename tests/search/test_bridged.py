"""Items of other origin in an index: through a bridge, beside documents, found by text."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from decoder2vec.backbone.backbone import Backbone
from decoder2vec.bridge.bridge import Bridge
from decoder2vec.bridge.projector import Projector
from decoder2vec.config import EncoderSpec, Reading
from decoder2vec.encoder import Encoder
from decoder2vec.errors import InputError
from decoder2vec.search.index import Index
from decoder2vec.search.migration import migrate
from toys.bridge import toy_items
from toys.encoder import WordEncoder

ITEMS = toy_items(30)


def bridge_of(seed=0):
    model = Backbone.load("tiny-llama", device="cpu", dtype="float32")
    encoder = Encoder(model, EncoderSpec(model.name, (Reading(-1, "mean", True),), "{text}"))
    torch.manual_seed(seed)
    return Bridge(encoder, Projector.initialise(model, ITEMS.vectors, 2).requires_grad_(False))


@pytest.fixture(scope="module")
def bridge(own_cache):
    return bridge_of()


def test_items_and_texts_share_an_index(bridge, tmp_path):
    index = Index.create(tmp_path / "idx", bridge.encoder)
    index.add(["the cats sleep on the sofa", "stocks fell sharply"])
    assert index.add(ITEMS.captions, vectors=ITEMS.vectors, through=bridge).added == 30
    index.verify()
    found = Index.open(tmp_path / "idx").rank(["birds sing"], 32, "dense")[0]
    assert len(found) == 32
    texts = bridge.encoder.encode(["the cats sleep on the sofa", "stocks fell sharply"])
    query = bridge.encoder.encode_query("birds sing")
    scores = bridge.encoder.similarity(query, np.concatenate([texts, bridge.encode(ITEMS.vectors)])).numpy()[0]
    order = np.argsort(-scores)
    items = [document.id for document in found if document.id.startswith("item ")]
    assert items == [f"item {row - 2}" for row in order if row >= 2]
    assert [document.score for document in found] == pytest.approx(scores[order].tolist(), abs=1e-5)
    hit = index.search("birds sing", 1, "dense", {"bridge": bridge.fingerprint})[0]
    assert hit.text == ITEMS.captions[int(hit.id.split()[1])] and hit.metadata["bridge"] == bridge.fingerprint


def test_recall_equals_brute_force(bridge, tmp_path):
    index = Index.create(tmp_path / "idx", bridge.encoder)
    index.add(vectors=ITEMS.vectors, through=bridge)
    queries = sorted(set(ITEMS.captions))
    scores = bridge.encoder.similarity(bridge.encoder.encode_query(queries), bridge.encode(ITEMS.vectors)).numpy()
    for found, row in zip(index.rank(queries, 5, "dense"), scores, strict=True):
        assert [document.id for document in found] == [f"item {at}" for at in np.argsort(-row, kind="stable")[:5]]


def test_only_changed_items_are_stored_again(bridge, tmp_path):
    index = Index.create(tmp_path / "idx", bridge.encoder)
    documents = [{"id": f"clip{row}", "text": text, "year": row} for row, text in enumerate(ITEMS.captions)]
    assert index.add(documents, vectors=ITEMS.vectors, through=bridge).added == 30
    assert index.add(documents, vectors=ITEMS.vectors, through=bridge).unchanged == 30
    vectors = ITEMS.vectors.copy()
    vectors[3] += 1
    changes = index.add(documents, vectors=vectors, through=bridge)
    assert (changes.updated, changes.unchanged) == (1, 29)
    stored = dict(zip(*index.store.read_vectors(["clip3"]), strict=True))
    assert np.allclose(next(iter(stored.values())), bridge.encode(vectors[3:4])[0], atol=1e-5)
    assert index.add(documents, vectors=vectors, through=bridge_of(1)).updated == 30
    assert index.search("cats", 1, "dense", {"year": "7"})[0].id == "clip7"


def test_what_does_not_fit_is_one_sentence(bridge, tmp_path):
    index = Index.create(tmp_path / "idx", bridge.encoder)
    with pytest.raises(InputError, match="Give both"):
        index.add(vectors=ITEMS.vectors)
    with pytest.raises(InputError, match="Give both"):
        index.add(through=bridge)
    with pytest.raises(InputError, match="nothing to add"):
        index.add()
    with pytest.raises(InputError, match="30 vectors and 2 documents"):
        index.add(["a", "b"], vectors=ITEMS.vectors, through=bridge)
    with pytest.raises(InputError, match="vectors of 5 dimensions; this bridge takes those of 12"):
        index.add(vectors=ITEMS.vectors[:, :5], through=bridge)
    broken = ITEMS.vectors.copy()
    broken[4, 2] = np.nan
    with pytest.raises(InputError, match="row 5: the vector has numbers that are missing"):
        index.add(vectors=broken, through=bridge)
    with pytest.raises(InputError, match="cannot be read"):
        index.add([{"title": "no text"}] * 30, vectors=ITEMS.vectors, through=bridge)
    assert index.count() == (0, 0)
    other = Index.create(tmp_path / "other", WordEncoder())
    with pytest.raises(InputError, match="another encoder than that of this index"):
        other.add(vectors=ITEMS.vectors, through=bridge)


def test_a_migration_does_not_take_captions_for_items(bridge, tmp_path):
    index = Index.create(tmp_path / "idx", bridge.encoder)
    index.add(ITEMS.captions, vectors=ITEMS.vectors, through=bridge)
    with pytest.raises(InputError, match="is an item whose vector came through a bridge"):
        migrate(tmp_path / "idx", WordEncoder())
    assert Index.open(tmp_path / "idx").count() == (30, 30)
