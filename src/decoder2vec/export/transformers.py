"""Write the model of an encoder as a transformers folder: LoRA merged, all layers and the language-model head kept.

The next stage of training starts from such a folder, and any other program can load it. Pooling is not part of it.
"""

from __future__ import annotations

import copy
import shutil
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.functional import cosine_similarity

from decoder2vec.adapters.lora import Lora
from decoder2vec.backbone.backbone import Backbone
from decoder2vec.backbone.blocks import (
    find_blocks,
    find_final_norm,
    keep_first_blocks,
    repeat_last_block,
    text_config,
)
from decoder2vec.backbone.machine import quiet_transformers
from decoder2vec.backbone.sources import resolve_model_folder
from decoder2vec.encoder import Encoder
from decoder2vec.errors import BackboneError, UnsupportedError
from decoder2vec.export.sentence_transformers_config import unsupported
from decoder2vec.heads.layerwise import LayerwiseHead
from decoder2vec.progress import current_progress
from decoder2vec.storage import atomic_folder

_TOKENIZER_FILE_PREFIXES = ("tokenizer", "special_tokens", "vocab", "merges", "chat_template", "added_tokens")
_TOLERANCE = 1e-3
"""The largest allowed difference between states of the model and of the reloaded folder, relative to their norm."""


def export_transformers(encoder: Encoder, target: Path) -> str:
    """Write the folder, load it again and compare hidden states; return a description."""
    if ":" in encoder.backbone.attention:
        raise UnsupportedError(
            f"A config of transformers cannot express the attention {encoder.backbone.attention}; it would be lost."
        )
    with atomic_folder(target) as folder:
        with current_progress().phase("writing"):
            write_model(encoder.backbone, folder)
            encoder.write_gold_vectors(folder)
        with current_progress().phase("checking"):
            difference = _reload_difference(encoder.backbone, folder)
        if not difference <= _TOLERANCE:
            raise BackboneError(
                f"The folder was removed: states of its model differ by {difference:.2g}; please report this family."
            )
    return (
        f"{encoder.backbone.family}, {encoder.backbone.attention}; "
        f"loaded again, the largest difference is {difference:.1e}"
    )


@torch.no_grad()
def write_model(backbone: Backbone, folder: Path, dtype: torch.dtype | None = None) -> None:
    """Write weights, config and tokenizer.

    Args:
        backbone: The model; LoRA is merged.
        folder: The folder to write to.
        dtype: Of the written weights; by default that of the model.

    Raises:
        UnsupportedError: The model has an adapter that cannot be merged.
    """
    if backbone.adapter is not None and not isinstance(backbone.adapter, Lora):
        raise UnsupportedError(f"A {backbone.adapter.kind} cannot be merged into the weights; only LoRA can.")
    full_model, inner_model = _load_with_lm_head(backbone, dtype or backbone.dtype)
    inner_model.load_state_dict(backbone.model.state_dict())
    if isinstance(backbone.adapter, Lora):
        for path, weight in backbone.adapter.merged_weights_by_path().items():
            inner_model.get_submodule(path).weight.copy_(weight)
    full_model.config.is_causal = backbone.attention == "causal"
    with quiet_transformers():
        full_model.save_pretrained(folder)
    copy_tokenizer(backbone, folder)


def copy_tokenizer(backbone: Backbone, folder: Path) -> None:
    """Copy the tokenizer's files unchanged."""
    for file in resolve_model_folder(backbone.name).iterdir():
        if file.name.startswith(_TOKENIZER_FILE_PREFIXES):
            shutil.copy(file, folder / file.name)


def _load_with_lm_head(backbone: Backbone, dtype: torch.dtype) -> tuple[Any, Any]:
    """Return the causal language model and the inner model in it, in a dtype.

    Both are the bare model if the family has no causal class, the folder has no language-model head, or the backbone
    has fewer layers than the folder.
    """
    from transformers import AutoModel, AutoModelForCausalLM
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING

    weight_names, config = backbone.model.state_dict().keys(), backbone.model.config
    with quiet_transformers():
        if type(config) in MODEL_FOR_CAUSAL_LM_MAPPING:
            full_model, report = AutoModelForCausalLM.from_pretrained(
                resolve_model_folder(backbone.name),
                dtype=dtype,
                use_safetensors=True,
                output_loading_info=True,
                trust_remote_code=False,
            )
            # found by its weights, not by name: some families keep the model under another name than they declare
            inner_model = next((c for c in full_model.children() if c.state_dict().keys() == weight_names), None)
            if inner_model is not None and not report["missing_keys"]:
                return full_model, inner_model
        bare_model = AutoModel.from_config(config, trust_remote_code=False).to(dtype)  # type: ignore[arg-type]
    return bare_model, bare_model


@torch.inference_mode()
def _reload_difference(backbone: Backbone, folder: Path) -> float:
    """Return the largest difference between states of the backbone and of the reloaded folder, relative to their norm.

    Raises BackboneError if the folder loads with another attention.
    """
    reloaded = Backbone.load(folder, device=backbone.device, dtype=backbone.dtype)
    if reloaded.attention != backbone.attention:
        raise BackboneError(f"The folder was removed: its model reads {reloaded.attention}; please report this family.")
    ids = torch.arange(7, 31, device=backbone.device)[None] % text_config(reloaded.model.config).vocab_size
    with backbone.adapter_enabled():
        expected = backbone.model(input_ids=ids, use_cache=False).last_hidden_state.float()
    states = reloaded.model(input_ids=ids, use_cache=False).last_hidden_state.float()
    return float(((expected - states).norm(dim=-1) / expected.norm(dim=-1)).max())


@torch.no_grad()
def merged_model_copy(encoder: Encoder) -> tuple[Any, str | list[str | int]]:
    """Return a copy of the model on the CPU, and where its output has the state that the encoder pools.

    LoRA is merged and blocks that are not needed are removed. The encoder itself is not changed. Where several layers
    are pooled, the second value is "hidden_states", which has all of them.
    """
    backbone, readings = encoder.backbone, encoder.spec.readings
    model = copy.deepcopy(backbone.model).cpu()
    if isinstance(backbone.adapter, Lora):
        for path, weight in backbone.adapter.merged_weights_by_path().items():
            model.get_submodule(path).weight.copy_(weight)  # type: ignore[operator]
    top = max(reading.layer for reading in readings)
    if len(readings) > 1 or isinstance(encoder.head, LayerwiseHead):
        _set_top_layer(model, top, _top_is_normed(encoder, top))
        return model, "hidden_states"
    norm = find_final_norm(find_blocks(model)[0])
    if top and (readings[0].normed or isinstance(norm, nn.Identity) or _neutralise_final_norm(norm, encoder)):
        _set_top_layer(model, top, normed=True)
        return model, "last_hidden_state"
    _set_top_layer(model, top, _top_is_normed(encoder, top))
    return model, ["hidden_states", top]


def _set_top_layer(model: Any, layer: int, normed: bool) -> None:
    """Give the model the blocks up to a layer, and one more if that layer is read before the final norm."""
    depth = len(find_blocks(model)[1])
    if layer + (not normed) > depth:
        repeat_last_block(model)
    elif layer + (not normed) < depth:
        keep_first_blocks(model, layer + (not normed))


def _top_is_normed(encoder: Encoder, top: int) -> bool:
    """Whether the final norm is applied to the top layer; raise UnsupportedError if it is to others or only sometimes.

    Hidden states of a model are those before its final norm, except for the last one.
    """
    normed_layers = {reading.layer for reading in encoder.spec.readings if reading.normed}
    mixed = any(reading.layer == top and not reading.normed for reading in encoder.spec.readings)
    if normed_layers and (top == 0 or mixed or normed_layers != {top}):
        raise unsupported(
            "it applies the final norm to layers below the top one, and a model applies it once, at the end; "
            "make the encoder with normed=False, or with a single layer from 1 up"
        )
    return bool(normed_layers)


def _neutralise_final_norm(norm: nn.Module, encoder: Encoder) -> bool:
    """Make the final norm harmless for an encoder that pools states before it; return whether that is possible.

    A norm that only rescales keeps the direction of a token's state, and a vector pooled from one token and normalised
    to length 1 is nothing but that direction. Such a folder also suits programs that only read a model's last state.
    """
    pools_one_token = encoder.spec.readings[0].pooling in ("lasttoken", "cls")
    only_direction_matters = pools_one_token and encoder.spec.normalize and encoder.head is None
    return bool(only_direction_matters) and _make_scale_only(norm, encoder.backbone.dim)


@torch.no_grad()
def _make_scale_only(norm: nn.Module, dim: int) -> bool:
    """Set equal weights in an RMS norm; return False if it still does more than rescale, as a LayerNorm does."""
    if [name for name, _ in norm.named_parameters()] != ["weight"]:
        return False
    states = torch.randn(8, dim, generator=torch.Generator().manual_seed(0)) + 1
    for weight in (1.0, 0.0):  # some families add 1 to the stored weight
        norm.weight.fill_(weight)  # type: ignore[operator]
        if cosine_similarity(norm(states), states).min() > 1 - 1e-6:
            return True
    return False
