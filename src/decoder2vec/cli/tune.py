"""`d2v tune`: how words and meaning are weighed best in an index."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from decoder2vec.cli.options import Columns, Device, open_encoder, split_names
from decoder2vec.cli.output import info, table
from decoder2vec.errors import InputError
from decoder2vec.storage import check_target, write_json

if TYPE_CHECKING:
    from decoder2vec.search.index import Index


def tune(
    index: Annotated[str, typer.Argument(help="Folder, or postgresql://host/database#name.")],
    queries: Annotated[Path | None, typer.Option(help="JSONL with _id and text.")] = None,
    judgements: Annotated[Path | None, typer.Option("--qrels", help="TSV with query-id, corpus-id and score.")] = None,
    pairs: Annotated[Path | None, typer.Option(help="Scored pairs from which a reranker is learned.")] = None,
    columns: Columns = "sentence1,sentence2,score",
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the results here.")] = None,
    encoder: Annotated[
        str | None, typer.Option("--encoder", "-e", help="Only where the index does not bring its own.")
    ] = None,
    device: Device = None,
) -> None:
    """Choose how hybrid search fuses, on the dev part of the queries; or learn a reranker. Both stay in the index."""
    from decoder2vec.search.index import Index

    if not pairs and not (queries and judgements):
        raise InputError("Give --queries and --qrels to tune hybrid search, or --pairs to learn a reranker.")
    check_target(json_file, ".json", sources=[queries, judgements, pairs])
    opened = Index.open(index, open_encoder(encoder, device) if encoder else None)
    if pairs:
        _learn(opened, pairs, split_names(columns))
    if queries and judgements:
        _fuse(opened, queries, judgements, json_file)


def _learn(opened: Index, file: Path, columns: tuple[str, ...]) -> None:
    from decoder2vec.search.rerank import PairHead
    from decoder2vec.text.files import read_pairs

    pairs = read_pairs(file, columns)
    info(f"encoding the texts of {len(pairs)} pairs")
    PairHead.fit(opened.encoder, pairs).save(opened.pair_head)
    info(f"learned a reranker from {len(pairs)} pairs; use it with --rerank own")


def _fuse(opened: Index, queries: Path, judgements: Path, json_file: Path | None) -> None:
    from decoder2vec.search.tuning import read_judgements, read_queries, tune

    asked, judged = read_queries(queries), read_judgements(judgements)
    info(f"searching for {len(asked)} queries")
    found = tune(opened, asked, judged)
    opened.set_fusion(found.best)
    rows = [
        (one.way, f"{one.fusion.weight:.2f}" if one.fusion else "", f"{one.dev:.1f}", f"{one.test:.1f}")
        for one in found.scores
    ]
    dev, test = found.queries
    table(("search", "weight of meaning", f"dev ({dev} queries)", f"test ({test})"), rows, "nDCG@10")
    info(f"hybrid search in {opened.place} now fuses by {found.best.method}, {found.best.weight:.2f} of it by meaning")
    if json_file:
        write_json(json_file, asdict(found))
