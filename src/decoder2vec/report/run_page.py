"""The page of training runs: scores, checks and examples of all runs side by side, then the figures of each run."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from decoder2vec.maths.metrics import METRICS
from decoder2vec.progress import current_progress
from decoder2vec.report.figures import Figure, file_stems, plural
from decoder2vec.report.html import (
    Cell,
    Html,
    Section,
    Table,
    bullets,
    code,
    figure,
    folded,
    join,
    output_file,
    page,
    paragraph,
    subsection,
    table,
)
from decoder2vec.report.runs import TrainingRun
from decoder2vec.report.training_figures import draw_overview, draw_run, scored_files

PAGE = "index.html"
_MAX_OPEN = 3
"""With more runs than this, each is folded."""
_EXPECTED_CHECKS = {"equal texts": "1", "full stop": "close to 1", "random pairs": "close to 0"}


def write_run_page(runs: Sequence[TrainingRun], out: Path, *, command: str = "") -> Path:
    """Draw all figures of the runs, write the page, and return its path.

    Args:
        runs: The runs, in the order of the page.
        out: Folder for the page and its figures.
        command: The command that makes the page, for its footer.

    Raises:
        StorageError: The folder cannot be written.
    """
    progress = current_progress()
    with output_file(out / PAGE) as temporary, progress.phase("drawing", len(runs)):
        overview = draw_overview(runs, out)
        figures = []
        for run, stem in zip(runs, file_stems([run.name for run in runs]), strict=True):
            figures.append(draw_run(run, out, stem))
            progress.advance(1, run.name)
        temporary.write_text(run_page(runs, overview, figures, command), encoding="utf-8")
    return out / PAGE


def run_page(
    runs: Sequence[TrainingRun], overview: Sequence[Figure], figures: Sequence[Sequence[Figure]], command: str = ""
) -> str:
    """The page of training runs.

    Args:
        runs: The runs, in the order of the page.
        overview: The figures of `draw_overview`.
        figures: For each run the figures of `draw_run`.
        command: The command that makes the page, for its footer.
    """
    sections = [Section("overview", "All runs" if len(runs) > 1 else "Scores", runs_overview(runs, overview))]
    bodies = [_run_details(run, shown) for run, shown in zip(runs, figures, strict=True)]
    if len(runs) <= _MAX_OPEN:
        sections += [
            Section(f"run-{n}", run.name, body) for n, (run, body) in enumerate(zip(runs, bodies, strict=True))
        ]
    else:
        details = [folded(run.name, body) for run, body in zip(runs, bodies, strict=True)]
        sections.append(Section("runs", "Single runs", join(*details)))
    title = f"Training run {runs[0].name}" if len(runs) == 1 else f"{len(runs)} training runs"
    return page(title, sections, kind="training report", summary=_summary(runs), command=command)


def _summary(runs: Sequence[TrainingRun]) -> Html:
    """What came of it: the score of a single run, then how many encoders were trained on what."""
    headline = f"{runs[0].headline}. " if len(runs) == 1 and runs[0].headline else ""
    backbones = ", ".join(dict.fromkeys(run.backbone for run in runs if run.backbone))
    if not backbones:
        return join(headline)
    return join(f"{headline}{plural(len(runs), 'encoder')} trained on {backbones} by ", code("d2v train"), ".")


def training_section(
    runs: Sequence[TrainingRun], overview: Sequence[Figure], figures: Sequence[Sequence[Figure]]
) -> Html:
    """The runs as one section of a page: side by side, then each run with figures by itself."""
    details = [
        folded(run.name, _run_details(run, shown), is_open=True) for run, shown in zip(runs, figures, strict=False)
    ]
    return join(paragraph(_summary(runs)), runs_overview(runs, overview), *details)


def runs_overview(runs: Sequence[TrainingRun], overview: Sequence[Figure]) -> Html:
    """Everything that shows all runs side by side."""
    scores, *others = overview
    return join(
        _drawn(scores),
        table(_headline_table(runs)),
        *(table(_score_table(runs, metric)) for metric in METRICS),
        table(_check_table(runs)),
        subsection("About the data", bullets(_data_notes(runs))),
        *map(_drawn, others),
        table(_example_table(runs)),
        _missing_figures(overview),
    )


def _run_details(run: TrainingRun, figures: Sequence[Figure]) -> Html:
    facts = [f"model {run.backbone}"] if run.backbone else []
    facts += [f"recipe {run.recipe}"] if run.recipe else []
    if (share := run.trained_share) is not None:
        facts.append(f"{run.trained_parameters:,} trained parameters, {share:.3g} % of the encoder's")
    facts += [f"seeds {', '.join(str(seed.seed) for seed in run.seeds)}"] if run.seeds else []
    facts += (
        [f"shown here: seed {run.best_seed}, the best on dev"] if run.best_seed is not None and run.has_record else []
    )
    return join(
        paragraph("; ".join(facts), muted=True),
        paragraph(code(run.command) if run.command else ""),
        *map(_drawn, figures),
        table(_worst_table(run)),
        _missing_figures(figures),
    )


def _drawn(data: Figure) -> Html:
    """The figure, or nothing: figures without a file are listed together."""
    return figure(data) if data.file else Html()


def _missing_figures(figures: Sequence[Figure]) -> Html:
    lines = [f"{missing.title}: {missing.caption}" for missing in figures if missing.file is None]
    return join(paragraph("Not shown:", muted=True), bullets(lines)) if lines else Html()


def _headline_table(runs: Sequence[TrainingRun]) -> Table:
    """The result of training of each of several runs; the page of a single run begins with it."""
    rows = [[Cell(run.name), Cell(run.headline)] for run in runs if run.headline and len(runs) > 1]
    caption = "The saved encoder (best seed), by the metric it was selected by"
    return Table("Result of training", caption, ["run", "score"], rows, text_columns=(0, 1))


def _score_table(runs: Sequence[TrainingRun], metric: str) -> Table:
    files = [(split, name) for split in ("dev", "test") for name in scored_files(runs, split)]
    rows = []
    for run in runs:
        columns = [
            [scores[metric] for seed in run.seeds if metric in (scores := getattr(seed, split).get(name, {}))]
            for split, name in files
        ]
        if any(columns):
            n_seeds = Cell(str(len(run.seeds)), len(run.seeds))
            rows.append([Cell(run.name), n_seeds, *(_mean_cell(values, 2) for values in columns)])
    headings = [name if name == split else f"{split}: {name}" for split, name in files]
    caption = "Mean over seeds ± one standard deviation"
    return Table(f"{metric.capitalize()} x 100", caption, ["run", "seeds", *headings], rows, sortable=True)


def _check_table(runs: Sequence[TrainingRun]) -> Table:
    names = list(dict.fromkeys(name for run in runs for seed in run.seeds for name in seed.checks))
    rows = [
        [
            Cell(run.name),
            *(_mean_cell([seed.checks[name] for seed in run.seeds if name in seed.checks], 3) for name in names),
        ]
        for run in runs
        if any(seed.checks for seed in run.seeds)
    ]
    expected = [Cell("expected"), *(Cell(_EXPECTED_CHECKS.get(name, "")) for name in names)]
    caption = "Mean score of pairs with a known answer"
    return Table("Sanity checks", caption, ["run", *names], rows, footer=expected, sortable=True)


def _example_table(runs: Sequence[TrainingRun]) -> Table:
    shown = [run for run in runs if run.examples]
    pairs = {(pair.text_a, pair.text_b): pair for run in shown for pair in run.examples}
    scores = [{(pair.text_a, pair.text_b): pair.score for pair in run.examples} for run in shown]
    rows = [
        [
            Cell(f"{texts[0]} / {texts[1]}"),
            Cell(_format(pair.human, 2)),
            Cell(_format(pair.paper, 2)),
            *(Cell(_format(by_pair.get(texts), 2)) for by_pair in scores),
        ]
        for texts, pair in pairs.items()
    ]
    columns = [[(pair.human, pair.paper) for pair in pairs.values()]]
    columns += [[(pairs[texts].human, score) for texts, score in by_pair.items()] for by_pair in scores]
    errors = [Cell("mean absolute error"), Cell(""), *(Cell(_mean_absolute_error(column)) for column in columns)]
    headings = ["pair", "human", "paper", *(run.name for run in shown)]
    return Table("Scores of the example pairs", "From 0 to 1", headings, rows, text_columns=(0,), footer=errors)


def _mean_absolute_error(column: Iterable[tuple[float, float | None]]) -> str:
    errors = [abs(human - score) for human, score in column if score is not None]
    return _format(float(np.mean(errors)), 2) if errors else ""


def _worst_table(run: TrainingRun) -> Table:
    worst, data = (run.errors.worst, run.errors.data) if run.errors else ((), "")
    rows = [
        [
            Cell(pair.text_a),
            Cell(pair.text_b),
            Cell(_format(pair.human, 2)),
            Cell(_format(pair.score, 2)),
            Cell(f"{pair.score - pair.human:+.2f}"),
        ]
        for pair in worst
    ]
    headings = ["text", "text", "human", "score", "error"]
    return Table(f"Largest errors on {data}", "Score minus human score", headings, rows, text_columns=(0, 1))


def _data_notes(runs: Sequence[TrainingRun]) -> list[str]:
    """The notes of the runs on their data, each once, with the runs it applies to if it does not apply to all."""
    lines = []
    for note in dict.fromkeys(note for run in runs for note in run.notes):
        names = [run.name for run in runs if note in run.notes]
        others = [run.name for run in runs if note not in run.notes]
        applies_to = f"all but {', '.join(others)}" if len(others) < len(names) else ", ".join(names)
        lines.append(f"{note} ({applies_to})" if others else note)
    return lines


def _mean_cell(values: Sequence[float], digits: int) -> Cell:
    """Mean and standard deviation over seeds."""
    if not values:
        return Cell("")
    mean = float(np.mean(values))
    deviation = f" ± {np.std(values, ddof=1):.{digits}f}" if len(values) > 1 else ""
    return Cell(f"{_format(mean, digits)}{deviation}", mean if math.isfinite(mean) else None)


def _format(value: float | None, digits: int) -> str:
    return "" if value is None else f"{value:.{digits}f}" if math.isfinite(value) else "not a number"
