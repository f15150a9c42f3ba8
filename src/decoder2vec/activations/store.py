"""Latents on disk: computed once, found again by what they are.

A *space* is a folder named by the fingerprint of everything that changes a vector (weights, tokenizer, template,
length limit, readings, direction, dtype). In it lie immutable *segments*: safetensors files with the keys of some
texts and their vectors, laid out reading by reading so that one layer of a whole corpus is one sweep over memory.
A segment appears by rename, whole or not at all. That is why nothing needs a lock: a kill leaves a stray temporary
file, and two processes at work on the same corpus write two segments, of which readers take either.
"""

from __future__ import annotations

import hashlib
import json
import logging
import mmap
import os
import shutil
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import save_file

from decoder2vec.config import fingerprint
from decoder2vec.errors import StorageError, unknown_name
from decoder2vec.storage import atomic_file, cache_root

log = logging.getLogger(__name__)

_KEY_BYTES = 16
_DTYPES = {"F32": np.float32, "F16": np.float16, "U8": np.uint8}


def text_key(text: str) -> bytes:
    """The key of a text inside a space."""
    return hashlib.sha256(text.encode("utf-8")).digest()[:_KEY_BYTES]


def space_name(space: dict[str, Any]) -> str:
    """The hash of all that changes a vector; what the user calls the backbone does not."""
    return fingerprint({key: value for key, value in space.items() if key != "backbone"})


@dataclass(frozen=True)
class Segment:
    """Vectors of some texts: [reading, text, dim] in 16 bits, each vector with a scale of its own.

    The scale is the power of two above the vector's largest value, so no activation is too large for 16 bits
    and the largest values keep 11 significant bits.
    """

    keys: NDArray[np.uint8]
    values: NDArray[np.float16]
    scales: NDArray[np.float32]

    @classmethod
    def pack(cls, keys: Sequence[bytes], latents: NDArray[np.float32]) -> Segment:
        """From [text, reading, dim] float32 vectors."""
        by_reading = np.swapaxes(latents, 0, 1)
        largest = np.abs(by_reading).max(axis=2)
        scales = np.exp2(np.minimum(np.ceil(np.log2(np.where(largest > 0, largest, 1.0))), 127)).astype(np.float32)
        values = (by_reading / scales[..., None]).astype(np.float16)
        table = np.frombuffer(b"".join(keys), dtype=np.uint8).reshape(len(keys), _KEY_BYTES)
        # safetensors writes memory as it lies, whatever the strides
        return cls(table, np.ascontiguousarray(values), np.ascontiguousarray(scales))

    def read(self, rows: NDArray[np.intp], readings: Sequence[int] | slice) -> NDArray[np.float32]:
        """[text, reading, dim] float32 vectors of some rows."""
        index = range(len(self.values))[readings] if isinstance(readings, slice) else readings
        parts = [self.values[r, rows].astype(np.float32) * self.scales[r, rows, None] for r in index]
        return np.stack(parts, axis=1)

    def digest(self) -> str:
        """Checksum over keys, values and scales."""
        total = hashlib.sha256()
        for part in (self.keys, self.values, self.scales):
            total.update(np.ascontiguousarray(part).view(np.uint8).data)
        return total.hexdigest()


class Store:
    """The latents of one space. Open it with a description of the space; add texts; read them back."""

    def __init__(self, space: dict[str, Any], *, root: Path | None = None) -> None:
        self.space = space
        self.folder = (root or store_root()) / space_name(space)
        self.writable = True
        self._segments: list[Segment] = []
        self._where: dict[bytes, tuple[int, int]] = {}
        self._seen: set[str] = set()
        self._check_note()
        self.refresh()

    def __len__(self) -> int:
        return len(self._where)

    def __contains__(self, key: object) -> bool:
        return key in self._where

    def refresh(self) -> None:
        """Take in segments that appeared since the last look, from this process or another."""
        for file in sorted(self.folder.glob("seg-*.safetensors")):
            if file.name in self._seen:
                continue
            self._seen.add(file.name)
            try:
                self._take(open_segment(file))
            except StorageError as error:
                log.warning("%s; its texts will be computed again", error)

    def _check_note(self) -> None:
        """A folder that says it holds another space is refused: its vectors would be taken for ours."""
        try:
            note = json.loads((self.folder / "space.json").read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return
        if not isinstance(note, dict) or space_name(note) != self.folder.name:
            note = note if isinstance(note, dict) else {}
            raise StorageError(
                f"{self.folder} holds latents of another model, template or reading "
                f"({note.get('backbone')}, {note.get('template')!r}); remove that folder."
            )

    def add(self, keys: Sequence[bytes], latents: NDArray[np.float32]) -> None:
        """Keep [text, reading, dim] vectors. A disk that refuses costs the cache, not the work."""
        segment = Segment.pack(keys, latents)
        if self.writable:
            name = f"seg-{uuid.uuid4().hex}.safetensors"
            try:
                self._write(name, segment)
                segment = open_segment(self.folder / name)
                self._seen.add(name)
            except (OSError, SafetensorError) as error:
                self.writable = False
                log.warning(
                    "Cannot write latents to %s (%s); going on without the cache. Free some space with "
                    "`d2v cache rm`, or point D2V_CACHE to another folder.",
                    self.folder,
                    getattr(error, "strerror", None) or error,
                )
        self._take(segment)

    def read(self, keys: Sequence[bytes], readings: Sequence[int] | slice = slice(None)) -> NDArray[np.float32]:
        """[text, reading, dim] float32 vectors, one row per key, in the order asked."""
        places = self.places(keys)
        result: NDArray[np.float32] | None = None
        for number in np.unique(places[:, 0]):
            rows = np.flatnonzero(places[:, 0] == number)
            part = self._segments[number].read(places[rows, 1], readings)
            if result is None:
                result = np.empty((len(keys), *part.shape[1:]), dtype=np.float32)
            result[rows] = part
        return np.empty((0, 0, 0), np.float32) if result is None else result

    def places(self, keys: Sequence[bytes]) -> NDArray[np.intp]:
        """[text, 2] segment and row of each key, for `read_into`."""
        return np.array([self._where[key] for key in keys], dtype=np.intp).reshape(len(keys), 2)

    def read_into(self, out: NDArray[np.float32], places: NDArray[np.intp], columns: Sequence[tuple[int, int]]) -> None:
        """Fill `out`, [reading, text, dim]; `columns` pairs each reading of `out` with one of the store's."""
        for number in np.unique(places[:, 0]):
            segment, here = self._segments[number], np.flatnonzero(places[:, 0] == number)
            rows = places[here, 1]
            for target, source in columns:
                values = segment.values[source, rows].astype(np.float32)
                out[target, here] = values * segment.scales[source, rows, None]

    def _write(self, name: str, segment: Segment) -> None:
        note = self.folder / "space.json"
        if not note.exists():
            with atomic_file(note) as temporary:
                temporary.write_text(json.dumps(self.space, indent=1, sort_keys=True), encoding="utf-8")
        tensors: dict[str, NDArray[Any]] = {"keys": segment.keys, "values": segment.values, "scales": segment.scales}
        with atomic_file(self.folder / name) as temporary:
            save_file(tensors, temporary, metadata={"sha256": segment.digest()})

    def _take(self, segment: Segment) -> None:
        number = len(self._segments)
        self._segments.append(segment)
        for row, key in enumerate(segment.keys):
            self._where.setdefault(key.tobytes(), (number, row))


def covering(space: dict[str, Any], keys: Sequence[bytes], *, root: Path | None = None) -> list[Any] | None:
    """The readings of a space on disk that reads at least what this one does, all else being equal.

    Of several, the one that holds most of the keys; of those, the one with the fewest readings.
    """
    found: list[tuple[int, int, list[Any]]] = []
    rest = {key: value for key, value in space.items() if key not in ("readings", "backbone")}
    for note in (root or store_root()).glob("*/space.json"):
        try:
            other = json.loads(note.read_text(encoding="utf-8"))
            same = all(other[key] == value for key, value in rest.items())
            if same and all(list(reading) in other["readings"] for reading in space["readings"]):
                store = Store(other, root=root)
                found.append((sum(key in store for key in keys), -len(other["readings"]), other["readings"]))
        except (OSError, ValueError, KeyError, TypeError, StorageError):
            continue
    return max(found, key=lambda each: each[:2])[2] if found else None


def store_root() -> Path:
    """The folder that holds every space."""
    return cache_root() / "latents"


def open_segment(file: Path) -> Segment:
    """Map a segment into memory; nothing is read until it is used."""
    try:
        parts, _ = _map_tensors(file)
        return Segment(parts["keys"], parts["values"], parts["scales"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise StorageError(f"{file} is damaged ({error})") from error


def _map_tensors(file: Path) -> tuple[dict[str, NDArray[Any]], dict[str, str]]:
    """Arrays over the mapped file, and its metadata: safetensors is a length, a JSON header and plain bytes."""
    with file.open("rb") as handle:
        memory = mmap.mmap(handle.fileno(), 0, access=mmap.ACCESS_READ)
    size = int.from_bytes(memory[:8], "little")
    header = json.loads(memory[8 : 8 + size])
    metadata = header.pop("__metadata__", {})
    parts = {}
    for name, entry in header.items():
        begin, end = entry["data_offsets"]
        dtype = np.dtype(_DTYPES[entry["dtype"]])
        count = (end - begin) // dtype.itemsize
        parts[name] = np.frombuffer(memory, dtype, count, offset=8 + size + begin).reshape(entry["shape"])
    return parts, metadata


@dataclass(frozen=True)
class SpaceReport:
    """What `d2v cache ls` and `verify` say about one space."""

    name: str
    space: dict[str, Any]
    texts: int
    size: int
    damaged: tuple[str, ...] = ()


def spaces(*, verify: bool = False, root: Path | None = None) -> Iterator[SpaceReport]:
    """Every space on disk; with `verify`, every segment's checksum is made again and stray files are removed."""
    base = root or store_root()
    for folder in sorted(path for path in base.glob("*") if path.is_dir()):
        try:
            space = json.loads((folder / "space.json").read_text(encoding="utf-8"))
        except (OSError, ValueError):
            space = {}
        space = space if isinstance(space, dict) else {}
        segments = list(folder.glob("seg-*.safetensors"))
        damaged = tuple(file.name for file in segments if verify and not _is_sound(file))
        if verify:
            _remove_strays(folder)
        store = Store(space, root=base) if space_name(space) == folder.name else None
        size = sum(file.stat().st_size for file in segments)
        yield SpaceReport(folder.name, space, len(store) if store is not None else 0, size, damaged)


def remove(name: str, *, root: Path | None = None) -> None:
    """Delete one space, or every space with the name "all"."""
    base = root or store_root()
    names = [path.name for path in base.glob("*") if path.is_dir()]
    if name != "all" and name not in names:
        raise unknown_name("cache entry", name, names or ["(the cache is empty)"])
    for each in names if name == "all" else [name]:
        shutil.rmtree(base / each)


def drop_damaged(report: SpaceReport, *, root: Path | None = None) -> None:
    """Delete the damaged segments of a space, so that their texts are computed again."""
    for name in report.damaged:
        ((root or store_root()) / report.name / name).unlink(missing_ok=True)


def _is_sound(file: Path) -> bool:
    try:
        parts, metadata = _map_tensors(file)
        segment = Segment(parts["keys"], parts["values"], parts["scales"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False
    return metadata.get("sha256") == segment.digest()


def _remove_strays(folder: Path, *, older_than: float = 3600.0) -> None:
    """Temporary files of processes that were killed; young ones may belong to a living process."""
    import time

    for file in folder.glob(".tmp*"):
        if time.time() - file.stat().st_mtime > older_than:
            os.unlink(file)
