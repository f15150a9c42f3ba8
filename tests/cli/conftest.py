"""Fixtures of the command tests: the terminal, `d2v` run to its exit, and encoders trained on a tiny model."""

from __future__ import annotations

import logging
import sys

import pytest

from decoder2vec.cli import main
from toys.command import SCORED_ROWS, write_rows

NOUNS = ("dog", "cat", "sun", "tree", "boat", "child")


@pytest.fixture(scope="module", autouse=True)
def small_models(one_thread):
    """One thread: all models here are tiny."""


@pytest.fixture(autouse=True)
def terminal(monkeypatch):
    """120 columns, and a model hub that is offline, so that unknown names fail without a timeout."""
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)


@pytest.fixture
def pairs(tmp_path):
    """A TSV file of scored pairs."""
    return write_rows(tmp_path / "pairs.tsv", SCORED_ROWS)


@pytest.fixture
def empty_store(tmp_path, monkeypatch):
    """The root of a latents store for this test only; tiny models are shared by all tests."""
    monkeypatch.setattr("decoder2vec.activations.store.cache_root", lambda: tmp_path / "cache")
    return tmp_path / "cache" / "latents"


@pytest.fixture
def run_main(monkeypatch, capsys):
    """run_main(*args) -> (exit code, stdout, stderr) of `d2v ARGS`.

    Like the interpreter, it prints the text of `sys.exit(text)` on stderr and turns it into exit code 1.
    """
    levels = {name: logging.getLogger(name).level for name in ("transformers", "huggingface_hub", "httpx", "torch")}

    def run(*args):
        monkeypatch.setattr(sys, "argv", ["d2v", *map(str, args)])
        with pytest.raises(SystemExit) as caught:
            main()
        out, err = capsys.readouterr()
        code = caught.value.code
        return (1, out, f"{err}{code}\n") if isinstance(code, str) else (code or 0, out, err)

    yield run
    for name, level in levels.items():
        logging.getLogger(name).setLevel(level)


@pytest.fixture
def mistake(monkeypatch, capsys):
    """mistake(*args) -> the one-line error message with which `d2v ARGS` exits."""

    def run(*args):
        monkeypatch.setattr(sys, "argv", ["d2v", *map(str, args)])
        with pytest.raises(SystemExit) as caught:
            main()
        assert isinstance(caught.value.code, str) and "\n" not in caught.value.code
        capsys.readouterr()
        return caught.value.code

    return run


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

    def scored_pairs(name, step):
        return ScoredPairs(name, *map(list, zip(*rows[::step], strict=True)))

    train_pairs = scored_pairs("train", 1)
    dev, test = (scored_pairs("dev", 2),), (scored_pairs("test", 3),)
    data = TrainingData(train_pairs, dev, test, tuple(train_pairs.texts()), scale=(0.0, 5.0))
    folder = tmp_path_factory.mktemp("trained")

    def make(name, **settings):
        if not (folder / name).exists():
            short = {"widths": (8,), "training": Schedule(epochs=1), "pretraining": Schedule(epochs=1)}
            recipe = FreezeRecipe(**{**short, "pretrain": "none", **settings})
            train(Plan.of(recipe, name), data, backbone("tiny-llama"), folder / name, seeds=(0, 1))
        return folder / name

    return make
