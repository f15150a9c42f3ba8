"""Checkpoints: a run that is killed, interrupted, diverges or finds a damaged file ends with the same numbers."""

from __future__ import annotations

import math
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import save_file

from decoder2vec.cli.train import _ResumeMessage
from decoder2vec.errors import DivergedError
from decoder2vec.training import checkpoint
from decoder2vec.training.loop import Schedule, fit
from toys.regression import Killed, Line, equal_states, regression_task, state_of

N_STEPS = 24
"""Of the default task, in 6 epochs of 4."""


@pytest.fixture
def file(tmp_path):
    return tmp_path / "run.safetensors"


@pytest.fixture
def save_each_step(monkeypatch):
    """A checkpoint is due after every step."""
    monkeypatch.setattr(checkpoint, "_SAVE_EVERY", 0.0)


def interrupt_at(step):
    """An `on_progress` that interrupts the run after a step, as Ctrl-C does."""

    def on_progress(state):
        if state.step == step:
            raise KeyboardInterrupt

    return on_progress


# --- killed runs ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kill_after", [5, 8, 11, 23])
def test_a_killed_run_resumes_with_the_same_numbers(kill_after, file, save_each_step):
    whole = Line()
    expected = fit(whole, regression_task(whole), 7)
    killed, seen = Line(), []
    with pytest.raises(Killed):
        fit(killed, regression_task(killed, kill_after=kill_after), 7, checkpoint=file)
    resumed = Line(start=-2.0)
    torch.manual_seed(123)
    history = fit(resumed, regression_task(resumed, seen=seen), 7, checkpoint=file)
    assert len(seen) == N_STEPS - kill_after, "no step is repeated, wherever the last evaluation was"
    assert history == expected
    assert equal_states(state_of(resumed), state_of(whole))


def test_a_resumed_run_knows_the_best_state_before_the_kill(file, save_each_step):
    """No evaluation after the kill is better."""
    scores = [0, 9, 1, 2, 3, 4, 5]
    whole = Line()
    fit(whole, regression_task(whole, scores=scores), 0)
    killed = Line()
    with pytest.raises(Killed):
        fit(killed, regression_task(killed, scores=scores, kill_after=13), 0, checkpoint=file)
    resumed = Line()
    history = fit(resumed, regression_task(resumed, scores=scores[4:]), 0, checkpoint=file)
    assert (history.best, history.best_score) == (0, 9)
    assert equal_states(state_of(resumed), state_of(whole))


@pytest.mark.parametrize("kill_after", [5, 6])
def test_a_run_killed_in_its_last_epoch_ends_at_the_same_step(kill_after, file, save_each_step):
    whole, killed, resumed, seen = Line(), Line(), Line(start=-2.0), []
    schedule = Schedule(epochs=5, steps=7, batch=16, rate=0.05, patience=99, evaluate_every=2)
    expected = fit(whole, regression_task(whole, schedule), 3)
    with pytest.raises(Killed):
        fit(killed, regression_task(killed, schedule, kill_after=kill_after), 3, checkpoint=file)
    assert fit(resumed, regression_task(resumed, schedule, seen=seen), 3, checkpoint=file) == expected
    assert len(seen) == 7 - kill_after
    assert equal_states(state_of(resumed), state_of(whole))


def test_a_finished_run_is_not_repeated(file, save_each_step):
    first, second, seen = Line(), Line(), []
    expected = fit(first, regression_task(first), 0, checkpoint=file)
    assert fit(second, regression_task(second, seen=seen), 0, checkpoint=file) == expected
    assert seen == [] and equal_states(state_of(second), state_of(first))


def test_a_finished_run_writes_its_only_checkpoint_at_the_end(file):
    module = Line()
    task, files_seen = regression_task(module), []

    def dev_metric():
        files_seen.extend(file.parent.iterdir())
        return task.dev_metric()

    first = fit(module, replace(task, dev_metric=dev_metric), 0, checkpoint=file)
    assert files_seen == [], "so short a run is not worth a checkpoint in between"
    assert list(file.parent.iterdir()) == [file]
    again = Line()
    task = replace(regression_task(again), loss=lambda rows: pytest.fail("nothing is left to train"))
    assert fit(again, task, 0, checkpoint=file) == first
    assert equal_states(state_of(again), state_of(module))


# --- interrupted runs: here no checkpoint is due, the only one is written on the interrupt --------------------------


def interrupt_loss(task, call):
    """The task, interrupted in a call of its loss: random numbers are drawn already, the step is not done."""
    n_calls = 0

    def loss(rows):
        nonlocal n_calls
        value = task.loss(rows)
        n_calls += 1
        if n_calls == call:
            raise KeyboardInterrupt
        return value

    return replace(task, loss=loss)


def interrupt_evaluation(task, call):
    """The task, interrupted in a call of its dev metric."""
    n_calls = 0

    def dev_metric():
        nonlocal n_calls
        value = task.dev_metric()
        n_calls += 1
        if n_calls == call:
            raise KeyboardInterrupt
        return value

    return replace(task, dev_metric=dev_metric)


def with_random_dev_metric(task):
    """The task with a dev metric that draws random numbers."""
    return replace(task, dev_metric=lambda: (torch.rand(3), task.dev_metric())[1])


@pytest.mark.parametrize(
    ("interrupt", "done"),
    [
        (lambda task: interrupt_loss(task, 4), 3),
        (lambda task: interrupt_loss(task, 5), 4),
        (lambda task: interrupt_loss(task, 11), 10),
        (lambda task: interrupt_evaluation(task, 2), 7),
        (lambda task: interrupt_evaluation(task, 4), 21),
        (lambda task: interrupt_evaluation(task, 5), 24),
    ],
    ids=[
        "within an epoch",
        "at the start of an epoch",
        "later",
        "first evaluation",
        "third evaluation",
        "last evaluation",
    ],
)
def test_an_interrupted_run_resumes_after_its_last_whole_step(interrupt, done, file):
    schedule = Schedule(epochs=6, batch=16, rate=0.05, patience=9, evaluate_every=7)
    whole, stopped, resumed, seen = Line(), Line(), Line(start=-2.0), []
    expected = fit(whole, with_random_dev_metric(regression_task(whole, schedule)), 7)
    with pytest.raises(KeyboardInterrupt):
        fit(stopped, interrupt(with_random_dev_metric(regression_task(stopped, schedule))), 7, checkpoint=file)
    torch.manual_seed(123)
    task = with_random_dev_metric(regression_task(resumed, schedule, seen=seen))
    assert fit(resumed, task, 7, checkpoint=file) == expected
    assert len(seen) == N_STEPS - done
    assert equal_states(state_of(resumed), state_of(whole))


def test_a_run_interrupted_many_times_ends_with_the_same_numbers(file):
    whole = Line()
    expected = fit(whole, regression_task(whole), 7)
    for step in (1, 2, 6, 7, 8, 23):
        module = Line()
        with pytest.raises(KeyboardInterrupt):
            fit(module, regression_task(module), 7, checkpoint=file, on_progress=interrupt_at(step))
    module, seen = Line(), []
    assert fit(module, regression_task(module, seen=seen), 7, checkpoint=file) == expected
    assert len(seen) == 1 and equal_states(state_of(module), state_of(whole))


def test_half_a_step_is_not_saved(file, monkeypatch):
    """The interrupt comes when the parameters have changed and the loop does not know yet."""
    whole, original = Line(), torch.optim.AdamW.step
    expected = fit(whole, regression_task(whole), 7)
    n_steps = 0

    def step(self, *args, **kwargs):
        nonlocal n_steps
        original(self, *args, **kwargs)
        n_steps += 1
        if n_steps == 6:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(torch.optim.AdamW, "step", step)
        module = Line()
        with pytest.raises(KeyboardInterrupt):
            fit(module, regression_task(module), 7, checkpoint=file)
    assert not file.exists()
    module = Line()
    assert fit(module, regression_task(module), 7, checkpoint=file) == expected


def test_a_run_without_a_checkpoint_file_can_be_interrupted():
    module = Line()
    with pytest.raises(KeyboardInterrupt):
        fit(module, regression_task(module), 7, on_progress=interrupt_at(3))


def test_only_a_run_that_resumes_reports_its_step(file, capsys):
    module = Line()
    with pytest.raises(KeyboardInterrupt):
        fit(module, regression_task(module), 7, checkpoint=file, on_progress=interrupt_at(6))
    for _ in range(2):
        fit(module, regression_task(module), 7, checkpoint=file, on_progress=_ResumeMessage())
    assert capsys.readouterr().err == "line: resuming from step 6 of 24\n", "the second time it was finished"


# --- diverged runs --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("broken", ["loss", "gradient"])
def test_a_state_that_is_not_finite_is_not_saved(broken, file, save_each_step):
    """It diverges long before an evaluation would find it; the error names the last good state."""
    seen, module = [], Line()
    schedule = Schedule(epochs=6, batch=16, rate=0.05, patience=9, evaluate_every=12)
    task, n_calls = regression_task(module, schedule), 0

    def loss(rows):
        nonlocal n_calls
        n_calls += 1
        value = task.loss(rows)
        if n_calls != 6:
            return value
        return value * math.nan if broken == "loss" else value + (module.line.weight.sum() * 0).sqrt()

    step = 6 if broken == "loss" else 7
    with pytest.raises(DivergedError, match=f"in step {step} of 24; .*; the last good state is in {file}"):
        fit(module, replace(task, loss=loss), 7, checkpoint=file)
    resumed, whole = Line(), Line()
    history = fit(resumed, regression_task(resumed, schedule, seen=seen), 7, checkpoint=file)
    assert len(seen) == N_STEPS - 5
    assert history == fit(whole, regression_task(whole, schedule), 7)


# --- how often checkpoints are written ------------------------------------------------------------------------------


@pytest.fixture
def write_times(monkeypatch, file):
    """write_times(seconds per write) -> when checkpoints were written, in a run whose steps take 2 seconds."""
    now, times = 0.0, []
    monkeypatch.setattr(checkpoint, "time", SimpleNamespace(monotonic=lambda: now))

    def run(write_seconds):
        original = checkpoint.save_tensors

        def save(*args, **options):
            nonlocal now
            times.append(now)
            now += write_seconds
            original(*args, **options)

        monkeypatch.setattr(checkpoint, "save_tensors", save)
        module = Line()
        task = regression_task(module, Schedule(epochs=25, batch=16, patience=99, evaluate_every=90))

        def loss(rows):
            nonlocal now
            now += 2
            return task.loss(rows)

        fit(module, replace(task, loss=loss), 0, checkpoint=file)
        return times

    return run


def test_a_kill_loses_ten_seconds_however_rare_evaluations_are(write_times):
    assert write_times(0.0) == [*range(10, 201, 10), 200], "the last is that of the end"


def test_slow_checkpoints_are_written_less_often(write_times):
    times = write_times(2.0)
    assert times == [10, 10 + 2 + 40, 52 + 2 + 40, 94 + 2 + 40, 136 + 2 + 40, 210], "a twentieth of the time at most"


# --- damaged files --------------------------------------------------------------------------------------------------


def truncate(file):
    file.write_bytes(file.read_bytes()[:200])


def make_empty(file):
    file.write_bytes(b"")


def drop_progress(file):
    save_file({f"now.{name}": tensor for name, tensor in Line(start=5.0).state_dict().items()}, file)


def change_shape(file):
    """Of one parameter; the other, which fits, must not be loaded either."""
    save_file({"now.line.weight": torch.zeros(2, 2), "now.line.bias": torch.ones(1)}, file, {"progress": "{}"})


def drop_a_parameter(file):
    save_file({"now.line.bias": torch.ones(1)}, file, {"progress": "{}"})


@pytest.mark.parametrize("damage", [truncate, make_empty, drop_progress, change_shape, drop_a_parameter])
def test_a_damaged_checkpoint_is_ignored(damage, file, save_each_step):
    first, second = Line(), Line()
    expected = fit(first, regression_task(first), 0, checkpoint=file)
    damage(file)
    assert fit(second, regression_task(second), 0, checkpoint=file) == expected
    assert equal_states(state_of(second), state_of(first))
