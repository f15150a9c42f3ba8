"""Toy files of `d2v eval --tasks --json`, `d2v sweep` and `d2v analyze id`."""

from __future__ import annotations

import json

import numpy as np
from scipy import stats
from sklearn.metrics import average_precision_score

KINDS = {
    "stsb-test": "sts",
    "sickr-test": "sts",
    "scifact": "retrieval",
    "mrpc-test": "pair_classification",
    "20newsgroups": "clustering",
    "emotion": "classification",
}
METRICS = {"sts": "spearman", "retrieval": "ndcg@10", "pair_classification": "ap", "clustering": "v_measure"}
COUNTS = {"sts": 200, "retrieval": 100, "pair_classification": 200, "clustering": 10, "classification": 10}


def make_items(task, kind, quality, seed=0):
    """Per-item results of an encoder of some quality; the items of a task are the same for every encoder."""
    shared = np.random.default_rng(len(task))
    private = np.random.default_rng([seed, len(task)])
    count = COUNTS[kind]
    if kind in ("sts", "pair_classification"):
        gold = shared.integers(0, 6, count) if kind == "sts" else shared.integers(0, 2, count)
        noise = private.normal(0, 1, count) * gold.std() / quality
        return {"predicted": np.round(gold + noise, 6).tolist(), "gold": gold.tolist()}
    difficulty = shared.uniform(0, 0.5, count)
    return {"values": np.clip(1 - difficulty / quality + private.normal(0, 0.05, count), 0, 1).round(6).tolist()}


def score_of(kind, items):
    """The score in points, by scipy and scikit-learn."""
    if kind == "sts":
        return 100 * stats.spearmanr(items["predicted"], items["gold"]).statistic
    if kind == "pair_classification":
        return 100 * average_precision_score(items["gold"], items["predicted"])
    return 100 * float(np.mean(items["values"]))


def make_evaluation(name="mine", quality=1.0, seed=0, tasks=KINDS, flags=()):
    """An evaluation and its per-item results."""
    items = {task: make_items(task, kind, quality, seed) for task, kind in tasks.items()}
    scores = {}
    for task, kind in tasks.items():
        score = round(score_of(kind, items[task]), 2)
        scores[task] = {
            "kind": kind,
            "metric": METRICS.get(kind, "accuracy"),
            "score": score,
            "interval": [round(score - 2, 2), round(score + 2, 2)],
            "scores": {},
            "texts": 100,
            "seconds": 1.0,
        }
    if flags:
        scores[next(iter(tasks))]["flags"] = list(flags)
    document = {
        "encoder": {"name": name, "fingerprint": f"{name}-{seed}", "kind": "decoder", "dim": 576, "layers": 30},
        "tasks": scores,
        "summary": {},
        "cost": {
            "parameters": int(134e6 * quality),
            "tokens": 10_000,
            "seconds": 10.0,
            "tokens_per_second": 3000 / quality,
            "peak_megabytes": 700 * quality,
        },
        "versions": {"decoder2vec": "0.3", "torch": "2.13"},
        "command": f"d2v eval {name} --tasks all",
    }
    return document, items


def write_evaluation(folder, document, items, stem=None):
    """Write both files into a folder and return the path of the evaluation."""
    folder.mkdir(parents=True, exist_ok=True)
    stem = stem or document["encoder"]["name"]
    file = folder / f"{stem}.json"
    file.write_text(json.dumps(document), encoding="utf-8")
    if items is not None:
        (folder / f"{stem}.items.json").write_text(json.dumps(items), encoding="utf-8")
    return file


def make_sweep(model="tiny-llama", layers=4, data="stsb-dev"):
    """A sweep.json."""
    rows = [
        {
            "template": template,
            "attention": attention,
            "layer": layer,
            "normed": False,
            "pooling": pooling,
            "head": head,
            "spearman": round(30 + 5 * layer + 7 * (pooling == "mean") + 3 * (head != "none") + len(template) / 9, 2),
            "pearson": 20.0,
        }
        for template in ("plain", "prompteol")
        for attention in ("causal", "bidirectional")
        for layer in range(layers + 1)
        for pooling in ("lasttoken", "mean", "sum")
        for head in ("none", "standardise")
    ]
    rows.sort(key=lambda row: -row["spearman"])
    return {
        "model": model,
        "weights": "0",
        "data": {"name": data, "pairs": 9, "texts": 9},
        "plan": {"templates": ["plain", "prompteol"]},
        "winner": rows[0],
        "rows": rows,
    }


def make_dimensions(name="mine", layers=6):
    """An id.json."""
    return {
        "encoder": name,
        "fingerprint": "0",
        "texts": 500,
        "layers": [
            {"layer": n, "twonn": 8 + 2.0 * n - 0.3 * n * n, "twonn_95": [7 + 2.0 * n - 0.3 * n * n, 13.0], "mle": 9.0}
            for n in range(layers + 1)
        ],
        "area": 0.123,
    }
