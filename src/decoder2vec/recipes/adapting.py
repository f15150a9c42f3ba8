"""What every recipe that adapts the model has in common: what is read, what is learned from, and for how long."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from enum import Enum

from torch import nn

from decoder2vec.backbone.attention import parse_attention
from decoder2vec.backbone.backbone import Backbone
from decoder2vec.config import DEFAULT_MAX_LENGTH, Reading
from decoder2vec.errors import InputError, unknown_name
from decoder2vec.maths.metrics import METRICS
from decoder2vec.maths.pooling import POOLINGS
from decoder2vec.recipes.objective import Objective
from decoder2vec.recipes.schedule import Schedule
from decoder2vec.text.template import Template


class Reads(Enum):
    """What a recipe must read in order to learn, from the cheapest to the dearest."""

    LATENTS = "cached vectors: the model does not run at all"
    PREFIX_KV = "cached keys and values of the texts: only a prompt behind them runs"
    TOKENS = "every token, forward and backward"


@dataclass(frozen=True)
class ReadAs:
    """Which vector of a text is trained."""

    template: str = "plain"
    layer: int = -1
    pooling: str = "lasttoken"
    normed: bool = True
    """After the model's final norm."""
    max_length: int = DEFAULT_MAX_LENGTH
    on_overflow: str = "truncate"

    def __post_init__(self) -> None:
        Template.of(self.template)
        if self.pooling not in POOLINGS:
            raise unknown_name("pooling", self.pooling, POOLINGS)

    def reading(self, backbone: Backbone) -> Reading:
        """On a model."""
        return Reading(backbone.resolve_layer(self.layer), self.pooling, self.normed)


@dataclass(frozen=True)
class Adapting(ABC):
    """The settings that all of them share."""

    read: ReadAs = field(default_factory=ReadAs)
    objective: Objective = field(default_factory=Objective)
    training: Schedule = field(default_factory=lambda: Schedule(epochs=1, patience=1000, evaluate_every=125, clip=1.0))
    attention: str = "causal"
    """causal, bidirectional, or bidirectional:12 (above layer 12 only); the model is proved to read that way."""
    choose_by: str = "spearman"
    """The dev correlation by which states and seeds are chosen."""
    chunk: int = 0
    """Tokens that are held in memory for gradients at a time; a larger batch is computed twice, part by part, with the
    same result. 0: what fits."""
    checkpoint_blocks: bool = False
    """Keep no activations inside the model's blocks but compute them again: less memory, a third more time."""
    compile_blocks: bool = False
    """Compile the model's blocks: a minute at the start, then faster steps on a GPU."""

    def __post_init__(self) -> None:
        if self.choose_by not in METRICS:
            raise unknown_name("metric", self.choose_by, METRICS)
        parse_attention(self.attention)
        if self.chunk < 0:
            raise InputError("chunk must be 0 or more tokens.")
        if self.checkpoint_blocks and self.compile_blocks:
            raise InputError("Blocks are either compiled or computed again; set one of the two.")

    @property
    def reads(self) -> Reads:
        """What must be read in order to learn."""
        return Reads.TOKENS

    @property
    def remembered_bytes(self) -> int:
        """Keys and values of texts that may be kept on disk, where a recipe reads them."""
        return 0

    @property
    def extra_tokens(self) -> int:
        """Positions that are taken besides those of the text."""
        return 0

    @abstractmethod
    def attach(self, backbone: Backbone, depth: int) -> tuple[Backbone, nn.Module]:
        """The backbone as it is read now, of which only the first `depth` blocks run, and what is trained of it."""
