"""Save and load adapters as folders: LoRA in peft's format, the others as safetensors; each with an `adapter.json`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from decoder2vec.adapters.kv_prefix import KeyValuePrefix
from decoder2vec.adapters.lora import Lora, LoraConfig
from decoder2vec.adapters.rerouting import KeyValueRerouting, TokenPrepending
from decoder2vec.adapters.soft_prompt import SoftPrompt
from decoder2vec.backbone.backbone import Backbone
from decoder2vec.backbone.batch import Adapter
from decoder2vec.errors import EncoderError, InputError

_DESCRIPTION = "adapter.json"
_WEIGHTS = "adapter.safetensors"
_PEFT_CONFIG = "adapter_config.json"
_PEFT_WEIGHTS = "adapter_model.safetensors"


def save_adapter(adapter: Adapter, folder: Path, backbone: Backbone) -> None:
    """Write the adapter, and the fingerprint of the model that it is for."""
    folder.mkdir(parents=True, exist_ok=True)
    description = {"kind": adapter.kind, "backbone_fingerprint": backbone.fingerprint, "settings": adapter.settings()}
    (folder / _DESCRIPTION).write_text(json.dumps(description, indent=1) + "\n", encoding="utf-8")
    if isinstance(adapter, Lora):
        config = json.dumps(adapter.peft_config(backbone), indent=1) + "\n"
        (folder / _PEFT_CONFIG).write_text(config, encoding="utf-8")
        save_file(_on_cpu(adapter.peft_state_dict()), folder / _PEFT_WEIGHTS, metadata={"format": "pt"})
    elif parameters := adapter.state_dict():  # re-routing has none
        save_file(_on_cpu(parameters), folder / _WEIGHTS)


def load_adapter(folder: Path, backbone: Backbone) -> Adapter:
    """Load a frozen adapter.

    Raises:
        InputError: The folder holds no adapter, or one that was trained on another model.
        EncoderError: The files are damaged.

    """
    try:
        description = json.loads((folder / _DESCRIPTION).read_text(encoding="utf-8"))
        kind, trained_on = description["kind"], description["backbone_fingerprint"]
        settings = description["settings"]
    except OSError as error:
        raise InputError(f"{folder} holds no adapter: {error}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise EncoderError(f"The adapter in {folder} is damaged: {_DESCRIPTION}: {error}") from error
    if trained_on != backbone.fingerprint:
        raise InputError(
            f"The adapter in {folder} was trained on other weights than those of {backbone.name} "
            f"({trained_on}, not {backbone.fingerprint}); load the model it was trained on."
        )
    if kind not in _LOADERS:
        raise EncoderError(f"The adapter in {folder} is of the unknown kind {kind!r}; known: {', '.join(_LOADERS)}.")
    try:
        adapter: Adapter = _LOADERS[kind](folder, backbone, settings)
    except (SafetensorError, OSError, KeyError, RuntimeError, TypeError, ValueError) as error:
        raise EncoderError(f"The adapter in {folder} is damaged: {error}") from error
    for parameter in adapter.parameters():
        parameter.requires_grad_(False)
    return adapter.to(backbone.device)


def _load_soft_prompt(folder: Path, backbone: Backbone, settings: dict[str, Any]) -> Adapter:
    vectors = load_file(folder / _WEIGHTS)["vectors"]
    if vectors.ndim != 2 or vectors.shape[1] != backbone.dim or not len(vectors):
        raise EncoderError(f"its vectors are {list(vectors.shape)} and should be [tokens, {backbone.dim}].")
    options = dict(settings)
    if "place" in options:
        options["position"] = options.pop("place")
    return SoftPrompt(vectors, **options)


def _load_kv_prefix(folder: Path, backbone: Backbone, settings: dict[str, Any]) -> Adapter:
    tensors = load_file(folder / _WEIGHTS)
    layers = [tensors[f"layers.{index}"] for index in range(max(1, len(tensors)))]
    return KeyValuePrefix.from_tensors(layers, backbone, **settings)


def _load_lora(folder: Path, backbone: Backbone, settings: dict[str, Any]) -> Adapter:
    adapter = Lora(backbone, LoraConfig(**{**settings, "targets": tuple(settings["targets"])}))
    adapter.load_peft_state_dict(load_file(folder / _PEFT_WEIGHTS))
    return adapter


def _load_token_prepending(folder: Path, backbone: Backbone, settings: dict[str, Any]) -> Adapter:
    return TokenPrepending(backbone, **settings)


def _load_kv_rerouting(folder: Path, backbone: Backbone, settings: dict[str, Any]) -> Adapter:
    return KeyValueRerouting(backbone, **settings)


_LOADERS = {
    "soft_prompt": _load_soft_prompt,
    "kv_prefix": _load_kv_prefix,
    "lora": _load_lora,
    "token_prepending": _load_token_prepending,
    "kv_rerouting": _load_kv_rerouting,
}


def _on_cpu(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
