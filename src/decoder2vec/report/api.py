"""Write reports: `report` for results of other commands, `match_report` and others of its kind for one result."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from decoder2vec.errors import InputError

if TYPE_CHECKING:
    from decoder2vec.matching.match import Matching
    from decoder2vec.relations.matcher import RelationResult
    from decoder2vec.search.migration import Migration


def report(
    paths: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    out: str | os.PathLike[str] | None = None,
    *,
    paper_examples: bool = False,
    notify: Callable[[str], object] | None = None,
) -> Path:
    """Compare evaluated encoders, or draw training runs, and return the path of the page.

    Evaluations, sweeps and intrinsic dimensions give a comparison, with a section for training runs among them;
    training runs alone give the page of training runs. The page holds its figures and loads nothing.

    Args:
        paths: Encoders made by `d2v train`, JSON files of `d2v eval`, `d2v sweep` or `d2v analyze id`, or folders of
            them, which are searched two levels deep.
        out: Folder for the page and its figures; by default `report` in the folder of the first path.
        paper_examples: Also show the example pairs of the FREEZE paper, which runs of that recipe have scored.
        notify: Called with sentences on what was found and what was left out.

    Raises:
        InputError: There is no path.
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
    from decoder2vec.report.comparison_page import write_comparison
    from decoder2vec.report.figures import plural
    from decoder2vec.report.result_files import find_results
    from decoder2vec.report.run_page import write_run_page
    from decoder2vec.report.runs import find_runs, runs_of_results

    notify = notify or (lambda _: None)
    sources = [Path(path) for path in ([paths] if isinstance(paths, str | os.PathLike) else paths)]
    if not sources:
        raise InputError("There is nothing to report; give at least one file or folder.")
    folder = Path(out) if out is not None else (sources[0].parent if sources[0].is_file() else sources[0]) / "report"
    command = shlex.join(["d2v", "report", *map(str, sources), *(["--out", str(out)] if out is not None else [])])
    command += " --paper-examples" if paper_examples else ""
    inputs = find_results(sources)
    runs = runs_of_results(inputs.training_results, sources) if inputs.has_comparison else find_runs(*sources)
    if not paper_examples:
        runs = [replace(run, examples=()) for run in runs]
    if not inputs.has_comparison:
        notify(f"{plural(len(runs), 'run')}: {', '.join(run.name for run in runs)}")
        return write_run_page(runs, folder, command=command)
    for reason in inputs.skipped:
        notify(f"left out: {reason}")
    counts = {
        "encoder": len(inputs.evaluations),
        "sweep": len(inputs.sweeps),
        "intrinsic dimension": len(inputs.dimensions),
        "training run": len(runs),
    }
    notify(", ".join(plural(count, noun) for noun, count in counts.items() if count))
    return write_comparison(inputs, runs, folder, command=command)


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
