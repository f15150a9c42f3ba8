"""The comparison on disk: one page, the same as markdown, and its figures as PNG and SVG."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from decoder2vec.analysis.comparison.contents import fill_contents
from decoder2vec.analysis.comparison.gather import Found
from decoder2vec.analysis.comparison.markdown import comparison_markdown
from decoder2vec.analysis.comparison.page import comparison_page
from decoder2vec.analysis.report.figures import draw_overview, draw_run, file_stems
from decoder2vec.analysis.report.page import runs_part
from decoder2vec.analysis.report.record import Run
from decoder2vec.errors import InputError
from decoder2vec.places import whole_file

PAGE, MARKDOWN = "index.html", "report.md"
_WHOLE = 3
"""With more training runs than these, only what sets them side by side is shown."""


def write_comparison(
    found: Found, runs: Sequence[Run], out: Path, watch: Callable[[str], object] = lambda _: None
) -> Path:
    """Draw and write everything that was found into `out`; `watch` hears of each finished part."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        with whole_file(out / PAGE) as page, whole_file(out / MARKDOWN) as markdown:  # a refusal comes first
            contents = fill_contents(found, out, watch)
            page.write_text(comparison_page(contents, _training(runs, out)), encoding="utf-8")
            markdown.write_text(comparison_markdown(contents), encoding="utf-8")
    except OSError as error:
        raise InputError(f"Cannot write to {out}: {error.strerror or error}; choose another folder: --out.") from None
    return out / PAGE


def _training(runs: Sequence[Run], out: Path) -> str:
    if not runs:
        return ""
    stems = file_stems([run.name for run in runs])
    own = [draw_run(run, out, stem) for run, stem in zip(runs, stems, strict=True)] if len(runs) <= _WHOLE else []
    more = "" if own else "<p>Each run by itself: <code>d2v report</code> on the encoder's folder.</p>"
    return runs_part(runs, draw_overview(runs, out), own) + more
