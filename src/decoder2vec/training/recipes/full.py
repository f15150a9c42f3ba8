"""Full fine-tuning: every weight of a copy of the model, in float32."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch
from torch import nn

from decoder2vec.backbone.backbone import Backbone
from decoder2vec.backbone.sharding import copy_model, shard_weights, whole_tensors
from decoder2vec.errors import UnsupportedError
from decoder2vec.training.distributed import is_main_process, process_device
from decoder2vec.training.loop import Schedule
from decoder2vec.training.recipes.adapter import AdapterRecipe, adapter_schedule


@dataclass(frozen=True)
class FullRecipe(AdapterRecipe):
    """Train all weights that take part; the original model is not changed."""

    name = "full"
    can_shard = True
    about = "All weights of the model were trained."
    adds_parameters = False

    training: Schedule = field(default_factory=lambda: adapter_schedule(5e-5))

    def adapt(self, backbone: Backbone, depth: int) -> tuple[Backbone, nn.Module]:
        """A copy, cut above the last layer that is read."""
        if backbone.four_bit:
            raise UnsupportedError("4-bit weights cannot be trained themselves; use lora, or another dtype.")
        trained = copy_model(backbone, depth, torch.float32)
        trained.model.requires_grad_(True)
        if not self.read.normed:
            trained.final_norm.requires_grad_(False)
        if self.shards:
            shard_weights(trained, process_device(), backbone.dtype)
        return trained, trained.model

    def unshard(self, trained: Backbone, original: Backbone) -> Backbone:
        """A copy of the original with the trained weights, which only the main process has."""
        weights = whole_tensors(trained.model.state_dict(), keep=is_main_process())
        unsharded = copy_model(original, trained.n_layers, torch.float32)
        if weights:
            unsharded.model.load_state_dict(weights)
        return replace(unsharded, fingerprint=trained.fingerprint)
