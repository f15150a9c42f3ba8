"""The LoRA matrices of an encoder as a folder that peft loads."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import torch

from decoder2vec.adapters.lora import Lora
from decoder2vec.adapters.saving import save_adapter
from decoder2vec.encoder import Encoder
from decoder2vec.errors import InputError, UnsupportedError, unknown_name
from decoder2vec.export.cards import base_model, peft_card
from decoder2vec.export.sentence_transformers import export_sentence_transformers
from decoder2vec.export.transformers import export_transformers
from decoder2vec.storage import atomic_folder


def export_peft(encoder: Encoder, target: Path) -> str:
    """Write the matrices, which model they belong to, and a card."""
    adapter = encoder.backbone.adapter
    if not isinstance(adapter, Lora):
        raise UnsupportedError(
            "Only LoRA can be written for peft, and this encoder has none; try the format sentence-transformers."
        )
    with atomic_folder(target) as folder:
        save_adapter(adapter, folder, encoder.backbone)
        file = folder / "adapter_config.json"
        config = json.loads(file.read_text(encoding="utf-8"))
        config["base_model_name_or_path"] = base_model(encoder)
        file.write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
        (folder / "README.md").write_text(peft_card(encoder), encoding="utf-8")
    settings = adapter.settings()
    return f"LoRA of rank {settings['rank']} for {encoder.backbone.name}"


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
