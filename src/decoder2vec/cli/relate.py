"""`d2v relate`: find relations between mentions or records; train on known relations, or use a trained matcher."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from decoder2vec.cli.options import (
    AttentionOption,
    Device,
    Dtype,
    EncoderOption,
    Layer,
    PoolingOption,
    TemplateOption,
    refuse_given,
    split_names,
)
from decoder2vec.cli.output import info, show_progress, table
from decoder2vec.config import DEFAULT_ENCODER
from decoder2vec.errors import InputError
from decoder2vec.progress import current_progress
from decoder2vec.storage import check_output_file

if TYPE_CHECKING:
    from decoder2vec.relations.matcher import PredictedRelation, RelationResult
    from decoder2vec.relations.mentions import Mention, Relation
    from decoder2vec.relations.metrics import RelationScores
    from decoder2vec.training.relation_classifier import RerankerTraining

_MAX_PRINTED = 20
"""Relations that are printed."""

_OF_TRAINING = ["encoder", "k", "symmetric", "tune", "classifier", "save"]
"""Parameters that only a training uses."""


def relate(
    context: typer.Context,
    mentions: Annotated[
        Path,
        typer.Argument(help="Records or mentions (.jsonl, .tsv, .csv, .txt): id, text; start, end, document if any."),
    ],
    tails: Annotated[
        Path | None, typer.Argument(help="A second table: then relations lead from the first one to this.")
    ] = None,
    labels: Annotated[
        Path | None, typer.Option(help="Known relations: head, tail (ids) and label. They train, or measure --matcher.")
    ] = None,
    matcher: Annotated[Path | None, typer.Option(help="Folder of a trained matcher, instead of training one.")] = None,
    save: Annotated[Path | None, typer.Option(help="Save the trained matcher to this folder.")] = None,
    out: Annotated[Path | None, typer.Option(help="Write all relations: .html to read with reasons, .json.")] = None,
    column: Annotated[
        str, typer.Option(help="Columns that are joined to the text of a record; text, or all that hold text.")
    ] = "",
    k: Annotated[
        int | None, typer.Option(help="Nearest others of each mention that are classified; 5 by default.")
    ] = None,
    symmetric: Annotated[
        bool, typer.Option("--symmetric", help="Direction does not matter, as with duplicates.")
    ] = False,
    tune: Annotated[bool, typer.Option(help="Tune the retriever on the known relations.")] = True,
    classifier: Annotated[
        str | None,
        typer.Option(help="Train this model to classify pairs that it reads together; else a network on vectors."),
    ] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="With --classifier: setting of recipe rerank; may be repeated.")
    ] = None,
    encoder: EncoderOption = DEFAULT_ENCODER,
    layer: Layer = None,
    pooling: PoolingOption = None,
    template: TemplateOption = None,
    attention: AttentionOption = None,
    device: Device = None,
    dtype: Dtype = None,
) -> None:
    """Find relations: retrieve the nearest mentions of the same document, and classify only these pairs."""
    if matcher:
        refuse_given(context, _OF_TRAINING, "the training, and a trained --matcher has its own settings")
    if settings and not classifier:
        raise InputError("--set has settings of the training of --classifier; give the name of a model there, too.")
    check_output_file(out, ".html", ".json", sources=[mentions, tails, labels])
    loading: dict[str, Any] = {"device": device, "dtype": dtype}
    options = {"layer": layer, "pooling": pooling, "template": template, "attention": attention, **loading}
    options = {name: value for name, value in options.items() if value is not None}
    with show_progress(keeps_work=True) as progress:
        from decoder2vec.relations.matcher import PairMatcher, check_matcher_folder
        from decoder2vec.report.api import relation_report

        if save:
            check_matcher_folder(save)
        with progress.phase("reading"):
            heads, others, known = _read(mentions, tails, labels, split_names(column), needs_labels=matcher is None)
        progress.expect("loading the model")
        progress.expect("encoding", len({each.marked for each in (*heads, *(others or ()))}))
        if matcher:
            result = PairMatcher.from_pretrained(matcher, **options).predict(heads, others, known=known)
        else:
            options |= {"train_classifier": _reranker_training(classifier, settings, loading)}
            model = PairMatcher(encoder, k=5 if k is None else k, directed=not symmetric, tune=tune, **options)
            result = model.fit(heads, known or (), others)
        with progress.phase("saving"):
            if save:
                model.save(save)
            if out:
                relation_report(result, out, command=shlex.join(["d2v", *sys.argv[1:]]))
    if result.scores:
        protocol = "on documents that were held out" if classifier else "by cross-validation"
        _print_scores(result.scores, "known relations" if matcher else protocol)
    _print_relations(result)
    for path in filter(None, (save, out)):
        typer.echo(str(path))


def _read(
    heads_file: Path, tails_file: Path | None, labels: Path | None, columns: tuple[str, ...], *, needs_labels: bool
) -> tuple[list[Mention], list[Mention] | None, list[Relation] | None]:
    """The mentions of one or two tables, and the known relations, which documents may list themselves."""
    from decoder2vec.relations.files import read_documents, read_mentions, read_relations

    heads, listed = read_documents(heads_file, columns)
    tails = None if tails_file is None else read_mentions(tails_file, columns)
    known = read_relations(labels) if labels else listed or None
    if known is None and needs_labels:
        raise InputError("Give --labels with known relations to train on, or --matcher with a trained matcher.")
    return heads, tails, known


def _reranker_training(
    classifier: str | None, settings: list[str] | None, loading: dict[str, Any]
) -> RerankerTraining | None:
    if classifier is None:
        current_progress().expect("training")
        return None
    from decoder2vec.training.relation_classifier import RerankerTraining

    return RerankerTraining(classifier, tuple(settings or ()), **loading)


def _print_scores(scores: RelationScores, title: str) -> None:
    rows = [
        (label, f"{100 * each.precision:.1f}", f"{100 * each.recall:.1f}", f"{100 * each.f1:.1f}", str(each.support))
        for label, each in (*scores.labels.items(), ("all", scores.overall))
    ]
    table(("label", "precision", "recall", "F1", "known"), rows, title)
    typer.echo(
        f"recall@{scores.k} of the retriever {100 * scores.recall_at_k:.1f}; classified {scores.n_classified:,} of "
        f"{scores.n_pairs:,} pairs, {100 * scores.reduction_ratio:.0f} % fewer"
    )


def _print_relations(result: RelationResult) -> None:
    found = result.relations
    table(("head", "tail", "label", "probability", "known"), map(_row, found[:_MAX_PRINTED]), f"{len(found)} relations")
    if len(found) > _MAX_PRINTED:
        info(f"... and {len(found) - _MAX_PRINTED} more: --out relations.html")


def _row(relation: PredictedRelation) -> tuple[str, ...]:
    known = relation.known or ""
    return relation.head.id, relation.tail.id, relation.label, f"{relation.probability:.2f}", known
