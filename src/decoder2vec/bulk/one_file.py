"""Embedding of more texts than fit into memory: streamed in shards, resumable, written to one file at the end.

Shards are written to `OUT.parts/`. Each is named by its index and stores the hash of its texts, and the folder stores
the fingerprint and dtype of the encoder, so a second run reuses exactly the shards that are still valid and computes
the others, also those that were damaged meanwhile.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import logging
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from decoder2vec.activations.extract import without_truncation_warnings
from decoder2vec.backbone.fingerprint import file_sha256
from decoder2vec.bulk.files import import_pyarrow
from decoder2vec.encoder import Encoder
from decoder2vec.errors import InputError
from decoder2vec.progress import current_progress
from decoder2vec.storage import atomic_file, check_replaceable, parse_json, write_lock

log = logging.getLogger(__name__)

_SHARD_SIZE = 512
"""Texts per shard."""
_LOCK_FILE = ".writing"
_OWNER_FILE = "encoder"

Shards = Iterator[tuple[list[str], NDArray[np.float32]]]
Writer = Callable[[Path, Shards, int, int], None]
"""Writes shards to a file, given their total number of texts and the dimension of the vectors."""


def embed_texts(
    encoder: Encoder,
    texts: Iterable[str],
    out: Path,
    *,
    normalize: bool = False,
    n_texts: int | None = None,
) -> int:
    """Embed a stream of texts and write the vectors to a file.

    Args:
        encoder: The encoder.
        texts: The texts; they are read one shard at a time.
        out: The file to write: .npy (vectors only), .jsonl or .parquet (texts and vectors).
        normalize: Scale the vectors to unit length.
        n_texts: How many texts there are, for the progress; None if that is not known.

    Returns:
        The number of texts.
    """
    write = get_writer(out)
    with _shard_folder(out) as folder:
        owner = f"{encoder.fingerprint}-{int(normalize)}-{encoder.backbone.dtype}" + "-exact" * encoder.exact
        _delete_foreign_shards(folder, owner)
        total = n_shards = 0
        stream, progress, overlong = iter(texts), current_progress(), encoder.stats.overlong
        with progress.phase("encoding", n_texts), without_truncation_warnings():  # they would count within a shard
            while shard := list(itertools.islice(stream, _SHARD_SIZE)):
                _embed_shard(encoder, shard, folder, n_shards, normalize)
                total, n_shards = total + len(shard), n_shards + 1
                progress.advance(0, f"{total:,} texts")
        if encoder.spec.on_overflow == "truncate" and (cut := encoder.stats.overlong - overlong):
            log.warning("%d of %d texts are longer than %d tokens; they were cut.", cut, total, encoder.max_seq_length)
        with progress.phase("saving"), atomic_file(out) as temporary:
            write(temporary, (_read_shard(folder, index) for index in range(n_shards)), total, encoder.dim)
        shutil.rmtree(folder, ignore_errors=True)
    return total


def get_writer(out: Path) -> Writer:
    """Return the writer for the suffix of a file name; an unknown suffix is an error that lists the known ones."""
    if out.suffix not in _WRITERS:
        raise InputError(f"Cannot write {out.name!r}: the name must end in {', '.join(_WRITERS)}.")
    if out.suffix == ".parquet":
        import_pyarrow()
    return _WRITERS[out.suffix]


@contextmanager
def _shard_folder(out: Path) -> Iterator[Path]:
    """The folder for the shards of a file, locked, since two runs would mix their rows; one without shards is deleted.

    Raises:
        InputError: A folder of that name holds files that are no shards.
        StorageError: Another process writes the same file.
    """
    folder = out.with_name(out.name + ".parts")
    check_replaceable(folder, (_LOCK_FILE, _OWNER_FILE, "????????.npy", "????????.json"))
    with write_lock(folder / _LOCK_FILE, str(out)):
        try:
            yield folder
        finally:
            if not any(folder.glob("*.json")):
                shutil.rmtree(folder, ignore_errors=True)


def _delete_foreign_shards(folder: Path, owner: str) -> None:
    """Delete shards of another encoder, normalisation, dtype or exactness, and note whose shards will be written."""
    owner_file = folder / _OWNER_FILE
    if owner_file.is_file() and owner_file.read_text(encoding="utf-8") == owner:
        return
    for file in folder.glob("????????.*"):
        file.unlink()
    with atomic_file(owner_file) as temporary:
        temporary.write_text(owner, encoding="utf-8")


def _embed_shard(encoder: Encoder, texts: list[str], folder: Path, index: int, normalize: bool) -> None:
    digest = hashlib.sha256(json.dumps(texts).encode()).hexdigest()
    texts_file, vectors_file = folder / f"{index:08d}.json", folder / f"{index:08d}.npy"
    if _is_stored(texts_file, vectors_file, digest):
        current_progress().remaining_work -= len(texts)
        return
    vectors = encoder.encode(texts, normalize_embeddings=normalize)
    texts_file.unlink(missing_ok=True)  # a stop between the two files below must not leave old texts with new vectors
    with atomic_file(vectors_file) as temporary:
        _write_npy(temporary, iter([(texts, vectors)]), *vectors.shape)
    content = {"sha256": digest, "vectors": file_sha256(vectors_file, cache_result=False), "texts": texts}
    with atomic_file(texts_file) as temporary:
        temporary.write_text(json.dumps(content), encoding="utf-8")


def _is_stored(texts_file: Path, vectors_file: Path, digest: str) -> bool:
    """Whether a shard of these texts is there, and as it was written."""
    try:
        content = parse_json(texts_file.read_text(encoding="utf-8"))
        is_unchanged = hashlib.sha256(json.dumps(content["texts"]).encode()).hexdigest() == content["sha256"] == digest
        return bool(is_unchanged and content["vectors"] == file_sha256(vectors_file, cache_result=False))
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _read_shard(folder: Path, index: int) -> tuple[list[str], NDArray[np.float32]]:
    texts = parse_json((folder / f"{index:08d}.json").read_text(encoding="utf-8"))["texts"]
    return texts, np.load(folder / f"{index:08d}.npy", mmap_mode="r", allow_pickle=False)


def _write_npy(file: Path, shards: Shards, total: int, dim: int) -> None:
    """Write shard by shard: a full disk is an error of `write`, where it would kill a process that maps the file."""
    header = {"descr": np.dtype(np.float32).str, "fortran_order": False, "shape": (total, dim)}
    with file.open("wb") as handle:
        np.lib.format.write_array_header_1_0(handle, header)
        for _, vectors in shards:
            handle.write(vectors.astype(np.float32, copy=False).tobytes())


def _write_jsonl(file: Path, shards: Shards, total: int, dim: int) -> None:
    with file.open("w", encoding="utf-8") as handle:
        for texts, vectors in shards:
            for text, vector in zip(texts, vectors, strict=True):
                row = {"text": text, "embedding": [float(f"{value:.9g}") for value in vector]}  # every bit of float32
                handle.write(json.dumps(row, ensure_ascii=False) + "\n")


def _write_parquet(file: Path, shards: Shards, total: int, dim: int) -> None:
    arrow, parquet = import_pyarrow()
    schema = arrow.schema([("text", arrow.string()), ("embedding", arrow.list_(arrow.float32(), dim))])
    with parquet.ParquetWriter(file, schema) as writer:
        for texts, vectors in shards:
            column = arrow.FixedSizeListArray.from_arrays(arrow.array(np.ravel(vectors)), dim)
            writer.write_table(arrow.table([arrow.array(texts), column], schema=schema))


_WRITERS: dict[str, Writer] = {".npy": _write_npy, ".jsonl": _write_jsonl, ".parquet": _write_parquet}
