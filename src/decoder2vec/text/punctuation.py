"""Text without its marks and capitals, and what must be done to each word to get the original back.

The learning task "punctuation restoration" reads the cleared text and says the edit of every word. Edits belong to
words, not to sub-words: lower-casing changes where a tokenizer cuts, so the two texts share no sub-words to compare.
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
"""The marks that are deleted. The published code forgets the opening single quote, U+2018; here it goes too."""

NO_LABEL = -1
"""The number of an edit that is too rare to be learned."""

_DELETE = dict.fromkeys(map(ord, MARKS))
_REACH = 3
"""Inner marks this near to the end are counted from there, so that I've and You've, 1,000 and 20,000 share an edit."""
_REMEMBERED = 100_000
"""Words come again and again, so the edits of the latest ones are kept."""

Kind = Literal["insert", "upper", "lower", "write"]


class Case(StrEnum):
    """The capitals of a whole word."""

    AS_IS = "as is"
    FIRST = "first letter"
    ALL = "all capitals"


class Change(NamedTuple):
    """One step inside a word; a negative place counts from the end, as in a Python list."""

    place: int
    kind: Kind
    text: str = ""
    """The marks to insert before the character at `place`, or what to write instead of it."""


@dataclass(frozen=True, slots=True, order=True)
class Edit:
    """What turns a cleared word into the original one: capitals first, then the inner changes, then marks around it."""

    before: str = ""
    """Marks in front, and stand-alone marks with a space behind each."""
    after: str = ""
    """Marks behind, and stand-alone marks with a space in front of each."""
    case: Case = Case.AS_IS
    changes: tuple[Change, ...] = ()

    def apply(self, word: str) -> str:
        """The word with this edit done. A change at a place that the word does not have is left out.

        So a model may choose any edit for any word.
        """
        pieces, size = _cased(word, self.case), len(word)
        for place, kind, text in self.changes:
            index = place if place >= 0 else size + place
            if 0 <= index < size:
                pieces[index] = _changed(word[index], pieces[index], kind, text)
        return self.before + "".join(pieces) + self.after


LEAVE = Edit()
"""The edit of a word that stays as it is."""


def clear(text: str) -> str:
    """The text in lower case, without marks, with single spaces; clearing it again changes nothing.

    Marks leave no space behind (don't becomes dont, 3.5 becomes 35), so a word that is only marks vanishes.
    """
    return " ".join(text.lower().translate(_DELETE).split())


def excerpts(sentences: Iterable[str], words: int = 150) -> Iterator[str]:
    """Whole sentences, packed in order into texts of at most that many words; a longer sentence stands alone."""
    if words < 1:
        raise InputError(f"An excerpt of {words} words holds nothing; give 1 or more.")
    packed: list[str] = []
    for sentence in sentences:
        more = sentence.split()
        if packed and len(packed) + len(more) > words:
            yield " ".join(packed)
            packed = []
        packed += more
    if packed:
        yield " ".join(packed)


def attached_words(text: str) -> list[str]:
    """The words of a text, one for each word of the cleared text.

    A stand-alone mark has no word of its own there. It is attached, behind a space, to the word before it, or to the
    first word where none stands before it. Text of nothing but marks has no word to attach them to and is refused:
    leave out what `clear` leaves empty.
    """
    found: list[str] = []
    leading: list[str] = []
    for word in text.split():
        if word.strip(MARKS):
            found.append(" ".join([*leading, word]))
            leading = []
        elif found:
            found[-1] += f" {word}"
        else:
            leading.append(word)
    if leading:
        raise InputError(f"{text[:60]!r} holds marks and no word; leave such texts out.")
    return found


def edits(original: str) -> tuple[list[str], list[Edit]]:
    """The words of the cleared text, and the edit that gives each one back."""
    found = [_cleared_and_edit(word) for word in attached_words(original)]
    return [cleared for cleared, _ in found], [edit for _, edit in found]


@dataclass(frozen=True)
class EditVocabulary:
    """The edits that a model learns, by number: 0 leaves the word alone, then the commonest first."""

    edits: tuple[Edit, ...]
    counts: tuple[int, ...]
    """How often each was seen."""
    least: int
    """How often an edit had to be seen to get a number."""
    rare_edits: int
    """How many different edits were seen less often; they have no number."""
    rare_words: int
    """How many words of the corpus needed one of those."""

    def __post_init__(self) -> None:
        if self.edits[:1] != (LEAVE,) or not len(set(self.edits)) == len(self.edits) == len(self.counts):
            raise InputError("Edits must be different, each with its count, and the first must leave the word alone.")

    @classmethod
    def from_texts(cls, texts: Iterable[str], least: int = 5) -> Self:
        """Count the edits of a corpus. Texts without a word are passed over; the order of the texts does not matter."""
        if least < 1:
            raise InputError(f"An edit cannot be seen at least {least} times; give 1 or more.")
        counts = Counter(edit for text in texts if clear(text) for edit in edits(text)[1])
        counts[LEAVE] += 0
        kept = [edit for edit, count in counts.items() if count >= least and edit != LEAVE]
        kept = [LEAVE, *sorted(kept, key=lambda edit: (-counts[edit], edit))]
        words = counts.total() - sum(counts[edit] for edit in kept)
        return cls(tuple(kept), tuple(counts[edit] for edit in kept), least, len(counts) - len(kept), words)

    def __len__(self) -> int:
        return len(self.edits)

    def number(self, edit: Edit) -> int:
        """The number of an edit, or NO_LABEL where it was too rare."""
        return self._numbers.get(edit, NO_LABEL)

    @cached_property
    def _numbers(self) -> dict[Edit, int]:
        return {edit: number for number, edit in enumerate(self.edits)}


@lru_cache(_REMEMBERED)
def _cleared_and_edit(word: str) -> tuple[str, Edit]:
    """One attached word: the capitals that explain most of it, and changes only for what they do not explain."""
    head, tail = len(word) - len(word.lstrip(MARKS + " ")), len(word.rstrip(MARKS + " "))
    before, core, after = word[:head], word[head:tail], word[tail:]
    cleared = clear(core)
    if core == cleared:
        return cleared, Edit(before, after)
    marks, wanted = _aligned(core)
    case = min(Case, key=lambda case: sum(a != b for a, b in zip(_cased(cleared, case), wanted, strict=True)))
    pieces, size = _cased(cleared, case), len(cleared)
    changes: list[Change] = []
    for index, (letter, piece, goal) in enumerate(zip(cleared, pieces, wanted, strict=True)):
        if piece != goal:
            kind: Kind = "upper" if goal == letter.upper() else "lower" if goal == letter else "write"
            changes.append(Change(_place(index, size, 0), kind, goal if kind == "write" else ""))
        if marks[index]:
            changes.append(Change(_place(index, size, _REACH), "insert", marks[index]))
    return cleared, Edit(before, after, case, tuple(changes))


def _aligned(core: str) -> tuple[list[str], list[str]]:
    """For each character of the cleared word: the marks in front of it, and what stood in its place.

    One character may become two in lower case (U+0130); then the first stands for it and the second for nothing.
    """
    marks, wanted, waiting = [], [], ""
    for character in core:
        if character in MARKS:
            waiting += character
            continue
        extra = len(character.lower()) - 1
        marks += [waiting, *[""] * extra]
        wanted += [character, *[""] * extra]
        waiting = ""
    return marks, wanted


def _cased(word: str, case: Case) -> list[str]:
    """The word's characters in that case; a list, since a capital may take more than one character."""
    pieces = list(word)
    if case is Case.ALL:
        return [piece.upper() for piece in pieces]
    if case is Case.FIRST:
        first = next((index for index, piece in enumerate(pieces) if piece.title() != piece), None)
        if first is not None:
            pieces[first] = pieces[first].title()
    return pieces


def _changed(letter: str, piece: str, kind: Kind, text: str) -> str:
    """A piece of the word after one change; `letter` is what stands there in the cleared word."""
    match kind:
        case "insert":
            return text + piece
        case "upper":
            return letter.upper()
        case "lower":
            return letter
        case "write":
            return text


def _place(index: int, size: int, reach: int) -> int:
    """The index counted from the nearer end of the word, or from its end wherever that is within reach."""
    return index - size if size - index <= max(index, reach) else index


Words = Sequence[str]


@dataclass(frozen=True)
class RestorationScore:
    """Counts of words over all examples, and what follows from them; 0 where nothing was there to divide by."""

    problems: int
    """Words that are different in source and target: what had to be done."""
    attempts: int
    """Words that are different in source and output: what was done."""
    hits: int
    """Attempts that are equal to the target."""
    mismatched: int
    """Examples whose output has another number of words: all their problems count as missed, nothing as attempted."""

    @property
    def precision(self) -> float:
        """The share of attempts that were right; mismatched examples have none, so it says nothing about them."""
        return self.hits / self.attempts if self.attempts else 0.0

    @property
    def recall(self) -> float:
        """The share of problems that were solved, those of mismatched examples included."""
        return self.hits / self.problems if self.problems else 0.0

    @property
    def f1(self) -> float:
        """The harmonic mean of precision and recall."""
        return 2 * self.hits / (self.attempts + self.problems) if self.attempts + self.problems else 0.0

    def rates(self) -> dict[str, float]:
        """The three shares by name, for a report."""
        return {name: round(getattr(self, name), 4) for name in ("precision", "recall", "f1")}


def score(
    source_words: Sequence[Words], output_words: Sequence[Words], target_words: Sequence[Words]
) -> RestorationScore:
    """Compare word by word, one list of words per example.

    Examples whose output has another length are kept: to drop them would flatter a model that loses words. A target
    of another length than its source is a fault of the data, not of the model, and refused.
    """
    problems = attempts = hits = mismatched = 0
    if not len(source_words) == len(output_words) == len(target_words):
        raise InputError(
            f"{len(source_words)} sources, {len(output_words)} outputs and {len(target_words)} targets; give as many."
        )
    for number, (source, output, target) in enumerate(zip(source_words, output_words, target_words, strict=True)):
        _check(number, source, output, target)
        problems += sum(a != c for a, c in zip(source, target, strict=True))
        if len(output) != len(source):
            mismatched += 1
            continue
        attempts += sum(a != b for a, b in zip(source, output, strict=True))
        hits += sum(a != b == c for a, b, c in zip(source, output, target, strict=True))
    return RestorationScore(problems, attempts, hits, mismatched)


def _check(number: int, source: Words, output: Words, target: Words) -> None:
    if any(isinstance(words, str) for words in (source, output, target)):
        raise InputError(f"Example {number} is a text, not a list of words; split it first.")
    if len(source) != len(target):
        raise InputError(
            f"Example {number} has {len(source)} words in the source and {len(target)} in the target; "
            "attach stand-alone marks to a word first."
        )
