"""Rank encoders: means by task family, the order of the leaderboard, and the Pareto front of quality against cost."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from decoder2vec.report.result_files import COSTS, Evaluation

_FAMILIES = {
    "sts": "STS",
    "retrieval": "Retrieval",
    "reranking": "Reranking",
    "pair_classification": "Pair classification",
    "clustering": "Clustering",
    "classification": "Classification",
}
"""In the order of the columns; other families follow by name."""
_TUNING_SETS = ("-dev", "-train", "-all")
"""Endings of the names of tuning sets; `d2v eval` leaves them out of its means too."""


@dataclass(frozen=True)
class Mean:
    """A mean in points over the tasks of a family that an encoder has a score for."""

    value: float
    n_scored: int
    n_tasks: int
    """Tasks that any encoder of the report was evaluated on."""

    @property
    def complete(self) -> bool:
        """Whether it is over all tasks: only such means can be ranked."""
        return self.n_scored == self.n_tasks > 0


@dataclass(frozen=True)
class RankedEncoder:
    """One row of the leaderboard."""

    evaluation: Evaluation
    overall: Mean
    """The mean over the means of the families."""
    families: dict[str, Mean]

    @property
    def name(self) -> str:
        """The name of the encoder."""
        return self.evaluation.name


def family_name(family: str) -> str:
    """The name of a task family for a heading."""
    return _FAMILIES.get(family) or " ".join(family.split("_")).capitalize()


def tasks_by_family(evaluations: Sequence[Evaluation]) -> dict[str, list[str]]:
    """The tasks of each family that any encoder was evaluated on, families in the order of the columns."""
    tasks: dict[str, list[str]] = {}
    for evaluation in evaluations:
        for task in evaluation.tasks.values():
            if task.name not in tasks.setdefault(task.family, []):
                tasks[task.family].append(task.name)
    order = list(_FAMILIES)
    return dict(sorted(tasks.items(), key=lambda item: (order.index(item[0]) if item[0] in order else 99, item[0])))


def drop_tuning_sets(evaluations: Sequence[Evaluation]) -> tuple[list[Evaluation], list[str]]:
    """The evaluations without tuning sets, and the names of those; if there is nothing else, nothing is dropped."""
    names = {name for evaluation in evaluations for name in evaluation.tasks}
    dropped = sorted(name for name in names if name.endswith(_TUNING_SETS))
    if len(dropped) == len(names):
        return list(evaluations), []
    remaining = [
        replace(evaluation, tasks={name: task for name, task in evaluation.tasks.items() if name not in dropped})
        for evaluation in evaluations
    ]
    return remaining, dropped


def rank_encoders(evaluations: Sequence[Evaluation]) -> list[RankedEncoder]:
    """The leaderboard, best first; encoders that lack tasks come after those that have them all."""
    tasks = tasks_by_family(evaluations)
    return sorted((_with_means(evaluation, tasks) for evaluation in evaluations), key=_sort_key)


def _with_means(evaluation: Evaluation, tasks: dict[str, list[str]]) -> RankedEncoder:
    means = {family: _family_mean(evaluation, names) for family, names in tasks.items()}
    values = [mean.value for mean in means.values() if mean.n_scored]
    overall = Mean(
        float(np.mean(values)) if values else math.nan,
        sum(mean.n_scored for mean in means.values()),
        sum(mean.n_tasks for mean in means.values()),
    )
    return RankedEncoder(evaluation, overall, means)


def _family_mean(evaluation: Evaluation, names: Sequence[str]) -> Mean:
    """The mean over the tasks with a finite score."""
    scores = [evaluation.tasks[name].score for name in names if name in evaluation.tasks]
    finite = [score for score in scores if math.isfinite(score)]
    return Mean(float(np.mean(finite)) if finite else math.nan, len(finite), len(names))


def _sort_key(row: RankedEncoder) -> tuple[bool, int, float, str]:
    value = row.overall.value
    return not row.overall.complete, -row.overall.n_scored, -value if math.isfinite(value) else math.inf, row.name


def known_costs(rows: Sequence[RankedEncoder]) -> list[str]:
    """The kinds of cost that are known of any encoder with a score."""
    costs = [row.evaluation.cost for row in rows if math.isfinite(row.overall.value)]
    return [kind for kind in COSTS if any(kind in cost for cost in costs)]


def pareto_front(rows: Sequence[RankedEncoder], cost: str, more_is_better: bool) -> list[int]:
    """Indices of the rows that no other row beats in quality without costing more, cheapest first.

    Rows with missing tasks or an unknown cost take no part; of equal rows all stay.

    Args:
        rows: The leaderboard.
        cost: A key of `Evaluation.cost`.
        more_is_better: Whether a larger value is the cheaper one, as of tokens per second.
    """
    sign = -1.0 if more_is_better else 1.0
    points = {
        index: (sign * row.evaluation.cost[cost], row.overall.value)
        for index, row in enumerate(rows)
        if row.overall.complete and cost in row.evaluation.cost
    }
    front = [
        index
        for index, point in points.items()
        if not any(
            other[0] <= point[0] and other[1] >= point[1] and other != point  # as cheap, as good, and not the same
            for other in points.values()
        )
    ]
    return sorted(front, key=lambda index: points[index])
