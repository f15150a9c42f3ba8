"""The LoRA matrices of an encoder as a folder that peft loads."""

from __future__ import annotations

import json
from pathlib import Path

from decoder2vec.adapters.files import write_adapter
from decoder2vec.adapters.lora import Lora
from decoder2vec.encoder import Encoder
from decoder2vec.errors import UnsupportedError
from decoder2vec.places import whole_folder
from decoder2vec.sharing.card import base_model, peft_card


def export_peft(encoder: Encoder, target: Path) -> str:
    """Write the matrices, which model they belong to, and a card."""
    adapter = encoder.backbone.adapter
    if not isinstance(adapter, Lora):
        raise UnsupportedError(
            "Only LoRA can be written for peft, and this encoder has none; try the format sentence-transformers."
        )
    with whole_folder(target) as folder:
        write_adapter(adapter, folder, encoder.backbone)
        file = folder / "adapter_config.json"
        config = json.loads(file.read_text(encoding="utf-8"))
        config["base_model_name_or_path"] = base_model(encoder)
        file.write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
        (folder / "README.md").write_text(peft_card(encoder), encoding="utf-8")
    settings = adapter.settings()
    return f"LoRA of rank {settings['rank']} for {encoder.backbone.name}"
