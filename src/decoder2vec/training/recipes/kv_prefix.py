"""SPT v2 (prefix tuning): trained keys and values before the text in every layer; the model is frozen."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import nn

from decoder2vec.adapters.kv_prefix import KeyValuePrefix
from decoder2vec.backbone.backbone import Backbone
from decoder2vec.training.loop import Schedule
from decoder2vec.training.recipes.adapter import AdapterRecipe, adapter_schedule


@dataclass(frozen=True)
class KeyValuePrefixRecipe(AdapterRecipe):
    """Train keys and values as if `tokens` tokens stood before the text."""

    name = "kv_prefix"
    about = "The model is frozen; trained keys and values stand before each text in every layer."
    mergeable = False

    tokens: int = 10
    start: str = "The meaning of a sentence can be said in one"
    """A text whose keys and values the prefix starts from; empty: noise like the model's own, which takes longer."""
    training: Schedule = field(default_factory=lambda: adapter_schedule(1e-2))

    @property
    def extra_tokens(self) -> int:
        """Families with masks of a fixed size lose as many positions."""
        return self.tokens

    def adapt(self, backbone: Backbone, depth: int) -> tuple[Backbone, nn.Module]:
        """A new prefix."""
        prefix = KeyValuePrefix.initialise(backbone, self.tokens, self.start, depth)
        return backbone.with_adapter(prefix.to(backbone.device)), prefix
