"""Write reports: `report` for results of other commands, `match_report` and others of its kind for one result."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from decoder2vec.errors import InputError

if TYPE_CHECKING:
    from decoder2vec.matching.match import Matching
    from decoder2vec.relations.matcher import RelationResult
    from decoder2vec.report.result_files import ReportInputs
    from decoder2vec.report.runs import TrainingRun
    from decoder2vec.search.migration import Migration


def report(
    paths: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    out: str | os.PathLike[str] | None = None,
    *,
    data: str | os.PathLike[str] | None = None,
    tasks: str | Sequence[str] | None = None,
    trained_on: Sequence[str] = (),
    instruction: str | None = None,
    limit: int | None = None,
    device: str | None = None,
    paper_examples: bool = False,
    notify: Callable[[str], object] | None = None,
) -> Path:
    """Compare evaluated encoders, or draw training runs, and return the path of the page.

    Evaluations, sweeps and intrinsic dimensions give a comparison, with a section for training runs among them;
    training runs alone give the page of training runs. Two paths or more with one evaluation each are also compared
    with the first of them: what did the training change elsewhere? The page holds its figures and loads nothing.

    Args:
        paths: Encoders made by `d2v train`, JSON files of `d2v eval`, `d2v sweep` or `d2v analyze id`, or folders of
            them, which are searched two levels deep. With `data` encoders by name, the one before training first.
        out: Folder for the page and its figures; by default `report` in the folder of the first path.
        data: Folder of tasks to score every encoder in `paths` on first; a second call continues.
        tasks: Tasks of that folder, "all" by default.
        trained_on: Tasks and kinds of tasks that the training was for: the mean ratio of change leaves them out.
        instruction: With `data`, also score every encoder with this text before each text but documents.
        limit: With `data`, use at most this many pairs, texts or queries of each task.
        device: With `data`, cuda, mps or cpu; by default the best there is.
        paper_examples: Also show the example pairs of the FREEZE paper, which runs of that recipe have scored.
        notify: Called with sentences on what was found and what was left out.

    Raises:
        InputError: There is no path, an option for scoring comes without `data`, or `out` holds a page of another kind.
        DataFileError: A path does not exist or holds nothing to report, or a file named in `paths` is damaged.
        StorageError: The folder cannot be written.

    Example:
        >>> import decoder2vec as d2v
        >>> pairs = d2v.ScoredPairs("mine", ["A cat.", "Rain.", "A dog."], ["A kitten.", "Bread.", "A dog."], [4, 0, 5])
        >>> d2v.sweep("tiny-llama", pairs, out="sweep", templates=["plain"], attentions=["causal"]).winner.template
        'plain'
        >>> d2v.report("sweep", "page").name
        'index.html'
    """
    from decoder2vec.report.changes import measure_changes
    from decoder2vec.report.comparison_page import write_comparison
    from decoder2vec.report.encoders import ScoredEncoders
    from decoder2vec.report.figures import plural
    from decoder2vec.report.result_files import before_and_after, find_results
    from decoder2vec.report.run_page import write_run_page
    from decoder2vec.report.runs import find_runs, runs_of_results

    notify = notify or (lambda _: None)
    sources = [Path(path) for path in ([paths] if isinstance(paths, str | os.PathLike) else paths)]
    if not sources:
        raise InputError("There is nothing to report; give at least one file or folder.")
    folder = _without_other_pages(Path(out) if out is not None else _default_folder(sources[0]))
    options = {"out": out, "data": data, "tasks": tasks, "instruction": instruction, "limit": limit}
    command = _command(sources, {**options, "trained_on": trained_on}, paper_examples)
    scored = None
    if data is not None:
        scored = ScoredEncoders(sources, data, folder, tasks, instruction, limit, device).run(notify)
        sources = scored.files
    elif given := [name for name, value in options.items() if name != "out" and value is not None]:
        raise InputError(f"{', '.join(given)}: only with data, the folder of tasks to score the encoders on.")
    inputs = find_results(sources)
    evaluations = before_and_after(inputs, sources)
    if trained_on and not evaluations:
        raise InputError("trained_on needs two paths or more with one evaluation each, the one before training first.")
    runs = runs_of_results(inputs.training_results, sources) if inputs.has_comparison else find_runs(*sources)
    runs = runs if paper_examples else [replace(run, examples=()) for run in runs]
    if not inputs.has_comparison:
        notify(f"{plural(len(runs), 'run')}: {', '.join(run.name for run in runs)}")
        return write_run_page(runs, folder, command=command)
    for sentence in _describe_inputs(inputs, runs):
        notify(sentence)
    changes = measure_changes(evaluations, trained_on) if evaluations else []
    formats = [measure_changes(pair)[0] for pair in scored.formats()] if scored else []
    return write_comparison(inputs, runs, folder, changes=changes, formats=formats, command=command)


def _describe_inputs(inputs: ReportInputs, runs: Sequence[TrainingRun]) -> list[str]:
    """What was left out, and how many results were found of each kind."""
    from decoder2vec.report.figures import plural

    counts = {
        ("encoder", ""): len(inputs.evaluations),
        ("sweep", ""): len(inputs.sweeps),
        ("intrinsic dimension", ""): len(inputs.dimensions),
        ("training run", ""): len(runs),
        ("trajectory", "trajectories"): len(inputs.trajectories),
    }
    found = ", ".join(plural(count, *nouns) for nouns, count in counts.items() if count)
    return [*(f"left out: {reason}" for reason in inputs.skipped), found]


def _default_folder(source: Path) -> Path:
    """`report` in a folder or beside a file, or here if the source is the name of a model."""
    return (source if source.is_dir() else source.parent if source.exists() else Path()) / "report"


def _without_other_pages(folder: Path) -> Path:
    """The folder; raises an error if it holds files that are not of an earlier report, which would be replaced."""
    from decoder2vec.report.comparison_page import CHANGES, MARKDOWN
    from decoder2vec.report.html import MADE_BY
    from decoder2vec.report.run_page import PAGE

    for name, mark in {PAGE: MADE_BY, MARKDOWN: MADE_BY, CHANGES: '"changes"'}.items():
        file = folder / name
        if file.exists() and not (file.is_file() and mark.encode() in file.read_bytes()):
            raise InputError(f"{folder} holds {name}, which is no report; choose another folder, or move it away.")
    return folder


def _command(sources: Sequence[Path], options: Mapping[str, Any], paper_examples: bool) -> str:
    """The command that makes a page."""
    parts = ["d2v", "report", *map(str, sources)]
    for name, value in options.items():
        if value:
            text = str(value) if isinstance(value, str | int | os.PathLike) else ",".join(value)
            parts += [f"--{name.replace('_', '-')}", text]
    return shlex.join([*parts, *(["--paper-examples"] if paper_examples else [])])


def match_report(matching: Matching, out: str | os.PathLike[str], *, command: str = "") -> Path:
    """Write a matching as a page (.html) or as data (.json), and return its path.

    Args:
        matching: Both sides, their rankings and the reasons.
        out: The file to write; its ending decides the format.
        command: The command that makes the page, for its footer.

    Raises:
        InputError: The file has another ending.
        StorageError: The file cannot be written.
    """
    from decoder2vec.report.html import write_result
    from decoder2vec.report.match_page import match_page

    return write_result(matching, Path(out), lambda: match_page(matching, command))


def relation_report(result: RelationResult, out: str | os.PathLike[str], *, command: str = "") -> Path:
    """Write predicted relations as a page (.html) or as data (.json), and return its path.

    Args:
        result: What `PairMatcher.fit` or `PairMatcher.predict` returned.
        out: The file to write; its ending decides the format.
        command: The command that makes the page, for its footer.

    Raises:
        InputError: The file has another ending.
        StorageError: The file cannot be written.
    """
    from decoder2vec.report.html import write_result
    from decoder2vec.report.relation_page import relation_page

    return write_result(result, Path(out), lambda: relation_page(result, command))


def migration_report(result: Migration, out: str | os.PathLike[str], *, command: str = "") -> Path:
    """Write what changes with another encoder as a page (.html) or as data (.json), and return its path.

    Args:
        result: What `migrate` returned.
        out: The file to write; its ending decides the format.
        command: The command that makes the page, for its footer.

    Raises:
        InputError: The file has another ending.
        StorageError: The file cannot be written.
    """
    from decoder2vec.report.html import write_result
    from decoder2vec.report.migration_page import migration_page

    return write_result(result, Path(out), lambda: migration_page(result, command))
