"""Sources: cached vectors equal live ones, tokens must line up, and nothing of a source changes."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest
import torch

from decoder2vec.activations.spans import TextSpan
from decoder2vec.adapters.lora import Lora
from decoder2vec.backbone.tiny import tiny_folder
from decoder2vec.choosing.sources import load_source, name_sources, read_source
from decoder2vec.choosing.tasks import Example, TargetTask, read_task
from decoder2vec.config import Reading
from decoder2vec.encoder import Encoder
from decoder2vec.errors import InputError, UnknownNameError
from toys.choosing import write_gap
from toys.texts import sentences


@pytest.fixture(scope="module")
def task():
    rows = [Example((TextSpan(f"{text} {n}"),), str(n % 2)) for n, text in enumerate(sentences(30))]
    return TargetTask.of("toy", "classification", rows)


def load(name="tiny-llama"):
    return load_source(name, device="cpu", dtype="float32")


@pytest.mark.parametrize("name", ["tiny-llama", "tiny-llama#bidirectional"])
def test_cached_vectors_equal_live_ones(task, gap, name):
    encoder = load(name)
    source = read_source("x", encoder, task)
    assert source.readings == tuple(Reading(layer, "mean") for layer in range(5))
    texts = [unit.text for unit in task.units]
    attention = name.partition("#")[2] or "causal"
    for layer in (0, 3, 4):
        live = Encoder.from_pretrained(
            "tiny-llama",
            layer=layer,
            pooling="mean",
            template="plain",
            attention=attention,
            device="cpu",
            dtype="float32",
        )
        assert gap(source.vectors(Reading(layer, "mean")), live.encode(texts)) < 2e-3  # stored in 16 bits


def test_a_source_is_not_changed_and_not_trained(task):
    encoder = load()
    before = {name: tensor.clone() for name, tensor in encoder.backbone.model.state_dict().items()}
    read_source("x", encoder, task)
    assert all(torch.equal(tensor, before[name]) for name, tensor in encoder.backbone.model.state_dict().items())
    assert not any(parameter.requires_grad for parameter in encoder.backbone.model.parameters())


def test_layers_and_poolings_can_be_named(task):
    source = read_source("x", load(), task, ["mean", "lasttoken"], [1, -1])
    assert source.readings == tuple(Reading(layer, pooling) for layer in (1, 4) for pooling in ("mean", "lasttoken"))
    every = read_source("x", load(), task, ["mean", "lasttoken"])
    for reading in source.readings:
        assert np.array_equal(source.vectors(reading), every.vectors(reading))
    with pytest.raises(UnknownNameError, match="mean"):
        read_source("x", load(), task, ["meen"])


def test_another_tokenizer_is_refused(task, tmp_path):
    folder = shutil.copytree(tiny_folder("tiny-llama"), tmp_path / "lower")
    tokenizer = json.loads((folder / "tokenizer.json").read_text("utf-8"))
    tokenizer["normalizer"] = {"type": "Lowercase"}
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer), "utf-8")
    first = read_source("base", load(), task)
    with pytest.raises(InputError, match="lower splits the texts into other tokens than base"):
        read_source("lower", load(str(folder)), task, like=first)
    assert read_source("same", load("tiny-qwen2"), task, like=first).tokens == first.tokens


def test_adapters_of_an_encoder_are_sources(task, tmp_path):
    encoder = load()
    with torch.random.fork_rng():
        torch.manual_seed(0)
        lora = Lora.initialise(encoder.backbone, rank=2, alpha=4)
        for parameter in lora.parameters():
            torch.nn.init.normal_(parameter, std=0.3)
    encoder.backbone.adapters["nli"] = lora
    folder = encoder.save(tmp_path / "enc")
    plain, adapted = (read_source("x", load(name), task) for name in (str(folder), f"{folder}#nli"))
    assert not np.allclose(plain.vectors(Reading(4, "mean")), adapted.vectors(Reading(4, "mean")), atol=1e-2)
    with pytest.raises(UnknownNameError, match="nli"):
        load(f"{folder}#nlj")


def test_spans_of_words_and_mentions_are_read_within_their_texts(tmp_path, gap):
    task = read_task(write_gap(tmp_path / "gap.tsv", repeat=4))
    source = read_source("x", load(), task)
    assert source.readings[0].pooling == "mean" and len(task.units) == 60
    vectors = source.vectors(Reading(4, "mean"))
    anna = [index for index, unit in enumerate(task.units) if unit.text.startswith("0. Anna")]
    assert len(anna) == 3 and len({vectors[index].tobytes() for index in anna}) == 3
    tags = [Example((TextSpan("It rains", span),), tag) for span, tag in (((0, 2), "O"), ((3, 8), "V"))]
    tagging = TargetTask.of("tags", "tagging", tags, tags, tags)
    assert read_source("x", load(), tagging).readings[0].pooling == "lasttoken"


def test_names_of_sources():
    assert name_sources(["a/b/first", "x=second"]) == {"first": "a/b/first", "x": "second"}
    assert name_sources({"x": "y"}) == {"x": "y"}
    assert name_sources("a/b") == {"b": "a/b"}
    with pytest.raises(InputError, match="Two sources are called 'b'"):
        name_sources(["a/b", "c/b"])
    with pytest.raises(InputError, match="nothing to choose from"):
        name_sources([])
