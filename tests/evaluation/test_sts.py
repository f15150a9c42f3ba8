"""Scores of anything that encodes, against scipy and plain loops."""

from __future__ import annotations

import builtins
import json
import sys
from types import ModuleType

import numpy as np
import pytest
from scipy import stats

from decoder2vec.config import EncoderSpec, Reading
from decoder2vec.encoder import Encoder
from decoder2vec.errors import EncoderError, MissingExtraError
from decoder2vec.evaluation import similarity as sts
from decoder2vec.evaluation.similarity import evaluate_sts, similarities, sts_from_hub
from decoder2vec.text.files import ScoredPairs


class Lookup:
    """The least that can be scored: texts in, vectors out. Keeps what it was asked."""

    def __init__(self, vectors):
        self.vectors, self.asked, self.options = vectors, [], []

    def encode(self, texts, **options):
        self.asked.append(list(texts))
        self.options.append(options)
        return [self.vectors[text] for text in texts]


def random_pairs(count, seed=0, name="pairs"):
    """Vectors without meaning, and scores with ties that follow their cosines loosely."""
    rng = np.random.default_rng(seed)
    left, right = [f"l{i}" for i in range(count)], [f"r{i}" for i in range(count)]
    vectors = {text: rng.normal(size=4) * rng.uniform(0.1, 10) for text in left + right}
    cosines = [plain_cosine(vectors[a], vectors[b]) for a, b in zip(left, right, strict=True)]
    scores = [float(np.round(2 * (cosine + rng.normal(0, 0.7))) / 2) for cosine in cosines]
    return Lookup(vectors), ScoredPairs(name, left, right, scores), np.array(cosines)


def plain_cosine(a, b):
    return float(sum(x * y for x, y in zip(a, b, strict=True)) / np.sqrt(sum(x * x for x in a) * sum(y * y for y in b)))


@pytest.mark.parametrize("seed", range(5))
def test_both_correlations_are_scipys(seed):
    encoder, pairs, cosines = random_pairs(50, seed)
    found = evaluate_sts(encoder, pairs)
    assert found["spearman"] == pytest.approx(100 * stats.spearmanr(cosines, pairs.scores).statistic, abs=0.006)
    assert found["pearson"] == pytest.approx(100 * stats.pearsonr(cosines, pairs.scores).statistic, abs=0.006)
    assert {key: found[key] for key in ("task", "pairs", "texts")} == {"task": "pairs", "pairs": 50, "texts": 100}
    assert found["seconds"] >= 0


def test_the_interval_is_that_of_a_plain_bootstrap_loop():
    encoder, pairs, cosines = random_pairs(80)
    found = evaluate_sts(encoder, pairs)
    truth = np.array(pairs.scores)
    rng = np.random.default_rng(99)
    values = []
    for _ in range(1000):
        drawn = [int(rng.integers(80)) for _ in range(80)]
        values.append(100 * stats.spearmanr(cosines[drawn], truth[drawn]).statistic)
    low, high = found["spearman_95"]
    assert low < found["spearman"] < high
    assert [low, high] == pytest.approx([np.percentile(values, 2.5), np.percentile(values, 97.5)], abs=2.5)


def test_the_interval_is_narrower_with_more_pairs_and_the_same_every_time():
    widths = []
    for count in (30, 300):
        encoder, pairs, _ = random_pairs(count)
        first, second = evaluate_sts(encoder, pairs), evaluate_sts(encoder, pairs)
        assert first["spearman_95"] == second["spearman_95"]
        widths.append(first["spearman_95"][1] - first["spearman_95"][0])
    assert widths[1] < widths[0] / 2


def test_a_perfect_encoder_scores_100():
    scores = [0.0, 1.0, 2.5, 3.0, 5.0]
    vectors = {"same": np.array([1.0, 0.0])}
    for score in scores:
        cosine = score / 5
        vectors[f"t{score}"] = np.array([cosine, np.sqrt(1 - cosine**2)])
    pairs = ScoredPairs("perfect", ["same"] * 5, [f"t{score}" for score in scores], scores)
    found = evaluate_sts(Lookup(vectors), pairs)
    assert (found["spearman"], found["pearson"]) == (100.0, 100.0)

    upside_down = ScoredPairs("wrong way", pairs.left, pairs.right, [-score for score in scores])
    assert evaluate_sts(Lookup(vectors), upside_down)["spearman"] == -100.0


@pytest.mark.parametrize("vector", [np.ones(3), np.zeros(3)], ids=["ones", "zeros"])
def test_a_constant_encoder_scores_0_and_not_nan(vector):
    _, pairs, _ = random_pairs(20)
    constant = Lookup(dict.fromkeys(pairs.texts(), vector))
    found = evaluate_sts(constant, pairs)
    assert (found["spearman"], found["pearson"], found["spearman_95"]) == (0.0, 0.0, [0.0, 0.0])


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_vectors_that_are_not_finite_are_refused_by_name(value):
    encoder, pairs, _ = random_pairs(10, name="broken-set")
    encoder.vectors["r7"] = np.array([0.0, value, 0.0, 0.0])
    with pytest.raises(EncoderError, match="not finite on broken-set"):
        evaluate_sts(encoder, pairs)


def test_every_text_is_encoded_once_in_one_call():
    left, right = ["a", "b", "a", "c"], ["b", "a", "a", "d"]
    rng = np.random.default_rng(0)
    encoder = Lookup({text: rng.normal(size=3) for text in "abcd"})
    pairs = ScoredPairs("repeats", left, right, [1.0, 1.0, 5.0, 0.0])
    found = evaluate_sts(encoder, pairs, batch_size=7, show_progress_bar=False)
    assert encoder.asked == [["a", "b", "c", "d"]]
    assert encoder.options == [{"batch_size": 7, "show_progress_bar": False}]
    assert (found["pairs"], found["texts"]) == (4, 4)
    cosines = [plain_cosine(encoder.vectors[a], encoder.vectors[b]) for a, b in zip(left, right, strict=True)]
    assert found["spearman"] == pytest.approx(100 * stats.spearmanr(cosines, pairs.scores).statistic, abs=0.006)


def test_one_correlation_over_all_pairs_differs_from_the_mean_over_parts():
    parts = [random_pairs(30, seed) for seed in (1, 2)]
    shifted = [score + 4.0 for score in parts[1][1].scores]  # the second source was judged more kindly
    vectors = {f"{number}{text}": v for number, part in enumerate(parts) for text, v in part[0].vectors.items()}
    whole = ScoredPairs(
        "all",
        [f"{number}{text}" for number, part in enumerate(parts) for text in part[1].left],
        [f"{number}{text}" for number, part in enumerate(parts) for text in part[1].right],
        parts[0][1].scores + shifted,
    )
    found = evaluate_sts(Lookup(vectors), whole)["spearman"]
    together = stats.spearmanr(np.concatenate([part[2] for part in parts]), whole.scores).statistic
    apart = np.mean([stats.spearmanr(part[2], part[1].scores).statistic for part in parts])
    assert found == pytest.approx(100 * together, abs=0.006)
    assert abs(found - 100 * apart) > 10


def test_an_encoder_with_a_similarity_of_its_own_is_scored_by_it():
    encoder, pairs, _ = random_pairs(30)

    class WithDot(Lookup):
        def similarity_pairwise(self, a, b):
            return (np.asarray(a) * np.asarray(b)).sum(axis=1)

    found = evaluate_sts(WithDot(encoder.vectors), pairs)["spearman"]
    dots = [float(encoder.vectors[a] @ encoder.vectors[b]) for a, b in zip(pairs.left, pairs.right, strict=True)]
    assert found == pytest.approx(100 * stats.spearmanr(dots, pairs.scores).statistic, abs=0.006)
    assert found != evaluate_sts(encoder, pairs)["spearman"]


def test_similarities_without_one_of_its_own_are_cosines():
    rng = np.random.default_rng(3)
    left, right = rng.normal(size=(6, 4)), rng.normal(size=(6, 4))
    expected = [plain_cosine(a, b) for a, b in zip(left, right, strict=True)]
    assert similarities(object(), left, right) == pytest.approx(expected)


@pytest.mark.parametrize("similarity", ["cosine", "dot", "euclidean", "manhattan"])
def test_our_own_encoder_is_scored_by_the_similarity_it_is_made_for(backbone, similarity):
    spec = EncoderSpec("tiny-llama", (Reading(3, "mean"),), similarity=similarity)
    encoder = Encoder(backbone("tiny-llama"), spec)
    left = ["A man plays.", "Two dogs run.", "Bread", "The sky is blue today."]
    right = ["A woman sings.", "Dogs", "A loaf of bread.", "Red"]
    scores = [2.0, 4.0, 4.5, 0.5]
    by_hand = {
        "cosine": plain_cosine,
        "dot": lambda a, b: sum(x * y for x, y in zip(a, b, strict=True)),
        "euclidean": lambda a, b: -np.sqrt(sum((x - y) ** 2 for x, y in zip(a, b, strict=True))),
        "manhattan": lambda a, b: -sum(abs(x - y) for x, y in zip(a, b, strict=True)),
    }[similarity]
    vectors = [(encoder.encode(a).tolist(), encoder.encode(b).tolist()) for a, b in zip(left, right, strict=True)]
    predicted = [by_hand(a, b) for a, b in vectors]
    found = evaluate_sts(encoder, ScoredPairs("own", left, right, scores))
    assert found["pearson"] == pytest.approx(100 * stats.pearsonr(predicted, scores).statistic, abs=0.01)


def test_numbers_are_plain_and_fit_into_json():
    encoder, pairs, _ = random_pairs(10)
    found = evaluate_sts(encoder, pairs)
    assert json.loads(json.dumps(found)) == found


# the data hub


def test_without_datasets_the_extra_is_named(monkeypatch):
    real = builtins.__import__

    def refuse(name, *args, **kwargs):
        if name.split(".")[0] == "datasets":
            raise ModuleNotFoundError("No module named 'datasets'", name="datasets")
        return real(name, *args, **kwargs)

    monkeypatch.delitem(sys.modules, "datasets", raising=False)
    monkeypatch.setattr(builtins, "__import__", refuse)
    with pytest.raises(MissingExtraError, match=r"datasets.*pip install 'decoder2vec\[hub\]'"):
        sts_from_hub("dev")


@pytest.mark.parametrize(("split", "theirs"), [("train", "train"), ("dev", "validation"), ("test", "test")])
def test_splits_of_the_hub_are_mapped(monkeypatch, split, theirs):
    asked = []

    def load_dataset(name, *, split):
        asked.append((name, split))
        return {"sentence1": ("a", "b"), "sentence2": ("c", "d"), "score": (0.25, 1.0)}

    fake = ModuleType("datasets")
    fake.load_dataset = load_dataset
    monkeypatch.setitem(sys.modules, "datasets", fake)
    assert sts_from_hub(split) == ScoredPairs(f"stsb-{split}", ["a", "b"], ["c", "d"], [0.25, 1.0])
    assert asked == [("sentence-transformers/stsb", theirs)]


def test_stsb_by_name_comes_from_the_hub_and_anything_else_from_a_file(monkeypatch, tmp_path):
    monkeypatch.setattr(sts, "sts_from_hub", lambda split: f"hub {split}")
    assert sts.load_pairs("stsb:dev") == "hub dev"
    file = tmp_path / "pairs.tsv"
    file.write_text("score\tsentence1\tsentence2\n3\ta\tb\n", encoding="utf-8")
    assert sts.load_pairs(file).scores == [3.0]
