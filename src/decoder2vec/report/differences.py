"""Paired bootstrap differences between any two encoders, for each task family and over all tasks."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from decoder2vec.maths.bootstrap import (
    SAMPLES,
    Difference,
    Floats,
    Scorer,
    average_precision_scorer,
    difference,
    mean_scorer,
    resample,
    spearman_scorer,
)
from decoder2vec.progress import current_progress
from decoder2vec.report.figures import format_signed
from decoder2vec.report.ranking import tasks_by_family
from decoder2vec.report.result_files import Evaluation, ItemResults

COMPARING = "comparing"
"""The phase of progress in which tasks are resampled."""
OVERALL = "overall"
_TOLERANCE = 0.1
"""Points by which a rounded score may differ from the score of its items."""
_MIN_ITEMS = 5
"""Fewer items do not predict results on other items."""


class _Resampled(NamedTuple):
    """The score of one encoder on one task, in points, and its scores on the bootstrap samples."""

    group: int
    """Encoders of one group have results on the same items."""
    score: float
    samples: Floats


class Differences:
    """The differences between encoders, which are referred to by their index in the list given.

    Args:
        evaluations: The encoders.
    """

    def __init__(self, evaluations: Sequence[Evaluation]) -> None:
        self._families = tasks_by_family(evaluations)
        self.notes: list[str] = []
        """Which scores could not be resampled, and why."""
        self._resampled: dict[str, dict[int, _Resampled]] = {}
        """By task and encoder."""
        tasks = [name for names in self._families.values() for name in names]
        with current_progress().phase(COMPARING, len(tasks)):
            for name in tasks:
                self._resampled[name] = self._resample(name, evaluations)
                current_progress().advance(1, name)

    def between(self, a: int, b: int, family: str = OVERALL) -> Difference | None:
        """The score of encoder `a` minus that of `b` on the tasks both have; None if there is no common task."""
        families = [family] if family != OVERALL else list(self._families)
        pairs = [pair for pair in (self._family_difference(a, b, name) for name in families) if pair]
        if not pairs:
            return None
        value = float(np.mean([value for value, _ in pairs]))
        return difference(value, np.mean([samples for _, samples in pairs], axis=0))

    def samples(self, a: int, b: int, task: str) -> tuple[Floats, Floats] | None:
        """[samples] scores of both encoders on the same bootstrap samples of a task; None without common items."""
        if not self._same_items(a, b, task):
            return None
        return self._resampled[task][a].samples, self._resampled[task][b].samples

    def tasks(self, a: int, b: int, family: str = OVERALL) -> list[str]:
        """The tasks that the difference between two encoders is computed over."""
        families = self._families if family == OVERALL else {family: self._families[family]}
        return [name for names in families.values() for name in names if self._same_items(a, b, name)]

    def _same_items(self, a: int, b: int, task: str) -> bool:
        scores = self._resampled.get(task, {})
        return a in scores and b in scores and scores[a].group == scores[b].group

    def _family_difference(self, a: int, b: int, family: str) -> tuple[float, Floats] | None:
        """The mean difference over the tasks of a family, and that of the samples; tasks are resampled separately."""
        tasks = [self._resampled[name] for name in self.tasks(a, b, family)]
        if not tasks:
            return None
        value = float(np.mean([scores[a].score - scores[b].score for scores in tasks]))
        return value, np.mean([scores[a].samples - scores[b].samples for scores in tasks], axis=0)

    def _resample(self, task: str, evaluations: Sequence[Evaluation]) -> dict[int, _Resampled]:
        resampled: dict[int, _Resampled] = {}
        for group, members in enumerate(self._groups_with_equal_items(task, evaluations)):
            items = [_items(evaluations[index], task) for index in members]
            score = _score_function(items, evaluations[members[0]].tasks[task].family)
            seed = zlib.crc32(task.encode())
            observed, samples = resample(score, len(items[0].values), samples=SAMPLES, seed=seed)
            for row, index in enumerate(members):
                if scale := _scale(float(observed[row]), evaluations[index].tasks[task].score):
                    resampled[index] = _Resampled(group, scale * float(observed[row]), scale * samples[row])
                else:
                    self.notes.append(
                        f"{evaluations[index].name}: the per-item results of {task} do not give its score, "
                        "so they are not used."
                    )
        return resampled

    def _groups_with_equal_items(self, task: str, evaluations: Sequence[Evaluation]) -> list[list[int]]:
        """Indices of the encoders with per-item results of a task, grouped by equal items."""
        groups: list[list[int]] = []
        for index, evaluation in enumerate(evaluations):
            if task not in evaluation.tasks or not np.isfinite(evaluation.tasks[task].score):
                continue
            items = evaluation.tasks[task].items
            problem = _problem(items)
            if items is None or problem:
                self.notes.append(f"{evaluation.name}: {problem} for {task}, so it is not compared on that task.")
                continue
            matching = (group for group in groups if _equal_items(_items(evaluations[group[0]], task), items))
            if (group := next(matching, None)) is None:
                groups.append([index])
            else:
                group.append(index)
        if len(groups) > 1:
            self.notes.append(
                f"{task}: {len(groups)} different versions of its data were used; "
                "only encoders with the same version are compared."
            )
        return groups


def describe_difference(result: Difference | None, a: str, b: str) -> str:
    """The difference between encoders `a` and `b` as a sentence."""
    if result is None:
        return f"{a} and {b} cannot be compared: they have no common task with per-item results."
    if result.value == result.low == result.high == 0:
        return f"{a} and {b} score the same."
    p = f"p\u00a0=\u00a0{result.p:.3f}"  # not broken over two lines, like the interval
    interval = f"[{result.low:.1f},\u00a0{result.high:.1f}]"
    if not result.significant:
        return f"No significant difference between {a} and {b}: {format_signed(result.value)} points {interval}, {p}."
    if result.value < 0:
        a, b, interval = b, a, f"[{-result.high:.1f},\u00a0{-result.low:.1f}]"
    return f"{a} is better than {b} by {abs(result.value):.1f} points {interval}, {p}."


def _problem(items: ItemResults | None) -> str:
    """Why per-item results cannot be resampled, or an empty string."""
    if items is None:
        return "no per-item results"
    if not items.usable:
        return "per-item results that are not finite"
    return f"only {len(items.values)} items" if len(items.values) < _MIN_ITEMS else ""


def _items(evaluation: Evaluation, task: str) -> ItemResults:
    items = evaluation.tasks[task].items
    assert items is not None
    return items


def _equal_items(a: ItemResults, b: ItemResults) -> bool:
    """Whether both are results on the same items, judged by their count and human scores."""
    if a.gold is None or b.gold is None:
        return a.gold is b.gold and len(a.values) == len(b.values)
    return np.array_equal(a.gold, b.gold)


def _score_function(items: Sequence[ItemResults], family: str) -> Scorer:
    values, gold = np.stack([result.values for result in items]), items[0].gold
    if gold is None:
        return mean_scorer(values)
    return spearman_scorer(values, gold) if family == "sts" else average_precision_scorer(values, gold)


def _scale(observed: float, score: float) -> float | None:
    """The factor from the score of the items to the points of the file; None if neither 100 nor 1 fits."""
    return next((scale for scale in (100.0, 1.0) if abs(scale * observed - score) <= _TOLERANCE), None)
