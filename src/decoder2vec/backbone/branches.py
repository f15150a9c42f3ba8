"""Find the branches of a decoder's blocks by structure: attention and MLP, whose outputs a block adds to its input.

No model family needs code of its own, and none is trusted: a block whose branches were found is the identity if all
of them return zeros.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from decoder2vec.backbone.attention import forward_parameters
from decoder2vec.backbone.blocks import text_config
from decoder2vec.errors import UnsupportedError

BRANCHES = ("attn", "mlp")
"""Attention (or what a family has instead: a recurrence, a short convolution), and the feed-forward part."""

ReplaceOutput = Callable[[Tensor], Tensor]
"""[batch, token, dim] output of a branch to the output that the block gets instead."""


def find_branches(model: nn.Module, blocks: nn.ModuleList) -> list[dict[str, nn.Module]]:
    """For each block, the module with the output of each of its `BRANCHES`; a block may have one of them only.

    Raises:
        UnsupportedError: The blocks of the family are built otherwise.

    """
    found = [_branches_of(block) for block in blocks]
    if not all(found) or not _are_all_branches(model, blocks, found):
        raise UnsupportedError(
            f"The attention and the MLP of {text_config(model.config).model_type} are not found, so nothing can be "
            "inserted after them; use lora or full."
        )
    return found


def hook_output(module: nn.Module, replace_output: ReplaceOutput) -> Any:
    """Replace the output of a module, or the first of several; returns the handle that removes the hook."""

    def hook(_: nn.Module, __: Any, output: Any) -> Any:
        if isinstance(output, tuple):
            return (replace_output(output[0]), *output[1:])
        return replace_output(output)

    return module.register_forward_hook(hook)


def _branches_of(block: nn.Module) -> dict[str, nn.Module]:
    """The last child that belongs to attention, and the last that belongs to the MLP."""
    branches: dict[str, nn.Module] = {}
    for child in block.children():
        linear = [module for module in child.modules() if _is_linear(module)]
        if not linear:  # norms, dropout, activations
            continue
        parameters = forward_parameters(type(child).forward)
        # a family whose branches add the residual themselves (bloom) does so after their last linear layer
        branches["attn" if _mixes_tokens(parameters) else "mlp"] = linear[-1] if "residual" in parameters else child
    return branches


def _is_linear(module: nn.Module) -> bool:
    return isinstance(module, nn.Linear) or type(module).__name__ in ("Conv1D", "Int8Linear")


def _mixes_tokens(parameters: list[str]) -> bool:
    """Whether a module reads other tokens: it takes a mask or a cache."""
    return any(word in name for name in parameters for word in ("mask", "cache", "past"))


@torch.inference_mode()
def _are_all_branches(model: nn.Module, blocks: nn.ModuleList, found: list[dict[str, nn.Module]]) -> bool:
    """Whether every block returns its input if its branches return zeros."""
    unchanged: list[bool] = []
    inputs: list[Tensor] = []

    def before(block: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        states = args[0] if args else kwargs[forward_parameters(type(block).forward)[0]]
        inputs.append(states.clone())

    def after(_: nn.Module, __: Any, output: Any) -> None:
        states = output[0] if isinstance(output, tuple) else output
        unchanged.append(torch.equal(states.float(), inputs[-1].float()))  # some keep the residual in float32

    handles = [hook_output(module, torch.zeros_like) for branches in found for module in branches.values()]
    for block in blocks:
        handles.append(block.register_forward_pre_hook(before, with_kwargs=True))
        handles.append(block.register_forward_hook(after))
    device = next(model.parameters()).device
    try:
        model(input_ids=torch.arange(4, device=device)[None], use_cache=False)
    finally:
        for handle in handles:
            handle.remove()
    return len(unchanged) == len(blocks) and all(unchanged)
