"""Words and the phrases made of them: where they stand in a text, and how often in many."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Container, Iterable, Iterator
from dataclasses import dataclass
from functools import cache

from decoder2vec.errors import InputError

LONGEST = 4
"""Words of the longest phrase that is counted; longer ones hardly ever come twice."""

Word = tuple[str, int, int]
"""The word in its plain form, and where it begins and ends in the text as it was given."""

# What may stand between two words of one phrase. A hyphen parts words, so "dose-response", "dose–response" and
# "dose response" are one concept, as in ConceptNet, and "state-of-the-art" is four words. Any other sign ends the
# phrase: "cell membrane" does not stand in "in the cell. Membrane proteins".
_BETWEEN = re.compile(r"\s+|[-\u2010\u2011\u2013]")


@dataclass(frozen=True)
class ConceptCounts:
    """How often each phrase occurs in a corpus."""

    counts: Counter[str]
    words: int
    """Words of the corpus, against which a count must be seen."""


def count_concepts(texts: Iterable[str], longest: int = LONGEST, among: Container[str] | None = None) -> ConceptCounts:
    """Count the phrases of 1 to `longest` words, also where they overlap; only those `among` some if given.

    Without `among` every phrase of the corpus is kept in memory, which is many times more than its words.
    """
    if isinstance(texts, str):
        raise InputError("A corpus is many texts, not one string; give a list of texts or read_texts(file).")
    if longest < 1:
        raise InputError(f"Phrases of at most {longest} words are none; give 1 or more.")
    counts: Counter[str] = Counter()
    words = 0
    for text in texts:
        for run in word_runs(text):
            plain = [word for word, _, _ in run]
            words += len(plain)
            for length in range(1, min(longest, len(plain)) + 1):
                phrases = map(" ".join, zip(*(plain[start:] for start in range(length)), strict=False))
                counts.update(phrases if among is None else filter(among.__contains__, phrases))
    return ConceptCounts(counts, words)


def concept_name(text: str) -> str | None:
    """The one form in which a concept is kept: plain words with a space between; None if other signs are in it."""
    run = next(word_runs(text), None)
    if run is None or (run[0][1], run[-1][2]) != (len(text) - len(text.lstrip()), len(text.rstrip())):
        return None
    return " ".join(word for word, _, _ in run)


def word_runs(text: str) -> Iterator[list[Word]]:
    """The words of a text, in runs within which a phrase may stand.

    Words are found in the text as it is and made plain one by one: to lower the whole text first would move the
    places behind a letter such as "İ", which becomes two.
    """
    run: list[Word] = []
    end = 0
    for match in _word().finditer(text):
        between = text[end : match.start()]
        if run and between != " " and not _BETWEEN.fullmatch(between):  # nearly always a space: quicker to ask first
            yield run
            run = []
        start, end = match.span()
        run.append((_plain(match.group()), start, end))
    if run:
        yield run


def _plain(word: str) -> str:
    """Lower-cased, and the same whether an accent is written as part of the letter or behind it."""
    lower = word.lower()
    return lower if lower.isascii() else unicodedata.normalize("NFC", lower).replace("’", "'")


@cache
def _word() -> re.Pattern[str]:
    """Letters and digits of any script, with the marks that belong to them.

    An apostrophe or underscore between letters is part of the word: "don't", "alzheimer's" and "snake_case" are one
    word each, as no one wants the "t" or the "case" of them; the price is that "cell's" is not the word "cell".
    Scripts without spaces come out as one long word: cut such texts into words first.
    """
    # Python's \w knows no combining marks, but Hindi vowels and decomposed accents are such; no script has any beyond
    # this range. Two more signs join or part letters within a Persian or Hindi word.
    marks = "".join(sign for sign in map(chr, range(0x300, 0x20000)) if unicodedata.category(sign).startswith("M"))
    marks += "\u200c\u200d"
    # The look ahead is for speed: the class of marks is a long one, and most words end before a space.
    return re.compile(rf"[^\W_]+(?:['’_][^\W_]+|(?=[^\x00-\u02ff])[{marks}]+[^\W_]*)*+")
