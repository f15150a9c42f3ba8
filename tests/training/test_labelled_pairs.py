"""Dev pairs that are set aside from labelled pairs."""

from __future__ import annotations

import pytest

from decoder2vec.errors import InputError
from decoder2vec.training.labelled_pairs import LabelledPairs


def pairs_of(rows):
    return LabelledPairs(*map(tuple, zip(*rows, strict=True)))


def rows_of(pairs):
    return list(zip(pairs.first, pairs.second, pairs.labels, strict=True))


def test_every_tenth_pair_of_each_label_is_set_aside():
    rows = [(f"a{n}", f"b{n}", "yes" if n % 2 else "no") for n in range(60)]
    learned, dev = pairs_of(rows).split_dev()
    # the second, twelfth and twenty-second of each label
    assert rows_of(dev) == [rows[n] for n in (2, 3, 22, 23, 42, 43)]
    assert rows_of(learned) == [row for row in rows if row not in rows_of(dev)]


def test_a_pair_and_its_reverse_are_on_the_same_side():
    rows = [(f"a{n}", f"b{n}", "yes" if n % 3 else "no") for n in range(60)]
    learned, dev = pairs_of([*rows, *((b, a, label) for a, b, label in rows)]).split_dev()
    assert 0 < len(dev) < len(learned)
    assert not {frozenset(row[:2]) for row in rows_of(dev)} & {frozenset(row[:2]) for row in rows_of(learned)}


def test_a_label_of_reversed_pairs_only_is_learned():
    """The reverse of each pair of `cause` is an `effect`: were all of a label set aside, it could not be learned."""
    rows = [(f"a{n}", f"b{n}", "cause") for n in range(25)]
    learned, _ = pairs_of([*rows, ("b1", "a1", "effect")]).split_dev()
    assert "effect" in learned.labels and ("a1", "b1", "cause") in rows_of(learned)


def test_pairs_of_the_same_two_texts_are_set_aside_all_the_same():
    learned, dev = pairs_of([("a", "b", "yes"), ("b", "a", "no")] * 11).split_dev()
    assert (len(learned), len(dev)) == (20, 2) and set(dev.labels) == {"yes", "no"}


def test_too_few_pairs_raise():
    with pytest.raises(InputError, match="There are 19 labelled pairs, too few to set some aside"):
        pairs_of([(f"a{n}", f"b{n}", "x") for n in range(19)]).split_dev()
