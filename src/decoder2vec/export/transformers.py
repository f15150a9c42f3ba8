"""The model of an encoder as a plain folder of transformers: LoRA merged, all layers and the language-model head kept.

It is what a next stage of training starts from, and what any other program can load. How texts are pooled is not in it.
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
from decoder2vec.backbone.blocks import find_blocks, find_final_norm, keep_first_blocks, text_config
from decoder2vec.backbone.machine import quiet_transformers
from decoder2vec.backbone.sources import resolve_model_folder
from decoder2vec.encoder import Encoder
from decoder2vec.errors import BackboneError, UnsupportedError
from decoder2vec.export.plain_form import refusal
from decoder2vec.storage import atomic_folder

_OF_THE_TOKENIZER = ("tokenizer", "special_tokens", "vocab", "merges", "chat_template", "added_tokens")
_TOLERANCE = 1e-3


def export_transformers(encoder: Encoder, target: Path) -> str:
    """Write the folder, load it again, and compare the states of a text."""
    if ":" in encoder.backbone.attention:
        raise UnsupportedError(f"No config of transformers says {encoder.backbone.attention}; it would be lost.")
    with atomic_folder(target) as folder:
        write_model(encoder.backbone, folder)
        off = _difference(encoder.backbone, folder)
        if not off <= _TOLERANCE:
            raise BackboneError(
                f"The folder was removed: states of its model are off by {off:.2g}; report this family."
            )
    return f"{encoder.backbone.family}, {encoder.backbone.attention}; loaded again, the largest difference is {off:.1e}"


@torch.no_grad()
def write_model(backbone: Backbone, folder: Path) -> None:
    """Write weights, config and tokenizer; an adapter that is not part of the weights is refused."""
    if backbone.adapter is not None and not isinstance(backbone.adapter, Lora):
        raise UnsupportedError(
            f"A {backbone.adapter.kind} stands beside the weights and cannot be merged into them; only LoRA can."
        )
    whole, inner = _with_head(backbone)
    inner.load_state_dict(backbone.model.state_dict())
    if isinstance(backbone.adapter, Lora):
        for path, weight in backbone.adapter.merged_weights_by_path().items():
            inner.get_submodule(path).weight.copy_(weight)
    whole.config.is_causal = backbone.attention == "causal"
    with quiet_transformers():
        whole.save_pretrained(folder)
    copy_tokenizer(backbone, folder)


def copy_tokenizer(backbone: Backbone, folder: Path) -> None:
    """Take over the files of the tokenizer as they are."""
    for file in resolve_model_folder(backbone.name).iterdir():
        if file.name.startswith(_OF_THE_TOKENIZER):
            shutil.copy(file, folder / file.name)


def _with_head(backbone: Backbone) -> tuple[Any, Any]:
    """The stock causal class with the model in it; else the bare model: no such class, no head, or cut."""
    from transformers import AutoModel, AutoModelForCausalLM
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING

    own, config = backbone.model.state_dict().keys(), backbone.model.config
    with quiet_transformers():
        if type(config) in MODEL_FOR_CAUSAL_LM_MAPPING:
            whole, report = AutoModelForCausalLM.from_pretrained(
                resolve_model_folder(backbone.name),
                dtype=backbone.dtype,
                use_safetensors=True,
                output_loading_info=True,
            )
            # by what it holds, not by name: not every family keeps its model under the name that it declares
            inner = next((part for part in whole.children() if part.state_dict().keys() == own), None)
            if inner is not None and not report["missing_keys"]:
                return whole, inner
        bare = AutoModel.from_config(config).to(backbone.dtype)  # type: ignore[arg-type]
    return bare, bare


@torch.inference_mode()
def _difference(backbone: Backbone, folder: Path) -> float:
    """The largest difference of a state from its own, relative to its length."""
    again = Backbone.load(folder, device=backbone.device, dtype=backbone.dtype)
    if again.attention != backbone.attention:
        raise BackboneError(f"The folder was removed: its model reads {again.attention}; please report this family.")
    ids = torch.arange(7, 31, device=backbone.device)[None] % text_config(again.model.config).vocab_size
    with backbone.adapter_enabled():
        own = backbone.model(input_ids=ids, use_cache=False).last_hidden_state.float()
    other = again.model(input_ids=ids, use_cache=False).last_hidden_state.float()
    return float(((own - other).norm(dim=-1) / own.norm(dim=-1)).max())


@torch.no_grad()
def model_to_save(encoder: Encoder) -> Any:
    """A copy on the CPU whose output is what the encoder pools; the encoder itself stays as it is."""
    backbone, reading = encoder.backbone, encoder.spec.readings[0]
    model = copy.deepcopy(backbone.model).cpu()
    if isinstance(backbone.adapter, Lora):
        for path, weight in backbone.adapter.merged_weights_by_path().items():
            model.get_submodule(path).weight.copy_(weight)  # type: ignore[operator]
    if reading.layer < backbone.n_layers:
        keep_first_blocks(model, reading.layer)
    if not reading.normed:
        _spare_the_norm(find_final_norm(find_blocks(model)[0]), encoder)
    return model


def _spare_the_norm(norm: nn.Module, encoder: Encoder) -> None:
    """See to it that the final norm, which was not read but always runs, does no harm; else refuse.

    A norm that only rescales leaves the direction of a token's state as it is, and that is all there is to a vector of
    one token and length 1.
    """
    if isinstance(norm, nn.Identity):
        return
    one_token = encoder.spec.readings[0].pooling in ("lasttoken", "cls")
    direction_only = one_token and encoder.spec.normalize and encoder.head is None
    if not (direction_only and _made_to_rescale(norm, encoder.backbone.dim)):
        raise refusal(
            "it reads a layer before the model's final norm, which always runs there; make the encoder with normed=True"
        )


def _made_to_rescale(norm: nn.Module, dim: int) -> bool:
    """Give an RMS norm equal weights; False if it still does more than rescale, as a LayerNorm does."""
    if [name for name, _ in norm.named_parameters()] != ["weight"]:
        return False
    states = torch.randn(8, dim, generator=torch.Generator().manual_seed(0)) + 1
    for weight in (1.0, 0.0):  # some families add 1 to what is stored
        norm.weight.fill_(weight)  # type: ignore[operator]
        if cosine_similarity(norm(states), states).min() > 1 - 1e-6:
            return True
    return False
