"""T25: a score called STS that was computed by another protocol."""

from itertools import pairwise

import numpy as np
import pytest
from scipy import stats

from decoder2vec.encoder import Encoder
from decoder2vec.errors import EncoderError
from decoder2vec.evaluation.similarity import evaluate_sts, score_sts
from decoder2vec.text.files import ScoredPairs


class LookupEncoder:
    """An encoder that looks up its vectors and records the calls."""

    def __init__(self, vectors):
        self.vectors, self.calls = vectors, []

    def encode(self, texts, **kwargs):
        self.calls.append((list(texts), kwargs))
        return np.stack([self.vectors[text] for text in texts])


def pairs_with_cosines(cosines, lengths=None):
    """An encoder and two lists of texts whose pairs have these cosines; the second vectors have these lengths."""
    lengths = np.ones(len(cosines)) if lengths is None else lengths
    vectors = {f"l{i}": np.array([1.0, 0.0]) for i in range(len(cosines))}
    for i, (cosine, length) in enumerate(zip(cosines, lengths, strict=True)):
        vectors[f"r{i}"] = length * np.array([cosine, np.sqrt(1 - cosine**2)])
    return LookupEncoder(vectors), [f"l{i}" for i in range(len(cosines))], [f"r{i}" for i in range(len(cosines))]


@pytest.fixture(scope="module")
def noisy_scores():
    """60 cosines, and scores from 0 to 5 that follow them loosely, with ties."""
    rng = np.random.default_rng(0)
    cosines = rng.uniform(-0.9, 0.9, 60)
    return cosines, np.clip(np.round(2 * (2.5 + 2 * cosines + rng.normal(0, 1, 60))) / 2, 0, 5)


def test_scores_equal_scipy_over_all_pairs(noisy_scores):
    """Cosine similarity, one correlation over the whole file, ties get their mean rank."""
    cosines, scores = noisy_scores
    encoder, left, right = pairs_with_cosines(cosines)
    result = evaluate_sts(encoder, ScoredPairs("stsb-test", left, right, list(scores)))
    assert result["spearman"] == pytest.approx(100 * stats.spearmanr(cosines, scores).statistic, abs=0.006)
    assert result["pearson"] == pytest.approx(100 * stats.pearsonr(cosines, scores).statistic, abs=0.006)
    assert (result["task"], result["pairs"], result["texts"]) == ("stsb-test", 60, 120)

    ordinal_ranks = [np.argsort(np.argsort(x, kind="stable"), kind="stable") for x in (cosines, scores)]
    with_broken_ties = 100 * stats.pearsonr(*ordinal_ranks).statistic
    assert abs(result["spearman"] - with_broken_ties) > 0.1  # the faulty variant


def test_real_encoder_equals_cosines_by_hand(texts):
    """From texts to scores by numpy and scipy alone."""
    encoder = Encoder.from_pretrained("tiny-llama", template="plain", pooling="mean", device="cpu")
    left, right = [*texts, texts[0], "A loaf of bread"], [texts[1], texts[2], texts[0], texts[0], texts[1]]
    scores = [0.5, 1.0, 2.5, 5.0, 3.0]
    result = evaluate_sts(encoder, ScoredPairs("toy", left, right, scores))
    vectors = zip(map(encoder.encode, left), map(encoder.encode, right), strict=True)
    cosines = [a @ b / np.linalg.norm(a) / np.linalg.norm(b) for a, b in vectors]
    assert result["spearman"] == pytest.approx(100 * stats.spearmanr(cosines, scores).statistic, abs=0.006)
    assert result["pearson"] == pytest.approx(100 * stats.pearsonr(cosines, scores).statistic, abs=0.006)
    assert result["texts"] == 4


def test_spearman_and_pearson_are_not_swapped():
    """A monotonic but curved relation is perfect by rank and not linearly."""
    cosines = np.linspace(-0.9, 0.9, 30)
    encoder, left, right = pairs_with_cosines(cosines)
    scores = list(5 * ((cosines + 0.9) / 1.8) ** 6)
    result = evaluate_sts(encoder, ScoredPairs("curved", left, right, scores))
    assert result["spearman"] == 100.0
    assert result["pearson"] == pytest.approx(100 * stats.pearsonr(cosines, scores).statistic, abs=0.006)
    assert result["pearson"] < 90


def test_correlation_is_not_the_mean_over_subsets():
    """SentEval averages over subsets, which hides that two of them have different offsets."""
    within = np.linspace(0.0, 0.3, 20)
    cosines = np.concatenate([within, within + 0.6])
    scores = np.concatenate([within * 10, within * 10])
    encoder, left, right = pairs_with_cosines(cosines)
    result = evaluate_sts(encoder, ScoredPairs("two subsets", left, right, list(scores)))
    subsets = (slice(20), slice(20, 40))
    by_subset = np.mean([stats.spearmanr(cosines[rows], scores[rows]).statistic for rows in subsets])
    assert by_subset == pytest.approx(1.0)
    assert result["spearman"] == pytest.approx(100 * stats.spearmanr(cosines, scores).statistic, abs=0.006)
    assert result["spearman"] < 60


def test_nothing_is_fitted_on_the_scores():
    """Random vectors score near 0; a regressor trained on the same scores, the faulty variant, does not."""
    rng = np.random.default_rng(1)
    left, right = [f"l{i}" for i in range(60)], [f"r{i}" for i in range(60)]
    encoder = LookupEncoder({text: rng.normal(size=40) for text in left + right})
    scores = rng.uniform(0, 5, 60)
    result = evaluate_sts(encoder, ScoredPairs("noise", left, right, list(scores)))
    assert abs(result["spearman"]) < 40

    features = np.stack([np.abs(encoder.vectors[a] - encoder.vectors[b]) for a, b in zip(left, right, strict=True)])
    weights, *_ = np.linalg.lstsq(features, scores, rcond=None)
    assert 100 * stats.spearmanr(features @ weights, scores).statistic > 60

    assert all(isinstance(text, str) for call, _ in encoder.calls for text in call) and len(encoder.calls) == 1


def test_scale_of_the_human_scores_does_not_matter(noisy_scores):
    """0 to 5 or 0 to 1: copies of the same data differ in it."""
    cosines, scores = noisy_scores
    assert score_sts(cosines, scores) == score_sts(cosines, scores / 5)


def test_norm_of_the_vectors_does_not_matter(noisy_scores):
    """The protocol is the cosine; a dot product, the faulty variant, gives another score."""
    cosines, scores = noisy_scores
    lengths = np.random.default_rng(2).uniform(0.1, 10, len(cosines))
    cases = [pairs_with_cosines(cosines, norms) for norms in (None, lengths)]
    results = [evaluate_sts(encoder, ScoredPairs("x", left, right, list(scores))) for encoder, left, right in cases]
    assert results[0]["spearman"] == results[1]["spearman"]
    assert abs(100 * stats.spearmanr(cosines * lengths, scores).statistic - results[0]["spearman"]) > 5


def test_interval_equals_a_plain_bootstrap(noisy_scores):
    """A loop over scipy's function on drawn pairs; drawing both sides separately is the faulty variant."""
    cosines, scores = noisy_scores
    result = score_sts(cosines, scores)
    rng = np.random.default_rng(7)
    samples = [rng.integers(0, len(scores), len(scores)) for _ in range(500)]
    values = [stats.spearmanr(cosines[rows], scores[rows]).statistic for rows in samples]
    low, high = 100 * np.quantile(values, [0.025, 0.975])
    assert result["spearman_95"][0] <= result["spearman"] <= result["spearman_95"][1]
    assert result["spearman_95"] == pytest.approx([low, high], abs=4)

    separate = [stats.spearmanr(cosines[a], scores[b]).statistic for a, b in pairwise(samples)]
    assert 100 * np.quantile(separate, 0.975) < result["spearman"]


def test_nan_vectors_are_refused_and_constants_score_zero():
    """SciPy returns NaN for both."""
    encoder, left, right = pairs_with_cosines(np.full(10, 0.5))
    scores = list(np.arange(10.0))
    assert evaluate_sts(encoder, ScoredPairs("constant", left, right, scores))["spearman"] == 0.0
    with pytest.warns(stats.ConstantInputWarning):
        assert np.isnan(stats.spearmanr(np.full(10, 0.5), scores).statistic)

    encoder.vectors["r3"] = np.array([np.nan, 1.0])
    with pytest.raises(EncoderError, match="not finite on broken"):
        evaluate_sts(encoder, ScoredPairs("broken", left, right, scores))
