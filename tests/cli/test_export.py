"""`d2v export`."""

from __future__ import annotations

import json
import logging

import pytest

from decoder2vec.cli import output
from decoder2vec.encoder import Encoder
from decoder2vec.errors import Decoder2VecError
from toys.command import d2v
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


def test_modules_and_largest_difference_are_printed(saved, tmp_path, caplog, monkeypatch):
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
        ({}, ["--format", "onnx"], "Known: peft, sentence-transformers"),
    ):
        with pytest.raises(Decoder2VecError, match=reason):
            d2v("export", saved(**choices), "--out", tmp_path / "out", *options)
        assert not (tmp_path / "out").exists()
    with pytest.raises(Decoder2VecError, match="not the folder of a saved encoder"):
        d2v("export", tmp_path / "nothing", "--out", tmp_path / "out")
