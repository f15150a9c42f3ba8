"""Scores of restored text against counts by hand and scikit-learn."""

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


def test_one_of_each_by_hand():
    """A hit (Hello), a miss (world), a foul (dont), a false alarm (there), and an example that lost a word."""
    found = score_restoration(
        [SOURCE, ["mr", "smith", "left"]], [OUTPUT, ["Mr.", "Smith"]], [TARGET, ["Mr.", "Smith", "left."]]
    )
    assert found == RestorationScore(problems=3 + 3, attempts=3, hits=1, mismatched=1)
    assert found.precision == pytest.approx(1 / 3)
    assert found.recall == pytest.approx(1 / 6)
    assert found.f1 == pytest.approx(2 / 9)


def test_dropping_the_mismatch_would_flatter_the_model():
    """The faulty variant, for comparison: the same example without the one that lost a word."""
    assert score_restoration([SOURCE], [OUTPUT], [TARGET]).recall == pytest.approx(1 / 3)


@pytest.mark.parametrize("seed", range(5))
def test_equals_scikit_learn_on_flattened_labels(seed):
    """Label 0 leaves a word alone; P, R and F1 are micro averages over all the other labels."""
    rng = random.Random(seed)
    forms = ["{}", "{}.", "{},", "<{}>"]
    lengths = [rng.randrange(30) for _ in range(20)]
    true = [[rng.choices(range(4), [6, 2, 1, 1])[0] for _ in range(size)] for size in lengths]
    guess = [[label if rng.random() < 0.7 else rng.randrange(4) for label in labels] for labels in true]
    source = [[f"w{n}" for n in range(size)] for size in lengths]

    def written(rows):
        return [
            [forms[label].format(word) for label, word in zip(labels, words, strict=True)]
            for labels, words in zip(rows, source, strict=True)
        ]

    found = score_restoration(source, written(guess), written(true))
    flat = list(chain(*true)), list(chain(*guess))
    expected = precision_recall_fscore_support(*flat, labels=[1, 2, 3], average="micro", zero_division=0)
    assert (found.precision, found.recall, found.f1) == pytest.approx(expected[:3])
    assert found.mismatched == 0 and 0 < found.f1 < 1


def test_nothing_to_do_and_nothing_done_is_zero():
    same = [["a", "b"], []]
    for found in (score_restoration(same, same, same), score_restoration([], [], [])):
        assert (found.problems, found.attempts, found.hits, found.mismatched) == (0, 0, 0, 0)
        assert (found.precision, found.recall, found.f1) == (0.0, 0.0, 0.0)


def test_a_copy_of_the_source_solves_nothing_and_the_target_solves_all():
    source, target = [["a", "b"]], [["A", "b."]]
    assert score_restoration(source, source, target) == RestorationScore(2, 0, 0, 0)
    assert score_restoration(source, source, target).f1 == 0.0
    assert score_restoration(source, target, target).f1 == 1.0


def test_recall_never_exceeds_one():
    """The published evaluator mixes up its three counts and can."""
    found = score_restoration([["a", "b", "c"]], [["A", "B", "C"]], [["A", "b", "c"]])
    assert (found.precision, found.recall) == (pytest.approx(1 / 3), 1.0)


@pytest.mark.parametrize(
    ("source", "output", "target", "message"),
    [
        ([["a"]], [], [["a"]], "give the same number"),
        ([["a"]], [["a"]], [["a", "."]], "stand-alone marks"),
        ([["a"]], ["a"], [["a"]], "split it first"),
    ],
)
def test_what_cannot_be_compared_is_refused(source, output, target, message):
    with pytest.raises(InputError, match=message):
        score_restoration(source, output, target)
