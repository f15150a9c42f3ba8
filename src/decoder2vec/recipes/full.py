"""Full fine-tuning: every weight of a copy of the model, in float32."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field, replace

import torch
from torch import nn

from decoder2vec.backbone.backbone import Backbone
from decoder2vec.backbone.blocks import find_blocks, keep_first_blocks
from decoder2vec.errors import UnsupportedError
from decoder2vec.recipes.adapting import Adapting
from decoder2vec.recipes.schedule import Schedule


@dataclass(frozen=True)
class FullTuning(Adapting):
    """Train everything that takes part; the model that was given stays as it is."""

    training: Schedule = field(
        default_factory=lambda: Schedule(epochs=1, rate=5e-5, patience=1000, evaluate_every=125, clip=1.0)
    )

    def attach(self, backbone: Backbone, depth: int) -> tuple[Backbone, nn.Module]:
        """A copy, cut above the last layer that is read."""
        if backbone.four_bit:
            raise UnsupportedError("Weights of 4 bits cannot be trained themselves; use lora, or another dtype.")
        model = copy.deepcopy(backbone.model).to(torch.float32)
        if depth < len(find_blocks(model)[1]):
            keep_first_blocks(model, depth)
        own = replace(backbone, model=model, adapter=None)
        model.requires_grad_(True)
        if not self.read.normed:
            own.final_norm.requires_grad_(False)
        return own, model
