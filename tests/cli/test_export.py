"""`d2v export`."""

from __future__ import annotations

import json
import logging
import re
import shlex

import pytest

from decoder2vec.cli import output
from decoder2vec.encoder import Encoder
from decoder2vec.errors import Decoder2VecError, UnsupportedError
from decoder2vec.export.sentence_transformers_config import SentenceTransformersConfig
from toys.command import SCORED_ROWS, d2v, tiny_encoder, write_rows
from toys.progress import ShownProgress


@pytest.fixture
def saved(tmp_path):
    """saved(**choices) -> the folder of a saved encoder."""

    def make(**choices):
        encoder = Encoder.from_pretrained(
            "tiny-qwen3", device="cpu", **{"template": "plain", "normed": True, **choices}
        )
        return encoder.save(tmp_path / "encoder")

    return make


def test_modules_and_largest_difference_are_printed(saved, tmp_path, caplog, monkeypatch, quick_exports):
    shown = ShownProgress()
    monkeypatch.setattr(output, "_ProgressLines", lambda: shown)
    with caplog.at_level(logging.WARNING):
        result = d2v("export", saved(normalize=True), "--out", tmp_path / "out", "--device", "cpu")
    assert result.exit_code == 0 and result.stdout == f"{tmp_path / 'out'}\n"
    modules, check = result.stderr.splitlines()[-1].split("; ")
    assert shown.labels == ["loading the model", "writing", "merging", "checking"]
    assert modules == "Transformer + Pooling + Normalize"
    assert float(check.removeprefix("read by sentence-transformers, the largest difference is ")) < 1e-5
    assert not caplog.records  # a probe text is truncated on purpose, without a warning
    assert len(json.loads((tmp_path / "out" / "modules.json").read_text())) == 3


def test_errors_are_one_sentence_and_write_nothing(saved, tmp_path):
    for choices, options, reason in (
        ({"on_overflow": "error"}, [], "would truncate long texts"),
        ({}, ["--format", "peft"], "has none"),
        ({}, ["--format", "gguf"], "Known: cross-encoder, onnx, peft, sentence-transformers"),
    ):
        with pytest.raises(Decoder2VecError, match=reason):
            d2v("export", saved(**choices), "--out", tmp_path / "out", *options)
        assert not (tmp_path / "out").exists()
    with pytest.raises(Decoder2VecError, match="not the folder of a saved encoder"):
        d2v("export", tmp_path / "nothing", "--out", tmp_path / "out")


CANNOT_BE_HELD = {
    "weightedmean after a prompt": {"template": "Text: {text}", "pooling": "weightedmean"},
    "text on both sides": {"template": "prompteol", "pooling": "mean"},
    "text twice": {"template": "echo", "pooling": "mean"},
    "sum": {"pooling": "sum"},
}
"""Encoders that a full sweep may choose, and sentence-transformers cannot hold."""


@pytest.fixture
def advice():
    """advice(encoder) -> the commands that the refusal of its export names."""

    def commands(encoder):
        with pytest.raises(UnsupportedError) as refusal:
            SentenceTransformersConfig.from_encoder(encoder)
        return [shlex.split(command) for command in re.findall("`(.*?)`", str(refusal.value))]

    return commands


def assert_can_be_exported(folder):
    SentenceTransformersConfig.from_encoder(Encoder.load(folder, device="cpu", dtype="float32"))


@pytest.mark.parametrize("kind", CANNOT_BE_HELD)
def test_refused_sweep_winner_names_commands_that_work(kind, advice, tmp_path):
    (_, *sweep), (_, *train) = advice(tiny_encoder(**CANNOT_BE_HELD[kind]))
    data = write_rows(tmp_path / "pairs.tsv", SCORED_ROWS)
    assert d2v(*sweep, "tiny-llama", "--data", data, "--full", "--out", tmp_path / "sweep").exit_code == 0
    assert_can_be_exported(tmp_path / "sweep" / "encoder")
    if kind == "sum":  # once is enough: the advice is the same
        (tmp_path / "triplets.tsv").write_text("anchor\tpositive\tnegative\na b\tb a\tc\nd e\te d\tf\n")
        options = ["--backbone", "tiny-llama", "--data", tmp_path / "triplets.tsv", "--dev", data]
        options += ["--set", "training.steps=1", "--out", tmp_path / "trained"]
        assert d2v(*train, *options).exit_code == 0
        assert_can_be_exported(tmp_path / "trained")


def test_refused_freeze_encoder_names_a_setting_that_works(advice, tmp_path, quick_exports):
    data = write_rows(tmp_path / "pairs.tsv", 3 * SCORED_ROWS)
    options = ["--backbone", "tiny-llama", "--data", data, "--set", "training.epochs=1"]
    d2v("train", *options, "--out", tmp_path / "default")
    ((_, *train),) = advice(Encoder.load(tmp_path / "default", device="cpu", dtype="float32"))
    assert d2v(*train, *options, "--out", tmp_path / "one").exit_code == 0
    result = d2v("export", tmp_path / "one", "--out", tmp_path / "exported", "--device", "cpu")
    assert result.exit_code == 0 and "Transformer + LayerwisePooling" in result.stderr
