"""Latents of many texts as a table to train on: computed once, kept in the store, read a batch at a time.

Rows are read from the memory-mapped store as they are wanted, so memory is bounded by the batch and not by the data;
on a GPU with room for all of it, the table is moved there once.
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
from decoder2vec.activations.store import Store, covering, text_key
from decoder2vec.config import Reading, fingerprint
from decoder2vec.errors import InputError

Rows = NDArray[np.intp]

_ROOM = 0.4
"""The share of a GPU's free memory that latents may take."""
_CHUNK = 2048


class LatentTable:
    """[reading, text, dim] latents of a list of texts."""

    def __init__(self, reader: Reader, texts: Sequence[str], progress: Progress = lambda _: None) -> None:
        self.texts = list(dict.fromkeys(check_texts(texts)))
        self.row = {text: number for number, text in enumerate(self.texts)}
        self.device = reader.backbone.device
        self.shape: tuple[int, int, int] = (len(reader.readings), len(self.texts), reader.backbone.dim)
        keys = [text_key(text) for text in self.texts]
        self._parts: list[tuple[Store, NDArray[np.intp], list[tuple[int, int]]]] = []
        spaces = []
        for where, extractor in reader.parts:
            filler, columns = _widened(extractor, keys)
            store = Store(filler.space())
            filler.fill(store, self.texts, progress)
            self._parts.append((store, store.places(keys), list(zip(where, columns, strict=True))))
            spaces.append([{k: v for k, v in extractor.space().items() if k != "backbone"}, where])
        self.fingerprint = fingerprint(spaces)
        """Names the latents by all that changes them, without the texts."""
        self._resident = self._move() if self._fits() else None

    def rows(self, texts: Sequence[str]) -> Rows:
        """The row numbers of some of the texts."""
        return np.array([self.row[text] for text in texts], dtype=np.intp)

    def batch(self, rows: Any) -> Tensor:
        """[reading, row, dim] float32 latents on the device."""
        index = np.asarray(rows, dtype=np.intp)
        if self._resident is not None:
            return self._resident[:, torch.from_numpy(index).to(self.device)]
        return self._read(index).to(self.device)

    def only(self, kept: Sequence[int]) -> LatentTable:
        """The same texts with some of the readings."""
        part = copy(self)
        part.shape = (len(kept), self.shape[1], self.shape[2])
        place = {number: new for new, number in enumerate(kept)}
        part._parts = [
            (store, places, [(place[target], source) for target, source in columns if target in place])
            for store, places, columns in self._parts
        ]
        part.fingerprint = fingerprint(self.fingerprint, list(kept))
        part._resident = None if self._resident is None else self._resident[list(kept)]
        return part

    def moments(self, rows: Rows) -> tuple[Tensor, Tensor]:
        """[reading, 1, dim] mean and standard deviation over some rows; refuses latents that are not finite."""
        total = torch.zeros(self.shape[0], 1, self.shape[2], dtype=torch.float64)
        squares = torch.zeros_like(total)
        for begin in range(0, len(rows), _CHUNK):
            x = self._finite(rows[begin : begin + _CHUNK])
            if begin == 0:  # sums of squares are taken around a first guess, since a few dimensions are huge
                origin = x.mean(dim=1, keepdim=True)
            x = (x - origin).cpu() if self.device.type == "mps" else x - origin  # Apple's GPUs have no float64
            total += x.sum(dim=1, keepdim=True, dtype=torch.float64).cpu()
            squares += x.pow(2).sum(dim=1, keepdim=True, dtype=torch.float64).cpu()
        mean = total / len(rows)
        deviation = (squares / len(rows) - mean.pow(2)).clamp_min(0).sqrt()
        return (mean + origin.cpu()).float(), deviation.float()

    def check(self, rows: Rows) -> None:
        """Refuse latents that are not finite."""
        for begin in range(0, len(rows), _CHUNK):
            self._finite(rows[begin : begin + _CHUNK])

    def _finite(self, rows: Rows) -> Tensor:
        x = self.batch(rows)
        if not torch.isfinite(x).all():
            bad = int(torch.nonzero(~torch.isfinite(x).all(dim=2).all(dim=0))[0])
            text = self.texts[int(rows[bad])]
            raise InputError(f"The latents of {text[:60]!r} are not finite; run `d2v doctor` on the model.")
        return x

    def _read(self, rows: Rows) -> Tensor:
        out = np.empty((self.shape[0], len(rows), self.shape[2]), np.float32)
        for store, places, columns in self._parts:
            store.read_into(out, places[rows], columns)
        return torch.from_numpy(out)

    def _fits(self) -> bool:
        if self.device.type != "cuda":
            return False
        free, _ = torch.cuda.mem_get_info(self.device)
        return 4 * int(np.prod(self.shape)) < _ROOM * free

    def _move(self) -> Tensor:
        table = torch.empty(self.shape, device=self.device)
        for begin in range(0, self.shape[1], _CHUNK):
            rows = np.arange(begin, min(begin + _CHUNK, self.shape[1]))
            table[:, begin : begin + len(rows)] = self._read(rows).to(self.device)
        return table


def _widened(extractor: Extractor, keys: Sequence[bytes]) -> tuple[Extractor, list[int]]:
    """The extractor of a space on disk that also reads what this one does, and where in it; else itself.

    So the latents of all layers, once computed, serve every choice of some of them.
    """
    wanted = [[r.layer, r.pooling, r.normed] for r in extractor.capture.readings]
    known = covering(extractor.space(), keys) or wanted
    if known != wanted:
        readings = [Reading(*reading) for reading in known]
        extractor = replace(extractor, readings=readings)
    return extractor, [known.index(reading) for reading in wanted]
