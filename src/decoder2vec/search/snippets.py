"""What of a chunk is shown: its best sentence, marked, and as much around it as there is room for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from decoder2vec.search.ranking import Dense
from decoder2vec.search.store import Vectors
from decoder2vec.text.bm25 import words_of
from decoder2vec.text.sentences import sentence_spans

_ROOM = 300
"""Characters of a snippet."""

Span = tuple[int, int]


@dataclass(frozen=True)
class Snippet:
    """A stretch of a chunk, and in it the sentence that says best what was asked: `text[start:end]`."""

    text: str
    start: int
    end: int

    def marked(self, before: str = "**", after: str = "**", quote: Callable[[str], str] = str) -> str:
        """The snippet with marks around the best sentence; `quote` is put over all text, such as `html.escape`."""
        parts = self.text[: self.start], self.text[self.start : self.end], self.text[self.end :]
        return f"{quote(parts[0])}{before}{quote(parts[1])}{after}{quote(parts[2])}"


def snippets(query: str, texts: Sequence[str], encode: Callable[[list[str], str], Vectors]) -> list[Snippet]:
    """For each text the part that answers the query.

    The best sentence is the one that shares most words with the query, rare ones counting more. Where no sentence
    shares any, it is the one whose meaning is nearest: only then `encode(texts, role)` is called, once for all texts.
    """
    spans = [sentence_spans(text) or [(0, len(text))] for text in texts]
    best = [_by_words(query, text, places) for text, places in zip(texts, spans, strict=True)]
    unknown = [row for row, place in enumerate(best) if place is None]
    by_meaning = dict(zip(unknown, _by_meaning(query, texts, spans, unknown, encode), strict=True))
    return [
        _around(text, places, by_meaning[row] if place is None else place)
        for row, (text, places, place) in enumerate(zip(texts, spans, best, strict=True))
    ]


def _by_words(query: str, text: str, spans: Sequence[Span]) -> int | None:
    if len(spans) == 1:
        return 0
    asked = set(words_of([query])[0])
    shared = [asked & set(words) for words in words_of([text[begin:end] for begin, end in spans])]
    often = Counter(word for words in shared for word in words)
    scores = [sum(1 / often[word] for word in words) for words in shared]
    return int(np.argmax(scores)) if often else None


def _by_meaning(
    query: str,
    texts: Sequence[str],
    spans: Sequence[Sequence[Span]],
    rows: Sequence[int],
    encode: Callable[[list[str], str], Vectors],
) -> list[int]:
    if not rows:
        return []
    pieces = {row: [texts[row][begin:end] for begin, end in spans[row]] for row in rows}
    vectors = encode([piece for row in rows for piece in pieces[row]], "document")
    asked = encode([query], "query")
    best, done = [], 0
    for row in rows:
        count = len(pieces[row])
        near = Dense([str(place) for place in range(count)], vectors[done : done + count], "cosine")
        best.append(int(near.search(asked, 1)[0][0][0]))
        done += count
    return best


def _around(text: str, spans: Sequence[Span], place: int) -> Snippet:
    """The sentence, then those behind and before it while there is room."""
    begin, end = spans[place]
    if end - begin > _ROOM:
        cut = text.rfind(" ", begin + 1, begin + _ROOM)
        end = cut if cut > 0 else begin + _ROOM
        return Snippet(text[begin:end] + " …", 0, end - begin)
    first, last = place, place
    while last + 1 < len(spans) and spans[last + 1][1] - spans[first][0] <= _ROOM:
        last += 1
    while first > 0 and spans[last][1] - spans[first - 1][0] <= _ROOM:
        first -= 1
    shift = spans[first][0]
    return Snippet(text[shift : spans[last][1]], begin - shift, end - shift)
