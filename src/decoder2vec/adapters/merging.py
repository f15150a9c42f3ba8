"""Averages of adapters of one model.

Of LoRA, the updates of the weights are averaged, which are the products of its matrices: the sum of updates of ranks r1
and r2 is exactly an update of rank r1 + r2, whose matrices are those of both side by side.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from decoder2vec.adapters.lora import Lora, LoraConfig
from decoder2vec.backbone.backbone import Backbone
from decoder2vec.backbone.batch import Adapter
from decoder2vec.errors import InputError
from decoder2vec.maths.interpolation import interpolate, interpolation_factors


def merge_adapters(
    adapters: Sequence[Adapter | None], weights: Sequence[float], method: str, backbone: Backbone
) -> Adapter:
    """Average adapters.

    Args:
        adapters: Adapters of one kind for the same model; among LoRA, None is an update of zero.
        weights: One for each adapter; they sum to 1.
        method: "linear", or "slerp" for two: between the updates of each layer, or between the trained values.
        backbone: The model.

    Raises:
        InputError: The adapters are of different kinds, sizes or settings.
    """
    if all(adapter is None or isinstance(adapter, Lora) for adapter in adapters):
        return _merge_lora(adapters, weights, method, backbone)
    kinds = [adapter.kind if adapter else "no adapter" for adapter in adapters]
    if len(set(kinds)) > 1:
        raise InputError(
            f"Encoders with {' and '.join(dict.fromkeys(kinds))} have no average; merge those of one kind."
        )
    return _merge_values([adapter for adapter in adapters if adapter], weights, method)


@torch.no_grad()
def truncate_rank(lora: Lora, rank: int, backbone: Backbone) -> tuple[Lora, float]:
    """Cut the update of each layer to a lower rank, by its largest singular values.

    Returns:
        The nearest LoRA of that rank, and the norm of what was cut off relative to that of all updates (Frobenius).
    """
    truncated = _new_lora(backbone, lora, rank=rank)
    state, cut, total = {}, 0.0, 0.0
    for path, (upper, lower) in _updates(lora).items():
        # the update is upper @ lower = Q1 (R1 R2^T) Q2^T: only the small matrix in the middle is decomposed
        q1, r1 = torch.linalg.qr(upper)
        q2, r2 = torch.linalg.qr(lower.T)
        left, values, right = torch.linalg.svd(r1 @ r2.T, full_matrices=False)
        roots = values[:rank].sqrt()
        missing = rank - len(roots)  # of a layer that is narrower than the rank
        state[f"base_model.model.{path}.lora_B.weight"] = functional.pad(q1 @ left[:, :rank] * roots, (0, missing))
        state[f"base_model.model.{path}.lora_A.weight"] = functional.pad(
            roots[:, None] * (right[:rank] @ q2.T), (0, 0, 0, missing)
        )
        cut += float(values[rank:].square().sum())
        total += float(values.square().sum())
    truncated.load_peft_state_dict(state)
    return truncated, (cut / total) ** 0.5 if total else 0.0


@torch.no_grad()
def _merge_lora(adapters: Sequence[Adapter | None], weights: Sequence[float], method: str, backbone: Backbone) -> Lora:
    loras = [adapter for adapter in adapters if isinstance(adapter, Lora)]
    ranks = [adapter.config.rank if isinstance(adapter, Lora) else 0 for adapter in adapters]
    updates = [_updates(adapter) if isinstance(adapter, Lora) else {} for adapter in adapters]
    merged = _new_lora(backbone, *loras, rank=sum(ranks))
    state = {}
    for path, (zero_upper, zero_lower) in _updates(merged).items():
        # a layer without an update has one of zero
        uppers, lowers = zip(
            *(
                layers.get(path, (zero_upper[:, :rank], zero_lower[:rank]))
                for layers, rank in zip(updates, ranks, strict=True)
            ),
            strict=True,
        )
        factors = interpolation_factors(_inner_products(uppers, lowers), weights, method)
        scaled = [factor * upper for factor, upper in zip(factors, uppers, strict=True)]
        state[f"base_model.model.{path}.lora_B.weight"] = torch.cat(scaled, dim=1)
        state[f"base_model.model.{path}.lora_A.weight"] = torch.cat(lowers)
    merged.load_peft_state_dict(state)
    return merged


def _new_lora(backbone: Backbone, *loras: Lora, rank: int) -> Lora:
    """LoRA on every layer that one of several has, whose scaling is 1."""
    targets = {name for lora in loras for name in lora.settings()["targets"]}
    depth = max(lora.config.depth or backbone.n_layers for lora in loras)
    new = Lora(backbone, LoraConfig(rank, rank, targets=tuple(sorted(targets)), depth=depth))
    return new.requires_grad_(False).to(backbone.device)


def _updates(lora: Lora) -> dict[str, tuple[Tensor, Tensor]]:
    """The matrices of each layer by its path, in float64: [out, rank], scaled, and [rank, in]."""
    return {
        path: (lora.upper[name][index].double() * lora.scaling, lora.lower[name][index].double())
        for name, layers in lora.groups.items()
        for index, (path, _) in enumerate(layers)
    }


def _inner_products(uppers: Sequence[Tensor], lowers: Sequence[Tensor]) -> Tensor:
    """[n, n] inner products of the n updates upper @ lower, which are never computed themselves."""
    return torch.stack(
        [
            torch.stack([((u1.T @ u2) * (l1 @ l2.T)).sum() for u2, l2 in zip(uppers, lowers, strict=True)])
            for u1, l1 in zip(uppers, lowers, strict=True)
        ]
    )


@torch.no_grad()
def _merge_values(adapters: Sequence[Adapter], weights: Sequence[float], method: str) -> Adapter:
    """Average the trained values of soft prompts or prefixes."""
    states = [adapter.state_dict() for adapter in adapters]
    shapes = [{name: list(tensor.shape) for name, tensor in state.items()} for state in states]
    if any(other != shapes[0] for other in shapes) or len({str(adapter.settings()) for adapter in adapters}) > 1:
        raise InputError(
            f"Only {adapters[0].kind} adapters of one size and with the same settings have an average; these differ."
        )
    if not states[0]:  # re-routing has no parameters
        return adapters[0]
    merged = copy.deepcopy(adapters[0])
    merged.load_state_dict(
        {name: interpolate([state[name] for state in states], weights, method) for name in states[0]}
    )
    return merged
