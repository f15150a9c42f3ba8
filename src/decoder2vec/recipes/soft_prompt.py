"""SPT: a few trained vectors behind the text; the model stays as it is."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import nn

from decoder2vec.adapters.soft_prompt import OUTPUTS, POSITIONS, SoftPrompt
from decoder2vec.backbone.backbone import Backbone
from decoder2vec.errors import InputError, unknown_name
from decoder2vec.recipes.adapting import Adapting, Reads
from decoder2vec.recipes.schedule import Schedule


@dataclass(frozen=True)
class SoftPromptTuning(Adapting):
    """Train `tokens` vectors."""

    tokens: int = 16
    place: str = "append"
    """append or prepend."""
    output: str = "prompt"
    """Pool the outputs of the prompt's own positions, or those of the text."""
    start: str = ""
    """A text whose token embeddings the prompt starts from; else random vectors like the model's own."""
    cap_gb: float = 10.0
    """Keys and values of the texts are kept on disk up to this size, and computed anew beyond it."""
    training: Schedule = field(
        default_factory=lambda: Schedule(epochs=1, rate=1e-2, patience=1000, evaluate_every=125, clip=1.0)
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        for what, name, known in (("place", self.place, POSITIONS), ("output", self.output, OUTPUTS)):
            if name not in known:
                raise unknown_name(what, name, known)
        blind = self.place == "prepend" and self.output == "prompt" and self.attention == "causal"
        if blind:
            raise InputError(
                "A prompt before the text never sees it under causal attention; set attention to bidirectional, "
                "output to text, or place to append."
            )
        if self.place == "append" and self.output == "text" and self.attention == "causal":
            raise InputError("The text never sees a prompt behind it under causal attention; set output to prompt.")

    @property
    def reads(self) -> Reads:
        """Behind a causal text only the prompt itself must run."""
        cheap = self.place == "append" and self.attention == "causal" and not self.checkpoint_blocks
        return Reads.PREFIX_KV if cheap else Reads.TOKENS

    @property
    def remembered_bytes(self) -> int:
        """As many as `cap_gb` says."""
        return int(self.cap_gb * 1e9)

    @property
    def extra_tokens(self) -> int:
        """One position for each vector."""
        return self.tokens

    def attach(self, backbone: Backbone, depth: int) -> tuple[Backbone, nn.Module]:
        """A new prompt."""
        prompt = SoftPrompt.initialise(backbone, self.tokens, self.start, position=self.place, output=self.output)
        return backbone.with_adapter(prompt.to(backbone.device)), prompt
