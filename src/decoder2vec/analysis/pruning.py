"""Prune the upper layers of a model: measure the contrastive loss of every layer, choose a depth, write the cut model.

The method is L3Prune: measure the loss of every layer of the untrained model on triplets, and cut at the minimum of the
lower half of the layers (small) or at that of the upper half (large).
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from decoder2vec.activations.extract import Extractor
from decoder2vec.activations.store import Store, text_key
from decoder2vec.backbone.backbone import Backbone
from decoder2vec.backbone.blocks import parameters_by_depth
from decoder2vec.backbone.machine import FOUR_BIT, INT8
from decoder2vec.base_model import load_base_model
from decoder2vec.config import DEFAULT_MAX_LENGTH, Reading
from decoder2vec.errors import DataFileError, EncoderError, InputError, UnsupportedError, unknown_name
from decoder2vec.export.pruned import PRUNING_FILE, PruningSummary, check_new_folder, write_pruned
from decoder2vec.maths.losses import info_nce
from decoder2vec.maths.pooling import POOLINGS
from decoder2vec.progress import current_progress, in_phase
from decoder2vec.storage import versions, write_json
from decoder2vec.text.files import Triplets, read_triplets
from decoder2vec.text.template import Template

MINIMA = ("small", "large")
"""Depths that are read from a loss curve."""

_PERCENTAGE = re.compile(r"(\d+(?:\.\d+)?)\s*%")


@dataclass(frozen=True)
class Pruning:
    """The result of `prune`."""

    out: Path
    """Folder of the cut model, or of the curve alone."""
    curve: LossCurve | None
    """The measured curve; None if no triplets were given."""
    depth: int | None
    """Number of layers kept; None if only the curve was measured."""
    cut: PruningSummary | None
    """Sizes before and after, and the difference of the vectors; None if only the curve was measured."""


def prune(
    model: str | Path,
    out: str | Path,
    *,
    keep: str | None = None,
    layers: int | None = None,
    triplets: str | Path | Triplets | None = None,
    samples: int = 1280,
    batch: int = 64,
    scale: float = 50.0,
    pooling: str = "weightedmean",
    template: str = "plain",
    seed: int = 0,
    device: str | None = None,
    dtype: str | None = None,
    notify: Callable[[str], None] = lambda _: None,
) -> Pruning:
    """Remove a model's upper layers, as many as requested or as the loss curve on triplets suggests.

    Example:
        >>> import tempfile
        >>> import decoder2vec as d2v
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     result = d2v.prune("tiny-llama", f"{folder}/cut", keep="50%")
        >>> result.depth, result.cut.layers_before
        (2, 4)

    Args:
        model: Built-in name, model folder, .gguf file, hub id, or a saved encoder.
        out: New folder for the cut model and pruning.json; with neither `keep` nor `layers`, for pruning.json alone.
        keep: A percentage of the layers such as "70%", or "small" or "large" for a minimum of the curve.
        layers: The number of layers to keep, instead of `keep`.
        triplets: A file with the columns anchor, positive and negative, or `Triplets`, to measure the loss curve.
        samples: Number of triplets sampled for the curve.
        batch: Triplets in a batch, each contrasted with all others of the batch.
        scale: Factor of the cosines (1 / temperature).
        pooling: Pooling of the states for the curve.
        template: Template of the texts for the curve.
        seed: Seed of the sample of triplets.
        device: cuda, mps or cpu; by default the best one available.
        dtype: Dtype such as "float32" or "bfloat16"; by default the one that suits the device.
        notify: Called with one-line messages.

    Returns:
        The curve, the depth and the cut.
    """
    folder = Path(out)
    choice = _check_request(keep, layers, folder, has_curve=triplets is not None)
    plan = LossCurvePlan(samples, batch, scale, pooling, template, seed=seed)
    rows = read_triplets(triplets) if isinstance(triplets, str | Path) else triplets
    if dtype in (FOUR_BIT, INT8):
        raise InputError(f"Pruning compares the cut model with whole weights; give another dtype than {dtype}.")
    progress = current_progress()
    progress.expect("loading the model")
    if rows is not None:
        progress.expect("encoding", len(rows.sample(plan.samples, plan.seed).texts()))
    progress.expect("saving")
    backbone, _ = load_base_model(model, device=device, dtype=dtype, notify=notify)
    depth = None if choice is None or choice in MINIMA else layers_to_keep(choice, backbone.n_layers)
    curve = None
    if rows is not None:
        curve = _measure_curve(backbone, rows, plan, notify)
        if choice in MINIMA:
            depth = layers_to_keep(str(choice), backbone.n_layers, curve.minima)
    note: dict[str, Any] = {
        "model": str(model),
        "weights": backbone.effective_fingerprint,
        "asked": choice,
        "versions": versions(),
    }
    if curve:
        note["curve"] = {**curve.to_json(), "model": str(model)}
    with progress.phase("saving"):
        if depth is None:
            write_json(folder / PRUNING_FILE, note)
            return Pruning(folder, curve, None, None)
        return Pruning(folder, curve, depth, write_pruned(backbone, depth, folder, note))


def _check_request(keep: str | None, layers: int | None, out: Path, *, has_curve: bool) -> str | int | None:
    """What to keep, checked as far as possible before the model is loaded."""
    if keep is not None and layers is not None:
        raise InputError("Give keep or layers (--keep or --layers), not both.")
    choice = keep if keep is not None else layers
    if choice is None:
        if not has_curve:
            raise InputError("Choose what to keep (--keep 70%, --layers 12), or give --triplets FILE to measure it.")
        if (out / "config.json").exists():
            raise InputError(f"{out} contains a model; choose another folder for the curve.")
        return None
    check_keep(choice, has_curve=has_curve)
    check_new_folder(out)
    return choice


def _measure_curve(
    backbone: Backbone, triplets: Triplets, plan: LossCurvePlan, notify: Callable[[str], None]
) -> LossCurve:
    if triplets.skipped:
        notify(f"{triplets.skipped} rows without three different texts were left out")
    curve = loss_curve(backbone, triplets, plan)
    if curve.batch < plan.batch:
        notify(f"there are only {curve.batch} triplets; losses are lower than in batches of {plan.batch}")
    return curve


@dataclass(frozen=True)
class LossCurvePlan:
    """How a loss curve is measured; the defaults are L3Prune's."""

    samples: int = 1280
    """Number of triplets sampled."""
    batch: int = 64
    """Triplets in a batch, each contrasted with all others. A larger batch gives higher losses."""
    scale: float = 50.0
    """Factor of the cosines: 1 / temperature."""
    pooling: str = "weightedmean"
    template: str = "plain"
    """The model reads all of it, but only the tokens of the text are pooled."""
    max_length: int = DEFAULT_MAX_LENGTH
    seed: int = 0

    def __post_init__(self) -> None:
        if self.samples < 2 or self.batch < 2:
            raise InputError("A triplet is contrasted with others: give 2 or more samples, in batches of 2 or more.")
        if not 0 < self.scale < math.inf:
            raise InputError(f"scale must be above 0, not {self.scale:g}.")
        if self.pooling not in POOLINGS:
            raise unknown_name("pooling", self.pooling, POOLINGS)
        Template.of(self.template)


@dataclass(frozen=True)
class LossCurve:
    """The contrastive loss of every layer of a model."""

    model: str
    weights: str
    """Identity of the weights."""
    attention: str
    data: str
    """Name of the triplets."""
    plan: LossCurvePlan
    batch: int
    """Triplets in a batch: the plan's number, or all triplets if there are fewer."""
    by_batch: NDArray[np.float64]
    """[batches, layers] losses of layers 1 to n."""
    parameters: tuple[int, ...]
    """Number of parameters of the model cut after each layer."""
    seconds: float = 0.0

    @cached_property
    def losses(self) -> list[float]:
        """The mean over batches, for layers 1 to n."""
        return [float(loss) for loss in self.by_batch.mean(axis=0)]

    @property
    def errors(self) -> list[float]:
        """Standard error of each mean; 0 if there is only one batch."""
        n_batches = len(self.by_batch)
        if n_batches == 1:
            return [0.0] * len(self.losses)
        return [float(value) for value in self.by_batch.std(axis=0, ddof=1) / np.sqrt(n_batches)]

    @cached_property
    def minima(self) -> LossMinima:
        """The minima of the lower and the upper half of the layers."""
        return find_minima(self.losses)

    def to_json(self) -> dict[str, Any]:
        """A plain dict for JSON, from which the curve can be drawn again."""
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


@in_phase("encoding")
def loss_curve(backbone: Backbone, triplets: Triplets, plan: LossCurvePlan | None = None) -> LossCurve:
    """Measure the contrastive loss of every layer of a model.

    States of texts are kept in the latents store, so a second measurement does not run the model. Only full batches
    count, since a smaller batch has a lower loss.

    Args:
        backbone: The model.
        triplets: Anchors, positives and hard negatives.
        plan: How the curve is measured.
    """
    plan = plan or LossCurvePlan()
    if backbone.n_layers < 2:
        raise UnsupportedError(f"{backbone.name} has one layer, so there is no depth to choose.")
    if len(triplets) < 2:
        raise DataFileError(f"{triplets.name} has one triplet, and a loss contrasts it with others; give 2 or more.")
    started = time.perf_counter()
    sample = triplets.sample(plan.samples, plan.seed)
    batch = min(plan.batch, len(sample))
    readings = [Reading(layer, plan.pooling, normed=True) for layer in range(1, backbone.n_layers + 1)]
    extractor = Extractor(backbone, readings, Template.of(plan.template), plan.max_length)
    store = Store(extractor.space())
    extractor.fill(store, sample.texts())
    columns = [[text_key(text) for text in column] for column in zip(*sample.rows, strict=True)]
    by_batch = np.stack(
        [
            batch_losses([store.read(keys, [reading])[:, 0] for keys in columns], batch, plan.scale)
            for reading in range(len(readings))
        ],
        axis=1,
    )
    return LossCurve(
        backbone.name,
        backbone.effective_fingerprint,
        backbone.attention,
        triplets.name,
        plan,
        batch,
        by_batch,
        tuple(parameters_by_depth(backbone.model)),
        time.perf_counter() - started,
    )


def batch_losses(columns: Sequence[NDArray[np.float32]], batch: int, scale: float) -> NDArray[np.float64]:
    """InfoNCE loss of each full batch, from [texts, dim] vectors of anchors, positives and negatives."""
    anchors, positives, negatives = (torch.from_numpy(np.ascontiguousarray(column)) for column in columns)
    losses = []
    for start in range(0, len(anchors) - batch + 1, batch):
        rows = slice(start, start + batch)
        loss = info_nce(anchors[rows], positives[rows], negatives[rows, None], temperature=1 / scale)
        losses.append(float(loss))
    return np.array(losses)


@dataclass(frozen=True)
class LossMinima:
    """The layers with the lowest loss in the lower and the upper half, and whether each is a local minimum.

    A lowest loss at an end of a half is no local minimum: the curve only falls or rises there, and the depth depends on
    where the half ends.
    """

    n_layers: int
    small: int
    """Layers to keep by the lower half."""
    large: int
    """Layers to keep by the upper half."""
    small_is_local: bool
    large_is_local: bool

    @property
    def drop_rise_drop(self) -> bool:
        """Whether the loss falls, rises, falls and rises again, as it does in large models."""
        return self.small_is_local and self.large_is_local

    def remarks(self) -> Iterator[str]:
        """Sentences that a user should read before using the two depths."""
        if self.drop_rise_drop:
            yield "The loss falls, rises, falls and rises again: both depths are local minima of the curve."
            return
        yield "The drop-rise-drop shape is absent: use the two depths as starting points, not as an answer."
        half = self.n_layers // 2
        for name, depth, is_local, first, last in (
            ("small", self.small, self.small_is_local, 1, half),
            ("large", self.large, self.large_is_local, half + 1, self.n_layers),
        ):
            if not is_local:
                yield f"{name} = {depth} is no local minimum: the loss is lowest at an end of layers {first} to {last}."
        if self.large == self.n_layers:
            yield f"large = {self.n_layers}, all layers: by this curve the model should not be cut for quality."

    def to_json(self) -> dict[str, Any]:
        """A plain dict for JSON."""
        return {
            "small": self.small,
            "large": self.large,
            "interior": {"small": self.small_is_local, "large": self.large_is_local},
            "drop_rise_drop": self.drop_rise_drop,
        }


def find_minima(losses: Sequence[float]) -> LossMinima:
    """The first lowest loss of layers 1 to n // 2 and that of the layers above.

    Args:
        losses: The losses of layers 1 to n.

    Raises:
        UnsupportedError: The model has one layer, so it has no halves.
        EncoderError: A loss is not finite.
    """
    n_layers = len(losses)
    if n_layers < 2:
        raise UnsupportedError("A model of one layer cannot be cut; there is no depth to choose.")
    for layer, loss in enumerate(losses, 1):
        if not math.isfinite(loss):
            raise EncoderError(
                f"The loss of layer {layer} is {loss:g}: its states are not all finite; run `d2v doctor` on the model."
            )
    half = n_layers // 2
    small, small_is_local = _lowest(losses[:half])
    large, large_is_local = _lowest(losses[half:])
    return LossMinima(n_layers, small, half + large, small_is_local, large_is_local)


def _lowest(losses: Sequence[float]) -> tuple[int, bool]:
    """The position of the first lowest loss, counted from 1, and whether it is lower than both ends."""
    lowest = min(losses)
    return list(losses).index(lowest) + 1, lowest < losses[0] and lowest < losses[-1]


def check_keep(keep: str | int, *, has_curve: bool) -> None:
    """Refuse a value of `keep` or `layers` that is invalid for every model, before anything is computed."""
    if isinstance(keep, int):
        return
    if keep in MINIMA:
        if not has_curve:
            raise InputError(f"{keep} is a minimum of the loss curve; give triplets to measure the curve.")
        return
    percentage = _PERCENTAGE.fullmatch(str(keep).strip())
    if not percentage:
        raise InputError(f"Unknown choice {keep!r}; keep a share such as 70%, small or large, or give --layers N.")
    if not 0 < float(percentage[1]) < 100:
        raise InputError(f"The share to keep must be above 0% and below 100%, not {keep}.")


def layers_to_keep(keep: str | int, n_layers: int, minima: LossMinima | None = None) -> int:
    """The number of layers to keep.

    Args:
        keep: A number of layers, a percentage such as "70%", or "small" or "large".
        n_layers: The model's number of layers.
        minima: The minima of the loss curve, for "small" and "large".

    Raises:
        InputError: No layers or all layers would be kept.
    """
    check_keep(keep, has_curve=minima is not None)
    if n_layers < 2:
        raise UnsupportedError("The model has one layer, so it cannot be cut.")
    if isinstance(keep, int):
        depth = keep
    elif minima is not None and keep in MINIMA:
        depth = minima.small if keep == "small" else minima.large
        if depth == n_layers:
            raise InputError(
                f"The loss is lowest after the last of {n_layers} layers, so {keep} means not to cut; "
                "use the model unchanged, or choose a share or a number of layers."
            )
    else:
        depth = share_of_layers(n_layers, float(keep.strip().rstrip("% ")) / 100)
    if not 1 <= depth < n_layers:
        raise InputError(
            f"The model has {n_layers} layers, and {keep} means to keep {depth}; choose 1 to {n_layers - 1}."
        )
    return depth


def share_of_layers(n_layers: int, share: float) -> int:
    """The share of the layers, rounded down, with a tolerance for binary fractions: 30 x 0.2 is 6."""
    return math.floor(round(n_layers * share, 9))
