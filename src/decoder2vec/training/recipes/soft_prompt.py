"""SPT (soft prompt tuning): a few trained vectors behind or before the text; the model is frozen."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from torch import nn

from decoder2vec.adapters.soft_prompt import OUTPUTS, POSITIONS, SoftPrompt
from decoder2vec.backbone.backbone import Backbone
from decoder2vec.errors import InputError, unknown_name
from decoder2vec.training.context import Reads
from decoder2vec.training.loop import Schedule
from decoder2vec.training.recipes.adapter import AdapterRecipe, adapter_schedule


@dataclass(frozen=True)
class SoftPromptRecipe(AdapterRecipe):
    """Train `tokens` vectors."""

    name = "soft_prompt"
    about = "The model is frozen; a few trained vectors stand beside each text."
    mergeable = False

    tokens: int = 16
    place: str = "append"
    """append or prepend."""
    output: str = "prompt"
    """Pool the outputs of the prompt's positions, or those of the text."""
    start: str = ""
    """A text whose token embeddings the prompt starts from; empty: random vectors like the model's own."""
    cap_gb: float = 10.0
    """Keys and values of the texts are cached on disk up to this size, and recomputed beyond it."""
    training: Schedule = field(default_factory=lambda: adapter_schedule(1e-2))

    def __post_init__(self) -> None:
        super().__post_init__()
        for kind, name, known in (("place", self.place, POSITIONS), ("output", self.output, OUTPUTS)):
            if name not in known:
                raise unknown_name(kind, name, known)
        if not 0 <= self.cap_gb < math.inf:
            raise InputError(f"cap_gb must be a number of 0 or more, not {self.cap_gb}.")
        if self.attention == "causal" and (self.place, self.output) == ("prepend", "prompt"):
            raise InputError(
                "A prompt before the text never sees it under causal attention; set attention to bidirectional, "
                "output to text, or place to append."
            )
        if self.attention == "causal" and (self.place, self.output) == ("append", "text"):
            raise InputError("The text never sees a prompt behind it under causal attention; set output to prompt.")

    @property
    def reads(self) -> Reads:
        """Behind a causal text only the prompt itself must run."""
        suffix_only = self.place == "append" and self.attention == "causal" and not self.checkpoint_blocks
        return Reads.PREFIX_KV if suffix_only else Reads.TOKENS

    @property
    def keeps_positions(self) -> bool:
        """The prompt takes positions of its own."""
        return False

    @property
    def cache_bytes(self) -> int:
        """`cap_gb` in bytes."""
        return int(self.cap_gb * 1e9)

    @property
    def extra_tokens(self) -> int:
        """One position per vector."""
        return self.tokens

    def adapt(self, backbone: Backbone, depth: int) -> tuple[Backbone, nn.Module]:
        """A new prompt."""
        prompt = SoftPrompt.initialise(backbone, self.tokens, self.start, position=self.place, output=self.output)
        return backbone.with_adapter(prompt.to(backbone.device)), prompt
