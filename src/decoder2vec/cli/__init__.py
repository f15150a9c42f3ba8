"""The command `d2v`: one file per verb; each parses, calls one function and prints."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable

import typer

from decoder2vec.cli.analyze import analyze
from decoder2vec.cli.cache import cache
from decoder2vec.cli.data import data
from decoder2vec.cli.demo import demo
from decoder2vec.cli.doctor import doctor
from decoder2vec.cli.embed import embed
from decoder2vec.cli.evaluate import evaluate
from decoder2vec.cli.export import export
from decoder2vec.cli.index import index
from decoder2vec.cli.match import match
from decoder2vec.cli.mteb import mteb
from decoder2vec.cli.prune import prune
from decoder2vec.cli.pull import pull
from decoder2vec.cli.report import report
from decoder2vec.cli.search import search
from decoder2vec.cli.serve import serve
from decoder2vec.cli.similarity import similarity
from decoder2vec.cli.sweep import sweep
from decoder2vec.cli.train import train
from decoder2vec.errors import Decoder2VecError

app = typer.Typer(
    name="d2v",
    help="Turn any decoder-only language model into a text encoder.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
_VERBS: dict[str, tuple[Callable[..., None], ...]] = {
    "Make an encoder": (demo, pull, doctor, sweep, prune, train, export),
    "Measure it": (evaluate, mteb, report),
    "Put it to use": (similarity, embed, index, search, match, serve),
}
for panel, verbs in _VERBS.items():
    for verb in verbs:
        app.command("eval" if verb is evaluate else None, rich_help_panel=panel)(verb)
app.add_typer(analyze, name="analyze", rich_help_panel="Measure it")
app.add_typer(data, name="data", rich_help_panel="Make an encoder")
app.add_typer(cache, name="cache", rich_help_panel="Make an encoder")


def main() -> None:
    """Run the command; an error is one sentence on stderr and exit code 1, never a traceback."""
    logging.basicConfig(format="%(levelname)s: %(message)s", level=logging.WARNING)
    for noisy in ("transformers", "huggingface_hub", "httpx", "torch", "matplotlib"):
        logging.getLogger(noisy).setLevel(logging.ERROR)
    try:
        app()
    except Decoder2VecError as error:
        sys.exit(f"error: {' '.join(str(error).split())}")
    except (KeyboardInterrupt, SystemExit) as left:  # typer turns Ctrl-C into exit code 130, without a word
        if isinstance(left, SystemExit) and left.code != 130:
            raise
        typer.echo("stopped; what was finished is kept and will be reused", err=True)
        sys.exit(130)
    except OSError as error:
        sys.exit(f"error: {error.strerror or error}: {error.filename or ''}".rstrip(": "))
