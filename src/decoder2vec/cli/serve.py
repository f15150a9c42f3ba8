"""`d2v serve`: serve an encoder over HTTP."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from decoder2vec.cli.options import (
    AttentionOption,
    Device,
    Dtype,
    EncoderArgument,
    Exact,
    Layer,
    PoolingOption,
    TemplateOption,
    open_encoder,
)
from decoder2vec.cli.output import info
from decoder2vec.config import DEFAULT_ENCODER
from decoder2vec.errors import InputError, MissingExtraError

if TYPE_CHECKING:
    from decoder2vec.serving.service import ServerConfig

Adapters = Annotated[
    list[str] | None,
    typer.Option(help="NAME=FOLDER: also serve this encoder's adapter under that name; may be repeated."),
]
ApiKeys = Annotated[
    list[str] | None,
    typer.Option(envvar="D2V_API_KEY", help="API key that clients must send; may be repeated. By default none."),
]


def serve(
    encoder: EncoderArgument = DEFAULT_ENCODER,
    index: Annotated[str | None, typer.Option(help="Index to search: folder, or postgresql://host/db#name.")] = None,
    reranker: Annotated[
        str | None, typer.Option(help="What /rerank scores with: a reranker, or likelihood:MODEL; else the encoder.")
    ] = None,
    describe: Annotated[
        str | None, typer.Option(help="Bridge to words (d2v bridge --loss lm) for vectors of the encoder.")
    ] = None,
    host: Annotated[str, typer.Option(help="Address to listen on; by default for this machine only.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0 chooses a free one.")] = 8000,
    name: Annotated[str | None, typer.Option(help="Model name for clients; by default the folder's name.")] = None,
    adapter: Adapters = None,
    api_key: ApiKeys = None,
    sweep: Annotated[Path | None, typer.Option(help="A sweep.json for the page to show.")] = None,
    raw: Annotated[bool, typer.Option("--raw", help="Do not scale the vectors to length 1.")] = False,
    cache_mb: Annotated[float, typer.Option(help="Megabytes of vectors to cache; 0 disables the cache.")] = 64,
    max_batch_tokens: Annotated[int | None, typer.Option(help="Tokens of a batch; by default by device.")] = None,
    max_request_tokens: Annotated[int, typer.Option(help="Tokens of one request.")] = 131_072,
    max_waiting_tokens: Annotated[int, typer.Option(help="Tokens in the queue; then clients get a 429.")] = 262_144,
    requests_per_minute: Annotated[int | None, typer.Option(help="For each API key; by default no limit.")] = None,
    tokens_per_minute: Annotated[int | None, typer.Option(help="For each API key; by default no limit.")] = None,
    layer: Layer = None,
    pooling: PoolingOption = None,
    template: TemplateOption = None,
    attention: AttentionOption = None,
    exact: Exact = False,
    device: Device = None,
    dtype: Dtype = None,
) -> None:
    """Serve an encoder: OpenAI's /v1/embeddings, /search, /match, /v1/rerank, and a page at /."""
    try:
        from decoder2vec.serving import app
        from decoder2vec.serving.limits import Limits
    except ImportError as error:
        raise MissingExtraError(error.name or "FastAPI and uvicorn", "serve") from error

    limits = Limits(
        max_request_tokens=max_request_tokens,
        max_waiting_tokens=max_waiting_tokens,
        max_batch_tokens=max_batch_tokens,
        requests_per_minute=requests_per_minute,
        tokens_per_minute=tokens_per_minute,
    )
    adapters = _parse_adapters(adapter or [])

    def load_config() -> ServerConfig:
        choices = {"layer": layer, "pooling": pooling, "template": template, "attention": attention}
        model = open_encoder(encoder, device, dtype, exact=exact, **choices)
        for adapter_name, folder in adapters.items():
            model.add_adapter(adapter_name, folder)
        served_name = name or Path(encoder).name or "encoder"
        config = app.ServerConfig(model, served_name, index, sweep, limits, cache_mb, normalize=not raw)
        if describe:
            from decoder2vec.bridge.bridge import Bridge

            config = replace(config, bridge=Bridge.from_pretrained(describe, device=device, dtype=dtype))
        if reranker is None:
            return config
        from decoder2vec.reranker import Reranker

        scorer = Reranker.from_pretrained(reranker, device=device, dtype=dtype)
        scorer.check_ranks()
        return replace(config, reranker=scorer, reranker_name=Path(reranker).name)

    app.serve(load_config, api_key or [], host=host, port=port, notify=info)


def _parse_adapters(assignments: list[str]) -> dict[str, str]:
    adapters = {}
    for assignment in assignments:
        name, equals, folder = assignment.partition("=")
        if not equals or not name or not folder:
            raise InputError(f"{assignment!r} is not of the form NAME=FOLDER.")
        adapters[name] = folder
    return adapters
