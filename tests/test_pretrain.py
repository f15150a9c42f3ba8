"""The pre-training of the study of checkpoints: it learns, and its checkpoints are models that a trajectory scores."""

from __future__ import annotations

import argparse
import json

import pytest

import decoder2vec as d2v
from pretrain import checkpoint_steps, pretrain, rate_at
from toys.tasks import write_table, write_toy_tasks

TEXTS = [f"Order {n} of {n % 9} apples was sent in box {n % 7} to the {n % 5}. floor." for n in range(1200)]


@pytest.mark.usefixtures("one_thread")
def test_checkpoints_are_models_that_improve(tmp_path):
    write_table(tmp_path / "pool" / "texts-1.tsv.gz", ("source", "text"), [("toy", text) for text in TEXTS])
    out = tmp_path / "checkpoints"
    options = {"size": "tiny", "texts": None, "steps": 16, "batch": 8, "rate": 3e-3, "seed": 0, "device": "cpu"}
    pretrain(argparse.Namespace(pool=tmp_path / "pool", out=out, **options))
    record = json.loads((out / "pretraining.json").read_text(encoding="utf-8"))
    assert list(record["checkpoints"]) == ["step0", "step1", "step2", "step4", "step8", "step16"]
    losses = [checkpoint["held_out_loss"] for checkpoint in record["checkpoints"].values()]
    assert losses[-1] < losses[0] - 1
    trajectory = d2v.Trajectory(out, ["step0", "step16"])
    data = write_toy_tasks(tmp_path / "data")
    result = trajectory.run(data, tmp_path / "out", tasks="mine", limit=20, device="cpu", pooling="mean")
    assert result.before("mine").keys() == {"step0", "step16"}


def test_schedule_of_checkpoints_and_rates():
    assert checkpoint_steps(8000) == [0, 62, 125, 250, 500, 1000, 2000, 4000, 8000]
    rates = [rate_at(step, 1000, 1e-3) for step in range(1000)]
    assert max(rates) == pytest.approx(1e-3) and rates[0] < 1e-4 and rates[-1] == pytest.approx(1e-4, rel=0.01)
