"""`d2v index`: create, extend, tune and verify an index of documents."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from decoder2vec.cli.options import (
    AttentionOption,
    Device,
    Dtype,
    EncoderOption,
    Engine,
    Exact,
    Layer,
    PoolingOption,
    TemplateOption,
    Workers,
    open_on_engine,
    open_search_reranker,
    split_names,
)
from decoder2vec.cli.output import info, show_progress, table
from decoder2vec.config import DEFAULT_ENCODER
from decoder2vec.errors import DataFileError, InputError
from decoder2vec.progress import current_progress, in_phase
from decoder2vec.storage import check_output_file, write_json

if TYPE_CHECKING:
    from decoder2vec.search.chunks import Chunking
    from decoder2vec.search.index import Index
    from decoder2vec.search.indexing import IndexChanges
    from decoder2vec.search.tuning import RerankTuning, TuningResult
    from decoder2vec.text.files import ScoredPairs

_MAX_NAMED = 10
"""Messages about documents that are printed; the others are counted."""
_KEPT = ("added", "updated", "unchanged", "moved")
"""Counts of documents that are in the index after `_add`."""
_COUNTS = (*_KEPT, "removed")
_Late = Annotated[
    bool | None, typer.Option("--late/--early", help="Encode chunks with the text around them, or each alone; --early.")
]
_Rerank = Annotated[
    str | None, typer.Option(help="With --queries: a reranker; choose how many documents it rescores, too.")
]
_JsonFile = Annotated[
    Path | None,
    typer.Option("--json", help="Write what was added and left out, the scores of --tune and --stats here."),
]
_PHASES = ("loading the model", "reading", "tokenising", "encoding", "saving", "verifying")


def index(
    out: Annotated[str, typer.Option(metavar="INDEX", help="Folder, or postgresql://host/database#name.")],
    source: Annotated[
        str | None,
        typer.Argument(
            help="A folder or URL of d2v embed, or: .txt .md .rst .html .eml .pdf .docx .pptx .xlsx .csv .tsv .jsonl."
        ),
    ] = None,
    encoder: EncoderOption = "",
    column: Annotated[
        str, typer.Option(help="Columns of a table that are joined to the text of a row; text, or all that hold text.")
    ] = "",
    chunk: Annotated[int | None, typer.Option(help="Maximum tokens of a chunk of a long document; 256.")] = None,
    overlap: Annotated[int | None, typer.Option(help="Tokens that neighbouring chunks share; 32.")] = None,
    late: _Late = None,
    window: Annotated[int | None, typer.Option(help="With --late: tokens that are read at once; max_length.")] = None,
    delete: Annotated[list[str] | None, typer.Option(help="Remove the document with this id; may be repeated.")] = None,
    verify: Annotated[bool, typer.Option("--verify", help="Check that the index is complete and undamaged.")] = False,
    ann: Annotated[
        str | None,
        typer.Option(help="Build an approximate index of the vectors: auto, none, hnsw, ivf_pq, ivf_sq or ivf_rq."),
    ] = None,
    stats: Annotated[bool, typer.Option("--stats", help="Print counts, size and approximate index.")] = False,
    tune: Annotated[
        bool, typer.Option("--tune", help="Choose how hybrid search fuses (--queries, --qrels), or learn from --pairs.")
    ] = False,
    queries: Annotated[Path | None, typer.Option(help="With --tune: JSONL with _id and text.")] = None,
    qrels: Annotated[Path | None, typer.Option(help="With --tune: TSV with query-id, corpus-id and score.")] = None,
    rerank: _Rerank = None,
    depth: Annotated[int, typer.Option(help="With --rerank: maximum number of documents to rescore.")] = 50,
    pairs: Annotated[Path | None, typer.Option(help="With --tune: scored pairs to learn a reranker from.")] = None,
    pair_columns: Annotated[
        str, typer.Option(help="Columns of --pairs: two texts and a score.")
    ] = "sentence1,sentence2,score",
    json_file: _JsonFile = None,
    reset: Annotated[bool, typer.Option("--reset", help="With --tune: undo; fuse as in a new index.")] = False,
    layer: Layer = None,
    pooling: PoolingOption = None,
    template: TemplateOption = None,
    attention: AttentionOption = None,
    exact: Exact = False,
    device: Device = None,
    dtype: Dtype = None,
    engine: Engine = "local",
    workers: Workers = None,
) -> None:
    """Index documents for `d2v search`; after a stop, the same command continues. Also: --delete, --tune, --stats."""
    if not (source or delete or tune or verify or ann or stats):
        raise InputError("Give a folder or file to add to the index, or --delete, --ann, --tune, --verify or --stats.")
    _check_tuning_options(tune, reset, queries, qrels, pairs, rerank)
    _check_json_option(json_file, bool(source or queries or stats))
    check_output_file(json_file, ".json", sources=[source, queries, qrels, pairs])
    choices = {"layer": layer, "pooling": pooling, "template": template, "attention": attention}
    loading = {"device": device, "dtype": dtype, "engine": engine, "workers": workers, "exact": exact}
    report: dict[str, Any] = {}
    with show_progress(keeps_work=bool(source)) as progress:
        for phase in _PHASES if source else ():
            progress.expect(phase)
        tuning = _TuningData.read(queries, qrels, pairs, split_names(pair_columns))
        chunking = _ChunkOptions(chunk, overlap, late, window)
        opened = _open_or_create(out, source, encoder, choices, loading, chunking, encodes=bool(source or tune))
        if delete:
            _delete(opened, delete)
        if source:
            changes = _add(opened, source, split_names(column))
            report |= _describe_changes(changes)
            _check_indexed(source, changes, report, json_file)
        _build_ann(opened, ann)
        reranking = _Reranking(rerank, depth, device, dtype)
        tuned = _tune(opened, reset, tuning, reranking)
        if source or delete or ann or verify:
            _verify(opened)
    if tuned:
        _print_tuning(opened, tuned)
        report |= tuned.to_json()
    if stats:
        report |= _print_stats(opened)
    if json_file:
        write_json(json_file, report)


class _ChunkOptions(NamedTuple):
    """The options that say how documents are split; None where one is not given."""

    size: int | None
    overlap: int | None
    late: bool | None
    window: int | None

    def to_chunking(self) -> Chunking:
        """The chunking of a new index."""
        from decoder2vec.search.chunks import Chunking

        if self.late and self.overlap:
            raise InputError("With --late chunks do not overlap: each has seen its neighbours; leave out --overlap.")
        size = Chunking.size if self.size is None else self.size
        overlap = min(Chunking.overlap, size // 4) if self.overlap is None else self.overlap
        return Chunking(size, overlap, bool(self.late), self.window or 0)

    def check_existing(self, location: str) -> None:
        """Refuse options that an index would ignore; --late may be repeated, to continue after a stop."""
        from decoder2vec.search.index import open_with_header

        if (self.size, self.overlap) != (None, None):
            raise InputError("The chunks of an index are set when it is created; leave out --chunk and --overlap.")
        chunking = open_with_header(location)[1].chunking
        if self.late not in (None, chunking.late) or self.window not in (None, chunking.window):
            how = f"together (--late, --window {chunking.window})" if chunking.late else "each alone (--early)"
            raise InputError(
                f"The chunks of this index were encoded {how}, and vectors of both kinds do not mix; leave out --late, "
                "--early and --window, or create a new index."
            )


def _check_json_option(json_file: Path | None, has_report: bool) -> None:
    if json_file and not has_report:
        raise InputError(
            "There is nothing to write to --json; give a folder or file to add, --tune with --queries, or --stats."
        )


def _check_tuning_options(
    tune: bool, reset: bool, queries: Path | None, qrels: Path | None, pairs: Path | None, rerank: str | None
) -> None:
    """Refuse options that would be ignored, before anything is read or written."""
    if not tune and any((reset, queries, qrels, pairs, rerank)):
        raise InputError("The options --queries, --qrels, --rerank, --pairs and --reset belong to --tune; add it.")
    if rerank and not queries:
        raise InputError("--rerank is tuned on queries with known answers; give --queries and --qrels.")
    if reset and any((queries, qrels, pairs)):
        raise InputError("--reset undoes tuning; give it without --queries, --qrels and --pairs.")
    if tune and not reset and (bool(queries) != bool(qrels) or not (queries or pairs)):
        raise InputError("Give --queries and --qrels to tune hybrid search, or --pairs to learn a reranker.")


def _check_indexed(source: str, changes: IndexChanges, report: dict[str, Any], json_file: Path | None) -> None:
    """Raise if everything was left out, and --json says what and why; where there was only no text, warn of it."""
    if not changes.skipped or any(report[name] for name in _KEPT):
        return
    if all(skipped.is_empty for skipped in changes.skipped):  # as in `d2v embed`, an empty file is no error
        info(f"warning: {source} holds no text")
        return
    if json_file:
        write_json(json_file, report)
    raise DataFileError(f"No document of {source} could be indexed.")


def _open_or_create(
    out: str,
    source: str | None,
    encoder: str,
    choices: dict[str, Any],
    loading: dict[str, Any],
    chunking: _ChunkOptions,
    encodes: bool,
) -> Index:
    """The index; without torch where nothing is encoded and the encoder can be opened for queries."""
    from decoder2vec.search.documents import is_embedded_folder, read_documents
    from decoder2vec.search.index import Index, open_store, open_with_header
    from decoder2vec.search.store import encoder_folder, without_password

    is_embedded = bool(source) and is_embedded_folder(source or "")
    if source and not is_embedded and not Path(source).exists():
        raise DataFileError(f"{source} does not exist.")
    if source and is_embedded:
        from decoder2vec.bulk.embedded import EmbeddedDataset

        EmbeddedDataset(source)  # refuses a folder that is not finished before a model is loaded
    if Index.exists(out):
        chunking.check_existing(out)
        if encoder or any(value is not None for value in choices.values()):
            return Index.open(out, open_on_engine(encoder or DEFAULT_ENCODER, **loading, **choices))
        if loading["engine"] != "local":
            return Index.open(out, open_on_engine(str(encoder_folder(open_with_header(out)[0])), **loading))
        opened = Index.open(out, device=loading["device"], dtype=loading["dtype"], for_queries=not encodes)
        opened.encoder.exact = loading["exact"]
        return opened
    if not source:
        raise InputError(f"There is no index at {without_password(out)}; give a folder or file to create one.")
    if not is_embedded:
        next(read_documents(Path(source)), None)  # refuses a folder without files before the index is created
    chosen = chunking.to_chunking()
    open_store(out).check_new()  # before the model is loaded
    model = open_on_engine(encoder or DEFAULT_ENCODER, **loading, **choices)
    if is_embedded:
        from decoder2vec.search.embedded import embedded_documents

        next(embedded_documents(source, model), None)  # refuses vectors of another encoder, too
    if chosen.late and _pools_last_token(model):
        info("warning: with causal attention and last token pooling, --early finds chunks better")
    return Index.create(out, model, chosen)


def _pools_last_token(encoder: Any) -> bool:
    """Whether a vector is the last token of a causal model, which has seen all chunks before, too."""
    spec = getattr(encoder, "spec", None)
    return spec is not None and spec.attention == "causal" and any(r.pooling == "lasttoken" for r in spec.readings)


def _delete(opened: Index, ids: list[str]) -> None:
    deleted = opened.delete(ids)
    missing = [id for id in ids if id not in deleted]
    info(f"deleted {len(deleted)} documents" + (f"; not in the index: {', '.join(missing)}" if missing else ""))


def _add(opened: Index, source: str, columns: tuple[str, ...]) -> IndexChanges:
    """Add documents, and print how many, and what was left out."""
    notes: list[str] = []
    changes = opened.add(source, columns=columns, notify=notes.append)
    _print_some(notes)
    _print_some(
        [f"left out {skipped.name}: {skipped.reason}" for skipped in changes.skipped],
        hint="; --json writes all of them to a file",
    )
    counts = {name: getattr(changes, name) for name in _COUNTS}
    shown = [f"{name} {n}" for name, n in counts.items() if n or name in ("added", "updated", "unchanged")]
    info(f"{', '.join(shown)}, left out {len(changes.skipped)}")
    return changes


def _describe_changes(changes: IndexChanges) -> dict[str, Any]:
    """The counts, and all that was left out, for --json."""
    skipped = [{"name": skipped.name, "reason": skipped.reason} for skipped in changes.skipped]
    return {name: getattr(changes, name) for name in _COUNTS} | {"skipped": skipped}


def _print_some(messages: list[str], hint: str = "") -> None:
    for message in messages[:_MAX_NAMED]:
        info(message)
    if len(messages) > _MAX_NAMED:
        info(f"... and {len(messages) - _MAX_NAMED} more{hint}")


def _build_ann(opened: Index, kind: str | None) -> None:
    if kind:
        with current_progress().phase("building the approximate index"):
            opened.build_ann(kind)


def _print_stats(opened: Index) -> dict[str, Any]:
    """Print the statistics of the index; returns them for --json."""
    stats = opened.stats()
    together = f"encoded together in windows of {stats.chunking.window} (--late)"
    encoded = together if stats.chunking.late else "each encoded alone (--early)"
    rows = [
        ("documents", f"{stats.documents:,}"),
        ("chunks", f"{stats.chunks:,}"),
        ("size of a chunk", f"up to {stats.chunking.size} tokens, {encoded}"),
        ("dimensions", f"{stats.dim:,}"),
        ("encoder", f"{stats.encoder} {stats.fingerprint}".strip() or "unknown"),
        ("similarity", stats.similarity),
        ("size on disk", f"{stats.size / 2**20:,.1f} MB"),
        ("approximate index", f"{stats.ann}; search is exact" if stats.ann == "none" else stats.ann),
        ("unindexed rows", f"{stats.unindexed:,}"),
        ("deleted rows", f"{stats.deleted:,}"),
        *([("vectors", str(opened.header.mapped))] if opened.header.mapped else []),
    ]
    table(("index", opened.location), rows)
    return {"stats": asdict(stats)}


@in_phase("verifying")
def _verify(opened: Index) -> None:
    opened.verify()
    documents, chunks = opened.count()
    info(f"{opened.location}: {documents} documents in {chunks} chunks, verified")
    if opened.header.mapped:
        info(f"{opened.location}: {opened.header.mapped}")


class _Reranking(NamedTuple):
    """The options that say which reranker is tuned."""

    name: str | None
    depth: int
    device: str | None
    dtype: str | None


class _TuningData(NamedTuple):
    """What an index is tuned on; None where it is not given."""

    queries: dict[str, str] | None
    qrels: dict[str, dict[str, float]] | None
    pairs: ScoredPairs | None

    @classmethod
    def read(
        cls, queries: Path | None, qrels: Path | None, pairs: Path | None, columns: tuple[str, ...]
    ) -> _TuningData:
        """Read the files, before a model is loaded."""
        from decoder2vec.search.tuning import read_queries
        from decoder2vec.text.files import read_pairs
        from decoder2vec.text.qrels import read_qrels

        return cls(
            read_queries(queries) if queries else None,
            read_qrels(qrels) if qrels else None,
            read_pairs(pairs, columns, hint="Name yours with --pair-columns.") if pairs else None,
        )


def _tune(opened: Index, reset: bool, data: _TuningData, reranking: _Reranking) -> TuningResult | None:
    """Learn a reranker, and reset or choose how search fuses and reranks, as far as each is asked for."""
    if data.pairs is not None:
        _learn_reranker(opened, data.pairs)
    if reset:
        _reset_tuning(opened)
    if data.queries is None or data.qrels is None:
        return None
    reranker = open_search_reranker(opened, reranking.name, reranking.device, reranking.dtype)
    with current_progress().phase("reranking" if reranker else "searching", len(data.queries)):
        return opened.tune(data.queries, data.qrels, reranker, depth=reranking.depth)


def _learn_reranker(opened: Index, pairs: ScoredPairs) -> None:
    with current_progress().phase("learning from pairs", len(pairs.texts())):
        opened.learn_reranker(pairs)
    info(f"learned a reranker from {len(pairs)} pairs; use it with d2v search --rerank learned")


def _reset_tuning(opened: Index) -> None:
    from decoder2vec.search.hybrid import Fusion
    from decoder2vec.search.index import MIN_RERANKED

    opened.set_fusion(Fusion())
    opened.set_rerank_depth(MIN_RERANKED)
    info(f"hybrid search in {opened.location} fuses {_describe(opened)} again, as in a new index")


def _print_tuning(opened: Index, result: TuningResult) -> None:
    rows = [
        (score.method, f"{score.fusion.weight:.2f}" if score.fusion else "", f"{score.score:.1f}")
        for score in result.scores
    ]
    table(("search", "dense weight", f"{result.n_queries} queries"), rows, "nDCG@10, cross-validated")
    gain = result.gain
    info(
        f"nDCG@10 before {result.score_before:.1f}, after {result.score_after:.1f}: "
        f"{gain.value:+.1f} (95 % interval {gain.low:+.1f} to {gain.high:+.1f})"
    )
    if result.best == result.before:
        info(f"no better fusion was found: hybrid search in {opened.location} still fuses {_describe(opened)}")
    else:
        info(f"hybrid search in {opened.location} now fuses {_describe(opened)}; undo with --tune --reset")
        if not gain.significant:
            info("the interval includes 0: the gain is not significant; use more queries")
    if result.reranked:
        _print_reranked(opened, result.reranked)


def _print_reranked(opened: Index, result: RerankTuning) -> None:
    rows = [(str(depth), f"{score:.1f}") for depth, score in result.scores.items()]
    table(("documents rescored", "nDCG@10"), rows, "with the reranker")
    gain = result.gain
    info(
        f"nDCG@10 with the reranker {result.score:.1f}, cross-validated: "
        f"{gain.value:+.1f} (95 % interval {gain.low:+.1f} to {gain.high:+.1f})"
    )
    if gain.value > 0:
        info(f"d2v search {opened.location} --rerank now rescores the best {result.depth} documents")
        if not gain.significant:
            info("the interval includes 0: the gain is not significant; use more queries")
    else:
        info("the reranker improves nothing here; leave out --rerank when you search")


def _describe(opened: Index) -> str:
    fusion = opened.header.fusion
    return f"by {fusion.method}, with a dense weight of {fusion.weight:.2f}"
