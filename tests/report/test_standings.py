"""Means, order and the Pareto front against plain loops."""

from __future__ import annotations

import itertools
import math
from pathlib import Path

import numpy as np
import pytest

from decoder2vec.report.result_files import Evaluation, Task
from decoder2vec.report.standings import families, pareto_front, standings, without_tuning


def an_encoder(name, scores, cost=None):
    """scores: {(family, task): points}."""
    tasks = {task: Task(task, family, "m", score) for (family, task), score in scores.items()}
    return Evaluation(name, Path(name), tasks=tasks, cost=cost or {})


def test_the_mean_is_over_families_and_not_over_tasks():
    scores = {("sts", "a"): 80.0, ("sts", "b"): 60.0, ("retrieval", "c"): 30.0}
    (row,) = standings([an_encoder("x", scores)])
    assert row.families["sts"].value == 70.0 and row.overall.value == 50.0
    assert row.overall.complete and (row.overall.have, row.overall.of) == (3, 3)


def test_encoders_without_some_tasks_come_last_and_say_so():
    whole = {("sts", "a"): 50.0, ("retrieval", "b"): 50.0}
    rows = standings(
        [
            an_encoder("part", {("sts", "a"): 99.0}),
            an_encoder("nan", {("sts", "a"): math.nan, ("retrieval", "b"): 90.0}),
            an_encoder("worse", {key: score - 10 for key, score in whole.items()}),
            an_encoder("better", whole),
        ]
    )
    assert [row.name for row in rows] == ["better", "worse", "part", "nan"]
    assert [row.overall.complete for row in rows] == [True, True, False, False]
    assert (rows[2].families["retrieval"].have, rows[2].families["retrieval"].of) == (0, 1)
    assert rows[3].families["sts"].have == 0 and rows[3].overall.value == 90.0


def test_families_have_their_usual_order_and_new_ones_follow():
    given = [("zeta", "z"), ("classification", "c"), ("sts", "s"), ("alpha", "y"), ("retrieval", "r")]
    assert list(families([an_encoder("x", dict.fromkeys(given, 1.0))])) == [
        "sts",
        "retrieval",
        "classification",
        "alpha",
        "zeta",
    ]


@pytest.mark.parametrize("more_is_better", [True, False])
def test_the_front_is_what_no_other_beats(more_is_better):
    rng = np.random.default_rng(0)
    for _ in range(50):
        points = rng.integers(1, 6, (7, 2))  # small numbers: ties are common
        rows = standings(
            [an_encoder(str(n), {("sts", "a"): float(q)}, {"it": float(c)}) for n, (c, q) in enumerate(points)]
        )
        places = [(row.evaluation.cost["it"], row.overall.value) for row in rows]

        def beats(one, other):
            cheaper = one[0] >= other[0] if more_is_better else one[0] <= other[0]
            return cheaper and one[1] >= other[1] and one != other

        expected = {
            n for n, place in enumerate(places) if not any(beats(other, place) for other in places if other != place)
        }
        front = pareto_front(rows, "it", more_is_better)
        assert set(front) == expected
        assert all(places[a][1] <= places[b][1] for a, b in itertools.pairwise(front))


def test_who_lacks_a_task_or_a_price_takes_no_part_in_the_front():
    whole = {("sts", "a"): 50.0, ("sts", "b"): 50.0}
    rows = standings(
        [
            an_encoder("priced", whole, {"it": 5.0}),
            an_encoder("not priced", {key: 90.0 for key in whole}),
            an_encoder("part", {("sts", "a"): 99.0}, {"it": 1.0}),
        ]
    )
    assert [rows[n].name for n in pareto_front(rows, "it", False)] == ["priced"]
    assert pareto_front(rows, "other", False) == []


def test_files_one_chooses_on_are_left_out_unless_there_is_nothing_else():
    both = an_encoder("x", {("sts", "stsb-dev"): 90.0, ("sts", "stsb-test"): 70.0})
    kept, dropped = without_tuning([both])
    assert (list(kept[0].tasks), dropped) == (["stsb-test"], ["stsb-dev"])
    only = an_encoder("x", {("sts", "stsb-dev"): 90.0})
    assert without_tuning([only]) == ([only], [])
