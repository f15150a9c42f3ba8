"""Means, order and Pareto front against plain loops."""

from __future__ import annotations

import itertools
import math
from pathlib import Path

import numpy as np
import pytest

from decoder2vec.report.ranking import drop_tuning_sets, pareto_front, rank_encoders, tasks_by_family
from decoder2vec.report.result_files import Evaluation, TaskScore


def make_encoder(name, scores, cost=None):
    """scores: {(family, task): points}."""
    tasks = {task: TaskScore(task, family, "m", score) for (family, task), score in scores.items()}
    return Evaluation(name, Path(name), tasks=tasks, cost=cost or {})


def test_overall_mean_is_over_families_not_tasks():
    scores = {("sts", "a"): 80.0, ("sts", "b"): 60.0, ("retrieval", "c"): 30.0}
    (row,) = rank_encoders([make_encoder("x", scores)])
    assert row.families["sts"].value == 70.0 and row.overall.value == 50.0
    assert row.overall.complete and (row.overall.n_scored, row.overall.n_tasks) == (3, 3)


def test_encoders_with_missing_tasks_come_last():
    complete = {("sts", "a"): 50.0, ("retrieval", "b"): 50.0}
    rows = rank_encoders(
        [
            make_encoder("partial", {("sts", "a"): 99.0}),
            make_encoder("nan", {("sts", "a"): math.nan, ("retrieval", "b"): 90.0}),
            make_encoder("worse", {key: score - 10 for key, score in complete.items()}),
            make_encoder("better", complete),
        ]
    )
    assert [row.name for row in rows] == ["better", "worse", "partial", "nan"]
    assert [row.overall.complete for row in rows] == [True, True, False, False]
    assert (rows[2].families["retrieval"].n_scored, rows[2].families["retrieval"].n_tasks) == (0, 1)
    assert rows[3].families["sts"].n_scored == 0 and rows[3].overall.value == 90.0


def test_known_families_come_first_in_fixed_order():
    tasks = [("zeta", "z"), ("classification", "c"), ("sts", "s"), ("alpha", "y"), ("retrieval", "r")]
    assert list(tasks_by_family([make_encoder("x", dict.fromkeys(tasks, 1.0))])) == [
        "sts",
        "retrieval",
        "classification",
        "alpha",
        "zeta",
    ]


@pytest.mark.parametrize("more_is_better", [True, False])
def test_pareto_front_has_every_unbeaten_encoder(more_is_better):
    rng = np.random.default_rng(0)
    for _ in range(50):
        values = rng.integers(1, 6, (7, 2))  # small numbers: ties are common
        rows = rank_encoders(
            [make_encoder(str(n), {("sts", "a"): float(q)}, {"it": float(c)}) for n, (c, q) in enumerate(values)]
        )
        points = [(row.evaluation.cost["it"], row.overall.value) for row in rows]

        def beats(a, b):
            cheaper = a[0] >= b[0] if more_is_better else a[0] <= b[0]
            return cheaper and a[1] >= b[1] and a != b

        expected = {
            n for n, point in enumerate(points) if not any(beats(other, point) for other in points if other != point)
        }
        front = pareto_front(rows, "it", more_is_better)
        assert set(front) == expected
        assert all(points[a][1] <= points[b][1] for a, b in itertools.pairwise(front))


def test_missing_tasks_or_costs_exclude_from_the_front():
    complete = {("sts", "a"): 50.0, ("sts", "b"): 50.0}
    rows = rank_encoders(
        [
            make_encoder("priced", complete, {"it": 5.0}),
            make_encoder("not priced", {key: 90.0 for key in complete}),
            make_encoder("partial", {("sts", "a"): 99.0}, {"it": 1.0}),
        ]
    )
    assert [rows[n].name for n in pareto_front(rows, "it", False)] == ["priced"]
    assert pareto_front(rows, "other", False) == []


def test_tuning_sets_are_dropped_unless_there_is_nothing_else():
    both = make_encoder("x", {("sts", "stsb-dev"): 90.0, ("sts", "stsb-test"): 70.0})
    remaining, dropped = drop_tuning_sets([both])
    assert (list(remaining[0].tasks), dropped) == (["stsb-test"], ["stsb-dev"])
    only = make_encoder("x", {("sts", "stsb-dev"): 90.0})
    assert drop_tuning_sets([only]) == ([only], [])
