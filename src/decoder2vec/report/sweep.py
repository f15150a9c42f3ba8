"""`sweep`: find the best way to read a model, and write the winner, its scores and a figure, as `d2v sweep` does."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from decoder2vec.analysis.selection import FEW_PAIRS
from decoder2vec.analysis.sweep import Fill, Sweep, SweepPlan, reroutings_to_try, run_sweep
from decoder2vec.backbone.backbone import Backbone
from decoder2vec.bulk.ray_encoder import ENGINES
from decoder2vec.config import DEFAULT_MAX_LENGTH, as_tuple
from decoder2vec.encoder import Encoder
from decoder2vec.encoder_folder import check_output_folder
from decoder2vec.errors import DataFileError, InputError, unknown_name
from decoder2vec.evaluation.similarity import evaluate_sts, load_pairs
from decoder2vec.progress import current_progress, in_phase
from decoder2vec.report.sweep_figures import draw_sweep
from decoder2vec.storage import atomic_file, check_writable, read_json, versions
from decoder2vec.text.files import PAIR_COLUMNS, ScoredPairs

_DOCUMENT, _FIGURE, _ENCODER = "sweep.json", "sweep.png", "encoder"
_FILES = {_DOCUMENT, _FIGURE, _ENCODER, "report"}
"""What a folder of a sweep holds; `d2v report` adds the last."""


def sweep(
    model: str | Path,
    data: str | Path | ScoredPairs,
    *,
    out: str | Path | None = None,
    test: str | Path | ScoredPairs | None = None,
    templates: str | Sequence[str] | None = None,
    poolings: str | Sequence[str] | None = None,
    attentions: str | Sequence[str] | None = None,
    reroute: str | Sequence[str] = (),
    heads: str | Sequence[str] | None = None,
    layers: int | Sequence[int] | None = None,
    quick: bool | None = None,
    max_length: int = DEFAULT_MAX_LENGTH,
    columns: Sequence[str] = PAIR_COLUMNS,
    limit: int | None = None,
    skip_bad: bool = False,
    device: str | None = None,
    dtype: str | None = None,
    engine: str = "local",
    workers: int | None = None,
    notify: Callable[[str], None] = lambda _: None,
) -> Sweep:
    """Score every combination of layer, pooling, template, attention and head of a model on scored pairs.

    Example:
        >>> import decoder2vec as d2v
        >>> left, right = ["A cat sleeps.", "It rains.", "A dog runs."], ["A cat naps.", "Bread is warm.", "A dog."]
        >>> pairs = d2v.ScoredPairs("mine", left, right, [5.0, 0.5, 3.0])
        >>> result = d2v.sweep("tiny-llama", pairs, templates=["plain"], poolings=["mean"], attentions=["causal"])
        >>> len(result.rows), result.winner.pooling, result.encoder().dim
        (12, 'mean', 32)

    Args:
        model: Built-in name, model folder, .gguf file or hub id.
        data: Scored pairs to choose on: a .tsv, .csv or .jsonl file, stsb:dev, or `ScoredPairs`.
        out: Folder for sweep.json, sweep.png and the winning encoder; new, empty, or of a sweep, which is replaced.
        test: Scored pairs on which the winner alone is scored, once; the result is in `Sweep.test`.
        templates: Names of templates or strings with {text}; by default plain, prompteol, prompteol_tight and echo.
        poolings: Poolings; by default all.
        attentions: causal, bidirectional or both, which is the default (causal in the quick set). One that the model
            lacks is skipped. Empty: those of `reroute` alone.
        reroute: Ways to let early tokens see the end of a text under causal attention, tried in a few ranges of layers:
            prepend (token prepending) and kv (the last token's key and value in front); prepend:2-8 tries one range.
        heads: none, standardise, whiten or remove_top; by default the first two.
        layers: Layers, negative ones counted from the top; by default all.
        quick: Try few variants of what is not named; by default if nothing is, and there are fewer than 200 pairs.
        max_length: Longest text in tokens.
        columns: Columns of the two texts and the score in files.
        limit: Use at most this many pairs of a `data` file, evenly spaced.
        skip_bad: Skip lines of a file that cannot be used, instead of raising an error.
        device: cuda, mps or cpu; by default the best one available.
        dtype: Dtype such as "float32" or "bfloat16"; by default the one that suits the device.
        engine: local (this process) or ray (the nodes of a Ray cluster, or the cores of this machine).
        workers: Processes of the engine ray; by default one for each GPU, or for each core.
        notify: Called with one-line messages: skipped lines, skipped attentions, a choice that is largely luck.

    Returns:
        All rows, best first. `encoder()` makes the winner an encoder.

    Raises:
        InputError: `out` holds something else than a sweep.
    """
    _check_options(engine, out)
    pairs = _load_scored(data, columns, skip_bad=skip_bad, limit=limit)
    test_pairs = None if test is None else _load_scored(test, columns, skip_bad=skip_bad)
    if pairs.skipped:
        notify(f"{pairs.skipped} lines of {data} were left out")
    _expect_phases(test_pairs, saved=out is not None)
    backbone = Backbone.load(model, device=device, dtype=dtype, notify=notify)
    named = {"templates": templates, "poolings": poolings, "attentions": attentions, "heads": heads, "layers": layers}
    plan = _plan(len(pairs), quick, named, reroutings_to_try(as_tuple(reroute), backbone.n_layers), notify)
    fill = _open_on_ray(model, backbone, workers, device) if engine == "ray" else None
    result = run_sweep(str(model), pairs, replace(plan, max_length=max_length), backbone=backbone, fill=fill)
    _notify_of(result, notify)
    if out is not None:
        write_sweep(result, Path(out), test_pairs)
    elif test_pairs:
        result.test = _score_test(result.encoder(), test_pairs)
    return result


def _check_options(engine: str, out: str | Path | None) -> None:
    """Refuse an engine or a folder before anything is loaded."""
    if engine not in ENGINES:
        raise unknown_name("engine", engine, ENGINES)
    if out is not None:
        check_sweep_folder(Path(out))


def _open_on_ray(model: str | Path, backbone: Backbone, workers: int | None, device: str | None) -> Fill:
    from decoder2vec.bulk.ray_latents import RayLatents

    return RayLatents(model, backbone, workers, device)


def _notify_of(result: Sweep, notify: Callable[[str], None]) -> None:
    """Say what was left out, and whether the choice is largely luck."""
    for reason in result.skipped:
        notify(f"left out: {reason}")
    if result.selection and (warning := result.selection.warning()):
        notify(warning)


def _load_scored(source: str | Path | ScoredPairs, columns: Sequence[str], **options: Any) -> ScoredPairs:
    """The pairs themselves or those of a file; raises if their scores allow no correlation."""
    pairs = source if isinstance(source, ScoredPairs) else load_pairs(source, columns, **options)
    pairs.check_scores()
    return pairs


def _expect_phases(test_pairs: ScoredPairs | None, *, saved: bool) -> None:
    """Announce the phases before and after those of the sweep itself."""
    progress = current_progress()
    progress.expect("loading the model")
    if test_pairs:
        progress.expect("final checks", len(test_pairs.texts()), kind="encoding")
    if saved:
        progress.expect("saving")


def _plan(
    n_pairs: int,
    quick: bool | None,
    named: Mapping[str, Any],
    rerouted: Sequence[str],
    notify: Callable[[str], None],
) -> SweepPlan:
    """What to try: what was named, re-routed attentions, and for the rest all readings or the quick set."""
    if quick is None:
        quick = n_pairs < FEW_PAIRS and not rerouted and all(values is None for values in named.values())
        if quick:
            all_readings = "--full, or quick=False in Python, tries all"
            notify(f"{n_pairs} pairs can decide between few readings: trying the quick set ({all_readings})")
    defaults = SweepPlan.quick() if quick else SweepPlan()
    chosen: dict[str, Any] = {name: as_tuple(values) for name, values in named.items() if values is not None}
    plan = replace(defaults, **chosen)
    return replace(plan, attentions=(*plan.attentions, *rerouted))


def check_sweep_folder(out: Path) -> None:
    """Raise an error unless a folder is new, empty, or holds a sweep and nothing else, which will be replaced."""
    names = {path.name for path in out.iterdir()} if out.is_dir() else set()
    if names and not _is_sweep(out / _DOCUMENT):
        raise InputError(f"{out} is not empty and holds no sweep; choose another folder.")
    if other := sorted(names - _FILES):
        raise InputError(f"{out} holds {other[0]}, which is no part of a sweep; choose another folder.")
    if out.exists() and not out.is_dir():
        raise InputError(f"{out} is a file; choose a folder.")
    check_output_folder(out / _ENCODER)
    check_writable(out / _DOCUMENT)


def _is_sweep(file: Path) -> bool:
    try:
        document = read_json(file, "sweep again")
    except DataFileError:
        return False
    return isinstance(document, dict) and {"winner", "rows"} <= document.keys()


def write_sweep(result: Sweep, out: Path, test: ScoredPairs | None = None) -> dict[str, Any]:
    """Write the winning encoder, sweep.json and sweep.png.

    Args:
        result: A sweep.
        out: Folder to write to.
        test: Pairs on which the winner is scored, once; the result is also set as `result.test`.

    Returns:
        The content of sweep.json without its rows.
    """
    out.mkdir(parents=True, exist_ok=True)
    encoder = result.encoder()
    result.test = _score_test(encoder, test) if test else None
    with current_progress().phase("saving"):
        return _write_files(result, encoder, out)


@in_phase("final checks")
def _score_test(encoder: Encoder, pairs: ScoredPairs) -> dict[str, Any]:
    return evaluate_sts(encoder, pairs)


def _write_files(result: Sweep, encoder: Encoder, out: Path) -> dict[str, Any]:
    encoder.save(out / _ENCODER)
    document = result.to_json()
    rows = ",\n  ".join(json.dumps(row) for row in document.pop("rows"))
    document |= {"encoder": encoder.fingerprint, "test": result.test}
    text = json.dumps({**document, "versions": versions()}, indent=1)
    with atomic_file(out / _DOCUMENT) as temporary:
        temporary.write_text(f'{text[:-2]},\n "rows": [\n  {rows}\n ]\n}}\n', encoding="utf-8")
    draw_sweep(result, out / _FIGURE, result.test)
    return document
