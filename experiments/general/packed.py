"""A Llama decoder on packed texts: the tokens of many texts in one row, with bidirectional attention inside each text.

No token is spent on padding shorter texts, and every batch has the same shape, so the block is compiled once. The
vectors are those of `Encoder.encode` with attention "bidirectional", pooling "mean" and the final norm.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional
from tqdm import tqdm

from decoder2vec.adapters.lora import Lora
from decoder2vec.backbone.backbone import Backbone
from decoder2vec.errors import InputError, UnsupportedError
from decoder2vec.text.template import Template
from decoder2vec.text.tokens import Tokeniser

Rows = NDArray[np.intp]
"""Indices of texts."""

_TEXTS_AT_ONCE = 10_000
"""Texts tokenised between two updates of the progress bar."""


# --- packing --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TokenTable:
    """The tokens of all texts, one text after the other."""

    token_ids: NDArray[np.int32]
    lengths: NDArray[np.intp]
    """Number of tokens of each text."""
    starts: NDArray[np.intp]
    """Index of the first token of each text."""

    @classmethod
    def of(cls, backbone: Backbone, texts: Sequence[str], max_length: int) -> TokenTable:
        """Tokenise texts as an encoder with the plain template does."""
        tokeniser = Tokeniser(backbone, Template.of("plain"), max_length)
        pieces = []
        lengths: list[int] = []
        with tqdm(desc="tokens", total=len(texts), unit=" texts", disable=None) as bar:
            for begin in range(0, len(texts), _TEXTS_AT_ONCE):
                prompts = tokeniser(texts[begin : begin + _TEXTS_AT_ONCE]).prompts
                pieces.append(np.concatenate([np.array(prompt.ids, np.int32) for prompt in prompts]))
                lengths += [len(prompt.ids) for prompt in prompts]
                bar.update(len(prompts))
        counts = np.array(lengths, np.intp)
        return cls(np.concatenate(pieces), counts, np.cumsum(counts) - counts)


class PackedBatch(NamedTuple):
    """Texts in one row of tokens; all tensors have the same shape in every batch."""

    token_ids: Tensor
    """[tokens], of which the last may be padding."""
    positions: Tensor
    """[tokens] positions within the text."""
    text_indices: Tensor
    """[tokens] index of the token's text in the batch; `texts` for padding."""
    boundaries: Tensor
    """int32: where one text ends and the next begins, from 0 to `tokens`; absent texts are empty, and the padding is
    divided like texts of the maximum length."""
    lengths: Tensor
    """[texts] numbers of tokens; 0 for texts that are absent."""

    def to(self, device: torch.device) -> PackedBatch:
        """The batch on a device; a GPU copies it while it computes."""
        if device.type != "cuda":
            return PackedBatch(*(tensor.to(device) for tensor in self))
        return PackedBatch(*(tensor.pin_memory().to(device, non_blocking=True) for tensor in self))


def pack(table: TokenTable, rows: Rows, *, max_tokens: int, max_texts: int, max_length: int) -> PackedBatch:
    """Put texts into one row of `max_tokens` tokens.

    Args:
        table: The tokens of all texts.
        rows: Indices of the texts.
        max_tokens: Length of the row.
        max_texts: Number of texts for which there is room.
        max_length: Maximum number of tokens of a text.

    Raises:
        InputError: There are more texts or tokens than fit.
    """
    lengths = table.lengths[rows]
    ends = np.cumsum(lengths)
    total = int(ends[-1])
    if total > max_tokens or len(rows) > max_texts:
        raise InputError(
            f"{len(rows)} texts of {total} tokens do not fit into a batch of {max_texts} texts and {max_tokens} tokens."
        )
    positions = np.arange(total) - np.repeat(ends - lengths, lengths)
    token_ids = table.token_ids[np.repeat(table.starts[rows], lengths) + positions]
    padding = np.minimum(total + max_length * np.arange(1, -(-max_tokens // max_length) + 1), max_tokens)
    boundaries = np.concatenate([[0], ends, np.full(max_texts - len(rows), total), padding])
    return PackedBatch(
        _filled(token_ids.astype(np.int64), max_tokens, 0),
        _filled(positions, max_tokens, 0),
        _filled(np.repeat(np.arange(len(rows)), lengths), max_tokens, max_texts),
        torch.from_numpy(boundaries.astype(np.int32)),
        _filled(lengths.astype(np.float32), max_texts, 0),
    )


def _filled(values: NDArray[Any], size: int, fill: int) -> Tensor:
    return functional.pad(torch.from_numpy(values), (0, size - len(values)), value=fill)


# --- the model ------------------------------------------------------------------------------------------------------


class BlockWeights(NamedTuple):
    """The weights of one block, in the order in which they are used."""

    input_norm: Tensor
    query: Tensor
    key: Tensor
    value: Tensor
    output: Tensor
    mlp_norm: Tensor
    gate: Tensor
    up: Tensor
    down: Tensor


_LAYERS_OF_BLOCK = (
    "input_layernorm",
    "self_attn.q_proj",
    "self_attn.k_proj",
    "self_attn.v_proj",
    "self_attn.o_proj",
    "post_attention_layernorm",
    "mlp.gate_proj",
    "mlp.up_proj",
    "mlp.down_proj",
)
"""Layers of a block in the order of `BlockWeights`, as transformers names them."""


class PackedDecoder:
    """Computes mean-pooled vectors of packed texts with the weights of a backbone.

    Args:
        backbone: A model of the Llama family; its parameters get gradients if they require them.
        lora: Updates that are merged into the weights in every pass.
        max_length: Maximum number of tokens of a text.
        dtype: Dtype of the states and of the copies of the weights that are multiplied with them; norms, rotary
            positions and pooling are computed in float32.
        compiled: Compile the block; the first pass then takes longer.

    Raises:
        UnsupportedError: The model is not of the Llama family, or its linear layers have biases.
    """

    def __init__(
        self,
        backbone: Backbone,
        lora: Lora | None = None,
        *,
        max_length: int = 512,
        dtype: torch.dtype = torch.float32,
        compiled: bool = False,
    ) -> None:
        config: Any = backbone.model.config
        if backbone.family != "llama" or config.attention_bias or config.mlp_bias:
            raise UnsupportedError(f"Packed texts need a Llama model without biases; {backbone.name} is another.")
        self.backbone, self.lora, self.dtype = backbone, lora, dtype
        block = torch.compile(decoder_block, dynamic=False) if compiled else decoder_block
        self._block = partial(block, head_dim=config.head_dim, epsilon=config.rms_norm_eps, max_length=max_length)
        model: Any = backbone.model
        positions = torch.arange(max_length, device=backbone.device)
        cos, sin = model.rotary_emb(torch.empty(0, device=backbone.device), positions[None])
        self._cos, self._sin = cos[0, :, None], sin[0, :, None]  # [positions, 1, head_dim]

    def __call__(self, batch: PackedBatch) -> Tensor:
        """[texts, dim] vectors; those of absent texts are 0."""
        model: Any = self.backbone.model
        states = functional.embedding(batch.token_ids, model.embed_tokens.weight).to(self.dtype)
        cos, sin = self._cos[batch.positions], self._sin[batch.positions]
        for weights in self._block_weights():
            states = self._block(states, weights, cos, sin, batch.boundaries)
        states = rms_norm(states, model.norm.weight, model.config.rms_norm_eps).float()
        sums = states.new_zeros(len(batch.lengths) + 1, states.shape[1]).index_add(0, batch.text_indices, states)
        return sums[:-1] / batch.lengths.clamp_min(1)[:, None]

    def _block_weights(self) -> Iterator[BlockWeights]:
        merged = self.lora.merged_weights_by_path() if self.lora else {}
        for index in range(self.backbone.n_layers):
            paths = (f"layers.{index}.{name}" for name in _LAYERS_OF_BLOCK)
            yield BlockWeights(*(self._weight(path, merged) for path in paths))

    def _weight(self, path: str, merged: dict[str, Tensor]) -> Tensor:
        """The weight of a layer, merged with its update if it has one; those of norms stay in float32."""
        weight = merged[path] if path in merged else self.backbone.model.get_parameter(f"{path}.weight")
        return weight.to(self.dtype) if weight.ndim == 2 else weight


def decoder_block(
    states: Tensor,
    weights: BlockWeights,
    cos: Tensor,
    sin: Tensor,
    boundaries: Tensor,
    *,
    head_dim: int,
    epsilon: float,
    max_length: int,
) -> Tensor:
    """[tokens, dim] states after a block of Llama."""
    normed = rms_norm(states, weights.input_norm, epsilon)
    query, key, value = [
        functional.linear(normed, weight).view(len(normed), -1, head_dim)
        for weight in (weights.query, weights.key, weights.value)
    ]
    queries_per_key = query.shape[1] // key.shape[1]
    key = rotate(key, cos, sin).repeat_interleave(queries_per_key, 1)
    value = value.repeat_interleave(queries_per_key, 1)
    attended = packed_attention(rotate(query, cos, sin), key, value, boundaries, max_length)
    states = states + functional.linear(attended.flatten(1), weights.output)
    normed = rms_norm(states, weights.mlp_norm, epsilon)
    gated = functional.silu(functional.linear(normed, weights.gate)) * functional.linear(normed, weights.up)
    return states + functional.linear(gated, weights.down)


def packed_attention(query: Tensor, key: Tensor, value: Tensor, boundaries: Tensor, max_length: int) -> Tensor:
    """[tokens, heads, head_dim]: every token attends to all tokens of its text."""
    if query.is_cuda:
        from torch.nn.attention.varlen import varlen_attn  # PyTorch 2.10 or later

        attended: Any = varlen_attn(query, key, value, boundaries, boundaries, max_length, max_length)
        return attended  # type: ignore[no-any-return]
    texts = [slice(begin, end) for begin, end in pairwise(boundaries.tolist()) if begin < end]
    return torch.cat([_attention(query[text], key[text], value[text]) for text in texts])


def _attention(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Attention within one text."""
    query, key, value = (states.transpose(0, 1) for states in (query, key, value))
    return functional.scaled_dot_product_attention(query, key, value).transpose(0, 1)


def rms_norm(states: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    """Root-mean-square norm, computed in float32."""
    wide = states.float()
    return (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + epsilon) * weight).to(states.dtype)


def rotate(states: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary positions, computed in float32."""
    wide = states.float()
    first, second = wide.chunk(2, -1)
    return (wide * cos + torch.cat([-second, first], -1) * sin).to(states.dtype)
