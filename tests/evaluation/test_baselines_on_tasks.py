"""Baselines on the tasks of a folder, as the command opens them."""

from __future__ import annotations

import json

import numpy as np
import pytest

from decoder2vec.evaluation.baselines import load_encoder
from decoder2vec.evaluation.suite import Suite
from decoder2vec.evaluation.tasks.layout import find_tasks
from toys.command import d2v
from toys.tasks import write_all


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    return write_all(tmp_path_factory.mktemp("data"))


@pytest.fixture(autouse=True)
def own_vectors(tmp_path, monkeypatch):
    monkeypatch.setenv("D2V_CACHE", str(tmp_path / "cache"))


def test_bm25_ranks_documents_by_its_own_scores_and_encodes_none_of_them(home):
    bm25 = load_encoder("bm25")
    (task,) = (task for task in find_tasks(home, ["retrieval"]))
    asked = []
    encode = bm25.encode
    bm25.encode = lambda texts, **options: asked.extend(texts) or encode(texts, **options)
    found = Suite(bm25, [task]).run()["tasks"][task.name]
    assert asked == []

    values = []
    table = bm25.relevance(task.queries, task.documents)
    for scores, gains, own in zip(table, task.relevant, task.own, strict=True):
        order = [at for at in np.argsort(-scores, kind="stable") if at != own]
        gained = sum(gains.get(int(at), 0) / np.log2(rank + 2) for rank, at in enumerate(order[:10]))
        best = sum(gain / np.log2(rank + 2) for rank, gain in enumerate(sorted(gains.values(), reverse=True)[:10]))
        values.append(100 * gained / best)
    assert found["score"] == pytest.approx(np.mean(values), abs=1e-3)


@pytest.mark.parametrize("name", ["bm25", "random:32", "static:tiny-llama"])
def test_a_baseline_goes_through_every_kind_of_task(name, home, tmp_path):
    d2v("eval", name, "--tasks", "all", "--data", home, "--json", tmp_path / "out.json")
    document = json.loads((tmp_path / "out.json").read_text())
    kinds = {result["kind"] for result in document["tasks"].values()}
    assert kinds == {"sts", "retrieval", "reranking", "pair_classification", "clustering", "classification"}
    assert document["encoder"]["kind"] == name.partition(":")[0]


def test_a_baseline_is_scored_on_files_of_pairs_too(home, tmp_path):
    file = next((home / "sts").iterdir())
    d2v("eval", "random:16", "--data", file, "--json", tmp_path / "out.json")
    assert "mean_spearman" in json.loads((tmp_path / "out.json").read_text())
