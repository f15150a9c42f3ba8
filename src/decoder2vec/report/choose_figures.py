"""The figure of a choice: scores by layer of every source, probes beside their controls, source weights by epoch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from decoder2vec.choosing.search import Choice, Probe
from decoder2vec.report.figures import GREY, colour, curve_style, integer_ticks, panels

_MOST_BARS = 10


def draw_choice(choice: Choice, file: Path) -> None:
    """Draw a choice as PNG.

    Args:
        choice: What `choose` found.
        file: Where to write it.
    """
    attention = _best_attention(choice)
    columns = 1 if choice.is_quick else 3 if attention else 2
    title = f"{choice.task.name}: {choice.verdict()}"
    with panels(file, title, 1, columns, (4.6 * columns + 1, 4.2)) as (_, grid):
        _draw_layers(choice, grid[0][0])
        if not choice.is_quick:
            _draw_probes(choice, grid[0][1])
        if attention:
            _draw_weights(attention, grid[0][2])


def _best_attention(choice: Choice) -> Probe | None:
    """The best probe of several sources with attention, if there is one."""
    return next((probe for probe in choice.probes if len(probe.inputs) > 1 and probe.weights), None)


def _draw_layers(choice: Choice, axis: Any) -> None:
    curves: dict[tuple[str, str], list[tuple[int, float]]] = {}
    for row in choice.layers:
        curves.setdefault((row.source, row.reading.pooling), []).append((row.reading.layer, row.score))
    several = len({pooling for _, pooling in curves}) > 1
    for index, ((source, pooling), points) in enumerate(curves.items()):
        label = f"{source}, {pooling}" if several else source
        axis.plot(*zip(*sorted(points), strict=True), label=label, **curve_style(index))
    integer_ticks(axis.xaxis)
    axis.set_xlabel("layer (0 = embeddings)")
    axis.set_ylabel("LogME" if choice.is_quick else f"validation {choice.task.metric} x 100")
    axis.set_title("Each layer alone")
    axis.legend()


def _draw_probes(choice: Choice, axis: Any) -> None:
    probes = [*choice.probes[:_MOST_BARS], *choice.controls]
    colours = [colour(0)] * min(_MOST_BARS, len(choice.probes)) + [GREY] * len(choice.controls)
    positions = range(len(probes))
    axis.barh(positions, [probe.test for probe in probes], color=colours, height=0.7)
    for position, probe in zip(positions, probes, strict=True):  # one point for each seed
        axis.plot([run.test for run in probe.runs], [position] * len(probe.runs), "k.", markersize=3)
    axis.set_yticks(list(positions), [_wrapped(probe.name) for probe in probes], fontsize=6.5)
    axis.invert_yaxis()
    axis.set_xlabel(f"test {choice.task.metric} x 100")
    axis.set_title("Best on validation data first; controls grey")


def _draw_weights(probe: Probe, axis: Any) -> None:
    for index, (source, _) in enumerate(probe.inputs):
        axis.plot([row[index] for row in probe.weights], label=source, **curve_style(index))
    integer_ticks(axis.xaxis)
    axis.set_ylim(0, 1)
    axis.set_xlabel("epoch")
    axis.set_ylabel("mean weight of the source")
    axis.set_title("Attention over sources")
    axis.legend()


def _wrapped(name: str) -> str:
    """The name of a probe in short lines: one for each source."""
    return name.replace(" + ", "\n+ ")
