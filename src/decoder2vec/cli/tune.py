"""`d2v tune`: how words and meaning are weighed best in an index."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from decoder2vec.cli.options import Device, open_encoder
from decoder2vec.cli.show import say, table


def tune(
    index: Annotated[str, typer.Argument(help="Folder, or postgresql://host/database#name.")],
    queries: Annotated[Path, typer.Option(help="JSONL with _id and text.")],
    judgements: Annotated[Path, typer.Option("--qrels", help="TSV with query-id, corpus-id and score.")],
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the results here.")] = None,
    encoder: Annotated[
        str | None, typer.Option("--encoder", "-e", help="Only where the index does not bring its own.")
    ] = None,
    device: Device = None,
) -> None:
    """Choose how hybrid search fuses, on the dev part of the queries, and keep it in the index."""
    from decoder2vec.search.index import Index
    from decoder2vec.search.tune import read_judgements, read_queries
    from decoder2vec.search.tune import tune as find_best

    asked, judged = read_queries(queries), read_judgements(judgements)
    opened = Index.open(index, open_encoder(encoder, device) if encoder else None)
    say(f"searching for {len(asked)} queries")
    found = find_best(opened, asked, judged)
    opened.set_fusion(found.best)
    rows = [
        (one.way, f"{one.fusion.weight:.2f}" if one.fusion else "", f"{one.dev:.1f}", f"{one.test:.1f}")
        for one in found.scores
    ]
    dev, test = found.queries
    table(("search", "weight of meaning", f"dev ({dev} queries)", f"test ({test})"), rows, "nDCG@10")
    say(f"hybrid search in {index} now fuses by {found.best.method}, {found.best.weight:.2f} of it by meaning")
    if json_file:
        json_file.parent.mkdir(parents=True, exist_ok=True)
        json_file.write_text(json.dumps(asdict(found), indent=1) + "\n", encoding="utf-8")
