"""Options that several commands share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from decoder2vec.errors import InputError, unknown_name
from decoder2vec.package import garbage_collection_paused

if TYPE_CHECKING:
    from decoder2vec.encoder import Encoder
    from decoder2vec.search.index import Index
    from decoder2vec.search.rerank import SupportsRerank

Model = Annotated[str, typer.Argument(help="Built-in name, model folder, .gguf file or hub id.")]
EncoderArgument = Annotated[
    str, typer.Argument(help="Saved encoder folder, smollm2-135m-general, or any model (then see --layer, ...).")
]
EncoderOption = Annotated[
    str,
    typer.Option(
        "--encoder", "-e", help="Saved encoder folder, smollm2-135m-general, or any model (then see --layer, ...)."
    ),
]
Layer = Annotated[int | None, typer.Option(help="Layer to read: 0 = embeddings; negative counts from the top.")]
PoolingOption = Annotated[str | None, typer.Option(help="lasttoken, mean, weightedmean, max, cls or sum.")]
TemplateOption = Annotated[str | None, typer.Option(help="plain, prompteol, echo, ... or any string with {text}.")]
AttentionOption = Annotated[
    str | None, typer.Option(help="causal, bidirectional, or bidirectional:12 (above layer 12).")
]
Device = Annotated[str | None, typer.Option(help="cuda, mps or cpu; by default the best available.")]
Dtype = Annotated[
    str | None,
    typer.Option(help="auto (the fastest on the device), float32, bfloat16, float16, float64, int8 (CPU) or 4bit."),
]
Exact = Annotated[
    bool,
    typer.Option("--exact", help="Compute every text alone, so that others change no bit of its vector."),
]
Columns = Annotated[str, typer.Option(help="Column names of the two texts and the score.")]
SkipBad = Annotated[bool, typer.Option("--skip-bad", help="Skip lines that cannot be used instead of stopping.")]
Limit = Annotated[int | None, typer.Option(help="Use only this many pairs, spread evenly over the file.")]
Engine = Annotated[str, typer.Option(help="local (this process) or ray (a cluster, or all cores).")]
Workers = Annotated[int | None, typer.Option(help="Processes of the engine ray; by default one for each GPU or core.")]


def open_encoder(name: str, device: str | None = None, dtype: str | None = None, **options: Any) -> Encoder:
    """Load a saved encoder, or make one of a model with these options; None means the default."""
    with garbage_collection_paused():
        from decoder2vec.encoder import Encoder

        return Encoder.from_pretrained(name, device=device, dtype=dtype, **options)


def open_on_engine(name: str, engine: str, workers: int | None, *, exact: bool, **options: Any) -> Encoder:
    """Load an encoder as `open_encoder` does; with the engine ray, its texts are computed by the workers of Ray."""
    if engine == "local":
        return open_encoder(name, exact=exact, **options)
    from decoder2vec.bulk.ray_encoder import ENGINES, RayEncoder

    if engine not in ENGINES:
        raise unknown_name("engine", engine, ENGINES)
    if exact:
        raise InputError("--exact computes every text in this process; leave out --engine.")
    return RayEncoder.from_name(name, workers=workers, **options)


def split_names(names: str) -> tuple[str, ...]:
    """Split a comma-separated list of names."""
    return tuple(name.strip() for name in names.split(",") if name.strip())


LEARNED_RERANKER = ("learned", "own")
"""Values of --rerank for what `d2v index --tune --pairs` fitted; the second is of earlier versions."""


def open_search_reranker(
    index: Index, name: str | None, device: str | None, dtype: str | None
) -> SupportsRerank | None:
    """The reranker that --rerank names, for an open index."""
    if name in LEARNED_RERANKER:
        return index.load_reranker()
    if not name:
        return None
    from decoder2vec.search.rerank import open_reranker

    return open_reranker(name, device, dtype)


def refuse_given(context: typer.Context, names: Sequence[str], owner: str) -> None:
    """Refuse options on the command line that would be ignored, also with the value that they have by default.

    Args:
        context: That of the command.
        names: Names of its parameters.
        owner: What the options belong to, for the error.
    """
    for option in context.command.params:
        source = context.get_parameter_source(option.name) if option.name in names else None
        if source is not None and source.name == "COMMANDLINE":
            is_argument = option.param_type_name == "argument"
            raise InputError(f"{option.metavar if is_argument else option.opts[0]} belongs to {owner}; leave it out.")
