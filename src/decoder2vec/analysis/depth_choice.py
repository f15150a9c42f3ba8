"""How many layers to keep: a number, a share such as 70%, or what a curve of losses says."""

from __future__ import annotations

import math
import re

from decoder2vec.analysis.loss_minima import Minima
from decoder2vec.errors import InputError

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
