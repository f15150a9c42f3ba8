"""The model that a training run starts from: a language model, or the backbone of a saved encoder."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from decoder2vec.adapters.lora import Lora
from decoder2vec.backbone.backbone import Backbone
from decoder2vec.backbone.machine import FOUR_BIT, INT8
from decoder2vec.backbone.sources import Notify
from decoder2vec.encoder import Encoder
from decoder2vec.encoder_folder import saved_encoder_folder
from decoder2vec.errors import UnsupportedError
from decoder2vec.export.transformers import write_model
from decoder2vec.saved_encoder import with_sentence_tokens
from decoder2vec.storage import atomic_folder, cache_root, damaged_files, files_below, write_checksums


def load_base_model(
    name: str | Path, *, device: Any = None, dtype: str | torch.dtype | None = None, notify: Notify = lambda _: None
) -> tuple[Backbone, bool]:
    """Load the backbone to train from a language model or from a saved encoder.

    From an encoder only the model and its sentence tokens are taken, with LoRA merged into its weights; layer, pooling
    and template are not. Merged weights are cached, so that a resumed run finds them again.

    Args:
        name: Built-in name, model folder, .gguf file, hub id, or a saved encoder.
        device: Device to load to; by default the best one available.
        dtype: Data type of the weights, or "4bit".
        notify: Called with a sentence before weights are merged.

    Returns:
        The backbone, and whether its weights must be copied into what is trained from it (they exist nowhere else).

    Raises:
        UnsupportedError: The encoder has an adapter that cannot be merged into the weights, or the dtype is int8.
    """
    if dtype == INT8:
        raise UnsupportedError("int8 is for encoding; train in float32 or bfloat16, and load the result in int8.")
    encoder_folder = saved_encoder_folder(name)
    if not encoder_folder:
        return with_sentence_tokens(Backbone.load(name, device=device, dtype=dtype, notify=notify)), False
    backbone = Encoder.load(encoder_folder, device=device, dtype=None if dtype == FOUR_BIT else dtype).backbone
    if backbone.adapter is None:
        copied_weights = encoder_folder / "backbone"
        if dtype == FOUR_BIT:
            source = copied_weights if copied_weights.is_dir() else backbone.name
            backbone = Backbone.load(source, device=device, dtype=dtype)
        return backbone, copied_weights.is_dir()
    if not isinstance(backbone.adapter, Lora):
        raise UnsupportedError(
            f"{name} has a {backbone.adapter.kind} adapter, which cannot be merged into the weights; "
            "start from a model, or from an encoder trained with freeze, lora or full."
        )
    variant = f"{backbone.attention.replace(':', '-')}-{str(backbone.dtype).removeprefix('torch.')}"
    folder = cache_root() / "models" / f"merged-{backbone.effective_fingerprint}-{variant}"
    if not folder.is_dir() or damaged_files(folder):
        notify(f"merging the LoRA of {name} into its model, once")
        with atomic_folder(folder, replace=folder.is_dir()) as target:
            write_model(backbone, target)
            write_checksums(target, files_below(target))
    merged = Backbone.load(folder, attention=backbone.attention, device=device, dtype=dtype)
    return replace(merged, sentence_tokens=backbone.sentence_tokens), True


def describe_base_model(name: str | Path, model: Backbone, *, is_later_stage: bool = False) -> dict[str, Any]:
    """Return the entry of a result file that names the model as the user did, not by its path in the cache.

    Args:
        name: What the user trains from: a model or a saved encoder.
        model: The backbone that `load_base_model` returned.
        is_later_stage: Whether an earlier stage of the same run produced the model.

    Returns:
        `{"backbone": {"name", "fingerprint"}}`, or nothing where the backbone's own name is right.
    """
    if not (is_later_stage or saved_encoder_folder(name)):
        return {}
    return {"backbone": {"name": str(name), "fingerprint": model.fingerprint}}
