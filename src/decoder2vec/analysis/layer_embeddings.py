"""The vectors that an encoder makes of some texts, layer by layer, from the latents on disk."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from decoder2vec.activations.extract import Progress, Reader
from decoder2vec.activations.latent_table import LatentTable
from decoder2vec.config import Reading, fingerprint
from decoder2vec.encoder import Encoder
from decoder2vec.text.template import Template

_CHUNK = 1024

Vectors = NDArray[np.float32]


class LayerEmbeddings:
    """One cloud of vectors for each layer, read as the encoder reads its texts, and that of its own embeddings.

    `pooling` reads the layers in another way than the encoder does.
    """

    def __init__(
        self,
        encoder: Encoder,
        texts: Sequence[str],
        pooling: str | None = None,
        progress: Progress = lambda _: None,
    ) -> None:
        spec, last = encoder.spec, encoder.backbone.n_layers
        like = replace(spec.readings[0], normed=False, pooling=pooling or spec.readings[0].pooling)
        self.encoder = encoder
        self.readings = [replace(like, layer=layer) for layer in range(last + 1)]
        """Every layer before the final norm, then the last one behind it."""
        self.readings.append(replace(like, layer=last, normed=True))
        wanted = list(dict.fromkeys([*self.readings, *spec.readings]))
        reader = Reader(encoder.backbone, wanted, Template(spec.template), spec.max_length, spec.on_overflow)
        self._own = [wanted.index(reading) for reading in spec.readings]
        self._table = LatentTable(reader, texts, progress)
        self.texts = self._table.texts
        """The texts without repetitions, in order; row i of every cloud is text i."""

    def __len__(self) -> int:
        return len(self.readings)

    def layer(self, number: int, rows: NDArray[np.intp] | None = None) -> Vectors:
        """[text, dim] vectors of the reading of that number, of all texts or of some."""
        return self._read([number], self._rows(rows))[:, 0]

    def embeddings(self, rows: NDArray[np.intp] | None = None) -> Vectors:
        """[text, dim] vectors as `encode` gives them, behind the head."""
        wanted, parts = self._rows(rows), []
        for begin in range(0, len(wanted), _CHUNK):
            latents = self._read(self._own, wanted[begin : begin + _CHUNK])
            flat = latents.reshape(len(latents), -1)
            parts.append(self.encoder.head(flat) if self.encoder.head else flat)
        vectors = np.concatenate(parts)
        if self.encoder.spec.normalize:
            vectors = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
        return vectors

    def rows(self, texts: Sequence[str]) -> NDArray[np.intp]:
        """Where some of the texts stand."""
        return self._table.rows(texts)

    def of(self, texts: Sequence[str], progress: Progress = lambda _: None) -> LayerEmbeddings:
        """The same readings of other texts."""
        return LayerEmbeddings(self.encoder, texts, self.readings[0].pooling, progress)

    def describe(self) -> dict[str, object]:
        """What was read of what, for a result file."""
        like, spec = self.readings[0], self.encoder.spec
        return {
            "backbone": self.encoder.backbone.name,
            "fingerprint": self.encoder.fingerprint,
            "pooling": like.pooling,
            "template": like.template or spec.template,
            "attention": spec.attention,
            "dim": self.encoder.backbone.dim,
            "depth": self.encoder.backbone.n_layers,
        }

    def fingerprint(self) -> str:
        """Names the texts: what was drawn from two lists of the same name is paired."""
        return fingerprint(self.texts)

    def _rows(self, rows: NDArray[np.intp] | None) -> NDArray[np.intp]:
        return np.arange(len(self.texts)) if rows is None else rows

    def _read(self, numbers: list[int], rows: NDArray[np.intp]) -> Vectors:
        latents = self._table.select_readings(numbers).batch(rows)
        found: Vectors = latents.transpose(0, 1).cpu().numpy()
        return found


def spread(texts: Sequence[str], limit: int | None = None) -> list[str]:
    """Different texts that are not blank: all, or so many of them, evenly spread."""
    found = [text for text in dict.fromkeys(texts) if text.strip()]
    if limit is None or limit >= len(found):
        return found
    return [found[round(i * (len(found) - 1) / max(1, limit - 1))] for i in range(limit)]


def in_curve(readings: Sequence[Reading]) -> list[int]:
    """The readings that make a curve of the paper: layers 1 to L, the last of them behind the final norm."""
    last = max(reading.layer for reading in readings)
    return [n for n, reading in enumerate(readings) if reading.layer and reading.normed == (reading.layer == last)]
