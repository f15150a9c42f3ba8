"""Labelled pairs: two texts in their order and a label, from files or memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from pathlib import Path

from decoder2vec.errors import DataFileError, InputError
from decoder2vec.text.files import read_rows, text_problem

PAIR_COLUMNS = (("text1", "text2"), ("premise", "hypothesis"), ("sentence1", "sentence2"))
"""Columns of the two texts; the third column is `label`."""
_MIN_TO_SPLIT = 20
_HOLD_OUT_EVERY = 10


@dataclass(frozen=True)
class LabelledPairs:
    """Ordered pairs of texts with one label each."""

    first: tuple[str, ...]
    second: tuple[str, ...]
    labels: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.labels)

    def counts(self) -> dict[str, int]:
        """Number of pairs of each label, in the order of their names."""
        return dict(sorted(Counter(self.labels).items()))

    def texts(self) -> list[str]:
        """Unique texts in order of appearance."""
        return list(dict.fromkeys([*self.first, *self.second]))

    def select(self, rows: Sequence[int]) -> LabelledPairs:
        """The pairs of some rows."""
        return LabelledPairs(*(tuple(side[row] for row in rows) for side in (self.first, self.second, self.labels)))

    def split_dev(self) -> tuple[LabelledPairs, LabelledPairs]:
        """Set every tenth pair of each label aside; returns the others and these. A single pair of a label stays.

        Pairs of the same two texts, also in the other order, are on the same side: else dev would be known in advance.
        """
        if len(self) < _MIN_TO_SPLIT:
            raise InputError(f"There are {len(self)} labelled pairs, too few to set some aside; give more, or --dev.")
        both = [frozenset(pair) for pair in zip(self.first, self.second, strict=True)]
        is_dev = _every_tenth(both, self.labels)
        if not any(is_dev):  # pairs of a few texts only
            is_dev = _every_tenth(range(len(self)), self.labels)
        rows = range(len(self))
        return self.select([row for row in rows if not is_dev[row]]), self.select([row for row in rows if is_dev[row]])


def _every_tenth(groups: Sequence[Hashable], labels: Sequence[str]) -> list[bool]:
    """Whether each row is set aside: rows of a group are together, and every label has others that are not."""
    of_label: Counter[str] = Counter()
    is_dev: dict[Hashable, bool] = {}
    for group, label in zip(groups, labels, strict=True):
        if group not in is_dev:
            of_label[label] += 1
            is_dev[group] = of_label[label] % _HOLD_OUT_EVERY == 2
    learned = {label for group, label in zip(groups, labels, strict=True) if not is_dev[group]}
    for group, label in zip(groups, labels, strict=True):
        if label not in learned:  # all its rows belong to groups of others
            is_dev[group] = False
    return [is_dev[group] for group in groups]


def read_labelled_pairs(files: Sequence[Path]) -> LabelledPairs:
    """Read .tsv, .csv or .jsonl files of labelled pairs.

    Args:
        files: Columns text1, text2 (or premise, hypothesis, or sentence1, sentence2) and label.

    Raises:
        DataFileError: A column is missing, or a field is no text; the line is named.
    """
    rows: list[tuple[str, str, str]] = []
    for file in files:
        for line, row in read_rows(file):
            names = next((names for names in PAIR_COLUMNS if set(names) <= row.keys()), None)
            if names is None or "label" not in row:
                raise DataFileError(
                    f"{file} has the columns {', '.join(map(str, row))}; labelled pairs have text1, text2 and label."
                )
            for name in names:
                if problem := text_problem(name, row[name]):
                    raise DataFileError(f"{file}, line {line}: {problem}")
            label = row["label"]
            if isinstance(label, bool | list | dict) or label is None or not str(label).strip():
                raise DataFileError(f"{file}, line {line}: the label is {label!r}, not a word or number.")
            rows.append((row[names[0]], row[names[1]], str(label).strip()))
    if not rows:
        raise DataFileError(f"{', '.join(map(str, files))} holds no labelled pair.")
    first, second, labels = zip(*rows, strict=True)
    return LabelledPairs(first, second, labels)
