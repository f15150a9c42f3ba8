"""Gains, mean ratio of change and learned-when against the authors' numbers, pandas, scipy and plain loops."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest

from decoder2vec.errors import InputError
from decoder2vec.maths.change import learned_when, mean_ratio_of_change, ratios_of_change
from toys.scipy_bootstrap import bootstrap

# OLMo-1B, 4 shots, at steps 1000, 18000, 342000, 424000, 505000, 592000, 738000 and the end of pre-training, from
# results/analysis/all_perf_table.csv of github.com/KaiserWhoLearns/AmuroCharPTFTRelationship (Apache-2.0), 6 decimals
BASE = {
    "xsum": [0.079265, 0.118563, 0.106349, 0.018903, 0.108353, 0.114896, 0.087927, 0.071001],
    "socialiqa": [0.018466, 0.076594, 0.044079, 0.056125, 0.056083, 0.063832, 0.101027, 0.069480],
    "mnli": [0.354201, 0.335099, 0.343352, 0.344270, 0.352420, 0.337545, 0.327662, 0.327305],
    "paws": [0.557627, 0.557875, 0.539562, 0.557748, 0.476125, 0.544063, 0.557877, 0.557998],
}
TUNED = {  # (trained on, evaluated on)
    ("mnli", "xsum"): [0.013009, 0.110730, 0.035891, 0.016116, 0.005681, 0.028334, 0.005277, 0.005374],
    ("mnli", "socialiqa"): [0.0, 0.000085, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0],
    ("paws", "xsum"): [0.001712, 0.096329, 0.099150, 0.111748, 0.096597, 0.086701, 0.010712, 0.010749],
    ("paws", "socialiqa"): [0.0, 0.000367, 0.000312, 0.0, 0.0, 0.0, 0.0, 0.0],
    ("xsum", "mnli"): [0.352724, 0.330157, 0.331583, 0.328375, 0.353133, 0.330870, 0.327356, 0.327305],
    ("xsum", "paws"): [0.557875, 0.558250, 0.537562, 0.558248, 0.481062, 0.555187, 0.557938, 0.557939],
    ("socialiqa", "mnli"): [0.352725, 0.328679, 0.352469, 0.335609, 0.361744, 0.329648, 0.329599, 0.330515],
    ("socialiqa", "paws"): [0.558127, 0.558627, 0.545561, 0.557625, 0.557938, 0.547938, 0.557250, 0.557314],
}
GENERATION, CLASSIFICATION = ("xsum", "socialiqa"), ("mnli", "paws")


def authors_scores(trained, evaluated):
    before = [score for _ in trained for task in evaluated for score in BASE[task]]
    return before, [score for source in trained for task in evaluated for score in TUNED[source, task]]


@pytest.mark.parametrize(
    ("trained", "evaluated", "expected"),
    [(CLASSIFICATION, GENERATION, -0.6146), (GENERATION, CLASSIFICATION, 0.0031)],
)
def test_mean_ratio_of_change_gives_the_authors_numbers(trained, evaluated, expected):
    before, after = authors_scores(trained, evaluated)
    result = mean_ratio_of_change(before, after)
    assert len(result.ratios) == 32
    assert round(result.value, 4) == expected
    assert result.low < result.value < result.high
    table = pd.DataFrame({"before": before, "after": after})
    assert result.value == pytest.approx(((table.after - table.before) / table.before).mean(), abs=1e-12)


def test_authors_numbers_are_significant_in_one_direction_only():
    """Classification destroys generation; the reverse, which the paper calls not significant, has 0 in its interval."""
    assert mean_ratio_of_change(*authors_scores(CLASSIFICATION, GENERATION)).high < 0
    reverse = mean_ratio_of_change(*authors_scores(GENERATION, CLASSIFICATION))
    assert reverse.low < 0 < reverse.high


def test_interval_equals_scipys_bootstrap():
    before, after = authors_scores(CLASSIFICATION, GENERATION)
    result = mean_ratio_of_change(before, after, samples=20_000)
    reference = bootstrap(
        (np.array(result.ratios),), np.mean, n_resamples=20_000, method="percentile", rng=np.random.default_rng(1)
    ).confidence_interval
    width = reference.high - reference.low
    assert result.low == pytest.approx(reference.low, abs=0.03 * width)
    assert result.high == pytest.approx(reference.high, abs=0.03 * width)


def test_one_ratio_has_no_interval():
    result = mean_ratio_of_change([50.0], [40.0])
    assert result.value == pytest.approx(-0.2) and math.isnan(result.low) and math.isnan(result.high)


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ([0.3, 0.0], [0.3, 0.1], r"not defined for the score 0 before \(number 1\); leave its task out"),
        ([-0.2], [0.1], "not defined for the score -0.2"),
        ([0.3], [0.3, 0.4], "must come in pairs, not 1 and 2"),
        ([], [], "must come in pairs, not 0 and 0"),
        ([0.3], [math.nan], "not a finite number"),
    ],
)
def test_undefined_ratios_are_refused(before, after, message):
    with pytest.raises(InputError, match=message):
        ratios_of_change(before, after)


def test_flat_and_rising_tasks_of_the_authors():
    """MNLI is flat before fine-tuning (their group B); SocialIQa rises, and its last gain comes at step 738000."""
    assert not learned_when(BASE["mnli"], 0.01).rises
    assert learned_when(BASE["socialiqa"], 0.01).checkpoint == 6


def test_learned_when_equals_a_plain_loop():
    rng = np.random.default_rng(0)
    for _ in range(20):
        scores = np.cumsum(rng.normal(1.0, 2.0, 8))
        learned = learned_when(scores, 0.5)
        rise = max(scores) - scores[0]
        if rise <= 0.5:
            assert learned.checkpoint is None and learned.shares == ()
            continue
        expected = next(n for n, score in enumerate(scores) if score - scores[0] >= 0.9 * rise)
        assert learned.checkpoint == expected
        assert learned.shares == pytest.approx([min(1, max(0, (score - scores[0]) / rise)) for score in scores])


@pytest.mark.parametrize("scores", [[1.0], [], [1.0, math.nan]])
def test_learning_curve_needs_finite_scores(scores):
    with pytest.raises(InputError, match="two checkpoints or more"):
        learned_when(scores, 0.0)
