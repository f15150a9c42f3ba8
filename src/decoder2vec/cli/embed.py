"""`d2v embed`: encode texts from files or stdin to a file of vectors, or whole data sets to a folder of parts."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from decoder2vec.cli.options import (
    AttentionOption,
    Device,
    Dtype,
    EncoderOption,
    Exact,
    Layer,
    PoolingOption,
    TemplateOption,
    open_encoder,
    refuse_given,
)
from decoder2vec.cli.output import info, show_progress
from decoder2vec.config import DEFAULT_ENCODER
from decoder2vec.errors import InputError, StorageError
from decoder2vec.storage import check_output_file

if TYPE_CHECKING:
    from decoder2vec.encoder import Encoder

_FOLDER = "Into a folder"
_OF_VERIFY = {"verify", "encoder", "layer", "pooling", "template", "attention", "exact", "device", "dtype"}
"""Parameters that --verify takes."""

Sources = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="FILE...",
        help="txt, jsonl, csv or tsv file; - for stdin. Into a folder also Parquet, Lance, folders, patterns and URLs.",
    ),
]
IdColumn = Annotated[str | None, typer.Option(help="Column that names a row; by default id.", rich_help_panel=_FOLDER)]
Precision = Annotated[
    str | None, typer.Option(help="float32 (the default), float16, int8 or binary.", rich_help_panel=_FOLDER)
]
Dimensions = Annotated[int | None, typer.Option(help="Keep only the first dimensions.", rich_help_panel=_FOLDER)]
RowsPerPart = Annotated[int | None, typer.Option(help="Rows of one file; by default 10,000.", rich_help_panel=_FOLDER)]
OnError = Annotated[
    str | None,
    typer.Option(help="stop (the default) or skip, for rows that cannot be embedded.", rich_help_panel=_FOLDER),
]
Engine = Annotated[
    str | None,
    typer.Option(help="local (this process, the default) or ray (a cluster, or all cores).", rich_help_panel=_FOLDER),
]
Workers = Annotated[int | None, typer.Option(help="Processes of the engine ray.", rich_help_panel=_FOLDER)]
Tokenisers = Annotated[
    int | None,
    typer.Option(
        help="Processes of the engine ray that tokenise, at most one per worker; by default one per GPU.",
        rich_help_panel=_FOLDER,
    ),
]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Say rows, tokens and time; write nothing.", rich_help_panel=_FOLDER)
]
PricePerHour = Annotated[
    float | None, typer.Option(help="Of one worker; then the cost is shown, too.", rich_help_panel=_FOLDER)
]
PromptName = Annotated[
    str | None,
    typer.Option(help="The encoder's prompt before every text, such as document.", rich_help_panel=_FOLDER),
]
Lance = Annotated[
    bool, typer.Option("--lance", help="Also write all rows as one table of Lance.", rich_help_panel=_FOLDER)
]
Verify = Annotated[
    str | None,
    typer.Option(metavar="FOLDER", help="Prove that a folder has every row once, and stop.", rich_help_panel=_FOLDER),
]


def embed(
    context: typer.Context,
    sources: Sources = None,
    out: Annotated[
        str | None, typer.Option(help="Output file (.npy, .jsonl or .parquet), or a folder or URL for parts.")
    ] = None,
    column: Annotated[str | None, typer.Option(help="Column or field that holds the text.")] = None,
    encoder: EncoderOption = DEFAULT_ENCODER,
    layer: Layer = None,
    pooling: PoolingOption = None,
    template: TemplateOption = None,
    attention: AttentionOption = None,
    normalize: Annotated[bool, typer.Option("--normalize", help="Scale every vector to length 1.")] = False,
    exact: Exact = False,
    device: Device = None,
    dtype: Dtype = None,
    id_column: IdColumn = None,
    precision: Precision = None,
    dimensions: Dimensions = None,
    rows_per_part: RowsPerPart = None,
    on_error: OnError = None,
    prompt_name: PromptName = None,
    engine: Engine = None,
    workers: Workers = None,
    tokenisers: Tokenisers = None,
    dry_run: DryRun = False,
    price_per_hour: PricePerHour = None,
    lance: Lance = False,
    verify: Verify = None,
) -> None:
    """Encode texts into a file, or whole data sets into a folder; the same command resumes an interrupted run."""
    choices = {"layer": layer, "pooling": pooling, "template": template, "attention": attention}

    def load() -> Encoder:
        return open_encoder(encoder, device, dtype, exact=exact, **choices)

    if verify is not None:
        refuse_given(context, [*context.params.keys() - _OF_VERIFY], "a run that embeds")
        _verify(verify, load)
        return
    if not sources or out is None:
        raise InputError("Give the files to embed, and --out for the result.")
    for_vectors = {"precision": precision, "dimensions": dimensions}
    for_rows = {
        "id_column": id_column,
        "rows_per_part": rows_per_part,
        "on_error": on_error,
        "prompt_name": prompt_name,
    }
    for_engine = {
        "engine": engine,
        "workers": workers,
        "tokenisers": tokenisers,
        "price_per_hour": price_per_hour,
        "lance": lance or None,
    }
    if Path(out).suffix:
        folder_options = for_vectors | for_rows | for_engine | {"dry_run": dry_run or None}
        used = [f"--{name.replace('_', '-')}" for name, value in folder_options.items() if value is not None]
        if used or len(sources) > 1:
            what = used[0] if used else "more than one file"
            raise InputError(f"{out} is a single file; {what} needs a folder, a name without a suffix.")
        if Path(sources[0]).suffix in (".parquet", ".lance"):
            raise InputError(f"{sources[0]} has rows, not lines; give --out a folder, a name without a suffix.")
        _embed_file(sources[0], Path(out), column, load, normalize=normalize)
        return
    if used := list(_without_none(choices | {"exact": exact or None})):
        raise InputError(f"--{used[0]} is for single files; save such an encoder, and name it with --encoder.")
    from decoder2vec.bulk.plan import VectorFormat

    options = _without_none(for_rows) | {
        "text_column": column,
        "vectors": VectorFormat(**_without_none(for_vectors), normalize=normalize),
    }
    if dry_run:
        _estimate(sources, out, load, options, 1 if workers is None else workers, price_per_hour)
    else:
        _embed_folder(sources, out, encoder, options | _without_none(for_engine) | {"device": device, "dtype": dtype})


def _without_none(options: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}


def _embed_folder(sources: list[str], out: str, encoder: str, options: dict[str, Any]) -> None:
    with show_progress(keeps_work=True) as progress:
        from decoder2vec.bulk.dataset import embed_dataset

        progress.expect("loading the model")
        progress.expect("reading")
        result = embed_dataset(encoder, sources, out, **options)
    if result.n_empty:
        info(f"warning: {result.n_empty:,} texts are empty; their vectors say nothing")
    if result.n_cut:
        info(f"warning: {result.n_cut:,} texts are longer than the encoder reads; they were cut")
    skipped = f"; {result.n_skipped:,} were skipped, see skipped-*.jsonl" if result.n_skipped else ""
    info(
        f"{result.folder} has {result.n_rows - result.n_skipped:,} vectors of {result.n_rows:,} rows in "
        f"{result.n_parts:,} part{'s' * (result.n_parts != 1)}, {result.n_computed:,} computed now{skipped}"
    )


def _estimate(
    sources: list[str],
    out: str,
    load: Callable[[], Encoder],
    options: dict[str, Any],
    workers: int,
    price: float | None,
) -> None:
    """Print what a run would take."""
    with show_progress() as progress:
        from decoder2vec.bulk.dataset import estimate, make_plan
        from decoder2vec.bulk.files import find_files
        from decoder2vec.bulk.output import OutputFolder

        progress.expect("loading the model")
        progress.expect("reading")
        find_files(sources)  # missing ones are refused before the model is loaded
        model = load()
        plan = make_plan(model, sources, **options)
        guess = estimate(plan, model, OutputFolder(out), workers=workers, price_per_hour=price)
    cost = "" if guess.cost is None else f", cost {guess.cost:,.2f}"
    info(
        f"{guess.n_rows:,} rows, about {guess.n_tokens:,} tokens: {_duration(guess.seconds)} with "
        f"{workers} worker{'s' * (workers > 1)} as fast as this process{cost}"
    )


def _verify(folder: str, load: Callable[[], Encoder]) -> None:
    """Print what is wrong with a folder of parts, or that nothing is."""
    with show_progress() as progress:
        from decoder2vec.bulk.embedded import EmbeddedDataset
        from decoder2vec.bulk.verify import verify_dataset

        progress.expect("loading the model")
        progress.expect("reading")
        EmbeddedDataset(folder)  # refuses other folders before the model is loaded
        result = verify_dataset(folder, load())
    for problem in result.problems:
        typer.echo(problem)
    if result.problems:
        raise StorageError(f"{folder} is incomplete or wrong; problems: {len(result.problems)}.")
    info(
        f"{folder} is complete: {result.n_vectors:,} vectors of {result.n_rows:,} rows, each once; "
        f"{result.n_sampled} were computed again and are equal"
    )


def _duration(seconds: float) -> str:
    """Seconds in words: 40 s, 12 min, 3.5 h."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def _embed_file(source: str, out: Path, column: str | None, load: Callable[[], Encoder], *, normalize: bool) -> None:
    check_output_file(out, sources=[source])
    with show_progress(keeps_work=True) as progress:
        from decoder2vec.bulk.one_file import embed_texts, get_writer
        from decoder2vec.text.files import naming_lines, read_texts

        get_writer(out)  # an unknown suffix is refused before the work
        with progress.phase("reading"):  # a file is read twice, so that the time left is known; a pipe cannot be
            n_texts = None if _is_stream(source) else _count_texts(source, read_texts(source, column))
        progress.expect("loading the model")
        progress.expect("encoding", n_texts)
        progress.expect("saving")
        model = load()
        with naming_lines(source):
            count = embed_texts(model, read_texts(source, column), out, normalize=normalize, n_texts=n_texts)
    info(f"wrote {count} vectors of dimension {model.dim} to {out}")


def _is_stream(source: str) -> bool:
    """Whether a source can be read only once: standard input, a pipe or a device."""
    path = Path(source)
    return source == "-" or (path.exists() and not (path.is_file() or path.is_dir()))


def _count_texts(source: str, texts: Iterable[str]) -> int:
    """The number of texts of a file; warns of empty ones, which keep their rows."""
    count = n_empty = 0
    for text in texts:
        count += 1
        n_empty += not text.strip()
    if not count:
        info(f"warning: {source} holds no text")
    elif n_empty:
        info(f"warning: {n_empty:,} of {count:,} texts are empty; their vectors say nothing")
    return count
