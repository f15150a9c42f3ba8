"""TREC's runs and qrels: reading, writing, reranking, and measures."""

from __future__ import annotations

import numpy as np
import pytest

from decoder2vec.errors import DataFileError, InputError
from decoder2vec.evaluation.trec_files import evaluate_run, read_run, rerank_run, write_run
from decoder2vec.evaluation.trec_metrics import RelevanceEvaluator


class LengthReranker:
    """Scores a document by its length."""

    def score_pairs(self, queries, documents):
        return np.array([float(len(document)) for document in documents])


RUN = {"q1": {"a": 3.0, "b": 2.0, "c": 1.0, "d": 0.5}, "q2": {"b": 1.0, "a": 0.5}}
TEXTS = {"a": "x", "b": "xx", "c": "xxx", "d": "xxxx"}


def test_a_run_survives_its_file(tmp_path):
    write_run(RUN, tmp_path / "r.trec", "mine")
    assert read_run(tmp_path / "r.trec") == RUN
    assert (tmp_path / "r.trec").read_text().splitlines()[1] == "q1 Q0 b 2 2 mine"


def test_only_the_best_documents_are_rescored():
    reranked = rerank_run(LengthReranker(), RUN, {"q1": "", "q2": ""}, TEXTS, depth=3)
    assert sorted(reranked["q1"], key=lambda name: -reranked["q1"][name]) == ["c", "b", "a", "d"]
    assert sorted(reranked["q2"], key=lambda name: -reranked["q2"][name]) == ["b", "a"]


def test_texts_that_are_missing_are_named():
    with pytest.raises(InputError, match="The query 'q2' of the run has no text"):
        rerank_run(LengthReranker(), RUN, {"q1": ""}, TEXTS)
    with pytest.raises(InputError, match="The document 'd' of the run has no text"):
        rerank_run(LengthReranker(), RUN, {"q1": "", "q2": ""}, {name: "" for name in "abc"})
    with pytest.raises(InputError, match="depth of 0"):
        rerank_run(LengthReranker(), RUN, {}, {}, depth=0)


def test_measures_are_those_of_trec_eval_on_judged_queries():
    qrels = {"q1": {"c": 1, "z": 2}, "q9": {"a": 1}}
    expected = RelevanceEvaluator(qrels, ["ndcg_cut.10"]).evaluate(RUN)
    assert list(expected) == ["q1"]
    assert evaluate_run(RUN, qrels)["nDCG@10"] == pytest.approx(100 * expected["q1"]["ndcg_cut_10"])
    with pytest.raises(InputError, match="judge no query"):
        evaluate_run(RUN, {"q9": {"a": 1}})


def test_measures_of_a_written_run_equal_those_of_pytrec_eval(tmp_path):
    """With ties, grades, unjudged documents and scores that differ in the last digit only, before and after a file."""
    pytrec_eval = pytest.importorskip("pytrec_eval")
    if pytrec_eval.RelevanceEvaluator is RelevanceEvaluator:
        pytest.skip("pytrec_eval is not installed")
    rng = np.random.default_rng(0)
    run, qrels = {}, {}
    for query in range(30):
        names = [f"d{number}" for number in rng.permutation(200)[:120]]
        scores = np.float32(-3 + rng.choice([0, 1e-6, 0.5], 120) * rng.integers(0, 9, 120))
        run[f"q{query}"] = {name: float(score) for name, score in zip(names, scores, strict=True)}
        qrels[f"q{query}"] = {f"d{number}": int(rng.integers(0, 3)) for number in rng.permutation(200)[:40]}
    write_run(run, tmp_path / "r.trec", "mine")
    written = read_run(tmp_path / "r.trec")
    names = {"nDCG@10": "ndcg_cut_10", "MAP@100": "map_cut_100", "recall@10": "recall_10", "success@1": "success_1"}
    measures = {"ndcg_cut.10", "map_cut.100", "recall.10", "success.1"}
    expected = pytrec_eval.RelevanceEvaluator(qrels, measures).evaluate(run)
    best = {query: sorted(run[query].items(), key=lambda each: (each[1], each[0].encode()))[-10:] for query in run}
    cut = pytrec_eval.RelevanceEvaluator(qrels, {"recip_rank"}).evaluate({query: dict(best[query]) for query in run})
    for each in (run, written):
        measured = evaluate_run(each, qrels)
        for name, theirs in names.items():
            mean = 100 * np.mean([scores[theirs] for scores in expected.values()])
            assert measured[name] == pytest.approx(mean, abs=1e-6), name
        reciprocal = 100 * np.mean([scores["recip_rank"] for scores in cut.values()])
        assert measured["MRR@10"] == pytest.approx(reciprocal, abs=1e-6)


@pytest.mark.parametrize("content", ["", "q1 Q0 a\n", "q1 Q0 a 1 high x\n", "\xff"])
def test_a_damaged_file_raises_one_sentence(tmp_path, content):
    (tmp_path / "bad").write_bytes(content.encode("latin-1"))
    with pytest.raises(DataFileError) as error:
        read_run(tmp_path / "bad")
    assert len(str(error.value).splitlines()) == 1
    with pytest.raises(DataFileError, match="cannot be read"):
        read_run(tmp_path / "none")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("q1 Q0 b 2 nan bm25", "r.trec, line 2: the score nan is not a number that can be sorted by"),
        ("q1 Q0 a 2 1.5 bm25", "r.trec, line 2: the query q1 has the document a already"),
    ],
)
def test_a_run_that_has_no_order_is_refused(tmp_path, line, message):
    (tmp_path / "r.trec").write_text(f"q1 Q0 a 1 2.5 bm25\n{line}\nq2 Q0 a 1 1.5 bm25\n")
    with pytest.raises(DataFileError, match=message):
        read_run(tmp_path / "r.trec")
