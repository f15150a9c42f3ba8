"""The loop: batches, learning rates, the best state, early stop, and runs that are killed."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from types import SimpleNamespace
from unittest.mock import MagicMock

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from decoder2vec.cli.output import TrainingBars
from decoder2vec.errors import DivergedError, InputError
from decoder2vec.training import checkpoint, loop
from decoder2vec.training.loop import Schedule, TrainingTask, fit, learning_rate_factor
from toys.regression import Killed, Line, same, state, task_for


def test_a_regression_is_learned():
    module = Line()
    history = fit(module, task_for(module, Schedule(epochs=40, batch=16, rate=0.1, patience=40)), 0)
    assert history.best_score > 0.1 * history.start
    assert history.losses[-1] < 0.3 * history.losses[0]
    assert not module.training


@pytest.mark.parametrize("count", [2, 3, 15, 16, 17, 18, 32, 33, 34, 49])
@pytest.mark.parametrize("size", [2, 4, 16, 64])
def test_batches_hold_every_example_once_and_never_a_single_one(count, size):
    batches = list(loop.fixed_size_batches(np.arange(count), size))
    assert np.concatenate(batches).tolist() == list(range(count))
    assert all(2 <= len(batch) <= size + 1 for batch in batches)
    assert all(len(batch) == size for batch in batches[:-1])


def test_every_epoch_sees_every_example_in_another_order():
    module, seen = Line(), []
    fit(module, task_for(module, Schedule(epochs=3, batch=16, patience=9), seen=seen), 0)
    assert [len(rows) for rows in seen] == [16, 16, 16, 2] * 3
    orders = [np.concatenate(seen[4 * epoch : 4 * epoch + 4]).tolist() for epoch in range(3)]
    assert all(sorted(order) == list(range(50)) for order in orders)
    assert len({tuple(order) for order in orders}) == 3


def test_the_rate_rises_in_a_tenth_of_the_steps_and_falls_to_nothing_on_half_a_cosine():
    factors = [learning_rate_factor(step, 100) for step in range(100)]
    assert factors[:10] == pytest.approx(np.arange(1, 11) / 10)
    assert factors[10:] == pytest.approx(0.5 * (1 + np.cos(np.pi * np.arange(90) / 90)))
    assert max(factors) == 1 and 0 < factors[-1] < 0.01


@pytest.mark.parametrize("total", [1, 2, 3, 9])
def test_even_the_shortest_schedule_has_rates_between_0_and_1(total):
    factors = [learning_rate_factor(step, total) for step in range(total)]
    assert all(0 < factor <= 1 for factor in factors)


def test_the_optimiser_is_given_the_schedules_rate(monkeypatch):
    rates, real = [], torch.optim.AdamW.step

    def step(self, *args, **kwargs):
        rates.append(self.param_groups[0]["lr"])
        return real(self, *args, **kwargs)

    monkeypatch.setattr(torch.optim.AdamW, "step", step)
    module = Line()
    fit(module, task_for(module, Schedule(epochs=5, batch=25, rate=0.2, patience=9)), 0)
    assert rates == pytest.approx([0.2 * learning_rate_factor(step, 10) for step in range(10)])


def test_the_best_state_is_kept_not_the_last():
    module, states = Line(), []
    task = task_for(module, Schedule(epochs=5, batch=16, rate=0.05, patience=9), scores=[0, 1, 3, 2, 2.5, 1])
    told = task.score

    def score():
        states.append(state(module))
        return told()

    history = fit(module, TrainingTask("line", 50, task.loss, score, task.schedule), 0)
    assert (history.start, history.scores, history.best, history.best_score) == (0, [1, 3, 2, 2.5, 1], 1, 3)
    assert same(state(module), states[2])
    assert not same(state(module), states[-1])


def test_a_module_that_never_got_better_ends_as_it_began():
    module = Line()
    before = state(module)
    history = fit(module, task_for(module, scores=[5, 1, 2, 3, 4, 4, 4]), 0)
    assert (history.best, history.best_score) == (-1, 5)
    assert same(state(module), before)


def test_training_stops_when_the_score_has_not_risen_for_a_while():
    module = Line()
    schedule = Schedule(epochs=20, batch=16, patience=3)
    history = fit(module, task_for(module, schedule, scores=[0, 1, 2, 2, 1, 2, 9]), 0)
    assert history.scores == [1, 2, 2, 1, 2], "an equal score is no better one"
    assert history.best == 1


def test_no_epochs_leave_the_module_as_it_is():
    module = Line()
    before = state(module)
    history = fit(module, task_for(module, Schedule(epochs=0)), 0)
    assert history.scores == [] and same(state(module), before)


def test_the_same_seed_gives_the_same_numbers_and_another_does_not():
    found = []
    for seed in (3, 3, 4):
        module = Line()
        torch.rand(seed)  # what was drawn before does not matter
        found.append((fit(module, task_for(module), seed), state(module)))
    assert found[0][0] == found[1][0] and same(found[0][1], found[1][1])
    assert found[0][0].losses != found[2][0].losses


@pytest.mark.parametrize("kill_after", [5, 8, 11, 23])
def test_a_killed_run_goes_on_to_the_same_numbers(kill_after, tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoint, "_SAVE_EVERY", 0.0)
    whole = Line()
    expected = fit(whole, task_for(whole), 7)
    first, seen = Line(), []
    with pytest.raises(Killed):
        fit(first, task_for(first, kill_after=kill_after), 7, checkpoint=tmp_path / "run.safetensors")
    second = Line(start=-2.0)
    torch.manual_seed(123)
    history = fit(second, task_for(second, seen=seen), 7, checkpoint=tmp_path / "run.safetensors")
    assert len(seen) == 24 - kill_after, "no step is done again, wherever dev was looked at last"
    assert history == expected
    assert same(state(second), state(whole))


def test_a_killed_run_knows_its_best_state(tmp_path, monkeypatch):
    """The best epoch lies before the kill, and nothing after it is better."""
    monkeypatch.setattr(checkpoint, "_SAVE_EVERY", 0.0)
    scores = [0, 9, 1, 2, 3, 4, 5]
    whole = Line()
    fit(whole, task_for(whole, scores=scores), 0)
    first = Line()
    with pytest.raises(Killed):
        fit(first, task_for(first, scores=scores, kill_after=13), 0, checkpoint=tmp_path / "run.safetensors")
    second = Line()
    history = fit(second, task_for(second, scores=scores[4:]), 0, checkpoint=tmp_path / "run.safetensors")
    assert (history.best, history.best_score) == (0, 9)
    assert same(state(second), state(whole))


# --- runs that are interrupted: no checkpoint is old enough to be written but the last words ------------------------


def in_a_loss(task, at):
    """Random numbers were drawn, and gradients are on their way."""
    calls = []

    def loss(rows):
        found = task.loss(rows)
        calls.append(1)
        if len(calls) == at:
            raise KeyboardInterrupt
        return found

    return replace(task, loss=loss)


def in_a_look(task, at):
    calls = []

    def score():
        found = task.score()
        calls.append(1)
        if len(calls) == at:
            raise KeyboardInterrupt
        return found

    return replace(task, score=score)


def drawing(task):
    """Its score draws random numbers, too."""
    return replace(task, score=lambda: (torch.rand(3), task.score())[1])


@pytest.mark.parametrize(
    ("interrupt", "done"),
    [
        (lambda task: in_a_loss(task, 4), 3),
        (lambda task: in_a_loss(task, 5), 4),
        (lambda task: in_a_loss(task, 11), 10),
        (lambda task: in_a_look(task, 2), 7),
        (lambda task: in_a_look(task, 4), 21),
        (lambda task: in_a_look(task, 5), 24),
    ],
    ids=["in an epoch", "at an epoch's start", "later", "in the first look", "in the third", "in the last"],
)
def test_an_interrupted_run_goes_on_from_its_last_whole_step_to_the_same_numbers(interrupt, done, tmp_path):
    file, schedule = tmp_path / "run.safetensors", Schedule(epochs=6, batch=16, rate=0.05, patience=9, evaluate_every=7)
    whole, first, second, seen = Line(), Line(), Line(start=-2.0), []
    expected = fit(whole, drawing(task_for(whole, schedule)), 7)
    with pytest.raises(KeyboardInterrupt):
        fit(first, interrupt(drawing(task_for(first, schedule))), 7, checkpoint=file)
    torch.manual_seed(123)
    assert fit(second, drawing(task_for(second, schedule, seen=seen)), 7, checkpoint=file) == expected
    assert len(seen) == 24 - done
    assert same(state(second), state(whole))


def interrupted_watch(at):
    def on_progress(note):
        if note.step == at:
            raise KeyboardInterrupt

    return on_progress


def test_a_run_that_is_interrupted_again_and_again_ends_with_the_same_numbers(tmp_path):
    file, whole = tmp_path / "run.safetensors", Line()
    expected = fit(whole, task_for(whole), 7)
    for at in (1, 2, 6, 7, 8, 23):
        module = Line()
        with pytest.raises(KeyboardInterrupt):
            fit(module, task_for(module), 7, checkpoint=file, on_progress=interrupted_watch(at))
    module, seen = Line(), []
    assert fit(module, task_for(module, seen=seen), 7, checkpoint=file) == expected
    assert len(seen) == 1 and same(state(module), state(whole))


def test_half_a_step_is_not_kept(tmp_path, monkeypatch):
    """The weights have moved, and the run does not know yet."""
    file, whole, real = tmp_path / "run.safetensors", Line(), torch.optim.AdamW.step
    expected = fit(whole, task_for(whole), 7)
    made = []

    def step(self, *args, **kwargs):
        real(self, *args, **kwargs)
        made.append(1)
        if len(made) == 6:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(torch.optim.AdamW, "step", step)
        module = Line()
        with pytest.raises(KeyboardInterrupt):
            fit(module, task_for(module), 7, checkpoint=file)
    assert not file.exists()
    module = Line()
    assert fit(module, task_for(module), 7, checkpoint=file) == expected


def test_an_interrupted_run_without_a_file_just_ends():
    module = Line()
    with pytest.raises(KeyboardInterrupt):
        fit(module, task_for(module), 7, on_progress=interrupted_watch(3))


def test_a_run_that_is_taken_up_says_from_where_and_a_finished_one_says_nothing(tmp_path, capsys):
    file, module = tmp_path / "run.safetensors", Line()
    with pytest.raises(KeyboardInterrupt):
        fit(module, task_for(module), 7, checkpoint=file, on_progress=interrupted_watch(6))
    for _ in range(2):
        fit(module, task_for(module), 7, checkpoint=file, on_progress=TrainingBars(MagicMock()))
    assert capsys.readouterr().err == "line: going on from step 6 of 24\n"


@pytest.mark.parametrize("wrong", ["loss", "slope"])
def test_a_state_that_went_wrong_between_two_looks_is_not_kept(wrong, tmp_path, monkeypatch):
    """Nobody has been told of it yet; the last words of the run name a state that is sound."""
    monkeypatch.setattr(checkpoint, "_SAVE_EVERY", 0.0)
    file, seen, module = tmp_path / "run.safetensors", [], Line()
    schedule = Schedule(epochs=6, batch=16, rate=0.05, patience=9, evaluate_every=12)
    task, calls = task_for(module, schedule), []

    def loss(rows):
        calls.append(1)
        found = task.loss(rows)
        if len(calls) != 6:
            return found
        return found * math.nan if wrong == "loss" else found + (module.line.weight.sum() * 0).sqrt()

    with pytest.raises(
        DivergedError, match=f"in step {6 if wrong == 'loss' else 7} of 24; .*; the state before it is kept"
    ):
        fit(module, replace(task, loss=loss), 7, checkpoint=file)
    again, whole = Line(), Line()
    history = fit(again, task_for(again, schedule, seen=seen), 7, checkpoint=file)
    assert len(seen) == 24 - 5
    assert history == fit(whole, task_for(whole, schedule), 7)


# --- what checkpoints cost ------------------------------------------------------------------------------------------


@pytest.fixture
def clock(monkeypatch):
    """clock(writing=seconds) -> the seconds at which checkpoints were written; a step takes two."""
    now, written = [0.0], []
    monkeypatch.setattr(checkpoint, "time", SimpleNamespace(monotonic=lambda: now[0]))

    def go(module, tmp_path, writing):
        real = checkpoint.save_file

        def save(*args, **options):
            written.append(now[0])
            now[0] += writing
            real(*args, **options)

        monkeypatch.setattr(checkpoint, "save_file", save)
        task = task_for(module, Schedule(epochs=25, batch=16, patience=99, evaluate_every=90))

        def loss(rows):
            now[0] += 2
            return task.loss(rows)

        fit(module, replace(task, loss=loss), 0, checkpoint=tmp_path / "run.safetensors")
        return written

    return go


def test_a_kill_costs_ten_seconds_however_far_apart_the_looks_are(clock, tmp_path):
    assert clock(Line(), tmp_path, writing=0.0) == [*range(10, 201, 10), 200], "the last is that of the end"


def test_a_state_that_takes_long_to_write_is_written_less_often(clock, tmp_path):
    written = clock(Line(), tmp_path, writing=2.0)
    assert written == [10, 10 + 2 + 40, 52 + 2 + 40, 94 + 2 + 40, 136 + 2 + 40, 210], "a twentieth of the time at most"


def test_a_finished_run_is_not_done_again(tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoint, "_SAVE_EVERY", 0.0)
    file = tmp_path / "run.safetensors"
    first, second, seen = Line(), Line(), []
    expected = fit(first, task_for(first), 0, checkpoint=file)
    assert fit(second, task_for(second, seen=seen), 0, checkpoint=file) == expected
    assert seen == [] and same(state(second), state(first))


def test_checkpoints_are_not_written_more_often_than_they_are_worth(tmp_path):
    module = Line()
    written = []
    task = task_for(module)

    def score():
        written.extend(tmp_path.iterdir())
        return task.score()

    fit(module, replace(task, score=score), 0, checkpoint=tmp_path / "run.safetensors")
    assert written == [], "young epochs are not worth a file"
    assert [file.name for file in tmp_path.iterdir()] == ["run.safetensors"], "a finished stage is"


def test_a_finished_stage_is_not_done_again(tmp_path):
    module = Line()
    first = fit(module, task_for(module), 0, checkpoint=tmp_path / "run.safetensors")
    again = Line()
    task = replace(task_for(again), loss=lambda rows: pytest.fail("nothing is left to do"))
    assert fit(again, task, 0, checkpoint=tmp_path / "run.safetensors") == first
    assert same(state(again), state(module))


def cut(file):
    file.write_bytes(file.read_bytes()[:200])


def empty(file):
    file.write_bytes(b"")


def no_history(file):
    save_file({f"now.{name}": tensor for name, tensor in Line(start=5.0).state_dict().items()}, file)


def other_shape(file):
    save_file({"now.line.weight": torch.zeros(2, 2)}, file, {"history": "{}", "start": "0.0"})


@pytest.mark.parametrize("damage", [cut, empty, no_history, other_shape])
def test_a_damaged_checkpoint_is_as_good_as_none(damage, tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoint, "_SAVE_EVERY", 0.0)
    file = tmp_path / "run.safetensors"
    whole, second = Line(), Line()
    expected = fit(whole, task_for(whole), 0, checkpoint=file)
    damage(file)
    assert fit(second, task_for(second), 0, checkpoint=file) == expected
    assert same(state(second), state(whole))


def test_a_loss_that_is_not_finite_is_refused():
    module = Line()
    task = task_for(module)
    broken = TrainingTask("line", 50, lambda rows: task.loss(rows) * math.nan, task.score, task.schedule)
    with pytest.raises(DivergedError, match=r"loss of line is not finite in step 1 of \d+; try a lower"):
        fit(module, broken, 0)


@pytest.mark.parametrize(("count", "batch"), [(0, 16), (50, 0), (50, -4)])
def test_nothing_to_learn_from_is_refused(count, batch):
    module = Line()
    task = task_for(module)
    with pytest.raises(InputError, match="line has"):
        fit(module, TrainingTask("line", count, task.loss, task.score, Schedule(batch=batch) if batch > 0 else _bare(batch)), 0)


def _bare(batch):
    """A schedule that no check has seen."""
    schedule = Schedule()
    object.__setattr__(schedule, "batch", batch)
    return schedule


def test_the_watcher_hears_of_every_step_and_of_the_end():
    module, notes = Line(), []
    history = fit(module, task_for(module), 0, on_progress=notes.append)
    assert [note.step for note in notes] == [*range(1, 25), 24]
    assert {(note.stage, note.steps) for note in notes} == {("line", 24)}
    assert (notes[0].loss, notes[0].score) == (None, None)
    assert (notes[4].loss, notes[4].score) == (history.losses[0], history.scores[0])
    assert notes[-1].score == history.best_score


# --- the log --------------------------------------------------------------------------------------------------------


def lines_of(file):
    """All but the time it took."""
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    seconds = [line.pop("seconds") for line in lines]
    assert seconds == sorted(seconds), "time goes on where it was"
    return lines


@pytest.fixture
def whole_log(tmp_path):
    module = Line()
    fit(module, task_for(module), 7, log=tmp_path / "whole.jsonl")
    return lines_of(tmp_path / "whole.jsonl")


def test_the_log_of_a_killed_run_is_that_of_an_unbroken_one(whole_log, tmp_path, monkeypatch):
    """The kill comes some looks after the last checkpoint, and those are done again."""
    monkeypatch.setattr(checkpoint, "_SAVE_EVERY", 0.0)
    file, log, module = tmp_path / "run.safetensors", tmp_path / "log.jsonl", Line()

    def kill(note):
        if note.step == 10:
            monkeypatch.setattr(checkpoint, "_SAVE_EVERY", 1e9)
        if note.step == 18:
            raise Killed

    with pytest.raises(Killed):
        fit(module, task_for(module), 7, checkpoint=file, log=log, on_progress=kill)
    assert lines_of(log) == whole_log[:4]
    with pytest.raises(KeyboardInterrupt):
        fit(module, task_for(module), 7, checkpoint=file, log=log, on_progress=interrupted_watch(11))
    assert lines_of(log) == whole_log[:2]
    fit(module, task_for(module), 7, checkpoint=file, log=log)
    assert lines_of(log) == whole_log


def test_the_log_of_a_run_that_is_interrupted_in_a_look_is_that_of_an_unbroken_one(whole_log, tmp_path):
    file, log, module = tmp_path / "run.safetensors", tmp_path / "log.jsonl", Line()
    with pytest.raises(KeyboardInterrupt):
        fit(module, in_a_look(task_for(module), 4), 7, checkpoint=file, log=log)
    fit(module, task_for(module), 7, checkpoint=file, log=log)
    assert lines_of(log) == whole_log


def test_a_fresh_start_begins_a_fresh_log_and_a_finished_run_has_its_own(whole_log, tmp_path):
    """Another run has written to the same file in between."""
    file, log, module = tmp_path / "run.safetensors", tmp_path / "log.jsonl", Line()
    log.write_text("of a run that was killed\n")
    for _ in range(2):
        fit(module, task_for(module), 7, checkpoint=file, log=log)
        assert lines_of(log) == whole_log
        log.write_text("of another run\n")
