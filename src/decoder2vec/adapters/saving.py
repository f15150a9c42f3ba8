"""Save and load adapters as folders: LoRA in peft's format, the others as safetensors; each with an `adapter.json`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from decoder2vec.adapters.bottleneck import Bottleneck, BottleneckConfig, Convolution, ConvolutionConfig
from decoder2vec.adapters.kv_prefix import KeyValuePrefix
from decoder2vec.adapters.lora import Lora, LoraConfig
from decoder2vec.adapters.rerouting import KeyValueRerouting, TokenPrepending
from decoder2vec.adapters.sentence_tokens import SentenceTokens
from decoder2vec.adapters.soft_prompt import SoftPrompt
from decoder2vec.backbone.backbone import Backbone
from decoder2vec.backbone.batch import Adapter
from decoder2vec.errors import EncoderError, InputError, unknown_name
from decoder2vec.storage import parse_json

_DESCRIPTION = "adapter.json"
_WEIGHTS = "adapter.safetensors"
_PEFT_CONFIG = "adapter_config.json"
_PEFT_WEIGHTS = "adapter_model.safetensors"

LORA_DTYPES = ("float32", "bfloat16", "int8")
"""How the matrices of LoRA are stored. int8 has a scale for each rank, which peft would ignore without an error: its
files are not named as peft's."""


def round_adapter(adapter: Adapter | None, backbone: Backbone, dtype: str) -> Adapter | None:
    """The adapter, if any, as it will be when it has been saved in a dtype and loaded again; only LoRA changes."""
    if dtype not in LORA_DTYPES:
        raise unknown_name("dtype", dtype, LORA_DTYPES)
    if not isinstance(adapter, Lora) or dtype == "float32":
        return adapter
    rounded = Lora(backbone, adapter.config)
    rounded.load_peft_state_dict(_from_stored(_to_stored(_on_cpu(adapter.peft_state_dict()), dtype)))
    return rounded.requires_grad_(False).to(backbone.device)


def exact_dtype(adapter: Adapter | None, backbone: Backbone) -> str:
    """The smallest dtype in which a LoRA can be saved without any change, such as that in which it was saved before."""
    if not isinstance(adapter, Lora):
        return "float32"
    digest = adapter.digest()
    rounded = ((dtype, round_adapter(adapter, backbone, dtype)) for dtype in ("int8", "bfloat16"))
    return next((dtype for dtype, each in rounded if each and each.digest() == digest), "float32")


def save_adapter(adapter: Adapter, folder: Path, backbone: Backbone, dtype: str = "float32") -> None:
    """Write the adapter, and the fingerprint of the model that it is for; a dtype other than float32 is for LoRA."""
    folder.mkdir(parents=True, exist_ok=True)
    description = {"kind": adapter.kind, "backbone_fingerprint": backbone.fingerprint, "settings": adapter.settings()}
    (folder / _DESCRIPTION).write_text(json.dumps(description, indent=1) + "\n", encoding="utf-8")
    if isinstance(adapter, Lora):
        tensors = _to_stored(_on_cpu(adapter.peft_state_dict()), dtype)
        save_file(tensors, folder / (_WEIGHTS if dtype == "int8" else _PEFT_WEIGHTS), metadata={"format": "pt"})
        if dtype != "int8":
            config = json.dumps(adapter.peft_config(backbone), indent=1) + "\n"
            (folder / _PEFT_CONFIG).write_text(config, encoding="utf-8")
    elif parameters := adapter.state_dict():  # re-routing has none
        save_file(_on_cpu(parameters), folder / _WEIGHTS)


def load_adapter(folder: Path, backbone: Backbone) -> Adapter:
    """Load a frozen adapter.

    Raises:
        InputError: The folder holds no adapter, or one that was trained on another model.
        EncoderError: The files are damaged.

    """
    try:
        description = parse_json((folder / _DESCRIPTION).read_text(encoding="utf-8"))
        kind, trained_on = description["kind"], description["backbone_fingerprint"]
        settings = description["settings"]
        if not isinstance(kind, str) or not isinstance(settings, dict):
            raise TypeError("kind is a text and settings are a table")
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
    except (  # settings of a wrong type or size fail in many ways
        SafetensorError,
        OSError,
        LookupError,
        RuntimeError,
        TypeError,
        ValueError,
        ArithmeticError,
        AttributeError,
    ) as error:
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


def _load_sentence_tokens(folder: Path, backbone: Backbone, settings: dict[str, Any]) -> Adapter:
    vectors = load_file(folder / _WEIGHTS)["vectors"]
    tokens = SentenceTokens(vectors, **settings)
    if vectors.ndim != 2 or vectors.shape[1] != backbone.dim or tokens.n_sentinels < 0:
        raise EncoderError(f"its vectors are {list(vectors.shape)} and should be [tokens, {backbone.dim}].")
    return tokens


def _load_kv_prefix(folder: Path, backbone: Backbone, settings: dict[str, Any]) -> Adapter:
    tensors = load_file(folder / _WEIGHTS)
    layers = [tensors[f"layers.{index}"] for index in range(max(1, len(tensors)))]
    return KeyValuePrefix.from_tensors(layers, backbone, **settings)


def _load_lora(folder: Path, backbone: Backbone, settings: dict[str, Any]) -> Adapter:
    adapter = Lora(backbone, LoraConfig(**{**settings, "targets": tuple(settings["targets"])}))
    file = folder / _WEIGHTS  # in int8
    adapter.load_peft_state_dict(_from_stored(load_file(file if file.is_file() else folder / _PEFT_WEIGHTS)))
    return adapter


def _load_bottleneck(folder: Path, backbone: Backbone, settings: dict[str, Any]) -> Adapter:
    adapter = Bottleneck(backbone, BottleneckConfig(**{**settings, "where": tuple(settings["where"])}))
    adapter.load_state_dict(load_file(folder / _WEIGHTS))
    return adapter


def _load_convolution(folder: Path, backbone: Backbone, settings: dict[str, Any]) -> Adapter:
    adapter = Convolution(backbone, ConvolutionConfig(**{**settings, "where": tuple(settings["where"])}))
    adapter.load_state_dict(load_file(folder / _WEIGHTS))
    return adapter


def _load_token_prepending(folder: Path, backbone: Backbone, settings: dict[str, Any]) -> Adapter:
    return TokenPrepending(backbone, **settings)


def _load_kv_rerouting(folder: Path, backbone: Backbone, settings: dict[str, Any]) -> Adapter:
    return KeyValueRerouting(backbone, **settings)


_LOADERS = {
    "soft_prompt": _load_soft_prompt,
    "kv_prefix": _load_kv_prefix,
    "lora": _load_lora,
    "bottleneck": _load_bottleneck,
    "conv": _load_convolution,
    "token_prepending": _load_token_prepending,
    "kv_rerouting": _load_kv_rerouting,
    "sentence_tokens": _load_sentence_tokens,
}


def _to_stored(tensors: dict[str, torch.Tensor], dtype: str) -> dict[str, torch.Tensor]:
    """Matrices of LoRA under peft's names, in the dtype; those in int8 get a scale for each rank beside them."""
    if dtype != "int8":
        return {name: tensor.to(getattr(torch, dtype)) for name, tensor in tensors.items()}
    stored = {}
    for name, tensor in tensors.items():
        other_dim = 1 if name.endswith("lora_A.weight") else 0  # lora_A is [rank, in], lora_B [out, rank]
        scale = (tensor.float().abs().amax(other_dim, keepdim=True) / 127).clamp(min=torch.finfo(torch.float32).tiny)
        stored[name] = (tensor.float() / scale).round().to(torch.int8)
        stored[_scale_name(name)] = scale
    return stored


def _from_stored(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The matrices in floating point."""
    return {
        name: tensor.float() * tensors[_scale_name(name)] if tensor.dtype == torch.int8 else tensor
        for name, tensor in tensors.items()
    }


def _scale_name(name: str) -> str:
    return name.removesuffix("weight") + "scale"


def _on_cpu(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
