"""Encoders of single steps: which are saved, and where; killed runs, other trainings, how a trajectory reads them."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

import decoder2vec as d2v
from decoder2vec.config import key_settings
from decoder2vec.errors import InputError
from decoder2vec.text.data_check import TRAINING_TEXTS_FILE
from decoder2vec.training import checkpoint
from decoder2vec.training.loop import Schedule
from decoder2vec.training.recipes.freeze import EMBEDDING
from toys.tasks import write_toy_tasks
from toys.training import small_recipe, toy_data


class Killed(Exception):
    """Ends a run as a crash would."""


def recipe(name="lora", save_every=1, epochs=2, **schedule):
    """Six steps, evaluated after each."""
    small = small_recipe(name, epochs=epochs, every=1)
    return replace(small, training=replace(small.training, save_every=save_every, **schedule))


@pytest.fixture
def run(backbone, own_cache, tmp_path):
    """run(recipe) -> TrainingResult in tmp_path/out."""

    def go(settings=None, out=tmp_path / "out", **options):
        return d2v.train(settings or recipe(), toy_data(), backbone("tiny-llama"), out, **options)

    return go


def contents(out):
    """Every file of the steps of an encoder, by its path; that of the encoder itself stands in some of them."""
    folder = out.with_name(f"{out.name}-steps")
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {str(path.relative_to(folder)): path.read_bytes().replace(bytes(out), b"OUT") for path in files}


def names(folder):
    return {path.name for path in folder.iterdir()}


@pytest.mark.parametrize(("every", "steps"), [(2, (2, 4, 6)), (4, (4,)), (7, ())])
def test_every_nth_evaluation_is_saved(every, steps, run, tmp_path):
    messages = []
    run(recipe(save_every=every), notify=messages.append)
    found = names(tmp_path / "out-steps") if steps else set()
    assert found == {f"step-{step}" for step in steps}
    assert f"the encoders of {len(steps)} steps are in {tmp_path / 'out-steps'}" in messages


def test_the_default_saves_nothing_and_changes_no_key(run, tmp_path):
    run(recipe(save_every=0))
    assert names(tmp_path) == {"out"}
    assert key_settings(Schedule()) == {} and key_settings(Schedule(save_every=2)) == {"save_every": 2}


def test_only_the_first_seed_saves_its_steps(run, tmp_path):
    run(recipe(save_every=6), seeds=[3, 4])
    run(recipe(save_every=6), tmp_path / "alone", seeds=[3])
    both, alone = (
        d2v.Encoder.load(tmp_path / folder / "step-6", device="cpu") for folder in ("out-steps", "alone-steps")
    )
    assert both.fingerprint == alone.fingerprint


def test_a_step_knows_the_texts_that_it_was_trained_on(run, tmp_path):
    run(recipe(save_every=6))
    step = tmp_path / "out-steps" / "step-6"
    assert (step / TRAINING_TEXTS_FILE).read_bytes() == (tmp_path / "out" / TRAINING_TEXTS_FILE).read_bytes()


@pytest.mark.parametrize("name", ["lora", "full"])
def test_a_killed_run_ends_with_the_same_folders(name, run, tmp_path, monkeypatch):
    """Killed while a step is saved: once with the last checkpoint just before it, once some steps before it."""
    run(recipe(name), tmp_path / "whole")
    save = d2v.Encoder.save

    def save_or_die(encoder, folder, **options):
        if folder.name == f"step-{killed_at}":
            raise Killed
        return save(encoder, folder, **options)

    for killed_at, seconds in ((3, 0.0), (5, 1e9)):
        monkeypatch.setattr(checkpoint, "_SAVE_EVERY", seconds)
        with monkeypatch.context() as patch:
            patch.setattr(d2v.Encoder, "save", save_or_die)
            with pytest.raises(Killed):
                run(recipe(name))
        assert f"step-{killed_at}" not in names(tmp_path / "out-steps")
    run(recipe(name))
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")


def test_an_interrupt_while_a_step_is_saved_repeats_it(run, tmp_path, monkeypatch):
    """A checkpoint is written then, with a step that is done and an evaluation that is not recorded yet."""
    run(recipe(), tmp_path / "whole")
    save = d2v.Encoder.save

    def interrupt(encoder, folder, **options):
        if folder.name == "step-4":
            raise KeyboardInterrupt
        return save(encoder, folder, **options)

    with monkeypatch.context() as patch:
        patch.setattr(d2v.Encoder, "save", interrupt)
        with pytest.raises(KeyboardInterrupt):
            run()
    steps = []
    run(on_progress=lambda state: steps.append(state.step))
    assert steps[0] == 5, "the run is resumed"
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")


def test_steps_of_another_training_are_replaced_on_request_only(run, tmp_path):
    run(recipe())
    before = contents(tmp_path / "out")
    (tmp_path / "out").rename(tmp_path / "elsewhere")
    other = recipe(save_every=3)
    with pytest.raises(InputError, match=r"out-steps holds steps of another training; .*add --overwrite"):
        run(other)
    assert contents(tmp_path / "out") == before
    run(other, overwrite=True)
    assert names(tmp_path / "out-steps") == {"step-3", "step-6"}
    document = json.loads((tmp_path / "out-steps" / "step-3" / "step.json").read_text(encoding="utf-8"))
    assert document["step"] == 3


@pytest.mark.parametrize("file", ["notes.txt", "step-1/notes.txt"])
def test_files_of_the_user_are_kept(file, run, tmp_path):
    path = tmp_path / "out-steps" / file
    path.parent.mkdir(parents=True)
    path.write_text("mine")
    with pytest.raises(InputError, match=r"is not empty: it holds .*notes.txt"):
        run(overwrite=True)
    assert path.read_text() == "mine" and not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Schedule(save_every=-1), "save_every must be 0 or more"),
        (lambda: recipe(partial_vocabulary=True), "needs the whole vocabulary; set one of"),
        (lambda: replace(recipe(), fsdp=True), "set one of fsdp and training.save_every"),
        (lambda: replace(EMBEDDING, pretraining=Schedule(save_every=1)), "set training.save_every"),
        (lambda: replace(EMBEDDING, training=Schedule(save_every=1), keep=2), "after which no reading is selected"),
        (lambda: d2v.BridgeConfig(training=Schedule(save_every=1)), "A bridge is saved at its end only"),
    ],
)
def test_what_cannot_save_steps_refuses_them_in_one_sentence(make, message):
    with pytest.raises(InputError, match=message) as error:
        make()
    assert "\n" not in str(error.value)


def test_a_curve_refuses_saved_steps(backbone, tmp_path):
    options = {"recipes": ["lora"], "settings": ["training.save_every=1"]}
    with pytest.raises(InputError, match="A curve saves no encoders"):
        d2v.learning_curve(toy_data(), backbone("tiny-llama"), tmp_path / "curve", sizes=["all"], **options)


def test_a_trajectory_and_a_report_read_the_steps(run, tmp_path):
    run(recipe(save_every=3))
    tasks = write_toy_tasks(tmp_path / "data")
    trajectory = d2v.Trajectory(tmp_path / "out-steps")
    assert trajectory.names == ("step-3", "step-6")
    options = {"tasks": ("mine", "topics"), "limit": 20, "device": "cpu", "dtype": "float32"}
    result = trajectory.run(tasks, tmp_path / "trajectory", **options)
    plain = d2v.evaluate(tmp_path / "out-steps" / "step-3", tasks, **options)["tasks"]
    assert {task: result.before(task)["step-3"] for task in plain} == {task: plain[task]["score"] for task in plain}
    assert "step-6" in d2v.report(tmp_path / "trajectory").read_text(encoding="utf-8")
    encoders = [tmp_path / "out-steps" / step for step in trajectory.names]
    page = d2v.report(encoders, tmp_path / "page", data=tasks, tasks=options["tasks"], device="cpu")
    assert "What changed elsewhere?" in page.read_text(encoding="utf-8")
