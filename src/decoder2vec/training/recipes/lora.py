"""LoRA: low-rank changes of the model's linear layers, found by structure."""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import Tensor, nn

from decoder2vec.adapters.lora import Lora
from decoder2vec.backbone.backbone import Backbone
from decoder2vec.backbone.sharding import copy_model, shard_weights
from decoder2vec.errors import InputError
from decoder2vec.training.distributed import process_device
from decoder2vec.training.recipes.adapter import AdapterRecipe


@dataclass(frozen=True)
class LoraRecipe(AdapterRecipe):
    """Train two matrices of that rank beside every linear layer of the blocks that run."""

    name = "lora"
    can_shard = True
    about = "Low-rank changes of the model's weights were trained."

    rank: int = 16
    alpha: float = 32
    """The change is scaled by alpha / rank."""
    dropout: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.rank < 1 or not 0 <= self.dropout < 1 or not math.isfinite(self.alpha):
            raise InputError("rank must be 1 or more, dropout 0 or more and below 1, and alpha a finite number.")

    def adapt(self, backbone: Backbone, depth: int) -> tuple[Backbone, nn.Module]:
        """New matrices, which change nothing yet."""
        if self.shards:
            backbone = copy_model(backbone, depth, backbone.dtype)
            shard_weights(backbone, process_device(), backbone.dtype)
        lora = Lora.initialise(backbone, self.rank, self.alpha, self.dropout, depth)
        lora.compiled = self.compile_blocks
        return backbone.with_adapter(lora.to(backbone.device)), lora

    def unshard(self, trained: Backbone, original: Backbone) -> Backbone:
        """The original with the trained matrices, which every process has."""
        sharded = trained.adapter
        assert isinstance(sharded, Lora)
        lora = Lora(original, sharded.config).to(original.device)
        lora.load_state_dict(sharded.state_dict())
        return original.with_adapter(lora.requires_grad_(False))

    def start_values(self, module: nn.Module) -> dict[str, Tensor]:
        """Of one matrix only, which starts at zero: the change of a weight is the product of both."""
        values = super().start_values(module)
        return {name: tensor for name, tensor in values.items() if name.startswith("upper.")}
