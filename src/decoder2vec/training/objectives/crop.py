"""Two crops of a text, runs of consecutive words, must find each other among the crops of other texts.

González-Márquez, Berens and Kobak, "Cropping outperforms dropout as an augmentation strategy for self-supervised
training of text embeddings", 2025. Crops are drawn again in every step, so a text gives new pairs in every epoch.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, ClassVar

import torch
from torch import Tensor

from decoder2vec.errors import InputError
from decoder2vec.training.context import InputSpec, Reads, TokenContext
from decoder2vec.training.data import TrainingData
from decoder2vec.training.loop import Rows
from decoder2vec.training.objectives.contrastive import ContrastiveConfig
from decoder2vec.training.objectives.corpus import MIN_TEXTS
from decoder2vec.training.objectives.objective import Loss
from decoder2vec.training.objectives.two_views import TwoViewsObjective

_WORD = re.compile(r"\S+")


@dataclass(frozen=True)
class CropConfig(ContrastiveConfig):
    """InfoNCE of two crops of a text."""

    name: str = "crop"
    min_share: float = 0.3
    """Smallest share of a text's words that a crop has."""
    max_share: float = 0.7
    """Largest share."""
    min_words: int = 3
    """A crop has this many words or more, also where the share would be fewer."""
    overlap: bool = True
    """Whether the crops of a text may have words in common; if not, each has half of the words at most."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.min_share <= self.max_share <= 1 or self.min_share == 1:
            raise InputError(
                "Crops need 0 < min_share <= max_share <= 1 with min_share below 1, "
                f"not {self.min_share:g} and {self.max_share:g}."
            )
        if not self.overlap and self.min_share > 0.5:
            raise InputError(
                f"Two crops of {self.min_share:g} of a text overlap; set min_share to 0.5 or less, or overlap to true."
            )
        if self.min_words < 1:
            raise InputError("min_words must be 1 or more.")


@dataclass(frozen=True)
class Cropper:
    """Draws two different crops of a text."""

    config: CropConfig
    max_words: int
    """Words after these are never cropped: a word has a token at least, so they lie beyond the maximum length."""

    @property
    def words_needed(self) -> int:
        """A text with fewer words has no two different crops."""
        return self.config.min_words + 1 if self.config.overlap else 2 * self.config.min_words

    def can_crop(self, text: str) -> bool:
        """Whether a text has two different crops."""
        return min(len(text.split()), self.max_words) >= self.words_needed

    def __call__(self, text: str, rng: random.Random) -> tuple[str, str]:
        """Two crops, as they stand in the text."""
        words = [match.span() for match in islice(_WORD.finditer(text), self.max_words)]
        draw = self._overlapping if self.config.overlap else self._disjoint
        first, second = (text[words[run.start][0] : words[run.stop - 1][1]] for run in draw(len(words), rng))
        return first, second

    def _overlapping(self, n_words: int, rng: random.Random) -> tuple[range, range]:
        first = second = range(0)
        while first == second:
            lengths = [self._length(n_words, rng) for _ in range(2)]
            first, second = (_run(rng.randint(0, n_words - length), length) for length in lengths)
        return first, second

    def _disjoint(self, n_words: int, rng: random.Random) -> tuple[range, range]:
        left, right = (min(n_words // 2, self._length(n_words, rng)) for _ in range(2))
        start, end = sorted(rng.randint(0, n_words - left - right) for _ in range(2))
        crops = [_run(start, left), _run(end + left, right)]
        rng.shuffle(crops)
        return crops[0], crops[1]

    def _length(self, n_words: int, rng: random.Random) -> int:
        share = rng.uniform(self.config.min_share, self.config.max_share)
        return max(self.config.min_words, min(n_words - 1, int(share * n_words)))


class CropObjective(TwoViewsObjective[CropConfig]):
    """Plain texts, by InfoNCE of two crops of each text.

    Texts too short for two different crops are left out: two equal crops have the same vector and teach nothing.
    """

    names = ("crop",)
    config_class = CropConfig
    reads: ClassVar[tuple[Reads, ...]] = (Reads.TOKENS, Reads.PREFIX_KV)
    draws_texts = True
    unreadable = "draws new crops in every step, which have no cached latents; use lora, soft_prompt, kv_prefix or full"

    def __init__(self, config: CropConfig, data: TrainingData, spec: InputSpec) -> None:
        self.crop = Cropper(config, spec.max_length)
        long_enough = tuple(text for text in data.texts if self.crop.can_crop(text))
        if len(set(long_enough)) < MIN_TEXTS:
            raise InputError(
                f"crop learns from texts of {self.crop.words_needed} words or more, {MIN_TEXTS} such texts at least; "
                f"there are {len(set(long_enough))}."
            )
        super().__init__(config, replace(data, texts=long_enough), spec)
        self.n_too_short = len(data.texts) - len(long_enough)
        self.dev_crops = self._draw(self.dev_texts, random.Random(0))

    @property
    def texts(self) -> list[str]:
        """Crops of held-out texts: those of training texts are drawn and tokenised in every step."""
        return self.dev_crops

    def loss(self, context: TokenContext) -> Loss:
        """InfoNCE of two new crops of each text."""

        def loss(rows: Rows) -> Tensor:
            rng = random.Random(int(torch.randint(2**62, ())))  # of torch, since checkpoints store its random state
            return self.contrast(context.encode_texts(self._draw([self.train_texts[row] for row in rows], rng)))

        return loss

    def dev_views(self, context: TokenContext) -> tuple[Rows, Rows]:
        """Fixed crops of each held-out text."""
        rows = context.rows(self.dev_crops)
        return rows[: len(self.dev_texts)], rows[len(self.dev_texts) :]

    def report(self, context: TokenContext) -> dict[str, Any]:
        """How many texts were left out."""
        return {"texts too short to crop": self.n_too_short} if self.n_too_short else {}

    def _draw(self, texts: Iterable[str], rng: random.Random) -> list[str]:
        """The first crops of all texts, then the second ones."""
        first, second = zip(*(self.crop(text, rng) for text in texts), strict=True)
        return [*first, *second]


def _run(start: int, length: int) -> range:
    return range(start, start + length)
