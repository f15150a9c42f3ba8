"""Target tasks: examples of texts or spans with labels or scores, in splits to train, to choose and to test on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from decoder2vec.activations.spans import TextSpan
from decoder2vec.errors import DataFileError, InputError
from decoder2vec.maths.metrics import spearman
from decoder2vec.text.files import read_rows, text_problem
from decoder2vec.text.tokens import Span

KINDS = ("classification", "regression", "tagging", "span pair")
NEGATIVE_LABELS = ("none", "o", "0", "false")
"""Labels of tags and span pairs, in lower case, that stand for nothing found: F1 leaves them out."""
_GENDERS = {
    **dict.fromkeys(("she", "her", "hers"), "feminine"),
    **dict.fromkeys(("he", "him", "his"), "masculine"),
}
_HELD_OUT = 5
"""Of this many texts, one is for validation and one for the test, where there is no file for them."""


class Example(NamedTuple):
    """One example of a target task."""

    units: tuple[TextSpan, ...]
    """What is read by the sources: one text or span, or the two of a pair."""
    target: str | float
    """A label, or a score for regression."""
    group: str = ""
    """Its part of the test set that is scored by itself, such as the gender of the pronoun."""


@dataclass(frozen=True)
class Split:
    """Some examples of a task, as indices."""

    units: NDArray[np.intp]
    """[example, 1 or 2] indices of `TargetTask.units`."""
    targets: NDArray[np.float64]
    """[example] scores, or indices of `TargetTask.labels`; -1 for a label that no training example has."""
    groups: tuple[str, ...]
    """[example]"""

    def __len__(self) -> int:
        return len(self.targets)


@dataclass(frozen=True)
class TargetTask:
    """A target task with its three splits."""

    name: str
    kind: str
    """One of KINDS."""
    units: tuple[TextSpan, ...]
    """All different texts or spans."""
    labels: tuple[str, ...]
    """Empty for regression."""
    train: Split
    valid: Split
    test: Split

    @classmethod
    def of(
        cls,
        name: str,
        kind: str,
        train: Sequence[Example],
        valid: Sequence[Example] | None = None,
        test: Sequence[Example] | None = None,
    ) -> TargetTask:
        """Build a task; splits that are not given are held out of the training examples, by text.

        Raises:
            InputError: A split is too small, or its labels or scores are all equal.
        """
        if kind not in KINDS:
            raise InputError(f"A target task is one of {', '.join(KINDS)}, not {kind!r}.")
        examples = dict(zip(("train", "valid", "test"), _complete(train, valid, test), strict=True))
        for split, rows in examples.items():
            if len({example.target for example in rows}) < 2:
                raise InputError(
                    f"{name} has {len(rows)} {split} examples and fewer than two different labels or scores among "
                    "them; give more data."
                )
        units = tuple(dict.fromkeys(unit for rows in examples.values() for example in rows for unit in example.units))
        labels = () if kind == "regression" else tuple(sorted({str(each.target) for each in examples["train"]}))
        index_of = {unit: index for index, unit in enumerate(units)}
        splits = {split: _split(rows, index_of, labels) for split, rows in examples.items()}
        return cls(name, kind, units, labels, **splits)

    @property
    def metric(self) -> str:
        """Name of the score: spearman, f1 where a label stands for nothing found, else accuracy."""
        if self.kind == "regression":
            return "spearman"
        return "f1" if self._negative is not None else "accuracy"

    @property
    def _negative(self) -> int | None:
        """Index of the label that stands for nothing found, of tags and span pairs."""
        if self.kind not in ("tagging", "span pair"):
            return None
        return next((index for index, label in enumerate(self.labels) if label.lower() in NEGATIVE_LABELS), None)

    def score(self, split: Split, predicted: NDArray[Any]) -> float:
        """Return the score x 100 of [example] predicted scores or label indices."""
        if self.kind == "regression":
            return 100 * spearman(predicted, split.targets)
        if self._negative is None:
            return 100 * float((predicted == split.targets).mean())
        return 100 * f1(split.targets, predicted, self._negative)

    def score_groups(self, split: Split, predicted: NDArray[Any]) -> dict[str, float]:
        """Return the score x 100 of each group of examples; empty if there are no groups."""
        groups = np.array(split.groups)
        scores = {}
        for group in sorted(set(split.groups) - {""}):
            rows = np.flatnonzero(groups == group)
            part = Split(split.units[rows], split.targets[rows], tuple(groups[rows]))
            scores[group] = self.score(part, predicted[rows])
        return scores

    def n_texts(self) -> int:
        """Number of different texts."""
        return len({unit.text for unit in self.units})

    def describe(self) -> dict[str, Any]:
        """Plain data for JSON."""
        sizes = {split: len(getattr(self, split)) for split in ("train", "valid", "test")}
        return {"name": self.name, "kind": self.kind, "metric": self.metric, "labels": len(self.labels), **sizes}


def f1(gold: NDArray[Any], predicted: NDArray[Any], negative: int) -> float:
    """Return F1 of all labels but the negative one together; for two labels this is GAP's official rule.

    A positive example with the wrong positive label is wrong and missed.
    """
    n_correct = int(((gold == predicted) & (gold != negative)).sum())
    return 2 * n_correct / max(1, int((gold != negative).sum() + (predicted != negative).sum()))


def _complete(
    train: Sequence[Example], valid: Sequence[Example] | None, test: Sequence[Example] | None
) -> tuple[Sequence[Example], Sequence[Example], Sequence[Example]]:
    """The three splits; a missing one is a fifth of the texts of the training examples, drawn at random."""
    texts = list(dict.fromkeys(each.units[0].text for each in train))
    order = np.random.default_rng(0).permutation(len(texts))
    part_of = {texts[index]: position % _HELD_OUT for position, index in enumerate(order)}

    def part(*parts: int) -> list[Example]:
        return [each for each in train if part_of[each.units[0].text] in parts]

    held_out = ({0} if valid is None else set()) | ({1} if test is None else set())
    return (
        part(*set(range(_HELD_OUT)) - held_out),
        part(0) if valid is None else valid,
        part(1) if test is None else test,
    )


def _split(rows: Sequence[Example], index_of: Mapping[TextSpan, int], labels: Sequence[str]) -> Split:
    label_index = {label: index for index, label in enumerate(labels)}
    targets = [float(row.target) if not labels else label_index.get(str(row.target), -1) for row in rows]
    units = [[index_of[unit] for unit in row.units] for row in rows]
    return Split(np.array(units, np.intp), np.array(targets, np.float64), tuple(row.group for row in rows))


# --- files ----------------------------------------------------------------------------------------------------------


def read_task(
    train: str | Path, valid: str | Path | None = None, test: str | Path | None = None, *, limit: int | None = None
) -> TargetTask:
    """Read a target task; its kind is that of the columns of the training file.

    Columns: text, label (classification); sentence1, sentence2, score (regression); tokens, tags (tagging, .jsonl);
    text, start1, end1, start2, end2, label (span pair); those of GAP (span pair).

    Args:
        train: Examples to train on.
        valid: Examples to choose on; without a file, a fifth of the training texts.
        test: Examples to report on; without a file, a fifth of the training texts.
        limit: Use at most this many texts of each file, evenly spaced.

    Raises:
        DataFileError: A file has other columns, or a line that cannot be used.
    """
    if limit is not None and limit < 10:
        raise InputError(f"A limit of {limit} texts leaves too little to learn from; give 10 or more.")
    read = {file: read_examples(file) for file in (train, valid, test) if file is not None}
    kind = read[train][0]
    for file, (other, _) in read.items():
        if other != kind:
            raise DataFileError(f"{file} holds {other} data, but {train} {kind} data; give files of one kind.")
    train_rows, *others = (None if file is None else _limit(read[file][1], limit) for file in (train, valid, test))
    return TargetTask.of(Path(train).name.split(".")[0], kind, train_rows or [], *others)


def read_examples(file: str | Path) -> tuple[str, list[Example]]:
    """Return the kind of the task and its examples.

    Raises:
        DataFileError: The file has other columns, or a line that cannot be used.
    """
    kind, parse, examples = "", None, list[Example]()
    for line, row in read_rows(file):
        if parse is None:
            kind, parse = _layout(file, row)
        try:
            examples += parse(row)
        except InputError as error:
            raise DataFileError(f"{file}, line {line}: {error}") from None
        except KeyError as error:
            raise DataFileError(f"{file}, line {line}: there is no {error.args[0]}.") from None
    if not examples:
        raise DataFileError(f"{file} holds no usable row.")
    return kind, examples


def _layout(file: str | Path, row: Mapping[str, Any]) -> tuple[str, Any]:
    """Kind of the task, and what parses a row, by the columns."""
    for kind, parse, columns in _LAYOUTS:
        if set(columns) <= row.keys():
            return kind, parse
    known = "; ".join(f"{', '.join(columns)} ({kind})" for kind, _, columns in _LAYOUTS)
    raise DataFileError(f"{file} has the columns {', '.join(row)}; rename them to one of: {known}.")


def _parse_text(row: Mapping[str, Any]) -> list[Example]:
    return [Example((TextSpan(_text(row, "text")),), _label(row["label"]))]


def _parse_pair(row: Mapping[str, Any]) -> list[Example]:
    try:
        score = float(row["score"])
    except (TypeError, ValueError):
        score = float("nan")
    if not np.isfinite(score):
        raise InputError(f"the score {row['score']!r} is not a finite number.")
    return [Example((TextSpan(_text(row, "sentence1")), TextSpan(_text(row, "sentence2"))), score)]


def _parse_tags(row: Mapping[str, Any]) -> list[Example]:
    tokens, tags = row["tokens"], row["tags"]
    if not isinstance(tokens, list) or not isinstance(tags, list) or len(tokens) != len(tags):
        raise InputError("tokens and tags are two lists of the same length, in a .jsonl file.")
    if not all(isinstance(token, str) and token.strip() for token in tokens):
        raise InputError("every token is a word with at least one character.")
    text = " ".join(tokens)
    ends = np.cumsum([len(token) + 1 for token in tokens]) - 1
    return [
        Example((TextSpan(text, (int(end) - len(token), int(end))),), _label(tag))
        for token, tag, end in zip(tokens, tags, ends, strict=True)
    ]


def _parse_spans(row: Mapping[str, Any]) -> list[Example]:
    text = _text(row, "text")
    spans = [_span(text, row[f"start{side}"], row[f"end{side}"]) for side in (1, 2)]
    return [Example((TextSpan(text, spans[0]), TextSpan(text, spans[1])), _label(row["label"]))]


def _parse_gap(row: Mapping[str, Any]) -> list[Example]:
    """The two pairs of a row of GAP: the pronoun with A and with B, each coreferent or not."""
    text = _text(row, "Text")
    pronoun = _mention(text, row, "Pronoun")
    gender = _GENDERS.get(row["Pronoun"].lower())
    if gender is None:
        raise InputError(f"{row['Pronoun']!r} is not one of the pronouns {', '.join(sorted(_GENDERS))}.")
    examples = []
    for name in ("A", "B"):
        label = str(row[f"{name}-coref"]).upper()
        if label not in ("TRUE", "FALSE"):
            raise InputError(f"{name}-coref is TRUE or FALSE, not {row[f'{name}-coref']!r}.")
        units = (TextSpan(text, pronoun), TextSpan(text, _mention(text, row, name)))
        examples.append(Example(units, str(int(label == "TRUE")), gender))
    return examples


_LAYOUTS = (  # the first one whose columns are present is used
    ("span pair", _parse_gap, ("Text", "Pronoun", "Pronoun-offset", "A", "A-offset", "A-coref")),
    ("span pair", _parse_spans, ("text", "start1", "end1", "start2", "end2", "label")),
    ("tagging", _parse_tags, ("tokens", "tags")),
    ("regression", _parse_pair, ("sentence1", "sentence2", "score")),
    ("classification", _parse_text, ("text", "label")),
)


def _text(row: Mapping[str, Any], column: str) -> str:
    if problem := text_problem(column, row[column]):
        raise InputError(problem)
    return str(row[column])


def _label(value: Any) -> str:
    is_missing = value is None or value != value or not str(value).strip()  # NaN is not equal to itself
    if isinstance(value, list | dict) or is_missing:
        raise InputError(f"the label {value!r} is not a word or number.")
    return str(value).strip()


def _span(text: str, start: Any, end: Any) -> Span:
    if not all(str(value).strip().isdecimal() for value in (start, end)):
        raise InputError("start and end of a span are numbers of characters.")
    span = int(start), int(end)
    if not span[0] < span[1] <= len(text):
        raise InputError(f"the span {span[0]}-{span[1]} is not inside the text of {len(text)} characters.")
    return span


def _mention(text: str, row: Mapping[str, Any], column: str) -> Span:
    words, start = _text(row, column), row[f"{column}-offset"]
    span = _span(text, start, int(start) + len(words) if str(start).isdecimal() else "")
    if text[slice(*span)] != words:
        raise InputError(f"{column} is {words!r}, but the text has {text[slice(*span)]!r} at character {start}.")
    return span


def _limit(rows: Sequence[Example], limit: int | None) -> list[Example]:
    """The examples of at most `limit` texts, evenly spaced."""
    texts = list(dict.fromkeys(row.units[0].text for row in rows))
    if limit is None or limit >= len(texts):
        return list(rows)
    kept = {texts[index] for index in np.linspace(0, len(texts) - 1, limit).round().astype(int)}
    return [row for row in rows if row.units[0].text in kept]
