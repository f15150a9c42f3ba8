"""The encoder that ships with the package: its files, its name wherever an encoder is named, its gold vectors."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest
import torch
from safetensors import safe_open

import decoder2vec
from decoder2vec import encoder_folder
from decoder2vec.adapters.lora import Lora
from decoder2vec.backbone.backbone import Backbone
from decoder2vec.config import DEFAULT_ENCODER
from decoder2vec.encoder import Encoder
from decoder2vec.encoder_folder import BUILTIN_ENCODERS
from decoder2vec.errors import InputError
from decoder2vec.evaluation.baselines import load_encoder
from decoder2vec.gold import GOLD_FILE
from decoder2vec.reranker import Reranker, RerankerSpec
from decoder2vec.saved_encoder import read_encoder_folder
from decoder2vec.search.rerank import open_reranker
from decoder2vec.text.data_check import TRAINING_PAIRS_FILE, count_overlap, hash_pairs
from decoder2vec.training.card import find_licence
from toys.command import d2v
from toys.training import toy_data, toy_pairs

SHIPPED = BUILTIN_ENCODERS / DEFAULT_ENCODER
TEXTS = ["A cat sleeps.", "Stocks fell sharply."]


@pytest.fixture
def tiny_builtin(tmp_path, monkeypatch):
    """A folder of built-in encoders that holds a tiny one under the default name."""
    monkeypatch.setattr(encoder_folder, "BUILTIN_ENCODERS", tmp_path / "encoders")
    encoder = Encoder.from_pretrained("tiny-llama", layer=3, pooling="mean", template="plain")
    encoder.save(tmp_path / "encoders" / DEFAULT_ENCODER)
    return encoder


# --- what ships -----------------------------------------------------------------------------------------------------


def test_shipped_adapter_is_small_and_finite():
    file = SHIPPED / "adapter" / "adapter.safetensors"
    assert file.stat().st_size <= 20_000_000
    with safe_open(file, "numpy") as tensors:
        assert len(tensors.keys()) == 30 * 7 * 2 * 2  # blocks, linear layers, factors, each in int8 with scales
    with safe_open(file, "pt") as tensors:
        assert all(tensors.get_tensor(name).isfinite().all() for name in tensors.keys())  # noqa: SIM118


def test_shipped_encoder_reads_the_mean_of_both_directions():
    description, head = read_encoder_folder(SHIPPED)
    assert description["spec"]["backbone"] == "smollm2-135m" and description["dim"] == 576 and head is None
    assert description["spec"]["attention"] == "bidirectional"
    assert [reading["pooling"] for reading in description["spec"]["readings"]] == ["mean"]


def test_shipped_gold_vectors_are_finite_and_differ():
    """Whether the encoder gives them is tested in tests/slow, with its real model."""
    gold = json.loads((SHIPPED / GOLD_FILE).read_text(encoding="utf-8"))
    vectors = np.array(gold["vectors"])
    assert vectors.shape == (len(gold["texts"]), 576) and np.isfinite(vectors).all()
    assert len(np.unique(vectors, axis=0)) == len(set(gold["texts"])) == len(vectors)


def test_card_names_teachers_licences_and_overlap():
    card = (SHIPPED / "README.md").read_text(encoding="utf-8")
    assert re.match(r"---\nlicense: apache-2.0\n", card)
    assert find_licence(DEFAULT_ENCODER) == "apache-2.0"
    for fact in ("all-mpnet-base-v2 (Apache-2.0)", "bge-small-en-v1.5 (MIT)", "CC BY-SA", "Overlap"):
        assert fact in card


# --- its name -------------------------------------------------------------------------------------------------------


def test_name_loads_the_folder(tiny_builtin):
    expected = tiny_builtin.encode(TEXTS)
    for load in (Encoder.from_pretrained, Encoder.load, load_encoder):
        assert np.array_equal(load(DEFAULT_ENCODER).encode(TEXTS), expected)
    with pytest.raises(InputError, match="saved encoder with its own settings; leave out layer, or name a model"):
        Encoder.from_pretrained(DEFAULT_ENCODER, layer=2)


def test_folder_of_the_same_name_is_preferred(tiny_builtin, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Encoder.from_pretrained("tiny-gpt2").save(DEFAULT_ENCODER)
    assert Encoder.from_pretrained(DEFAULT_ENCODER).backbone.name == "tiny-gpt2"


def test_commands_take_it_if_none_is_named(tiny_builtin, tmp_path):
    expected = float(tiny_builtin.similarity(*(tiny_builtin.encode(text) for text in TEXTS)))
    assert float(d2v("similarity", *TEXTS).stdout) == pytest.approx(expected, abs=1e-4)

    (tmp_path / "texts.txt").write_text("\n".join(TEXTS), encoding="utf-8")
    assert d2v("embed", tmp_path / "texts.txt", "--out", tmp_path / "v.npy").exit_code == 0
    assert np.allclose(np.load(tmp_path / "v.npy"), tiny_builtin.encode(TEXTS), atol=1e-5)

    assert d2v("index", tmp_path / "texts.txt", "--out", tmp_path / "index").exit_code == 0
    hit = json.loads(d2v("search", tmp_path / "index", TEXTS[1], "--mode", "dense", "--json").stdout.splitlines()[0])
    assert TEXTS[1] in hit["text"]


def test_matching_takes_it_if_none_is_named(tiny_builtin):
    matching = decoder2vec.match(["I bake bread."], ["I repair pumps.", "I bake bread."])
    assert matching.for_left[0][0].right == 1


def test_server_takes_it_if_none_is_named(tiny_builtin, monkeypatch):
    app = pytest.importorskip("decoder2vec.serving.app", reason="no server: pip install 'decoder2vec[serve]'")
    from fastapi.testclient import TestClient

    configs = []
    monkeypatch.setattr(app, "serve", lambda load_config, *_, **__: configs.append(load_config()))
    assert d2v("serve").exit_code == d2v("serve", "--raw").exit_code == 0
    lengths = np.linalg.norm(tiny_builtin.encode(TEXTS), axis=1, keepdims=True)
    for config, scale in zip(configs, (1 / lengths, 1), strict=True):
        with TestClient(app.create_app(config), "http://localhost") as client:
            assert [model["id"] for model in client.get("/v1/models").json()["data"]] == [DEFAULT_ENCODER]
            body = {"model": DEFAULT_ENCODER, "input": TEXTS}
            vectors = [item["embedding"] for item in client.post("/v1/embeddings", json=body).json()["data"]]
        np.testing.assert_allclose(vectors, tiny_builtin.encode(TEXTS) * scale, atol=1e-5, rtol=1e-5)


def test_what_it_learned_from_is_read_from_its_folder(tiny_builtin, tmp_path):
    folder, pairs = tmp_path / "encoders" / DEFAULT_ENCODER, toy_pairs()
    np.save(folder / TRAINING_PAIRS_FILE, hash_pairs(pairs.left, pairs.right))
    messages = []
    decoder2vec.evaluate(DEFAULT_ENCODER, pairs, notify=messages.append)
    assert any(f"trained on {len(pairs)} of the {len(pairs)} pairs" in message for message in messages)
    decoder2vec.train("lora", toy_data(), DEFAULT_ENCODER, tmp_path / "out", settings=["training.steps=1"])
    seen = np.load(tmp_path / "out" / TRAINING_PAIRS_FILE)
    assert count_overlap(pairs.left, pairs.right, seen) == len(pairs)


def test_training_starts_from_it(tiny_builtin, tmp_path):
    (tmp_path / "texts.txt").write_text("\n".join(f"Text number {n} of many." for n in range(12)), encoding="utf-8")
    result = decoder2vec.train(
        "lora",
        tmp_path / "texts.txt",
        DEFAULT_ENCODER,
        tmp_path / "out",
        settings=["objective.name=crop", "training.steps=1", "training.batch=4"],
    )
    assert result.results["backbone"]["name"] == DEFAULT_ENCODER


def test_encoders_are_merged_with_it(tiny_builtin, tmp_path):
    merged = decoder2vec.merge([DEFAULT_ENCODER, DEFAULT_ENCODER], tmp_path / "merged")
    assert np.allclose(merged.encode(TEXTS), tiny_builtin.encode(TEXTS), atol=1e-5)


def test_its_adapter_is_added_by_name(tmp_path, monkeypatch):
    monkeypatch.setattr(encoder_folder, "BUILTIN_ENCODERS", tmp_path)
    model = Backbone.load("tiny-llama", device="cpu")
    lora = Lora.initialise(model, 2, 4)
    for matrix in lora.upper.values():
        matrix.data.fill_(0.1)
    spec = Encoder.from_pretrained("tiny-llama", device="cpu").spec
    builtin = Encoder(model.with_adapter(lora), spec)
    builtin.save(tmp_path / DEFAULT_ENCODER)
    encoder = Encoder.from_pretrained("tiny-llama", device="cpu")
    encoder.add_adapter("general", DEFAULT_ENCODER)
    assert np.allclose(encoder.with_adapter("general").encode(TEXTS), builtin.encode(TEXTS), atol=1e-5)
    assert not np.allclose(encoder.encode(TEXTS), builtin.encode(TEXTS), atol=1e-3)


# --- doctor ---------------------------------------------------------------------------------------------------------


def test_doctor_computes_the_gold_vectors_again(tiny_builtin):
    checks = {check.name: check for check in decoder2vec.doctor(DEFAULT_ENCODER)}
    assert all(check.passed for check in checks.values()) and "gold vectors" in checks


def test_doctor_finds_changed_vectors(tiny_builtin, tmp_path):
    file = tmp_path / "encoders" / DEFAULT_ENCODER / GOLD_FILE
    gold = json.loads(file.read_text(encoding="utf-8"))
    gold["vectors"][0][0] += 1
    file.write_text(json.dumps(gold), encoding="utf-8")
    result = d2v("doctor", DEFAULT_ENCODER)
    assert result.exit_code == 1 and "gold vectors" in result.stderr


# --- the reranker ----------------------------------------------------------------------------------------------------


def test_shipped_reranker_is_small_and_names_its_model():
    folder = BUILTIN_ENCODERS / "smollm2-135m-reranker"
    description = json.loads((folder / "reranker.json").read_text(encoding="utf-8"))
    assert description["spec"]["backbone"] == "smollm2-135m" and description["spec"]["method"] == "linear"
    shipped = json.loads((SHIPPED / "encoder.json").read_text(encoding="utf-8"))
    assert description["backbone_fingerprint"] == shipped["backbone_fingerprint"]
    assert (folder / "adapter" / "adapter.safetensors").stat().st_size <= 20_000_000
    assert (folder / "README.md").read_text(encoding="utf-8").startswith("---\nlicense: apache-2.0\n")


def test_reranker_is_found_by_its_name(tmp_path, monkeypatch):
    monkeypatch.setattr(encoder_folder, "BUILTIN_ENCODERS", tmp_path)
    backbone = Backbone.load("tiny-llama", device="cpu", dtype="float32")
    lora = Lora.initialise(backbone, 2, 4)
    for matrix in lora.upper.values():
        torch.nn.init.normal_(matrix, std=0.05, generator=torch.Generator().manual_seed(0))
    head = torch.linspace(-1, 1, backbone.dim)
    reranker = Reranker(backbone.with_adapter(lora), RerankerSpec("tiny-llama", method="linear"), head)
    reranker.save(tmp_path / "toy-reranker", lora_dtype="int8")
    file = tmp_path / "toy-reranker" / "adapter" / "adapter.safetensors"
    assert file.is_file()  # not in peft's format, which has no int8

    exact, expected = reranker.score("a cat", TEXTS), Reranker.load("toy-reranker", device="cpu").score("a cat", TEXTS)
    assert not np.array_equal(exact, expected) and np.allclose(exact, expected, atol=0.1)
    for load in (Reranker.from_pretrained, open_reranker):
        assert np.array_equal(load("toy-reranker", device="cpu").rerank("a cat", TEXTS), expected.tolist())
    assert all(check.passed for check in decoder2vec.doctor("toy-reranker", device="cpu"))
    with pytest.raises(InputError, match="saved reranker with its own settings"):
        Reranker.from_pretrained("toy-reranker", method="likelihood")
