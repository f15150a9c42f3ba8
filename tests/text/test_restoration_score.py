"""Scores of restored punctuation and case against counts by hand and scikit-learn."""

from __future__ import annotations

import random
from itertools import chain

import pytest
from sklearn.metrics import precision_recall_fscore_support

from decoder2vec.errors import InputError
from decoder2vec.text.punctuation import RestorationScore, score_restoration

SOURCE = ["hello", "world", "dont", "go", "there"]
OUTPUT = ["Hello", "world", "Dont", "go", "there,"]
TARGET = ["Hello", "world,", "don't", "go", "there"]


def test_counts_of_each_kind_by_hand():
    """A hit (Hello), a miss (world), a wrong attempt (dont), a false alarm (there), and an output that lost a word."""
    result = score_restoration(
        [SOURCE, ["mr", "smith", "left"]], [OUTPUT, ["Mr.", "Smith"]], [TARGET, ["Mr.", "Smith", "left."]]
    )
    assert result == RestorationScore(problems=3 + 3, attempts=3, hits=1, mismatched=1)
    assert result.precision == pytest.approx(1 / 3)
    assert result.recall == pytest.approx(1 / 6)
    assert result.f1 == pytest.approx(2 / 9)


def test_dropping_mismatched_outputs_raises_the_recall():
    """The faulty variant: the unchanged score without the example that lost a word."""
    assert score_restoration([SOURCE], [OUTPUT], [TARGET]).recall == pytest.approx(1 / 3)


@pytest.mark.parametrize("seed", range(5))
def test_equals_scikit_learn_on_flattened_labels(seed):
    """Label 0 keeps a word unchanged; precision, recall and F1 are micro averages over all other labels."""
    rng = random.Random(seed)
    forms = ["{}", "{}.", "{},", "<{}>"]
    lengths = [rng.randrange(30) for _ in range(20)]
    true = [[rng.choices(range(4), [6, 2, 1, 1])[0] for _ in range(size)] for size in lengths]
    predicted = [[label if rng.random() < 0.7 else rng.randrange(4) for label in labels] for labels in true]
    source = [[f"w{n}" for n in range(size)] for size in lengths]

    def write(rows):
        return [
            [forms[label].format(word) for label, word in zip(labels, words, strict=True)]
            for labels, words in zip(rows, source, strict=True)
        ]

    result = score_restoration(source, write(predicted), write(true))
    flat_labels = list(chain(*true)), list(chain(*predicted))
    expected = precision_recall_fscore_support(*flat_labels, labels=[1, 2, 3], average="micro", zero_division=0)
    assert (result.precision, result.recall, result.f1) == pytest.approx(expected[:3])
    assert result.mismatched == 0 and 0 < result.f1 < 1


def test_no_changes_and_no_attempts_score_zero():
    unchanged = [["a", "b"], []]
    for result in (score_restoration(unchanged, unchanged, unchanged), score_restoration([], [], [])):
        assert (result.problems, result.attempts, result.hits, result.mismatched) == (0, 0, 0, 0)
        assert (result.precision, result.recall, result.f1) == (0.0, 0.0, 0.0)


def test_source_scores_zero_and_target_scores_one():
    source, target = [["a", "b"]], [["A", "b."]]
    assert score_restoration(source, source, target) == RestorationScore(2, 0, 0, 0)
    assert score_restoration(source, source, target).f1 == 0.0
    assert score_restoration(source, target, target).f1 == 1.0


def test_recall_never_exceeds_one():
    """With the published evaluator it can, since that mixes up its three counts."""
    result = score_restoration([["a", "b", "c"]], [["A", "B", "C"]], [["A", "b", "c"]])
    assert (result.precision, result.recall) == (pytest.approx(1 / 3), 1.0)


@pytest.mark.parametrize(
    ("source", "output", "target", "message"),
    [
        ([["a"]], [], [["a"]], "give the same number"),
        ([["a"]], [["a"]], [["a", "."]], "stand-alone marks"),
        ([["a"]], ["a"], [["a"]], "split it first"),
    ],
)
def test_texts_that_cannot_be_compared_are_refused(source, output, target, message):
    with pytest.raises(InputError, match=message):
        score_restoration(source, output, target)
