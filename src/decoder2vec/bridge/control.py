"""The blind control: what a bridge achieves with real vectors, with none, and with those of other items.

A language model that has learned how captions look scores well without any input, so a score alone shows nothing. All
three are measured on the same items, with bootstrap intervals of the scores and of their differences.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from decoder2vec.bridge.bridge import DESCRIPTION_TOKENS, Bridge
from decoder2vec.bridge.vectors import CaptionedVectors, Vectors
from decoder2vec.maths.bootstrap import Difference, Floats, Scorer, difference, mean_scorer, resample
from decoder2vec.maths.text_overlap import bleu_counts, bleu_scorer, rouge_l, token_f1
from decoder2vec.progress import current_progress

ARMS = ("real", "zeroed", "shuffled")
"""The item's own vector; the mean vector, which the projector sees as zeros; the vector of another item."""


@dataclass(frozen=True)
class ScoreInterval:
    """A score with its 95 % bootstrap interval."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.2f} [{self.low:.2f}, {self.high:.2f}]"


@dataclass(frozen=True)
class BlindControl:
    """Scores of a bridge with real, zeroed and shuffled vectors on the same items."""

    items: int
    scores: dict[str, dict[str, ScoreInterval]]
    """Metric -> arm -> score."""
    differences: dict[str, dict[str, Difference]]
    """Metric -> "zeroed" or "shuffled" -> how much higher the score with real vectors is."""
    texts: dict[str, list[str]]
    """Arm -> descriptions, of a bridge that describes."""

    @property
    def uses_vectors(self) -> bool:
        """Whether real vectors are better than zeroed and shuffled ones beyond chance, by the first metric."""
        gains = next(iter(self.differences.values())).values()
        return all(gain.low > 0 for gain in gains)

    def rows(self) -> list[tuple[str, ...]]:
        """One row for each metric: its name, the score of each arm, and the differences."""
        return [
            (
                metric,
                *(str(self.scores[metric][arm]) for arm in ARMS),
                *(f"{gain.value:+.2f} [{gain.low:+.2f}, {gain.high:+.2f}]" for gain in gains.values()),
            )
            for metric, gains in self.differences.items()
        ]

    def to_json(self) -> dict[str, Any]:
        """Return scores and differences as plain data."""
        return {
            "items": self.items,
            "uses_vectors": self.uses_vectors,
            "scores": {name: {arm: asdict(each) for arm, each in arms.items()} for name, arms in self.scores.items()},
            "differences": {
                name: {arm: asdict(each) for arm, each in arms.items()} for name, arms in self.differences.items()
            },
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> BlindControl:
        """Return what `to_json` gave; texts are not in it."""
        scores = {
            name: {arm: ScoreInterval(**each) for arm, each in arms.items()} for name, arms in data["scores"].items()
        }
        differences = {
            name: {arm: Difference(**each) for arm, each in arms.items()} for name, arms in data["differences"].items()
        }
        return cls(data["items"], scores, differences, {})


COLUMNS = ("", *ARMS, "real - zeroed", "real - shuffled")
"""Headings of `BlindControl.rows`."""


def blind_control(
    bridge: Bridge, items: CaptionedVectors, *, max_tokens: int = DESCRIPTION_TOKENS, seed: int = 0
) -> BlindControl:
    """Measure a bridge on items that it was not trained on, with real, zeroed and shuffled vectors.

    Bridges that describe are measured by likelihood (minus the cross-entropy of a caption's token), BLEU, ROUGE-L and
    token F1; those to an encoder by the rank of an item among all, when its caption is the query. All but the
    likelihood are in percent; higher is better everywhere.

    Args:
        bridge: The bridge.
        items: The items, at least two.
        max_tokens: Tokens of a description and of a caption, at most.
        seed: Determines who gets whose vector, and the bootstrap samples.
    """
    inputs = control_vectors(bridge, items.vectors, seed)
    texts: dict[str, list[str]] = {}
    if bridge.objective == "lm":
        with current_progress().phase("describing", len(ARMS) * len(items)):
            texts = {arm: bridge.describe(vectors, max_tokens) for arm, vectors in inputs.items()}
            scorers = _description_scorers(bridge, items.captions, inputs, texts, max_tokens)
    else:
        ranks = np.stack([item_ranks(bridge, vectors, items.captions) for vectors in inputs.values()])
        scorers = {
            "reciprocal rank": mean_scorer(100 / ranks),
            "recall@1": mean_scorer(np.where(ranks <= 1, 100.0, 0.0)),
            "recall@10": mean_scorer(np.where(ranks <= 10, 100.0, 0.0)),
        }
    scores, differences = {}, {}
    for name, scorer in scorers.items():
        values, samples = resample(scorer, len(items), seed=seed)
        intervals = np.quantile(samples, [0.025, 0.975], axis=1).T
        scores[name] = {
            arm: ScoreInterval(float(values[row]), *map(float, intervals[row])) for row, arm in enumerate(ARMS)
        }
        differences[name] = {
            arm: difference(values[0] - values[row], samples[0] - samples[row]) for row, arm in enumerate(ARMS) if row
        }
    return BlindControl(len(items), scores, differences, texts)


def control_vectors(bridge: Bridge, vectors: Vectors, seed: int = 0) -> dict[str, Vectors]:
    """The vectors of each arm; with more than one item, nobody gets their own vector when they are shuffled."""
    order = np.random.default_rng(seed).permutation(len(vectors))
    others = np.empty_like(order)
    others[order] = np.roll(order, 1)
    return {"real": vectors, "zeroed": np.tile(bridge.blank, (len(vectors), 1)), "shuffled": vectors[others]}


def item_ranks(bridge: Bridge, vectors: Vectors, captions: Sequence[str]) -> Floats:
    """[items] rank of each item among all, from 1, for its caption as the query.

    Items that have the same caption are not counted, and of equally similar items half are in front.
    """
    encoder = bridge.encoder
    similarities = encoder.similarity(encoder.encode_query(list(captions)), bridge.encode(vectors)).cpu().numpy()
    own = np.diag(similarities)[:, None]
    caption_ids = np.unique(np.asarray(captions), return_inverse=True)[1]
    is_other = caption_ids[:, None] != caption_ids[None, :]
    higher, equal = (similarities > own) & is_other, (similarities == own) & is_other
    return np.asarray(1 + higher.sum(axis=1) + equal.sum(axis=1) / 2, np.float64)


def _description_scorers(
    bridge: Bridge,
    captions: Sequence[str],
    inputs: dict[str, Vectors],
    texts: dict[str, list[str]],
    max_tokens: int,
) -> dict[str, Scorer]:
    losses = [bridge.caption_losses(vectors, captions, max_tokens) for vectors in inputs.values()]

    def per_text(metric: Callable[[str, str], float]) -> NDArray[np.float64]:
        return np.array([[100 * metric(*pair) for pair in zip(texts[arm], captions, strict=True)] for arm in ARMS])

    def likelihood(counts: Floats) -> Floats:
        return np.stack([-(counts @ sums) / (counts @ tokens.astype(np.float64)) for sums, tokens in losses])

    overlaps = [np.stack([bleu_counts(*pair) for pair in zip(texts[arm], captions, strict=True)]) for arm in ARMS]
    return {
        "likelihood": likelihood,
        "BLEU": bleu_scorer(overlaps),
        "ROUGE-L": mean_scorer(per_text(rouge_l)),
        "token F1": mean_scorer(per_text(token_f1)),
    }
