"""Describe texts from the vectors of all-MiniLM-L6-v2, and search these vectors with an encoder that never saw them.

    python experiments/bridge/study.py vectors DATA/pool WORK --items 100000     # needs all-minilm-l6-v2
    python experiments/bridge/study.py train WORK --lora 32 --epochs 10          # a GPU, or hours
    python experiments/bridge/study.py score WORK results/bridge/minilm.json     # needs all-minilm-l6-v2

`vectors` takes texts of the pool, and pairs for the search: the vector of the second text of each is searched for by
the first. `train` trains both bridges; a stopped run goes on. It needs neither the other encoder nor typer. `score`
encodes the descriptions again: cosine with the vector that was described, and its rank among all test vectors.
Everything is measured with real, zeroed and shuffled vectors on texts that were not trained on, with 95 % bootstrap
intervals.
"""

from __future__ import annotations

import argparse
import json
import random
import shlex
import sys
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import decoder2vec as d2v
from decoder2vec.bridge.control import ARMS, ScoreInterval, control_vectors
from decoder2vec.bridge.vectors import read_captioned_vectors
from decoder2vec.maths.bootstrap import Floats, difference, mean_scorer, resample
from decoder2vec.maths.similarity import normalise
from decoder2vec.storage import versions, write_json
from decoder2vec.text.files import read_rows

ORIGIN = "all-minilm-l6-v2"
TEST = 1000
WORDS = (5, 30)
"""Fewest and most words of a text."""


def main() -> None:
    """Run one of the three steps."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    steps = parser.add_subparsers(required=True)
    vectors = steps.add_parser("vectors")
    vectors.add_argument("pool", type=Path)
    vectors.add_argument("work", type=Path)
    vectors.add_argument("--items", type=int, default=100_000)
    vectors.add_argument("--test", type=int, default=TEST)
    vectors.set_defaults(step=write_vectors)
    train = steps.add_parser("train")
    train.add_argument("work", type=Path)
    train.add_argument("--model", default="smollm2-135m")
    train.add_argument("--encoder", default="smollm2-135m-general")
    train.add_argument("--tokens", type=int, default=16)
    train.add_argument("--lora", type=int, default=0)
    train.add_argument("--epochs", type=int, default=10)
    train.add_argument("--tune-epochs", type=int, default=3)
    train.add_argument("--batch", type=int, default=128)
    train.add_argument("--dtype")
    train.add_argument("--seed", type=int, default=0)
    train.set_defaults(step=train_bridges)
    score = steps.add_parser("score")
    score.add_argument("work", type=Path)
    score.add_argument("out", type=Path)
    score.set_defaults(step=score_descriptions)
    args = parser.parse_args()
    args.step(args)


def write_vectors(args: argparse.Namespace) -> None:
    """Draw texts and pairs from the pool and write them with the vectors of the other encoder."""
    args.work.mkdir(parents=True, exist_ok=True)
    generator = random.Random(0)
    texts = [row["text"] for _, row in read_rows(args.pool / "texts-1.tsv.gz") if is_short(row["text"])]
    texts = generator.sample(list(dict.fromkeys(texts)), args.items + args.test)
    rows = (row for _, row in read_rows(args.pool / "pairs-1.tsv.gz"))
    pairs = [(row["text1"], row["text2"]) for row in rows if is_short(row["text2"]) and row["text1"].strip()]
    pairs = generator.sample(list(dict(pairs).items()), args.test)
    encoder = d2v.load_encoder(ORIGIN)
    parts = {
        "items": texts[args.test :],
        "test": texts[: args.test],
        "queries": [query for query, _ in pairs],
        "answers": [answer for _, answer in pairs],
    }
    for name, part in parts.items():
        np.save(args.work / f"{name}.npy", encoder.encode(part))
        (args.work / f"{name}.txt").write_text("".join(f"{text}\n" for text in part), encoding="utf-8")
        print(name, len(part), flush=True)


def is_short(text: str) -> bool:
    """Whether a text is one line of a length that can be described."""
    return WORDS[0] <= len(text.split()) <= WORDS[1] and not {"\n", "\r"} & set(text)


def train_bridges(args: argparse.Namespace) -> None:
    """Train both bridges, describe the test vectors, and search."""
    data = read_captioned_vectors(args.work / "items.npy")
    test = read_captioned_vectors(args.work / "test.npy")
    record: dict[str, Any] = {"command": shlex.join(["python", *sys.argv])}
    record["settings"] = {key: str(value) for key, value in vars(args).items() if key != "step"}
    for objective, model in (("lm", args.model), ("contrastive", args.encoder)):
        config = d2v.BridgeConfig(objective, tokens=args.tokens, rank=args.lora, seed=args.seed)
        config = replace(
            config,
            training=replace(config.training, epochs=args.epochs, batch=args.batch),
            tuning=replace(config.tuning, epochs=args.tune_epochs, batch=args.batch),
        )
        out = args.work / objective
        result = d2v.train_bridge(model, data, out, config, test=test, dtype=args.dtype, overwrite=True, notify=print)
        record[objective] = {key: result.results[key] for key in ("model", "data", "stages", "control")}
        print(objective, json.dumps(record[objective]["control"]["scores"]), flush=True)
        if objective == "lm":
            inputs = control_vectors(result.bridge, test.vectors)
            record["descriptions"] = {arm: result.bridge.describe(vectors) for arm, vectors in inputs.items()}
        else:
            record["pairs"] = search_pairs(result.bridge, args.work)
    record["versions"] = versions()
    write_json(args.work / "record.json", record)


def search_pairs(bridge: d2v.Bridge, work: Path) -> dict[str, Any]:
    """Search of second texts by first texts: through the bridge, and by each encoder on both sides."""
    queries, answers = (read_captioned_vectors(work / f"{name}.npy") for name in ("queries", "answers"))
    encoder = bridge.encoder
    inputs = control_vectors(bridge, answers.vectors)
    by_encoder = encoder.encode_query(list(queries.captions))
    arms: dict[str, tuple[NDArray[np.float32], NDArray[np.float32]]] = {
        **{f"bridge, {arm} vectors": (by_encoder, bridge.encode(vectors)) for arm, vectors in inputs.items()},
        "encoder on both sides": (by_encoder, encoder.encode_document(list(answers.captions))),
        f"{ORIGIN} on both sides": (queries.vectors, answers.vectors),
    }
    return {name: retrieval(*sides) for name, sides in arms.items()}


def retrieval(queries: NDArray[np.float32], documents: NDArray[np.float32]) -> dict[str, Any]:
    """Recall@1, recall@10 and reciprocal rank, in percent, of the document of each query among all."""
    ranks = own_ranks(normalise(queries) @ normalise(documents).T)
    values = {"recall@1": 100.0 * (ranks <= 1), "recall@10": 100.0 * (ranks <= 10), "reciprocal rank": 100 / ranks}
    return {name: asdict(interval(each)) for name, each in values.items()}


def own_ranks(similarities: NDArray[np.float32]) -> Floats:
    """[n] rank of the diagonal in each row; of equal similarities half are in front."""
    own = np.diag(similarities)[:, None]
    return np.asarray(1 + (similarities > own).sum(1) + ((similarities == own).sum(1) - 1) / 2, np.float64)


def interval(values: NDArray[np.floating]) -> ScoreInterval:
    """Mean with its bootstrap interval."""
    mean, samples = resample(mean_scorer(np.asarray(values, np.float64)[None]), len(values))
    return ScoreInterval(float(mean[0]), *map(float, np.quantile(samples[0], [0.025, 0.975])))


def score_descriptions(args: argparse.Namespace) -> None:
    """Encode the descriptions by the other encoder, and write all results."""
    record = json.loads((args.work / "record.json").read_text(encoding="utf-8"))
    test = read_captioned_vectors(args.work / "test.npy")
    encoder, targets = d2v.load_encoder(ORIGIN), normalise(test.vectors)
    cosines, ranks = [], []
    for arm in ARMS:
        described = normalise(encoder.encode(record["descriptions"][arm]))
        similarities = described @ targets.T
        cosines.append(100.0 * np.diag(similarities))
        ranks.append(own_ranks(similarities))
    metrics: dict[str, Callable[[Floats], Floats]] = {
        "recall@1": lambda rank: 100.0 * (rank <= 1),
        "recall@10": lambda rank: 100.0 * (rank <= 10),
        "reciprocal rank": lambda rank: 100 / rank,
    }
    tables = {"cosine": np.stack(cosines), **{name: np.stack(list(map(f, ranks))) for name, f in metrics.items()}}
    record["description vectors"] = {name: compare(values) for name, values in tables.items()}
    record["description vectors"]["median rank"] = {
        arm: float(np.median(r)) for arm, r in zip(ARMS, ranks, strict=True)
    }
    record["examples"] = [
        {"text": test.captions[row], **{arm: record["descriptions"][arm][row] for arm in ARMS}} for row in range(20)
    ]
    del record["descriptions"]
    args.out.parent.mkdir(parents=True, exist_ok=True)
    write_json(args.out, record)
    print(json.dumps(record["description vectors"], indent=1))


def compare(values: NDArray[np.floating]) -> dict[str, Any]:
    """Means of the [arms, items] values with intervals, and how much higher real vectors are."""
    scores, samples = resample(mean_scorer(np.asarray(values, np.float64)), values.shape[1])
    return {
        "scores": {arm: asdict(interval(values[row])) for row, arm in enumerate(ARMS)},
        "differences": {
            arm: asdict(difference(scores[0] - scores[row], samples[0] - samples[row]))
            for row, arm in enumerate(ARMS)
            if row
        },
    }


if __name__ == "__main__":
    main()
