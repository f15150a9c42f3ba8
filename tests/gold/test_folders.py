"""Folders written by version 0.1.0 load, and give what they gave."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest

from decoder2vec.activations.extract import Extractor
from decoder2vec.activations.store import Store, text_key
from decoder2vec.backbone.backbone import Backbone
from decoder2vec.config import Reading
from decoder2vec.encoder import Encoder
from decoder2vec.search.index import Index
from decoder2vec.text.template import Template
from toys.gold import FOLDER

ENCODERS = json.loads((FOLDER / "encoders.json").read_text(encoding="utf-8"))
CLOSE = {"rtol": 1e-4, "atol": 2e-5}


def whole(folder, target):
    """A copy of a folder with the model inside, as it stands where it is used."""
    shutil.copytree(folder, target)
    if not (target / "backbone").is_dir():
        shutil.copytree(FOLDER / "backbone", target / "backbone")
    return target


@pytest.mark.parametrize("name", ENCODERS["encoders"])
def test_old_encoders_give_their_vectors(name, tmp_path):
    expected = ENCODERS["encoders"][name]
    encoder = Encoder.load(whole(FOLDER / "encoders" / name, tmp_path / name), device="cpu", dtype="float32")
    vectors = encoder.encode(ENCODERS["texts"])
    np.testing.assert_allclose(vectors, expected["vectors"], **CLOSE)
    assert (encoder.fingerprint, encoder.dim) == (expected["fingerprint"], expected["dim"])
    assert encoder.score("A cat sleeps.", "A kitten is napping.") == pytest.approx(expected["score"], abs=1e-4)
    for adapter, through in expected.get("through", {}).items():
        np.testing.assert_allclose(encoder.with_adapter(adapter).encode(ENCODERS["texts"]), through, **CLOSE)


@pytest.mark.parametrize("name", ENCODERS["encoders"])
def test_old_encoders_are_saved_as_they_were(name, tmp_path):
    encoder = Encoder.load(whole(FOLDER / "encoders" / name, tmp_path / name), device="cpu", dtype="float32")
    encoder.save(tmp_path / "again", copy_backbone=True)
    old, new = (json.loads((folder / "encoder.json").read_text()) for folder in (tmp_path / name, tmp_path / "again"))
    changing = ("decoder2vec", "spec")
    assert {key: new[key] for key in old if key not in changing} == {k: old[k] for k in old if k not in changing}
    assert {**new["spec"], "backbone": ""} == {**old["spec"], "backbone": ""}
    again = Encoder.load(tmp_path / "again", device="cpu", dtype="float32")
    assert (again.encode(ENCODERS["texts"]) == encoder.encode(ENCODERS["texts"])).all()


def test_an_old_index_opens_and_finds_the_same(tmp_path):
    expected = json.loads((FOLDER / "index.json").read_text(encoding="utf-8"))
    shutil.copytree(FOLDER / "index", tmp_path / "index")
    shutil.copytree(FOLDER / "backbone", tmp_path / "index" / "encoder" / "backbone")
    index = Index.open(tmp_path / "index")
    index.verify()
    for mode, hits in expected["hits"].items():
        found = index.search(expected["query"], 5, mode)
        assert [(hit.id, hit.snippet.text) for hit in found] == [(id, text) for id, _, text in hits]
        assert [hit.score for hit in found] == pytest.approx([score for _, score, _ in hits], abs=1e-4)


def test_old_latents_are_found_and_not_computed(tmp_path):
    expected = json.loads((FOLDER / "latents.json").read_text(encoding="utf-8"))
    shutil.copytree(FOLDER / "latents", tmp_path / "latents")
    readings = [Reading(layer, pooling) for layer in expected["layers"] for pooling in expected["poolings"]]
    backbone = Backbone.load(FOLDER / "backbone", device="cpu", dtype="float32")
    extractor = Extractor(backbone, readings, Template.of("plain"), expected["max_length"])
    store = Store(extractor.space(), root=tmp_path / "latents")
    assert all(text_key(text) in store for text in expected["texts"])
    kept = store.read([text_key(text) for text in expected["texts"]])
    np.testing.assert_allclose(kept, expected["values"], rtol=1e-6, atol=1e-7)
    np.testing.assert_allclose(kept, extractor(expected["texts"]), rtol=1e-2, atol=2e-3)
