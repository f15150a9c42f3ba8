"""SPT v2: trained keys and values before the text in every layer; the model stays as it is."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import nn

from decoder2vec.adapters.kv_prefix import KeyValuePrefix
from decoder2vec.backbone.backbone import Backbone
from decoder2vec.recipes.adapting import Adapting
from decoder2vec.recipes.schedule import Schedule


@dataclass(frozen=True)
class PrefixTuning(Adapting):
    """Train keys and values as if so many `tokens` stood before the text."""

    tokens: int = 10
    start: str = "The meaning of a sentence can be said in one"
    """A text whose keys and values the prefix starts from; empty: noise like the model's own, which takes longer."""
    training: Schedule = field(
        default_factory=lambda: Schedule(epochs=1, rate=1e-2, patience=1000, evaluate_every=125, clip=1.0)
    )

    @property
    def extra_tokens(self) -> int:
        """As much room as so many tokens take."""
        return self.tokens

    def attach(self, backbone: Backbone, depth: int) -> tuple[Backbone, nn.Module]:
        """A new prefix."""
        prefix = KeyValuePrefix.initialise(backbone, self.tokens, self.start, depth)
        return backbone.with_adapter(prefix.to(backbone.device)), prefix
