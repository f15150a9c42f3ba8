"""`d2v train --curve`: what is printed and written, and mistakes."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from decoder2vec.errors import InputError
from toys.command import d2v, one_line
from toys.contract import scored_pairs
from toys.training import toy_pairs

TINY = ["--backbone", "tiny-llama", "--device", "cpu", "--data", "train.tsv", "--dev", "dev.tsv"]
QUICK = ["--set", "training.epochs=1", "--set", "training.batch=16", "--grid", "training.rate=0.01"]


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """The working directory, with scored pairs to train on and for dev."""
    monkeypatch.chdir(tmp_path)
    for name, pairs in (("train", scored_pairs()), ("dev", toy_pairs())):
        lines = [f"{a}\t{b}\t{score}" for a, b, score in zip(pairs.left, pairs.right, pairs.scores, strict=True)]
        (tmp_path / f"{name}.tsv").write_text("sentence1\tsentence2\tscore\n" + "\n".join(lines) + "\n")
    return tmp_path


def test_curve_is_printed_and_written():
    options = ["--curve", "16,all", "--recipes", "lora,bottleneck", "--seeds", "0,1", "--results", "all.json"]
    result = d2v("train", *options, *TINY, *QUICK)
    assert result.exit_code == 0, result.output
    assert "Spearman on dev, mean over seeds" in result.output
    assert "pairs" in result.output and "no forecast from fewer than 4 sizes" in result.output
    assert "wrote curve/curve.json and curve/curve.png" in result.output
    document = json.loads(Path("curve/curve.json").read_text())
    assert document == json.loads(Path("all.json").read_text())
    assert document["recipes"] == ["lora", "bottleneck"] and document["sizes"] == [16, 48]
    assert document["command"].startswith("d2v ") and Path("curve/curve.png").is_file()
    assert one_line(document["sentence"]) in one_line(result.output)
    assert not Path("encoder").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--curve", "some"], "--curve takes numbers of examples such as 50,200,1000,all, not 'some'."),
        (["--curve", "16", "--recipe", "lora"], "--recipe is for a single training"),
        (["--curve", "16", "--keep", "0.5"], "--keep is for a single training"),
        (["--curve", "16", "--overwrite"], "--overwrite is for a single training"),
        (["--curve", "16", "--teacher", "x"], "--teacher is for a single training"),
        (["--curve", "16", "plan.toml"], "A plan is for a single training"),
        (["--recipes", "lora"], "--recipes are those of a learning curve; add --curve"),
        (["--curve", "16", "--recipes", "lara"], "Unknown recipe 'lara'"),
        (["--curve", "16", "--out", "."], "is not empty"),
    ],
)
def test_mistakes_are_reported_in_one_sentence(options, message):
    with pytest.raises(InputError, match=re.escape(message)) as caught:
        d2v("train", *TINY, *options)
    assert len(str(caught.value).splitlines()) == 1
    assert not Path("curve").exists()
