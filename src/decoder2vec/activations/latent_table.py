"""A table of latents to train on: computed once, stored on disk, read one batch at a time.

Rows are read from the memory-mapped store on demand, so memory is bounded by the batch and not by the data; on a GPU
with room for all of it, the table is copied there once.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from decoder2vec.activations.extract import Extractor, Progress, Reader, check_texts
from decoder2vec.activations.store import Keys, Store, find_covering_space, text_keys
from decoder2vec.config import Reading, fingerprint
from decoder2vec.errors import EncoderError

Rows = NDArray[np.intp]

_GPU_SHARE = 0.4
"""The share of a GPU's free memory that latents may take."""
_CHUNK = 2048
"""Rows that are read at once when statistics over many rows are computed."""


class LatentTable:
    """[reading, text, dim] latents of a list of texts.

    Args:
        reader: Computes the latents that are not yet stored.
        texts: The texts; duplicates share one row.
        progress: Called with the number of texts that were just finished.
    """

    def __init__(self, reader: Reader, texts: Sequence[str], progress: Progress = lambda _: None) -> None:
        self.texts = list(dict.fromkeys(check_texts(texts)))
        self.row_of = {text: row for row, text in enumerate(self.texts)}
        self.device = reader.backbone.device
        self.shape: tuple[int, int, int] = (len(reader.readings), len(self.texts), reader.backbone.dim)
        keys = text_keys(self.texts)
        self._sources: list[tuple[Store, NDArray[np.intp], list[tuple[int, int]]]] = []
        """Store, [text, 2] positions in it, and pairs of a reading of the table and the store's reading."""
        spaces = []
        for columns, extractor in reader.extractors:
            filler, store_columns = _reuse_covering_space(extractor, keys)
            store = Store(filler.space())
            filler.fill(store, self.texts, progress)
            self._sources.append((store, store.positions(keys), list(zip(columns, store_columns, strict=True))))
            spaces.append([{k: v for k, v in extractor.space().items() if k != "backbone"}, columns])
        self.fingerprint = fingerprint(spaces)
        """Identifies the latents by everything that changes them, except the texts."""
        self._resident = self._copy_to_device() if self._fits_on_device() else None

    def rows(self, texts: Sequence[str]) -> Rows:
        """Return the row indices of some of the texts."""
        return np.array([self.row_of[text] for text in texts], dtype=np.intp)

    def batch(self, rows: Any) -> Tensor:
        """Return [reading, row, dim] float32 latents on the device."""
        indices = np.asarray(rows, dtype=np.intp)
        if self._resident is not None:
            return self._resident[:, torch.from_numpy(indices).to(self.device)]
        return self._read(indices).to(self.device)

    def select_readings(self, readings: Sequence[int]) -> LatentTable:
        """Return a table of the same texts with only these readings, in this order."""
        table = copy(self)
        table.shape = (len(readings), self.shape[1], self.shape[2])
        new_index = {reading: index for index, reading in enumerate(readings)}
        table._sources = [
            (store, positions, [(new_index[target], source) for target, source in columns if target in new_index])
            for store, positions, columns in self._sources
        ]
        table.fingerprint = fingerprint(self.fingerprint, list(readings))
        table._resident = None if self._resident is None else self._resident[list(readings)]
        return table

    def moments(self, rows: Rows) -> tuple[Tensor, Tensor]:
        """Return [reading, 1, dim] mean and standard deviation over some rows; raise an error if any is not finite."""
        total = torch.zeros(self.shape[0], 1, self.shape[2], dtype=torch.float64)
        squares = torch.zeros_like(total)
        for begin in range(0, len(rows), _CHUNK):
            x = self._finite_batch(rows[begin : begin + _CHUNK])
            if begin == 0:  # sums of squares are taken around a first estimate, because a few dimensions are huge
                origin = x.mean(dim=1, keepdim=True)
            x = (x - origin).cpu() if self.device.type == "mps" else x - origin  # Apple's GPUs have no float64
            total += x.sum(dim=1, keepdim=True, dtype=torch.float64).cpu()
            squares += x.pow(2).sum(dim=1, keepdim=True, dtype=torch.float64).cpu()
        mean = total / len(rows)
        deviation = (squares / len(rows) - mean.pow(2)).clamp_min(0).sqrt()
        return (mean + origin.cpu()).float(), deviation.float()

    def check_finite(self, rows: Rows) -> None:
        """Raise an error if the latents of some rows are not finite."""
        for begin in range(0, len(rows), _CHUNK):
            self._finite_batch(rows[begin : begin + _CHUNK])

    def _finite_batch(self, rows: Rows) -> Tensor:
        x = self.batch(rows)
        if not torch.isfinite(x).all():
            bad = int(torch.nonzero(~torch.isfinite(x).all(dim=2).all(dim=0))[0])
            text = self.texts[int(rows[bad])]
            raise EncoderError(f"The latents of {text[:60]!r} are not finite; run `d2v doctor` on the model.")
        return x

    def _read(self, rows: Rows) -> Tensor:
        out = np.empty((self.shape[0], len(rows), self.shape[2]), np.float32)
        for store, positions, columns in self._sources:
            store.read_into(out, positions[rows], columns)
        return torch.from_numpy(out)

    def _fits_on_device(self) -> bool:
        if self.device.type != "cuda":
            return False
        free, _ = torch.cuda.mem_get_info(self.device)
        return 4 * int(np.prod(self.shape)) < _GPU_SHARE * free

    def _copy_to_device(self) -> Tensor:
        table = torch.empty(self.shape, device=self.device)
        for begin in range(0, self.shape[1], _CHUNK):
            rows = np.arange(begin, min(begin + _CHUNK, self.shape[1]))
            table[:, begin : begin + len(rows)] = self._read(rows).to(self.device)
        return table


def _reuse_covering_space(extractor: Extractor, keys: Keys) -> tuple[Extractor, list[int]]:
    """The extractor of a space on disk that contains all readings of this one, and their indices there; else itself.

    So the latents of all layers, once computed, serve every selection of layers.
    """
    requested = [[r.layer, r.pooling, r.normed] for r in extractor.capture.readings]
    stored = find_covering_space(extractor.space(), keys) or requested
    if stored != requested:
        readings = [Reading(*reading) for reading in stored]
        extractor = replace(extractor, readings=readings)
    return extractor, [stored.index(reading) for reading in requested]
