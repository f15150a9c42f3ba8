"""Shuffled texts with masked spans, and the target that puts them right: the examples of DEPTH.

Every sentence is one block: a sentence token with a random label, the words, and the token that ends it. Spans of words
are each replaced by one sentinel, and the blocks may be shuffled. The target names the sentences in their true order by
their labels, each with its sentinels and what they replace.

Labels and sentinels are drawn without replacement, and spans are drawn after shuffling: nothing but the words says
which sentence was first.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from decoder2vec.text.tokens import Tokeniser


class SentenceIds(Protocol):
    """Ids of the tokens that mark sentences and masked spans."""

    @property
    def first_id(self) -> int:
        """Id of the first sentence token."""

    @property
    def count(self) -> int:
        """Number of sentence tokens."""

    @property
    def end_id(self) -> int:
        """Id of the token that ends a sentence."""

    @property
    def n_sentinels(self) -> int:
        """Number of sentinels, whose ids follow `end_id`."""


@dataclass(frozen=True)
class ShuffledText:
    """A text as it is read, and the target behind it."""

    source: list[int] = field(default_factory=list)
    sentences: list[int] = field(default_factory=list)
    """Number of the sentence of each token of the source, from 1, in the order in which they are read."""
    target: list[int] = field(default_factory=list)
    order: list[int] = field(default_factory=list)
    """Position in the source of the sentence token of each sentence, in the true order."""


def mark_sentences(
    sentences: Sequence[Sequence[int]], labels: Sequence[int], ids: SentenceIds, start: Sequence[int], end: int
) -> ShuffledText:
    """The blocks of sentences one after the other, without a target.

    Args:
        sentences: Tokens of each sentence, sentinels included.
        labels: Which sentence token each of them gets.
        ids: Ids of the sentence tokens.
        start: Tokens in front of the text, such as BOS; they belong to the first sentence.
        end: The token that ends the text; it belongs to the last sentence.

    """
    text = ShuffledText()
    text.source.extend([*start, ids.end_id])
    for label, words in zip(labels, sentences, strict=True):
        text.order.append(len(text.source))
        text.source.extend([ids.first_id + label, *words, ids.end_id])
        text.sentences.extend([len(text.order)] * (len(text.source) - len(text.sentences)))
    text.source.append(end)
    text.sentences.append(len(text.order))
    return text


def outer_tokens(tokenise: Tokeniser) -> tuple[frozenset[int], tuple[int, ...]]:
    """The ids of all special tokens, and the special tokens that stand before every text."""
    special = frozenset(tokenise.backbone.tokenizer.all_special_ids)
    return special, tuple(takewhile(special.__contains__, tokenise(["a"]).prompts[0].ids))


@dataclass(frozen=True)
class Shuffling:
    """How texts are shuffled and masked.

    Args:
        ids: Ids of the sentence tokens and sentinels.
        end: The token that ends a text.
        start: Tokens in front of a text, such as BOS.
        mask_rate: Share of the tokens that is masked.
        span: Mean number of tokens of a masked span.

    """

    ids: SentenceIds
    end: int
    start: tuple[int, ...] = ()
    mask_rate: float = 0.3
    span: float = 3.0

    def __call__(
        self, sentences: Sequence[Sequence[int]], random: np.random.Generator, *, shuffle: bool
    ) -> ShuffledText:
        """An example of a text, given the tokens of each sentence: at most as many as there are sentence tokens."""
        n_sentences = len(sentences)
        labels = random.permutation(self.ids.count)[:n_sentences].tolist()
        reading_order = random.permutation(n_sentences).tolist() if shuffle else list(range(n_sentences))
        masks = self._masks([len(sentences[index]) for index in reading_order], random)
        sentinels = iter((self.ids.end_id + 1 + random.permutation(self.ids.n_sentinels)).tolist())
        masked: dict[int, list[int]] = {}
        spans: dict[int, list[int]] = {}
        for index, mask in zip(reading_order, masks, strict=True):
            masked[index], spans[index] = _replace_spans(sentences[index], mask, sentinels)
        read = [masked[index] for index in reading_order]
        text = mark_sentences(read, [labels[index] for index in reading_order], self.ids, self.start, self.end)
        position = dict(zip(reading_order, text.order, strict=True))
        target = [self.ids.end_id]
        for index, label in enumerate(labels):
            target += [self.ids.first_id + label, *spans[index], self.ids.end_id]
        return ShuffledText(text.source, text.sentences, [*target, self.end], [position[i] for i in range(n_sentences)])

    def _masks(self, lengths: Sequence[int], random: np.random.Generator) -> list[NDArray[np.bool_]]:
        """Which tokens of each sentence are masked, of sentences in the order in which they are read.

        Spans are drawn over the whole text; where they cover the token before or behind a sentence, that stays.
        """
        with_marks = [length + 2 for length in lengths]
        mask = random_spans(sum(with_marks), self.mask_rate, self.span, random)
        return [part[1:-1] for part in np.split(mask, np.cumsum(with_marks)[:-1])]


def random_spans(length: int, rate: float, span: float, random: np.random.Generator) -> NDArray[np.bool_]:
    """[length] booleans: spans that are True, as T5 draws them, of about this share and this mean length.

    T5's first token is never masked and its last one always; here the whole is rotated by a random number of tokens, so
    that neither says where a text begins or ends.
    """
    n_masked = min(max(round(length * rate), 1), length - 1)
    n_spans = min(max(round(n_masked / span), 1), n_masked, length - n_masked)
    runs = np.stack([_random_parts(length - n_masked, n_spans, random), _random_parts(n_masked, n_spans, random)], 1)
    mask = np.repeat(np.tile([False, True], n_spans), runs.ravel())
    return np.roll(mask, random.integers(length))


def _random_parts(total: int, n_parts: int, random: np.random.Generator) -> NDArray[np.int64]:
    """`n_parts` numbers from 1 that make up a total, all such ways with the same probability."""
    cuts = np.sort(random.choice(total - 1, n_parts - 1, replace=False)) + 1
    return np.diff([0, *cuts, total])


def _replace_spans(
    words: Sequence[int], mask: NDArray[np.bool_], sentinels: Iterator[int]
) -> tuple[list[int], list[int]]:
    """Words with each masked span replaced by a sentinel, and the sentinels, each before what it replaces.

    Where no sentinel is left, words stay.
    """
    masked: list[int] = []
    spans: list[int] = []
    sentinel, was_masked = None, False
    for word, is_masked in zip(words, mask.tolist(), strict=True):
        if is_masked and not was_masked:
            sentinel = next(sentinels, None)
            if sentinel is not None:
                masked.append(sentinel)
                spans.append(sentinel)
        (spans if is_masked and sentinel is not None else masked).append(word)
        was_masked = is_masked
    return masked, spans
