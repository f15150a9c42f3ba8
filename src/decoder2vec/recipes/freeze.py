"""FREEZE: the model stays as it is; small encoders learn to read its layers.

Every layer of the frozen model is read once per text. Each reading gets a small encoder of its own, two texts are
compared by cosine reading by reading, and a head turns the cosines into one score. Training sees cached latents only
and takes seconds. McDonald, Marsano and McLaughlin, "FREEZE!: Pretrained Language Models as Frozen Feature
Extractors for Semantic Tasks", 2024; the defaults of `Freeze` are the paper's final model (step 5 of its ladder),
`EMBEDDING` is ours.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from decoder2vec.backbone.backbone import Backbone
from decoder2vec.config import DEFAULT_MAX_LENGTH, Reading
from decoder2vec.errors import InputError, unknown_name
from decoder2vec.heads.codes import MIXINGS, CodeSpec, spread_widths
from decoder2vec.heads.pair import PAIR_HEADS
from decoder2vec.maths.losses import SCORE_LOSSES
from decoder2vec.maths.metrics import METRICS
from decoder2vec.recipes.schedule import Schedule
from decoder2vec.text.augmentation import AUGMENTATIONS
from decoder2vec.text.template import Template

PRETRAININGS = ("none", "autoencoder", "snli", "contrastive")
_LARGEST_FRACTION = 8.0


@dataclass(frozen=True)
class Source:
    """Latents to read: under which prompt, how pooled, which layers."""

    template: str = "plain"
    pooling: str = "lasttoken"
    layers: str | tuple[int, ...] = "all"
    """all (after every block), numbers, or a part of the depth: "0.67:1.0" is the upper third, "20:30" eleven."""
    normed: bool = False

    def readings(self, depth: int) -> list[Reading]:
        """The readings on a model of that depth."""
        template = Template.of(self.template).string
        return [Reading(layer, self.pooling, self.normed, template) for layer in layer_numbers(self.layers, depth)]


@dataclass(frozen=True)
class Freeze:
    """Every choice of the recipe."""

    latents: tuple[Source, ...] = (Source(),)
    standardise: bool = False
    """Centre and scale each dimension over the training texts; else one factor for each layer."""
    unit_latents: bool = False
    """Scale each latent to unit length."""
    widths: tuple[int | float, ...] = (256, 512)
    """Width of the codes, spread over the layers of each source from the bottom; fractions are parts of the model's
    width; 0 compares the latents themselves."""
    hidden: int | float = 0.5
    """Width of a hidden layer, absolute or a fraction; 0: linear encoders."""
    depth: int = 1
    """How many hidden layers."""
    shortcut: bool = False
    """Add a linear path around the hidden layers, and start from it alone."""
    dropout: float = 0.0
    noise: float = 0.0
    """Noise on the latents in training, in standard deviations of each dimension."""
    mixing: str = "none"
    """none, attention_latents, attention_codes or unified: what happens across layers before texts are compared."""
    mixed_width: int = 0
    """Width of the unified vector, or the number of attention queries."""
    head: str = "mlp"
    """sum (an embedding), gated (a pair scorer with f(1) = 1), mlp (the paper's), each (every layer for itself)."""
    pretrain: str = "autoencoder"
    """none, autoencoder (on plain texts), snli (three-way inference), contrastive (on triplets)."""
    pretraining: Schedule = field(default_factory=lambda: Schedule(epochs=6, batch=256))
    temperature: float = 0.05
    """Of the contrastive loss."""
    loss: str = "log_variance"
    """mse, log_variance, pearson or cosent on scored pairs; none: stop after pre-training."""
    training: Schedule = field(default_factory=lambda: Schedule(rate=3e-4))
    choose_by: str = "pearson"
    """The dev correlation by which epochs and seeds are chosen."""
    changes: tuple[str, ...] = ()
    """Pairs added to the training pairs: identical, punctuation (with and without the full stop), case, words."""
    max_length: int = DEFAULT_MAX_LENGTH
    """Tokens of a prompt that are read at most."""
    on_overflow: str = "truncate"
    """What happens to longer ones: truncate, chunk (read in parts and average) or error."""
    keep: int = 0
    """Keep only this many readings, those with the largest weights, and train on; 0: all."""
    dim: int = 0
    """Cut the embedding to this many dimensions; 0: as it is."""

    def __post_init__(self) -> None:
        for kind, name, known in (
            ("head", self.head, PAIR_HEADS),
            ("mixing", self.mixing, MIXINGS),
            ("pretraining", self.pretrain, PRETRAININGS),
            ("loss", self.loss, ("none", *SCORE_LOSSES)),
            ("metric", self.choose_by, METRICS),
            *(("change", change, AUGMENTATIONS) for change in self.changes),
        ):
            if name not in known:
                raise unknown_name(kind, name, known)
        for wrong, why in self._clashes():
            if wrong:
                raise InputError(why)

    def _clashes(self) -> list[tuple[bool, str]]:
        """What does not go together, and why."""
        coded, mixed = any(self.widths), self.mixing != "none"
        learned_codes = self.pretrain in ("autoencoder", "snli")
        useless = self.loss == "none" and self.pretrain != "contrastive" and (coded or self.pretrain != "none")
        return [
            (not self.widths, "widths is empty; give a width for the codes, or 0 for none."),
            (useless, "Without a loss on scored pairs only contrastive pre-training makes an encoder."),
            (not 0 <= self.dropout < 1, "dropout must be 0 or more and below 1."),
            (self.temperature <= 0 or self.depth < 1, "temperature must be above 0, and depth 1 or more."),
            (
                self.loss in ("log_variance", "pearson") and self.training.batch < 2,
                f"The loss {self.loss} needs batches of 2 pairs or more.",
            ),
            (
                self.loss == "none" and self.head in ("mlp", "gated"),
                f"The head {self.head!r} learns from scored pairs only; without a loss use sum or each.",
            ),
            (min(self.noise, self.keep, self.dim) < 0, "noise, keep and dim must be 0 or more."),
            (
                learned_codes and not coded,
                "Without encoders (widths = [0]) there is nothing to pre-train; set pretrain to none.",
            ),
            (
                learned_codes and self.mixing.startswith("attention"),
                "Attention over layers is trained from the start; set pretrain to none or contrastive.",
            ),
            (
                bool(self.keep) and (self.head != "sum" or mixed),
                "Readings are selected by the weights of the head 'sum' without mixing.",
            ),
            (
                self.head == "each" and mixed,
                "The head 'each' chooses one layer, which mixed layers no longer are; set mixing to none.",
            ),
            (
                bool(self.dim) and self.head != "sum",
                "Only the vectors of the head 'sum' can be cut: other heads read their blocks.",
            ),
        ]

    def readings(self, backbone: Backbone) -> tuple[Reading, ...]:
        """Everything that is read from a model, in order."""
        found = tuple(reading for part in self._parts(backbone.n_layers) for reading in part)
        if not found:
            raise InputError("The recipe reads nothing; give at least one [[freeze.latents]] with layers.")
        return found

    def codes(self, backbone: Backbone) -> CodeSpec:
        """The network for a model."""
        return self.codes_of([len(part) for part in self._parts(backbone.n_layers)], backbone.dim)

    def codes_of(self, counts: list[int], dim: int) -> CodeSpec:
        """The network for latents of that width, with so many layers in each source."""
        chosen = tuple(_absolute(width, dim) for width in self.widths)
        return CodeSpec(
            dim=dim,
            widths=tuple(width for count in counts for width in spread_widths(chosen, count)),
            hidden=_absolute(self.hidden, dim),
            depth=self.depth,
            shortcut=self.shortcut,
            mixing=self.mixing,
            mixed_width=self.mixed_width,
            head=self.head,
            unit=self.unit_latents,
            dropout=self.dropout,
            noise=self.noise,
        )

    def _parts(self, depth: int) -> list[list[Reading]]:
        """The readings of each source; what an earlier one reads already is not read again."""
        parts: list[list[Reading]] = []
        for source in self.latents:
            before = {reading for part in parts for reading in part}
            parts.append([reading for reading in dict.fromkeys(source.readings(depth)) if reading not in before])
        return parts


_UPPER_THIRD = "0.67:1.0"

EMBEDDING = Freeze(
    latents=(Source("prompteol_tight", "lasttoken", _UPPER_THIRD), Source("echo", "mean", _UPPER_THIRD)),
    standardise=True,
    widths=(128,),
    shortcut=True,
    dropout=0.1,
    head="sum",
    pretrain="none",
    training=Schedule(epochs=8, rate=3e-4),
    choose_by="spearman",
)
"""What `d2v train` learns without a plan: one vector per text from scored pairs alone; chosen on STS-B dev."""


def layer_numbers(layers: str | tuple[int, ...], depth: int) -> list[int]:
    """Layer numbers on a model of that depth; 0 is the embeddings."""
    if isinstance(layers, tuple):
        numbers = [layer + depth + 1 if layer < 0 else layer for layer in layers]
    elif layers == "all":
        numbers = list(range(1, depth + 1))
    else:
        numbers = _range(layers, depth)
    if not numbers or min(numbers) < 0 or max(numbers) > depth:
        raise InputError(f"layers = {layers!r} is not within 0 to {depth}, the layers of this model.")
    return numbers


def _range(layers: str, depth: int) -> list[int]:
    first, colon, last = layers.partition(":")
    try:
        bounds = [round(float(bound) * depth) if "." in bound else int(bound) for bound in (first, last)]
    except ValueError:
        bounds = []
    if not colon or not bounds:
        raise InputError(f'layers = {layers!r} is not understood; write "all", [1, 2], "20:30" or "0.67:1.0".')
    return list(range(bounds[0], bounds[1] + 1))


def _absolute(width: int | float, dim: int) -> int:
    if width < 0 or (isinstance(width, float) and width > _LARGEST_FRACTION):
        raise InputError(f"A width is a whole number or a fraction of the model's width such as 0.5, not {width}.")
    return max(1, round(width * dim)) if isinstance(width, float) and width else int(width)
