"""T25: a number called STS that was made by another protocol."""

from itertools import pairwise

import numpy as np
import pytest
from scipy import stats

from decoder2vec.encoder import Encoder
from decoder2vec.errors import EncoderError
from decoder2vec.evaluation.similarity import evaluate_sts, score_sts
from decoder2vec.text.files import ScoredPairs


class Table:
    """An encoder that looks its vectors up, and keeps what it was asked."""

    def __init__(self, vectors):
        self.vectors, self.asked = vectors, []

    def encode(self, texts, **kwargs):
        self.asked.append((list(texts), kwargs))
        return np.stack([self.vectors[text] for text in texts])


def at_angles(cosines, lengths=None):
    """Pairs of plane vectors with these cosines, as a table of texts; lengths of the second ones may vary."""
    lengths = np.ones(len(cosines)) if lengths is None else lengths
    vectors = {f"l{i}": np.array([1.0, 0.0]) for i in range(len(cosines))}
    for i, (cosine, length) in enumerate(zip(cosines, lengths, strict=True)):
        vectors[f"r{i}"] = length * np.array([cosine, np.sqrt(1 - cosine**2)])
    return Table(vectors), [f"l{i}" for i in range(len(cosines))], [f"r{i}" for i in range(len(cosines))]


@pytest.fixture(scope="module")
def noisy():
    """60 cosines, and scores from 0 to 5 that follow them loosely, with ties."""
    rng = np.random.default_rng(0)
    cosines = rng.uniform(-0.9, 0.9, 60)
    return cosines, np.clip(np.round(2 * (2.5 + 2 * cosines + rng.normal(0, 1, 60))) / 2, 0, 5)


def test_numbers_are_scipys_over_all_pairs(noisy):
    """Cosine, one correlation over the whole file; ranks of ties are averaged."""
    cosines, scores = noisy
    table, left, right = at_angles(cosines)
    found = evaluate_sts(table, ScoredPairs("stsb-test", left, right, list(scores)))
    assert found["spearman"] == pytest.approx(100 * stats.spearmanr(cosines, scores).statistic, abs=0.006)
    assert found["pearson"] == pytest.approx(100 * stats.pearsonr(cosines, scores).statistic, abs=0.006)
    assert (found["task"], found["pairs"], found["texts"]) == ("stsb-test", 60, 120)

    by_order = [np.argsort(np.argsort(each, kind="stable"), kind="stable") for each in (cosines, scores)]
    assert abs(found["spearman"] - 100 * stats.pearsonr(*by_order).statistic) > 0.1  # ties broken: the fault


def test_tiny_encoder_agrees_with_cosines_made_by_hand(texts):
    """The whole way from texts to the number, by numpy and scipy alone."""
    encoder = Encoder.from_pretrained("tiny-llama", template="plain", pooling="mean", device="cpu")
    left, right = [*texts, texts[0], "A loaf of bread"], [texts[1], texts[2], texts[0], texts[0], texts[1]]
    scores = [0.5, 1.0, 2.5, 5.0, 3.0]
    found = evaluate_sts(encoder, ScoredPairs("own", left, right, scores))
    vectors = zip(map(encoder.encode, left), map(encoder.encode, right), strict=True)
    cosines = [a @ b / np.linalg.norm(a) / np.linalg.norm(b) for a, b in vectors]
    assert found["spearman"] == pytest.approx(100 * stats.spearmanr(cosines, scores).statistic, abs=0.006)
    assert found["pearson"] == pytest.approx(100 * stats.pearsonr(cosines, scores).statistic, abs=0.006)
    assert found["texts"] == 4


def test_spearman_and_pearson_keep_their_names():
    """A curved but rising answer is perfect by rank and not by line; one given for the other is the fault."""
    cosines = np.linspace(-0.9, 0.9, 30)
    table, left, right = at_angles(cosines)
    scores = list(5 * ((cosines + 0.9) / 1.8) ** 6)
    found = evaluate_sts(table, ScoredPairs("curved", left, right, scores))
    assert found["spearman"] == 100.0
    assert found["pearson"] == pytest.approx(100 * stats.pearsonr(cosines, scores).statistic, abs=0.006)
    assert found["pearson"] < 90


def test_one_correlation_over_all_pairs_is_not_the_mean_over_parts():
    """SentEval averages over sub-sets, which hides that two of them lie at different heights."""
    inside = np.linspace(0.0, 0.3, 20)
    cosines = np.concatenate([inside, inside + 0.6])
    scores = np.concatenate([inside * 10, inside * 10])
    table, left, right = at_angles(cosines)
    found = evaluate_sts(table, ScoredPairs("two parts", left, right, list(scores)))
    by_parts = np.mean([stats.spearmanr(cosines[part], scores[part]).statistic for part in (slice(20), slice(20, 40))])
    assert by_parts == pytest.approx(1.0)
    assert found["spearman"] == pytest.approx(100 * stats.spearmanr(cosines, scores).statistic, abs=0.006)
    assert found["spearman"] < 60


def test_nothing_is_fitted_on_the_scores():
    """Vectors without any meaning score near 0; a regressor trained on the same scores, the fault, does not."""
    rng = np.random.default_rng(1)
    left, right = [f"l{i}" for i in range(60)], [f"r{i}" for i in range(60)]
    table = Table({text: rng.normal(size=40) for text in left + right})
    scores = rng.uniform(0, 5, 60)
    found = evaluate_sts(table, ScoredPairs("noise", left, right, list(scores)))
    assert abs(found["spearman"]) < 40

    features = np.stack([np.abs(table.vectors[a] - table.vectors[b]) for a, b in zip(left, right, strict=True)])
    weights, *_ = np.linalg.lstsq(features, scores, rcond=None)
    assert 100 * stats.spearmanr(features @ weights, scores).statistic > 60

    assert all(isinstance(text, str) for asked, _ in table.asked for text in asked) and len(table.asked) == 1


def test_scale_of_the_scores_does_not_matter(noisy):
    """0 to 5 or 0 to 1, as different copies of the same data have it."""
    cosines, scores = noisy
    assert score_sts(cosines, scores) == score_sts(cosines, scores / 5)


def test_length_of_a_vector_does_not_matter(noisy):
    """The cosine is the protocol; a bare dot product, the fault, gives another number."""
    cosines, scores = noisy
    lengths = np.random.default_rng(2).uniform(0.1, 10, len(cosines))
    plain, stretched = (at_angles(cosines, each) for each in (None, lengths))
    numbers = [
        evaluate_sts(table, ScoredPairs("x", left, right, list(scores))) for table, left, right in (plain, stretched)
    ]
    assert numbers[0]["spearman"] == numbers[1]["spearman"]
    assert abs(100 * stats.spearmanr(cosines * lengths, scores).statistic - numbers[0]["spearman"]) > 5


def test_interval_is_that_of_a_plain_bootstrap(noisy):
    """Pairs are drawn, by a loop over scipy's own function; drawing both sides apart is the fault."""
    cosines, scores = noisy
    found = score_sts(cosines, scores)
    rng = np.random.default_rng(7)
    draws = [rng.integers(0, len(scores), len(scores)) for _ in range(500)]
    values = [stats.spearmanr(cosines[draw], scores[draw]).statistic for draw in draws]
    low, high = 100 * np.quantile(values, [0.025, 0.975])
    assert found["spearman_95"][0] <= found["spearman"] <= found["spearman_95"][1]
    assert found["spearman_95"] == pytest.approx([low, high], abs=4)

    apart = [stats.spearmanr(cosines[draw], scores[other]).statistic for draw, other in pairwise(draws)]
    assert 100 * np.quantile(apart, 0.975) < found["spearman"]


def test_vectors_that_are_not_finite_are_refused_and_constant_ones_score_zero():
    """SciPy, left to itself, makes NaN of both, and a table of results shows a hole."""
    table, left, right = at_angles(np.full(10, 0.5))
    scores = list(np.arange(10.0))
    assert evaluate_sts(table, ScoredPairs("constant", left, right, scores))["spearman"] == 0.0
    with pytest.warns(stats.ConstantInputWarning):
        assert np.isnan(stats.spearmanr(np.full(10, 0.5), scores).statistic)

    table.vectors["r3"] = np.array([np.nan, 1.0])
    with pytest.raises(EncoderError, match="not finite on broken"):
        evaluate_sts(table, ScoredPairs("broken", left, right, scores))
