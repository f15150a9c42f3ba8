"""Find a decoder's blocks and final norm by structure, change the number of blocks, and count parameters.

No model family needs code of its own.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from itertools import accumulate
from typing import Any

from torch import nn

from decoder2vec.errors import InputError, UnsupportedError

_FINAL_NORM_NAMES = (
    *("norm", "ln_f", "final_layer_norm", "final_layernorm", "norm_f", "final_norm"),
    *("embedding_norm", "layer_norm", "ln_out", "out_norm"),  # lfm2; biogpt, xglm; rwkv; xlstm
)


def text_config(config: Any) -> Any:
    """The text decoder's part of a model config."""
    return config.get_text_config() if hasattr(config, "get_text_config") else config


def find_blocks(model: nn.Module) -> tuple[nn.Module, nn.ModuleList]:
    """Return the module that holds the blocks and the final norm, and the list of blocks.

    The blocks are the outermost module list whose length is the number of layers in the config.
    """
    depth = text_config(model.config).num_hidden_layers
    for module in model.modules():
        for child in module.children():
            if isinstance(child, nn.ModuleList) and len(child) == depth:
                return module, child
    raise UnsupportedError(
        f"{type(model).__name__} has no list of {depth} blocks, so its layers cannot be read; use a decoder-only model."
    )


def find_final_norm(parent: nn.Module) -> nn.Module:
    """The norm after the last block, or the identity where a model has none (old OPT variants)."""
    for name in _FINAL_NORM_NAMES:
        if isinstance(norm := getattr(parent, name, None), nn.Module):
            return norm
    return nn.Identity()


def keep_first_blocks(model: nn.Module, depth: int) -> None:
    """Cut the model to its first `depth` blocks, in place; per-layer lists of its config are cut as well."""
    config = text_config(model.config)
    parent, blocks = find_blocks(model)
    full_depth = len(blocks)
    if not 1 <= depth <= full_depth:
        raise InputError(f"Cannot keep {depth} of {full_depth} blocks; choose 1 to {full_depth}.")
    name = next(name for name, child in parent.named_children() if child is blocks)
    setattr(parent, name, blocks[:depth])
    for key, value in _per_layer_settings(config, full_depth):
        setattr(config, key, value[:depth])
    _set_depth(config, depth)


def repeat_last_block(model: nn.Module) -> None:
    """Append a copy of the last block, in place: the state before the copy is then not the model's last one."""
    config = text_config(model.config)
    blocks = find_blocks(model)[1]
    for key, value in _per_layer_settings(config, len(blocks)):
        setattr(config, key, [*value, value[-1]])
    blocks.append(copy.deepcopy(blocks[-1]))
    _set_depth(config, len(blocks))


def changes_in_passes(model: nn.Module) -> bool:
    """Whether a pass may change what the model computes with.

    Some rotary frequencies follow the length of the batch, and RWKV scales its weights in the first pass.
    """
    return any(hasattr(module, "_rescale_layers") or _has_moving_frequencies(module) for module in model.modules())


def _has_moving_frequencies(module: nn.Module) -> bool:
    types = getattr(module, "rope_type", "")
    names = types.values() if isinstance(types, dict) else [types]
    return any("dynamic" in str(name) or name == "longrope" for name in names)


def _per_layer_settings(config: Any, depth: int) -> Iterator[tuple[str, Any]]:
    """Settings of a config that are lists with an entry for each layer."""
    for key, value in list(vars(config).items()):
        per_layer = isinstance(value, list | tuple) and len(value) == depth
        if per_layer and key != "architectures" and not key.endswith("_token_id"):
            yield key, value


def _set_depth(config: Any, depth: int) -> None:
    if getattr(config, "attention_types", None):  # gpt_neo stores run lengths of layer types instead of a list
        config.attention_types = [[[layer_type], 1] for layer_type in config.attention_layers[:depth]]
    config.num_hidden_layers = depth


def count_parameters(model: nn.Module) -> int:
    """Number of parameters; a weight that two modules share counts once."""
    return sum(parameter.numel() for parameter in model.parameters())


def trained_share(trained: int, model: nn.Module, *, added: bool) -> dict[str, int | float]:
    """The number of trained parameters, of the model's own, of all, and the first in percent of all.

    Args:
        trained: Number of trained parameters.
        model: The model before training.
        added: Whether the trained parameters are added to the model's own; else they are some of those.
    """
    own = count_parameters(model)
    total = own + trained if added else own
    return {"trained": trained, "backbone": own, "all": total, "percent": round(100 * trained / total, 4)}


def parameters_by_depth(model: nn.Module) -> list[int]:
    """Number of parameters that remain with the first block only, the first two, ..., all; embeddings and norm stay."""
    blocks = [count_parameters(block) for block in find_blocks(model)[1]]
    outside = count_parameters(model) - sum(blocks)
    return [outside + inside for inside in accumulate(blocks)]


def blocks_share_weights(model: nn.Module) -> bool:
    """Whether two blocks share a weight, so that blocks cannot be removed one by one."""
    parameter_ids = [id(parameter) for block in find_blocks(model)[1] for parameter in block.parameters()]
    return len(parameter_ids) != len(set(parameter_ids))
