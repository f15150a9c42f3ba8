"""Find a decoder's blocks and final norm by structure, so that no model family needs code of its own."""

from __future__ import annotations

from itertools import accumulate
from typing import Any

from torch import nn

from decoder2vec.errors import UnsupportedError

_FINAL_NORMS = (
    *("norm", "ln_f", "final_layer_norm", "final_layernorm", "norm_f", "final_norm"),
    *("embedding_norm", "layer_norm", "ln_out", "out_norm"),  # lfm2; biogpt, xglm; rwkv; xlstm
)


def text_config(config: Any) -> Any:
    """The part of a config that describes the text decoder."""
    return config.get_text_config() if hasattr(config, "get_text_config") else config


def find_blocks(model: nn.Module) -> tuple[nn.Module, nn.ModuleList]:
    """The decoder's blocks, and the module that holds them and the final norm.

    The blocks are the only list of modules that is as long as the config says the model is deep.
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
    """The norm behind the last block; identity where a model has none (old OPT variants)."""
    for name in _FINAL_NORMS:
        if isinstance(norm := getattr(parent, name, None), nn.Module):
            return norm
    return nn.Identity()


def keep_first_blocks(model: nn.Module, depth: int) -> None:
    """Cut the model to its first `depth` blocks, in place; per-layer lists of the config are cut as well."""
    config = text_config(model.config)
    parent, blocks = find_blocks(model)
    full = len(blocks)
    if not 1 <= depth <= full:
        raise UnsupportedError(f"Cannot keep {depth} of {full} blocks; choose 1 to {full}.")
    name = next(name for name, child in parent.named_children() if child is blocks)
    setattr(parent, name, blocks[:depth])
    for key, value in list(vars(config).items()):
        per_layer = isinstance(value, list | tuple) and len(value) == full
        if per_layer and key != "architectures" and not key.endswith("_token_id"):
            setattr(config, key, value[:depth])
    if getattr(config, "attention_types", None):  # gpt_neo counts its kinds of layer instead of listing them
        config.attention_types = [[[kind], 1] for kind in config.attention_layers[:depth]]
    config.num_hidden_layers = depth


def count_parameters(model: nn.Module) -> int:
    """Numbers in all weights; a weight that stands in two places counts once."""
    return sum(parameter.numel() for parameter in model.parameters())


def trained_share(trained: int, model: nn.Module) -> dict[str, int | float]:
    """So many trained numbers beside those of the model."""
    frozen = count_parameters(model)
    return {"trained": trained, "backbone": frozen, "percent": round(100 * trained / frozen, 4)}


def parameters_by_depth(model: nn.Module) -> list[int]:
    """What is left of the model with its first block only, with two ... with all: embeddings and norm always stay."""
    blocks = [count_parameters(block) for block in find_blocks(model)[1]]
    outside = count_parameters(model) - sum(blocks)
    return [outside + inside for inside in accumulate(blocks)]


def blocks_share_weights(model: nn.Module) -> bool:
    """Does a weight serve two blocks? Then a block is not a part that can be taken away."""
    seen = [id(parameter) for block in find_blocks(model)[1] for parameter in block.parameters()]
    return len(seen) != len(set(seen))
