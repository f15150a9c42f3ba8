"""Toy files of `d2v train`: run.json and results.json."""

from __future__ import annotations

import json

import numpy as np

SOURCES = {"one": ["lasttoken of '{text}'"], "two": ["lasttoken of 'Cost: $5 or $6? {text}'", "mean of '{text}'"]}


def make_record(name="step5", sources="one", depth=4):
    """A run.json."""
    readings = [
        {"reading": f"layer {layer}, {source}", "layer": layer}
        for source in SOURCES[sources]
        for layer in range(1, depth + 1)
    ]
    count = len(readings)
    curve = [round(50 + 3.5 * n, 2) for n in range(count)]
    pair = {"left": "A <b>bold</b> claim & more", "right": "naïve café 😀", "truth": 0.9, "score": 0.2}
    errors = np.random.default_rng(0).normal(0.02, 0.2, 60)
    return {
        "readings": readings,
        "layers": {
            "data": "stsb-dev",
            "raw": {"pearson": curve, "spearman": curve[::-1]},
            "codes": {"pearson": [v + 5 for v in curve], "spearman": [v + 6 for v in curve]},
            "weights": [1 / count] * count,
            "without": [80.0 - n for n in range(count)],
            "all": 82.5,
        },
        "parameters": {"trained": 1_206_000, "backbone": 134_000_000, "percent": 0.9},
        "examples": [{**pair, "paper": 0.5}, {**pair, "left": "Another.", "truth": 0.1, "paper": 0.9}],
        "errors": {"data": "stsb-test", "all": [round(float(error), 4) for error in errors], "worst": [pair]},
        "recipe": "freeze",
        "name": name,
    }


def make_results(name="step5", seeds=(0, 1), count=4, pretrain=True, head="mlp"):
    """A results.json."""
    return {
        "config": {
            "name": name,
            "freeze": {"latents": [{"template": "plain", "layers": "all"}], "head": head, "choose_by": "pearson"},
        },
        "command": f"d2v train {name}.toml",
        "backbone": {"name": "tiny-llama", "fingerprint": "0"},
        "seeds": [make_seed(seed, count, pretrain) for seed in seeds],
        "best_seed": seeds[0],
        "notes": ["2 of 199 pairs of test also stand in the training data"],
    }


def make_seed(seed, count, pretrain):
    """One entry of `seeds`."""
    history = {"losses": [0.9, 0.5, 0.4], "scores": [60.0, 70.0, 69.0], "best": 1, "start": 40.0}
    notes = {"training": history}
    if pretrain:
        notes["pretraining"] = {
            **{**history, "scores": [-3.0, -2.0, -1.0], "start": -4.0},
            "stage": "autoencoders",
            "error": [10.0 ** (n % 4) + seed for n in range(count)],
            "unexplained": [0.1 * (n % 4 + 1) for n in range(count)],
        }
    return {
        "seed": seed,
        "dev": {"stsb-dev": {"spearman": 80.0 + seed, "pearson": 81.0 + seed}},
        "test": {"stsb-test": {"spearman": 70.0 + seed, "pearson": 71.0 + seed}},
        "checks": {"equal texts": 1.0, "full stop": 0.98, "random pairs": 0.1},
        "notes": notes,
    }


def write_run(folder, record, results):
    """Write an encoder folder with the files of a run and return it; files that are None are left out."""
    folder.mkdir(parents=True)
    for name, document in (("encoder.json", {"head": None}), ("run.json", record), ("results.json", results)):
        if document is not None:
            (folder / name).write_text(json.dumps(document), encoding="utf-8")
    return folder
