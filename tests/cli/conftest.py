"""Fixtures of the command tests: encoders that were really trained, on a tiny model."""

from __future__ import annotations

import sys

import pytest

from decoder2vec.cli import main

NOUNS = ("dog", "cat", "sun", "tree", "boat", "child")


@pytest.fixture(scope="module", autouse=True)
def small_models(one_thread):
    """One thread: all models here are tiny."""


@pytest.fixture(scope="session")
def trained(backbone, tmp_path_factory):
    """trained(name, **settings of the recipe) -> folder of a FREEZE encoder; each is trained once."""
    from decoder2vec.text.files import ScoredPairs
    from decoder2vec.training.api import train
    from decoder2vec.training.data import TrainingData
    from decoder2vec.training.loop import Schedule
    from decoder2vec.training.plan import Plan
    from decoder2vec.training.recipes.freeze import FreezeRecipe

    rows = [(f"A {a} waits.", f"The {b} waits there.", 5.0 * (a == b)) for a in NOUNS for b in NOUNS]

    def pairs(name, step):
        return ScoredPairs(name, *map(list, zip(*rows[::step], strict=True)))

    train_pairs = pairs("train", 1)
    texts = tuple(train_pairs.texts())
    data = TrainingData(train_pairs, (pairs("dev", 2),), (pairs("test", 3),), texts, scale=(0.0, 5.0))
    folder = tmp_path_factory.mktemp("trained")

    def make(name, **settings):
        if not (folder / name).exists():
            short = {"widths": (8,), "training": Schedule(epochs=1), "pretraining": Schedule(epochs=1)}
            recipe = FreezeRecipe(**{**short, "pretrain": "none", **settings})
            train(Plan.of(recipe, name), data, backbone("tiny-llama"), folder / name, seeds=(0, 1))
        return folder / name

    return make


@pytest.fixture
def mistake(monkeypatch, capsys):
    """mistake(*args) -> the only line that the user sees."""

    def run(*args):
        monkeypatch.setattr(sys, "argv", ["d2v", *map(str, args)])
        with pytest.raises(SystemExit) as exit_:
            main()
        assert isinstance(exit_.value.code, str) and "\n" not in exit_.value.code
        capsys.readouterr()
        return exit_.value.code

    return run
