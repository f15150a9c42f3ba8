"""`d2v report`: look at what was trained, and set encoders side by side."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from decoder2vec.cli.output import bars, info

if TYPE_CHECKING:
    from decoder2vec.report.result_files import Found


def report(
    places: Annotated[
        list[Path],
        typer.Argument(
            help="Encoders made by `d2v train`; JSON of `d2v eval`, `d2v sweep` or `d2v analyze id`; folders of them."
        ),
    ],
    out: Annotated[
        Path | None, typer.Option(help="Folder for page and figures; by default report/ in the first folder.")
    ] = None,
) -> None:
    """Compare evaluated encoders, or draw training runs: one page that holds everything, and its figures."""
    from decoder2vec.report.result_files import gather

    first = places[0].parent if places[0].is_file() else places[0]
    folder = out or first / "report"
    found = gather(places)
    if found.compares:
        _compare(found, places, folder)
    else:
        _draw_runs(places, folder)


def _compare(found: Found, places: Sequence[Path], folder: Path) -> None:
    from decoder2vec.report.comparison_page import write_comparison
    from decoder2vec.report.runs import runs_of_files

    for line in found.left_out:
        info(f"left out: {line}")
    runs = runs_of_files(found.training, places)
    with bars() as progress:
        task = progress.add_task("comparing", total=None)
        page = write_comparison(found, runs, folder, on_progress=lambda _: progress.advance(task))
    counts = {
        "encoder(s)": len(found.evaluations),
        "sweep(s)": len(found.sweeps),
        "intrinsic dimension(s)": len(found.dimensions),
        "training run(s)": len(runs),
    }
    info(", ".join(f"{count} {what}" for what, count in counts.items() if count))
    typer.echo(str(page))


def _draw_runs(places: Sequence[Path], folder: Path) -> None:
    from decoder2vec.report.run_page import write_report
    from decoder2vec.report.runs import find_runs

    runs = find_runs(*places)
    with bars() as progress:
        task = progress.add_task("drawing", total=len(runs))
        page = write_report(runs, folder, on_progress=lambda _: progress.advance(task))
    info(f"{len(runs)} run(s): {', '.join(run.name for run in runs)}")
    typer.echo(str(page))
