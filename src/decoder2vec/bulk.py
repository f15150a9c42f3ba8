"""Embed more texts than fit into memory: streamed in shards, resumable, written in the end as one file.

Shards lie in `OUT.parts/`. Each is named by its number and carries the hash of its texts, and the folder carries the
encoder's fingerprint, so a second run takes over exactly what is still true and computes the rest.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import shutil
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from decoder2vec.encoder import Encoder
from decoder2vec.errors import InputError, MissingExtraError
from decoder2vec.storage import atomic_file

_SHARD = 512

Shards = Iterator[tuple[list[str], NDArray[np.float32]]]
Writer = Callable[[Path, Shards, int, int], None]


def embed_texts(
    encoder: Encoder,
    texts: Iterable[str],
    out: Path,
    *,
    normalize: bool = False,
    progress: Callable[[int], object] = lambda _: None,
) -> int:
    """Write the vectors of all texts to `out`, whose suffix chooses the format; returns how many there are."""
    write = writer_for(out)
    parts = out.with_name(out.name + ".parts")
    owner = f"{encoder.fingerprint}-{int(normalize)}"
    _drop_others(parts, owner)
    total = number = 0
    stream = iter(texts)
    while shard := list(itertools.islice(stream, _SHARD)):
        _shard(encoder, shard, parts, owner, number, normalize)
        total, number = total + len(shard), number + 1
        progress(len(shard))
    with atomic_file(out) as temporary:
        write(temporary, (_read(parts, n) for n in range(number)), total, encoder.dim)
    shutil.rmtree(parts, ignore_errors=True)
    return total


def writer_for(out: Path) -> Writer:
    """The writer for a file name, or an error that names the formats."""
    if out.suffix not in _WRITERS:
        raise InputError(f"Cannot write {out.name!r}: the name must end in {', '.join(_WRITERS)}.")
    if out.suffix == ".parquet":
        _pyarrow()
    return _WRITERS[out.suffix]


def _drop_others(parts: Path, owner: str) -> None:
    """Shards of another encoder are dropped."""
    note = parts / "encoder"
    if parts.exists() and (not note.is_file() or note.read_text(encoding="utf-8") != owner):
        shutil.rmtree(parts)


def _shard(encoder: Encoder, texts: list[str], parts: Path, owner: str, number: int, normalize: bool) -> None:
    digest = hashlib.sha256(json.dumps(texts).encode()).hexdigest()
    note = parts / f"{number:08d}.json"
    if note.is_file() and json.loads(note.read_text(encoding="utf-8"))["sha256"] == digest:
        return
    vectors = encoder.encode(texts, normalize_embeddings=normalize)
    parts.mkdir(parents=True, exist_ok=True)
    (parts / "encoder").write_text(owner, encoding="utf-8")
    note.unlink(missing_ok=True)  # a stop between the two files below must not leave old texts beside new vectors
    with atomic_file(parts / f"{number:08d}.npy") as temporary, temporary.open("wb") as handle:
        np.save(handle, vectors)
    with atomic_file(note) as temporary:
        temporary.write_text(json.dumps({"sha256": digest, "texts": texts}), encoding="utf-8")


def _read(parts: Path, number: int) -> tuple[list[str], NDArray[np.float32]]:
    texts = json.loads((parts / f"{number:08d}.json").read_text(encoding="utf-8"))["texts"]
    return texts, np.load(parts / f"{number:08d}.npy", mmap_mode="r", allow_pickle=False)


def _write_npy(file: Path, shards: Shards, total: int, dim: int) -> None:
    if not total:
        with file.open("wb") as handle:
            np.save(handle, np.empty((0, dim), np.float32))
        return
    array = np.lib.format.open_memmap(file, mode="w+", dtype=np.float32, shape=(total, dim))
    row = 0
    for _, vectors in shards:
        array[row : row + len(vectors)] = vectors
        row += len(vectors)
    array.flush()


def _write_jsonl(file: Path, shards: Shards, total: int, dim: int) -> None:
    with file.open("w", encoding="utf-8") as handle:
        for texts, vectors in shards:
            for text, vector in zip(texts, vectors, strict=True):
                row = {"text": text, "embedding": [float(f"{value:.7g}") for value in vector]}
                handle.write(json.dumps(row, ensure_ascii=False) + "\n")


def _write_parquet(file: Path, shards: Shards, total: int, dim: int) -> None:
    arrow, parquet = _pyarrow()
    schema = arrow.schema([("text", arrow.string()), ("embedding", arrow.list_(arrow.float32(), dim))])
    with parquet.ParquetWriter(file, schema) as writer:
        for texts, vectors in shards:
            column = arrow.FixedSizeListArray.from_arrays(arrow.array(np.ravel(vectors)), dim)
            writer.write_table(arrow.table([arrow.array(texts), column], schema=schema))


def _pyarrow() -> tuple[Any, Any]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise MissingExtraError("pyarrow", "parquet") from None
    return pyarrow, pyarrow.parquet


_WRITERS: dict[str, Writer] = {".npy": _write_npy, ".jsonl": _write_jsonl, ".parquet": _write_parquet}
