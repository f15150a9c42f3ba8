"""The experiment with heads on a frozen model: it ends in an encoder that gives the vectors of the trained head."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch

from decoder2vec.encoder import Encoder
from decoder2vec.errors import InputError
from decoder2vec.training.recipes.freeze import LatentSource
from frozen_heads import Settings, distil, parse_source

SOURCES = [LatentSource("plain", "mean", (1, 3)), LatentSource("prompteol", "lasttoken", "2:3")]
TEXTS = [f"Order {n} of {n % 9} apples was sent in box {n % 7}." for n in range(240)]
SETTINGS = Settings(dim=24, hidden=32, width=16, dropout=0, steps=200, batch=32, rate=3e-3, max_length=64)


def teacher(dim: int) -> torch.Tensor:
    """A random projection of a layer that the head does not read."""
    states = Encoder.from_pretrained("tiny-llama", layer=2, pooling="mean", template="plain", device="cpu").encode(
        TEXTS
    )
    projection = np.random.default_rng(dim).normal(size=(states.shape[1], dim))
    return torch.tensor(states @ projection, dtype=torch.float16)


def test_a_run_ends_in_an_encoder_of_the_head(tmp_path):
    dev = tmp_path / "dev.tsv"
    dev.write_text(f"sentence1\tsentence2\tscore\n{TEXTS[0]}\t{TEXTS[63]}\t4\n{TEXTS[0]}\t{TEXTS[5]}\t1\n")
    vectors = {"one": teacher(12), "two": teacher(6)}
    (encoder,) = distil("tiny-llama", SOURCES, TEXTS, vectors, {0: tmp_path / "enc"}, SETTINGS, dev=[dev], device="cpu")
    record = json.loads((tmp_path / "enc" / "distillation.json").read_text())
    assert record["log"][-1]["step"] == 200
    assert record["texts"] == 240
    assert min(record["log"][-1]["held-out cosines"]) > 0.5
    assert -100 <= record["dev"]["dev.tsv"] <= 100
    loaded = Encoder.load(tmp_path / "enc", device="cpu")
    assert loaded.dim == 24
    np.testing.assert_allclose(loaded.encode(TEXTS[:5]), encoder.encode(TEXTS[:5]), atol=1e-6)


def test_every_seed_is_what_it_is_alone(tmp_path):
    settings = replace(SETTINGS, steps=5, dropout=0.1)
    run = partial(distil, "tiny-llama", SOURCES, TEXTS, {"one": teacher(12)}, settings=settings, device="cpu")
    run({3: tmp_path / "three", 4: tmp_path / "four"})
    run({4: tmp_path / "alone"})
    three, four, alone = (
        Encoder.load(tmp_path / name, device="cpu").encode(TEXTS[:5]) for name in ("three", "four", "alone")
    )
    np.testing.assert_array_equal(four, alone)
    assert np.abs(three - four).max() > 1e-3
    assert json.loads((tmp_path / "four" / "distillation.json").read_text())["settings"]["seed"] == 4


def test_the_encoder_computes_what_the_head_was_trained_on(tmp_path, monkeypatch):
    seen = {}

    def remember(net, latents, loss):
        seen["vectors"] = net.eval()(latents.transpose(0, 1)).detach().numpy()
        return [0.0]

    monkeypatch.setattr("frozen_heads.held_out_cosines", remember)
    settings = replace(SETTINGS, steps=5)
    (encoder,) = distil(
        "tiny-llama", SOURCES, TEXTS, {"one": teacher(12)}, {0: tmp_path / "enc"}, settings, device="cpu"
    )
    np.testing.assert_allclose(encoder.encode(TEXTS[216:]), seen["vectors"], atol=5e-3)  # latents had 16 bits


def test_only_texts_read_in_time_are_trained_on(tmp_path, monkeypatch):
    monkeypatch.setattr("decoder2vec.activations.extract._window_bytes", lambda device: 0)  # 256 texts, the smallest
    settings = replace(SETTINGS, read_seconds=0, steps=1)
    vectors = {"one": torch.cat([teacher(12)] * 2)}
    distil("tiny-llama", SOURCES, TEXTS * 2, vectors, {0: tmp_path / "enc"}, settings, device="cpu")
    assert json.loads((tmp_path / "enc" / "distillation.json").read_text())["texts"] == 256


def test_vectors_must_match_the_texts(tmp_path):
    with pytest.raises(InputError, match="240 vectors for 239 texts"):
        distil("tiny-llama", SOURCES, TEXTS[:239], {"one": teacher(12)}, {0: tmp_path / "enc"}, SETTINGS, device="cpu")


def test_layers_are_numbers_or_a_range():
    assert parse_source("echo", "mean", "2,30").layers == (2, 30)
    assert parse_source("echo", "mean", "20:30").layers == "20:30"
