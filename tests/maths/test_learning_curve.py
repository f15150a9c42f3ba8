"""Intervals and forecasts of learning curves against scipy and known laws."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats
from scipy.optimize import curve_fit

from decoder2vec.maths.learning_curve import PowerLaw, forecast, half_interval, round_figures

SIZES = [50, 200, 1000, 5000, 20000]


def test_interval_equals_that_of_scipy():
    values = [70.1, 71.5, 69.9, 70.6]
    low, high = stats.t.interval(0.95, 3, loc=np.mean(values), scale=stats.sem(values))
    assert half_interval(values) == pytest.approx((high - low) / 2)
    assert half_interval([70.0]) is None and half_interval([]) is None


def test_power_law_is_found_again():
    scores = [80 - 60 * size**-0.3 for size in SIZES]
    law = PowerLaw.fit(SIZES, scores)
    assert [law(size) for size in SIZES] == pytest.approx(scores, abs=0.02)
    assert law(50000) == pytest.approx(80 - 60 * 50000**-0.3, abs=0.1)


def test_fit_is_as_good_as_that_of_scipy():
    rng = np.random.default_rng(0)
    scores = np.array([75 - 40 * size**-0.4 for size in SIZES]) + rng.normal(0, 0.3, len(SIZES))

    def law(size, limit, gain, exponent):
        return limit - gain * size**-exponent

    found, _ = curve_fit(law, np.array(SIZES, float), scores, p0=(75, 40, 0.4), maxfev=10000)
    best = np.square(law(np.array(SIZES, float), *found) - scores).sum()
    own = PowerLaw.fit(SIZES, scores)
    assert np.square([own(size) for size in SIZES] - scores).sum() <= 1.01 * best + 1e-3


def test_forecast_of_a_law_is_believed():
    scores = [80 - 60 * size**-0.3 for size in SIZES]
    result = forecast(SIZES, scores, 28000, None)
    assert result.believed and abs(result.error) < 0.3 and result.allowed == 1.0
    assert result.gain == pytest.approx(60 * (20000**-0.3 - 28000**-0.3), abs=0.05)


def test_forecast_that_misses_the_held_out_size_is_not_believed():
    """The curve goes on rising where a law of the first sizes has ended."""
    scores = [50, 58, 60, 60.5, 75]
    result = forecast(SIZES, scores, 28000, None)
    assert not result.believed and result.error < -5
    assert forecast(SIZES, scores, 28000, half_width=20.0).believed, "the last score is itself not known better"


def test_few_sizes_give_no_forecast():
    assert forecast([50, 200, 1000], [1.0, 2.0, 3.0], 1400, None) is None


@pytest.mark.parametrize(
    ("value", "figures", "rounded"), [(447.2, 2, 450), (447.2, 1, 400), (5.6, 1, 6), (99.6, 2, 100)]
)
def test_round_figures(value, figures, rounded):
    assert round_figures(value, figures) == rounded
