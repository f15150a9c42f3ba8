"""The weight is chosen on the dev part alone, and is the best there."""

from __future__ import annotations

import hashlib
import json
import math

import pytest

from decoder2vec.errors import DataFileError, InputError
from decoder2vec.search.documents import Document
from decoder2vec.search.hybrid import Fusion
from decoder2vec.search.index import Index
from decoder2vec.search.tuning import in_dev, ndcg, read_judgements, read_queries, tune
from toys.encoder import WordEncoder


def test_the_dev_part_is_three_tenths_by_sha1():
    ids = [str(number) for number in range(2000)]
    dev = [id for id in ids if in_dev(id)]
    assert dev == [id for id in ids if int.from_bytes(hashlib.sha1(id.encode()).digest(), "big") % 10 < 3]
    assert 500 < len(dev) < 700


def test_ndcg_equals_sklearn_and_a_sum_by_hand():
    judged = {"a": 2.0, "b": 1.0, "c": 0.0}
    assert ndcg(["x", "a", "b"], judged) == pytest.approx((2 / math.log2(3) + 1 / 2) / (2 + 1 / math.log2(3)))
    assert ndcg(["a", "b"], judged) == 1 and ndcg([], judged) == 0 and ndcg(["a"], {"a": 0.0}) == 0
    metrics = pytest.importorskip("sklearn.metrics")
    names = [f"d{number}" for number in range(30)]
    truth = {name: float(number % 4) for number, name in enumerate(names)}
    ranked = sorted(names, key=lambda name: hashlib.sha1(name.encode()).hexdigest())
    scores = [[-ranked.index(name) for name in names]]
    assert ndcg(ranked, truth) == pytest.approx(metrics.ndcg_score([list(truth.values())], scores, k=10))


@pytest.fixture
def index(tmp_path):
    """Words tell the right document; the vectors, of two numbers only, tell next to nothing."""
    made = Index.create(tmp_path / "index", WordEncoder(dim=2))
    made.add([Document(f"d{number}", f"subject{number} and more") for number in range(40)])
    return made


def test_the_better_side_gets_the_weight_and_the_index_keeps_it(index):
    queries = {f"q{number}": f"subject{number}" for number in range(40)}
    judged = {f"q{number}": {f"d{number}": 1.0} for number in range(40)}
    found = tune(index, queries, judged)
    by_way = {score.way: score for score in found.scores}
    assert by_way["lexical"].dev == by_way["lexical"].test == 100
    assert by_way["dense"].dev < 60
    best = max(score.dev for score in found.scores)
    assert next(score for score in found.scores if score.fusion == found.best).dev == best == 100
    assert sum(found.queries) == 40 and 0 < found.queries[0] < 20
    index.set_fusion(Fusion("minmax", 0.0))
    again = Index.open(index.place, WordEncoder(dim=2))
    assert again.header.fusion == Fusion("minmax", 0.0)
    assert again.search("subject7", 1)[0].id == "d7"


def test_a_query_does_not_find_itself(index):
    ids = [f"d{number}" for number in range(40)]
    queries = {id: f"subject{id[1:]}" for id in ids}
    judged = {id: {f"d{(number + 1) % 40}": 1.0} for number, id in enumerate(ids)}
    assert {score.way: score.dev for score in tune(index, queries, judged).scores}["lexical"] == 0


def test_files_are_read_and_faults_are_named(tmp_path, index):
    queries, judgements = tmp_path / "queries.jsonl", tmp_path / "qrels.tsv"
    queries.write_text(json.dumps({"_id": 1, "text": "one"}) + "\n", encoding="utf-8")
    judgements.write_text("query-id\tcorpus-id\tscore\n1\td1\t2\n", encoding="utf-8")
    assert read_queries(queries) == {"1": "one"} and read_judgements(judgements) == {"1": {"d1": 2.0}}
    judgements.write_text("query-id\tcorpus-id\tscore\n1\td1\tmuch\n", encoding="utf-8")
    with pytest.raises(DataFileError, match="line 2"):
        read_judgements(judgements)
    queries.write_text('{"_id": 1}\n', encoding="utf-8")
    with pytest.raises(DataFileError, match="`_id` and `text`"):
        read_queries(queries)
    with pytest.raises(InputError, match="give more queries"):
        tune(index, {"q": "subject1"}, {})
