"""The rule of the two halves on curves made by hand, and how many layers a choice keeps."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest

from decoder2vec.analysis.pruning import check_choice, choose_depth, find_minima, kept_layers
from decoder2vec.errors import InputError

CURVES = {
    "falls all the way": ([8, 7, 6, 5, 4, 3, 2, 1], (4, 8), (False, False)),
    "rises all the way": ([1, 2, 3, 4, 5, 6, 7, 8], (1, 5), (False, False)),
    "one valley in the middle": ([5, 4, 3, 2, 2.5, 3, 4, 5], (4, 5), (False, False)),
    "a hill in the middle": ([1, 2, 3, 4, 4, 3, 2, 1], (1, 8), (False, False)),
    "drop, rise, drop, rise": ([5, 3, 4, 6, 5, 2, 3, 4], (2, 6), (True, True)),
    "drop, rise, drop to the very end": ([5, 3, 4, 6, 5, 4, 3, 2], (2, 8), (True, False)),
    "a valley in the upper half only": ([9, 8, 7, 6, 5, 2, 3, 4], (4, 6), (False, True)),
    "a small valley before the lowest end": ([5, 2, 4, 1, 5, 3, 4, 6], (4, 6), (False, True)),
    "ties": ([5, 3, 3, 6, 5, 2, 2, 4], (2, 6), (True, True)),
    "a plateau": ([3] * 8, (1, 5), (False, False)),
    "a floor that reaches the end of each half": ([5, 3, 3, 3, 5, 2, 2, 2], (2, 6), (False, False)),
    "an odd number of layers: the middle one is of the upper half": ([5, 1, 5, 0.5, 4, 3, 5], (2, 4), (True, False)),
    "three layers": ([3, 1, 2], (1, 2), (False, False)),
    "two layers": ([2, 1], (1, 2), (False, False)),
}


@pytest.mark.parametrize(("losses", "depths", "inside"), CURVES.values(), ids=CURVES)
def test_the_best_of_each_half_and_whether_it_is_a_valley(losses, depths, inside):
    found = find_minima(losses)
    assert (found.small, found.large) == depths
    assert (found.small_inside, found.large_inside) == inside
    assert found.drop_rise_drop == all(inside)
    said = " ".join(found.remarks())
    assert ("drop-rise-drop shape is absent" in said) == (not all(inside))
    assert ("should not be cut" in said) == (depths[1] == len(losses))
    assert found.to_json()["interior"] == dict(zip(("small", "large"), inside, strict=True))


def test_a_plain_search_finds_the_same_on_many_curves():
    for number in range(200):
        depth = 2 + number % 17
        losses = [((number + 3) * (layer + 7) ** 2) % 11 / 10 for layer in range(depth)]
        half = depth // 2
        found = find_minima(losses)
        best = {"small": 1, "large": half + 1}
        for layer in range(1, depth + 1):
            name = "small" if layer <= half else "large"
            if losses[layer - 1] < losses[best[name] - 1]:
                best[name] = layer
        assert (found.small, found.large) == (best["small"], best["large"])


@pytest.mark.parametrize("wrong", [math.nan, math.inf])
def test_a_layer_that_is_no_number_is_named_and_not_ordered(wrong):
    with pytest.raises(InputError, match=r"The loss of layer 3 is (nan|inf)"):
        find_minima([4, 3, wrong, 2])


@pytest.mark.parametrize("losses", [[], [1.0]])
def test_a_model_of_one_layer_has_nothing_to_choose(losses):
    with pytest.raises(InputError, match="one layer"):
        find_minima(losses)


def test_shares_are_rounded_down_exactly_for_every_depth_up_to_64():
    for full in range(1, 65):
        for twentieth in range(21):
            share = Fraction(twentieth, 20)
            assert kept_layers(full, float(share)) == math.floor(full * share)
            assert kept_layers(full, 1 - float(1 - share)) == math.floor(full * share), "also from what is removed"
    assert int(30 * (1 - 0.8)) == 5, "the trap: 30 layers of which 80 % go"
    assert kept_layers(30, 1 - 0.8) == 6


@pytest.mark.parametrize(("choice", "depth"), [("70%", 21), ("20 %", 6), ("33.4%", 10), (7, 7), ("small", 9)])
def test_a_choice_is_a_share_a_number_or_read_off_the_curve(choice, depth):
    losses = [abs(layer - 9) / 10 for layer in range(1, 31)]
    assert choose_depth(choice, 30, find_minima(losses)) == depth


@pytest.mark.parametrize(
    ("choice", "full", "said"),
    [
        ("0%", 30, "above 0% and below 100%"),
        ("100%", 30, "above 0% and below 100%"),
        ("140%", 30, "above 0% and below 100%"),
        ("10%", 4, "10% means to keep 0; choose 1 to 3"),
        (0, 4, "choose 1 to 3"),
        (4, 4, "The model has 4 layers, and 4 means to keep 4"),
        (-2, 4, "choose 1 to 3"),
        ("medium", 30, "Unknown choice 'medium'; keep a share such as 70%, small or large"),
        ("12", 30, "--layers N"),
        ("-5%", 30, "Unknown choice"),
        ("small", 30, "give triples"),
        (1, 1, "one layer"),
    ],
)
def test_what_keeps_nothing_or_all_or_is_no_choice_is_refused(choice, full, said):
    with pytest.raises(InputError, match=said):
        choose_depth(choice, full)


def test_a_curve_that_is_lowest_at_the_top_says_not_to_cut():
    with pytest.raises(InputError, match="lowest behind the last of 8 layers, so large means not to cut"):
        choose_depth("large", 8, find_minima([8, 7, 6, 5, 4, 3, 2, 1]))


def test_a_choice_is_checked_before_a_model_is_there():
    check_choice("large", curve=True)
    check_choice("45%", curve=False)
    with pytest.raises(InputError, match="curve of losses"):
        check_choice("large", curve=False)
