"""Differences between encoders: over the right tasks, on the same items, described in a correct sentence."""

from __future__ import annotations

from dataclasses import asdict

import numpy as np
import pytest
from scipy import stats

from decoder2vec.maths.bootstrap import Difference
from decoder2vec.report.differences import OVERALL, Differences, describe_difference
from decoder2vec.report.result_files import find_results
from toys.evaluations import KINDS, make_evaluation, write_evaluation
from toys.scipy_bootstrap import bootstrap


@pytest.fixture
def read(tmp_path):
    """read(documents with items) -> evaluations in that order."""

    def evaluations(*documents):
        return [
            find_results([write_evaluation(tmp_path, document, items, f"e{number}")]).evaluations[0]
            for number, (document, items) in enumerate(documents)
        ]

    return evaluations


def test_difference_is_the_mean_over_families_of_score_differences(read):
    documents = [make_evaluation("good", 1.5, 1), make_evaluation("bad", 0.6, 2)]
    differences = Differences(read(*documents))
    scores = [{name: task["score"] for name, task in document["tasks"].items()} for document, _ in documents]
    sts = np.mean([scores[0][name] - scores[1][name] for name, kind in KINDS.items() if kind == "sts"])
    assert differences.between(0, 1, "sts").value == pytest.approx(sts, abs=0.02)
    by_family = [
        np.mean([scores[0][name] - scores[1][name] for name, kind in KINDS.items() if kind == family])
        for family in dict.fromkeys(KINDS.values())
    ]
    assert differences.between(0, 1).value == pytest.approx(np.mean(by_family), abs=0.02)
    assert differences.between(0, 1).significant and differences.between(0, 1).low > 0
    assert differences.notes == []


def test_swapping_encoders_changes_only_the_sign(read):
    differences = Differences(read(make_evaluation("a", 1.0, 1), make_evaluation("b", 0.9, 2)))
    for family in (OVERALL, *dict.fromkeys(KINDS.values())):
        forward, backward = differences.between(0, 1, family), differences.between(1, 0, family)
        expected = (-backward.value, -backward.high, -backward.low)
        assert (forward.value, forward.low, forward.high) == pytest.approx(expected)
        assert forward.p == backward.p


def test_one_task_equals_scipys_paired_bootstrap(read):
    task = {"scifact": "retrieval"}
    a, b = make_evaluation("a", 1.0, 1, task), make_evaluation("b", 0.9, 2, task)
    result = Differences(read(a, b)).between(0, 1)
    values = [np.array(items["scifact"]["values"]) for _, items in (a, b)]
    interval = bootstrap(
        (100 * (values[0] - values[1]),), np.mean, method="percentile", n_resamples=9999, rng=0
    ).confidence_interval
    assert (result.low, result.high) == pytest.approx((interval.low, interval.high), abs=0.15)


def test_only_common_tasks_are_compared(read):
    common = {name: kind for name, kind in KINDS.items() if kind != "retrieval"}
    differences = Differences(read(make_evaluation("all"), make_evaluation("some", tasks=common)))
    assert sorted(differences.tasks(0, 1)) == sorted(common)
    assert differences.between(0, 1, "retrieval") is None
    disjoint = Differences(
        read(make_evaluation("a", tasks=common), make_evaluation("b", tasks={"scifact": "retrieval"}))
    )
    assert disjoint.between(0, 1) is None and disjoint.tasks(0, 1) == []


def test_unusable_items_are_ignored_and_noted(read):
    complete = make_evaluation("complete")
    other, items = make_evaluation("other", seed=1)
    items["scifact"]["values"] = items["scifact"]["values"][:50]
    items["stsb-test"]["gold"][0] += 1
    items["mrpc-test"]["predicted"] = items["mrpc-test"]["predicted"][::-1]
    items["20newsgroups"]["values"][0] = float("nan")
    del items["emotion"]
    other["tasks"]["scifact"]["score"] = 100 * float(np.mean(items["scifact"]["values"]))
    sts = items["stsb-test"]
    other["tasks"]["stsb-test"]["score"] = 100 * stats.spearmanr(sts["predicted"], sts["gold"]).statistic
    differences = Differences(read(complete, (other, items)))
    assert differences.tasks(0, 1) == ["sickr-test"]
    notes = "\n".join(differences.notes)
    for words in (
        "scifact: 2 different versions of its data were used",
        "stsb-test: 2 different versions of its data were used",
        "other: the per-item results of mrpc-test do not give its score",
        "other: per-item results that are not finite for 20newsgroups",
        "other: no per-item results for emotion",
    ):
        assert words in notes


def test_too_few_items_are_not_compared(read):
    documents = []
    for name, seed in (("a", 1), ("b", 2)):
        document, items = make_evaluation(name, seed=seed, tasks={"20newsgroups": "clustering"})
        items["20newsgroups"]["values"] = items["20newsgroups"]["values"][:4]
        document["tasks"]["20newsgroups"]["score"] = 100 * float(np.mean(items["20newsgroups"]["values"]))
        documents.append((document, items))
    differences = Differences(read(*documents))
    assert differences.between(0, 1) is None and "only 4 items" in differences.notes[0]


def test_item_values_may_already_be_points(read):
    tasks = {"scifact": "retrieval"}
    a, b = make_evaluation("a", 1.0, 1, tasks), make_evaluation("b", 0.8, 2, tasks)
    expected = Differences(read(a, b)).between(0, 1)
    for _, items in (a, b):
        items["scifact"]["values"] = [100 * value for value in items["scifact"]["values"]]
    assert Differences(read(a, b)).between(0, 1).value == pytest.approx(expected.value)


def test_order_of_encoders_does_not_change_the_difference(read):
    a, b, c = (make_evaluation(name, quality, 7) for name, quality in (("a", 1.0), ("b", 0.9), ("c", 1.3)))
    forward, backward = Differences(read(a, b, c)).between(0, 1), Differences(read(c, b, a)).between(2, 1)
    assert asdict(forward) == pytest.approx(asdict(backward), rel=1e-12)


def test_equal_encoders_differ_by_exactly_zero(read):
    """Whatever other encoders there are: rounding must not create a difference."""
    equal = [make_evaluation(name, 0.9, 7) for name in ("a", "b")]
    others = [make_evaluation(f"other{number}", 1.0, number) for number in range(5)]
    differences = Differences(read(equal[0], *others, equal[1]))
    assert differences.between(0, 6) == Difference(0.0, 0.0, 0.0, 1.0)


@pytest.mark.parametrize(
    ("result", "sentence"),
    [
        (Difference(1.2, 0.4, 2.0, 0.004), "A is better than B by 1.2 points [0.4, 2.0], p = 0.004."),
        (Difference(-1.2, -2.0, -0.4, 0.004), "B is better than A by 1.2 points [0.4, 2.0], p = 0.004."),
        (
            Difference(0.3, -0.5, 1.1, 0.4),
            "No significant difference between A and B: +0.3 points [-0.5, 1.1], p = 0.400.",
        ),
        (Difference(0.0, 0.0, 0.0, 1.0), "A and B score the same."),
        (None, "A and B cannot be compared: they have no common task with per-item results."),
    ],
)
def test_difference_is_described_in_a_sentence(result, sentence):
    assert describe_difference(result, "A", "B").replace("\u00a0", " ") == sentence
