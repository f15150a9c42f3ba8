"""Tensors in safetensors files with a checksum: a torn or changed file is never taken for what was written."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from decoder2vec.errors import StorageError
from decoder2vec.storage import atomic_file


def save_tensors(tensors: Mapping[str, Tensor], file: Path, metadata: Mapping[str, str]) -> None:
    """Write tensors and metadata; an existing file is replaced.

    Raises:
        OSError: The file cannot be written; it is named as `file`.
    """
    copies = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
    with atomic_file(file) as temporary:
        save_file(copies, temporary, metadata={**metadata, "sha256": _digest(copies)})


def load_tensors(file: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Return tensors and metadata; a file of version 0.1 has no checksum and is not compared with it.

    Raises:
        StorageError: The file cannot be read, or is not as it was written.
    """
    try:
        with safe_open(file, framework="pt") as handle:  # type: ignore[no-untyped-call]
            metadata = dict(handle.metadata() or {})
            tensors = {name: handle.get_tensor(name) for name in handle.keys()}  # noqa: SIM118
    except (OSError, SafetensorError, RuntimeError) as error:
        raise StorageError(f"{file} is damaged ({error}).") from error
    if metadata.pop("sha256", None) not in (None, _digest(tensors)):
        raise StorageError(f"{file} is damaged: it is not as it was written.")
    return tensors, metadata


def _digest(tensors: Mapping[str, Tensor]) -> str:
    total = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        total.update(name.encode())
        total.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return total.hexdigest()
