"""Distil with one change at a time, and score every row on dev data, also with vectors that are cut or rounded.

Each row trains LoRA of rank 32 from the untrained model for 320 steps of 24,576 tokens, on the first texts of the pool
and those of some pairs, but not on the pairs, unless the row says so. Scores: Spearman correlation on STS-B and SICK-R
dev, nDCG@10 of the dev queries of SciFact and Quora.

Run: python experiments/general/ablations.py POOL DATA OUT.json --teachers mpnet=FOLDER bge=FOLDER [--rows NAME ...]
A second run with the same OUT.json computes the rows that are missing.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from decoder2vec.adapters.lora import Lora
from decoder2vec.backbone.backbone import Backbone
from decoder2vec.backbone.machine import choose_device
from decoder2vec.config import to_table
from decoder2vec.encoder import Encoder, spec_from_kwargs
from decoder2vec.evaluation.tasks.retrieval import Retrieval
from decoder2vec.evaluation.tasks.sts import STS
from decoder2vec.evaluation.tasks.task import Task, TaskVectors
from decoder2vec.maths.losses import round_trip
from decoder2vec.storage import versions, write_json
from distill_packed import (
    DistillationLoss,
    Settings,
    centre,
    draw_batches,
    prefetched,
    read_pool,
    train,
    training_dtype,
)
from packed_pool import add_arguments, keep_texts, pack_texts, read_teachers, some_pairs
from token_table import TokenTable

Matrix = NDArray[np.float32]

SETTINGS = Settings(steps=320, batch_tokens=24_576, pair_share=0, long_documents=0)
CONTRASTIVE = Settings(
    steps=300, batch_tokens=24_576, pair_share=1, vectors=0, similarities=0, kl=0, info_nce=1, long_documents=0
)
"""A training on the pairs of the pool without teachers, except that they tell false negatives."""
_PAIRS = 5000
"""Of a source, at most."""


class Row(NamedTuple):
    """What is changed."""

    changes: Mapping[str, Any] = {}
    start: Settings | None = None
    """A training that comes first."""


ROWS = {
    "none": Row(),
    "seed 1": Row({"seed": 1}),
    "seed 2": Row({"seed": 2}),
    "Matryoshka: 64, 128 and 256 dimensions match, too": Row({"dims": (64, 128, 256)}),
    "quantisation-aware: int8 and binary match, too": Row({"precisions": ("int8", "binary")}),
    "both": Row({"dims": (64, 128, 256), "precisions": ("int8", "binary")}),
    "from a contrastive LoRA of 300 steps": Row(start=CONTRASTIVE),
}

VIEWS: dict[str, Callable[[Tensor], Tensor]] = {
    "float32": lambda vectors: vectors,
    "256 dimensions": lambda vectors: vectors[:, :256],
    "128 dimensions": lambda vectors: vectors[:, :128],
    "64 dimensions": lambda vectors: vectors[:, :64],
    "int8": lambda vectors: round_trip(vectors, "int8"),
    "binary": lambda vectors: round_trip(vectors, "binary"),
}


class Texts(NamedTuple):
    """What every row is trained on."""

    table: TokenTable
    pairs: dict[str, NDArray[np.intp]]
    targets: list[Tensor]


def dev_tasks(data: Path) -> list[Task]:
    """The tasks that rows are scored on."""
    return [
        STS.read(data / "sts" / "stsb-dev.tsv", "stsb"),
        STS.read(data / "sts" / "sickr-dev.tsv", "sickr"),
        Retrieval.read(data / "retrieval" / "scifact", "scifact", "dev"),
        Retrieval.read(data / "retrieval" / "quora-mini", "quora-mini", "dev"),
    ]


def score(encoder: Encoder, tasks: Sequence[Task]) -> dict[str, dict[str, float]]:
    """The score of each task, for every way to store the vectors."""
    scores: dict[str, dict[str, float]] = {view: {} for view in VIEWS}
    for task in tasks:
        vectors = {role: (texts, torch.from_numpy(encoder.encode(texts))) for role, texts in task.texts().items()}
        for name, view in VIEWS.items():
            viewed: Any = {role: (texts, view(of).numpy()) for role, (texts, of) in vectors.items()}
            scores[name][task.name] = round(task.score(TaskVectors(viewed)).score, 2)
    return scores


def train_row(row: Row, texts: Texts, model: str, device: torch.device) -> tuple[Encoder, dict[str, Any]]:
    """Train a row; return its encoder, with its settings and last losses."""
    settings = replace(SETTINGS, **row.changes)
    torch.manual_seed(settings.seed)
    backbone = Backbone.load(model, attention="bidirectional", device=device, dtype=training_dtype(device))
    lora = Lora.initialise(backbone, settings.rank, settings.alpha).to(device)
    log: list[dict[str, float]] = []
    for part in (row.start, settings):
        if part is not None:
            loss = DistillationLoss(backbone.dim, texts.targets, [1.0] * len(texts.targets), part).to(device)
            batches = prefetched(draw_batches(texts.table, texts.pairs, part, device))
            log = train(backbone, lora.requires_grad_(True), loss, batches, part)
    lora.compiled = False
    reading = {"pooling": "mean", "normed": True, "template": "plain", "max_length": settings.max_length}
    encoder = Encoder(backbone.with_adapter(lora), spec_from_kwargs(model, {**reading, "normalize": "rms"}))
    return encoder, {"settings": to_table(settings), "losses": log[-1]}


def main() -> None:
    """Read the options, and train and score the rows that are missing."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pool", type=Path)
    parser.add_argument("data", type=Path, help="laid out for d2v eval")
    parser.add_argument("out", type=Path, help="a JSON file")
    parser.add_argument("--texts", type=int, default=300_000, help="of the pool, and those of some pairs")
    parser.add_argument("--rows", nargs="+", default=list(ROWS), choices=ROWS)
    parser.add_argument("--cache", type=Path, help="folder in which tokens and vectors of teachers are kept")
    add_arguments(parser)
    arguments = parser.parse_args()
    torch.set_float32_matmul_precision("high")
    device = choose_device(None)
    teachers = read_teachers(arguments.teachers)
    start = Encoder.load(arguments.start, device="cpu", dtype="float32").backbone
    tasks = dev_tasks(arguments.data)
    texts = read_texts(arguments.pool, arguments.texts, start, teachers, device, arguments.cache, arguments.processes)
    results: dict[str, Any] = {"command": shlex.join(["python", *sys.argv]), "versions": versions(), "rows": {}}
    if arguments.out.is_file():
        results = json.loads(arguments.out.read_text("utf-8"))
    for name in arguments.rows:
        if name not in results["rows"]:
            encoder, record = train_row(ROWS[name], texts, start.name, device)
            results["rows"][name] = {**record, "dev": score(encoder, tasks)}
            write_json(arguments.out, results)
            print(name, json.dumps(results["rows"][name]["dev"]), flush=True)


def read_texts(
    folder: Path,
    count: int,
    backbone: Backbone,
    teachers: Mapping[str, Any],
    device: torch.device,
    cache: Path | None,
    processes: int,
) -> Texts:
    """The first texts of the pool, some pairs with their texts, and the teachers' centred vectors."""
    pool = some_pairs(read_pool(folder), _PAIRS)
    of_pairs = (of.ravel() for of in pool.pairs.values())
    pool = keep_texts(pool, np.unique(np.concatenate([np.arange(min(count, len(pool.texts))), *of_pairs])))
    table, vectors = pack_texts(pool.texts, backbone, teachers, device, cache=cache, processes=processes)
    return Texts(table, pool.pairs, [centre(of) for of in vectors])


if __name__ == "__main__":
    main()
