"""`d2v merge`, and `d2v train --keep`."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from decoder2vec.adapters.lora import Lora
from decoder2vec.encoder import Encoder
from toys.command import d2v, tiny_encoder
from toys.training import toy_examples

QUICK = ["--backbone", "tiny-llama", "--data", "triplets.tsv", "--device", "cpu", "--set", "training.epochs=1"]


@pytest.fixture(autouse=True)
def data_folder(tmp_path, monkeypatch):
    """The current folder, with a file of triplets."""
    monkeypatch.chdir(tmp_path)
    rows = ["\t".join((example.anchor, example.positive, example.negatives[0])) for example in toy_examples()]
    Path("triplets.tsv").write_text("\n".join(["anchor\tpositive\tnegative", *rows]) + "\n", encoding="utf-8")


def save_lora(name, size):
    """An encoder with random updates."""
    encoder = tiny_encoder(dtype="float32")
    lora = Lora.initialise(encoder.backbone, 4, 8)
    for parameter in lora.requires_grad_(False).parameters():
        parameter += size * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(len(name)))
    Encoder(encoder.backbone.with_adapter(lora), encoder.spec).save(name)


def test_encoders_are_merged():
    save_lora("a", 0.1)
    save_lora("b", 0.2)
    result = d2v("merge", "a", "b", "--weights", "0.7,0.3", "--rank", "6", "--out", "merged")
    assert "rank 6 of 8" in result.output and "of the norm" in result.output
    assert result.output.splitlines()[-1] == "merged"
    record = json.loads(Path("merged/merge.json").read_text())
    assert [row["folder"] for row in record["encoders"]] == ["a", "b"] and record["method"] == "linear"
    assert [row["weight"] for row in record["encoders"]] == [0.7, 0.3]
    a, b, merged = (Encoder.load(name, device="cpu").encode(["cats sleep"]) for name in ("a", "b", "merged"))
    assert np.isfinite(merged).all() and not np.allclose(merged, a) and not np.allclose(merged, b)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--weights", "much,little"], "--weights takes numbers such as 0.7,0.3, not 'much,little'"),
        (["--weights", "1"], "one weight for each encoder"),
        (["--method", "mean"], "Unknown method 'mean'"),
        (["--method", "slerp"], "not the folder of a saved encoder"),
    ],
)
def test_mistakes_are_one_sentence(mistake, options, message):
    assert message in mistake("merge", "a", "b", *options, "--out", "merged")
    assert not Path("merged").exists()


def test_keep_is_printed_with_dev_before_and_after():
    output = d2v("train", "--recipe", "lora", *QUICK, "--out", "kept", "--keep", "0.5").output
    assert "as trained" in output and "with 50 % of the change kept" in output
    assert json.loads(Path("kept/results.json").read_text())["config"]["lora"]["keep"] == 0.5
