"""Fingerprint of a model folder: the same on every machine and for every version of the libraries."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

from decoder2vec.config import fingerprint
from decoder2vec.storage import atomic_file, cache_root, parse_json

_SOURCE_FILE = "source.json"
_CONVERSION = 1
"""Increase this when the conversion of GGUF files changes the vectors."""

_VOLATILE_KEYS = ("transformers_version", "_name_or_path", "_model_name_or_path", "dtype", "is_causal")
_TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "tokenizer_config.json", "special_tokens_map.json")


def folder_fingerprint(folder: Path) -> str:
    """Hash of everything in a model folder that changes a vector.

    A converted GGUF file is identified by the file it came from: different versions of the libraries write slightly
    different folders, and an encoder saved on one machine must load on another.
    """
    if source := _gguf_source(folder):
        return fingerprint("gguf", *source)
    config = parse_json((folder / "config.json").read_text(encoding="utf-8"))
    for key in _VOLATILE_KEYS:
        config.pop(key, None)
    tokenizer = {name: file_sha256(folder / name) for name in _TOKENIZER_FILES if (folder / name).is_file()}
    return fingerprint(_hash_weights(folder), config, tokenizer)


def record_gguf_source(folder: Path, gguf: Path) -> None:
    """Write to a converted folder which GGUF file it came from, and the hashes of the weights written."""
    weights = {file.name: file_sha256(file, cache_result=False) for file in weight_files(folder)}
    source = {"sha256": file_sha256(gguf), "conversion": _CONVERSION, "weights": weights}
    (folder / _SOURCE_FILE).write_text(json.dumps(source, indent=1), encoding="utf-8")


def is_whole_conversion(folder: Path) -> bool:
    """Whether a folder is there that a GGUF file was converted to, with the weights that were written."""
    return _gguf_source(folder) is not None


def _gguf_source(folder: Path) -> tuple[str, int] | None:
    """Hash of the GGUF file that a folder comes from, and version of the conversion; None if it has other weights."""
    try:
        source = parse_json((folder / _SOURCE_FILE).read_text(encoding="utf-8"))
        return (source["sha256"], source["conversion"]) if source["weights"] == _hash_weights(folder) else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _hash_weights(folder: Path) -> dict[str, str]:
    return {file.name: file_sha256(file) for file in weight_files(folder)}


def weight_files(folder: Path) -> list[Path]:
    """The safetensors files of a model folder, in a fixed order."""
    return sorted(folder.glob("*.safetensors"))


def file_sha256(file: Path, *, cache_result: bool = True) -> str:
    """SHA-256 of a file's content; cached by path, inode, size and times, since weights are large.

    The time of the last change of the inode is among them: unlike that of the content, no program can set it.
    """
    stat = file.stat()
    stamp = f"{file.resolve()}|{stat.st_ino}|{stat.st_size}|{stat.st_mtime_ns}|{stat.st_ctime_ns}"
    cached = cache_root() / "hashes" / f"{hashlib.sha256(os.fsencode(stamp)).hexdigest()[:32]}.json"
    try:
        return str(parse_json(cached.read_text())["sha256"])
    except (OSError, ValueError, KeyError):
        pass
    with file.open("rb") as handle:
        sha256 = hashlib.file_digest(handle, "sha256").hexdigest()
    if cache_result:
        try:
            with atomic_file(cached) as temporary:
                temporary.write_text(json.dumps({"sha256": sha256, "file": stamp}))
        except OSError:  # a read-only cache costs time, not correctness
            pass
    return sha256
