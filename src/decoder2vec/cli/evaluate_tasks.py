"""`d2v eval --tasks`: an encoder on every task of a folder."""

from __future__ import annotations

import math
import shlex
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from decoder2vec.cli.show import bars, say, table

if TYPE_CHECKING:
    from decoder2vec.evaluation.suite import Estimate, Suite


@dataclass(frozen=True)
class TaskChoices:
    """What of a folder is measured, and where it is written."""

    data: Sequence[Path]
    tasks: Sequence[str] = ("all",)
    json_file: Path | None = None
    limit: int | None = None
    prompts: Sequence[str] = ()


def evaluate_tasks(name: str, choices: TaskChoices, open_model: Callable[[], Any]) -> None:
    """Find the tasks, say how long they will take, do them, print a table."""
    from decoder2vec.errors import InputError
    from decoder2vec.evaluation.suite import Suite
    from decoder2vec.evaluation.tasks.layout import find_tasks

    if len(choices.data) != 1:
        raise InputError("--tasks takes one folder: give --data once.")
    tasks = find_tasks(choices.data[0], choices.tasks, limit=choices.limit)
    suite = Suite(
        open_model(),
        tasks,
        name,
        choices.json_file,
        prompts=_prompts(choices.prompts),
        seen=pairs_seen(Path(name)),
        command=shlex.join(["d2v", *sys.argv[1:]]),
    )
    to_do = suite.open_tasks()
    if done := len(tasks) - len(to_do):
        say(f"{done} of {len(tasks)} tasks are finished in {choices.json_file}")
    if to_do:
        say(_sentence(suite.estimate(), len(to_do)))
    document = _watched(suite)
    _show(document, [task.name for task in tasks], repr(suite.encoder))


def pairs_seen(folder: Path) -> Any:
    """Hashes of the pairs that a saved encoder was trained on, if it says so."""
    from decoder2vec.text.overlap import SEEN_FILE

    if not (folder / SEEN_FILE).is_file():
        return None
    import numpy as np

    try:
        return np.load(folder / SEEN_FILE, allow_pickle=False)
    except (ValueError, EOFError):
        say(f"{folder / SEEN_FILE} cannot be read; whether the encoder was trained on these pairs is not known")
        return None


def _watched(suite: Suite) -> dict[str, Any]:
    with bars() as progress:
        bar = progress.add_task("texts", total=suite.work)

        def finished(name: str, result: dict[str, Any]) -> None:
            progress.console.print(f"{name}: {result['metric']} {result['score']:.2f}", markup=False, highlight=False)

        return suite.run(lambda count: progress.advance(bar, count), finished)


def _prompts(pairs: Sequence[str]) -> dict[str, str]:
    from decoder2vec.errors import InputError

    for pair in pairs:
        if "=" not in pair:
            raise InputError(f"--prompt takes NAME=TEXT, such as query='Find: ', not {pair!r}.")
    return dict(pair.split("=", 1) for pair in pairs)


def _sentence(estimate: Estimate, tasks: int) -> str:
    """How much there is to do."""
    cached = f", of which {estimate.cached:,} are in the cache" if estimate.cached else ""
    counted = math.isfinite(estimate.tokens) and estimate.tokens > 0
    tokens = f" of about {estimate.tokens:,.0f} tokens at {estimate.tokens_per_second:,.0f} tokens/s" if counted else ""
    minutes = estimate.seconds / 60
    wait = f"about {minutes:.0f} minutes" if minutes >= 1.5 else f"about {estimate.seconds:.0f} seconds"
    return f"{tasks} tasks, {estimate.texts:,} different texts{cached}; {wait} of encoding{tokens}"


def _show(document: dict[str, Any], names: Sequence[str], title: str) -> None:
    rows = []
    for name in names:
        result = document["tasks"][name]
        low, high = result["interval"]
        headline = (result["metric"], f"{result['score']:.2f}", f"{low:.1f}-{high:.1f}")
        rows.append((name, result["kind"].replace("_", " "), *headline, f"{result['seconds']:.1f}"))
    for kind, mean in document["summary"].items():
        what = "mean of four families" if kind == "average" else f"mean {kind.replace('_', ' ')}"
        rows.append((what, "", "", f"{mean:.2f}", "", ""))
    table(("task", "kind", "measure", "score", "95 %", "seconds"), rows, title)
    for name in names:
        for flag in document["tasks"][name].get("flags", []):
            say(f"{name}: {flag}")
