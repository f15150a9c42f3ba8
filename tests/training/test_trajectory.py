"""Checkpoints before and after adaptation: equal to plain calls, one on disk at a time, resumed after a kill."""

from __future__ import annotations

import json
import shutil
import signal
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import decoder2vec as d2v
from decoder2vec.backbone.tiny import tiny_folder
from decoder2vec.errors import DataFileError, InputError, UnknownNameError
from decoder2vec.training import trajectory as module
from toys.tasks import write_table, write_toy_tasks
from toys.training import small_recipe, toy_data

TASKS = ("mine", "topics")
OPTIONS = {"tasks": TASKS, "limit": 20, "device": "cpu", "dtype": "float32"}


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory):
    """A folder of two models; their numbers are not in the order of their names as texts."""
    folder = tmp_path_factory.mktemp("pretraining")
    for step in (9, 10):
        target = Path(shutil.copytree(tiny_folder("tiny-llama"), folder / f"step{step}"))
        torch.manual_seed(step)
        weights = load_file(target / "model.safetensors")
        noisy = {name: value + 0.3 / step * torch.randn_like(value) for name, value in weights.items()}
        save_file(noisy, target / "model.safetensors", {"format": "pt"})
    (folder / "notes").mkdir()
    return folder


@pytest.fixture(scope="module")
def tasks(tmp_path_factory):
    return write_toy_tasks(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def whole(checkpoints, tasks, tmp_path_factory, one_thread):
    """The folder of an uninterrupted trajectory with two seeds and an instruction."""
    out = tmp_path_factory.mktemp("whole") / "out"
    run_all(checkpoints, tasks, out)
    return out


def run_all(checkpoints, data, out, **changes):
    options = {"adaptation": small_recipe("lora", epochs=1), "training_data": toy_data(), "seeds": (0, 1)}
    options |= {"instruction": "Topic: ", "trained_on": ["classification"], **OPTIONS}
    return d2v.Trajectory(checkpoints).run(data, out, **(options | changes))


def scores(result, *key, **options):
    return {task: score.value for task, score in result.run(*key, **options).scores.items()}


def test_checkpoints_are_subfolders_in_the_order_of_their_numbers(checkpoints):
    assert d2v.Trajectory(checkpoints).names == ("step9", "step10")
    assert d2v.Trajectory(checkpoints, ["step10", "step9"]).names == ("step10", "step9")
    with pytest.raises(UnknownNameError, match=r"Unknown checkpoint 'step1'\. Did you mean step10"):
        d2v.Trajectory(checkpoints, ["step1"])
    with pytest.raises(InputError, match=r"There is no checkpoint of .*notes; give revisions"):
        d2v.Trajectory(checkpoints / "notes")
    with pytest.raises(InputError, match="given twice"):
        d2v.Trajectory("lab/model", ["a", "a"])


def test_scores_equal_plain_evaluations_and_trainings(whole, checkpoints, tasks, tmp_path):
    result = d2v.TrajectoryResult.load(whole)
    assert len(result.runs) == 2 * 3 * 2 and result.trained_on == ("topics",)
    options = {"tasks": TASKS, "limit": 20, "device": "cpu", "dtype": "float32"}
    for step in ("step9", "step10"):
        plain = d2v.evaluate(checkpoints / step, tasks, **options)["tasks"]
        assert scores(result, step) == {task: plain[task]["score"] for task in TASKS}
        assert {task: about.constant for task, about in result.tasks.items()} == {
            task: plain[task]["constant_score"] for task in TASKS
        }
    prompts = {"sts": "Topic: ", "classification": "Topic: "}
    instructed = d2v.evaluate(checkpoints / "step10", tasks, prompts=prompts, **options)["tasks"]
    assert scores(result, "step10", instructed=True) == {task: instructed[task]["score"] for task in TASKS}
    d2v.train(
        small_recipe("lora", epochs=1), toy_data(), checkpoints / "step10", tmp_path / "adapted", seeds=[1],
        device="cpu", dtype="float32",
    )  # fmt: skip
    adapted = d2v.evaluate(tmp_path / "adapted", tasks, **options)["tasks"]
    assert scores(result, "step10", 1) == {task: adapted[task]["score"] for task in TASKS}
    assert scores(result, "step10", 0) != scores(result, "step10", 1)


def test_nothing_but_results_is_left_on_disk(whole):
    assert {path.name for path in whole.iterdir()} == {"trajectory.json", "evaluations", ".lock"}
    assert len(list((whole / "evaluations").glob("*.json"))) == 2 * 12


def test_second_call_loads_nothing(whole, checkpoints, tasks, monkeypatch):
    for name in ("evaluate", "train"):
        monkeypatch.setattr(module, name, lambda *_, **__: pytest.fail("a finished run was repeated"))
    before = json.loads((whole / "trajectory.json").read_text(encoding="utf-8"))
    messages = []
    assert run_all(checkpoints, tasks, whole, notify=messages.append).to_json() == before
    assert messages == [f"12 of 12 runs are finished in {whole}"]


@pytest.mark.parametrize("call", [1, 4])
def test_an_interrupted_sweep_continues_with_the_same_result(call, whole, checkpoints, tasks, tmp_path, monkeypatch):
    """The interruption comes after an encoder was scored and before that is recorded."""
    calls = []

    def interrupted(*arguments, **options):
        document = d2v.evaluate(*arguments, **options)
        calls.append(options["name"])
        if len(calls) == call:
            raise KeyboardInterrupt
        return document

    with monkeypatch.context() as patch:
        patch.setattr(module, "evaluate", interrupted)
        with pytest.raises(KeyboardInterrupt):
            run_all(checkpoints, tasks, tmp_path / "out")
    assert run_all(checkpoints, tasks, tmp_path / "out") == d2v.TrajectoryResult.load(whole)
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"trajectory.json", "evaluations", ".lock"}


KILLED = """
import os, signal, sys
import decoder2vec as d2v
from decoder2vec.training import trajectory

write, counts = trajectory.write_json, []

def write_and_die(*arguments):
    write(*arguments)
    counts.append(1)
    if len(counts) == 1:
        os.kill(os.getpid(), signal.SIGKILL)

trajectory.write_json = write_and_die
d2v.Trajectory(sys.argv[1]).run(
    sys.argv[2], sys.argv[3], tasks=("mine", "topics"), limit=20, device="cpu", dtype="float32"
)
"""


def test_a_killed_process_is_continued(whole, checkpoints, tasks, tmp_path, quick_python):
    out = tmp_path / "out"
    done = quick_python.run(KILLED, checkpoints, tasks, out)
    assert done.returncode == -signal.SIGKILL
    assert len(d2v.TrajectoryResult.load(out).runs) == 1
    messages = []
    result = d2v.Trajectory(checkpoints).run(tasks, out, notify=messages.append, **OPTIONS)
    assert f"1 of 2 runs are finished in {out}" in messages
    expected = d2v.TrajectoryResult.load(whole)
    assert [scores(result, name) for name in result.checkpoints] == [
        scores(expected, name) for name in result.checkpoints
    ]
    assert result.mean_ratio_of_change() is None and result.gain() == {"mine": {}, "topics": {}}


def test_one_checkpoint_of_the_hub_is_on_disk_at_a_time(whole, checkpoints, tasks, tmp_path, monkeypatch):
    out, on_disk = tmp_path / "out", []

    def download(name, *, revision, local_dir, **_):
        assert name == "lab/model"
        shutil.copytree(checkpoints / revision, local_dir, dirs_exist_ok=True)
        return local_dir

    def evaluate(*arguments, **options):
        on_disk.append([path.name for path in (out / "checkpoint").iterdir()])
        return d2v.evaluate(*arguments, **options)

    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    monkeypatch.setattr(module, "evaluate", evaluate)
    shutil.copytree(checkpoints / "step9", out / "checkpoint" / "of-a-killed-process")
    result = d2v.Trajectory("lab/model", ["step9", "step10"]).run(tasks, out, **OPTIONS)
    assert on_disk == [["step9"], ["step10"]] and not (out / "checkpoint").exists()
    assert scores(result, "step10") == scores(d2v.TrajectoryResult.load(whole), "step10")


def test_other_settings_and_foreign_folders_are_refused(whole, checkpoints, tasks, tmp_path):
    changes = [{"limit": 10}, {"seeds": (0,)}, {"instruction": None}, {"tasks": ["mine"], "trained_on": []}]
    changes += [{"layer": 1}, {"adaptation": small_recipe("lora", epochs=2)}, {"adaptation": None}]
    for change in changes:
        with pytest.raises(InputError, match="other checkpoints, tasks or settings; choose another folder"):
            run_all(checkpoints, tasks, whole, **change)
    (tmp_path / "mine.txt").write_text("x", encoding="utf-8")
    with pytest.raises(InputError, match=r"is not empty: it holds mine\.txt"):
        run_all(checkpoints, tasks, tmp_path)
    with pytest.raises(InputError, match="at least one seed"):
        run_all(checkpoints, tasks, tmp_path / "out", seeds=())
    with pytest.raises(InputError, match="seed 1 is repeated"):
        run_all(checkpoints, tasks, tmp_path / "out", seeds=(1, 1))
    with pytest.raises(UnknownNameError, match="Unknown task 'minee'"):
        run_all(checkpoints, tasks, tmp_path / "out", trained_on=["minee"])


def test_hidden_labels_are_refused_before_anything_is_downloaded(tmp_path, monkeypatch):
    monkeypatch.setattr("huggingface_hub.snapshot_download", lambda *_, **__: pytest.fail("the hub was queried"))
    write_table(
        tmp_path / "sts" / "qqp-test.tsv", ("score", "sentence1", "sentence2"), [(-1, "a", "b"), (-1, "c", "d")]
    )
    with pytest.raises(DataFileError, match="the labels of this split are hidden"):
        d2v.Trajectory("lab/model", ["step1"]).run(tmp_path, tmp_path / "out")
    assert not (tmp_path / "out").exists()
