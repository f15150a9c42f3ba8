"""Embed a data set into a folder of Parquet files (parts).

A killed run resumes, and every row is written exactly once.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

from decoder2vec.bulk.embedded import EmbeddedDataset, read_manifest
from decoder2vec.bulk.files import common_columns, find_files, import_pyarrow, inspect_file
from decoder2vec.bulk.lance_copy import write_lance_copy
from decoder2vec.bulk.output import OutputFolder
from decoder2vec.bulk.parts import VECTOR_COLUMN, PartEmbedder, PartResult, read_note
from decoder2vec.bulk.plan import FORMAT, MANIFEST_FILE, PLAN_FILE, PRECISIONS, EmbeddingPlan, Part, VectorFormat
from decoder2vec.bulk.ray_encoder import ENGINES
from decoder2vec.bulk.tokens import TokeniserSettings
from decoder2vec.encoder import Encoder, resolve_prompt
from decoder2vec.errors import InputError, StorageError, unknown_name
from decoder2vec.progress import current_progress

_SAMPLED_ROWS = 256
"""Rows by which the time of a run is estimated."""


@dataclass(frozen=True)
class DatasetResult:
    """What a run has written.

    Args:
        folder: The folder.
        n_rows: Rows of the input.
        n_skipped: Rows without a vector; their reasons are in the files skipped-*.jsonl.
        n_parts: Files with vectors.
        n_computed: Parts that this run computed; the others were there.
        n_tokens: Tokens that this run computed.
        n_cut: Texts that this run cut, since they are longer than the encoder reads.
        n_empty: Texts that this run found empty.
    """

    folder: str
    n_rows: int
    n_skipped: int
    n_parts: int
    n_computed: int
    n_tokens: int
    n_cut: int = 0
    n_empty: int = 0


@dataclass(frozen=True)
class Estimate:
    """What a run would take.

    Args:
        n_rows: Rows without a vector so far.
        n_tokens: Their tokens, by a sample.
        seconds: The time that the workers take, by the speed of the sample on this machine.
        cost: For all workers; None without a price.
    """

    n_rows: int
    n_tokens: int
    seconds: float
    cost: float | None


def embed_dataset(
    encoder: Encoder | str | Path,
    sources: str | Path | Sequence[str | Path],
    out: str | Path,
    *,
    text_column: str | None = None,
    id_column: str | None = None,
    vectors: VectorFormat | None = None,
    rows_per_part: int = 10_000,
    on_error: str = "stop",
    prompt_name: str | None = None,
    engine: str = "local",
    workers: int | None = None,
    tokenisers: int | None = None,
    device: str | None = None,
    dtype: str | None = None,
    price_per_hour: float | None = None,
    lance: bool = False,
) -> DatasetResult:
    """Embed the rows of files into a folder of Parquet files; the same call resumes a run that was interrupted.

    Every row keeps its columns and gets a column `embedding`.

    Args:
        encoder: The encoder, or its name; with the engine ray a name that every node can load.
        sources: Parquet, Lance, JSONL, CSV, TSV and txt files (the text ones also gzipped), folders, patterns and URLs.
        out: The folder to write, a path or URL.
        text_column: The column with the texts; `text` or `sentence` by default.
        id_column: The column that names a row; by default `id`, or file and number of the row where there is none.
        vectors: How vectors are stored; float32 by default.
        rows_per_part: Rows of a part; what a process that dies loses is at most one part.
        on_error: For rows that cannot be embedded: stop with an error, or skip them and write down why.
        prompt_name: The encoder's prompt to put in front of every text, such as document; none by default.
        engine: local (this process) or ray (the nodes of a Ray cluster, or the cores of this machine).
        workers: Processes of the engine ray; by default one for each GPU, or for each core.
        tokenisers: Further processes of the engine ray, which read and tokenise for the workers, at most one for each;
            by default one for each GPU, and none on CPUs, where every worker does it in a thread.
        device: cuda, mps or cpu; by default the best one available.
        dtype: By default the one that suits the device.
        price_per_hour: Of one worker; the progress then says what the run has cost so far.
        lance: Also write all rows as one table of Lance, `vectors.lance`, beside the parts.

    Raises:
        StorageError: The folder holds vectors of another encoder, other settings or other rows.
        DataFileError: A row cannot be embedded.
    """
    _check_engine(encoder, engine, workers, tokenisers, price_per_hour)
    output = OutputFolder(str(out))
    if lance and output.local is None:
        raise InputError(f"{out} is remote; a table of Lance can be written to a local folder only.")
    find_files(sources)  # missing ones are refused before the model is loaded
    model = encoder if isinstance(encoder, Encoder) else Encoder.from_pretrained(encoder, device=device, dtype=dtype)
    plan = make_plan(
        model,
        sources,
        text_column=text_column,
        id_column=id_column,
        vectors=vectors,
        rows_per_part=rows_per_part,
        on_error=on_error,
        prompt_name=prompt_name,
    )
    with output.lock():
        missing = missing_parts(plan, output)
        output.write_json(PLAN_FILE, plan.to_json())  # the same one, or one whose files have moved
        run: Callable[[Iterable[Part]], Iterator[PartResult]] = partial(map, PartEmbedder(plan, model, output))
        n_workers = 1
        if engine == "ray" and missing:
            from decoder2vec.bulk.ray_engine import RayEngine

            settings = TokeniserSettings.of(model, resolve_prompt(model.prompts, prompt_name, None))
            run = RayEngine(plan, str(encoder), output.url, workers, device, dtype, tokenisers, settings)
            n_workers = run.workers
        price = None if price_per_hour is None else n_workers * price_per_hour
        results = _run(run, missing, price, counts_itself=engine == "local") if missing else []
        result = _finish(plan, output, results, cuts_texts=model.spec.on_overflow == "truncate")
        if lance:
            write_lance_copy(EmbeddedDataset(out))
        return result


def _check_engine(
    encoder: Encoder | str | Path,
    engine: str,
    workers: int | None,
    tokenisers: int | None,
    price_per_hour: float | None,
) -> None:
    if engine not in ENGINES:
        raise unknown_name("engine", engine, ENGINES)
    if engine == "ray" and isinstance(encoder, Encoder):
        raise InputError("Ray's workers load the encoder themselves; give its name or folder.")
    if engine != "ray" and (workers is not None or tokenisers is not None):
        raise InputError("The engine local is this process; more workers or tokenisers need the engine ray.")
    if workers is not None and workers < 1:
        raise InputError(f"{workers} workers compute nothing; give 1 or more.")
    if (tokenisers or 0) < 0:
        raise InputError(f"{tokenisers} processes cannot tokenise; give 0 or more.")
    if (price_per_hour or 0) < 0:
        raise InputError(f"A worker cannot cost {price_per_hour}; give a price of 0 or more.")


def make_plan(
    encoder: Encoder,
    sources: str | Path | Sequence[str | Path],
    *,
    text_column: str | None = None,
    id_column: str | None = None,
    vectors: VectorFormat | None = None,
    rows_per_part: int = 10_000,
    on_error: str = "stop",
    prompt_name: str | None = None,
) -> EmbeddingPlan:
    """Read all files once, and fix which rows become which part; the arguments are those of `embed_dataset`."""
    vectors = vectors or VectorFormat()
    import_pyarrow()  # a missing package is an error before any work
    if vectors.precision not in PRECISIONS:
        raise unknown_name("precision", vectors.precision, PRECISIONS)
    if vectors.dimensions is not None and not 0 < vectors.dimensions <= encoder.dim:
        raise InputError(f"Vectors have {encoder.dim} dimensions; {vectors.dimensions} cannot be kept.")
    if rows_per_part < 1:
        raise InputError(f"A part needs 1 row or more, not {rows_per_part}.")
    if on_error not in ("stop", "skip"):
        raise unknown_name("way to handle errors", on_error, ("stop", "skip"))
    resolve_prompt(encoder.prompts, prompt_name, None)  # an unknown one is an error now
    with current_progress().phase("reading"):
        inspected = [inspect_file(path) for path in find_files(sources)]
        columns = common_columns(inspected)
    files = tuple(file for file, _ in inspected)
    if not any(file.n_rows for file in files):
        raise InputError(f"{files[0].path} holds no row.")
    text_column = text_column or next((name for name in ("text", "sentence") if name in columns), "text")
    _check_columns(columns, text_column, id_column)
    return EmbeddingPlan(
        encoder=encoder.fingerprint,
        compute=encoder.backbone.dtype_name,
        vectors=vectors,
        files=files,
        columns=columns,
        text_column=text_column,
        id_column=id_column or ("id" if "id" in columns else None),
        rows_per_part=rows_per_part,
        on_error=on_error,
        prompt_name=prompt_name,
    )


def _check_columns(columns: dict[str, str], text_column: str, id_column: str | None) -> None:
    for name in (text_column, id_column):
        if name is not None and name not in columns:
            raise InputError(f"There is no column {name!r}; there are: {', '.join(columns)}.")
    if columns[text_column] not in ("string", "large_string"):
        raise InputError(f"The column {text_column!r} holds {columns[text_column]} values, not texts.")
    if VECTOR_COLUMN in columns:
        raise InputError(f"The rows have a column {VECTOR_COLUMN!r} already; rename it.")


def missing_parts(plan: EmbeddingPlan, output: OutputFolder) -> list[Part]:
    """Return the parts that a folder lacks.

    Raises:
        StorageError: It was begun with another plan.
        InputError: It holds something else.
    """
    names = output.names()
    if PLAN_FILE in names:
        stored = EmbeddingPlan.from_json(output.read_json(PLAN_FILE), f"{output.url}/{PLAN_FILE}")
        plan.check_same(stored, output.url)
    elif names:
        raise InputError(f"{output.url} is not empty: it holds {min(names)}; choose another folder.")
    return [part for part in plan.parts() if part.name not in names or not _is_whole(part, plan, output)]


def _is_whole(part: Part, plan: EmbeddingPlan, output: OutputFolder) -> bool:
    """Whether a part that is there has a beginning and an end; an object store has no others."""
    return output.local is None or read_note(part, output) in map(part.note, plan.keys)


def estimate(
    plan: EmbeddingPlan,
    encoder: Encoder,
    output: OutputFolder,
    *,
    workers: int = 1,
    price_per_hour: float | None = None,
) -> Estimate:
    """Estimate what is left to do, by a sample that is encoded here; nothing is written.

    Args:
        plan: The plan.
        encoder: Its encoder.
        output: Where it would write.
        workers: How many processes as fast as this one would share the work.
        price_per_hour: Of one worker.
    """
    if workers < 1 or (price_per_hour or 0) < 0:
        raise InputError("Give 1 worker or more, and a price of 0 or more.")
    missing = missing_parts(plan, output)
    n_rows = sum(part.stop - part.start for part in missing)
    sampled = missing[:: max(1, len(missing) // 8)][:8]
    reader = PartEmbedder(plan, encoder, output)
    texts = [text for part in sampled for text in _sample_texts(reader, part, _SAMPLED_ROWS // max(1, len(sampled)))]
    if not texts:
        return Estimate(n_rows, 0, 0.0, None if price_per_hour is None else 0.0)
    reader.encode(texts[:8])  # the first call prepares things
    tokens_before, started = encoder.stats.tokens, time.perf_counter()
    reader.encode(texts)
    seconds = (time.perf_counter() - started) / len(texts) * n_rows / workers
    n_tokens = round((encoder.stats.tokens - tokens_before) / len(texts) * n_rows)
    cost = None if price_per_hour is None else seconds / 3600 * workers * price_per_hour
    return Estimate(n_rows, n_tokens, seconds, cost)


def _sample_texts(reader: PartEmbedder, part: Part, count: int) -> list[str]:
    table, _ = reader.read(part)
    texts = [text for text in table[reader.plan.text_column].to_pylist() if text is not None]
    return texts[:: max(1, len(texts) // count)][:count]


def _run(
    run: Callable[[Iterable[Part]], Iterator[PartResult]],
    missing: list[Part],
    price_per_hour: float | None,
    *,
    counts_itself: bool,
) -> list[PartResult]:
    """Compute the missing parts and show how far they are, and what they cost."""
    progress, results = current_progress(), list[PartResult]()
    done = n_tokens = 0
    n_rows = sum(part.stop - part.start for part in missing)
    with progress.phase("encoding", n_rows):
        started = time.monotonic()
        for result in run(missing):
            results.append(result)
            done, n_tokens = done + result.n_rows, n_tokens + result.n_tokens
            seconds = max(time.monotonic() - started, 1e-9)
            cost = "" if price_per_hour is None else f", cost {seconds / 3600 * price_per_hour:,.2f} so far"
            note = f"{done:,} of {n_rows:,} rows, {n_tokens / seconds:,.0f} tokens/s{cost}"
            progress.advance(0 if counts_itself else result.n_rows, note)
    return results


def _finish(
    plan: EmbeddingPlan, output: OutputFolder, computed: list[PartResult], *, cuts_texts: bool
) -> DatasetResult:
    """Write what every part has, for `verify_dataset`."""
    by_name = {result.name: result for result in computed}
    parts = [] if computed else read_manifest(plan, output)
    if not parts:
        results = [by_name.get(part.name) or _read_result(part, output) for part in plan.parts()]
        parts = [{key: asdict(result)[key] for key in ("name", "n_rows", "n_skipped", "sha256")} for result in results]
        output.write_json(MANIFEST_FILE, {"format": FORMAT, "plan": plan.key, "parts": parts})
    return DatasetResult(
        folder=output.url,
        n_rows=plan.n_rows,
        n_skipped=sum(part["n_skipped"] for part in parts),
        n_parts=len(parts),
        n_computed=len(computed),
        n_tokens=sum(result.n_tokens for result in computed),
        n_cut=sum(result.n_overlong for result in computed) if cuts_texts else 0,
        n_empty=sum(result.n_empty for result in computed),
    )


def _read_result(part: Part, output: OutputFolder) -> PartResult:
    """What a part that is there has.

    Raises:
        StorageError: It is not as it was written.
    """
    pyarrow, parquet = import_pyarrow()
    try:
        with output.open(part.name) as handle:
            n_vectors = parquet.ParquetFile(handle).metadata.num_rows
    except (pyarrow.ArrowException, OSError) as error:
        raise StorageError(f"{output.url}/{part.name} is damaged ({error}); delete it and run again.") from None
    n_rows = part.stop - part.start
    return PartResult(part.name, n_rows, n_rows - n_vectors, output.sha256(part.name))
