"""What a training starts from: a model, or an encoder that was trained before."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from decoder2vec.adapters.lora import Lora
from decoder2vec.backbone.backbone import FOUR_BIT, Backbone
from decoder2vec.backbone.sources import Notify
from decoder2vec.encoder import Encoder, is_encoder_folder
from decoder2vec.errors import UnsupportedError
from decoder2vec.export.transformers import write_model
from decoder2vec.storage import atomic_folder, cache_root


def load_base_model(
    name: str | Path, *, device: Any = None, dtype: str | torch.dtype | None = None, notify: Notify = lambda _: None
) -> tuple[Backbone, bool]:
    """The backbone to train, and whether its weights must come along with what is made of it.

    Of an encoder the model is taken, with LoRA merged into its weights; how the encoder reads them is forgotten. Merged
    weights are kept in the cache, so that a run that is taken up finds them again.
    """
    if not is_encoder_folder(name):
        return Backbone.load(name, device=device, dtype=dtype, notify=notify), False
    backbone = Encoder.load(name, device=device, dtype=None if dtype == FOUR_BIT else dtype).backbone
    if backbone.adapter is None:
        inside = Path(name) / "backbone"
        if dtype == FOUR_BIT:
            backbone = Backbone.load(inside if inside.is_dir() else backbone.name, device=device, dtype=dtype)
        return backbone, inside.is_dir()
    if not isinstance(backbone.adapter, Lora):
        raise UnsupportedError(
            f"{name} reads its model through a {backbone.adapter.kind}, which cannot be merged into the weights; "
            "training can go on from models, and from encoders made by freeze, lora or full."
        )
    kind = f"{backbone.attention.replace(':', '-')}-{str(backbone.dtype).removeprefix('torch.')}"
    folder = cache_root() / "models" / f"merged-{backbone.identity}-{kind}"
    if not folder.is_dir():
        notify(f"merging the LoRA of {name} into its model, once")
        with atomic_folder(folder) as target:
            write_model(backbone, target)
    return Backbone.load(folder, attention=backbone.attention, device=device, dtype=dtype), True


def describe_base_model(name: str | Path, model: Backbone, *, onward: bool = False) -> dict[str, Any]:
    """What results shall call the model that `start_from` gave: by what a user named, not by where weights are kept."""
    if not (onward or is_encoder_folder(name)):
        return {}
    return {"backbone": {"name": str(name), "fingerprint": model.fingerprint}}
