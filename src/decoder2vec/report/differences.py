"""Is A really better than B? Every two encoders, on each family of tasks and on all of them."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence

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
from decoder2vec.report.html import signed
from decoder2vec.report.result_files import Evaluation, Items
from decoder2vec.report.standings import families

OVERALL = "overall"
_CLOSE = 0.1
"""Points by which a score may differ from the one its items give: it was rounded."""
_FEW = 5
"""Fewer items than these say nothing about what other items would give."""


class Differences:
    """The differences between encoders, by their numbers in the list given."""

    def __init__(
        self, evaluations: Sequence[Evaluation], on_progress: Callable[[str], object] = lambda _: None
    ) -> None:
        self._families = families(evaluations)
        self.notes: list[str] = []
        """Which scores could not be drawn again, and why."""
        self._drawn: dict[str, dict[int, tuple[int, float, Floats]]] = {}
        """By task and encoder: which encoders have the same items, the score, and the scores of the draws."""
        for names in self._families.values():
            for name in names:
                self._drawn[name] = self._draw(name, evaluations)
                on_progress(name)

    def between(self, one: int, other: int, family: str = OVERALL) -> Difference | None:
        """How much encoder `one` is above `other` on the tasks both have; None where nothing can be compared."""
        chosen = [family] if family != OVERALL else list(self._families)
        parts = [part for part in (self._family(one, other, name) for name in chosen) if part]
        if not parts:
            return None
        return difference(float(np.mean([value for value, _ in parts])), np.mean([drawn for _, drawn in parts], axis=0))

    def tasks(self, one: int, other: int, family: str = OVERALL) -> list[str]:
        """The tasks that a difference is taken over."""
        chosen = self._families if family == OVERALL else {family: self._families[family]}
        return [name for names in chosen.values() for name in names if self._same_items(one, other, name)]

    def _same_items(self, one: int, other: int, task: str) -> bool:
        drawn = self._drawn[task]
        return one in drawn and other in drawn and drawn[one][0] == drawn[other][0]

    def _family(self, one: int, other: int, family: str) -> tuple[float, Floats] | None:
        """The mean over the tasks of a family: the difference and its draws. Tasks are drawn one by one."""
        drawn = [self._drawn[name] for name in self.tasks(one, other, family)]
        if not drawn:
            return None
        values = [task[one][1] - task[other][1] for task in drawn]
        return float(np.mean(values)), np.mean([task[one][2] - task[other][2] for task in drawn], axis=0)

    def _draw(self, task: str, evaluations: Sequence[Evaluation]) -> dict[int, tuple[int, float, Floats]]:
        found: dict[int, tuple[int, float, Floats]] = {}
        for group, members in enumerate(self._with_equal_items(task, evaluations)):
            items = [_items(evaluations[number], task) for number in members]
            family = evaluations[members[0]].tasks[task].family
            score, size = _score(items, family), len(items[0].values)
            observed, drawn = resample(score, size, samples=SAMPLES, seed=zlib.crc32(task.encode()))
            for row, number in enumerate(members):
                if scale := _scale(float(observed[row]), evaluations[number].tasks[task].score):
                    found[number] = group, scale * float(observed[row]), scale * drawn[row]
                else:
                    self.notes.append(
                        f"{evaluations[number].name}: the items of {task} do not give its score, so they are not used."
                    )
        return found

    def _with_equal_items(self, task: str, evaluations: Sequence[Evaluation]) -> list[list[int]]:
        """The encoders that have items of a task, those with the same ones together."""
        groups: list[list[int]] = []
        for number, one in enumerate(evaluations):
            if task not in one.tasks or not np.isfinite(one.tasks[task].score):
                continue
            own = one.tasks[task].items
            if own is None or (why := _trouble(own)):
                why = "no results of single items" if own is None else why
                self.notes.append(f"{one.name}: {why} for {task}, so it is not compared there.")
                continue
            same = (group for group in groups if _alike(_items(evaluations[group[0]], task), own))
            if (group := next(same, None)) is None:
                groups.append([number])
            else:
                group.append(number)
        if len(groups) > 1:
            self.notes.append(f"{task}: {len(groups)} different files of it were used; only equal ones are compared.")
        return groups


def _trouble(items: Items) -> str:
    if not items.usable:
        return "items that are not numbers"
    return f"only {len(items.values)} items" if len(items.values) < _FEW else ""


def _items(one: Evaluation, task: str) -> Items:
    items = one.tasks[task].items
    assert items is not None
    return items


def _alike(one: Items, other: Items) -> bool:
    """Are these results of the same items, as far as can be seen: as many of them, with the same human scores?"""
    if one.gold is None or other.gold is None:
        return one.gold is other.gold and len(one.values) == len(other.values)
    return np.array_equal(one.gold, other.gold)


def _score(items: Sequence[Items], family: str) -> Scorer:
    values, gold = np.stack([own.values for own in items]), items[0].gold
    if gold is None:
        return mean_scorer(values)
    return spearman_scorer(values, gold) if family == "sts" else average_precision_scorer(values, gold)


def _scale(observed: float, score: float) -> float | None:
    """What turns the score of the items into the points of the file; None if nothing does."""
    return next((scale for scale in (100.0, 1.0) if abs(scale * observed - score) <= _CLOSE), None)


def said(found: Difference | None, one: str, other: str) -> str:
    """A difference as a sentence."""
    if found is None:
        return f"{one} and {other} cannot be compared: they share no task with results of single items."
    if found.value == found.low == found.high == 0:
        return f"{one} and {other} score the same."
    interval, chance = f"[{found.low:.1f}, {found.high:.1f}]", f"p\u00a0=\u00a0{found.p:.3f}"  # on one line
    if not found.significant:
        return (
            f"No difference between {one} and {other} that this data can show: "
            f"{signed(found.value)} points {interval}, {chance}."
        )
    if found.value < 0:
        one, other, interval = other, one, f"[{-found.high:.1f}, {-found.low:.1f}]"
    return f"{one} is better than {other} by {abs(found.value):.1f} points {interval}, {chance}."
