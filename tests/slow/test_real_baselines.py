"""Baselines on real data: set D2V_DATA to a folder with sts/stsb-test.tsv and retrieval/scifact."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from sklearn.metrics import ndcg_score

from decoder2vec.errors import BackboneError
from decoder2vec.evaluation.baselines import load_encoder
from decoder2vec.evaluation.similarity import evaluate_sts, load_pairs
from decoder2vec.text.files import read_columns, read_rows

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def data():
    folder = Path(os.environ.get("D2V_DATA", "nowhere"))
    if not (folder / "sts" / "stsb-test.tsv").is_file() or not (folder / "retrieval" / "scifact").is_dir():
        pytest.skip("D2V_DATA does not name a folder with sts/stsb-test.tsv and retrieval/scifact")
    return folder


def test_all_minilm_has_its_published_score_on_stsb(data):
    try:
        encoder = load_encoder("all-minilm-l6-v2")
    except BackboneError as error:
        pytest.skip(str(error))
    assert evaluate_sts(encoder, load_pairs(data / "sts" / "stsb-test.tsv"))["spearman"] == pytest.approx(
        82.03, abs=0.1
    )


def test_bm25_has_its_published_score_on_scifact(data):
    """Published implementations of BM25 reach nDCG@10 of 66.5 to 69."""
    folder = data / "retrieval" / "scifact"
    documents, queries = ([row for _, row in read_rows(folder / f"{name}.jsonl.gz")] for name in ("corpus", "queries"))
    relevant = set(read_columns(folder / "qrels-test.tsv", ("query-id", "corpus-id")))
    scores = load_encoder("bm25").relevance(
        [query["text"] for query in queries], [f"{document['title']} {document['text']}" for document in documents]
    )
    truth = np.array([[(query["_id"], document["_id"]) in relevant for document in documents] for query in queries])
    assert 0.67 < ndcg_score(truth, scores, k=10) < 0.70
