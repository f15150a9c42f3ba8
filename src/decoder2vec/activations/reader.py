"""Readings under one or several templates, side by side: one pass over the texts for each template."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from decoder2vec.activations.extract import Extractor, Progress, Tally
from decoder2vec.backbone.load import Backbone
from decoder2vec.errors import InputError
from decoder2vec.spec import DEFAULT_MAX_LENGTH, EncoderSpec, Reading
from decoder2vec.text.template import SLOT, Template

_LATENT_BYTES = 1 << 30


class Reader:
    """Like an Extractor, for readings that may each name a template of their own."""

    def __init__(
        self,
        backbone: Backbone,
        readings: Sequence[Reading],
        template: Template,
        max_length: int = DEFAULT_MAX_LENGTH,
        on_overflow: str = "truncate",
        budget: int | None = None,
        prefix: str = "",
    ) -> None:
        if not readings:
            raise InputError("Nothing to read: give at least one layer and pooling.")
        self.backbone = backbone
        self.readings = tuple(readings)
        if SLOT in prefix and any(reading.template for reading in readings):
            raise InputError(f"This encoder reads several prompts; a prompt with {SLOT} cannot replace them all.")
        places: dict[Template, list[int]] = {}
        for number, reading in enumerate(readings):
            own = Template.of(reading.template or template.string).with_prefix(prefix)
            places.setdefault(own, []).append(number)
        self.parts = [
            (where, Extractor(backbone, [_bare(readings[n]) for n in where], own, max_length, on_overflow, budget))
            for own, where in places.items()
        ]

    @classmethod
    def of(cls, backbone: Backbone, spec: EncoderSpec, budget: int | None, prefix: str) -> Reader:
        """What an encoder's description asks for, behind an instruction."""
        return cls(backbone, spec.readings, Template(spec.template), spec.max_length, spec.on_overflow, budget, prefix)

    @property
    def at_once(self) -> int:
        """How many texts' latents fit into a modest part of memory."""
        return max(1024, _LATENT_BYTES // (4 * len(self.readings) * self.backbone.dim))

    @property
    def passes(self) -> int:
        """How often the backbone runs over each text."""
        return len(self.parts)

    @property
    def tally(self) -> Tally:
        """What all passes did together; a text counts once."""
        total = Tally()
        for _, extractor in self.parts:
            total += extractor.tally
        total.texts //= max(1, self.passes)
        return total

    def __call__(self, texts: Sequence[str], progress: Progress = lambda _: None) -> NDArray[np.float32]:
        """[text, reading, dim] float32 vectors; progress is told of each text once for every pass."""
        if self.passes == 1:
            return self.parts[0][1](texts, progress)
        result = np.empty((len(texts), len(self.readings), self.backbone.dim), np.float32)
        for where, extractor in self.parts:
            result[:, where] = extractor(texts, progress)
        return result


def _bare(reading: Reading) -> Reading:
    return replace(reading, template="")
