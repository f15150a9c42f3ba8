"""The curve of losses as a picture: where its valleys are, and how much of the model each depth keeps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from decoder2vec.analysis.drawing import COLOURS, MARKERS, QUIET, panels, whole_numbers
from decoder2vec.analysis.loss_curve import LossCurve


def draw_curve(curve: LossCurve, file: Path) -> None:
    """Write the picture to `file` (PNG)."""
    minima = curve.minima
    shape = "" if minima.drop_rise_drop else "; drop-rise-drop is absent"
    title = f"{Path(curve.model).name} on {curve.data}: loss of every depth, batches of {curve.batch}{shape}"
    layers, losses, errors = range(1, minima.full + 1), np.array(curve.losses), np.array(curve.errors)
    with panels(file, title, 1, 1, (7.4, 3.9)) as (_, grid):
        axes = grid[0][0]
        axes.axvline(minima.full // 2 + 0.5, color=QUIET, linestyle=":", linewidth=1)
        axes.fill_between(layers, losses - errors, losses + errors, color=COLOURS[0], alpha=0.18, linewidth=0)
        axes.plot(layers, losses, color=COLOURS[0], marker=".")
        for number, (name, depth, inside) in enumerate(
            (("small", minima.small, minima.small_inside), ("large", minima.large, minima.large_inside))
        ):
            _mark(axes, curve, name, depth, inside, number + 1)
        axes.set_xlabel("layers kept")
        axes.set_ylabel(f"contrastive loss (scale {curve.plan.scale:g})")
        whole_numbers(axes.xaxis)
        axes.legend()


def _mark(axes: Any, curve: LossCurve, name: str, depth: int, inside: bool, number: int) -> None:
    share = curve.parameters[depth - 1] / curve.parameters[-1]
    label = f"{name}: {depth} layers, {share:.0%} of the parameters{'' if inside else ' (no valley)'}"
    axes.plot(
        depth,
        curve.losses[depth - 1],
        MARKERS[number],
        color=COLOURS[number],
        markersize=8,
        fillstyle="full" if inside else "none",
        linestyle="none",
        label=label,
    )
