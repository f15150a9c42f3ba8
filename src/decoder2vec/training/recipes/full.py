"""Full fine-tuning: every weight of a copy of the model, in float32."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field, replace

import torch
from torch import nn

from decoder2vec.backbone.backbone import Backbone
from decoder2vec.backbone.blocks import find_blocks, keep_first_blocks
from decoder2vec.errors import UnsupportedError
from decoder2vec.training.loop import Schedule
from decoder2vec.training.recipes.adapter import AdapterRecipe, adapter_schedule


@dataclass(frozen=True)
class FullRecipe(AdapterRecipe):
    """Train all weights that take part; the original model is not changed."""

    name = "full"
    about = "All weights of the model were trained."
    adds_parameters = False

    training: Schedule = field(default_factory=lambda: adapter_schedule(5e-5))

    def adapt(self, backbone: Backbone, depth: int) -> tuple[Backbone, nn.Module]:
        """A copy, cut above the last layer that is read."""
        if backbone.four_bit:
            raise UnsupportedError("4-bit weights cannot be trained themselves; use lora, or another dtype.")
        model = copy.deepcopy(backbone.model).to(torch.float32)
        if depth < len(find_blocks(model)[1]):
            keep_first_blocks(model, depth)
        trained = replace(backbone, model=model, adapter=None)
        model.requires_grad_(True)
        if not self.read.normed:
            trained.final_norm.requires_grad_(False)
        return trained, model
