"""Which model is this? A fingerprint of a model folder that is the same on every machine and in every version."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from decoder2vec.config import fingerprint
from decoder2vec.storage import atomic_file, cache_root

_NOTE = "source.json"
_CONVERSION = 1
"""Raise this when the conversion of GGUF files changes what vectors come out."""

_VOLATILE = ("transformers_version", "_name_or_path", "_model_name_or_path", "dtype", "is_causal")
_TOKENIZER = ("tokenizer.json", "tokenizer.model", "tokenizer_config.json", "special_tokens_map.json")


def folder_fingerprint(folder: Path) -> str:
    """Hash of everything in a model folder that changes a vector.

    A converted GGUF file is known by the file it came from: versions of the libraries that convert it write slightly
    different folders, and an encoder made on one machine must load on another.
    """
    weights = {file.name: file_sha256(file) for file in weight_files(folder)}
    note = folder / _NOTE
    if note.is_file():
        source = json.loads(note.read_text(encoding="utf-8"))
        if source["weights"] == weights:
            return fingerprint("gguf", source["sha256"], source["conversion"])
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    for key in _VOLATILE:
        config.pop(key, None)
    texts = {name: file_sha256(folder / name) for name in _TOKENIZER if (folder / name).is_file()}
    return fingerprint(weights, config, texts)


def record_gguf_source(folder: Path, gguf: Path) -> None:
    """Remember which file a folder was converted from, and what was written then."""
    weights = {file.name: file_sha256(file, remember=False) for file in weight_files(folder)}
    source = {"sha256": file_sha256(gguf), "conversion": _CONVERSION, "weights": weights}
    (folder / _NOTE).write_text(json.dumps(source, indent=1), encoding="utf-8")


def weight_files(folder: Path) -> list[Path]:
    """The safetensors files of a model folder, in a fixed order."""
    return sorted(folder.glob("*.safetensors"))


def file_sha256(file: Path, *, remember: bool = True) -> str:
    """Content hash of a file; remembered by place, size and time stamp, since weights are large."""
    stat = file.stat()
    stamp = f"{file.resolve()}|{stat.st_size}|{stat.st_mtime_ns}"
    note = cache_root() / "hashes" / f"{hashlib.sha256(stamp.encode()).hexdigest()[:32]}.json"
    try:
        return str(json.loads(note.read_text())["sha256"])
    except (OSError, ValueError, KeyError):
        pass
    with file.open("rb") as handle:
        digest = hashlib.file_digest(handle, "sha256").hexdigest()
    if remember:
        try:
            with atomic_file(note) as temporary:
                temporary.write_text(json.dumps({"sha256": digest, "file": stamp}))
        except OSError:  # a read-only cache costs time, not correctness
            pass
    return digest
