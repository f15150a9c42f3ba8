"""How well would each depth of a model do? The contrastive loss of every layer on triples, from one pass (L3Prune).

Candidate l is the model cut to l layers: its final norm is applied to what block l returns, so that the loss of a layer
is that of the model which is left when the rest is gone.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from decoder2vec.activations.extract import Extractor
from decoder2vec.activations.store import Store, text_key
from decoder2vec.analysis.loss_minima import Minima, find_minima
from decoder2vec.backbone.load import Backbone
from decoder2vec.backbone.size import parameters_by_depth
from decoder2vec.errors import InputError, unknown_name
from decoder2vec.maths.objectives import info_nce
from decoder2vec.maths.pooling import POOLINGS
from decoder2vec.spec import DEFAULT_MAX_LENGTH, Reading
from decoder2vec.text.template import Template
from decoder2vec.text.triples import Triples


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
    triples: Triples,
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
    drawn = triples.drawn(plan.samples, plan.seed)
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
        backbone.identity,
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
