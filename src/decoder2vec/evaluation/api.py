"""`evaluate`: score an encoder on a folder of tasks or on files of scored pairs, as `d2v eval` does."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tqdm.auto import tqdm

from decoder2vec.bulk.ray_encoder import ENGINES, RayEncoder
from decoder2vec.encoder import Encoder
from decoder2vec.encoder_folder import encoder_path
from decoder2vec.errors import EncoderError, InputError, unknown_name
from decoder2vec.evaluation.baselines import load_encoder
from decoder2vec.evaluation.similarity import SupportsEncode, evaluate_sts, load_pairs
from decoder2vec.evaluation.suite import Document, Estimate, Suite, check_prompt_names, encoder_fingerprint
from decoder2vec.evaluation.tasks.layout import KINDS, find_tasks
from decoder2vec.progress import current_progress
from decoder2vec.storage import check_output_file, versions, write_json
from decoder2vec.text.data_check import TRAINING_PAIRS_FILE, TRAINING_TEXTS_FILE, PairHashes, count_overlap, read_hashes
from decoder2vec.text.files import PAIR_COLUMNS, ScoredPairs, naming_lines

Source = str | Path | ScoredPairs
Notify = Callable[[str], object]


def evaluate(
    encoder: SupportsEncode | str | Path,
    data: Source | Sequence[Source],
    *,
    tasks: str | Sequence[str] | None = None,
    prompts: Mapping[str, str] | None = None,
    json_file: str | Path | None = None,
    limit: int | None = None,
    columns: Sequence[str] = PAIR_COLUMNS,
    skip_bad: bool = False,
    name: str | None = None,
    device: str | None = None,
    engine: str = "local",
    workers: int | None = None,
    show_progress_bar: bool = False,
    notify: Notify = lambda _: None,
    command: str = "",
    **choices: Any,
) -> Document:
    """Score an encoder on a folder of tasks, or on scored pairs.

    Example:
        >>> import decoder2vec as d2v
        >>> left, right = ["A cat sleeps.", "It rains.", "A dog runs."], ["A cat naps.", "Bread is warm.", "A dog."]
        >>> document = d2v.evaluate("tiny-llama", d2v.ScoredPairs("mine", left, right, [5.0, 0.5, 3.0]), layer=2)
        >>> document["encoder"], document["results"][0]["pairs"], -100 <= document["mean_spearman"] <= 100
        ('tiny-llama', 3, True)

    Args:
        encoder: Anything with `encode`, or a name for `load_encoder`: a saved encoder folder, a model, a baseline.
        data: A folder of tasks (see `evaluation.tasks.layout`), or scored pairs: files, stsb:dev or `ScoredPairs`.
        tasks: Tasks of the folder: "all" (the default), or names and kinds, as a list or separated by commas.
        prompts: Prompts by task, kind or role ("query", "document"), which override those of the encoder. Tasks only.
        json_file: Write the results here. For tasks it is written after every task, and a second call continues.
        limit: Use at most this many pairs, texts or queries of each task or file of pairs, evenly spaced.
        columns: Columns of the two texts and the score in files of pairs.
        skip_bad: Skip lines of such a file that cannot be used, instead of raising an error.
        name: Name of the encoder in the results; by default the name it was loaded by, or its class.
        device: cuda, mps or cpu, for an encoder given by name.
        engine: local (this process) or ray (the nodes of a Ray cluster, or the cores of this machine), for an encoder
            given by name.
        workers: Processes of the engine ray; by default one for each GPU, or for each core.
        show_progress_bar: Show a progress bar on stderr.
        notify: Called with one-line messages: the estimated time, skipped lines, overlap with training data.
        command: Command line to record in the results of tasks.
        choices: layer, pooling, template or attention of a model given by name; dtype of a model or saved encoder.

    Returns:
        For tasks {"encoder", "tasks", "summary", "cost", "versions", "command"}; for pairs {"encoder", "fingerprint",
        "results", "mean_spearman", "versions"}, with "spec" and speed if it is an `Encoder`. Scores are in points.
    """
    sources = [data] if isinstance(data, str | Path | ScoredPairs) else list(data)
    paths = [Path(source) for source in sources if not isinstance(source, ScoredPairs)]
    target = Path(json_file) if json_file is not None else None
    check_output_file(target, ".json", sources=paths)
    if isinstance(encoder, str | Path):
        name = name or str(encoder)
        training_pairs, training_texts = (
            _load_hashes(encoder_path(encoder) / file, notify) for file in (TRAINING_PAIRS_FILE, TRAINING_TEXTS_FILE)
        )
    else:
        name, training_pairs, training_texts = name or type(encoder).__name__, None, None
    if tasks is not None or any(path.is_dir() for path in paths):
        if len(sources) != 1 or not paths:
            raise InputError("Tasks are read from one folder: give one folder as data.")
        names = [part.strip() for part in tasks.split(",") if part.strip()] if isinstance(tasks, str) else tasks
        chosen = find_tasks(paths[0], names or ("all",), limit=limit)
        check_prompt_names(prompts or {}, chosen)
        loaded = _load(encoder, device, choices, engine, workers)
        suite = Suite(loaded, chosen, name, target, prompts or {}, training_pairs, command, training_texts)
        return _run_suite(suite, show_progress_bar, notify)
    if prompts:
        raise InputError("Prompts are for a folder of tasks, and files of pairs are read without; leave them out.")
    pairs = [_load_pairs(source, notify, columns, skip_bad=skip_bad, limit=limit) for source in sources]
    _warn_of_overlap(pairs, training_pairs, notify)
    with naming_lines(*paths):
        document = _evaluate_pairs(_load(encoder, device, choices, engine, workers), name, pairs, show_progress_bar)
    if target:
        write_json(target, document)
    return document


def instruction_prompts(instruction: str) -> dict[str, str]:
    """Prompts for `evaluate` that put an instruction before every text but documents, which usually have none."""
    return {f"{kind}-query" if kind in ("retrieval", "reranking") else kind: instruction for kind in KINDS}


def _load(
    encoder: SupportsEncode | str | Path,
    device: str | None,
    choices: Mapping[str, Any],
    engine: str,
    workers: int | None,
) -> Any:
    """The encoder itself, or the one of that name."""
    if engine not in ENGINES:
        raise unknown_name("engine", engine, ENGINES)
    if isinstance(encoder, str | Path):
        if engine == "ray":
            return RayEncoder.from_name(encoder, workers=workers, device=device, **choices)
        return load_encoder(encoder, device=device, **choices)
    if engine != "local":
        raise InputError("The workers of Ray load the encoder themselves; give its name or folder.")
    if device is not None or any(value is not None for value in choices.values()):
        raise InputError("device, layer and so on are for an encoder given by name; leave them out for an object.")
    return encoder


def _run_suite(suite: Suite, show_progress_bar: bool, notify: Notify) -> Document:
    unfinished = suite.unfinished_tasks()
    if finished := len(suite.tasks) - len(unfinished):
        notify(f"{finished} of {len(suite.tasks)} tasks are finished in {suite.json_file}")
    if unfinished:
        notify(_format_estimate(suite.estimate(), len(unfinished)))
    evaluating = current_progress().phase("evaluating", suite.text_count)
    with evaluating, tqdm(total=suite.text_count, desc="Texts", disable=not show_progress_bar) as bar:

        def on_result(name: str, result: Document) -> None:
            bar.clear()
            notify(f"{name}: {result['metric']} {result['score']:.2f}")
            bar.refresh()

        return suite.run(bar.update, on_result)


def _evaluate_pairs(encoder: Any, name: str, files: list[ScoredPairs], show_progress_bar: bool) -> Document:
    options = {"show_progress_bar": True} if show_progress_bar else {}  # not every encode has this option
    with current_progress().phase("evaluating", sum(len(pairs.texts()) for pairs in files)):
        results = [evaluate_sts(encoder, pairs, **options) for pairs in files]
    mean = sum(result["spearman"] for result in results) / len(results)
    document: Document = {"encoder": name, "fingerprint": encoder_fingerprint(encoder)}
    if isinstance(encoder, Encoder):
        speed = round(encoder.stats.tokens_per_second, 1)
        document |= {"spec": encoder.spec.to_json(), "tokens": encoder.stats.tokens, "tokens_per_second": speed}
    return document | {"results": results, "mean_spearman": round(mean, 2), "versions": versions()}


def _load_pairs(source: Source, notify: Notify, columns: Sequence[str], **options: Any) -> ScoredPairs:
    if isinstance(source, ScoredPairs):
        return source
    pairs = load_pairs(source, columns, **options)
    if pairs.skipped:
        notify(f"{pairs.skipped} lines of {source} were left out")
    return pairs


def _load_hashes(file: Path, notify: Notify) -> PairHashes | None:
    """Hashes of the pairs or texts that a saved encoder was trained on, if its folder has them."""
    try:
        return read_hashes(file)
    except EncoderError:
        notify(f"{file} cannot be read; whether the encoder was trained on these data is not known")
        return None


def _warn_of_overlap(files: list[ScoredPairs], training_pairs: PairHashes | None, notify: Notify) -> None:
    """Report how many pairs of each file the encoder was trained on."""
    if training_pairs is None:
        return
    for pairs in files:
        if count := count_overlap(pairs.left, pairs.right, training_pairs):
            notify(
                f"warning: this encoder was trained on {count} of the {len(pairs)} pairs of {pairs.name}; "
                "its score there does not show how it does on new texts"
            )


def _format_estimate(estimate: Estimate, tasks: int) -> str:
    cached = f", of which {estimate.cached:,} are in the cache" if estimate.cached else ""
    counted = math.isfinite(estimate.tokens) and estimate.tokens > 0
    tokens = f" of about {estimate.tokens:,.0f} tokens at {estimate.tokens_per_second:,.0f} tokens/s" if counted else ""
    minutes = estimate.seconds / 60
    duration = f"about {minutes:.0f} minutes" if minutes >= 1.5 else f"about {estimate.seconds:.0f} seconds"
    return f"{tasks} tasks, {estimate.texts:,} unique texts{cached}; {duration} of encoding{tokens}"
