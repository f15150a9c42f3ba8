"""Pairs that are added to the training pairs."""

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


def added(*changes, seed=0):
    """The pairs behind the training pairs, which must be as they were."""
    found = augment_pairs(TRAIN, changes, SCALE, seed)
    assert (found.left[:4], found.right[:4], found.scores[:4]) == (TRAIN.left, TRAIN.right, TRAIN.scores)
    assert found.name == "train"
    return list(zip(found.left, found.right, found.scores, strict=True))[4:]


def test_no_change_adds_nothing_and_leaves_the_pairs_alone():
    assert added() == []
    assert len(TRAIN) == 4


def test_identical_pairs_have_the_highest_score_of_the_scale():
    assert added("identical") == [(text, text, 5.0) for text in TRAIN.texts()]
    assert augment_pairs(TRAIN, ("identical",), (0.0, 10.0)).scores[-1] == 10.0


def test_punctuation_pairs_differ_by_the_full_stop_alone():
    expected = ["A dog runs home now.", "The cat sat on it.", "Snow."]
    assert added("punctuation") == [(text, text[:-1], 5.0) for text in expected], "a lone full stop has no such pair"


def test_case_changes_keep_the_letters_and_the_score():
    found = added("case")
    assert [(a.lower(), b, score) for a, b, score in found] == [
        (a.lower(), b, score) for a, b, score in zip(TRAIN.left, TRAIN.right, TRAIN.scores, strict=True)
    ]
    assert any(a != left for (a, _, _), left in zip(found, TRAIN.left, strict=True))


def test_word_changes_drop_one_word_or_swap_two_neighbours():
    kinds = set()
    for seed in range(20):
        found = added("words", seed=seed)
        assert [(b, score) for _, b, score in found] == list(zip(TRAIN.right, TRAIN.scores, strict=True))
        assert [a for a, _, _ in found[1:3]] == ["It rains", "."], "short texts stay"
        words, changed = TRAIN.left[0].split(), found[0][0].split()
        dropped = [words[:n] + words[n + 1 :] for n in range(5)]
        swapped = [[*words[:n], words[n + 1], words[n], *words[n + 2 :]] for n in range(4)]
        assert changed in dropped + swapped
        kinds.add(len(changed))
    assert kinds == {4, 5}


@pytest.mark.parametrize("change", AUGMENTATIONS)
def test_changes_are_the_same_every_time(change):
    assert added(change) == added(change)


def test_several_changes_stand_one_after_another():
    assert added("identical", "case") == added("identical") + added("case")
