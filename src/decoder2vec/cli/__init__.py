"""The command line `d2v`: one file per command; each parses its options, calls one function and prints the result."""

from __future__ import annotations

import atexit
import gc
import logging
import sys
from collections.abc import Callable
from typing import Annotated

import typer

from decoder2vec.cli.analyze import analyze
from decoder2vec.cli.bridge import bridge
from decoder2vec.cli.cache import cache
from decoder2vec.cli.calibrate import calibrate
from decoder2vec.cli.choose import choose
from decoder2vec.cli.data import data
from decoder2vec.cli.demo import demo
from decoder2vec.cli.describe import describe
from decoder2vec.cli.doctor import doctor
from decoder2vec.cli.embed import embed
from decoder2vec.cli.evaluate import evaluate
from decoder2vec.cli.export import export
from decoder2vec.cli.index import index
from decoder2vec.cli.match import match
from decoder2vec.cli.merge import merge
from decoder2vec.cli.migrate import migrate
from decoder2vec.cli.mteb import mteb
from decoder2vec.cli.output import interruption, is_main_process, start_command
from decoder2vec.cli.prune import prune
from decoder2vec.cli.pull import pull
from decoder2vec.cli.relate import relate
from decoder2vec.cli.report import report
from decoder2vec.cli.rerank import rerank
from decoder2vec.cli.search import search
from decoder2vec.cli.serve import serve
from decoder2vec.cli.similarity import similarity
from decoder2vec.cli.sweep import sweep
from decoder2vec.cli.train import train
from decoder2vec.errors import Decoder2VecError, OtherProcessError
from decoder2vec.package import __version__

app = typer.Typer(
    name="d2v",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
_COMMANDS: dict[str, tuple[Callable[..., None] | typer.Typer, ...]] = {
    "Start": (demo, pull, data, cache),
    "Look": (doctor, sweep, choose, analyze, report),
    "Make": (train, merge, prune, calibrate, bridge, export),
    "Measure": (evaluate, mteb),
    "Use": (similarity, embed, index, search, migrate, rerank, match, relate, describe, serve),
}


def _print_version(requested: bool) -> None:
    if requested:
        typer.echo(f"decoder2vec {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Turn any decoder-only language model into a text encoder."""
    start_command()


for panel, commands in _COMMANDS.items():
    for command in commands:
        if isinstance(command, typer.Typer):
            app.add_typer(command, rich_help_panel=panel)
        else:
            app.command("eval" if command is evaluate else None, rich_help_panel=panel)(command)


def skip_last_collection() -> None:
    """Keep Python from walking all objects of torch and transformers at exit, which takes a second.

    With Triton it does: what is left then, Triton lists as leaked, on stderr.
    """
    if "triton" not in sys.modules:
        gc.freeze()


def main() -> None:
    """Run the command; an error is one sentence on stderr and exit code 1, never a traceback."""
    level = logging.WARNING if is_main_process() else logging.CRITICAL  # what goes wrong in all is printed once
    logging.basicConfig(format="%(levelname)s: %(message)s", level=level)
    for noisy in ("transformers", "huggingface_hub", "httpx", "torch", "matplotlib"):
        logging.getLogger(noisy).setLevel(logging.ERROR)
    atexit.register(skip_last_collection)
    try:
        app()
    except OtherProcessError:
        sys.exit(1)  # the other one prints why
    except Decoder2VecError as error:
        sys.exit(f"error: {' '.join(str(error).split())}")
    except (KeyboardInterrupt, SystemExit) as end:  # typer turns Ctrl-C into exit code 130 without a message
        if isinstance(end, SystemExit) and end.code != 130:
            raise
        if is_main_process():
            typer.echo(interruption(), err=True)
        sys.exit(130)
    except OSError as error:
        sys.exit(f"error: {error.strerror or error}: {error.filename or ''}".rstrip(": "))
