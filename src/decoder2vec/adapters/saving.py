"""An adapter as a folder on disk: LoRA as peft writes it, the others as safetensors and JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from decoder2vec.adapters.kv_prefix import KeyValuePrefix
from decoder2vec.adapters.lora import Lora, LoraConfig
from decoder2vec.adapters.soft_prompt import SoftPrompt
from decoder2vec.backbone.backbone import Backbone
from decoder2vec.backbone.batch import Adapter
from decoder2vec.errors import InputError, unknown_name

_ABOUT = "adapter.json"
_NUMBERS = "adapter.safetensors"
_PEFT_ABOUT = "adapter_config.json"
_PEFT_NUMBERS = "adapter_model.safetensors"


def save_adapter(adapter: Adapter, folder: Path, backbone: Backbone) -> None:
    """Write the adapter, and which weights it was made for."""
    folder.mkdir(parents=True, exist_ok=True)
    about = {"kind": adapter.kind, "backbone_fingerprint": backbone.fingerprint, "settings": adapter.settings()}
    (folder / _ABOUT).write_text(json.dumps(about, indent=1) + "\n", encoding="utf-8")
    if isinstance(adapter, Lora):
        (folder / _PEFT_ABOUT).write_text(json.dumps(adapter.peft_config(backbone), indent=1) + "\n", encoding="utf-8")
        save_file(_on_cpu(adapter.peft_state_dict()), folder / _PEFT_NUMBERS, metadata={"format": "pt"})
    else:
        save_file(_on_cpu(adapter.state_dict()), folder / _NUMBERS)


def load_adapter(folder: Path, backbone: Backbone) -> Adapter:
    """The adapter of a folder, for the weights it was made for and no others."""
    try:
        about = json.loads((folder / _ABOUT).read_text(encoding="utf-8"))
        kind, made_for, settings = about["kind"], about["backbone_fingerprint"], about["settings"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"{folder} holds no adapter that can be read: {error}") from error
    if made_for != backbone.fingerprint:
        raise InputError(
            f"The adapter in {folder} was made for other weights than those of {backbone.name} "
            f"({made_for}, not {backbone.fingerprint}); load the model it was trained on."
        )
    if kind not in _READERS:
        raise unknown_name("adapter", kind, _READERS)
    try:
        adapter: Adapter = _READERS[kind](folder, backbone, settings)
    except (SafetensorError, OSError, KeyError, RuntimeError, TypeError, ValueError) as error:
        raise InputError(f"The adapter in {folder} is damaged: {error}") from error
    for parameter in adapter.parameters():
        parameter.requires_grad_(False)
    return adapter.to(backbone.device)


def _read_soft_prompt(folder: Path, backbone: Backbone, settings: dict[str, Any]) -> Adapter:
    vectors = load_file(folder / _NUMBERS)["vectors"]
    if vectors.ndim != 2 or vectors.shape[1] != backbone.dim or not len(vectors):
        raise InputError(f"its vectors are {list(vectors.shape)} and should be [tokens, {backbone.dim}].")
    return SoftPrompt(vectors, **settings)


def _read_kv_prefix(folder: Path, backbone: Backbone, settings: dict[str, Any]) -> Adapter:
    tensors = load_file(folder / _NUMBERS)
    layers = [tensors[f"layers.{number}"] for number in range(max(1, len(tensors)))]
    return KeyValuePrefix.checked(layers, backbone, **settings)


def _read_lora(folder: Path, backbone: Backbone, settings: dict[str, Any]) -> Adapter:
    adapter = Lora(backbone, LoraConfig(**{**settings, "targets": tuple(settings["targets"])}))
    adapter.load_peft_state_dict(load_file(folder / _PEFT_NUMBERS))
    return adapter


_READERS = {"soft_prompt": _read_soft_prompt, "kv_prefix": _read_kv_prefix, "lora": _read_lora}


def _on_cpu(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
