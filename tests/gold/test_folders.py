"""Folders written by version 0.1.0 load and give the recorded vectors, scores and hits."""

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
from decoder2vec.search.hybrid import Fusion
from decoder2vec.search.index import Index
from decoder2vec.text.template import Template
from toys.gold import FOLDER

ENCODERS = json.loads((FOLDER / "encoders.json").read_text(encoding="utf-8"))


def assert_same_vectors(vectors, expected):
    """Up to rounding, which grows with the length of vectors."""
    np.testing.assert_allclose(vectors, expected, rtol=1e-4, atol=max(2e-5, 3e-6 * np.abs(expected).max()))


def copy_with_backbone(folder, target):
    """Copy an encoder's folder and add the model, which most gold folders share."""
    shutil.copytree(folder, target)
    if not (target / "backbone").is_dir():
        shutil.copytree(FOLDER / "backbone", target / "backbone")
    return target


@pytest.mark.parametrize("name", ENCODERS["encoders"])
def test_old_encoder_gives_recorded_vectors(name, tmp_path):
    expected = ENCODERS["encoders"][name]
    folder = copy_with_backbone(FOLDER / "encoders" / name, tmp_path / name)
    encoder = Encoder.load(folder, device="cpu", dtype="float32")
    vectors = encoder.encode(ENCODERS["texts"])
    assert_same_vectors(vectors, expected["vectors"])
    assert (encoder.fingerprint, encoder.dim) == (expected["fingerprint"], expected["dim"])
    assert encoder.score("A cat sleeps.", "A kitten is napping.") == pytest.approx(expected["score"], abs=1e-4)
    for adapter, adapter_vectors in expected.get("through", {}).items():
        vectors = encoder.with_adapter(adapter).encode(ENCODERS["texts"])
        assert_same_vectors(vectors, adapter_vectors)


@pytest.mark.parametrize("name", ENCODERS["encoders"])
def test_old_encoder_is_saved_unchanged(name, tmp_path):
    folder = copy_with_backbone(FOLDER / "encoders" / name, tmp_path / name)
    encoder = Encoder.load(folder, device="cpu", dtype="float32")
    encoder.save(tmp_path / "again", copy_backbone=True)
    old, new = (json.loads((folder / "encoder.json").read_text()) for folder in (folder, tmp_path / "again"))
    changing = ("decoder2vec", "spec")
    assert {key: new[key] for key in old if key not in changing} == {k: old[k] for k in old if k not in changing}
    assert {**new["spec"], "backbone": ""} == {**old["spec"], "backbone": ""}
    reloaded = Encoder.load(tmp_path / "again", device="cpu", dtype="float32")
    assert (reloaded.encode(ENCODERS["texts"]) == encoder.encode(ENCODERS["texts"])).all()


def test_old_index_gives_recorded_hits(tmp_path):
    expected = json.loads((FOLDER / "index.json").read_text(encoding="utf-8"))
    shutil.copytree(FOLDER / "index", tmp_path / "index")
    shutil.copytree(FOLDER / "backbone", tmp_path / "index" / "encoder" / "backbone")
    index = Index.open(tmp_path / "index")
    index.verify()
    assert index.header.fusion == Fusion()  # it was not tuned, and follows the default
    index.set_fusion(Fusion("rrf", 0.5))  # the default of 0.1.0
    for mode, expected_hits in expected["hits"].items():
        hits = index.search(expected["query"], 5, mode)
        assert [(hit.id, hit.snippet.text) for hit in hits] == [(id, text) for id, _, text in expected_hits]
        assert [hit.score for hit in hits] == pytest.approx([score for _, score, _ in expected_hits], abs=1e-4)


def test_old_latents_are_read_from_the_store(tmp_path):
    expected = json.loads((FOLDER / "latents.json").read_text(encoding="utf-8"))
    shutil.copytree(FOLDER / "latents", tmp_path / "latents")
    readings = [Reading(layer, pooling) for layer in expected["layers"] for pooling in expected["poolings"]]
    backbone = Backbone.load(FOLDER / "backbone", device="cpu", dtype="float32")
    extractor = Extractor(backbone, readings, Template.of("plain"), expected["max_length"])
    store = Store(extractor.space(), root=tmp_path / "latents")
    assert all(text_key(text) in store for text in expected["texts"])
    latents = store.read([text_key(text) for text in expected["texts"]])
    np.testing.assert_allclose(latents, expected["values"], rtol=1e-6, atol=1e-7)
    np.testing.assert_allclose(latents, extractor(expected["texts"]), rtol=1e-2, atol=2e-3)
