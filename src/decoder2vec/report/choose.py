"""`choose`: find the models, adapters and layers that should feed a task, and write the result and a figure."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from decoder2vec.choosing.aggregators import AGGREGATORS
from decoder2vec.choosing.probe import ProbeConfig
from decoder2vec.choosing.search import Choice, expect_search, search
from decoder2vec.choosing.sources import Source, SourceLike, load_source, name_sources, read_source
from decoder2vec.choosing.tasks import TargetTask, read_task
from decoder2vec.errors import InputError
from decoder2vec.progress import current_progress
from decoder2vec.report.choose_figures import draw_choice
from decoder2vec.storage import atomic_file, check_writable, versions

_DOCUMENT, _FIGURE = "choose.json", "choose.png"
_LAYERS_EXPECTED = 31
"""Layers of a source before it is loaded, for the progress."""


def choose(
    sources: Mapping[str, SourceLike] | Sequence[SourceLike],
    data: str | Path | TargetTask,
    *,
    valid: str | Path | None = None,
    test: str | Path | None = None,
    out: str | Path | None = None,
    quick: bool = False,
    layers: Sequence[int] = (),
    poolings: Sequence[str] = (),
    aggregators: Sequence[str] = AGGREGATORS,
    target: SourceLike | None = None,
    align_words: bool = False,
    config: ProbeConfig | None = None,
    limit: int | None = None,
    device: str | None = None,
    dtype: str | None = None,
    command: str = "",
    notify: Callable[[str], None] = lambda _: None,
) -> Choice:
    """Find which frozen models, adapters and layers should feed a task, alone or combined (reverse probing).

    Every source is read once, at all layers. Only a head, and an aggregator of several sources, are trained. Layers and
    combinations are chosen on validation data; test scores are reported. Controls are always trained: the base alone,
    the base with a linear layer of as many parameters as attention has, copies of the base, shuffled labels.

    Example:
        >>> import decoder2vec as d2v
        >>> words = [("cat", "animal"), ("dog", "animal"), ("bread", "food"), ("soup", "food")]
        >>> rows = [d2v.Example((d2v.TextSpan(f"{n}: {word}"),), label) for n in range(20) for word, label in words]
        >>> task = d2v.TargetTask.of("toy", "classification", rows)
        >>> result = d2v.choose({"base": "tiny-llama"}, task, quick=True)
        >>> len(result.layers), result.sources
        (5, ['base'])

    Args:
        sources: Models, saved encoders or `Encoder`s of one tokenizer, by name, or a list in which a string may be
            NAME=SOURCE; `enc#nli` is an adapter of an encoder and `model#bidirectional` a model with this attention.
            The first is the base.
        data: The task: a file with training examples (see `read_task`), or a `TargetTask`.
        valid: File to choose layers and combinations on; by default a fifth of the training texts.
        test: File to report on; by default a fifth of the training texts.
        out: Folder for choose.json and choose.png.
        quick: Rank layers by LogME, without training.
        layers: Layers to try; by default all. Negative ones count from the top.
        poolings: Poolings to try; by default that of each source, for spans one that suits the task.
        aggregators: mean, sum, attention, concat; by default all.
        target: A model that was trained for the task: cosines of the sources with it are reported.
        align_words: Allow different tokenizers: vectors of the same text, word or span are combined, with any tokens.
        config: How probes are trained; three seeds by default.
        limit: Use at most this many texts of each file, evenly spaced.
        device: cuda, mps or cpu; by default the best one available.
        dtype: Dtype of the weights; by default the one that suits the device.
        command: Written to choose.json.
        notify: Called with one-line messages.

    Raises:
        InputError: The tokens of two sources do not line up, or the data cannot be used.
    """
    named = name_sources(sources)
    folder = None if out is None else _check_folder(Path(out))
    if isinstance(data, TargetTask) and (valid or test or limit):
        raise InputError("A TargetTask has its own splits; leave out valid, test and limit.")
    task = data if isinstance(data, TargetTask) else read_task(data, valid, test, limit=limit)
    config = config or ProbeConfig()
    n_seeds, n_layers = 0 if quick else len(config.seeds), len(layers) * max(1, len(poolings))
    _expect_phases(named, task, n_seeds, n_layers, len(aggregators))
    read: list[Source] = []
    for name, source in (*named.items(), *([] if target is None else [("target", target)])):
        with current_progress().stage(name):
            encoder = load_source(source, device=device, dtype=dtype)
            like = read[0] if read and not align_words else None
            read.append(read_source(name, encoder, task, poolings, layers, like=like))
            del encoder  # one model in memory at a time
    compared = None if target is None else read.pop()
    result = search(read, task, aggregators=aggregators, config=config, target=compared, quick=quick)
    if folder:
        write_choice(result, folder, command)
        notify(f"wrote {folder / _DOCUMENT} and {folder / _FIGURE}")
    return result


def _expect_phases(named: Iterable[str], task: TargetTask, n_seeds: int, n_layers: int, n_aggregators: int) -> None:
    """Announce the work of all sources and of the search; without seeds, nothing is trained."""
    progress, names = current_progress(), list(named)
    for name in names:
        progress.expect("loading the model", stage=name)
        progress.expect("encoding", task.n_texts(), stage=name)
    expect_search(len(names), n_layers or _LAYERS_EXPECTED, n_aggregators, n_seeds)


def write_choice(result: Choice, folder: Path, command: str = "") -> None:
    """Write choose.json and choose.png.

    Args:
        result: What `choose` returned.
        folder: Folder to write to.
        command: The command line, for the record.
    """
    folder.mkdir(parents=True, exist_ok=True)
    document = result.to_json()
    rows = ",\n  ".join(json.dumps(row) for row in document.pop("layers"))
    text = json.dumps({"command": command, **document, "versions": versions()}, indent=1)
    with atomic_file(folder / _DOCUMENT) as temporary:
        temporary.write_text(f'{text[:-2]},\n "layers": [\n  {rows}\n ]\n}}\n', encoding="utf-8")
    draw_choice(result, folder / _FIGURE)


def _check_folder(folder: Path) -> Path:
    """The folder; raises an error unless it is new, empty, or holds an earlier result."""
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder} is a file; choose a folder.")
    names = {path.name for path in folder.iterdir()} if folder.is_dir() else set()
    if other := sorted(names - {_DOCUMENT, _FIGURE}):
        raise InputError(f"{folder} holds {other[0]}, which is no result of choose; choose another folder.")
    check_writable(folder / _DOCUMENT)
    return folder
