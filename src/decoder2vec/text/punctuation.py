"""Punctuation restoration: texts without punctuation and capitals, the edits that restore each word, and their score.

The objective "punctuation" reads the stripped text and predicts the edit of every word. Edits belong to words, not to
sub-words: lower-casing changes where a tokenizer splits, so the two texts have no sub-words in common to compare.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property, lru_cache
from typing import Literal, NamedTuple, Self

from decoder2vec.errors import InputError

MARKS = ",.!?'\"\u2018\u2019\u201c\u201d"
"""The punctuation marks that are removed. The published code misses the opening single quote, U+2018; it is here."""

NO_LABEL = -1
"""The label of an edit that is too rare to be learned."""

_DELETE = dict.fromkeys(map(ord, MARKS))
_SUFFIX_LENGTH = 3
"""Marks this near to the end of a word are counted from there, so that I've and You've, 1,000 and 20,000 share an
edit."""
_CACHE_SIZE = 100_000
"""Words repeat, so the edits of the most recent ones are cached."""

ChangeKind = Literal["insert", "upper", "lower", "write"]


class Case(StrEnum):
    """The capitals of a whole word."""

    UNCHANGED = "as is"
    FIRST = "first letter"
    ALL = "all capitals"


class Change(NamedTuple):
    """One change inside a word; a negative position counts from the end, as in a Python list."""

    position: int
    kind: ChangeKind
    text: str = ""
    """The marks to insert before the character at `position`, or what to write instead of it."""


@dataclass(frozen=True, slots=True, order=True)
class Edit:
    """What turns a stripped word into the original: first its case, then the changes inside, then marks around it."""

    before: str = ""
    """Marks in front of the word, and stand-alone marks with a space behind each."""
    after: str = ""
    """Marks behind the word, and stand-alone marks with a space in front of each."""
    case: Case = Case.UNCHANGED
    changes: tuple[Change, ...] = ()

    def apply(self, word: str) -> str:
        """Return the edited word. Changes at positions that the word does not have are ignored.

        So a model may predict any edit for any word.
        """
        pieces, size = _apply_case(word, self.case), len(word)
        for position, kind, text in self.changes:
            index = position if position >= 0 else size + position
            if 0 <= index < size:
                pieces[index] = _apply_change(word[index], pieces[index], kind, text)
        return self.before + "".join(pieces) + self.after


KEEP = Edit()
"""The edit that leaves a word unchanged."""


def strip_punctuation(text: str) -> str:
    """Return the text in lower case, without punctuation marks and with single spaces; idempotent.

    Marks are removed without leaving a space (don't becomes dont, 3.5 becomes 35), so a word of only marks vanishes.
    """
    return " ".join(text.lower().translate(_DELETE).split())


def pack_sentences(sentences: Iterable[str], max_words: int = 150) -> Iterator[str]:
    """Join consecutive sentences into texts of at most `max_words` words; a longer sentence stays alone."""
    if max_words < 1:
        raise InputError(f"A text cannot have at most {max_words} words; give 1 or more.")
    packed: list[str] = []
    for sentence in sentences:
        words = sentence.split()
        if packed and len(packed) + len(words) > max_words:
            yield " ".join(packed)
            packed = []
        packed += words
    if packed:
        yield " ".join(packed)


def aligned_words(text: str) -> list[str]:
    """Return the original words of a text, one for each word of the stripped text.

    A stand-alone mark vanishes from the stripped text. It is attached, behind a space, to the word before it, or to the
    first word where there is none before it.

    Raises:
        InputError: The text consists only of marks; skip texts for which `strip_punctuation` returns nothing.
    """
    words: list[str] = []
    leading_marks: list[str] = []
    for word in text.split():
        if word.strip(MARKS):
            words.append(" ".join([*leading_marks, word]))
            leading_marks = []
        elif words:
            words[-1] += f" {word}"
        else:
            leading_marks.append(word)
    if leading_marks:
        raise InputError(f"{text[:60]!r} holds marks and no word; leave such texts out.")
    return words


def word_edits(original: str) -> tuple[list[str], list[Edit]]:
    """Return the words of the stripped text, and the edit that restores each one."""
    pairs = [_strip_word(word) for word in aligned_words(original)]
    return [stripped for stripped, _ in pairs], [edit for _, edit in pairs]


@dataclass(frozen=True)
class EditVocabulary:
    """The edits that a model learns, by index: 0 keeps the word, the others follow by descending frequency."""

    edits: tuple[Edit, ...]
    counts: tuple[int, ...]
    """How often each edit occurs in the corpus."""
    min_count: int
    """How often an edit must occur to be in the vocabulary."""
    rare_edits: int
    """Number of different edits that are too rare for the vocabulary."""
    rare_words: int
    """Number of words of the corpus that need one of the rare edits."""

    def __post_init__(self) -> None:
        if self.edits[:1] != (KEEP,) or not len(set(self.edits)) == len(self.edits) == len(self.counts):
            raise InputError(
                "Edits must be different, each with its count, and the first must keep the word unchanged."
            )

    @classmethod
    def from_texts(cls, texts: Iterable[str], min_count: int = 5) -> Self:
        """Count the edits of a corpus. Texts without a word are skipped; the order of the texts does not matter."""
        if min_count < 1:
            raise InputError(f"min_count must be 1 or more, not {min_count}.")
        counts = Counter(edit for text in texts if strip_punctuation(text) for edit in word_edits(text)[1])
        counts[KEEP] += 0
        frequent = [edit for edit, count in counts.items() if count >= min_count and edit != KEEP]
        edits = [KEEP, *sorted(frequent, key=lambda edit: (-counts[edit], edit))]
        rare_words = counts.total() - sum(counts[edit] for edit in edits)
        return cls(tuple(edits), tuple(counts[edit] for edit in edits), min_count, len(counts) - len(edits), rare_words)

    def __len__(self) -> int:
        return len(self.edits)

    def index(self, edit: Edit) -> int:
        """Return the index of an edit, or NO_LABEL if it is too rare."""
        return self._indices.get(edit, NO_LABEL)

    @cached_property
    def _indices(self) -> dict[Edit, int]:
        return {edit: index for index, edit in enumerate(self.edits)}


Words = Sequence[str]


@dataclass(frozen=True)
class RestorationScore:
    """Counts of words over all examples, and the rates that follow; a rate is 0 where its denominator is 0."""

    problems: int
    """Words that differ between source and target: what has to be restored."""
    attempts: int
    """Words that differ between source and output: what the model changed."""
    hits: int
    """Attempts that are equal to the target."""
    mismatched: int
    """Examples whose output has another number of words: all their problems count as missed, nothing as attempted."""

    @property
    def precision(self) -> float:
        """Share of attempts that are right; mismatched examples have no attempts, so it does not cover them."""
        return self.hits / self.attempts if self.attempts else 0.0

    @property
    def recall(self) -> float:
        """Share of problems that are solved, those of mismatched examples included."""
        return self.hits / self.problems if self.problems else 0.0

    @property
    def f1(self) -> float:
        """Harmonic mean of precision and recall."""
        return 2 * self.hits / (self.attempts + self.problems) if self.attempts + self.problems else 0.0

    def rates(self) -> dict[str, float]:
        """Precision, recall and F1 by name, for a report."""
        return {name: round(getattr(self, name), 4) for name in ("precision", "recall", "f1")}


def score_restoration(
    source_words: Sequence[Words], output_words: Sequence[Words], target_words: Sequence[Words]
) -> RestorationScore:
    """Compare the output of a model with the target, word by word.

    Examples whose output has another number of words are not dropped, which would favour a model that loses words. But
    a target of another length than its source is an error of the data and raises `InputError`.

    Args:
        source_words: Words of each stripped text.
        output_words: Words of each text that the model restored.
        target_words: Words of each original text.
    """
    problems = attempts = hits = mismatched = 0
    if not len(source_words) == len(output_words) == len(target_words):
        raise InputError(
            f"{len(source_words)} sources, {len(output_words)} outputs and {len(target_words)} targets; give the same "
            "number of each."
        )
    for index, (source, output, target) in enumerate(zip(source_words, output_words, target_words, strict=True)):
        _check_example(index, source, output, target)
        problems += sum(a != c for a, c in zip(source, target, strict=True))
        if len(output) != len(source):
            mismatched += 1
            continue
        attempts += sum(a != b for a, b in zip(source, output, strict=True))
        hits += sum(a != b == c for a, b, c in zip(source, output, target, strict=True))
    return RestorationScore(problems, attempts, hits, mismatched)


def _check_example(index: int, source: Words, output: Words, target: Words) -> None:
    if any(isinstance(words, str) for words in (source, output, target)):
        raise InputError(f"Example {index} is a text, not a list of words; split it first.")
    if len(source) != len(target):
        raise InputError(
            f"Example {index} has {len(source)} words in the source and {len(target)} in the target; "
            "attach stand-alone marks to a word first."
        )


@lru_cache(_CACHE_SIZE)
def _strip_word(word: str) -> tuple[str, Edit]:
    """Strip one aligned word: choose the case that explains most of it, and add changes for the rest."""
    head, tail = len(word) - len(word.lstrip(MARKS + " ")), len(word.rstrip(MARKS + " "))
    before, core, after = word[:head], word[head:tail], word[tail:]
    stripped = strip_punctuation(core)
    if core == stripped:
        return stripped, Edit(before, after)
    marks, originals = _align_characters(core)
    case = min(Case, key=lambda case: sum(a != b for a, b in zip(_apply_case(stripped, case), originals, strict=True)))
    pieces, size = _apply_case(stripped, case), len(stripped)
    changes: list[Change] = []
    for index, (letter, piece, original) in enumerate(zip(stripped, pieces, originals, strict=True)):
        if piece != original:
            kind: ChangeKind = "upper" if original == letter.upper() else "lower" if original == letter else "write"
            changes.append(Change(_position(index, size, 0), kind, original if kind == "write" else ""))
        if marks[index]:
            changes.append(Change(_position(index, size, _SUFFIX_LENGTH), "insert", marks[index]))
    return stripped, Edit(before, after, case, tuple(changes))


def _align_characters(core: str) -> tuple[list[str], list[str]]:
    """For each character of the stripped word: the marks in front of it, and the original character.

    One character may become two in lower case (U+0130); then the first is aligned with it and the second with nothing.
    """
    marks, originals, pending = [], [], ""
    for character in core:
        if character in MARKS:
            pending += character
            continue
        extra = len(character.lower()) - 1
        marks += [pending, *[""] * extra]
        originals += [character, *[""] * extra]
        pending = ""
    return marks, originals


def _apply_case(word: str, case: Case) -> list[str]:
    """The word's characters in that case; a list, because a capital may take more than one character."""
    pieces = list(word)
    if case is Case.ALL:
        return [piece.upper() for piece in pieces]
    if case is Case.FIRST:
        first = next((index for index, piece in enumerate(pieces) if piece.title() != piece), None)
        if first is not None:
            pieces[first] = pieces[first].title()
    return pieces


def _apply_change(letter: str, piece: str, kind: ChangeKind, text: str) -> str:
    """A piece of the word after one change; `letter` is the character of the stripped word at this position."""
    match kind:
        case "insert":
            return text + piece
        case "upper":
            return letter.upper()
        case "lower":
            return letter
        case "write":
            return text


def _position(index: int, size: int, suffix_length: int) -> int:
    """The index counted from the nearer end of the word, or from its end if it is within `suffix_length` of it."""
    return index - size if size - index <= max(index, suffix_length) else index
