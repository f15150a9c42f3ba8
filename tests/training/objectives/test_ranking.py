"""Ranking of groups: the loss against a plain loop, drawn negatives, margins of a teacher, nDCG and MRR."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from scipy.special import logsumexp

from decoder2vec.errors import DataFileError, InputError
from decoder2vec.evaluation.trec_metrics import RelevanceEvaluator
from decoder2vec.maths.losses import margin_mse, ranking_loss
from decoder2vec.text.files import ScoredPairs
from decoder2vec.training.contrastive_examples import ContrastiveExamples, Example, read_contrastive_examples
from decoder2vec.training.data import DataFiles, load_data
from decoder2vec.training.objectives.ranking import RankingConfig, measure_ranking
from decoder2vec.training.plan import load_plan
from toys.training import attached, gradients_of, small_recipe, toy_data

GROUPS = [
    Example("query one", "good one", ("bad a", "bad b", "bad c"), 0, scores=(3.0, 1.0, 0.5, -1.0)),
    Example("query two", "good two", ("bad a",), 1),
    Example("query three", "good three", ("bad d", "bad b"), 2, scores=(2.0, 2.5, 0.0)),
    Example("query four", "good four", (), 3),
]


@pytest.fixture(autouse=True)
def quiet(one_thread):
    """Tiny models on one thread."""


def with_groups(groups=GROUPS):
    return toy_data(contrastive=ContrastiveExamples.of(groups))


def scores_by_hand(context, group):
    """The score of each document of a group, one pair at a time."""
    rows = context.pair_rows([group.anchor] * (1 + len(group.negatives)), [group.positive, *group.negatives])
    return [context.score([row]).item() for row in rows.tolist()]


@pytest.mark.parametrize("margins", [0.0, 0.5])
def test_the_loss_is_that_of_a_plain_loop(margins, backbone):
    """Negatives are those of the query alone, shorter lists count, and a query without negatives is left out."""
    recipe = small_recipe("rerank", objective=RankingConfig(margins=margins))
    context, module, task = attached(recipe, with_groups(), backbone("tiny-llama"))
    assert task.n_examples == 3
    entropies, squares = [], []
    with torch.no_grad(), context.forward_context():
        for group in GROUPS[:3]:
            scores = scores_by_hand(context, group)
            entropies.append(logsumexp(scores) - scores[0])
            if group.scores:
                for score, target in zip(scores[1:], group.scores[1:], strict=True):
                    squares.append(((scores[0] - score) - (group.scores[0] - target)) ** 2)
    assert len(squares) == 5
    loss, gradients = gradients_of(module, task, np.arange(3))
    assert loss == pytest.approx(np.mean(entropies) + margins * np.mean(squares), rel=1e-4)
    assert gradients["head.weight"].abs().max() > 0


def test_gradients_reach_every_member_of_a_group():
    scores = torch.randn(4, 5, requires_grad=True)
    ranking_loss(scores, torch.zeros(4, 5, dtype=torch.bool)).backward()
    assert (scores.grad[:, 0] < 0).all() and (scores.grad[:, 1:] > 0).all()


def test_margins_without_a_teacher_are_no_loss():
    scores = torch.randn(2, 3, requires_grad=True)
    loss = margin_mse(scores, torch.full((2, 3), torch.nan))
    loss.backward()
    assert loss == 0 and scores.grad.isfinite().all()


def test_chunks_give_the_same_gradients(backbone):
    recipes = [small_recipe("rerank", chunk=chunk) for chunk in (0, 64)]
    tasks = [attached(recipe, toy_data(), backbone("tiny-gpt2"))[1:] for recipe in recipes]
    whole, chunked = (gradients_of(*task, np.arange(6)) for task in tasks)
    assert chunked[0] == pytest.approx(whole[0], rel=1e-5)
    for name, gradient in whole[1].items():
        torch.testing.assert_close(chunked[1][name], gradient, rtol=1e-3, atol=1e-5)


def test_negatives_are_drawn_anew_and_never_missing_ones(backbone):
    recipe = small_recipe("rerank", objective=RankingConfig(negatives=1))
    _, _, task = attached(recipe, with_groups(), backbone("tiny-llama"))
    losses = set()
    for seed in range(8):
        torch.manual_seed(seed)
        with torch.no_grad(), task.step_context():
            losses.add(round(task.loss(np.array([0])).item(), 5))
            assert task.loss(np.array([1])).item() > 0, "its only negative is always taken"
    assert len(losses) == 3


def test_groups_without_negatives_are_refused(backbone):
    pairs = with_groups([example._replace(negatives=(), scores=()) for example in GROUPS])
    with pytest.raises(InputError, match="no query has one; mine some"):
        attached(small_recipe("rerank"), pairs, backbone("tiny-llama"))


def test_settings_of_the_objective_have_its_name():
    (stage,) = load_plan("rerank", ["objective.negatives=3", "weights=full"]).stages
    assert stage.recipe.objective == RankingConfig(negatives=3) and stage.recipe.weights == "full"
    for setting in ("objective.negatives=-1", "weights=some", "template=x", "rank=0", "objective.margins=nan"):
        with pytest.raises(InputError):
            load_plan("rerank", [setting])


def test_measures_equal_trec_eval():
    """On random rankings with graded gains; no ties, which trec_eval breaks by name."""
    rng = np.random.default_rng(0)
    left = [f"q{row % 7}" for row in range(140)]
    names = [f"d{row}" for row in range(140)]
    grades = rng.choice([0, 0, 1, 2], 140)
    grades[:14] = [0] * 7 + [1] * 7
    predicted = rng.permutation(140).astype(float)
    measured = measure_ranking(ScoredPairs("x", left, names, grades.astype(float).tolist()), predicted)
    qrels, run = {}, {}
    for query, name, grade, score in zip(left, names, grades, predicted, strict=True):
        qrels.setdefault(query, {})[name] = int(grade)
        run.setdefault(query, {})[name] = score
    evaluated = RelevanceEvaluator(qrels, ["ndcg_cut.10"]).evaluate(run)
    assert measured["ndcg@10"] == pytest.approx(100 * np.mean([v["ndcg_cut_10"] for v in evaluated.values()]), abs=0.01)
    reciprocal = []
    for query, documents in run.items():
        ranking = sorted(documents, key=lambda name: -documents[name])[:10]
        ranks = [rank for rank, name in enumerate(ranking, 1) if qrels[query][name] > 0]
        reciprocal.append(1 / ranks[0] if ranks else 0)
    assert measured["mrr@10"] == pytest.approx(100 * np.mean(reciprocal), abs=0.01)


# --- files ----------------------------------------------------------------------------------------------------------


def write(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def test_scores_of_a_teacher_are_read_from_the_file(tmp_path):
    rows = [
        {"anchor": "a", "positive": "p", "negative": ["n1", "a", "n2", "n1"], "scores": [3, 1, 9, 0.5, 1]},
        {"anchor": "b", "positive": "q", "negative": ["n1"]},
    ]
    examples = read_contrastive_examples(write(tmp_path / "g.jsonl", rows))
    np.testing.assert_array_equal(examples.scores, [[3, 1, 0.5], [np.nan] * 3])
    assert json.dumps(examples.indices())
    without = write(tmp_path / "h.jsonl", [rows[1], rows[1] | {"anchor": "c"}])
    assert read_contrastive_examples(without).scores is None
    for scores in ([1, 2], [1, 2, 3, 4, None], [1, 2, 3, 4, float("nan")]):
        with pytest.raises(DataFileError, match="line 1: scores must be 5 numbers"):
            read_contrastive_examples(write(tmp_path / "bad.jsonl", [rows[0] | {"scores": scores}]))


def test_whole_queries_are_set_aside(tmp_path):
    """A query with two positives is in training or in dev, never in both."""
    rows = [{"anchor": f"q{i // 2}", "positive": f"p{i}", "negative": [f"n{i}", f"m{i}"]} for i in range(60)]
    data = load_data(tmp_path, DataFiles(triplets=write(tmp_path / "g.jsonl", rows).name), needs=["groups"])
    (dev,) = data.dev
    trained = {data.contrastive.texts[anchor] for anchor in data.contrastive.anchors}
    assert set(dev.left) == {"q0", "q10", "q20"} and len(trained) == 27 and not trained & set(dev.left)
    assert len(dev) == 3 * (2 + 4) and sum(dev.scores) == 6
    assert any("6 of the examples were set aside" in note for note in data.notes)
