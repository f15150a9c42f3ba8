"""Pairs that were seen in training are found again, however they are written."""

from __future__ import annotations

import numpy as np
import pytest

from decoder2vec.text.data_check import count_overlap, hash_pairs

LEFT = ["A dog runs.", "It rains.", "The sun shines."]
RIGHT = ["A cat sleeps.", "It snows.", "The moon is up."]


def test_every_pair_has_a_number_of_its_own():
    found = hash_pairs(LEFT, RIGHT)
    assert found.dtype == np.uint64 and len(set(found.tolist())) == 3
    assert (found == hash_pairs(LEFT, RIGHT)).all()


def test_the_order_of_the_texts_does_not_matter():
    assert (hash_pairs(LEFT, RIGHT) == hash_pairs(RIGHT, LEFT)).all()


@pytest.mark.parametrize("written", [str.upper, str.title, lambda text: f"  {text.replace(' ', '  ')}\n"])
def test_spaces_and_case_do_not_matter(written):
    assert (hash_pairs([written(text) for text in LEFT], RIGHT) == hash_pairs(LEFT, RIGHT)).all()


def test_another_text_is_another_pair():
    assert hash_pairs(["a dog runs"], RIGHT[:1]) != hash_pairs(LEFT[:1], RIGHT[:1]), "a full stop does matter"
    assert hash_pairs(["a b"], ["c"]) != hash_pairs(["a"], ["b c"])


def test_seen_pairs_are_counted():
    seen = hash_pairs(LEFT[:2], RIGHT[:2])
    assert count_overlap([RIGHT[1], LEFT[2], LEFT[0]], [LEFT[1], RIGHT[2], RIGHT[0].lower()], seen) == 2
    assert count_overlap(LEFT[:2], RIGHT[:2][::-1], seen) == 0, "the same texts in other pairs"
    assert count_overlap(LEFT[:1] * 3, RIGHT[:1] * 3, seen) == 3


def test_nothing_overlaps_with_nothing():
    none = hash_pairs([], [])
    assert none.dtype == np.uint64 and len(none) == 0
    assert count_overlap(LEFT, RIGHT, none) == count_overlap([], [], none) == 0


def test_sides_of_different_length_are_no_pairs():
    with pytest.raises(ValueError):
        hash_pairs(LEFT, RIGHT[:2])
