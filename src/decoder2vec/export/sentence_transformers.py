"""Write an encoder as a folder that sentence-transformers loads without this package.

Where it suffices, the format is that of versions before 5.4, which newer ones also read and which is the only one that
other servers know: class paths under `sentence_transformers.models`, and a flag for each pooling. Chat templates and
states before the final norm need the settings of newer versions.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from safetensors.numpy import save_file
from torch import Tensor

from decoder2vec.backbone.machine import quiet_transformers
from decoder2vec.encoder import Encoder
from decoder2vec.errors import BackboneError
from decoder2vec.export import layerwise_pooling
from decoder2vec.export.model_cards import sentence_transformers_card
from decoder2vec.export.reload_check import TOLERANCE, reload_differences
from decoder2vec.export.sentence_transformers_config import SentenceTransformersConfig
from decoder2vec.export.tokenizer import check_tokenizer, joined_when_cut, render_chat_template, write_tokenizer
from decoder2vec.export.transformers import merged_model_copy
from decoder2vec.heads.codes import CodeNet
from decoder2vec.heads.layerwise import LayerwiseHead
from decoder2vec.heads.standardise import AffineHead
from decoder2vec.progress import current_progress
from decoder2vec.storage import atomic_folder

POOLING_FLAGS = {
    "cls": "pooling_mode_cls_token",
    "mean": "pooling_mode_mean_tokens",
    "max": "pooling_mode_max_tokens",
    "mean_sqrt_len_tokens": "pooling_mode_mean_sqrt_len_tokens",
    "weightedmean": "pooling_mode_weightedmean_tokens",
    "lasttoken": "pooling_mode_lasttoken",
}
"""Name of a pooling -> its flag in `1_Pooling/config.json`, which versions before 6 read."""

OWN_MODULE = "layerwise_pooling"
"""Name of the file with our own module in an exported folder."""


def export_sentence_transformers(encoder: Encoder, target: Path) -> str:
    """Write the folder, compare its vectors with the encoder's in a new process, and return a description.

    If the vectors differ, the folder is removed and BackboneError raised.
    """
    progress = current_progress()
    with atomic_folder(target) as folder:
        with progress.phase("writing"):
            modules = write_sentence_transformers(encoder, folder)
        with progress.phase("checking"):
            check = check_reloaded_vectors(encoder, folder)
    trusted = "; loads with trust_remote_code=True" if "LayerwisePooling" in modules else ""
    return f"{' + '.join(modules)}; {check}{trusted}"


def check_reloaded_vectors(encoder: Encoder, folder: Path) -> str:
    """Describe the largest difference from the encoder's vectors; raise BackboneError if it is too large."""
    differences = reload_differences([(encoder, folder)])
    if differences is None:
        return "not checked, since sentence-transformers is not installed"
    if not differences[0] <= TOLERANCE:
        raise BackboneError(
            f"sentence-transformers loads the exported folder, but its vectors differ by {differences[0]:.2g} where "
            f"{TOLERANCE:g} is allowed, so it was removed; please report this model family."
        )
    return f"read by sentence-transformers, the largest difference is {differences[0]:.1e}"


def write_sentence_transformers(encoder: Encoder, folder: Path) -> list[str]:
    """Write the folder without comparing vectors; return the names of its modules.

    Raises UnsupportedError before anything is written if sentence-transformers cannot express the encoder.
    """
    config = SentenceTransformersConfig.from_encoder(encoder)
    with current_progress().phase("merging"):
        model, output = merged_model_copy(encoder)
    if config.needs_own_module:
        model.config.output_hidden_states = True
    with quiet_transformers():
        model.save_pretrained(folder)
    state = "last_hidden_state" if config.needs_own_module else output
    requirements = _requirements(encoder, config, state)
    write_tokenizer_and_settings(encoder, config, folder, state, requirements)
    if config.needs_own_module:
        _write_layerwise_pooling(encoder, config.include_prompt, folder)
    modules = write_modules(encoder, config, folder)
    card = sentence_transformers_card(encoder, config, modules, requirements)
    (folder / "README.md").write_text(card, encoding="utf-8")
    without_vector = [] if config.include_prompt else [""]  # there is no token of it to pool
    encoder.write_gold_vectors(folder, leave_out=[*without_vector, *joined_when_cut(encoder, config.suffix)])
    return modules


def write_tokenizer_and_settings(
    encoder: Encoder,
    config: SentenceTransformersConfig,
    folder: Path,
    state: str | list[str | int],
    requirements: dict[str, dict[str, str]],
) -> None:
    """Write the tokenizer, the prompts and the maximum length.

    Args:
        encoder: The encoder.
        config: Its pooling and prompts.
        folder: Folder to write to.
        state: Where the model's output has the state that is pooled.
        requirements: Versions that a program needs to give the same vectors.
    """
    chat_template = render_chat_template(encoder, config.suffix) if config.uses_chat_template else None
    write_tokenizer(encoder.backbone, folder, encoder.max_seq_length, chat_template)
    check_tokenizer(encoder, folder, config.default_prompt, config.suffix)
    _write_json(folder / "sentence_bert_config.json", _transformer_config(encoder, config, state))
    _write_json(folder / "config_sentence_transformers.json", _model_config(encoder, config, requirements))


def write_modules(encoder: Encoder, config: SentenceTransformersConfig, folder: Path) -> list[str]:
    """Write what follows the model: pooling, head and normalisation; return the names of all modules."""
    modules = ["Transformer", "LayerwisePooling" if config.needs_own_module else "Pooling"]
    if not config.needs_own_module:
        _write_json(folder / "1_Pooling" / "config.json", _pooling_config(encoder, config))
    if isinstance(encoder.head, AffineHead):
        modules.append("Dense")
        _write_dense(encoder.head, folder / "2_Dense")
    if encoder.spec.normalize:
        modules.append("Normalize")
    if encoder.spec.normalize == "rms":
        modules.append("Dense")
        zero, length = np.zeros(encoder.dim, np.float32), np.full(encoder.dim, encoder.dim**0.5, np.float32)
        _write_dense(AffineHead("rms", zero, length), folder / f"{len(modules) - 1}_Dense")
    _write_json(folder / "modules.json", [_module_entry(index, name) for index, name in enumerate(modules)])
    return modules


def _transformer_config(
    encoder: Encoder, config: SentenceTransformersConfig, state: str | list[str | int]
) -> dict[str, Any]:
    settings: dict[str, Any] = {"max_seq_length": encoder.max_seq_length, "do_lower_case": False}
    if config.uses_chat_template or state != "last_hidden_state":
        entry: dict[str, Any] = {"method": "forward", "method_output_name": state}
        messages = {"message": {**entry, "format": "flat"}} if config.uses_chat_template else {}
        settings |= {"modality_config": {"text": entry, **messages}, "module_output_name": "token_embeddings"}
    return settings


def _requirements(
    encoder: Encoder, config: SentenceTransformersConfig, state: str | list[str | int]
) -> dict[str, dict[str, str]]:
    """Versions that a program needs to give the same vectors, as sentence-transformers declares them."""
    requirements = {}
    if encoder.spec.attention == "bidirectional":
        reason = "older versions ignore is_causal=False and would read the text in one direction only"
        requirements["transformers"] = {"specifier": ">=5.21", "reason": reason}
    if config.uses_chat_template or state != "last_hidden_state":
        reason = "older versions have no settings for the prompt around a text or the layer"
        requirements["sentence-transformers"] = {"specifier": ">=6.2", "reason": reason}
    return requirements


def _module_entry(index: int, name: str) -> dict[str, Any]:
    path = f"{index}_{name}" if index else ""
    package = OWN_MODULE if name == "LayerwisePooling" else "sentence_transformers.models"
    return {"idx": index, "name": str(index), "path": path, "type": f"{package}.{name}"}


def _pooling_config(encoder: Encoder, config: SentenceTransformersConfig) -> dict[str, Any]:
    pooling = encoder.spec.readings[0].pooling
    return {
        "word_embedding_dimension": encoder.backbone.dim,
        **{flag: name == pooling for name, flag in POOLING_FLAGS.items()},
        "pooling_mode": pooling,
        "include_prompt": config.include_prompt,
    }


def _model_config(
    encoder: Encoder, config: SentenceTransformersConfig, requirements: dict[str, dict[str, str]]
) -> dict[str, Any]:
    settings: dict[str, Any] = {
        "__version__": {"transformers": transformers.__version__, "pytorch": torch.__version__},
        "model_type": "SentenceTransformer",
        "prompts": config.prompts,
        "default_prompt_name": config.default_prompt_name,
        "similarity_fn_name": encoder.spec.similarity,
    }
    return {**settings, "requirements": requirements} if requirements else settings


def _write_dense(head: AffineHead, folder: Path) -> None:
    """Write (x - mean) @ map as a linear layer."""
    matrix = (np.diag(head.map) if head.map.ndim == 1 else head.map).astype(np.float64)
    weight, bias = matrix.T, -head.mean.astype(np.float64) @ matrix
    _write_json(
        folder / "config.json",
        {
            "in_features": weight.shape[1],
            "out_features": weight.shape[0],
            "bias": True,
            "activation_function": "torch.nn.modules.linear.Identity",
        },
    )
    # safetensors writes the memory of an array and ignores its strides
    tensors = {"linear.weight": weight, "linear.bias": bias}
    contiguous = {name: np.ascontiguousarray(tensor, np.float32) for name, tensor in tensors.items()}
    save_file(contiguous, folder / "model.safetensors", metadata={"format": "pt"})


def _write_layerwise_pooling(encoder: Encoder, include_prompt: bool, folder: Path) -> None:
    """Write the module that pools several layers: its code, its config, and the weights of a code network."""
    shutil.copy(layerwise_pooling.__file__, folder / f"{OWN_MODULE}.py")
    subfolder = folder / "1_LayerwisePooling"
    subfolder.mkdir()
    pooling_module(encoder, include_prompt).save(str(subfolder))


def pooling_module(encoder: Encoder, include_prompt: bool) -> layerwise_pooling.LayerwisePooling:
    """Return the module that pools the encoder's readings from the hidden states of its model."""
    head = encoder.head
    weights: dict[str, Tensor] = {}
    network = None
    if isinstance(head, LayerwiseHead):
        weights, network = _code_network(head.net, head.projection)
    dim = encoder.dim if network else len(encoder.spec.readings) * encoder.backbone.dim
    readings = [{"layer": reading.layer, "pooling": reading.pooling} for reading in encoder.spec.readings]
    config = {"readings": readings, "include_prompt": include_prompt, "dimension": dim, "network": network}
    return layerwise_pooling.LayerwisePooling(config, weights)


def _code_network(net: CodeNet, projection: Tensor | None) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Weights of a code network by name, and its architecture."""
    weights = {name: tensor for name, tensor in net.state_dict().items() if not name.startswith("pair.")}
    weights["block_scale"] = net.pair.weights().sqrt()[torch.argsort(net.block_order)]
    if projection is not None:
        weights["projection"] = projection
    network = {
        "mixing": net.spec.mixing,
        "unit": net.spec.unit,
        "groups": [list(group) for group in net.spec.groups],
        "projected": projection is not None,
    }
    return {name.replace(".", "_"): tensor.detach().cpu() for name, tensor in weights.items()}, network


def _write_json(file: Path, content: Any) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
