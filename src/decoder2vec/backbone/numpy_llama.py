"""A Llama in NumPy, for one-off commands: importing torch and transformers takes seconds, a short text does not.

The weights are mapped from their files, so only what is used is read. There are no gradients, no GPU and no other
families; `Backbone` has all of these.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from decoder2vec.backbone.fingerprint import weight_files
from decoder2vec.storage import parse_json

States = NDArray[np.float32]
LowRank = tuple[States, States]
"""Matrices of a LoRA update: [rank, in], multiplied by its scaling, and [out, rank]."""

_EXPECTED = {"model_type": "llama", "hidden_act": "silu"}
_ABSENT = ("attention_bias", "mlp_bias", "quantization_config", "rope_scaling")


@dataclass(frozen=True)
class NumpyLlama:
    """The blocks and the final norm of a Llama.

    Args:
        config: The `config.json` of the model folder.
        weights: Arrays by name, without the prefix of the language model.
        updates: LoRA updates by the path of their layer, such as "layers.0.self_attn.q_proj".
    """

    config: Mapping[str, Any]
    weights: Mapping[str, States]
    updates: Mapping[str, LowRank]

    @classmethod
    def load(cls, folder: Path, updates: Mapping[str, LowRank]) -> NumpyLlama | None:
        """Map the weights of a model folder; None if it is not a plain Llama in float32."""
        config = parse_json((folder / "config.json").read_text(encoding="utf-8"))
        rope = config.get("rope_parameters") or {}
        is_expected = all(config.get(key) == value for key, value in _EXPECTED.items())
        if not is_expected or any(map(config.get, _ABSENT)) or rope.get("rope_type", "default") != "default":
            return None
        weights = {name: array for file in weight_files(folder) for name, array in _mapped_arrays(file).items()}
        if any(array.dtype != np.float32 for array in weights.values()):
            return None
        return cls(config, {name.removeprefix("model."): array for name, array in weights.items()}, updates)

    @property
    def n_layers(self) -> int:
        """Number of blocks."""
        return int(self.config["num_hidden_layers"])

    @property
    def dim(self) -> int:
        """Width of the states."""
        return int(self.config["hidden_size"])

    @property
    def _head_dim(self) -> int:
        return int(self.config.get("head_dim") or self.dim // self.config["num_attention_heads"])

    def states(self, prompts: Sequence[Sequence[int]], layers: Sequence[int], *, causal: bool) -> dict[int, States]:
        """Return [all tokens, dim] states of the layers; the tokens of the prompts follow each other.

        Args:
            prompts: Token ids of each prompt, one or more.
            layers: 0 = embeddings, i = after block i, before the final norm.
            causal: Whether a token sees only itself and those before it.
        """
        states: States = self.weights["embed_tokens.weight"][[id for ids in prompts for id in ids]]
        ends = np.cumsum([len(ids) for ids in prompts])
        texts = [slice(end - len(ids), end) for ids, end in zip(prompts, ends, strict=True)]
        rotation = self._rotation(np.concatenate([np.arange(len(ids)) for ids in prompts]))
        kept = {0: states} if 0 in layers else {}
        for index in range(max(layers)):
            states = self._block(f"layers.{index}", states, texts, rotation, causal)
            if index + 1 in layers:
                kept[index + 1] = states
        return kept

    def final_norm(self, states: States) -> States:
        """Apply the norm that follows the last block."""
        return self._norm("norm", states)

    def _block(
        self, path: str, states: States, texts: Sequence[slice], rotation: tuple[States, States], causal: bool
    ) -> States:
        normed = self._norm(f"{path}.input_layernorm", states)
        query, key, value = (self._heads(f"{path}.self_attn.{name}_proj", normed) for name in "qkv")
        query, key = _rotate(query, rotation), _rotate(key, rotation)
        attended = np.concatenate([_attend(query[text], key[text], value[text], causal) for text in texts])
        states = states + self._linear(f"{path}.self_attn.o_proj", attended)
        normed = self._norm(f"{path}.post_attention_layernorm", states)
        gate = self._linear(f"{path}.mlp.gate_proj", normed)
        gated = gate / (1 + np.exp(-gate)) * self._linear(f"{path}.mlp.up_proj", normed)
        return states + self._linear(f"{path}.mlp.down_proj", gated)

    def _linear(self, path: str, states: States) -> States:
        output: States = states @ self.weights[f"{path}.weight"].T
        if path in self.updates:
            lower, upper = self.updates[path]
            output += states @ lower.T @ upper.T
        return output

    def _heads(self, path: str, states: States) -> States:
        """A linear layer whose output is divided into heads: [tokens, heads, head dim]."""
        return self._linear(path, states).reshape(len(states), -1, self._head_dim)

    def _norm(self, path: str, states: States) -> States:
        variance = np.mean(states * states, axis=1, keepdims=True)
        scale = 1 / np.sqrt(variance + np.float32(self.config["rms_norm_eps"]))
        return np.asarray(states * scale * self.weights[f"{path}.weight"], np.float32)

    def _rotation(self, positions: NDArray[np.int64]) -> tuple[States, States]:
        """Cosine and sine of rotary position embeddings, [tokens, 1, head dim]."""
        rope = self.config.get("rope_parameters") or {}
        theta = float(rope.get("rope_theta") or self.config.get("rope_theta") or 10_000)
        frequencies = (1 / theta ** (np.arange(0, self._head_dim, 2) / self._head_dim)).astype(np.float32)
        angles = np.tile(np.outer(positions.astype(np.float32), frequencies), 2)[:, None]
        return np.cos(angles), np.sin(angles)


def _rotate(heads: States, rotation: tuple[States, States]) -> States:
    cosine, sine = rotation
    first, second = np.split(heads, 2, axis=-1)
    return np.asarray(heads * cosine + np.concatenate([-second, first], axis=-1) * sine, np.float32)


def _attend(query: States, key: States, value: States, causal: bool) -> States:
    """Attention within one text: [tokens, heads, width] to [tokens, heads * width]; several heads may share a key."""
    tokens, _, width = query.shape
    grouped = query.reshape(tokens, key.shape[1], -1, width).transpose(1, 2, 0, 3)  # [key heads, group, tokens, width]
    scores = grouped @ key.transpose(1, 2, 0)[:, None] / np.float32(width**0.5)
    if causal:
        scores = np.where(np.tri(tokens, dtype=bool), scores, np.float32(-np.inf))
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    return np.asarray((weights @ value.transpose(1, 0, 2)[:, None]).transpose(2, 0, 1, 3).reshape(tokens, -1))


def _mapped_arrays(file: Path) -> dict[str, NDArray[Any]]:
    """The arrays of a safetensors file, mapped into memory; those that are not float32 as bytes."""
    content = np.memmap(file, np.uint8, "r")
    start = 8 + int(content[:8].view("<u8")[0])
    header = parse_json(content[8:start].tobytes())
    header.pop("__metadata__", None)
    arrays: dict[str, NDArray[Any]] = {}
    for name, entry in header.items():
        begin, end = (start + offset for offset in entry["data_offsets"])
        array = np.asarray(content[begin:end])
        arrays[name] = array.view(np.float32).reshape(entry["shape"]) if entry["dtype"] == "F32" else array
    return arrays
