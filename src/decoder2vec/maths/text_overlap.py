"""Overlap of a generated text with a reference: BLEU as sacrebleu computes it, ROUGE-L as rouge-score, token F1.

Every metric is given per text, so that bootstrap samples need no text again: BLEU, which is a metric of a whole set, by
the counts that it is computed from.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from decoder2vec.maths.bootstrap import Floats, Scorer

_ORDER = 4
"""Longest n-grams of BLEU."""
_ENTITIES = (("&quot;", '"'), ("&amp;", "&"), ("&lt;", "<"), ("&gt;", ">"))
_SPLITS = (
    (re.compile(r"([\{-\~\[-\` -\&\(-\+\:-\@\/])"), r" \1 "),
    (re.compile(r"([^0-9])([\.,])"), r"\1 \2 "),
    (re.compile(r"([\.,])([^0-9])"), r" \1 \2"),
    (re.compile(r"([0-9])(-)"), r"\1 \2 "),
)
"""Where the tokeniser 13a of WMT splits a text: at symbols, and at periods, commas and dashes outside of numbers."""
_NOT_ALPHANUMERIC = re.compile(r"[^a-z0-9]+")


def bleu_tokens(text: str) -> list[str]:
    """The tokens of a text for BLEU: those of the tokeniser 13a."""
    text = text.rstrip().replace("<skipped>", "").replace("-\n", "").replace("\n", " ")
    for entity, character in _ENTITIES:
        text = text.replace(entity, character)
    text = f" {text} "
    for pattern, replacement in _SPLITS:
        text = pattern.sub(replacement, text)
    return text.split()


def bleu_counts(text: str, reference: str) -> NDArray[np.int64]:
    """[10] what BLEU needs of a text: both lengths, and its correct and all n-grams of 1 to 4 tokens."""
    tokens, expected = bleu_tokens(text), bleu_tokens(reference)
    correct, total = [], []
    for n in range(1, _ORDER + 1):
        grams, reference_grams = _ngrams(tokens, n), _ngrams(expected, n)
        correct.append((grams & reference_grams).total())
        total.append(grams.total())
    return np.array([len(tokens), len(expected), *correct, *total], np.int64)


def bleu(counts: NDArray[np.floating | np.integer]) -> Floats:
    """[...] BLEU, from 0 to 100, of [..., 10] counts that were summed over a set of texts; smoothing "exp"."""
    counts = np.asarray(counts, np.float64)
    length, reference_length = counts[..., 0], counts[..., 1]
    correct, total = counts[..., 2 : 2 + _ORDER], counts[..., 2 + _ORDER :]
    halvings = np.cumsum(correct == 0, axis=-1)  # each order without a match counts half as much as the one before
    with np.errstate(divide="ignore", invalid="ignore"):
        precisions = np.where(correct == 0, 1 / (2.0**halvings * total), correct / total)
        brevity = np.where(length < reference_length, np.exp(1 - reference_length / length), 1.0)
        scores = 100 * brevity * np.exp(np.log(precisions).mean(axis=-1))
    is_scored = (correct > 0).any(axis=-1) & (total > 0).all(axis=-1)  # no n-gram of an order: 0
    return np.asarray(np.where(is_scored, scores, 0.0), np.float64)


def bleu_scorer(counts: Sequence[NDArray[np.int64]]) -> Scorer:
    """Scores systems by BLEU; their [items, 10] counts are those of `bleu_counts`."""
    tables = [np.asarray(table, np.float64) for table in counts]
    return lambda drawn: np.stack([bleu(drawn @ table) for table in tables])


def rouge_tokens(text: str) -> list[str]:
    """The tokens of a text for ROUGE and token F1: runs of a-z and 0-9 in lower case."""
    return _NOT_ALPHANUMERIC.sub(" ", text.lower()).split()


def rouge_l(text: str, reference: str) -> float:
    """ROUGE-L F1, from 0 to 1: by the longest common subsequence of tokens."""
    tokens, expected = rouge_tokens(text), rouge_tokens(reference)
    return _f1(_common_subsequence(tokens, expected), len(tokens), len(expected))


def token_f1(text: str, reference: str) -> float:
    """F1, from 0 to 1, of the tokens of a text, in any order."""
    tokens, expected = rouge_tokens(text), rouge_tokens(reference)
    return _f1((Counter(tokens) & Counter(expected)).total(), len(tokens), len(expected))


def _f1(common: int, length: int, reference_length: int) -> float:
    return 2 * common / (length + reference_length) if common else 0.0


def _ngrams(tokens: Sequence[str], n: int) -> Counter[tuple[str, ...]]:
    return Counter(tuple(tokens[begin : begin + n]) for begin in range(len(tokens) - n + 1))


def _common_subsequence(left: Sequence[str], right: Sequence[str]) -> int:
    """Length of the longest common subsequence."""
    lengths = [0] * (len(right) + 1)
    for token in left:
        diagonal = 0
        for column, other in enumerate(right, 1):
            above = lengths[column]
            lengths[column] = diagonal + 1 if token == other else max(above, lengths[column - 1])
            diagonal = above
    return lengths[-1]
