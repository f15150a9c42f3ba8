"""The progress of training: all stages, seeds and final checks are announced before the first step."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

from decoder2vec.progress import Progress
from decoder2vec.training import api, checkpoint
from decoder2vec.training.api import train
from decoder2vec.training.loop import Schedule
from decoder2vec.training.plan import Plan, Stage
from decoder2vec.training.recipes.freeze import EMBEDDING
from toys.progress import Clock, Recorder
from toys.training import small_recipe, toy_data, toy_pairs

PHASES = [
    "reading",
    "loading the model",
    "tokenising",
    "training",
    "evaluating",
    "final checks",
    "scoring the untrained model",
    "saving",
]


class Killed(Exception):
    """Ends a run as a crash would."""


@pytest.fixture(autouse=True)
def own_cache_root(tmp_path, monkeypatch):
    """No test reuses a stage that another has trained; checkpoints are written after every step."""
    monkeypatch.setattr(api, "cache_root", lambda: tmp_path / "notes")
    monkeypatch.setattr(checkpoint, "_SAVE_EVERY", 0.0)


@pytest.fixture
def run(tmp_path):
    """run(plan, **options) -> the progress and what was recorded of it, with a clock that ticks at every report."""

    def run(plan, out="enc", **options):
        recorder = Recorder()
        with Progress(recorder, clock=Clock(tick=1.0)) as progress:
            train(plan, toy_data(), "tiny-llama", tmp_path / out, device="cpu", **options)
        return progress, recorder

    return run


def assert_honest(progress, recorder):
    """All work is announced before the first is done, the fraction never falls, and it is 1 only after the end."""
    first = next(index for index, fraction in enumerate(recorder.fractions) if fraction)
    assert recorder.totals[first] == pytest.approx(max(recorder.totals), rel=0.1)
    assert all(before <= after < 1 for before, after in pairwise(recorder.fractions))
    assert progress.ended and progress.fraction == 1


def test_phases_of_a_training_come_in_order(run):
    progress, recorder = run(small_recipe("lora"))
    assert recorder.labels == PHASES
    assert_honest(progress, recorder)
    assert progress.elapsed > 0


def test_final_checks_are_part_of_the_whole(run):
    """Their work is left when the last step is done: the bar does not stand at 100 % while texts are encoded."""
    progress, _ = run(small_recipe("lora", epochs=1))
    done = {phase.name: phase.done for phase in progress.phases}
    assert done["final checks"] >= len(toy_pairs().texts())
    assert done["scoring the untrained model"] >= len(toy_pairs().texts())


def test_stages_and_seeds_are_one_whole(run):
    stages = [Stage(name, small_recipe("lora", epochs=1)) for name in ("first", "second")]
    progress, recorder = run(Plan("both", tuple(stages)), seeds=(0, 1))
    expected = [f"{stage}: {phase}" for stage in ("first", "second") for phase in PHASES[1:]]
    assert [label for label in recorder.labels if label != "reading"] == expected
    assert [phase.stage for phase in progress.phases if phase.name == "training"] == 2 * ["first"] + 2 * ["second"]
    assert_honest(progress, recorder)
    done = [fraction for fraction in recorder.fractions if fraction]
    assert min(abs(fraction - 0.5) for fraction in done) < 0.1  # half of it after the first of two equal stages


def test_stage_trained_before_is_not_expected(run, tmp_path):
    stages = tuple(Stage(name, small_recipe("lora", epochs=1)) for name in ("first", "second"))
    run(Plan("both", stages))
    progress, recorder = run(Plan("both", stages), out="again")
    assert "first: training" not in recorder.labels and "second: training" in recorder.labels
    assert_honest(progress, recorder)


def test_resumed_training_expects_the_rest(run):
    recipe = small_recipe("lora", epochs=4, every=3)
    whole, _ = run(recipe, out="whole")

    def kill(state):
        if state.step == 9:
            raise Killed

    with pytest.raises(Killed):
        run(recipe, on_progress=kill)
    resumed, recorder = run(recipe)
    works = [
        {phase.name: phase.done for phase in progress.phases if phase.name in ("training", "evaluating")}
        for progress in (whole, resumed)
    ]
    assert works[1]["training"] == pytest.approx(works[0]["training"] / 4)
    assert works[1]["evaluating"] == pytest.approx(works[0]["evaluating"] / 5)
    assert_honest(resumed, recorder)


def test_settings_of_a_grid_are_counted(run):
    progress, recorder = run(small_recipe("lora", epochs=1), grid={"training.rate": [0.01, 0.1, 1e30]})
    assert "choosing settings: training" in recorder.labels and recorder.labels[-1] == "saving"
    assert sum(phase.name == "training" for phase in progress.phases) == 4
    assert_honest(progress, recorder)


def test_frozen_training_counts_encoded_texts(tmp_path):
    recipe = replace(EMBEDDING, widths=(4,), training=Schedule(epochs=2, batch=8))
    recorder, pairs = Recorder(), toy_pairs("train")
    with Progress(recorder, clock=Clock(tick=1.0)) as progress:
        data = toy_data(train=pairs, contrastive=None, scale=(0.0, 1.0))
        train(recipe, data, "tiny-llama", tmp_path / "enc", device="cpu")
    assert recorder.labels == ["encoding" if label == "tokenising" else label for label in PHASES]
    assert_honest(progress, recorder)
