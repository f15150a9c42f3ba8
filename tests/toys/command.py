"""The command as a test runs it."""

from __future__ import annotations

from typer.testing import CliRunner

from decoder2vec.cli import app


def d2v(*args):
    """What `d2v ARGS` printed and its exit code; an error is raised as itself."""
    result = CliRunner().invoke(app, [str(arg) for arg in args])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result
