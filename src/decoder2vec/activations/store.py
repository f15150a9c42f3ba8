"""A store of latents on disk: computed once, found again by what they are.

A *space* is a folder named by the fingerprint of everything that changes a vector (weights, tokenizer, template,
length limit, readings, direction, dtype). It contains immutable *segments*: safetensors files with the keys of some
texts and their vectors, laid out reading by reading so that one layer of a whole corpus is one sequential scan.
A segment appears by rename, complete or not at all. Therefore no locks are needed: a kill leaves a stray temporary
file, and two processes that work on the same corpus write two segments, of which readers use either.
"""

from __future__ import annotations

import hashlib
import json
import logging
import mmap
import os
import shutil
import time
import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save_file

from decoder2vec.config import fingerprint
from decoder2vec.errors import StorageError, unknown_name
from decoder2vec.storage import atomic_file, cache_root, parse_json

log = logging.getLogger(__name__)

Keys = NDArray[np.void]
"""[texts] keys of 16 bytes each."""

PRECISIONS = ("float16", "int8")
"""How vectors are stored. Both have a scale for each vector; int8 takes half the space and keeps 7 bits and a sign."""

_KEY = np.dtype("V16")
_DTYPES = {"F32": np.float32, "F16": np.float16, "I8": np.int8, "U8": np.uint8}
_STRAY_SECONDS = 3600.0
"""Temporary files older than this belong to no running process."""


class Store:
    """The latents of one space.

    Args:
        space: Description of the space, as `Extractor.space` returns it.
        root: The folder that holds all spaces; the user's cache by default.
        precision: One of `PRECISIONS`, in which new vectors are stored.
    """

    def __init__(self, space: dict[str, Any], *, root: Path | None = None, precision: str = "float16") -> None:
        self.space = space
        self.folder = (root or store_root()) / space_name(space)
        self.writable = True
        self.precision = precision
        self._segments: list[Segment] = []
        self._index: KeyIndex | None = None
        """Of the keys of all segments; None if the segments have changed since it was built."""
        self._verified: set[int] = set()
        """Indices of the segments whose checksum was compared, which is done when one is first needed."""
        self._seen_files: set[str] = set()
        self._check_description()
        self.refresh()

    def __len__(self) -> int:
        return self._key_index().n_unique

    def __contains__(self, key: bytes) -> bool:
        return bool(self.contains([key])[0])

    @property
    def dim(self) -> int:
        """Number of dimensions of the stored vectors; 0 if there are none."""
        return self._segments[0].values.shape[2] if self._segments else 0

    def contains(self, keys: Sequence[bytes] | Keys) -> NDArray[np.bool_]:
        """[keys] whether each of them has vectors, which may prove to be damaged when they are needed."""
        return self._key_index().find(_as_keys(keys)) >= 0

    def missing(self, keys: Keys) -> NDArray[np.intp]:
        """Indices of the keys that have no vectors, in order, the first of equal ones."""
        absent = np.flatnonzero(self._find_intact(keys) < 0)
        _, first = np.unique(keys[absent], return_index=True)
        return absent[np.sort(first)]

    def refresh(self) -> None:
        """Open segments that this process or another has added since the last call."""
        for file in sorted(self.folder.glob("seg-*.safetensors")):
            if file.name in self._seen_files:
                continue
            self._seen_files.add(file.name)
            try:
                self._register(open_segment(file))
            except StorageError as error:
                log.warning("%s; its texts will be computed again", error)

    def add(self, keys: Sequence[bytes] | Keys, latents: NDArray[np.float32]) -> None:
        """Store [text, reading, dim] vectors. If writing fails, they are kept in memory only."""
        segment = Segment.pack(keys, latents, self.precision)
        if self.writable:
            name = f"seg-{uuid.uuid4().hex}.safetensors"
            try:
                self._write(name, segment)
                segment = open_segment(self.folder / name)
                self._seen_files.add(name)
                self._verified.add(len(self._segments))
            except OSError as error:
                self.writable = False
                log.warning(
                    "Cannot write latents to %s (%s); going on without the cache. Free some space with "
                    "`d2v cache rm`, or point D2V_CACHE to another folder.",
                    self.folder,
                    getattr(error, "strerror", None) or error,
                )
        self._register(segment)

    def read(self, keys: Sequence[bytes] | Keys, readings: Sequence[int] | slice = slice(None)) -> NDArray[np.float32]:
        """Return [text, reading, dim] float32 vectors in the order of the keys."""
        positions = self.positions(keys)
        result: NDArray[np.float32] | None = None
        for segment in np.unique(positions[:, 0]):
            rows = np.flatnonzero(positions[:, 0] == segment)
            vectors = self._segments[segment].read(positions[rows, 1], readings)
            if result is None:
                result = np.empty((len(keys), *vectors.shape[1:]), dtype=np.float32)
            result[rows] = vectors
        return np.empty((0, 0, 0), np.float32) if result is None else result

    def positions(self, keys: Sequence[bytes] | Keys) -> NDArray[np.intp]:
        """Return [text, 2] segment and row of each key, for `read_into`.

        Raises:
            KeyError: A key has no vectors.
        """
        rows = self._find_intact(_as_keys(keys))
        if (rows < 0).any():
            raise KeyError(f"{int((rows < 0).sum())} of {len(rows)} keys are not in {self.folder}")
        segments, starts = self._segments_of(rows)
        return np.stack([segments, rows - starts[segments]], axis=1)

    def read_into(
        self, out: NDArray[np.float32], positions: NDArray[np.intp], columns: Sequence[tuple[int, int]]
    ) -> None:
        """Read vectors into an existing array.

        Args:
            out: [reading, text, dim] array to fill.
            positions: [text, 2] segment and row of each text.
            columns: Pairs of a reading of `out` and the reading of the store to copy there.
        """
        for index in np.unique(positions[:, 0]):
            segment, texts = self._segments[index], np.flatnonzero(positions[:, 0] == index)
            rows = positions[texts, 1]
            for target, source in columns:
                out[target, texts] = segment.vectors(source, rows)

    def _find_intact(self, keys: Keys) -> NDArray[np.intp]:
        """[keys] row of each key; -1 where there is none. A damaged segment is emptied, with a warning."""
        while True:
            rows = self._key_index().find(keys)
            needed = set(np.unique(self._segments_of(rows[rows >= 0])[0]).tolist())
            damaged = [index for index in needed - self._verified if not self._segments[index].is_intact()]
            self._verified |= needed
            if not damaged:
                return rows
            for index in damaged:
                log.warning(
                    "Latents in %s are damaged and will be computed again; `d2v cache verify` removes them", self.folder
                )
                self._segments[index] = self._segments[index].emptied()
            self._index = None

    def _segments_of(self, rows: NDArray[np.intp]) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
        """[rows] segment of each row of the key index, and [segments + 1] the first row of each segment."""
        starts = np.cumsum([0, *(len(segment.keys) for segment in self._segments)])
        return np.searchsorted(starts, rows, side="right") - 1, starts

    def _check_description(self) -> None:
        """Raise an error if the folder describes another space: its vectors would be taken for ours."""
        try:
            description = parse_json((self.folder / "space.json").read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return
        if not isinstance(description, dict) or space_name(description) != self.folder.name:
            description = description if isinstance(description, dict) else {}
            raise StorageError(
                f"{self.folder} holds latents of another model, template or reading "
                f"({description.get('backbone')}, {description.get('template')!r}); remove that folder."
            )

    def _write(self, name: str, segment: Segment) -> None:
        description = self.folder / "space.json"
        if not description.exists():
            with atomic_file(description) as temporary:
                temporary.write_text(json.dumps(self.space, indent=1, sort_keys=True), encoding="utf-8")
        tensors: dict[str, NDArray[Any]] = {"keys": segment.keys, "values": segment.values, "scales": segment.scales}
        with atomic_file(self.folder / name) as temporary:
            save_file(tensors, temporary, metadata={"sha256": segment.digest()})

    def _register(self, segment: Segment) -> None:
        self._segments.append(segment)
        self._index = None

    def _key_index(self) -> KeyIndex:
        if self._index is None:
            tables = [segment.keys.view(_KEY).ravel() for segment in self._segments]
            self._index = KeyIndex(np.concatenate(tables) if tables else np.empty(0, _KEY))
        return self._index


class KeyIndex:
    """Finds keys by binary search. It takes 24 bytes per key; a dict takes about 200.

    Args:
        keys: The keys; of equal ones, the first is found.
    """

    def __init__(self, keys: Keys) -> None:
        self._order = np.argsort(keys, kind="stable")
        self._sorted = keys[self._order]

    @property
    def n_unique(self) -> int:
        """Number of different keys."""
        return len(self._sorted) and 1 + int((self._sorted[1:] != self._sorted[:-1]).sum())

    def find(self, keys: Keys) -> NDArray[np.intp]:
        """[keys] row of each key; -1 where there is none."""
        if not len(self._sorted):
            return np.full(len(keys), -1)
        positions = np.minimum(np.searchsorted(self._sorted, keys), len(self._sorted) - 1)
        return np.where(self._sorted[positions] == keys, self._order[positions], -1)


@dataclass(frozen=True)
class Segment:
    """Vectors of some texts: [reading, text, dim] in 16 bits or int8, with one scale per vector.

    In 16 bits the scale is the power of two above the vector's largest value, so no activation is too large and the
    largest values keep 11 significant bits. In int8 it is a 127th of the largest value.
    """

    keys: NDArray[np.uint8]
    values: NDArray[np.float16 | np.int8]
    scales: NDArray[np.float32]
    sha256: str | None = None
    """Checksum that it was written with; None if it was not written."""

    @classmethod
    def pack(cls, keys: Sequence[bytes] | Keys, latents: NDArray[np.float32], precision: str = "float16") -> Segment:
        """Return the segment of [text, reading, dim] float32 vectors."""
        by_reading = np.swapaxes(latents, 0, 1)
        largest = np.maximum(latents.max(axis=2), -latents.min(axis=2)).T
        largest = np.where(largest > 0, largest, 1.0)
        values: NDArray[np.float16 | np.int8]
        if precision == "int8":
            scales = np.maximum(largest / 127, np.finfo(np.float32).tiny).astype(np.float32)
            values = np.rint(by_reading / scales[..., None]).astype(np.int8)
        else:
            scales = np.exp2(np.minimum(np.ceil(np.log2(largest)), 127)).astype(np.float32)
            values = _converted(by_reading / scales[..., None], "float16")
        key_table = _as_keys(keys).view(np.uint8).reshape(len(keys), _KEY.itemsize)
        # safetensors writes the memory of an array in order, whatever its strides
        return cls(key_table, np.ascontiguousarray(values), np.ascontiguousarray(scales))

    def read(self, rows: NDArray[np.intp], readings: Sequence[int] | slice) -> NDArray[np.float32]:
        """Return [text, reading, dim] float32 vectors of some rows."""
        indices = range(len(self.values))[readings] if isinstance(readings, slice) else readings
        return np.stack([self.vectors(reading, rows) for reading in indices], axis=1)

    def vectors(self, reading: int, rows: NDArray[np.intp]) -> NDArray[np.float32]:
        """Return [text, dim] float32 vectors of some rows."""
        return np.asarray(_converted(self.values[reading, rows], "float32") * self.scales[reading, rows, None])

    def is_intact(self) -> bool:
        """Whether it is as it was written."""
        return self.sha256 in (None, self.digest())

    def emptied(self) -> Segment:
        """The segment without its texts."""
        return Segment(self.keys[:0], self.values[:, :0], self.scales[:, :0])

    def digest(self) -> str:
        """Checksum of keys, values and scales."""
        total = hashlib.sha256()
        for array in (self.keys, self.values, self.scales):
            total.update(np.ascontiguousarray(array).view(np.uint8).data)
        return total.hexdigest()


def _converted(values: NDArray[Any], dtype: str) -> NDArray[Any]:
    """The values in another dtype, in the order of the dimensions; NumPy converts 16 bits 5 to 20 times slower."""
    import torch

    converted = torch.from_numpy(values).to(getattr(torch, dtype)).contiguous()
    return np.asarray(converted.numpy())


def text_key(text: str) -> bytes:
    """Return the key of a text within a space."""
    return hashlib.sha256(text.encode("utf-8")).digest()[: _KEY.itemsize]


def text_keys(texts: Iterable[str]) -> Keys:
    """Return [texts] keys of texts within a space."""
    return np.fromiter(map(text_key, texts), _KEY)


def _as_keys(keys: Sequence[bytes] | Keys) -> Keys:
    return keys if isinstance(keys, np.ndarray) else np.frombuffer(b"".join(keys), _KEY)


def space_name(space: dict[str, Any]) -> str:
    """Return the fingerprint of everything that changes a vector; the name of the backbone or teacher does not."""
    return fingerprint({key: value for key, value in space.items() if key not in ("backbone", "name")})


def store_root() -> Path:
    """Return the folder that holds all spaces."""
    return cache_root() / "latents"


def find_covering_space(
    space: dict[str, Any], keys: Sequence[bytes] | Keys, *, root: Path | None = None
) -> list[Any] | None:
    """Find a space on disk that contains all readings of `space` and is otherwise equal; return its readings.

    Of several, the one that holds most of the keys is chosen, then the one with the fewest readings.
    """
    candidates: list[tuple[int, int, list[Any]]] = []
    required = {key: value for key, value in space.items() if key not in ("readings", "backbone")}
    for file in (root or store_root()).glob("*/space.json"):
        try:
            other = parse_json(file.read_text(encoding="utf-8"))
            same = all(other[key] == value for key, value in required.items())
            if same and all(list(reading) in other["readings"] for reading in space["readings"]):
                store = Store(other, root=root)
                candidates.append((int(store.contains(keys).sum()), -len(other["readings"]), other["readings"]))
        except (OSError, ValueError, KeyError, TypeError, StorageError):
            continue
    return max(candidates, key=lambda candidate: candidate[:2])[2] if candidates else None


def open_segment(file: Path) -> Segment:
    """Map a segment into memory; nothing is read until it is used."""
    try:
        return _map_segment(file)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise StorageError(f"{file} is damaged ({error})") from error


def _map_segment(file: Path) -> Segment:
    """The segment over the mapped file: safetensors is a length, a JSON header and plain bytes."""
    with file.open("rb") as handle:
        memory = mmap.mmap(handle.fileno(), 0, access=mmap.ACCESS_READ)
    size = int.from_bytes(memory[:8], "little")
    header = parse_json(memory[8 : 8 + size])
    metadata = header.pop("__metadata__", {})
    arrays = {}
    for name, entry in header.items():
        begin, end = entry["data_offsets"]
        dtype = np.dtype(_DTYPES[entry["dtype"]])
        count = (end - begin) // dtype.itemsize
        arrays[name] = np.frombuffer(memory, dtype, count, offset=8 + size + begin).reshape(entry["shape"])
    return Segment(arrays["keys"], arrays["values"], arrays["scales"], metadata["sha256"])


# --- maintenance ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SpaceReport:
    """What `d2v cache ls` and `d2v cache verify` report about one space."""

    name: str
    space: dict[str, Any]
    texts: int
    size: int
    """Bytes of all segments."""
    damaged: tuple[str, ...] = ()
    """File names of damaged segments."""


def iter_spaces(*, verify: bool = False, root: Path | None = None) -> Iterator[SpaceReport]:
    """Yield a report on every space on disk.

    Args:
        verify: Recompute the checksum of every segment, and remove stray temporary files.
        root: The folder that holds all spaces; the user's cache by default.
    """
    base = root or store_root()
    for folder in sorted(path for path in base.glob("*") if path.is_dir()):
        try:
            space = parse_json((folder / "space.json").read_text(encoding="utf-8"))
        except (OSError, ValueError):
            space = {}
        space = space if isinstance(space, dict) else {}
        segments = list(folder.glob("seg-*.safetensors"))
        damaged = tuple(file.name for file in segments if verify and not _is_intact(file))
        if verify:
            _remove_strays(folder)
        store = Store(space, root=base) if space_name(space) == folder.name else None
        size = sum(file.stat().st_size for file in segments)
        yield SpaceReport(folder.name, space, len(store) if store is not None else 0, size, damaged)


def delete_space(name: str, *, root: Path | None = None) -> None:
    """Delete one space, or all spaces if the name is "all"."""
    base = root or store_root()
    existing = [path.name for path in base.glob("*") if path.is_dir()]
    if name != "all" and name not in existing:
        raise unknown_name("cache entry", name, existing or ["(the cache is empty)"])
    for space in existing if name == "all" else [name]:
        shutil.rmtree(base / space)


def delete_damaged_segments(report: SpaceReport, *, root: Path | None = None) -> None:
    """Delete the damaged segments of a space, so that their texts are computed again."""
    for name in report.damaged:
        ((root or store_root()) / report.name / name).unlink(missing_ok=True)


def _is_intact(file: Path) -> bool:
    try:
        return _map_segment(file).is_intact()
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False


def _remove_strays(folder: Path) -> None:
    """Delete temporary files that version 0.1 left; recent ones may belong to a running process."""
    for file in folder.glob(".tmp*"):
        if file.is_file() and time.time() - file.stat().st_mtime > _STRAY_SECONDS:
            os.unlink(file)
