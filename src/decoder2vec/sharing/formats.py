"""Every form in which an encoder can be handed on, by name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch

from decoder2vec.encoder import Encoder
from decoder2vec.errors import InputError, unknown_name
from decoder2vec.sharing.peft_folder import export_peft
from decoder2vec.sharing.sentence_transformers_folder import export_sentence_transformers
from decoder2vec.sharing.transformers_folder import export_transformers

FORMATS: dict[str, Callable[[Encoder, Path], str]] = {
    "sentence-transformers": export_sentence_transformers,
    "peft": export_peft,
    "transformers": export_transformers,
}


def export(
    encoder: Encoder | str | Path, name: str, folder: str | Path, *, device: str | torch.device | None = None
) -> str:
    """Write an encoder, or the one saved in a folder, to a new folder in that format; what was written, in words."""
    if name not in FORMATS:
        raise unknown_name("format", name, FORMATS)
    target = Path(folder)
    if target.is_file() or (target.is_dir() and any(target.iterdir())):
        raise InputError(f"{target} is there already; choose another folder.")
    if not isinstance(encoder, Encoder):
        encoder = Encoder.load(encoder, device=device, dtype="float32")
    return FORMATS[name](encoder, target)
