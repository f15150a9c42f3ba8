"""Norms, attention and gated MLPs around layers in int8, as compiled loops.

No family is trusted to compute what its names suggest: a module is replaced only after it gave what the loops give, and
only where they are measured to be faster.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from decoder2vec.backbone.cpu_dtype import MIN_WIDTH, fastest_seconds
from decoder2vec.backbone.int8_linear import Int8Linear
from decoder2vec.backbone.int8_product import QuantisedRows
from decoder2vec.backbone.int8_rounding import CompiledRounding, as_array

if TYPE_CHECKING:
    from decoder2vec.backbone.int8_kernels import HeadLoops

_EPS_NAMES = ("variance_epsilon", "eps")
_SILU = (1.0, 0.0)
_GELU_TANH = (2 * (2 / np.pi) ** 0.5, 2 * (2 / np.pi) ** 0.5 * 0.044715)
"""Activations that are x times a sigmoid: its factors of x and x**3."""
_MLP_LAYERS = ("gate_proj", "up_proj", "down_proj")
_ATTENTION_LAYERS = ("q_proj", "k_proj", "v_proj", "o_proj")
_HEAD_NORMS = ("q_norm", "k_norm")
_HARMLESS_INPUTS = {"position_ids", "use_cache", "cache_position"}
"""What blocks pass to attention and does not change what it computes."""
_ALL_SCORES = 256
"""Keys up to which all scores of a batch are held at once. With more, torch's kernel is faster, which never does."""
_NONE, _NO_TURNS = np.empty(0, np.float32), np.empty((0, 0, 0), np.float32)
_PROBE_ROWS = 256
_PROBE_TOKENS = 32
"""Of a text, where rows are texts."""
_PROBE_SIZES = (1.0, 30.0)
"""Of the states that attention is compared on: a limit of the scores shows in large ones."""
_MAX_ERROR = 1e-3
"""Of an MLP or attention, relative: two activations differ by more, two ways to add by less."""


def fuse_blocks(blocks: nn.ModuleList) -> None:
    """Run norms, attention and MLPs of blocks in int8 as compiled loops, if their layers are rounded by such loops."""
    layers = (module for module in blocks.modules() if isinstance(module, Int8Linear))
    if not any(isinstance(layer.shared.rounding, CompiledRounding) for layer in layers):
        return
    for kind in (FusedNorm, FusedAttention, FusedMLP):
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
        self.weight, self.eps = as_array(weight), np.float32(eps)

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
        int8_kernels.rms_norm(rows, self.weight, self.eps, as_array(normed.view(-1, self.width)))
        return normed

    def apply(self, forward: Callable[..., Any], rows: Tensor) -> Tensor:
        """Call a forward of the module with rows of states."""
        return forward(rows)  # type: ignore[no-any-return]


class FusedMLP:
    """The forward of an MLP that multiplies what an up layer gives with the activation of what a gate layer gives.

    Args:
        mlp: The module.
        activation: Factors of x and x**3 in the sigmoid that x is multiplied with.
    """

    def __init__(self, mlp: nn.Module, activation: tuple[float, float]) -> None:
        self.original = mlp.forward
        self.gate, self.up, self.down = self._layers = _layers_in_int8(mlp, _MLP_LAYERS)
        self.width = self.gate.in_features
        self._activation = np.float32(activation[0]), np.float32(activation[1])

    @classmethod
    @torch.inference_mode()
    def of(cls, module: nn.Module) -> FusedMLP | None:
        """Return the fused forward of a module; None if it is no such MLP."""
        layers = _layers_in_int8(module, _MLP_LAYERS)
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
        if _have_hooks(self._layers) or kwargs or len(args) != 1 or args[0].requires_grad:
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

    def apply(self, forward: Callable[..., Any], rows: Tensor) -> Tensor:
        """Call a forward of the module with rows of states."""
        return forward(rows)  # type: ignore[no-any-return]


class _AttentionInputs(NamedTuple):
    """What attention reads."""

    states: Tensor
    cos: Tensor
    """[text or 1, token, width of a head], as `sin`."""
    sin: Tensor
    mask: Tensor | None
    """[text or 1, 1, token or 1, key]"""
    causal: bool
    """Whether tokens see only what precedes them, which no mask says."""
    past: Any
    """Keys and values in front of these, in a cache of transformers; or None."""


class FusedAttention:
    """The forward of attention with rotary positions.

    Scaling, norms of heads and rotation are one loop over the products of a layer. Heads that share a key attend as one
    head with more tokens, so keys and values are not repeated.

    Args:
        attention: The module.
        norms: The norms of the heads of queries and keys; none if they are not normed.
    """

    def __init__(self, attention: nn.Module, norms: tuple[FusedNorm, ...] = ()) -> None:
        self.original = attention.forward
        self.query, self.key, self.value, self.out = self._layers = _layers_in_int8(attention, _ATTENTION_LAYERS)
        self.width = self.query.in_features
        self._module = cast(Any, attention)
        self._norms = norms or (None, None)
        self._head_width: int = self._module.head_dim
        self._scaling: float = self._module.scaling
        self._index: int = self._module.layer_idx

    @classmethod
    @torch.inference_mode()
    def of(cls, module: nn.Module) -> FusedAttention | None:
        """Return the fused forward of a module; None if it is no such attention."""
        if not _layers_in_int8(module, _ATTENTION_LAYERS):
            return None
        try:
            norms = [FusedNorm.of(getattr(module, name)) for name in _HEAD_NORMS if hasattr(module, name)]
            fused = cls(module, tuple(norm for norm in norms if norm))
            is_equal = fused._has_even_heads() and all(fused._is_equal(size) for size in _PROBE_SIZES)
            return fused if is_equal else None
        except Exception:  # families name other modules alike, which take other arguments
            return None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Return what attention gives, and None in place of its weights."""
        if args or _have_hooks(self._layers) or not (inputs := self._read(**kwargs)):
            return self.original(*args, **kwargs)
        return self._compute(inputs), None

    def _compute(self, inputs: _AttentionInputs) -> Tensor:
        """[text, token, width] what attention adds to the states."""
        from decoder2vec.backbone import int8_kernels

        loops = int8_kernels.head_loops(self._head_width)
        query, key, value = self._heads(inputs, loops)
        if inputs.past is not None:
            key, value = inputs.past.update(key, value, self._index)
        heads, sums = self._attend(query, key, value, inputs.mask, inputs.causal)
        texts, tokens, _ = inputs.states.shape
        rows = QuantisedRows.empty(texts * tokens, self.out.in_features)
        loops.gather(as_array(heads), as_array(sums), as_array(rows.values), as_array(rows.scales))
        return self.out.output(rows).view(texts, tokens, self.out.out_features)

    def apply(self, forward: Callable[..., Any], rows: Tensor) -> Tensor:
        """Call a forward of the module with rows of states, as texts of equal lengths."""
        return forward(**self._probe(rows))[0]  # type: ignore[no-any-return]

    def _probe(self, rows: Tensor) -> dict[str, Any]:
        angles = torch.arange(_PROBE_TOKENS)[:, None] / 10.0 ** torch.linspace(0, 4, self._head_width // 2)
        positions = tuple(torch.cat([part, part], 1)[None] for part in (angles.cos(), angles.sin()))
        states = rows.view(-1, _PROBE_TOKENS, self.width)
        return {"hidden_states": states, "position_embeddings": positions, "attention_mask": None}

    def _has_even_heads(self) -> bool:
        """Whether the heads of all layers, and their norms, have one width, which can be rotated."""
        width = self._head_width
        widths = [layer.out_features % width for layer in self._layers[:3]]
        same = (self.query.out_features, self.key.out_features) == (self.out.in_features, self.value.out_features)
        return same and not any([*widths, width % 2]) and all(norm.width == width for norm in self._norms if norm)

    def _is_equal(self, size: float) -> bool:
        """Whether it gives what the module gives for states of a size."""
        probe = self._probe(size * torch.randn(_PROBE_TOKENS, self.width, generator=torch.Generator().manual_seed(0)))
        inputs, (expected, weights) = self._read(**probe), self.original(**probe)
        if inputs is None or weights is not None:
            return False
        return bool((self._compute(inputs) - expected).norm() <= _MAX_ERROR * expected.norm())

    def _read(
        self,
        hidden_states: Tensor,
        position_embeddings: tuple[Tensor, Tensor] | None = None,
        attention_mask: Tensor | None = None,
        past_key_values: Any = None,
        is_causal: bool | None = None,
        **others: Any,
    ) -> _AttentionInputs | None:
        """The inputs; None if they ask for something else than what is computed here."""
        is_other = any(value is not None for name, value in others.items() if name not in _HARMLESS_INPUTS)
        is_other |= self._module.config._attn_implementation != "sdpa" or hidden_states.requires_grad
        if is_other or position_embeddings is None:
            return None
        texts, n_tokens, _ = hidden_states.shape
        turns = {tuple(part.shape) for part in position_embeddings}
        if not turns <= {(texts, n_tokens, self._head_width), (1, n_tokens, self._head_width)}:
            return None
        if attention_mask is not None and (attention_mask.ndim != 4 or attention_mask.shape[1] != 1):
            return None
        causal = self._module.is_causal if is_causal is None else is_causal
        causal = bool(causal) and attention_mask is None and n_tokens > 1
        if causal and past_key_values is not None:
            return None
        return _AttentionInputs(hidden_states, *position_embeddings, attention_mask, causal, past_key_values)

    def _heads(self, inputs: _AttentionInputs, loops: HeadLoops) -> tuple[Tensor, Tensor, Tensor]:
        """[text, head, token, width] queries and keys, rotated, and values; queries are scaled as their scores are."""
        texts, n_tokens, _ = inputs.states.shape
        bits = max(layer.input_bits for layer in self._layers[:3])
        rows = self.query.shared.quantise(inputs.states, bits)
        turns = as_array(inputs.cos), as_array(inputs.sin)
        query_norm, key_norm = self._norms

        def spread(layer: Int8Linear, factor: float, turns: tuple[Any, Any], norm: FusedNorm | None = None) -> Tensor:
            products = layer.products(rows if layer.input_bits == rows.bits else rows.in_8_bits())
            bias = _NONE if layer.bias is None else as_array(layer.bias)
            norm_weight, eps = (norm.weight, norm.eps) if norm else (_NONE, np.float32(0))
            heads = torch.empty(texts, layer.out_features // self._head_width, n_tokens, self._head_width)
            scales = as_array(rows.scales), as_array(layer.scales)
            loops.spread(
                as_array(products), *scales, bias, norm_weight, eps, np.float32(factor), *turns, as_array(heads)
            )
            return heads

        return (
            spread(self.query, self._scaling, turns, query_norm),
            spread(self.key, 1.0, turns, key_norm),
            spread(self.value, 1.0, (_NO_TURNS, _NO_TURNS)),
        )

    def _attend(
        self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, causal: bool
    ) -> tuple[Tensor, Tensor]:
        """Values weighted by scores: heads [text, head, token, width], still to be divided by [text, head, token]."""
        texts, n_heads, n_tokens, width = query.shape
        n_shared, n_keys = key.shape[1:3]
        n_rows = n_heads // n_shared * n_tokens
        grouped = query.view(texts, n_shared, n_rows, width)
        fits = mask is None or (mask.shape[2] in (1, n_tokens) and mask.shape[3] == n_keys)
        if n_keys > _ALL_SCORES or not fits:
            if mask is None and not causal:
                heads = functional.scaled_dot_product_attention(grouped, key, value, scale=1.0).reshape(query.shape)
            else:
                options: dict[str, Any] = {"is_causal": causal, "enable_gqa": n_shared != n_heads, "scale": 1.0}
                heads = functional.scaled_dot_product_attention(query, key, value, mask, **options)
            return heads, torch.ones(texts, n_heads, n_tokens)
        from decoder2vec.backbone import int8_kernels

        scores = torch.bmm(key.reshape(-1, n_keys, width), grouped.view(-1, n_rows, width).transpose(1, 2))
        sums = torch.empty(len(scores), n_rows)
        added = self._added_to_scores(_causal_mask(n_tokens) if causal else mask, n_tokens, n_rows)
        int8_kernels.softmax(as_array(scores), as_array(added), as_array(sums))
        heads = torch.bmm(scores.transpose(1, 2), value.reshape(-1, n_keys, width))
        return heads.view(query.shape), sums.view(texts, n_heads, n_tokens)

    def _added_to_scores(self, mask: Tensor | None, n_tokens: int, n_rows: int) -> Tensor:
        """[text or 1, key, row] numbers that are added to scores; empty without a mask. Layers share the last."""
        if mask is None:
            return torch.empty(0, 0, 0)
        masks = self.query.shared.masks
        added = masks.of(mask)
        if added is None or added.shape[2] != n_rows:
            values = mask
            if mask.dtype == torch.bool:
                values = torch.zeros(mask.shape).masked_fill_(~mask, torch.finfo(torch.float32).min)
            by_key = values[:, 0].transpose(1, 2).expand(-1, -1, n_tokens)
            added = masks.keep(mask, by_key.repeat(1, 1, n_rows // n_tokens))
        return added


def _first_attribute(module: nn.Module, names: tuple[str, ...]) -> float | None:
    return next((value for name in names if isinstance(value := getattr(module, name, None), float)), None)


def _layers_in_int8(module: nn.Module, names: tuple[str, ...]) -> tuple[Int8Linear, ...]:
    """The layers of a module by their names; none if it lacks one of them, or one is not in int8."""
    layers = (getattr(module, name, None) for name in names)
    in_int8 = tuple(layer for layer in layers if isinstance(layer, Int8Linear))
    return in_int8 if len(in_int8) == len(names) else ()


@lru_cache(maxsize=32)
def _causal_mask(n_tokens: int) -> Tensor:
    """[1, 1, token, token] booleans; the same tensor in every layer."""
    return torch.ones(1, 1, n_tokens, n_tokens, dtype=torch.bool).tril()


def _have_hooks(modules: Iterable[nn.Module]) -> bool:
    return any(module._forward_hooks or module._forward_pre_hooks for module in modules)


@torch.inference_mode()
def _is_faster(fused: FusedNorm | FusedAttention | FusedMLP) -> bool:
    if fused.width < MIN_WIDTH:  # too small to be measured, as for dtypes
        return True
    inputs = torch.randn(_PROBE_ROWS, fused.width)

    def seconds(forward: Callable[..., Any]) -> float:
        return fastest_seconds(lambda: fused.apply(forward, inputs.view_as(inputs)))  # one tensor is quantised once

    return seconds(fused) < seconds(fused.original)
