"""The stand-in for pytrec_eval, against plain loops, scikit-learn, and the package itself where it is installed."""

from __future__ import annotations

import importlib.machinery
import subprocess
import sys

import numpy as np
import pytest
from sklearn.metrics import ndcg_score

from decoder2vec.evaluation import trec_metrics
from decoder2vec.evaluation.trec_metrics import RelevanceEvaluator, provide_pytrec_eval, write_stand_in

CUTOFFS = (1, 3, 10, 100)
MEASURES = {f"{name}.{','.join(map(str, CUTOFFS))}" for name in ("map_cut", "ndcg_cut", "recall", "P", "success")}


@pytest.fixture(scope="module")
def data():
    """Grades from 0 to 3 and scores with ties of random queries; some documents are only judged, some only ranked."""
    rng = np.random.default_rng(0)
    grades, scores = {}, {}
    for query in range(30):
        judged, ranked = rng.permutation(40)[:12], rng.permutation(40)[:25]
        grades[f"q{query}"] = {f"d{document}": int(rng.integers(0, 4)) for document in judged}
        scores[f"q{query}"] = {f"d{document}": float(rng.integers(0, 12)) / 7 for document in ranked}
    grades["nothing relevant"], scores["nothing relevant"] = {"d1": 0}, {"d1": 1.0}
    return grades, scores


def measure(grades, scores, k):
    """The measures of one query at one cutoff, from their definitions."""
    ranking = sorted(sorted(scores, reverse=True), key=lambda name: -scores[name])[:k]
    hits = [grades.get(name, 0) for name in ranking]
    relevant = sum(grade > 0 for grade in grades.values())
    precision, found = 0.0, 0
    for rank, grade in enumerate(hits, 1):
        if grade > 0:
            found += 1
            precision += found / rank
    dcg = sum(grade / np.log2(rank + 1) for rank, grade in enumerate(hits, 1))
    best = sum(g / np.log2(r + 1) for r, g in enumerate(sorted(grades.values(), reverse=True)[:k], 1))
    return {
        f"map_cut_{k}": precision / relevant if relevant else 0.0,
        f"ndcg_cut_{k}": dcg / best if best else 0.0,
        f"recall_{k}": found / relevant if relevant else 0.0,
        f"P_{k}": found / k,
        f"success_{k}": float(found > 0),
    }


def test_measures_equal_their_definitions(data):
    grades, scores = data
    results = RelevanceEvaluator(grades, MEASURES).evaluate(scores)
    assert results.keys() == grades.keys()
    for query in grades:
        expected = {name: value for k in CUTOFFS for name, value in measure(grades[query], scores[query], k).items()}
        assert results[query] == pytest.approx(expected, abs=1e-12)


def test_ndcg_equals_scikit_learn():
    rng = np.random.default_rng(1)
    grades, scores = rng.integers(0, 4, 50), rng.permutation(50) / 50
    names = [f"d{number}" for number in range(50)]
    judged = {"q": dict(zip(names, grades.tolist(), strict=True))}
    ranked = {"q": dict(zip(names, scores.tolist(), strict=True))}
    found = RelevanceEvaluator(judged, {"ndcg_cut.10"}).evaluate(ranked)["q"]["ndcg_cut_10"]
    assert found == pytest.approx(ndcg_score(grades[None], scores[None], k=10))


def test_equal_scores_rank_by_name_backwards():
    """In single precision, as trec_eval holds scores."""
    scores = {"q": {"a": 0.5 + 1e-12, "b": 0.5}}
    assert RelevanceEvaluator({"q": {"b": 1}}, {"P.1"}).evaluate(scores) == {"q": {"P_1": 1.0}}


def test_queries_without_judgements_are_left_out():
    assert RelevanceEvaluator({"q": {"a": 1}}, {"P.1"}).evaluate({"other": {"a": 1.0}}) == {}


def test_unknown_measure_is_refused():
    for name in ("bpref", "map", "P"):
        with pytest.raises(ValueError, match=r"map_cut\.K, ndcg_cut\.K"):
            RelevanceEvaluator({}, {name})


def test_measures_equal_those_of_pytrec_eval(data):
    real = pytest.importorskip("pytrec_eval")
    if real.RelevanceEvaluator is RelevanceEvaluator:
        pytest.skip("pytrec_eval is not installed")
    grades, scores = data
    expected = real.RelevanceEvaluator(grades, MEASURES).evaluate(scores)
    found = RelevanceEvaluator(grades, MEASURES).evaluate(scores)
    assert {query: pytest.approx(values, abs=1e-6) for query, values in expected.items()} == found


def test_stand_in_never_replaces_the_package(monkeypatch, tmp_path):
    monkeypatch.delitem(sys.modules, "pytrec_eval", raising=False)
    monkeypatch.setattr(trec_metrics, "find_spec", lambda name: importlib.machinery.ModuleSpec(name, None))
    provide_pytrec_eval()
    assert "pytrec_eval" not in sys.modules and write_stand_in(tmp_path) is None and not list(tmp_path.iterdir())
    monkeypatch.setattr(trec_metrics, "find_spec", lambda name: None)
    provide_pytrec_eval()
    assert sys.modules.pop("pytrec_eval").RelevanceEvaluator is RelevanceEvaluator


def test_plain_import_of_mteb_works_with_the_stand_in(monkeypatch, tmp_path):
    pytest.importorskip("datasets")
    monkeypatch.setattr(trec_metrics, "find_spec", lambda name: None)
    write_stand_in(tmp_path)
    code = f"import sys; sys.path.append({str(tmp_path)!r}); import mteb, pytrec_eval; print(pytrec_eval.__file__)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "pytrec_eval" in done.stdout
