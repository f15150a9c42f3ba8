"""Packed batches: the tokens of many texts in one row, without padding; each text attends to itself alone.

The blocks of most families hand queries, keys and values to an attention function that their config names. Ours divides
the row where one text ends and the next begins. No family is trusted to do so: a model is packed only after a check
that its states are those of the texts alone, and that no text sees its neighbours.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import AttentionInterface

from decoder2vec.backbone.attention import ATTENTIONS
from decoder2vec.backbone.batch import Packing
from decoder2vec.backbone.blocks import text_config
from decoder2vec.errors import UnsupportedError

if TYPE_CHECKING:
    from decoder2vec.backbone.backbone import Backbone

_NAME = "decoder2vec_packed"
_KERNEL_DTYPES = (torch.bfloat16, torch.float16)
_KERNEL_HEAD_DIMS = range(8, 257, 8)
"""Sizes of a head that the kernel takes."""
_CHANGED_SCORES = ("softcap", "s_aux")
"""Arguments with which families limit scores or add to their sum; on small numbers the check may not notice them."""
_MIN_COSINE = 0.99
"""Of a token's state in a packed row to its state in a text alone, in 16 bits."""
_PROBE_LENGTHS = (5, 3, 7)
"""Tokens of the texts of the check."""

_CHECKED: WeakKeyDictionary[nn.Module, dict[str, bool]] = WeakKeyDictionary()
"""Whether a model can be packed, by the attention that it was checked with."""


# --- attention -------------------------------------------------------------------------------------------------------


@contextmanager
def packed_attention(model: nn.Module) -> Iterator[None]:
    """Context in which the model attends within the texts of a packed row."""
    config: Any = text_config(model.config)
    before = config._attn_implementation
    config._attn_implementation = _NAME
    try:
        yield
    finally:
        config._attn_implementation = before


def packed_inputs(packing: Packing, causal: bool) -> dict[str, Any]:
    """What a model is given, besides its tokens, in the context of `packed_attention`."""
    inputs = {
        "position_ids": packing.positions,
        "text_boundaries": packing.boundaries,
        "longest_text": packing.max_length,
        "causal_texts": causal,
    }
    if packing.groups:
        texts = packing.groups.prompts[:, None]  # [group, 1, position]
        same_text = texts[..., :, None] == texts[..., None, :]
        inputs["positions_in_groups"] = packing.groups.positions
        inputs["group_mask"] = same_text.tril() if causal else same_text
    return inputs


def _attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Attention as blocks of transformers call it: [1, heads, tokens, head_dim] to [1, tokens, heads, head_dim]."""
    if any(kwargs.get(name) is not None for name in _CHANGED_SCORES):
        raise UnsupportedError("Attention that changes its scores cannot be packed.")
    device = query.device.type
    if torch.is_autocast_enabled(device):
        dtype = torch.get_autocast_dtype(device)
        query, key, value = query.to(dtype), key.to(dtype), value.to(dtype)
    boundaries, causal = kwargs["text_boundaries"], kwargs["causal_texts"]
    query, key, value = (states[0].transpose(0, 1) for states in (query, key, value))  # [tokens, heads, head_dim]
    if "group_mask" in kwargs:
        attended = _in_groups(query, key, value, kwargs["positions_in_groups"], kwargs["group_mask"], dropout, scaling)
    elif device == "cuda" and kernel_takes(query.dtype, query.shape[-1]):
        longest = kwargs["longest_text"]
        # `varlen_attn` is this operator, with arguments that differ between versions of torch
        attended = torch.ops.aten._flash_attention_forward(
            query, key, value, boundaries, boundaries, longest, longest, dropout, causal, False, scale=scaling
        )[0]
    else:
        attended = _text_by_text(query, key, value, boundaries, dropout, causal, scaling)
    return attended[None], None


def _in_groups(
    query: Tensor, key: Tensor, value: Tensor, positions: Tensor, mask: Tensor, dropout: float, scaling: float | None
) -> Tensor:
    """[tokens, heads, head_dim]: attention in groups of short texts, whose tokens are masked for each other."""
    repeats = query.shape[1] // key.shape[1]
    if repeats > 1:  # kernels that take a mask know no groups of heads
        key, value = key.repeat_interleave(repeats, 1), value.repeat_interleave(repeats, 1)
    n_groups, size = mask.shape[0], mask.shape[-1]

    def grouped(states: Tensor) -> Tensor:
        filled = states.new_zeros(n_groups * size, *states.shape[1:]).index_copy(0, positions, states)
        return filled.view(n_groups, size, *states.shape[1:]).transpose(1, 2)

    attended = functional.scaled_dot_product_attention(
        grouped(query), grouped(key), grouped(value), mask, dropout, scale=scaling
    )
    return attended.transpose(1, 2).flatten(0, 1)[positions]


def _text_by_text(
    query: Tensor, key: Tensor, value: Tensor, boundaries: Tensor, dropout: float, causal: bool, scaling: float | None
) -> Tensor:
    """[tokens, heads, head_dim]: the plain version, for every device and dtype."""
    attended = []
    for begin, end in pairwise(boundaries.tolist()):
        q, k, v = (states[begin:end].transpose(0, 1)[None] for states in (query, key, value))
        states = functional.scaled_dot_product_attention(
            q, k, v, dropout_p=dropout, is_causal=causal, scale=scaling, enable_gqa=True
        )
        attended.append(states[0].transpose(0, 1))
    return torch.cat(attended)


AttentionInterface.register(_NAME, _attention)


# --- which models ----------------------------------------------------------------------------------------------------


def packing_pays(backbone: Backbone, dtype: torch.dtype | None = None) -> bool:
    """Whether batches should be packed: on a GPU with a kernel for it, where the model gives the same vectors.

    On a CPU, texts of similar lengths in a batch leave next to no padding, and no kernel packs them.

    Args:
        backbone: The model.
        dtype: What the model computes in; by default the dtype of its weights.
    """
    on_gpu = backbone.device.type == "cuda"
    return on_gpu and kernel_takes(dtype or backbone.dtype, _head_dim(backbone)) and can_pack(backbone)


def kernel_takes(dtype: torch.dtype, head_dim: int) -> bool:
    """Whether GPUs have a kernel for packed texts in this dtype, with heads of this size."""
    return dtype in _KERNEL_DTYPES and head_dim in _KERNEL_HEAD_DIMS


def _head_dim(backbone: Backbone) -> int:
    """Size of a head of attention; 0 for models without such heads."""
    config = text_config(backbone.model.config)
    heads = getattr(config, "num_attention_heads", None)
    own = getattr(config, "head_dim", None)
    return own or (config.hidden_size // heads if isinstance(heads, int) and heads else 0)


def can_pack(backbone: Backbone) -> bool:
    """Whether a backbone's vectors are the same on packed rows, with its adapter; checked once for each model.

    Adapters that change tokens or blocks are not packed, nor is attention that differs between layers.
    """
    adapter_packs = backbone.adapter is None or backbone.adapter.packs
    if backbone.attention not in ATTENTIONS or not adapter_packs:
        return False
    with backbone.lock:
        checked = _CHECKED.setdefault(backbone.model, {})
        if backbone.attention not in checked:
            checked[backbone.attention] = _passes_check(backbone)
        return checked[backbone.attention]


def longest_packed_text(backbone: Backbone) -> float:
    """Tokens that a packed text may have: no more than a window of local attention."""
    return getattr(text_config(backbone.model.config), "sliding_window", None) or math.inf


@torch.inference_mode()
def _passes_check(backbone: Backbone) -> bool:
    """Compare packed texts with each text alone, and with the same row around another text."""
    n_first, n_other, n_last = _PROBE_LENGTHS
    first, other, last = slice(n_first), slice(n_first, n_first + n_other), slice(n_first + n_other, None)
    generator = torch.Generator().manual_seed(0)
    row, changed = torch.randint(backbone.vocabulary_size, (2, 1, n_first + n_other + n_last), generator=generator).to(
        backbone.device
    )
    changed[:, first], changed[:, last] = row[:, first], row[:, last]
    packing = Packing.of(_PROBE_LENGTHS).to(backbone.device)
    min_cosine = _MIN_COSINE if backbone.dtype in _KERNEL_DTYPES else 1 - 1e-5
    try:
        alone = torch.cat([_last_states(backbone.model, row[:, text]) for text in (first, other, last)])
        for way in (packing, replace(packing, groups=None)):
            inputs = packed_inputs(way, backbone.attention == "causal")
            with packed_attention(backbone.model):
                packed, beside_other = (_last_states(backbone.model, tokens, **inputs) for tokens in (row, changed))
            unmoved = all(torch.allclose(packed[text], beside_other[text], 1e-3, 1e-3) for text in (first, last))
            if not unmoved or functional.cosine_similarity(alone, packed, dim=-1).min() < min_cosine:
                return False
    except Exception:  # families that do not know such attention fail in as many ways as there are families
        return False
    return True


def _last_states(model: nn.Module, ids: Tensor, **inputs: Any) -> Tensor:
    """[tokens, dim] float32 states of a row after the last block."""
    return model(input_ids=ids, use_cache=False, **inputs).last_hidden_state[0].float()  # type: ignore[no-any-return]
