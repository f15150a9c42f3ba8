"""The report as one HTML page that needs nothing beside it: figures are inside, and it loads nothing."""

from __future__ import annotations

import base64
import math
from collections.abc import Callable, Iterable, Sequence
from html import escape
from pathlib import Path

import numpy as np

from decoder2vec.errors import StorageError
from decoder2vec.maths.metrics import METRICS
from decoder2vec.report.runs import Run
from decoder2vec.report.training_figures import Picture, draw_overview, draw_run, file_stems, part_files
from decoder2vec.storage import atomic_file

_OPEN = 3
"""Up to so many runs, each stands open on the page."""
_CHECKS = {"equal texts": "1", "full stop": "close to 1", "random pairs": "close to 0"}
_STYLE = """
:root { color-scheme: light; }
body { font: 16px/1.5 system-ui, sans-serif; color: #1b1b1b; background: #fff; max-width: 60rem; margin: 0 auto;
  padding: 1rem; overflow-wrap: break-word; }
h1, h2, h3 { line-height: 1.2; }
h2 { border-top: 1px solid #ddd; padding-top: 1rem; }
.wide { overflow-x: auto; }
img { display: block; max-width: 100%; min-width: 34rem; height: auto; }
table { border-collapse: collapse; font-size: .85rem; }
th, td { padding: .25rem .6rem .25rem 0; text-align: left; vertical-align: top; border-bottom: 1px solid #eee; }
td.number, th.number { text-align: right; white-space: nowrap; font-variant-numeric: tabular-nums; }
figcaption, .about { color: #555; font-size: .85rem; }
figure { margin: 1rem 0; }
td:first-child { min-width: 12rem; }
summary { cursor: pointer; font-weight: 600; font-size: 1.15rem; padding: .5rem 0; }
code { font-size: .8rem; overflow-wrap: anywhere; }
"""


def page(runs: Sequence[Run], overview: Sequence[Picture], own: Sequence[Sequence[Picture]]) -> str:
    """The page of some runs: what sets them side by side, then each by itself."""
    title = f"Report on {runs[0].name}" if len(runs) == 1 else f"Report on {len(runs)} runs"
    head = (
        '<meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{_STYLE}</style>"
    )
    body = f"<h1>{escape(title)}</h1>\n{runs_part(runs, overview, own)}"
    return f'<!DOCTYPE html>\n<html lang="en">\n<head>{head}</head>\n<body>\n{body}\n</body>\n</html>\n'


def runs_part(runs: Sequence[Run], overview: Sequence[Picture], own: Sequence[Sequence[Picture]]) -> str:
    """What a page says of some runs: side by side, then each by itself as far as it was drawn (`own`)."""
    models = ", ".join(dict.fromkeys(run.backbone for run in runs if run.backbone))
    ladder, examples, parameters = overview
    parts = [
        f"<p>Encoders trained on the frozen model {escape(models)} by <code>d2v train</code>.</p>" if models else "",
        _picture(ladder),
        *(_score_table(runs, metric) for metric in METRICS),
        _check_table(runs),
        _notes(runs),
        _picture(examples),
        _example_table(runs),
        _picture(parameters),
        _missing(overview),
        *(_run(run, pictures, len(runs) <= _OPEN) for run, pictures in zip(runs, own, strict=False)),
    ]
    return "\n".join(part for part in parts if part)


def _run(run: Run, pictures: Sequence[Picture], stands_open: bool) -> str:
    seeds = ", ".join(str(seed.number) for seed in run.seeds)
    facts = [f"model {run.backbone}"] if run.backbone else []
    facts += [f"seeds {seeds}"] if seeds else []
    facts += [f"best on dev: seed {run.best_seed}, shown here"] if run.best_seed is not None and run.recorded else []
    parts = [
        f'<p class="about">{escape("; ".join(facts))}</p>' if facts else "",
        f"<p><code>{escape(run.command)}</code></p>" if run.command else "",
        *map(_picture, pictures),
        _worst_table(run),
        _missing(pictures),
    ]
    body = "\n".join(part for part in parts if part)
    if stands_open:
        return f"<section><h2>{escape(run.name)}</h2>\n{body}</section>"
    return f"<details><summary>{escape(run.name)}</summary>\n{body}</details>"


def _picture(picture: Picture) -> str:
    if picture.file is None:
        return ""
    data = base64.b64encode(picture.file.read_bytes()).decode()
    title, about = escape(picture.title), escape(picture.about)
    image = f'<div class="wide"><img alt="{title}. {about}" src="data:image/png;base64,{data}"></div>'
    return f"<figure><h3>{title}</h3>{image}<figcaption>{about}</figcaption></figure>"


def _missing(pictures: Sequence[Picture]) -> str:
    lines = [f"<li>{escape(one.title)}: {escape(one.about)}</li>" for one in pictures if one.file is None]
    return f'<div class="about"><p>Not shown:</p><ul>{"".join(lines)}</ul></div>' if lines else ""


def _score_table(runs: Sequence[Run], metric: str) -> str:
    files = [(part, name) for part in ("dev", "test") for name in part_files(runs, part)]
    rows = []
    for run in runs:
        found = [
            [scores[metric] for seed in run.seeds if metric in (scores := getattr(seed, part).get(name, {}))]
            for part, name in files
        ]
        if any(found):
            rows.append([run.name, str(len(run.seeds)), *(_spread(values, 2) for values in found)])
    heads = [name if name == part else f"{part}: {name}" for part, name in files]
    about = "x 100: mean over seeds ± one standard deviation"
    return _table(f"{metric.capitalize()} {about}", ["run", "seeds", *heads], rows)


def _check_table(runs: Sequence[Run]) -> str:
    names = list(dict.fromkeys(name for run in runs for seed in run.seeds for name in seed.checks))
    rows = [
        [run.name, *(_spread([seed.checks[name] for seed in run.seeds if name in seed.checks], 3) for name in names)]
        for run in runs
        if any(seed.checks for seed in run.seeds)
    ]
    if rows:
        rows.append(["what one hopes for", *(_CHECKS.get(name, "") for name in names)])
    return _table("Checks: mean score of pairs whose answer is known", ["run", *names], rows)


def _example_table(runs: Sequence[Run]) -> str:
    shown = [run for run in runs if run.examples]
    known = {(pair.left, pair.right): pair for run in shown for pair in run.examples}
    scores = [{(pair.left, pair.right): pair.score for pair in run.examples} for run in shown]
    rows = [
        [
            f"{left} / {right}",
            _number(pair.truth, 2),
            _number(pair.paper, 2),
            *(_number(own.get((left, right)), 2) for own in scores),
        ]
        for (left, right), pair in known.items()
    ]
    columns = [[(pair.truth, pair.paper) for pair in known.values()]]
    columns += [[(known[texts].truth, score) for texts, score in own.items()] for own in scores]
    if rows:
        rows.append(["mean distance from people", "", *(_distance(column) for column in columns)])
    return _table("The examples in numbers", ["pair", "people", "the paper", *(run.name for run in shown)], rows)


def _distance(column: Iterable[tuple[float, float | None]]) -> str:
    found = [abs(truth - score) for truth, score in column if score is not None]
    return _number(float(np.mean(found)), 2) if found else ""


def _worst_table(run: Run) -> str:
    if run.errors is None:
        return ""
    rows = [
        [pair.left, pair.right, _number(pair.truth, 2), _number(pair.score, 2), f"{pair.score - pair.truth:+.2f}"]
        for pair in run.errors.worst
    ]
    return _table(f"The largest errors on {run.errors.data}", ["text", "text", "people", "score", "error"], rows, 2)


def _notes(runs: Sequence[Run]) -> str:
    """What the runs said about their data, each once."""
    lines = []
    for note in dict.fromkeys(note for run in runs for note in run.notes):
        names = [run.name for run in runs if note in run.notes]
        others = [run.name for run in runs if note not in run.notes]
        whose = f" (all but {', '.join(others)})" if len(others) < len(names) else f" ({', '.join(names)})"
        whose = whose if others else ""
        lines.append(f"<li>{escape(note + whose)}</li>")
    return f"<h3>About the data</h3><ul>{''.join(lines)}</ul>" if lines else ""


def _table(title: str, heads: Sequence[str], rows: Sequence[Sequence[str]], texts: int = 1) -> str:
    """A table of escaped cells; after the first `texts` columns come numbers."""
    if not rows:
        return ""

    def row(cells: Sequence[str], tag: str) -> str:
        kinds = ["" if number < texts else ' class="number"' for number in range(len(cells))]
        return "<tr>" + "".join(f"<{tag}{k}>{escape(c)}</{tag}>" for k, c in zip(kinds, cells, strict=True)) + "</tr>"

    body = "\n".join(row(cells, "td") for cells in rows)
    return f'<h3>{escape(title)}</h3><div class="wide"><table>{row(heads, "th")}\n{body}</table></div>'


def _spread(values: Sequence[float], digits: int) -> str:
    if not values:
        return ""
    mean = _number(float(np.mean(values)), digits)
    return f"{mean} ± {np.std(values, ddof=1):.{digits}f}" if len(values) > 1 else mean


def _number(value: float | None, digits: int) -> str:
    return "" if value is None else f"{value:.{digits}f}" if math.isfinite(value) else "not a number"


PAGE = "index.html"


def write_report(runs: Sequence[Run], out: Path, on_progress: Callable[[str], object] = lambda _: None) -> Path:
    """Draw every figure of some runs into `out` and write the page; `watch` hears the name of each finished run."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        with atomic_file(out / PAGE) as temporary:  # first of all: minutes of drawing must not end in a refusal
            overview = draw_overview(runs, out)
            own = []
            for run, stem in zip(runs, file_stems([run.name for run in runs]), strict=True):
                own.append(draw_run(run, out, stem))
                on_progress(run.name)
            temporary.write_text(page(runs, overview, own), encoding="utf-8")
    except OSError as error:
        raise StorageError(f"Cannot write to {out}: {error.strerror or error}; choose another folder: --out.") from None
    return out / PAGE
