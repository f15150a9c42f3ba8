"""Tests of `decoder2vec.text.augmentation`."""

from __future__ import annotations

import pytest

from decoder2vec.text.augmentation import AUGMENTATIONS, augment_pairs
from decoder2vec.text.files import ScoredPairs

TRAIN = ScoredPairs(
    "train",
    ["A dog runs home now.", "It rains", ".", "A dog runs home now."],
    ["The cat sat on it.", "Snow.", "Rain falls on the roof", "It rains"],
    [1.0, 4.0, 2.0, 0.0],
)
SCALE = (0.0, 5.0)


def augmented(*changes, seed=0):
    """The augmented pairs, which follow the unchanged training pairs."""
    pairs = augment_pairs(TRAIN, changes, SCALE, seed)
    assert (pairs.left[:4], pairs.right[:4], pairs.scores[:4]) == (TRAIN.left, TRAIN.right, TRAIN.scores)
    assert pairs.name == "train"
    return list(zip(pairs.left, pairs.right, pairs.scores, strict=True))[4:]


def test_no_augmentation_adds_nothing():
    assert augmented() == []
    assert len(TRAIN) == 4


def test_identical_pairs_have_the_highest_score():
    assert augmented("identical") == [(text, text, 5.0) for text in TRAIN.texts()]
    assert augment_pairs(TRAIN, ("identical",), (0.0, 10.0)).scores[-1] == 10.0


def test_punctuation_pairs_differ_only_by_the_full_stop():
    expected = ["A dog runs home now.", "The cat sat on it.", "Snow."]
    assert augmented("punctuation") == [(text, text[:-1], 5.0) for text in expected], (
        "a lone full stop has no such pair"
    )


def test_case_augmentation_keeps_letters_and_score():
    pairs = augmented("case")
    assert [(a.lower(), b, score) for a, b, score in pairs] == [
        (a.lower(), b, score) for a, b, score in zip(TRAIN.left, TRAIN.right, TRAIN.scores, strict=True)
    ]
    assert any(a != left for (a, _, _), left in zip(pairs, TRAIN.left, strict=True))


def test_word_augmentation_drops_or_swaps_words():
    word_counts = set()
    for seed in range(20):
        pairs = augmented("words", seed=seed)
        assert [(b, score) for _, b, score in pairs] == list(zip(TRAIN.right, TRAIN.scores, strict=True))
        assert [a for a, _, _ in pairs[1:3]] == ["It rains", "."], "texts of fewer than three words are unchanged"
        words, changed = TRAIN.left[0].split(), pairs[0][0].split()
        dropped = [words[:n] + words[n + 1 :] for n in range(5)]
        swapped = [[*words[:n], words[n + 1], words[n], *words[n + 2 :]] for n in range(4)]
        assert changed in dropped + swapped
        word_counts.add(len(changed))
    assert word_counts == {4, 5}


@pytest.mark.parametrize("change", AUGMENTATIONS)
def test_augmentation_is_deterministic(change):
    assert augmented(change) == augmented(change)


def test_several_augmentations_are_concatenated():
    assert augmented("identical", "case") == augmented("identical") + augmented("case")
