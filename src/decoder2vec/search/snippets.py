"""The excerpt of a chunk that a search shows: its best sentence, and as many sentences around it as fit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from decoder2vec.search.ranking import DenseSearch
from decoder2vec.search.store import Embeddings
from decoder2vec.text.bm25 import tokenise_queries, tokenise_words
from decoder2vec.text.sentences import sentence_spans

_MAX_CHARACTERS = 300

Span = tuple[int, int]
"""Start and end offset in a text."""


@dataclass(frozen=True)
class Snippet:
    """An excerpt of a chunk; `text[start:end]` is the sentence that answers the query best."""

    text: str
    start: int
    end: int

    def marked(self, before: str = "**", after: str = "**", escape: Callable[[str], str] = str) -> str:
        """Return the excerpt with its best sentence marked.

        Args:
            before: Inserted before the best sentence.
            after: Inserted after it.
            escape: Applied to all text of the chunk, such as `html.escape`.
        """
        pieces = self.text[: self.start], self.text[self.start : self.end], self.text[self.end :]
        return f"{escape(pieces[0])}{before}{escape(pieces[1])}{after}{escape(pieces[2])}"


def make_snippets(query: str, texts: Sequence[str], encode: Callable[[list[str], str], Embeddings]) -> list[Snippet]:
    """Return the excerpt of each text that answers the query.

    The best sentence is the one that shares most words with the query, rare words counting more. Where no sentence
    shares a word, it is the one whose vector is nearest.

    Args:
        query: The query.
        texts: Texts of the chunks.
        encode: Function of texts and a role, "query" or "document"; called only if some text shares no word, and then
            once for all such texts.
    """
    spans = [sentence_spans(text) or [(0, len(text))] for text in texts]
    best = [_best_by_words(query, text, text_spans) for text, text_spans in zip(texts, spans, strict=True)]
    rows = [row for row, sentence in enumerate(best) if sentence is None]
    nearest = dict(zip(rows, _best_by_vectors(query, texts, spans, rows, encode), strict=True))
    return [
        _excerpt(text, text_spans, nearest[row] if sentence is None else sentence)
        for row, (text, text_spans, sentence) in enumerate(zip(texts, spans, best, strict=True))
    ]


def _best_by_words(query: str, text: str, spans: Sequence[Span]) -> int | None:
    if len(spans) == 1:
        return 0
    query_words = set(tokenise_queries([query])[0])
    shared = [query_words & set(words) for words in tokenise_words([text[start:end] for start, end in spans])]
    sentences_with = Counter(word for words in shared for word in words)
    scores = [sum(1 / sentences_with[word] for word in words) for words in shared]
    return int(np.argmax(scores)) if sentences_with else None


def _best_by_vectors(
    query: str,
    texts: Sequence[str],
    spans: Sequence[Sequence[Span]],
    rows: Sequence[int],
    encode: Callable[[list[str], str], Embeddings],
) -> list[int]:
    if not rows:
        return []
    sentences = {row: [texts[row][start:end] for start, end in spans[row]] for row in rows}
    vectors = encode([sentence for row in rows for sentence in sentences[row]], "document")
    query_vector = encode([query], "query")
    best, offset = [], 0
    for row in rows:
        count = len(sentences[row])
        keys = [str(index) for index in range(count)]
        sentence_search = DenseSearch(keys, vectors[offset : offset + count], "cosine")
        best.append(int(sentence_search.search(query_vector, 1)[0][0][0]))
        offset += count
    return best


def _excerpt(text: str, spans: Sequence[Span], best: int) -> Snippet:
    """Extend the best sentence by those after it, then by those before it, up to the maximum length."""
    start, end = spans[best]
    if end - start > _MAX_CHARACTERS:
        cut = text.rfind(" ", start + 1, start + _MAX_CHARACTERS)
        end = cut if cut > 0 else start + _MAX_CHARACTERS
        return Snippet(text[start:end] + " …", 0, end - start)
    first, last = best, best
    while last + 1 < len(spans) and spans[last + 1][1] - spans[first][0] <= _MAX_CHARACTERS:
        last += 1
    while first > 0 and spans[last][1] - spans[first - 1][0] <= _MAX_CHARACTERS:
        first -= 1
    offset = spans[first][0]
    return Snippet(text[offset : spans[last][1]], start - offset, end - offset)
