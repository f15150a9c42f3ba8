"""Fixtures of the training tests: toy data that can be learned, and a cache of pre-trained networks per test."""

from __future__ import annotations

import random
from dataclasses import replace
from functools import partial

import pytest
import torch

from decoder2vec.backbone.block_modes import CompiledBlocks
from decoder2vec.text.files import ScoredPairs
from decoder2vec.training.data import TrainingData
from decoder2vec.training.loop import Schedule
from decoder2vec.training.recipes.freeze import FreezeRecipe
from decoder2vec.training.recipes.recipe import Trainer
from toys.sentences import NOUNS, VERBS


@pytest.fixture(scope="module", autouse=True)
def small_models(one_thread):
    """One thread: all models here are tiny."""


@pytest.fixture(autouse=True)
def own_pretrained(tmp_path, monkeypatch):
    """The folder of pre-trained networks, so that no test reuses those of another."""
    folder = tmp_path / "pretrained-cache" / "pretrained"
    monkeypatch.setattr("decoder2vec.training.recipes.freeze.pretrained_root", lambda: folder)
    return folder


@pytest.fixture
def compile_counters(monkeypatch):
    """Blocks are traced as for a GPU, but run by torch's own kernels, so that no compiler is needed."""
    monkeypatch.setattr("decoder2vec.training.context.CompiledBlocks", partial(CompiledBlocks, backend="aot_eager"))
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    yield torch._dynamo.utils.counters["stats"]
    torch._dynamo.reset()


def sentence(rng):
    return f"The {rng.choice(NOUNS)} {rng.choice(VERBS)} near the {rng.choice(NOUNS)}."


def toy_pairs(name="train", count=40, seed=0):
    """Pairs scored from 0 to 5 by the number of words they share, out of three, plus some noise."""
    rng = random.Random(seed)
    left, right, scores = [], [], []
    for index in range(count):
        first = [rng.choice(NOUNS), rng.choice(VERBS), rng.choice(NOUNS)]
        other = [rng.choice(NOUNS), rng.choice(VERBS), rng.choice(NOUNS)]
        second = [a if rng.random() < 0.5 else b for a, b in zip(first, other, strict=True)]
        shared = sum(a == b for a, b in zip(first, second, strict=True))
        left.append("The {} {} near the {}.".format(*first))
        right.append("The {} {} near the {}.".format(*second))
        scores.append(5.0 if shared == 3 else round(1.5 * shared + (index % 7) / 10, 2))
    return ScoredPairs(name, left, right, scores)


@pytest.fixture
def make_pairs():
    """make(name, count, seed) -> ScoredPairs"""
    return toy_pairs


@pytest.fixture
def data():
    """40 training, 20 dev and 20 test pairs, 30 texts, 20 triplets and 30 NLI rows."""
    rng = random.Random(9)
    texts = tuple(dict.fromkeys(sentence(rng) for _ in range(30)))
    triplets = []
    for _ in range(20):
        anchor = sentence(rng)
        triplets.append((anchor, anchor.replace("near", "by"), sentence(rng)))
    nli = []
    for _ in range(10):
        premises = [sentence(rng) for _ in range(3)]
        nli.append(("entailment", premises[0], premises[0]))
        nli.append(("neutral", premises[1], sentence(rng)))
        nli.append(("contradiction", premises[2], "No."))
    return TrainingData(
        toy_pairs(),
        (toy_pairs("dev", 20, 1),),
        (toy_pairs("test", 20, 2),),
        texts,
        tuple(triplets),
        tuple(nli),
        scale=(0.0, 5.0),
    )


@pytest.fixture
def training(backbone, data):
    """make(data=data, **changes) -> Trainer of a small FREEZE recipe (head "sum", no pre-training) on tiny-llama."""
    short = Schedule(epochs=3, batch=16, rate=3e-3, patience=3)
    recipe = FreezeRecipe(
        widths=(8, 16), hidden=12, head="sum", pretrain="none", loss="mse", training=short, pretraining=short
    )

    def make(data=data, **changes):
        return Trainer(replace(recipe, **changes), data, backbone("tiny-llama"))

    return make


@pytest.fixture
def write_pairs():
    """write(file, pairs) -> the file, a TSV with a header."""

    def write(file, pairs):
        rows = zip(pairs.left, pairs.right, pairs.scores, strict=True)
        lines = ["sentence1\tsentence2\tscore", *(f"{a}\t{b}\t{score}" for a, b, score in rows)]
        file.write_text("\n".join(lines) + "\n", encoding="utf-8")
        return file

    return write
