"""The training loop: batches, learning rate, number of steps, the best state, early stopping, progress and the log."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from decoder2vec.errors import DivergedError, InputError
from decoder2vec.training import checkpoint, loop
from decoder2vec.training.loop import Schedule, fit, learning_rate_factor
from toys.regression import Killed, Line, equal_states, regression_task, state_of

STEPS_PER_EPOCH = 4
"""50 examples in batches of 16."""


def five_epochs(steps=0, **changes):
    """A schedule of five epochs or, if given, of a number of steps."""
    return Schedule(**{"epochs": 5, "batch": 16, "rate": 0.05, "patience": 99, "steps": steps, **changes})


@pytest.fixture
def rates(monkeypatch):
    """The learning rates of all optimizer steps of the test."""
    rates, original = [], torch.optim.AdamW.step

    def step(self, *args, **kwargs):
        rates.append(self.param_groups[0]["lr"])
        return original(self, *args, **kwargs)

    monkeypatch.setattr(torch.optim.AdamW, "step", step)
    return rates


def test_fit_learns_a_regression():
    module = Line()
    history = fit(module, regression_task(module, Schedule(epochs=40, batch=16, rate=0.1, patience=40)), 0)
    assert history.best_score > 0.1 * history.start
    assert history.losses[-1] < 0.3 * history.losses[0]
    assert not module.training


# --- batches --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [2, 3, 15, 16, 17, 18, 32, 33, 34, 49])
@pytest.mark.parametrize("size", [2, 4, 16, 64])
def test_batches_cover_all_examples_and_none_has_only_one(count, size):
    batches = list(loop.fixed_size_batches(np.arange(count), size))
    assert np.concatenate(batches).tolist() == list(range(count))
    assert all(2 <= len(batch) <= size + 1 for batch in batches)
    assert all(len(batch) == size for batch in batches[:-1])


def test_each_epoch_sees_all_examples_in_another_order():
    module, seen = Line(), []
    fit(module, regression_task(module, Schedule(epochs=3, batch=16, patience=9), seen=seen), 0)
    assert [len(rows) for rows in seen] == [16, 16, 16, 2] * 3
    orders = [np.concatenate(seen[4 * epoch : 4 * epoch + 4]).tolist() for epoch in range(3)]
    assert all(sorted(order) == list(range(50)) for order in orders)
    assert len({tuple(order) for order in orders}) == 3


@pytest.mark.parametrize(("count", "batch"), [(0, 16), (50, 0), (50, -4)])
def test_no_examples_or_empty_batches_raise(count, batch):
    module = Line()
    schedule = Schedule()
    object.__setattr__(schedule, "batch", batch)  # which `Schedule` itself refuses
    with pytest.raises(InputError, match=rf"^line: {count} examples and batches of {batch}; give at least one example"):
        fit(module, replace(regression_task(module), n_examples=count, schedule=schedule), 0)


# --- learning rate and number of steps ------------------------------------------------------------------------------


def test_rate_warms_up_linearly_then_follows_a_cosine_to_zero():
    factors = [learning_rate_factor(step, 100) for step in range(100)]
    assert factors[:10] == pytest.approx(np.arange(1, 11) / 10)
    assert factors[10:] == pytest.approx(0.5 * (1 + np.cos(np.pi * np.arange(90) / 90)))
    assert max(factors) == 1 and 0 < factors[-1] < 0.01


@pytest.mark.parametrize("total", [1, 2, 3, 9])
def test_the_shortest_schedules_have_rates_between_0_and_1(total):
    factors = [learning_rate_factor(step, total) for step in range(total)]
    assert all(0 < factor <= 1 for factor in factors)


def test_the_optimizer_uses_the_rate_of_the_schedule(rates):
    module = Line()
    fit(module, regression_task(module, Schedule(epochs=5, batch=25, rate=0.2, patience=9)), 0)
    assert rates == pytest.approx([0.2 * learning_rate_factor(step, 10) for step in range(10)])


@pytest.mark.parametrize("steps", [3, 4, 7, 19, 20])
def test_rate_reaches_zero_at_the_requested_number_of_steps(steps, rates):
    module = Line()
    fit(module, regression_task(module, five_epochs(steps)), 0)
    assert rates == pytest.approx([0.05 * learning_rate_factor(step, steps) for step in range(steps)])
    assert learning_rate_factor(steps, steps) == pytest.approx(0, abs=1e-12), "of the step that would come next"
    assert max(rates) == 0.05 and rates[-1] == min(rates[1:]) < 0.6 * max(rates)


@pytest.mark.parametrize(("steps", "expected"), [(0, 5 * STEPS_PER_EPOCH), (21, 21), (300, 300)])
def test_steps_take_precedence_over_epochs(steps, expected, rates):
    module = Line()
    fit(module, regression_task(module, five_epochs(steps)), 0)
    assert len(rates) == expected


def test_a_number_of_steps_sees_the_first_batches_of_the_epochs():
    all_batches, first_batches = [], []
    for steps, seen in ((0, all_batches), (7, first_batches)):
        module = Line()
        fit(module, regression_task(module, five_epochs(steps), seen=seen), 0)
    assert len(first_batches) == 7
    assert all((a == b).all() for a, b in zip(first_batches, all_batches, strict=False))


def test_examples_that_make_no_batch_end_the_run():
    module = Line()
    fit(module, replace(regression_task(module, five_epochs(7)), batches=lambda *_: iter(())), 0)


def test_a_negative_number_of_steps_raises():
    with pytest.raises(InputError, match="steps must be 0 or more, not -1"):
        five_epochs(-1)


# --- evaluations, the best state, early stopping --------------------------------------------------------------------


@pytest.mark.parametrize(("every", "eval_steps"), [(0, [4, 7]), (3, [3, 6, 7]), (7, [7]), (100, [7])])
def test_dev_is_always_evaluated_after_the_last_step(every, eval_steps, tmp_path):
    module, states, log = Line(), [], tmp_path / "log.jsonl"
    task = regression_task(module, five_epochs(7, evaluate_every=every))
    history = fit(module, task, 0, log=log, on_progress=states.append)
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert [(line["step"], line["of"]) for line in lines] == [(step, 7) for step in eval_steps]
    assert len(history.scores) == len(eval_steps)
    assert [(state.step, state.steps) for state in states] == [(step, 7) for step in (1, 2, 3, 4, 5, 6, 7, 7)]


def test_the_best_state_is_kept_not_the_last():
    module, states = Line(), []
    task = regression_task(module, Schedule(epochs=5, batch=16, rate=0.05, patience=9), scores=[0, 1, 3, 2, 2.5, 1])

    def dev_metric():
        states.append(state_of(module))
        return task.dev_metric()

    history = fit(module, replace(task, dev_metric=dev_metric), 0)
    assert (history.start, history.scores, history.best, history.best_score) == (0, [1, 3, 2, 2.5, 1], 1, 3)
    assert equal_states(state_of(module), states[2])
    assert not equal_states(state_of(module), states[-1])


def test_a_module_that_never_improves_keeps_its_first_state():
    module = Line()
    before = state_of(module)
    history = fit(module, regression_task(module, scores=[5, 1, 2, 3, 4, 4, 4]), 0)
    assert (history.best, history.best_score) == (-1, 5)
    assert equal_states(state_of(module), before)


def test_training_stops_when_dev_does_not_improve():
    module = Line()
    schedule = Schedule(epochs=20, batch=16, patience=3)
    history = fit(module, regression_task(module, schedule, scores=[0, 1, 2, 2, 1, 2, 9]), 0)
    assert history.scores == [1, 2, 2, 1, 2], "an equal score is no improvement"
    assert history.best == 1


def test_evaluations_while_the_rate_rises_do_not_use_up_patience():
    module = Line()
    schedule = Schedule(epochs=100, batch=16, rate=0.05, patience=3)  # ten epochs of warm-up
    history = fit(module, replace(regression_task(module, schedule), dev_metric=lambda: 0.0), 0)
    assert len(history.scores) == 10 + 3


def test_zero_epochs_change_nothing():
    module = Line()
    before = state_of(module)
    history = fit(module, regression_task(module, Schedule(epochs=0)), 0)
    assert history.scores == [] and equal_states(state_of(module), before)


def test_results_depend_on_the_seed_only():
    runs = []
    for seed in (3, 3, 4):
        module = Line()
        torch.rand(seed)  # random numbers drawn before must not matter
        runs.append((fit(module, regression_task(module), seed), state_of(module)))
    (history, state), (same_history, same_state), (other_history, _) = runs
    assert history == same_history and equal_states(state, same_state)
    assert history.losses != other_history.losses


def test_a_loss_that_is_not_finite_raises():
    module = Line()
    task = regression_task(module)
    with pytest.raises(DivergedError, match=r"loss of line is not finite in step 1 of \d+; try a lower"):
        fit(module, replace(task, loss=lambda rows: task.loss(rows) * math.nan), 0)


# --- progress and log -----------------------------------------------------------------------------------------------


def test_progress_is_reported_after_each_step_and_at_the_end():
    module, states = Line(), []
    history = fit(module, regression_task(module), 0, on_progress=states.append)
    assert [state.step for state in states] == [*range(1, 25), 24]
    assert {(state.stage, state.steps) for state in states} == {("line", 24)}
    assert (states[0].loss, states[0].score) == (None, None)
    assert (states[4].loss, states[4].score) == (history.losses[0], history.scores[0])
    assert states[-1].score == history.best_score


def read_log(file):
    """All lines of a log, without the seconds."""
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    seconds = [line.pop("seconds") for line in lines]
    assert seconds == sorted(seconds), "a resumed run goes on counting"
    return lines


@pytest.fixture
def expected_log(tmp_path):
    """The log of an uninterrupted run."""
    module = Line()
    fit(module, regression_task(module), 7, log=tmp_path / "expected.jsonl")
    return read_log(tmp_path / "expected.jsonl")


def interrupt_at(step):
    """An `on_progress` that interrupts the run after a step, as Ctrl-C does."""

    def on_progress(state):
        if state.step == step:
            raise KeyboardInterrupt

    return on_progress


def test_a_killed_run_that_resumes_writes_the_same_log(expected_log, tmp_path, monkeypatch):
    """The run is killed some evaluations after its last checkpoint, and these are repeated."""
    monkeypatch.setattr(checkpoint, "_SAVE_EVERY", 0.0)
    file, log, module = tmp_path / "run.safetensors", tmp_path / "log.jsonl", Line()

    def kill(state):
        if state.step == 10:
            monkeypatch.setattr(checkpoint, "_SAVE_EVERY", 1e9)
        if state.step == 18:
            raise Killed

    with pytest.raises(Killed):
        fit(module, regression_task(module), 7, checkpoint=file, log=log, on_progress=kill)
    assert read_log(log) == expected_log[:4]
    with pytest.raises(KeyboardInterrupt):
        fit(module, regression_task(module), 7, checkpoint=file, log=log, on_progress=interrupt_at(11))
    assert read_log(log) == expected_log[:2]
    fit(module, regression_task(module), 7, checkpoint=file, log=log)
    assert read_log(log) == expected_log


def test_interrupting_an_evaluation_does_not_change_the_log(expected_log, tmp_path):
    file, log, module = tmp_path / "run.safetensors", tmp_path / "log.jsonl", Line()
    task, scores = regression_task(module), []

    def dev_metric():
        scores.append(task.dev_metric())
        if len(scores) == 4:
            raise KeyboardInterrupt
        return scores[-1]

    with pytest.raises(KeyboardInterrupt):
        fit(module, replace(task, dev_metric=dev_metric), 7, checkpoint=file, log=log)
    fit(module, regression_task(module), 7, checkpoint=file, log=log)
    assert read_log(log) == expected_log


def test_the_log_of_another_run_is_replaced(expected_log, tmp_path):
    """By a new run, and by a finished run that only resumes."""
    file, log, module = tmp_path / "run.safetensors", tmp_path / "log.jsonl", Line()
    log.write_text("of a run that was killed\n")
    for _ in range(2):
        fit(module, regression_task(module), 7, checkpoint=file, log=log)
        assert read_log(log) == expected_log
        log.write_text("of another run\n")
