"""Where a curve of losses says that a model may be cut: the best depth of its lower and of its upper half."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from decoder2vec.errors import InputError


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
