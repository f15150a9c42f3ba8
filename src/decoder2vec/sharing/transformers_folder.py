"""The model of an encoder as a plain folder of transformers: LoRA merged, all layers and the language-model head kept.

It is what a next stage of training starts from, and what any other program can load. How texts are pooled is not in it.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import torch

from decoder2vec.adapters.lora import Lora
from decoder2vec.backbone.layers import text_config
from decoder2vec.backbone.load import Backbone
from decoder2vec.backbone.quiet import quiet_transformers
from decoder2vec.backbone.source import resolve
from decoder2vec.encoder import Encoder
from decoder2vec.errors import BackboneError, UnsupportedError
from decoder2vec.places import whole_folder

_OF_THE_TOKENIZER = ("tokenizer", "special_tokens", "vocab", "merges", "chat_template", "added_tokens")
_TOLERANCE = 1e-3


def export_transformers(encoder: Encoder, target: Path) -> str:
    """Write the folder, load it again, and compare the states of a text."""
    if ":" in encoder.backbone.attention:
        raise UnsupportedError(f"No config of transformers says {encoder.backbone.attention}; it would be lost.")
    with whole_folder(target) as folder:
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
        for path, weight in backbone.adapter.merged_by_path().items():
            inner.get_submodule(path).weight.copy_(weight)
    whole.config.is_causal = backbone.attention == "causal"
    with quiet_transformers():
        whole.save_pretrained(folder)
    copy_tokenizer(backbone, folder)


def copy_tokenizer(backbone: Backbone, folder: Path) -> None:
    """Take over the files of the tokenizer as they are."""
    for file in resolve(backbone.name).iterdir():
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
                resolve(backbone.name), dtype=backbone.dtype, use_safetensors=True, output_loading_info=True
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
    with backbone.adapter_on():
        own = backbone.model(input_ids=ids, use_cache=False).last_hidden_state.float()
    other = again.model(input_ids=ids, use_cache=False).last_hidden_state.float()
    return float(((own - other).norm(dim=-1) / own.norm(dim=-1)).max())
