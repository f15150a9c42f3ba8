"""Groups for rerankers: negatives are near but no positives in disguise; losses and measures are the usual ones."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from bm25_runs import ndcg_at_10
from train_packed import Settings, group_loss, mine


@pytest.fixture
def teachers():
    generator = torch.Generator().manual_seed(0)
    return [torch.nn.functional.normalize(torch.randn(40, dim, generator=generator), dim=1) for dim in (6, 9)]


def test_negatives_are_other_documents_that_are_less_similar(teachers):
    pairs = np.column_stack([np.arange(20), np.arange(20, 40)])
    groups = mine(pairs, teachers, 3)
    similarities = np.mean([(of @ of.T).numpy() for of in teachers], axis=0)
    for query, documents, found in zip(groups.queries, groups.documents, groups.similarities, strict=True):
        assert documents[0] == query + 20 and len(set(documents)) == 4 and set(documents) <= set(range(20, 40))
        np.testing.assert_allclose(found, similarities[query, documents], atol=1e-5)
        assert (found[1:] <= 0.95 * found[0] + 1e-6).all()
    own = similarities[np.arange(20), np.arange(20, 40)]
    enough = [
        (similarities[row, 20:] <= 0.95 * own[row]).sum() - (own[row] <= 0.95 * own[row]) >= 3 for row in range(20)
    ]
    assert groups.queries.tolist() == np.flatnonzero(enough).tolist()


def test_a_source_with_too_few_documents_has_no_groups(teachers):
    assert mine(np.array([[0, 20], [1, 21]]), teachers, 3) is None


def test_loss_is_cross_entropy_and_divergence():
    scores, teacher = torch.tensor([[2.0, 0.0, -1.0]]), torch.tensor([[0.8, 0.7, 0.1]])
    student, target = torch.softmax(scores, 1), torch.softmax(teacher / 0.05, 1)
    expected = -math.log(student[0, 0]) + 2 * float((target * (target / student).log()).sum())
    assert float(group_loss(scores, teacher, Settings(teacher=2.0))) == pytest.approx(expected, rel=1e-5)
    assert float(group_loss(scores, teacher, Settings(teacher=0))) == pytest.approx(-math.log(student[0, 0]), rel=1e-5)


def test_documents_below_the_depth_keep_their_place():
    run, qrels = {"q": ["a", "b", "c"]}, {"q": {"c": 1}}
    scores = {"q": {"a": 0.0, "b": 1.0, "c": 2.0}}
    assert ndcg_at_10(scores, run, qrels, 3)["q"] == pytest.approx(1.0)
    assert ndcg_at_10(scores, run, qrels, 2)["q"] == pytest.approx(0.5)
    assert ndcg_at_10(scores, run, {"q": {"z": 1}}, 3)["q"] == 0.0
