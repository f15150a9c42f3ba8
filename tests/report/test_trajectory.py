"""The result of a trajectory: gains, ratios, groups and format sensitivity against plain loops; page and JSON."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from decoder2vec.errors import DataFileError
from decoder2vec.report import api
from decoder2vec.report.trajectory import CheckpointRun, RunScore, TrajectoryResult, TrajectoryTask, describe_trajectory
from toys.evaluations import make_evaluation, write_evaluation
from toys.html_page import HOSTILE_TEXT, Page

CHECKPOINTS = ("step1", "step10", "step100")
BEFORE = {"rising": [20.0, 38.0, 40.0], "flat": [33.0, 34.0, 33.0], "zero": [0.0, 1.0, 2.0], "mine": [50.0, 51.0, 50.0]}
AFTER = {
    "rising": [[30.0, 40.0, 41.0], [32.0, 40.0, 39.0]],
    "flat": [[35.0, 45.0, 60.0], [35.0, 47.0, 62.0]],
    "zero": [[3.0, 3.0, 3.0], [3.0, 3.0, 3.0]],
    "mine": [[80.0, 82.0, 84.0], [80.0, 82.0, 84.0]],
}


def make_run(index, seed, instructed):
    values = BEFORE if seed is None else {task: seeds[seed] for task, seeds in AFTER.items()}
    shift = (3.0 if seed is None else 1.0) if instructed else 0.0
    scores = {task: scores[index] + shift * (-1) ** number for number, (task, scores) in enumerate(values.items())}
    return CheckpointRun(
        CHECKPOINTS[index],
        seed,
        instructed,
        {task: RunScore(score, score - 2, score + 2) for task, score in scores.items()},
    )


def make_result(instructed=True, **changes):
    formats = (False, True) if instructed else (False,)
    runs = [make_run(index, seed, each) for index in range(3) for seed in (None, 0, 1) for each in formats]
    tasks = {task: TrajectoryTask("sts", "spearman", 0.0) for task in BEFORE}
    arguments = {"adaptation": "lora", "trained_on": ("mine",), "key": "k", **changes}
    return TrajectoryResult("toy", CHECKPOINTS, tasks, tuple(runs), **arguments)


def test_gain_is_the_mean_over_seeds_minus_before():
    for task, gains in make_result().gain().items():
        expected = [np.mean([seed[i] for seed in AFTER[task]]) - BEFORE[task][i] for i in range(3)]
        assert gains == pytest.approx(dict(zip(CHECKPOINTS, expected, strict=True)))
    mean, deviation = make_result().after("rising")["step1"]
    assert (mean, deviation) == (31.0, pytest.approx(math.sqrt(2)))


def test_mean_ratio_leaves_out_trained_tasks_and_tiny_scores():
    result = make_result()
    ratios = [
        (np.mean([seed[i] for seed in AFTER[task]]) - BEFORE[task][i]) / BEFORE[task][i]
        for task in ("rising", "flat")
        for i in range(3)
    ]
    assert result.mean_ratio_of_change().ratios == pytest.approx(ratios)
    assert result.mean_ratio_of_change("step100").value == pytest.approx((ratios[2] + ratios[5]) / 2)
    assert make_result(trained_on=tuple(BEFORE)).mean_ratio_of_change() is None


def test_tasks_rise_or_are_flat_by_the_uncertainty_of_the_difference():
    learned = make_result().learned_when()
    assert {task: when.rises for task, when in learned.items()} == {
        "rising": True, "flat": False, "zero": False, "mine": False,
    }  # fmt: skip
    assert learned["rising"].checkpoint == 1  # 90 % of the rise from 20 to 40
    gains = make_result().gain()
    groups = make_result().group_gains()
    assert groups["rising"] == pytest.approx(gains["rising"])
    for name in CHECKPOINTS:
        assert groups["flat"][name] == pytest.approx(np.mean([gains[task][name] for task in ("flat", "zero", "mine")]))


def test_format_sensitivity_is_the_mean_absolute_change():
    assert make_result().format_sensitivity() == {name: {"before": 3.0, "after": 1.0} for name in CHECKPOINTS}
    assert make_result(instructed=False).format_sensitivity() == {}


def test_result_is_read_as_it_was_written(tmp_path):
    result = make_result()
    (tmp_path / "trajectory.json").write_text(json.dumps(result.to_json()), encoding="utf-8")
    assert TrajectoryResult.load(tmp_path) == TrajectoryResult.load(tmp_path / "trajectory.json") == result
    huge = result.to_json()
    huge["runs"][0]["scores"]["flat"][0] = 10**400
    for content in ("{", "[]", '{"kind": "trajectory"}', json.dumps(huge)):
        (tmp_path / "trajectory.json").write_text(content, encoding="utf-8")
        with pytest.raises(DataFileError, match=r"trajectory\.json"):
            TrajectoryResult.load(tmp_path)


def test_unfinished_result_describes_what_is_there():
    result = make_result()
    first = TrajectoryResult(**{**vars(result), "runs": result.runs[:1]})
    assert first.learned_when() == {} and first.gain()["flat"] == {} and first.mean_ratio_of_change() is None
    assert describe_trajectory(first) == ["Best mean before adaptation: checkpoint step1 with 25.8 points."]
    assert describe_trajectory(result)[0] == "Best mean after adaptation: checkpoint step100 with 47.0 points."


def test_report_on_a_trajectory_shows_it_and_not_its_evaluations(tmp_path):
    folder = tmp_path / "sweep"
    write_evaluation(folder / "evaluations", *make_evaluation("step1 before"))
    (folder / "trajectory.json").write_text(json.dumps(make_result().to_json()), encoding="utf-8")
    messages = []
    page = Page(api.report(folder, notify=messages.append))
    assert messages == ["1 trajectory"] and "Trajectory of toy" in page.text and "Leaderboard" not in page.text
    assert "Learned in pre-training: rising at step10." in page.text
    names = {file.name for file in (folder / "report").glob("*.png")}
    assert names == {"trajectory-toy-tasks.png", "trajectory-toy-gain.png"}
    markdown = (folder / "report" / "report.md").read_text(encoding="utf-8")
    assert "## Trajectory of toy" in markdown and "| rising | step1 | 20.0 | 31.0 (± 1.4) | +11.0 | 0.0 |" in markdown
    assert [file.name for file in make_result().plot(tmp_path / "plots")] == [
        "trajectory-tasks.png",
        "trajectory-gain.png",
    ]


def test_every_text_of_a_trajectory_is_escaped(tmp_path):
    document = make_result().to_json() | {"model": HOSTILE_TEXT, "adaptation": HOSTILE_TEXT}
    document = json.loads(json.dumps(document).replace("step10", json.dumps(HOSTILE_TEXT)[1:-1]))
    (tmp_path / "trajectory.json").write_text(json.dumps(document), encoding="utf-8")
    page = Page(api.report(tmp_path, tmp_path / "out"))
    assert HOSTILE_TEXT not in page.source and HOSTILE_TEXT in page.text
