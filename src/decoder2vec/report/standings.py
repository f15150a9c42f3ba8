"""Who stands where: means by family of tasks, the order of the encoders, and who is not beaten at its cost."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from decoder2vec.report.result_files import Evaluation

_FAMILIES = {
    "sts": "STS",
    "retrieval": "Retrieval",
    "reranking": "Reranking",
    "pair_classification": "Pair classification",
    "clustering": "Clustering",
    "classification": "Classification",
}
"""In the order of the columns; others follow by their names."""
_TUNING = ("-dev", "-train", "-all")
"""How the names of files end that one chooses on; `d2v eval` leaves them out of its means too."""


@dataclass(frozen=True)
class Mean:
    """A mean in points, over some of the tasks that any encoder here was given."""

    value: float
    have: int
    of: int

    @property
    def complete(self) -> bool:
        """Over all tasks: only such means can be ranked."""
        return self.have == self.of > 0


@dataclass(frozen=True)
class Standing:
    """One row of the leaderboard."""

    evaluation: Evaluation
    overall: Mean
    """Of the means of the families."""
    families: dict[str, Mean]

    @property
    def name(self) -> str:
        """The encoder's."""
        return self.evaluation.name


def family_name(family: str) -> str:
    """A family as people write it."""
    return _FAMILIES.get(family) or " ".join(family.split("_")).capitalize()


def families(evaluations: Sequence[Evaluation]) -> dict[str, list[str]]:
    """The tasks of each family that any encoder was given."""
    found: dict[str, list[str]] = {}
    for one in evaluations:
        for task in one.tasks.values():
            if task.name not in found.setdefault(task.family, []):
                found[task.family].append(task.name)
    known = list(_FAMILIES)
    return dict(sorted(found.items(), key=lambda item: (known.index(item[0]) if item[0] in known else 99, item[0])))


def without_tuning(evaluations: Sequence[Evaluation]) -> tuple[list[Evaluation], list[str]]:
    """The evaluations without the files one chooses on, and the names of those; where nothing else is, with them."""
    names = {name for one in evaluations for name in one.tasks}
    dropped = sorted(name for name in names if name.endswith(_TUNING))
    if len(dropped) == len(names):
        return list(evaluations), []
    kept = [{name: task for name, task in one.tasks.items() if name not in dropped} for one in evaluations]
    return [replace(one, tasks=tasks) for one, tasks in zip(evaluations, kept, strict=True)], dropped


def standings(evaluations: Sequence[Evaluation]) -> list[Standing]:
    """The leaderboard, best first; encoders that lack tasks come after those that have them all."""
    tasks = families(evaluations)
    return sorted((_standing(one, tasks) for one in evaluations), key=_place)


def _standing(one: Evaluation, tasks: dict[str, list[str]]) -> Standing:
    means = {family: _mean(one, names) for family, names in tasks.items()}
    values = [mean.value for mean in means.values() if mean.have]
    overall = Mean(
        float(np.mean(values)) if values else math.nan,
        sum(mean.have for mean in means.values()),
        sum(mean.of for mean in means.values()),
    )
    return Standing(one, overall, means)


def _mean(one: Evaluation, names: Sequence[str]) -> Mean:
    """Over the tasks it has a score for; one that is not a number is none."""
    scores = [one.tasks[name].score for name in names if name in one.tasks]
    known = [score for score in scores if math.isfinite(score)]
    return Mean(float(np.mean(known)) if known else math.nan, len(known), len(names))


def _place(one: Standing) -> tuple[bool, int, float, str]:
    value = one.overall.value
    return not one.overall.complete, -one.overall.have, -value if math.isfinite(value) else math.inf, one.name


def pareto_front(rows: Sequence[Standing], cost: str, more_is_better: bool) -> list[int]:
    """The rows that no other beats in quality without costing more, from cheap to dear.

    Only rows whose mean is over all tasks and whose cost is known take part; of equal ones all stay.
    """
    sign = -1.0 if more_is_better else 1.0
    points = {
        number: (sign * row.evaluation.cost[cost], row.overall.value)
        for number, row in enumerate(rows)
        if row.overall.complete and cost in row.evaluation.cost
    }
    front = [
        number
        for number, (price, quality) in points.items()
        if not any(
            other <= price and better >= quality and (other, better) != (price, quality)
            for other, better in points.values()
        )
    ]
    return sorted(front, key=lambda number: points[number])
