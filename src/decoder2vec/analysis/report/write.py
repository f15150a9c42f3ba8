"""The report of a folder of runs: figures as PNG, and one page that holds them all."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from decoder2vec.analysis.report.figures import draw_overview, draw_run, file_stems
from decoder2vec.analysis.report.page import page
from decoder2vec.analysis.report.record import Run
from decoder2vec.errors import InputError
from decoder2vec.places import whole_file

PAGE = "index.html"


def write_report(runs: Sequence[Run], out: Path, watch: Callable[[str], object] = lambda _: None) -> Path:
    """Draw every figure of some runs into `out` and write the page; `watch` hears the name of each finished run."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        with whole_file(out / PAGE) as temporary:  # first of all: minutes of drawing must not end in a refusal
            overview = draw_overview(runs, out)
            own = []
            for run, stem in zip(runs, file_stems([run.name for run in runs]), strict=True):
                own.append(draw_run(run, out, stem))
                watch(run.name)
            temporary.write_text(page(runs, overview, own), encoding="utf-8")
    except OSError as error:
        raise InputError(f"Cannot write to {out}: {error.strerror or error}; choose another folder: --out.") from None
    return out / PAGE
