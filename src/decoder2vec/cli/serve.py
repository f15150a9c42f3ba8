"""`d2v serve`: an encoder for others to ask over HTTP."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from decoder2vec.cli.options import (
    AttentionOption,
    Device,
    EncoderArgument,
    Layer,
    PoolingOption,
    TemplateOption,
    open_encoder,
)
from decoder2vec.cli.output import info
from decoder2vec.errors import InputError, MissingExtraError

if TYPE_CHECKING:
    from decoder2vec.encoder import Encoder


Adapters = Annotated[
    list[str] | None, typer.Option(help="NAME=FOLDER: also through this encoder's adapter; may be repeated.")
]
ApiKeys = Annotated[
    list[str] | None,
    typer.Option(envvar="D2V_API_KEY", help="Key that clients must send; may be repeated. By default none."),
]


def serve(
    encoder: EncoderArgument,
    index: Annotated[str | None, typer.Option(help="Index to search: folder, or postgresql://host/db#name.")] = None,
    host: Annotated[str, typer.Option(help="Address to listen at; by default for this machine only.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen at; 0 takes any that is free.")] = 8000,
    name: Annotated[str | None, typer.Option(help="What clients call it in `model`; by default the folder's.")] = None,
    adapter: Adapters = None,
    api_key: ApiKeys = None,
    sweep: Annotated[Path | None, typer.Option(help="A sweep.json for the page to show.")] = None,
    cache_mb: Annotated[float, typer.Option(help="Megabytes of vectors to remember; 0 remembers none.")] = 64,
    max_batch_tokens: Annotated[int | None, typer.Option(help="Tokens read at once; by default by machine.")] = None,
    max_request_tokens: Annotated[int, typer.Option(help="Tokens of one request.")] = 131_072,
    max_waiting_tokens: Annotated[int, typer.Option(help="Tokens that may wait; then clients get a 429.")] = 262_144,
    requests_per_minute: Annotated[int | None, typer.Option(help="For each key; by default no limit.")] = None,
    tokens_per_minute: Annotated[int | None, typer.Option(help="For each key; by default no limit.")] = None,
    layer: Layer = None,
    pooling: PoolingOption = None,
    template: TemplateOption = None,
    attention: AttentionOption = None,
    device: Device = None,
) -> None:
    """Serve an encoder: OpenAI's /v1/embeddings, /search, /match, /rerank, and a page at /."""
    try:
        from decoder2vec.serving.app import bind, create_app, is_local, server_of
        from decoder2vec.serving.limits import Limits
        from decoder2vec.serving.service import ServerConfig
    except ImportError as error:
        raise MissingExtraError(error.name or "FastAPI and uvicorn", "serve") from error

    limits = Limits(
        request_tokens=max_request_tokens,
        waiting_tokens=max_waiting_tokens,
        batch_tokens=max_batch_tokens,
        requests_per_minute=requests_per_minute,
        tokens_per_minute=tokens_per_minute,
    )
    with bind(host, port) as address:
        model = open_encoder(encoder, device, layer=layer, pooling=pooling, template=template, attention=attention)
        _add_adapters(model, adapter or [])
        called = name or Path(encoder).name or "encoder"
        app = create_app(
            ServerConfig(model, called, index, sweep, limits, cache_mb), api_key or [], local=is_local(host)
        )
        if not is_local(host) and not api_key:
            info(f"anybody who reaches {host} may ask; give --api-key to ask for a key")
        at = f"[{host}]" if ":" in host else host
        info(f"{called} at http://{at}:{address.getsockname()[1]} (Ctrl-C stops it)")
        with suppress(KeyboardInterrupt):
            server_of(app).run(sockets=[address])
        info("stopped")


def _add_adapters(model: Encoder, given: list[str]) -> None:
    for assignment in given:
        name, equals, folder = assignment.partition("=")
        if not equals or not name or not folder:
            raise InputError(f"{assignment!r} is not of the form NAME=FOLDER.")
        model.add_adapter(name, folder)
