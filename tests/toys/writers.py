"""Everything that writes files without training, each with what is there before and how it is read afterwards.

Imported once by a `ForkServer`, whose children write, fail and are killed.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import lancedb
import numpy as np
import pyarrow.parquet
import torch

from decoder2vec import storage
from decoder2vec.activations.store import Store, text_keys
from decoder2vec.adapters.lora import Lora, LoraConfig
from decoder2vec.analysis.intrinsic_dimension import DimensionPlan, measure_dimension
from decoder2vec.analysis.sweep import SweepPlan, run_sweep
from decoder2vec.backbone.backbone import Backbone
from decoder2vec.backbone.tiny import tiny_folder
from decoder2vec.bulk import one_file as bulk
from decoder2vec.bulk.dataset import MANIFEST_FILE, embed_dataset
from decoder2vec.bulk.lance_copy import LANCE_TABLE
from decoder2vec.bulk.verify import verify_dataset
from decoder2vec.calibration import calibrate
from decoder2vec.cli import main
from decoder2vec.config import EncoderSpec, Reading
from decoder2vec.encoder import Encoder
from decoder2vec.errors import StorageError
from decoder2vec.evaluation.api import evaluate
from decoder2vec.export import cross_encoder, formats, onnx, sentence_transformers
from decoder2vec.export.pruned import write_pruned
from decoder2vec.export.transformers import write_model
from decoder2vec.matching.match import match_sides
from decoder2vec.merging import merge
from decoder2vec.relations.matcher import PairMatcher
from decoder2vec.relations.mentions import Mention, Relation
from decoder2vec.report.api import match_report, report
from decoder2vec.report.sweep import write_sweep
from decoder2vec.reranker import Reranker, RerankerSpec
from decoder2vec.search import indexing, migration
from decoder2vec.search.chunks import Chunking
from decoder2vec.search.documents import Document
from decoder2vec.search.hybrid import Fusion
from decoder2vec.search.index import Index
from decoder2vec.search.migration import migrate
from decoder2vec.search.sources import SourceRecord
from decoder2vec.text.concepts import ConceptSet
from decoder2vec.text.files import ScoredPairs
from toys.encoder import WordEncoder
from toys.gguf_file import write_gguf
from toys.sides import JOBS, RESUMES, LetterEncoder
from toys.sweeps import PAIRS
from toys.tasks import TopicEncoder, write_toy_tasks

Content = dict[str, Any]
"""What a reader gets, part by part; a part is replaced as a whole or not at all."""

TEXTS = ["A cat sleeps.", "Stocks fell.", "It rains today.", "Two dogs run.", "A red door.", "Nobody came."]


@dataclass(frozen=True)
class Writer:
    """Writes files below a folder."""

    write: Callable[[Path], object]
    """Its result, if any, must be right even where a file could not be written."""
    read: Callable[[Path], Content]
    """Reads what was written as a user does."""
    before: Callable[[Path], object] = lambda folder: None
    """Writes what is there before."""
    use: Callable[[Path], Content] | None = None
    """Uses what was written, if that is something else than reading it."""
    is_cache: bool = False
    """Whether it goes on without the files, with a warning."""
    for_others: bool = False
    """Whether other programs read the files, which have no checksums."""


def discard(result: object) -> None:
    """Let a result go that is not compared."""


def rounded(array: Any) -> Any:
    """Numbers as JSON, with the digits that do not depend on the order of additions."""
    return [[float(f"{value:.4g}") for value in row] for row in np.atleast_2d(np.asarray(array, np.float64)).tolist()]


# --- encoders -------------------------------------------------------------------------------------------------------

torch.set_num_threads(1)
warnings.simplefilter("ignore")
MODEL = str(tiny_folder("tiny-llama"))
BACKBONE = Backbone.load(MODEL, device="cpu", dtype="float32")


def adapted_encoder(seed: int, *, head: bool = True) -> Encoder:
    """An encoder with a random LoRA."""
    adapter = Lora(BACKBONE, LoraConfig(rank=2))
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in adapter.parameters():
            parameter.normal_(generator=generator)
    spec = EncoderSpec(MODEL, (Reading(4, "mean", normed=True),), "{text}")
    encoder = Encoder(BACKBONE.with_adapter(adapter.requires_grad_(False)), spec)
    return encoder.with_head("standardise", TEXTS) if head else encoder


def read_encoder(name: str) -> Callable[[Path], Content]:
    """Encode with a saved encoder."""

    def read(folder: Path) -> Content:
        if not (folder / name).exists():
            return {}
        encoder = Encoder.load(folder / name, device="cpu", dtype="float32")
        return {name: rounded(encoder.encode(TEXTS[:3]))}

    return read


def read_text(*names: str) -> Callable[[Path], Content]:
    """The content of text files."""
    return lambda folder: {name: (folder / name).read_text() for name in names if (folder / name).exists()}


ENCODER, OTHER = adapted_encoder(0), adapted_encoder(1)
PLAIN, OTHER_PLAIN = adapted_encoder(0, head=False), adapted_encoder(1, head=False)
UNTRAINED = Encoder(BACKBONE, EncoderSpec(MODEL, (Reading(4, "mean", normed=True),), "{text}"))


def save_two(folder: Path) -> None:
    for name, encoder in (("a", PLAIN), ("b", OTHER_PLAIN)):
        encoder.save(folder / name)


def save_two_models(folder: Path) -> None:
    """Encoders of two models whose weights differ a little."""
    for name, factor in (("a", 1.01), ("b", 0.99)):
        changed = Backbone.load(MODEL, device="cpu", dtype="float32")
        with torch.no_grad():
            for parameter in changed.model.parameters():
                parameter *= factor
        with tempfile.TemporaryDirectory() as model_folder:
            write_model(changed, Path(model_folder))
            model = Backbone.load(model_folder, device="cpu", dtype="float32")
            Encoder(model, UNTRAINED.spec).save(folder / name, copy_backbone=True)


def trained_reranker(seed: int) -> Reranker:
    """A reranker with a random LoRA and a random head."""
    head = torch.randn(BACKBONE.dim, generator=torch.Generator().manual_seed(seed))
    return Reranker(adapted_encoder(seed, head=False).backbone, RerankerSpec(MODEL, "linear"), head)


def read_reranker(folder: Path) -> Content:
    """Scores of a saved reranker."""
    if not (folder / "reranker").exists():
        return {}
    reranker = Reranker.load(folder / "reranker", device="cpu", dtype="float32")
    return {"reranker": rounded(reranker.score(TEXTS[0], TEXTS))}


GGUF_FILE = write_gguf(Path(tempfile.mkdtemp()) / "tiny.gguf")


def encode_with(model: Path) -> Content:
    """Vectors of a model folder, or of a GGUF file, which is converted the first time."""
    backbone = Backbone.load(model, device="cpu", dtype="float32")
    return {"vectors": rounded(Encoder(backbone, UNTRAINED.spec).encode(TEXTS[:3]))}


def read_converted(folder: Path) -> Content:
    models = list((Path(os.environ["D2V_CACHE"]) / "models").glob(f"{GGUF_FILE.stem}-*"))
    return encode_with(models[0]) if models else {}


# --- calibration ----------------------------------------------------------------------------------------------------

_GOODS = ("bread", "maps", "goats", "shoes", "clocks", "wool")
LABELLED = ScoredPairs(
    "labelled",
    [f"We sell {thing}." for thing in _GOODS] * 2,
    [f"They sell {thing}." for thing in _GOODS] + ["Rain fell on the hills all night."] * 6,
    [1.0] * 6 + [0.0] * 6,
)
LEXICAL = Encoder(BACKBONE, EncoderSpec(MODEL, (Reading(0, "mean"),), "{text}"))
"""Reads the embeddings of words, so that equal words make texts similar."""


def fit_curves(source: Path, out: Path | None = None) -> Content:
    """Calibrate a saved encoder or an index."""
    scores = calibrate(source, LABELLED, out=out, device="cpu", dtype="float32").scores
    return {name: score.curve.to_json() for name, score in scores.items()}


def read_calibrated(name: str) -> Callable[[Path], Content]:
    """The vectors of a saved encoder, and its probabilities."""

    def read(folder: Path) -> Content:
        if not (folder / name).exists():
            return {}
        encoder = Encoder.load(folder / name, device="cpu", dtype="float32")
        curves = {score: curve.to_json() for score, curve in encoder.probabilities.items()}
        return {name: [rounded(encoder.encode(TEXTS[:3])), curves]}

    return read


def save_calibrated_copy(folder: Path) -> None:
    LEXICAL.save(folder / "encoder")
    OTHER.save(folder / "copy")


# --- relations ------------------------------------------------------------------------------------------------------

MENTIONS = [Mention(str(number), text, document=str(number // 2)) for number, text in enumerate(TEXTS)]


def trained_matcher(label: str) -> PairMatcher:
    """A matcher of pairs of texts, with its encoder."""
    matcher = PairMatcher(UNTRAINED, k=1, tune=False)
    matcher.fit(MENTIONS, [Relation(str(number), str(number + 1), label) for number in range(0, len(TEXTS), 2)])
    return matcher


MATCHERS = {label: trained_matcher(label) for label in ("precedes", "follows")}
"""Trained once: what is tested is how they are saved."""


def read_matcher(folder: Path) -> Content:
    """Labels and probabilities of some pairs by a saved matcher."""
    if not (folder / "matcher").exists():
        return {}
    matcher = PairMatcher.from_pretrained(folder / "matcher", device="cpu", dtype="float32")
    assert matcher.classifier is not None
    pairs = np.asarray([[0, 1], [2, 3], [4, 5]])
    return {"matcher": [list(matcher.labels), rounded(matcher.classifier(UNTRAINED.encode(TEXTS), pairs))]}


# --- vectors --------------------------------------------------------------------------------------------------------

bulk._SHARD_SIZE = 2


def embed(suffix: str) -> Writer:
    """Bulk embedding, in three shards, over the vectors of other texts."""
    name = f"vectors{suffix}"
    return Writer(
        lambda folder: bulk.embed_texts(UNTRAINED, TEXTS, folder / name),
        lambda folder: {name: _READ_VECTORS[suffix](folder / name)} if (folder / name).exists() else {},
        lambda folder: bulk.embed_texts(UNTRAINED, TEXTS[::-1][:3], folder / name),
        for_others=True,
    )


def embed_folder(folder: Path) -> list[int]:
    """A data set in three parts."""
    result = embed_dataset(UNTRAINED, str(INDEXED), folder / "vectors", rows_per_part=2)
    return [result.n_rows, result.n_skipped, result.n_parts]


def read_folder(folder: Path) -> Content:
    """All rows of a folder that is whole; nothing of one that is not finished."""
    if not (folder / "vectors" / MANIFEST_FILE).exists():
        return {}
    if problems := verify_dataset(str(folder / "vectors"), UNTRAINED).problems:
        raise StorageError(problems[0])
    files = sorted((folder / "vectors").glob("part-*.parquet"))
    return {"rows": _read_rows([row for file in files for row in pyarrow.parquet.read_table(file).to_pylist()])}


def _read_rows(rows: list[dict[str, Any]]) -> list[Any]:
    return [[row["text"] for row in rows], rounded([row["embedding"] for row in rows])]


_READ_VECTORS: dict[str, Callable[[Path], Any]] = {
    ".npy": lambda file: rounded(np.load(file)),
    ".jsonl": lambda file: _read_rows([json.loads(line) for line in file.read_text().splitlines()]),
    ".parquet": lambda file: _read_rows(pyarrow.parquet.read_table(file).to_pylist()),
}

SPACE = {"backbone": "toy", "readings": [[0, "mean"]], "dtype": "float32"}


def store_latents(folder: Path, texts: list[str]) -> Any:
    """Latents as training stores them: those that are missing are computed and added, in two segments."""
    store, keys = Store(SPACE), text_keys(texts)
    for rows in np.array_split(store.missing(keys), 2):
        if len(rows):
            store.add(keys[rows], toy_latents([texts[row] for row in rows]))
    return rounded(store.read(keys)[:, 0])


def toy_latents(texts: list[str]) -> Any:
    return WordEncoder().encode(texts)[:, None]


def read_latents(folder: Path) -> Content:
    store = Store(SPACE)
    keys = text_keys(TEXTS)
    return {
        text: rounded(store.read(keys[row : row + 1])[:, 0])
        for row, text in enumerate(TEXTS)
        if store.contains(keys[row : row + 1])[0]
    }


# --- search ---------------------------------------------------------------------------------------------------------

indexing._MIN_BATCH_CHUNKS = 4
CHUNKING = Chunking(16, 4)


def documents(version: int, count: int = 16) -> list[Document]:
    """Documents of which every third changes its words and length with the version."""
    versions = [version if number % 3 == 0 else 0 for number in range(count)]
    return [
        Document(f"d{number}", f"Word{number} version{own} of this text. " * (1 + (number + own) % 5), {"v": own})
        for number, own in enumerate(versions)
    ]


def open_index(folder: Path, encoder: Any = None) -> Index:
    encoder = encoder or WordEncoder()
    location = folder / "index"
    return Index.open(location, encoder) if Index.exists(location) else Index.create(location, encoder, CHUNKING)


def read_index(folder: Path) -> Content:
    """Every document with its chunks and vectors, after all files were verified, and the settings."""
    if not Index.exists(folder / "index"):
        return {}
    index = open_index(folder)
    index.verify()
    keys, vectors = index.store.read_vectors()
    chunks = index.store.read_chunks(keys)
    content: Content = {"fusion": repr(index.header.fusion)}
    for key, vector in sorted(zip(keys, rounded(vectors) if keys else [], strict=True)):
        content.setdefault(chunks[key].document, []).append([chunks[key].text, chunks[key].metadata, vector])
    reranker = index.load_reranker() if (folder / "index" / "pair_head.safetensors").exists() else None
    content["reranker"] = reranker and rounded(reranker.weights)
    hits = index.search("word3 version0", mode="lexical")
    assert {hit.id for hit in hits} <= content.keys()
    return content


def search_index(folder: Path) -> Content:
    """The hits of a few searches."""
    index = open_index(folder)
    reranker = index.load_reranker() if (folder / "index" / "pair_head.safetensors").exists() else None
    queries = [("word3 version0", mode) for mode in ("dense", "lexical", "hybrid")]
    found = {mode: index.search(query, mode=mode) for query, mode in queries}
    if reranker:
        found["reranked"] = index.search("word3 version0", rerank=reranker)
    return {mode: [[hit.id, hit.text, round(float(hit.score), 4)] for hit in hits] for mode, hits in found.items()}


def tune_index(folder: Path) -> None:
    index = open_index(folder)
    index.set_fusion(Fusion("rrf", 0.25))
    index.learn_reranker(PAIRS)


migration._EMBEDDED_DOCUMENTS = migration._MAPPED_DOCUMENTS = 8
migration._MIN_SAMPLE = 100


def move_index(folder: Path, encoder: Any, map: str | None = None) -> None:
    migrate(folder / "index", encoder, map=map, min_recall=0.0)


def read_moved(folder: Path) -> Content:
    """The whole index as one part, read with the encoder that its header names."""
    header = json.loads((folder / "index" / "index.json").read_text())
    names = {"words-32-0": WordEncoder(), "words-24-1": WordEncoder(24, seed=1)}
    index = Index.open(folder / "index", names.get(header["space"]["fingerprint"]))
    index.verify()
    keys, vectors = index.store.read_vectors()
    chunks = index.store.read_chunks(keys)
    rows = [[chunks[key].text, vector] for key, vector in sorted(zip(keys, rounded(vectors), strict=True))]
    hits = sorted(hit.id for hit in index.search("word3 version0", 100, mode="lexical"))
    return {"index": [header["space"]["fingerprint"], rows, hits]}


MIRRORED = Path(tempfile.mkdtemp()) / "texts"


def index_folder(folder: Path, version: int) -> None:
    """Mirror a folder in which files appear, change, are renamed and disappear with the version."""
    shutil.rmtree(MIRRORED, ignore_errors=True)
    MIRRORED.mkdir()
    for number, document in enumerate(documents(version, 8)[version * 2 :]):
        name = f"new-{document.id}" if version and number == 1 else document.id
        (MIRRORED / f"{name}.txt").write_text(document.text)
    open_index(folder).add(MIRRORED)


def read_mirror(folder: Path) -> Content:
    origins = SourceRecord(folder / "index" / "sources.json").of(MIRRORED)
    return {**read_index(folder), "sources": sorted(origins)}


# --- results --------------------------------------------------------------------------------------------------------

TASKS = write_toy_tasks(Path(tempfile.mkdtemp()) / "tasks")


def run_evaluation(folder: Path, tasks: str) -> Any:
    document = evaluate(TopicEncoder(), TASKS, tasks=tasks, json_file=folder / "results.json")
    return {name: result["score"] for name, result in document["tasks"].items()}


def read_evaluation(folder: Path) -> Content:
    if not (folder / "results.json").exists():
        return {}
    document = storage.read_json(folder / "results.json", "evaluate again")
    return {name: result["score"] for name, result in document["tasks"].items()}


SWEEP, OTHER_SWEEP = (
    run_sweep(MODEL, PAIRS, SweepPlan(("plain",), (pooling,), ("causal",)), backbone=BACKBONE)
    for pooling in ("mean", "lasttoken")
)


def read_sweep(folder: Path) -> Content:
    if not (folder / "sweep" / "sweep.json").exists():
        return read_encoder("sweep/encoder")(folder)
    document = storage.read_json(folder / "sweep" / "sweep.json", "sweep again")
    return {"rows": [document["winner"], document["rows"]], **read_encoder("sweep/encoder")(folder)}


def measure(folder: Path, texts: list[str]) -> None:
    plan = DimensionPlan(neighbours=5)
    measure_dimension([UNTRAINED], texts, out=folder / "dimension.json", plan=plan)


def read_measured(folder: Path) -> Content:
    """The curve, as `d2v analyze` reads it to compare it with others."""
    if not (folder / "dimension.json").exists():
        return {}
    curve = measure_dimension([folder / "dimension.json"])
    return {"dimension.json": [[row["twonn"], row["mle"]] for row in curve["layers"]]}


MATCHING = match_sides(JOBS, RESUMES, LetterEncoder())


def export_as(format: str) -> Writer:
    """An export, compared byte by byte; the check in another process is left out, since it writes nothing there."""
    models = {"peft": PLAIN, "cross-encoder": Reranker(BACKBONE, RerankerSpec(MODEL, "yes_no"))}
    model = models.get(format, UNTRAINED)

    def write(folder: Path) -> None:
        with (
            patch.object(sentence_transformers, "reload_differences", lambda exports: [0.0] * len(exports)),
            patch.object(cross_encoder, "_check_scores", lambda *_: ""),
            patch.object(onnx, "compare_with_onnxruntime", lambda *_: (0.0, 1.0)),
        ):
            formats.export(model, format, folder / "export")

    return Writer(write, lambda folder: read_bytes(folder / "export"), for_others=True)


def read_bytes(folder: Path) -> Content:
    """Every file of a folder that is written once."""
    files = sorted(file for file in folder.rglob("*") if file.is_file())
    return {"folder": {file.relative_to(folder).as_posix(): file.read_bytes().hex() for file in files}} if files else {}


# --- commands -------------------------------------------------------------------------------------------------------


class CommandFailed(Exception):
    """What a command printed before it ended with exit code 1."""


def command(*arguments: object) -> None:
    """Run d2v in this process."""
    with patch.object(sys, "argv", ["d2v", *map(str, arguments)]):
        try:
            main()
        except SystemExit as end:
            if end.code:
                raise CommandFailed(end.code) from None


def command_embed(folder: Path) -> None:
    texts = folder / "texts.txt"
    command("embed", texts, "--encoder", MODEL, "--out", folder / "vectors.npy", "--device", "cpu")


INDEXED = Path(tempfile.mkdtemp()) / "texts.txt"  # elsewhere, since all files of an index are damaged, and only those
INDEXED.write_text("\n".join(TEXTS) + "\n")
SAVED = str(UNTRAINED.save(Path(tempfile.mkdtemp()) / "encoder"))


def command_embed_lance(folder: Path) -> None:
    """A data set in two parts, and a table of Lance."""
    options = ("--rows-per-part", 4, "--lance", "--device", "cpu", "--dtype", "float32")
    command("embed", INDEXED, "--encoder", SAVED, "--out", folder / "vectors", *options)


def read_lance(folder: Path) -> Content:
    """The rows of the parts, and those of the table."""
    content, table = read_folder(folder), folder / "vectors" / LANCE_TABLE
    if content and table.exists():
        content["table"] = _read_rows(lancedb.connect(table.parent).open_table(table.stem).to_arrow().to_pylist())
    return content


def command_prune(model: str) -> Callable[[Path], None]:
    """Remove the tokens that texts do not use from a model or an encoder."""

    def prune(folder: Path) -> None:
        command("prune", model, "--out", folder / "pruned", "--vocabulary", INDEXED, "--device", "cpu")

    return prune


def command_index(folder: Path) -> None:
    command("index", INDEXED, "--encoder", MODEL, "--out", folder / "index", "--device", "cpu")


def command_mine(folder: Path) -> None:
    arguments = ("--encoder", MODEL, "--out", folder / "mined.jsonl", "--margin", 1, "--device", "cpu")
    command("data", "mine", folder / "pairs.tsv", *arguments)


def write_pairs(folder: Path) -> None:
    rows = [f"{anchor}\t{positive}" for anchor, positive in zip(LABELLED.left[:6], LABELLED.right[:6], strict=True)]
    (folder / "pairs.tsv").write_text("\n".join(["anchor\tpositive", *rows]) + "\n")
    (folder / "mined.jsonl").write_text("earlier\n")


def read_command_index(folder: Path) -> Content:
    if not Index.exists(folder / "index"):
        return {}
    index = Index.open(folder / "index", device="cpu")
    index.verify()
    return {"index": True, **index.store.document_digests()}


def write_texts(folder: Path) -> None:
    (folder / "texts.txt").write_text("\n".join(TEXTS) + "\n")


WRITERS: dict[str, Writer] = {
    "encoder": Writer(
        lambda folder: discard(ENCODER.save(folder / "encoder", copy_backbone=True)),
        read_encoder("encoder"),
        lambda folder: OTHER.save(folder / "encoder"),
    ),
    "reranker": Writer(
        lambda folder: discard(trained_reranker(0).save(folder / "reranker", copy_backbone=True)),
        read_reranker,
        lambda folder: trained_reranker(1).save(folder / "reranker"),
    ),
    **{f"embed {suffix}": embed(suffix) for suffix in (".npy", ".jsonl", ".parquet")},
    "embed folder": Writer(embed_folder, read_folder),
    "latents": Writer(
        lambda folder: store_latents(folder, TEXTS),
        read_latents,
        lambda folder: store_latents(folder, TEXTS[:2]),
        is_cache=True,
    ),
    "index create": Writer(lambda folder: discard(open_index(folder)), read_index),
    "index create with encoder": Writer(lambda folder: discard(open_index(folder, UNTRAINED)), read_command_index),
    "index add": Writer(
        lambda folder: discard(open_index(folder).add(documents(1))),
        read_index,
        lambda folder: open_index(folder).add(documents(0, 12)),
        search_index,
    ),
    "index fill": Writer(lambda folder: discard(open_index(folder).add(documents(0, 6))), read_index, open_index),
    "index delete": Writer(
        lambda folder: discard(open_index(folder).delete(["d1", "d2"])),
        read_index,
        lambda folder: open_index(folder).add(documents(0, 6)),
    ),
    "index ann": Writer(
        lambda folder: open_index(folder).build_ann("ivf_rq"),
        lambda folder: {**read_index(folder), "ann": open_index(folder).header.ann},
        lambda folder: open_index(folder).add(documents(0, 12)),
        search_index,
    ),
    "index tune": Writer(tune_index, read_index, lambda folder: open_index(folder).add(documents(0, 6)), search_index),
    "index migrate": Writer(
        lambda folder: move_index(folder, UNTRAINED),
        read_moved,
        lambda folder: open_index(folder).add(documents(0, 30)),
    ),
    "index migrate by map": Writer(
        lambda folder: move_index(folder, WordEncoder(24, seed=1), "procrustes"),
        read_moved,
        lambda folder: open_index(folder).add(documents(0, 80)),
    ),
    "index folder": Writer(
        lambda folder: index_folder(folder, 1), read_mirror, lambda folder: index_folder(folder, 0), search_index
    ),
    "calibrate": Writer(
        lambda folder: fit_curves(folder / "encoder"),
        read_calibrated("encoder"),
        lambda folder: LEXICAL.save(folder / "encoder"),
    ),
    "calibrate copy": Writer(
        lambda folder: fit_curves(folder / "encoder", folder / "copy"), read_calibrated("copy"), save_calibrated_copy
    ),
    "calibrate index": Writer(
        lambda folder: fit_curves(folder / "index"),
        lambda folder: {**read_command_index(folder), **read_calibrated("index/encoder")(folder)},
        lambda folder: open_index(folder, LEXICAL).add(documents(0, 6)),
    ),
    "evaluate": Writer(
        lambda folder: run_evaluation(folder, "all"),
        read_evaluation,
        lambda folder: run_evaluation(folder, "mine"),
    ),
    "analyze": Writer(
        lambda folder: measure(folder, [*LABELLED.left[:6], *LABELLED.right]),
        read_measured,
        lambda folder: measure(folder, [*TEXTS, *LABELLED.left[:6]]),
    ),
    "sweep": Writer(
        lambda folder: discard(write_sweep(SWEEP, folder / "sweep")),
        read_sweep,
        lambda folder: write_sweep(OTHER_SWEEP, folder / "sweep"),
    ),
    "report": Writer(
        lambda folder: discard(report(folder / "sweep", folder / "page")),
        lambda folder: {"page": (folder / "page" / "index.html").exists()},
        lambda folder: write_sweep(SWEEP, folder / "sweep"),
    ),
    "match page": Writer(
        lambda folder: discard(match_report(MATCHING, folder / "page.html")),
        read_text("page.html"),
        lambda folder: (folder / "page.html").write_text("earlier"),
        for_others=True,
    ),
    "concepts": Writer(
        lambda folder: ConceptSet(frozenset({"dog", "cat"})).write(folder / "concepts.txt"),
        read_text("concepts.txt"),
        lambda folder: ConceptSet(frozenset({"bird"})).write(folder / "concepts.txt"),
        for_others=True,
    ),
    "matcher": Writer(
        lambda folder: discard(MATCHERS["follows"].save(folder / "matcher")),
        read_matcher,
        lambda folder: MATCHERS["precedes"].save(folder / "matcher"),
    ),
    "merge": Writer(
        lambda folder: discard(merge([folder / "a", folder / "b"], folder / "merged")),
        read_encoder("merged"),
        save_two,
    ),
    "merge models": Writer(
        lambda folder: discard(merge([folder / "a", folder / "b"], folder / "merged")),
        read_encoder("merged"),
        save_two_models,
    ),
    "prune": Writer(
        lambda folder: discard(write_pruned(BACKBONE, 2, folder / "pruned")),
        lambda folder: read_bytes(folder / "pruned"),
        for_others=True,
    ),
    "d2v prune --vocabulary": Writer(
        command_prune(MODEL), lambda folder: read_bytes(folder / "pruned"), for_others=True
    ),
    "d2v prune --vocabulary of an encoder": Writer(command_prune(SAVED), read_encoder("pruned")),
    **{f"export {format}": export_as(format) for format in formats.FORMATS},
    "tiny model": Writer(
        lambda folder: discard(tiny_folder("tiny-gpt2")),
        lambda folder: read_bytes(Path(os.environ["D2V_CACHE"]) / "models"),
        use=lambda folder: read_bytes(tiny_folder("tiny-gpt2")),
    ),
    "gguf": Writer(lambda folder: encode_with(GGUF_FILE), read_converted, use=lambda folder: encode_with(GGUF_FILE)),
    "d2v embed": Writer(
        command_embed,
        lambda folder: (
            {"vectors": _READ_VECTORS[".npy"](folder / "vectors.npy")} if (folder / "vectors.npy").exists() else {}
        ),
        write_texts,
        for_others=True,
    ),
    "d2v embed --lance": Writer(command_embed_lance, read_lance),
    "d2v index": Writer(command_index, read_command_index),
    "d2v data mine": Writer(command_mine, read_text("mined.jsonl"), write_pairs, for_others=True),
}
