"""The fusion is chosen on dev queries alone, and is the best on them."""

from __future__ import annotations

import hashlib
import json
import math

import pytest

from decoder2vec.errors import DataFileError, InputError
from decoder2vec.search.documents import Document
from decoder2vec.search.hybrid import Fusion
from decoder2vec.search.index import Index
from decoder2vec.search.tuning import choose_fusion, is_dev_query, ndcg_at_10, read_qrels, read_queries
from toys.encoder import WordEncoder


def test_dev_queries_are_three_tenths_by_sha1():
    ids = [str(number) for number in range(2000)]
    dev = [id for id in ids if is_dev_query(id)]
    assert dev == [id for id in ids if int.from_bytes(hashlib.sha1(id.encode()).digest(), "big") % 10 < 3]
    assert 500 < len(dev) < 700


def test_ndcg_equals_sklearn_and_a_sum_by_hand():
    relevances = {"a": 2.0, "b": 1.0, "c": 0.0}
    by_hand = (2 / math.log2(3) + 1 / 2) / (2 + 1 / math.log2(3))
    assert ndcg_at_10(["x", "a", "b"], relevances) == pytest.approx(by_hand)
    assert ndcg_at_10(["a", "b"], relevances) == 1
    assert ndcg_at_10([], relevances) == 0 and ndcg_at_10(["a"], {"a": 0.0}) == 0
    metrics = pytest.importorskip("sklearn.metrics")
    ids = [f"d{number}" for number in range(30)]
    truth = {id: float(number % 4) for number, id in enumerate(ids)}
    ranked = sorted(ids, key=lambda id: hashlib.sha1(id.encode()).hexdigest())
    scores = [[-ranked.index(id) for id in ids]]
    assert ndcg_at_10(ranked, truth) == pytest.approx(metrics.ndcg_score([list(truth.values())], scores, k=10))


@pytest.fixture
def index(tmp_path):
    """An index where words identify the document and vectors, with two dimensions only, hardly do."""
    index = Index.create(tmp_path / "index", WordEncoder(dim=2))
    index.add([Document(f"d{number}", f"subject{number} and more") for number in range(40)])
    return index


def toy_queries():
    queries = {f"q{number}": f"subject{number}" for number in range(40)}
    return queries, {f"q{number}": {f"d{number}": 1.0} for number in range(40)}


def test_better_ranking_gets_the_weight_and_index_keeps_it(index):
    result = choose_fusion(index.rank, *toy_queries())
    by_method = {score.method: score for score in result.scores}
    assert by_method["lexical"].dev == by_method["lexical"].test == 100
    assert by_method["dense"].dev < 60
    best = max(score.dev for score in result.scores)
    assert next(score for score in result.scores if score.fusion == result.best).dev == best == 100
    assert result.n_dev + result.n_test == 40 and 0 < result.n_dev < 20
    index.set_fusion(Fusion("minmax", 0.0))
    reopened = Index.open(index.location, WordEncoder(dim=2))
    assert reopened.header.fusion == Fusion("minmax", 0.0)
    assert reopened.search("subject7", 1)[0].id == "d7"


def test_index_tune_reads_files_and_keeps_the_choice(index, tmp_path):
    queries, qrels = toy_queries()
    expected = choose_fusion(index.rank, queries, qrels)
    assert index.header.fusion == Fusion() != expected.best
    lines = "".join(json.dumps({"_id": id, "text": text}) + "\n" for id, text in queries.items())
    (tmp_path / "queries.jsonl").write_text(lines, encoding="utf-8")
    rows = "".join(f"{id}\t{document}\t1\n" for id, relevances in qrels.items() for document in relevances)
    (tmp_path / "qrels.tsv").write_text(f"query-id\tcorpus-id\tscore\n{rows}", encoding="utf-8")
    assert index.tune(tmp_path / "queries.jsonl", str(tmp_path / "qrels.tsv")) == expected
    assert Index.open(index.location, WordEncoder(dim=2)).header.fusion == expected.best
    data = expected.to_json()
    assert data["queries"] == [expected.n_dev, expected.n_test]
    assert data["scores"][0] == {"way": "dense", "dev": expected.scores[0].dev, "test": expected.scores[0].test} | {
        "fusion": None
    }


def test_a_query_does_not_find_itself(index):
    ids = [f"d{number}" for number in range(40)]
    queries = {id: f"subject{id[1:]}" for id in ids}
    qrels = {id: {f"d{(number + 1) % 40}": 1.0} for number, id in enumerate(ids)}
    assert {score.method: score.dev for score in choose_fusion(index.rank, queries, qrels).scores}["lexical"] == 0


def test_files_are_read_and_errors_name_the_line(tmp_path, index):
    queries, qrels = tmp_path / "queries.jsonl", tmp_path / "qrels.tsv"
    queries.write_text(json.dumps({"_id": 1, "text": "one"}) + "\n", encoding="utf-8")
    qrels.write_text("query-id\tcorpus-id\tscore\n1\td1\t2\n", encoding="utf-8")
    assert read_queries(queries) == {"1": "one"} and read_qrels(qrels) == {"1": {"d1": 2.0}}
    qrels.write_text("query-id\tcorpus-id\tscore\n1\td1\tmuch\n", encoding="utf-8")
    with pytest.raises(DataFileError, match="line 2"):
        read_qrels(qrels)
    queries.write_text('{"_id": 1}\n', encoding="utf-8")
    with pytest.raises(DataFileError, match="`_id` and `text`"):
        read_queries(queries)
    with pytest.raises(InputError, match="give more queries"):
        choose_fusion(index.rank, {"q": "subject1"}, {})
