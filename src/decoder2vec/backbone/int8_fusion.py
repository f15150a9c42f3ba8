"""Norms and gated MLPs around layers in int8, each as one compiled loop.

No family is trusted to compute what its names suggest: a module is replaced only after it gave what the loop gives, and
only where the loop is measured to be faster.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from decoder2vec.backbone.cpu_dtype import MIN_WIDTH, fastest_seconds
from decoder2vec.backbone.int8_linear import Int8Linear
from decoder2vec.backbone.int8_rounding import CompiledRounding, QuantisedRows, as_array

_EPS_NAMES = ("variance_epsilon", "eps")
_SILU = (1.0, 0.0)
_GELU_TANH = (2 * (2 / np.pi) ** 0.5, 2 * (2 / np.pi) ** 0.5 * 0.044715)
"""Activations that are x times a sigmoid: its factors of x and x**3."""
_MLP_LAYERS = ("gate_proj", "up_proj", "down_proj")
_PROBE_ROWS = 256
_MAX_ERROR = 1e-3
"""Of a gated MLP, relative: two activations differ by more, two ways to add by less."""


def fuse_blocks(blocks: nn.ModuleList) -> None:
    """Let the norms and MLPs of blocks in int8 run as compiled loops, if their layers are rounded by such loops."""
    layers = (module for module in blocks.modules() if isinstance(module, Int8Linear))
    if not any(isinstance(layer.shared.rounding, CompiledRounding) for layer in layers):
        return
    for kind in (FusedNorm, FusedMLP):
        pays: bool | None = None
        for module in blocks.modules():
            fused = kind.of(module)
            if fused and pays is None:
                pays = _is_faster(fused)  # of one for all
            if fused and pays:
                module.forward = fused  # type: ignore[method-assign]


class FusedNorm:
    """The forward of a module that divides states by the root of their mean square.

    Args:
        norm: The module.
        weight: What the states are multiplied with.
        eps: What is added to the mean square.
    """

    def __init__(self, norm: nn.Module, weight: Tensor, eps: float) -> None:
        self.original = norm.forward
        self.width = len(weight)
        self._weight, self._eps = as_array(weight), np.float32(eps)

    @classmethod
    @torch.inference_mode()
    def of(cls, module: nn.Module) -> FusedNorm | None:
        """Return the fused forward of a module; None if it is no such norm."""
        weight, eps = getattr(module, "weight", None), _first_attribute(module, _EPS_NAMES)
        if not isinstance(weight, Tensor) or weight.ndim != 1 or weight.dtype != torch.float32 or eps is None:
            return None
        ones = torch.ones_like(weight)  # families multiply with the weight or with the weight and one
        scales = (10.0 ** torch.arange(-4, 4))[:, None]
        probe = scales * torch.randn(len(scales), len(weight), generator=torch.Generator().manual_seed(0))
        try:
            fused = cls(module, module(ones) * (1 + eps) ** 0.5, eps)
            expected = module(probe)
        except Exception:  # families name other modules alike, which take other arguments
            return None
        return fused if torch.allclose(fused(probe), expected, rtol=1e-5, atol=1e-6) else None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Return the normed states."""
        if kwargs or len(args) != 1 or args[0].requires_grad:
            return self.original(*args, **kwargs)
        from decoder2vec.backbone import int8_kernels

        (states,) = args
        normed = torch.empty(states.shape)
        rows = as_array(states.reshape(-1, self.width))
        int8_kernels.rms_norm(rows, self._weight, self._eps, as_array(normed.view(-1, self.width)))
        return normed


class FusedMLP:
    """The forward of an MLP that multiplies what an up layer gives with the activation of what a gate layer gives.

    Args:
        mlp: The module.
        activation: Factors of x and x**3 in the sigmoid that x is multiplied with.
    """

    def __init__(self, mlp: nn.Module, activation: tuple[float, float]) -> None:
        self.original = mlp.forward
        self.gate, self.up, self.down = self._layers = _gated_layers(mlp)
        self.width = self.gate.in_features
        self._activation = np.float32(activation[0]), np.float32(activation[1])

    @classmethod
    @torch.inference_mode()
    def of(cls, module: nn.Module) -> FusedMLP | None:
        """Return the fused forward of a module; None if it is no such MLP."""
        layers = _gated_layers(module)
        if not layers or layers[0].bias is not None or layers[1].bias is not None:
            return None
        probe = torch.randn(_PROBE_ROWS, layers[0].in_features, generator=torch.Generator().manual_seed(0))
        expected = module(probe)
        for activation in (_SILU, _GELU_TANH):
            fused = cls(module, activation)
            if (fused(probe) - expected).norm() <= _MAX_ERROR * expected.norm():
                return fused
        return None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Return the output of the MLP."""
        hooked = any(layer._forward_hooks or layer._forward_pre_hooks for layer in self._layers)
        if hooked or kwargs or len(args) != 1 or args[0].requires_grad:
            return self.original(*args, **kwargs)
        from decoder2vec.backbone import int8_kernels

        (states,) = args
        rows = self.gate.shared.quantise(states)
        gate, up = self.gate.products(rows), self.up.products(rows)
        gated = QuantisedRows.empty(*gate.shape)
        int8_kernels.gate_rows(
            as_array(gate),
            as_array(self.gate.scales),
            as_array(up),
            as_array(self.up.scales),
            as_array(rows.scales),
            *self._activation,
            as_array(gated.values),
            as_array(gated.scales),
        )
        return self.down.output(gated).view(*states.shape[:-1], self.down.out_features)


def _first_attribute(module: nn.Module, names: tuple[str, ...]) -> float | None:
    return next((value for name in names if isinstance(value := getattr(module, name, None), float)), None)


def _gated_layers(module: nn.Module) -> tuple[Int8Linear, ...]:
    """The gate, up and down layers of an MLP; none if it has others, or they are not in int8."""
    layers = (getattr(module, name, None) for name in _MLP_LAYERS)
    in_int8 = tuple(layer for layer in layers if isinstance(layer, Int8Linear))
    return in_int8 if len(in_int8) == len(_MLP_LAYERS) else ()


@torch.inference_mode()
def _is_faster(fused: FusedNorm | FusedMLP) -> bool:
    if fused.width < MIN_WIDTH:  # too small to be measured, as for dtypes
        return True
    inputs = torch.randn(_PROBE_ROWS, fused.width)

    def seconds(forward: Callable[..., Tensor]) -> float:
        return fastest_seconds(lambda: forward(inputs.view_as(inputs)))  # the same tensor is quantised only once

    return seconds(fused) < seconds(fused.original)
