"""`d2v cache`: list, verify and delete cached latents, vectors and pre-trained networks."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from decoder2vec.cli.output import info, table

_OTHER_CACHES = {
    "pretrained": "pre-trained FREEZE networks",
    "vectors": "sets of vectors of evaluated texts",
    "prefix_kv": "sets of keys and values of texts, for soft prompts",
}
"""Caches besides the latents store, by folder name."""

cache = typer.Typer(name="cache", help="List, verify and delete cached data.", no_args_is_help=True)


@cache.command("ls")
def list_spaces() -> None:
    """List cached data and its size."""
    from decoder2vec.activations.store import iter_spaces, store_root
    from decoder2vec.storage import cache_root

    rows = [_row(report) for report in iter_spaces()]
    for name, what in _OTHER_CACHES.items():
        if files := list((cache_root() / name).glob("*")):
            size = sum(file.stat().st_size for file in files)
            rows.append((name, "", f"{size / 1e6:.1f}", f"{len(files)} {what}"))
    table(("name", "texts", "MB", "content"), rows, str(store_root()))


@cache.command("rm")
def remove_space(name: Annotated[str, typer.Argument(help="A name from `d2v cache ls`, or all.")]) -> None:
    """Delete one entry, or all of them."""
    import shutil

    from decoder2vec.activations.store import delete_space
    from decoder2vec.storage import cache_root

    for other in _OTHER_CACHES if name == "all" else {name} & _OTHER_CACHES.keys():
        shutil.rmtree(cache_root() / other, ignore_errors=True)
    if name not in _OTHER_CACHES:
        delete_space(name)
    info(f"removed {name}")


@cache.command("verify")
def verify_spaces() -> None:
    """Verify all checksums; damaged segments are deleted, and recomputed when needed (exit code 1)."""
    from decoder2vec.activations.store import delete_damaged_segments, iter_spaces

    damaged = 0
    for report in iter_spaces(verify=True):
        delete_damaged_segments(report)
        damaged += len(report.damaged)
        typer.echo(f"{report.name}: {report.texts} texts, {len(report.damaged)} damaged segments")
    if damaged:
        info(f"{damaged} damaged segments were deleted")
        raise typer.Exit(1)


def _row(report: Any) -> tuple[str, str, str, str]:
    space = report.space
    what = "unreadable description"
    if space and "teacher" in space:
        what = f"vectors of the teacher {space['name']}"
    elif space:
        what = f"{space['backbone']}, {space['attention']}, {space['template']!r}, {len(space['readings'])} readings"
    return report.name, str(report.texts), f"{report.size / 1e6:.1f}", what
