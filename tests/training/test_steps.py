"""A number of steps instead of epochs: the run ends there, and all that goes by the length of a run goes by it."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch

from decoder2vec.errors import InputError
from decoder2vec.training import checkpoint
from decoder2vec.training.loop import Schedule, fit, learning_rate_factor
from toys.regression import Killed, Line, same, state, task_for

IN_AN_EPOCH = 4
"""Batches of 16 of 50 examples."""


def short(steps, **changes):
    return Schedule(**{"epochs": 5, "batch": 16, "rate": 0.05, "patience": 99, "steps": steps, **changes})


@pytest.fixture
def rates(monkeypatch):
    """Learning rates of all steps that are made."""
    found, real = [], torch.optim.AdamW.step

    def step(self, *args, **kwargs):
        found.append(self.param_groups[0]["lr"])
        return real(self, *args, **kwargs)

    monkeypatch.setattr(torch.optim.AdamW, "step", step)
    return found


@pytest.mark.parametrize("steps", [3, 4, 7, 19, 20])
def test_a_run_ends_after_so_many_steps_with_the_learning_rate_at_its_end(steps, rates):
    module = Line()
    fit(module, task_for(module, short(steps)), 0)
    assert rates == pytest.approx([0.05 * learning_rate_factor(step, steps) for step in range(steps)])
    assert learning_rate_factor(steps, steps) == pytest.approx(0, abs=1e-12), "the next step would be none"
    assert max(rates) == 0.05 and rates[-1] == min(rates[1:]) < 0.6 * max(rates)


@pytest.mark.parametrize(("steps", "taken"), [(0, 5 * IN_AN_EPOCH), (21, 21), (300, 300)])
def test_steps_count_more_than_epochs(steps, taken, rates):
    module = Line()
    fit(module, task_for(module, short(steps)), 0)
    assert len(rates) == taken


def test_examples_that_make_no_batch_end_the_run():
    module = Line()
    fit(module, replace(task_for(module, short(7)), batches=lambda *_: iter(())), 0)


@pytest.mark.parametrize(("every", "looks"), [(0, [4, 7]), (3, [3, 6, 7]), (7, [7]), (100, [7])])
def test_dev_is_looked_at_after_the_last_step_wherever_that_is(every, looks, tmp_path):
    module, notes, log = Line(), [], tmp_path / "log.jsonl"
    history = fit(module, task_for(module, short(7, evaluate_every=every)), 0, log=log, on_progress=notes.append)
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert [(line["step"], line["of"]) for line in lines] == [(look, 7) for look in looks]
    assert len(history.scores) == len(looks)
    assert [(note.step, note.steps) for note in notes] == [(step, 7) for step in (1, 2, 3, 4, 5, 6, 7, 7)]


def test_the_batches_are_those_that_the_epochs_would_have_begun_with():
    whole, part = [], []
    for steps, seen in ((0, whole), (7, part)):
        module = Line()
        fit(module, task_for(module, short(steps), seen=seen), 0)
    assert len(part) == 7
    assert all((one == other).all() for one, other in zip(part, whole, strict=False))


@pytest.mark.parametrize("kill_after", [5, 6])
def test_a_run_that_is_killed_in_its_last_epoch_ends_at_the_same_step(kill_after, tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoint, "_SAVE_EVERY", 0.0)
    whole, first, second, seen = Line(), Line(), Line(start=-2.0), []
    schedule = short(7, evaluate_every=2)
    expected = fit(whole, task_for(whole, schedule), 3)
    with pytest.raises(Killed):
        fit(first, task_for(first, schedule, kill_after=kill_after), 3, checkpoint=tmp_path / "run.safetensors")
    assert fit(second, task_for(second, schedule, seen=seen), 3, checkpoint=tmp_path / "run.safetensors") == expected
    assert len(seen) == 7 - kill_after
    assert same(state(second), state(whole))


def test_a_number_of_steps_below_none_is_refused():
    with pytest.raises(InputError, match="steps must be 0 or more, not -1"):
        short(-1)
