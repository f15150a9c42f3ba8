"""Is A better than B: the right tasks, the same items, and a sentence that says what the numbers say."""

from __future__ import annotations

from dataclasses import asdict

import numpy as np
import pytest
from scipy import stats

from decoder2vec.maths.bootstrap import Difference
from decoder2vec.report.differences import OVERALL, Differences, said
from decoder2vec.report.result_files import gather
from toys.evaluations import KINDS, make_evaluation, write_evaluation


@pytest.fixture
def encoders(tmp_path):
    """encoders(documents with items) -> evaluations in that order."""

    def read(*made):
        return [
            gather([write_evaluation(tmp_path, document, items, f"e{number}")]).evaluations[0]
            for number, (document, items) in enumerate(made)
        ]

    return read


def test_a_better_encoder_is_better_and_the_numbers_are_those_of_the_scores(encoders):
    made = [make_evaluation("good", 1.5, 1), make_evaluation("bad", 0.6, 2)]
    found = Differences(encoders(*made))
    tasks = [{name: task["score"] for name, task in document["tasks"].items()} for document, _ in made]
    sts = np.mean([tasks[0][name] - tasks[1][name] for name, kind in KINDS.items() if kind == "sts"])
    assert found.between(0, 1, "sts").value == pytest.approx(sts, abs=0.02)
    by_family = [
        np.mean([tasks[0][name] - tasks[1][name] for name, own in KINDS.items() if own == kind])
        for kind in dict.fromkeys(KINDS.values())
    ]
    assert found.between(0, 1).value == pytest.approx(np.mean(by_family), abs=0.02)
    assert found.between(0, 1).significant and found.between(0, 1).low > 0
    assert found.notes == []


def test_the_other_way_round_is_the_same_with_the_other_sign(encoders):
    found = Differences(encoders(make_evaluation("a", 1.0, 1), make_evaluation("b", 0.9, 2)))
    for family in (OVERALL, *dict.fromkeys(KINDS.values())):
        one, other = found.between(0, 1, family), found.between(1, 0, family)
        assert (one.value, one.low, one.high) == pytest.approx((-other.value, -other.high, -other.low))
        assert one.p == other.p


def test_one_task_is_scipys_paired_bootstrap(encoders):
    task = {"scifact": "retrieval"}
    a, b = make_evaluation("a", 1.0, 1, task), make_evaluation("b", 0.9, 2, task)
    found = Differences(encoders(a, b)).between(0, 1)
    values = [np.array(items["scifact"]["values"]) for _, items in (a, b)]
    interval = stats.bootstrap(
        (100 * (values[0] - values[1]),), np.mean, method="percentile", n_resamples=9999, rng=0
    ).confidence_interval
    assert (found.low, found.high) == pytest.approx((interval.low, interval.high), abs=0.15)


def test_only_tasks_that_both_have_are_compared(encoders):
    some = {name: kind for name, kind in KINDS.items() if kind != "retrieval"}
    found = Differences(encoders(make_evaluation("all"), make_evaluation("some", tasks=some)))
    assert sorted(found.tasks(0, 1)) == sorted(some)
    assert found.between(0, 1, "retrieval") is None
    none = Differences(encoders(make_evaluation("a", tasks=some), make_evaluation("b", tasks={"scifact": "retrieval"})))
    assert none.between(0, 1) is None and none.tasks(0, 1) == []


def test_items_that_do_not_fit_are_not_used_and_told(encoders):
    whole = make_evaluation("whole")
    other, items = make_evaluation("other", seed=1)
    items["scifact"]["values"] = items["scifact"]["values"][:50]
    items["stsb-test"]["gold"][0] += 1
    items["mrpc-test"]["predicted"] = items["mrpc-test"]["predicted"][::-1]
    items["20newsgroups"]["values"][0] = float("nan")
    del items["emotion"]
    other["tasks"]["scifact"]["score"] = 100 * float(np.mean(items["scifact"]["values"]))
    sts = items["stsb-test"]
    other["tasks"]["stsb-test"]["score"] = 100 * stats.spearmanr(sts["predicted"], sts["gold"]).statistic
    found = Differences(encoders(whole, (other, items)))
    assert found.tasks(0, 1) == ["sickr-test"]
    notes = "\n".join(found.notes)
    for words in (
        "scifact: 2 different files of it were used",
        "stsb-test: 2 different files of it were used",
        "other: the items of mrpc-test do not give its score",
        "other: items that are not numbers for 20newsgroups",
        "other: no results of single items for emotion",
    ):
        assert words in notes


def test_too_few_items_say_nothing(encoders):
    made = []
    for name, seed in (("a", 1), ("b", 2)):
        document, items = make_evaluation(name, seed=seed, tasks={"20newsgroups": "clustering"})
        items["20newsgroups"]["values"] = items["20newsgroups"]["values"][:4]
        document["tasks"]["20newsgroups"]["score"] = 100 * float(np.mean(items["20newsgroups"]["values"]))
        made.append((document, items))
    found = Differences(encoders(*made))
    assert found.between(0, 1) is None and "only 4 items" in found.notes[0]


def test_values_that_are_points_already_are_taken_as_they_are(encoders):
    tasks = {"scifact": "retrieval"}
    parts, whole = make_evaluation("a", 1.0, 1, tasks), make_evaluation("b", 0.8, 2, tasks)
    expected = Differences(encoders(parts, whole)).between(0, 1)
    for _, items in (parts, whole):
        items["scifact"]["values"] = [100 * value for value in items["scifact"]["values"]]
    assert Differences(encoders(parts, whole)).between(0, 1).value == pytest.approx(expected.value)


def test_the_same_data_give_the_same_numbers_in_any_order(encoders):
    a, b, c = (make_evaluation(name, quality, 7) for name, quality in (("a", 1.0), ("b", 0.9), ("c", 1.3)))
    one, other = Differences(encoders(a, b, c)).between(0, 1), Differences(encoders(c, b, a)).between(2, 1)
    assert asdict(one) == pytest.approx(asdict(other), rel=1e-12)


def test_equal_encoders_differ_by_exactly_nothing(encoders):
    """Whatever stands beside them: rounding must not make a difference out of none."""
    same = [make_evaluation(name, 0.9, 7) for name in ("a", "b")]
    others = [make_evaluation(f"other{number}", 1.0, number) for number in range(5)]
    found = Differences(encoders(same[0], *others, same[1]))
    assert found.between(0, 6) == Difference(0.0, 0.0, 0.0, 1.0)


@pytest.mark.parametrize(
    ("found", "sentence"),
    [
        (Difference(1.2, 0.4, 2.0, 0.004), "A is better than B by 1.2 points [0.4, 2.0], p = 0.004."),
        (Difference(-1.2, -2.0, -0.4, 0.004), "B is better than A by 1.2 points [0.4, 2.0], p = 0.004."),
        (
            Difference(0.3, -0.5, 1.1, 0.4),
            "No difference between A and B that this data can show: +0.3 points [-0.5, 1.1], p = 0.400.",
        ),
        (Difference(0.0, 0.0, 0.0, 1.0), "A and B score the same."),
        (None, "A and B cannot be compared: they share no task with results of single items."),
    ],
)
def test_a_difference_is_said_in_a_sentence(found, sentence):
    assert said(found, "A", "B").replace("\u00a0", " ") == sentence
