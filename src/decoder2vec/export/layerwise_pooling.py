"""Pool several layers of a model, and turn them into one vector by a code network (FREEZE).

decoder2vec copies this file into exported folders as a module of sentence-transformers. It needs nothing else of
decoder2vec. Loading such a folder runs this file, which sentence-transformers only does with `trust_remote_code=True`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn import functional

_CONFIG_FILE, _WEIGHTS_FILE = "config.json", "model.safetensors"


class LayerwisePooling(nn.Module):
    """Pools the layers of a Transformer with `output_hidden_states`, and applies a code network to them.

    Args:
        config: "readings", a list of {"layer", "pooling"}; "include_prompt", whether tokens of the prompt are pooled;
            "dimension" of the vectors; and "network", the architecture of the code network, or None to concatenate.
        weights: Weights of the code network by name.
    """

    def __init__(self, config: dict[str, Any], weights: dict[str, Tensor]) -> None:
        super().__init__()
        self.config = config
        for name, weight in weights.items():
            self.register_buffer(name, weight)

    def forward(self, features: dict[str, Any], **_: Any) -> dict[str, Any]:
        """Add `sentence_embedding` to the features."""
        mask = features["attention_mask"].clone()
        if not self.config["include_prompt"] and "prompt_length" in features:
            mask[:, : int(torch.as_tensor(features["prompt_length"]).flatten()[0])] = 0
        states = features["all_layer_embeddings"]
        pooled = [
            _pool(states[reading["layer"]].float(), mask, reading["pooling"]) for reading in self.config["readings"]
        ]
        network = self.config["network"]
        vectors = torch.cat(pooled, dim=1) if network is None else self._apply_network(torch.stack(pooled), network)
        features["sentence_embedding"] = vectors
        return features

    def get_embedding_dimension(self) -> int:
        """Dimension of the vectors."""
        return int(self.config["dimension"])

    get_sentence_embedding_dimension = get_embedding_dimension

    def save(self, output_path: str, *_: Any, **__: Any) -> None:
        """Write config and weights; sentence-transformers copies this file itself."""
        (Path(output_path) / _CONFIG_FILE).write_text(json.dumps(self.config, indent=2) + "\n", encoding="utf-8")
        save_file(
            {name: weight.contiguous() for name, weight in self.named_buffers()}, f"{output_path}/{_WEIGHTS_FILE}"
        )

    @classmethod
    def load(cls, path: str) -> LayerwisePooling:
        """Read config and weights from the folder of this module."""
        config = json.loads((Path(path) / _CONFIG_FILE).read_text(encoding="utf-8"))
        return cls(config, load_file(f"{path}/{_WEIGHTS_FILE}"))

    def _apply_network(self, latents: Tensor, network: dict[str, Any]) -> Tensor:
        """[reading, text, dim] latents to [text, dimension] vectors."""
        x = (latents - self.get_buffer("shift")) * self.get_buffer("scale")
        if network["unit"]:
            x = functional.normalize(x, dim=-1)
        if network["mixing"] == "attention_latents":
            codes = [self._encode(0, self._attend(x))]
        else:
            codes = [self._encode(group, x[readings]) for group, readings in enumerate(network["groups"])]
        if network["mixing"] == "attention_codes":
            codes = [self._attend(codes[0])]
        elif network["mixing"] == "unified":
            sums = [self._linear(f"mixer_up_{group}", code).sum(dim=0) for group, code in enumerate(codes)]
            codes = [torch.stack(sums).sum(dim=0, keepdim=True)]
        blocks, begin = [], 0
        for code in codes:
            scale = self.get_buffer("block_scale")[begin : begin + len(code), None, None]
            blocks.append((functional.normalize(code, dim=-1) * scale).transpose(0, 1).flatten(1))
            begin += len(code)
        vectors = torch.cat(blocks, dim=1)
        if not network["projected"]:
            return vectors
        return functional.normalize(vectors @ self.get_buffer("projection"), dim=-1)

    def _encode(self, group: int, x: Tensor) -> Tensor:
        """Apply the MLPs of a group of readings; without weights the latents are the codes."""
        encoder = f"encoders_{group}"
        if not hasattr(self, f"{encoder}_last_weight"):
            return x
        y, depth = x, 0
        while hasattr(self, f"{encoder}_hidden_{depth}_weight"):
            y = self._linear(f"{encoder}_hidden_{depth}", y)
            y = functional.layer_norm(y, y.shape[-1:]) * self.get_buffer(f"{encoder}_norms_{depth}_weight")
            y = functional.gelu(y + self.get_buffer(f"{encoder}_norms_{depth}_bias"))
            depth += 1
        y = self._linear(f"{encoder}_last", y)
        return y + self._linear(f"{encoder}_shortcut", x) if hasattr(self, f"{encoder}_shortcut_weight") else y

    def _linear(self, name: str, x: Tensor) -> Tensor:
        return torch.baddbmm(self.get_buffer(f"{name}_bias"), x, self.get_buffer(f"{name}_weight"))

    def _attend(self, x: Tensor) -> Tensor:
        """Pool [reading, text, width] over the readings by learned queries."""
        weights = torch.einsum("qw,rtw->qtr", self.get_buffer("mixer_queries"), x).softmax(dim=-1)
        return torch.einsum("qtr,rtw->qtw", weights, x)


def _pool(states: Tensor, mask: Tensor, pooling: str) -> Tensor:
    """[text, token, dim] states to [text, dim] vectors over the tokens where the mask is 1."""
    positions = torch.arange(mask.shape[1], device=mask.device)
    rows = torch.arange(mask.shape[0], device=mask.device)  # not len(), which an ONNX graph would freeze
    if pooling == "lasttoken":
        return states[rows, (mask * positions).argmax(dim=1)]
    if pooling == "cls":
        return states[rows, mask.argmax(dim=1)]
    if pooling == "max":
        return states.masked_fill(mask.unsqueeze(-1) == 0, float("-inf")).amax(dim=1)
    weights = (mask * mask.cumsum(dim=1) if pooling == "weightedmean" else mask).float()
    return torch.einsum("bt,btd->bd", weights / weights.sum(dim=1, keepdim=True), states)
