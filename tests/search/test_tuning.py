"""The fusion is the best one on held-out queries, and stays as it is where none is better."""

from __future__ import annotations

import hashlib
import json
import math

import numpy as np
import pytest

from decoder2vec.errors import DataFileError, InputError
from decoder2vec.search.documents import Document
from decoder2vec.search.hybrid import FUSIONS, Fusion
from decoder2vec.search.index import Index
from decoder2vec.search.tuning import WEIGHTS, _best, _cross_validate, _folds, ndcg_at_10, read_queries
from toys.command import d2v as command
from toys.encoder import WordEncoder


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


def write_files(folder, queries, qrels):
    lines = "".join(json.dumps({"_id": id, "text": text}) + "\n" for id, text in queries.items())
    (folder / "queries.jsonl").write_text(lines, encoding="utf-8")
    rows = "".join(f"{id}\t{document}\t1\n" for id, relevances in qrels.items() for document in relevances)
    (folder / "qrels.tsv").write_text(f"query-id\tcorpus-id\tscore\n{rows}", encoding="utf-8")
    return folder / "queries.jsonl", str(folder / "qrels.tsv")


def test_index_tune_keeps_the_better_fusion_and_says_so(index, tmp_path):
    index.set_fusion(Fusion("minmax", 1.0))
    result = index.tune(*write_files(tmp_path, *toy_queries()))
    by_method = {score.method: score for score in result.scores}
    assert by_method["lexical"].score == 100 and by_method["dense"].score < 60
    assert result.before == Fusion("minmax", 1.0) and result.score_before == by_method["dense"].score
    assert result.score_after == 100 and result.n_queries == 40
    assert result.gain.value == pytest.approx(100 - result.score_before)
    assert 0 < result.gain.low < result.gain.value < result.gain.high
    assert index.header.fusion == Index.open(index.location, WordEncoder(dim=2)).header.fusion == result.best
    assert index.search("subject7", 1)[0].id == "d7"
    assert json.loads(json.dumps(result.to_json()))["best"] == {
        "method": result.best.method,
        "weight": result.best.weight,
    }


def test_nothing_changes_where_nothing_is_better(index):
    result = index.tune(*toy_queries())  # lexical search finds all, and so does the default
    assert result.score_before == result.score_after == 100
    assert result.best == result.before == Fusion() == index.header.fusion
    assert (result.gain.value, result.gain.low, result.gain.high) == (0, 0, 0)


def test_equal_fusions_are_decided_towards_the_default():
    level = {Fusion(method, weight): np.full(30, 80.0) for method in FUSIONS for weight in WEIGHTS}
    assert _best(level) == Fusion()
    low = {fusion: scores for fusion, scores in level.items() if fusion.weight <= 0.3}
    assert _best(low) == Fusion(weight=0.3)
    better = {Fusion("zscore", weight): np.full(30, 81.0) for weight in (0.1, 0.2, 0.95)}
    assert _best(level | better) == Fusion("zscore", 0.95)


def test_no_query_is_scored_with_a_fusion_it_chose():
    folds = _folds([f"q{number}" for number in range(23)])
    assert sorted(np.bincount(folds).tolist()) == [4, 4, 5, 5, 5]
    rng = np.random.default_rng(0)
    values = {Fusion("rrf", weight): rng.uniform(0, 100, 23) for weight in WEIGHTS}
    expected = []
    for row in range(23):
        others = [other for other in range(23) if folds[other] != folds[row]]
        chosen = max(values, key=lambda fusion: values[fusion][others].mean())
        expected.append(values[chosen][row])
    assert _cross_validate(values, folds, _best).tolist() == pytest.approx(expected)
    assert _cross_validate(values, folds, _best).mean() < max(scores.mean() for scores in values.values())


def test_few_queries_are_refused_and_change_nothing(index):
    queries, qrels = toy_queries()
    few = {id: queries[id] for id in list(queries)[:19]}
    index.set_fusion(Fusion("minmax", 1.0))
    for some, judged in ((few, qrels), (queries, {}), (queries, {id: {"d1": 0.0} for id in queries})):
        with pytest.raises(InputError, match="20 queries"):
            index.tune(some, judged)
    assert index.header.fusion == Fusion("minmax", 1.0)


def test_a_query_does_not_find_itself(index):
    ids = [f"d{number}" for number in range(40)]
    queries = {id: f"subject{id[1:]}" for id in ids}
    qrels = {id: {f"d{(number + 1) % 40}": 1.0} for number, id in enumerate(ids)}
    assert {score.method: score.score for score in index.tune(queries, qrels).scores}["lexical"] == 0


def test_files_are_read_and_errors_name_the_line(tmp_path):
    queries = tmp_path / "queries.jsonl"
    queries.write_text(json.dumps({"_id": 1, "text": "one"}) + "\n", encoding="utf-8")
    assert read_queries(queries) == {"1": "one"}
    queries.write_text('{"_id": 1}\n', encoding="utf-8")
    with pytest.raises(DataFileError, match="`_id` and `text`"):
        read_queries(queries)


# --- with a reranker ------------------------------------------------------------------------------------------------


class ChosenDocuments:
    """Scores the right document highest, or lowest, and remembers how many it was given."""

    def __init__(self, sign=1):
        self.sign, self.counts = sign, []

    def rerank(self, query, texts):
        self.counts.append(len(texts))
        return [self.sign * float(text.split()[0] == query) for text in texts]


@pytest.fixture
def deep_index(tmp_path):
    """An index where the answer of a query is among the first documents, at another rank for each."""
    index = Index.create(tmp_path / "index", WordEncoder(dim=2))
    index.add([Document(f"d{number}", f"subject{number} word") for number in range(40)])
    index.set_fusion(Fusion("minmax", 1.0))
    return index


def test_the_depth_of_a_reranker_is_chosen_and_used_by_search(deep_index, tmp_path):
    queries, qrels = toy_queries()
    reranker = ChosenDocuments()
    result = deep_index.tune(queries, qrels, reranker, depth=35)
    tuned = result.reranked
    assert list(tuned.scores) == [10, 20, 30, 35] and set(reranker.counts) == {35}
    assert list(tuned.scores.values()) == sorted(tuned.scores.values())
    assert json.loads(json.dumps(result.to_json()))["reranked"]["depth"] == tuned.depth
    opened = Index.open(deep_index.location, WordEncoder(dim=2))
    expected = tuned.depth if tuned.gain.value > 0 else 30
    assert opened.header.rerank_depth == deep_index.header.rerank_depth == expected
    counted = ChosenDocuments()
    opened.search("subject3", 1, rerank=counted)
    assert counted.counts == [expected]


def test_depths_equal_a_plain_loop(deep_index, monkeypatch):
    """Where the fusion cannot be improved, the documents to rescore are those of the fusion that is in use."""
    monkeypatch.setattr("decoder2vec.search.tuning.WEIGHTS", (1.0,))
    monkeypatch.setattr("decoder2vec.search.tuning.FUSIONS", {"minmax": FUSIONS["minmax"]})
    queries, qrels = toy_queries()
    tuned = deep_index.tune(queries, qrels, ChosenDocuments(), depth=30).reranked
    for depth in (10, 20, 30):
        values = []
        for id, text in queries.items():
            ids = [document.id for document in deep_index.rank([text], 100)[0]]
            right = next(iter(qrels[id]))
            ranked = [right, *(name for name in ids if name != right)] if right in ids[:depth] else ids[:30]
            values.append(100 * ndcg_at_10(ranked, qrels[id]))
        assert tuned.scores[depth] == pytest.approx(np.mean(values), abs=1e-4)
    assert tuned.depth == 30 and tuned.gain.value > 0 and deep_index.header.rerank_depth == 30


def test_a_reranker_that_improves_nothing_changes_nothing(index):
    queries, qrels = toy_queries()
    result = index.tune(queries, qrels, ChosenDocuments(-1), depth=12)
    assert result.reranked.gain.value < 0 and index.header.rerank_depth == 30
    with pytest.raises(InputError, match="rescores nothing"):
        index.tune(queries, qrels, ChosenDocuments(), depth=0)
    with pytest.raises(InputError, match="rescores nothing"):
        index.set_rerank_depth(0)


def test_a_reranker_is_tuned_from_the_command_line(tmp_path, one_thread):
    queries, qrels = toy_queries()
    few = {id: queries[id] for id in list(queries)[:20]}
    write_files(tmp_path, few, qrels)
    (tmp_path / "texts.jsonl").write_text(
        "".join(json.dumps({"id": f"d{n}", "text": f"subject{n} and more"}) + "\n" for n in range(20)), "utf-8"
    )
    out = tmp_path / "library"
    command("index", tmp_path / "texts.jsonl", "--out", out, "--encoder", "tiny-llama", "--device", "cpu")
    files = ["--queries", tmp_path / "queries.jsonl", "--qrels", tmp_path / "qrels.tsv"]
    options = ["--rerank", "likelihood:tiny-gpt2", "--depth", 12, "--device", "cpu", "--json", tmp_path / "t.json"]
    result = command("index", "--out", out, "--tune", *files, *options)
    assert result.exit_code == 0, result.output
    assert "with the reranker" in result.output and "documents rescored" in result.output
    assert set(json.loads((tmp_path / "t.json").read_text())["reranked"]["scores"]) == {"10", "12"}
    assert command("index", "--out", out, "--tune", "--reset").exit_code == 0
    for wrong in (["--rerank", "learned"], ["--tune", "--rerank", "learned", "--pairs", "x"]):
        with pytest.raises(InputError):
            command("index", "--out", out, *wrong)
