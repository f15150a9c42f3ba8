"""What a training starts from: a model, or an encoder that was trained before."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from decoder2vec.adapters.lora import Lora
from decoder2vec.backbone.builtin import Say
from decoder2vec.backbone.load import Backbone
from decoder2vec.encoder import Encoder
from decoder2vec.errors import UnsupportedError
from decoder2vec.folder import is_encoder
from decoder2vec.places import cache_root, whole_folder
from decoder2vec.sharing.transformers_folder import write_model


def start_from(name: str | Path, *, device: Any = None, say: Say = lambda _: None) -> tuple[Backbone, bool]:
    """The backbone to train, and whether its weights must come along with what is made of it.

    Of an encoder the model is taken, with LoRA merged into its weights; how the encoder reads them is forgotten. Merged
    weights are kept in the cache, so that a run that is taken up finds them again.
    """
    if not is_encoder(name):
        return Backbone.load(name, device=device, say=say), False
    backbone = Encoder.load(name, device=device).backbone
    if backbone.adapter is None:
        return backbone, (Path(name) / "backbone").is_dir()
    if not isinstance(backbone.adapter, Lora):
        raise UnsupportedError(
            f"{name} reads its model through a {backbone.adapter.kind}, which cannot be merged into the weights; "
            "training can go on from models, and from encoders made by freeze, lora or full."
        )
    kind = f"{backbone.attention.replace(':', '-')}-{str(backbone.dtype).removeprefix('torch.')}"
    folder = cache_root() / "models" / f"merged-{backbone.identity}-{kind}"
    if not folder.is_dir():
        say(f"merging the LoRA of {name} into its model, once")
        with whole_folder(folder) as target:
            write_model(backbone, target)
    return Backbone.load(folder, attention=backbone.attention, device=device), True
