"""What a release writes: an encoder, an index, a latents store, results and vectors; and what is read from them."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from pathlib import Path

import numpy as np

from decoder2vec.activations.extract import Extractor
from decoder2vec.activations.store import Store, text_keys
from decoder2vec.backbone.backbone import Backbone
from decoder2vec.config import Reading
from decoder2vec.encoder import Encoder
from decoder2vec.evaluation.vector_file import VectorFile
from decoder2vec.report.result_files import find_results
from decoder2vec.report.runs import find_runs
from decoder2vec.search.index import Index
from toys.command import d2v
from toys.gold import FOLDER, TEXTS, write_data

RELEASES = FOLDER.parent / "releases"
"""A folder for each release, by its version; 0.1.0 is in `FOLDER`."""
QUERY = "a dog in the rain"
CPU = ("--device", "cpu", "--dtype", "float32")


def write_release(target: Path) -> None:
    """Write the folders of this version and `recorded.json`, what it reads from them."""
    home = Path(tempfile.gettempdir()) / "decoder2vec-release"  # encoders name the path of their model
    home.mkdir()
    try:
        shutil.copytree(FOLDER / "backbone", home / "backbone")
        write_data(home / "data")
        (home / "data" / "few.txt").write_text("\n".join(TEXTS[:3]) + "\n", encoding="utf-8")
        before = Path.cwd()
        os.chdir(home)  # results name their sources as the commands do
        try:
            _write(Path("release"))
        finally:
            os.chdir(before)
        recorded = read_release(home / "release", home / "copy")
        (home / "release" / "recorded.json").write_text(json.dumps(recorded) + "\n", encoding="utf-8")
        shutil.copytree(home / "release", target)
    finally:
        shutil.rmtree(home)


def _write(out: Path) -> None:
    out.mkdir()
    d2v(
        *("train", "--recipe", "lora", "--backbone", "backbone", "--data", "data", "--out", out / "encoder"),
        *("--seeds", "1", "--set", "training.steps=2", "--set", "training.batch=4", "--set", "rank=2", *CPU),
    )
    results = out / "results"
    results.mkdir()
    d2v("eval", out / "encoder", "--data", "data/test.tsv", "--json", results / "eval.json", *CPU)
    d2v(
        *("sweep", "backbone", "--data", "data/dev.tsv", "--out", results / "sweep", *CPU),
        *("--templates", "plain", "--poolings", "mean", "--attentions", "causal"),
    )
    (results / "sweep" / "sweep.png").unlink()  # nothing reads it
    d2v("analyze", "id", "backbone", "--texts", "data/texts.txt", "--out", results / "id.json", *CPU)
    for suffix in ("npy", "jsonl", "parquet"):
        d2v("embed", "data/few.txt", "--out", out / f"vectors.{suffix}", "--encoder", out / "encoder", *CPU)
    d2v("index", "data/few.txt", "--out", out / "index", "--encoder", out / "encoder", *CPU)
    extractor = _extractor(Path("backbone"))
    extractor.fill(_store(extractor, out), TEXTS)


def _extractor(backbone: Path) -> Extractor:
    return Extractor(Backbone.load(backbone, device="cpu", dtype="float32"), [Reading(2, "mean")])


def _store(extractor: Extractor, release: Path) -> Store:
    return Store({**extractor.space(), "backbone": "backbone"}, root=release / "latents")


def read_release(release: Path, copy: Path) -> dict:
    """Read everything in the folder of a release.

    Args:
        release: The folder.
        copy: Where to copy it, since opening an index writes to it.
    """
    shutil.copytree(release, copy)
    for encoder in (copy / "encoder", copy / "index" / "encoder"):
        shutil.copytree(FOLDER / "backbone", encoder / "backbone")
    encoder = Encoder.load(copy / "encoder", device="cpu", dtype="float32")
    index = Index.open(copy / "index", device="cpu", dtype="float32")
    index.verify()
    hits = [(hit.id, hit.score) for hit in index.search(QUERY, 3, "dense")]
    extractor = _extractor(FOLDER / "backbone")
    latents = _store(extractor, copy).read(text_keys(TEXTS))
    found = find_results([copy / "results"])
    (run,) = find_runs(copy / "encoder")
    return json.loads(
        json.dumps(
            {
                "fingerprint": encoder.fingerprint,
                "vectors": encoder.encode(TEXTS).tolist(),
                "files": {file.name: _read_vectors(file) for file in sorted(copy.glob("vectors.*"))},
                "hits": hits,
                "latents": np.asarray(latents, np.float32).ravel().tolist(),
                "evaluations": [{task.name: task.score for task in one.tasks.values()} for one in found.evaluations],
                "sweeps": [[[row.layer, row.pooling, row.spearman] for row in sweep.rows] for sweep in found.sweeps],
                "dimensions": [[layer.twonn for layer in curve.layers] for curve in found.dimensions],
                "run": [run.plan, run.headline, run.trained_parameters, run.seeds[0].dev, run.seeds[0].test],
            }
        )
    )


def _read_vectors(file: Path) -> list:
    return (np.load(file) if file.suffix == ".npy" else VectorFile(file).encode(list(TEXTS[:3]))).tolist()
