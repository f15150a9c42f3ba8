"""Where a curve of losses says that a model may be cut: the best depth of its lower and of its upper half."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from decoder2vec.activations.extract import Extractor
from decoder2vec.activations.store import Store, text_key
from decoder2vec.backbone.backbone import Backbone
from decoder2vec.backbone.blocks import parameters_by_depth
from decoder2vec.config import DEFAULT_MAX_LENGTH, Reading
from decoder2vec.errors import InputError, unknown_name
from decoder2vec.maths.losses import info_nce
from decoder2vec.maths.pooling import POOLINGS
from decoder2vec.text.files import Triplets
from decoder2vec.text.template import Template


@dataclass(frozen=True)
class Minima:
    """Two depths, counted in layers to keep, and whether the curve really has a valley at each.

    A lowest loss at the end of a half is no valley: the curve only falls or rises there, and where the half ends
    decides.
    """

    full: int
    small: int
    large: int
    small_inside: bool
    large_inside: bool

    @property
    def drop_rise_drop(self) -> bool:
        """Does the loss fall, rise, fall and rise again, as it does in large models?"""
        return self.small_inside and self.large_inside

    def remarks(self) -> Iterator[str]:
        """What a user should know before following the two numbers."""
        if self.drop_rise_drop:
            yield "The loss falls, rises, falls and rises again: both depths are valleys of the curve."
            return
        yield "The drop-rise-drop shape is absent: treat the two depths as a start for trying, not as an answer."
        half = self.full // 2
        for name, depth, inside, first, last in (
            ("small", self.small, self.small_inside, 1, half),
            ("large", self.large, self.large_inside, half + 1, self.full),
        ):
            if not inside:
                yield f"{name} = {depth} is no valley: of layers {first} to {last}, the loss is lowest at an end."
        if self.large == self.full:
            yield f"large = {self.full}, all layers: by this curve the model should not be cut for quality."

    def to_json(self) -> dict[str, Any]:
        """A plain dict for JSON."""
        return {
            "small": self.small,
            "large": self.large,
            "interior": {"small": self.small_inside, "large": self.large_inside},
            "drop_rise_drop": self.drop_rise_drop,
        }


def find_minima(losses: Sequence[float]) -> Minima:
    """The lowest loss of layers 1 to n // 2 and that of the rest; of equal ones the first.

    `losses` are those of layers 1 to n. A model of one layer has no halves, and losses that are not numbers have no
    order: both are refused.
    """
    full = len(losses)
    if full < 2:
        raise InputError("A model of one layer cannot be cut; there is nothing to choose.")
    for layer, loss in enumerate(losses, 1):
        if not math.isfinite(loss):
            raise InputError(
                f"The loss of layer {layer} is {loss:g}: its states are not all numbers; look with d2v doctor."
            )
    half = full // 2
    small, small_inside = _lowest(losses[:half])
    large, large_inside = _lowest(losses[half:])
    return Minima(full, small, half + large, small_inside, large_inside)


def _lowest(losses: Sequence[float]) -> tuple[int, bool]:
    """The place of the first lowest loss, from 1, and whether it is lower than both ends."""
    lowest = min(losses)
    return list(losses).index(lowest) + 1, lowest < losses[0] and lowest < losses[-1]


FROM_A_CURVE = ("small", "large")
_SHARE = re.compile(r"(\d+(?:\.\d+)?)\s*%")


def check_choice(choice: str | int, *, curve: bool) -> None:
    """Refuse a choice that no model could satisfy, before anything is computed."""
    if isinstance(choice, int):
        return
    if choice in FROM_A_CURVE:
        if not curve:
            raise InputError(f"{choice} is read off a curve of losses; give triples to draw it from.")
        return
    share = _SHARE.fullmatch(choice.strip())
    if not share:
        raise InputError(f"Unknown choice {choice!r}; keep a share such as 70%, small or large, or give --layers N.")
    if not 0 < float(share[1]) < 100:
        raise InputError(f"A share to keep lies above 0% and below 100%, not at {choice}.")


def choose_depth(choice: str | int, full: int, minima: Minima | None = None) -> int:
    """Layers to keep of a model that has `full`; what would keep none or all of them is refused."""
    check_choice(choice, curve=minima is not None)
    if full < 2:
        raise InputError("The model has one layer; nothing can be cut off.")
    if isinstance(choice, int):
        depth = choice
    elif minima is not None and choice in FROM_A_CURVE:
        depth = minima.small if choice == "small" else minima.large
        if depth == full:
            raise InputError(
                f"The loss is lowest behind the last of {full} layers, so {choice} means not to cut; "
                "use the model as it is, or choose a share or a number of layers."
            )
    else:
        depth = kept_layers(full, float(choice.strip().rstrip("% ")) / 100)
    if not 1 <= depth < full:
        raise InputError(f"The model has {full} layers, and {choice} means to keep {depth}; choose 1 to {full - 1}.")
    return depth


def kept_layers(full: int, share: float) -> int:
    """The share of the layers, rounded down; 30 layers x 0.2 are 6, whatever binary fractions make of it."""
    return math.floor(round(full * share, 9))


@dataclass(frozen=True)
class CurvePlan:
    """How a curve is measured; the defaults are L3Prune's."""

    samples: int = 1280
    """Triples that are drawn."""
    batch: int = 64
    """Triples whose texts are told apart from each other. More of them make every loss higher."""
    scale: float = 50.0
    """Cosines are multiplied by it; it is 1 / temperature."""
    pooling: str = "weightedmean"
    template: str = "plain"
    """What it puts before a text is read but not pooled."""
    max_length: int = DEFAULT_MAX_LENGTH
    seed: int = 0

    def __post_init__(self) -> None:
        if self.samples < 2 or self.batch < 2:
            raise InputError("A triple is told apart from others: take 2 or more samples, in batches of 2 or more.")
        if not self.scale > 0:
            raise InputError(f"scale must be above 0, not {self.scale:g}.")
        if self.pooling not in POOLINGS:
            raise unknown_name("pooling", self.pooling, POOLINGS)
        Template.of(self.template)


@dataclass(frozen=True)
class LossCurve:
    """A measured curve. `by_batch` is [batch, layer], of layers 1 to n."""

    model: str
    weights: str
    attention: str
    data: str
    plan: CurvePlan
    batch: int
    """Triples in a batch: the plan's number, or all there are if they are fewer."""
    by_batch: NDArray[np.float64]
    parameters: tuple[int, ...]
    """Of the model cut to each depth."""
    seconds: float = 0.0

    @cached_property
    def losses(self) -> list[float]:
        """The mean over batches, of layers 1 to n."""
        return [float(loss) for loss in self.by_batch.mean(axis=0)]

    @property
    def errors(self) -> list[float]:
        """Standard error of each mean; 0 where one batch is all there is."""
        count = len(self.by_batch)
        if count == 1:
            return [0.0] * len(self.losses)
        return [float(value) for value in self.by_batch.std(axis=0, ddof=1) / np.sqrt(count)]

    @cached_property
    def minima(self) -> Minima:
        """Where it says that the model may be cut."""
        return find_minima(self.losses)

    def to_json(self) -> dict[str, Any]:
        """Everything, so that it can be drawn and judged again."""
        return {
            "model": self.model,
            "weights": self.weights,
            "attention": self.attention,
            "data": self.data,
            "plan": asdict(self.plan),
            "batch": self.batch,
            "batches": len(self.by_batch),
            **self.minima.to_json(),
            "losses": [round(loss, 6) for loss in self.losses],
            "standard_errors": [round(error, 6) for error in self.errors],
            "parameters": list(self.parameters),
            "seconds": round(self.seconds, 1),
        }


def loss_curve(
    backbone: Backbone,
    triples: Triplets,
    plan: CurvePlan | None = None,
    *,
    progress: Callable[[int], object] = lambda _: None,
) -> LossCurve:
    """Measure the curve; states of texts are kept in the store, so that a second look costs nothing.

    Only whole batches count, since a smaller one has a lower loss.
    """
    plan = plan or CurvePlan()
    if backbone.n_layers < 2:
        raise InputError(f"{backbone.name} has one layer; there is nothing to choose.")
    if len(triples) < 2:
        raise InputError(f"{triples.name} has one triple, which cannot be told apart from others; give 2 or more.")
    started = time.perf_counter()
    drawn = triples.sample(plan.samples, plan.seed)
    batch = min(plan.batch, len(drawn))
    readings = [Reading(layer, plan.pooling, normed=True) for layer in range(1, backbone.n_layers + 1)]
    extractor = Extractor(backbone, readings, Template.of(plan.template), plan.max_length)
    store = Store(extractor.space())
    extractor.fill(store, drawn.texts(), progress)
    columns = [[text_key(text) for text in column] for column in zip(*drawn.rows, strict=True)]
    found = np.stack(
        [
            batch_losses([store.read(keys, [number])[:, 0] for keys in columns], batch, plan.scale)
            for number in range(len(readings))
        ],
        axis=1,
    )
    return LossCurve(
        backbone.name,
        backbone.effective_fingerprint,
        backbone.attention,
        triples.name,
        plan,
        batch,
        found,
        tuple(parameters_by_depth(backbone.model)),
        time.perf_counter() - started,
    )


def batch_losses(columns: Sequence[NDArray[np.float32]], batch: int, scale: float) -> NDArray[np.float64]:
    """The loss of each whole batch, of [text, dim] vectors of anchors, positives and negatives."""
    anchors, positives, negatives = (torch.from_numpy(np.ascontiguousarray(column)) for column in columns)
    losses = []
    for begin in range(0, len(anchors) - batch + 1, batch):
        rows = slice(begin, begin + batch)
        loss = info_nce(anchors[rows], positives[rows], negatives[rows, None], temperature=1 / scale)
        losses.append(float(loss))
    return np.array(losses)
