"""FSDP: the weights of a model are sharded over the processes of a training, for models that do not fit one GPU.

Each process holds a part of every weight. A block's weights are gathered when it runs, forward and backward, and freed
afterwards, so that a GPU needs room for its part of the model and for one whole block.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from decoder2vec.backbone.backbone import Backbone
from decoder2vec.backbone.blocks import find_blocks, keep_first_blocks
from decoder2vec.errors import UnsupportedError


def is_sharded(module: nn.Module) -> bool:
    """Whether the weights of a module are sharded over processes, which then must all run it at once."""
    return any(map(_is_shard, module.parameters()))


def _is_shard(tensor: Tensor) -> bool:
    return hasattr(tensor, "device_mesh")  # as of a DTensor, whose import would take a second


def local_part(tensor: Tensor) -> Tensor:
    """The part of a shard that this process holds; another tensor itself."""
    return tensor.to_local() if _is_shard(tensor) else tensor  # type: ignore[attr-defined,no-any-return]


def copy_model(backbone: Backbone, depth: int, dtype: torch.dtype) -> Backbone:
    """The backbone with a copy of its model, without the blocks above the first `depth`, and without an adapter."""
    model = copy.deepcopy(backbone.model).to(dtype)
    if depth < len(find_blocks(model)[1]):
        keep_first_blocks(model, depth)
    return replace(backbone, model=model, adapter=None)


def shard_weights(backbone: Backbone, device: torch.device, compute_dtype: torch.dtype) -> None:
    """Shard the weights of a backbone over all processes, in place; each process moves its part to its device.

    Args:
        backbone: Its model may be on the CPU: blocks are moved one by one.
        device: The device of this process.
        compute_dtype: Gathered weights are cast to this.

    Raises:
        UnsupportedError: The weights are quantised, or the device cannot exchange them.

    """
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    if backbone.four_bit:
        raise UnsupportedError("FSDP does not shard 4-bit weights; leave out fsdp, or use another dtype.")
    if device.type not in ("cuda", "cpu"):
        raise UnsupportedError(f"FSDP needs GPUs with CUDA, or CPUs, not {device.type}; leave out fsdp.")
    mesh = init_device_mesh(device.type, (torch.distributed.get_world_size(),))
    is_cast = backbone.dtype != compute_dtype
    policy = MixedPrecisionPolicy(compute_dtype, torch.float32) if is_cast else MixedPrecisionPolicy()
    for block in backbone.blocks:
        fully_shard(block, mesh=mesh, mp_policy=policy)
    # embeddings and final norm; the norm also runs after the pass through the model that has gathered them
    fully_shard(backbone.model, mesh=mesh, mp_policy=policy, reshard_after_forward=False)


def whole_tensors(tensors: Mapping[str, Tensor], *, keep: bool) -> dict[str, Tensor]:
    """The tensors with shards gathered, on the CPU where they were shards; all processes must call it.

    Args:
        tensors: Shards or whole tensors.
        keep: Whether this process needs them; else an empty dict is returned.

    """
    whole = {}
    for name, tensor in tensors.items():  # one by one, since all together may not fit the device
        gathered = tensor.full_tensor().cpu() if _is_shard(tensor) else tensor  # type: ignore[attr-defined]
        if keep:
            whole[name] = gathered
    return whole


def shard_like(tensor: Tensor, other: Tensor) -> Tensor:
    """The part of a whole tensor that this process holds, if the other tensor is a shard; else the tensor itself."""
    if not _is_shard(other):
        return tensor
    from torch.distributed.tensor import distribute_tensor

    mesh, placements = other.device_mesh, other.placements  # type: ignore[attr-defined]
    return distribute_tensor(tensor.to(other.device), mesh, placements)


def split_shards(parameters: Sequence[Tensor]) -> list[list[Tensor]]:
    """Shards, and whole tensors; without an empty list. Optimizers do not take both in one group."""
    groups = ([tensor for tensor in parameters if _is_shard(tensor) == shards] for shards in (True, False))
    return [group for group in groups if group]


@torch.no_grad()
def clip_gradients(parameters: Sequence[Tensor], max_norm: float) -> None:
    """Scale the gradients so that their norm over all parameters is at most `max_norm`."""
    shards = [tensor for tensor in parameters if _is_shard(tensor)]
    if not shards:
        nn.utils.clip_grad_norm_(parameters, max_norm)
        return
    # a norm of shards and whole tensors together: torch computes it of either
    gradients = [tensor.grad for tensor in parameters if tensor.grad is not None]
    of_shards, of_whole = (torch.zeros((), device=shards[0].device) for _ in range(2))
    for gradient in gradients:
        (of_shards if _is_shard(gradient) else of_whole).add_(local_part(gradient).float().square().sum())
    torch.distributed.all_reduce(of_shards)
    factor = (max_norm / ((of_shards + of_whole).sqrt() + 1e-6)).clamp(max=1)
    for gradient in gradients:
        local_part(gradient).mul_(factor)
