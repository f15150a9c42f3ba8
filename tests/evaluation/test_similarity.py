"""STS scores of anything with `encode`, against scipy and plain loops, and loading of scored pairs."""

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
from decoder2vec.evaluation import similarity as similarity_module
from decoder2vec.evaluation.similarity import evaluate_sts, load_stsb, pairwise_similarities
from decoder2vec.text.files import ScoredPairs


class Lookup:
    """A minimal encoder: looks vectors up and records its calls."""

    def __init__(self, vectors):
        self.vectors, self.calls, self.options = vectors, [], []

    def encode(self, texts, **options):
        self.calls.append(list(texts))
        self.options.append(options)
        return [self.vectors[text] for text in texts]


def random_pairs(count, seed=0, name="pairs"):
    """Random vectors, and scores with ties that correlate weakly with their cosines."""
    rng = np.random.default_rng(seed)
    left, right = [f"l{i}" for i in range(count)], [f"r{i}" for i in range(count)]
    vectors = {text: rng.normal(size=4) * rng.uniform(0.1, 10) for text in left + right}
    cosines = [plain_cosine(vectors[a], vectors[b]) for a, b in zip(left, right, strict=True)]
    scores = [float(np.round(2 * (cosine + rng.normal(0, 0.7))) / 2) for cosine in cosines]
    return Lookup(vectors), ScoredPairs(name, left, right, scores), np.array(cosines)


def plain_cosine(a, b):
    return float(sum(x * y for x, y in zip(a, b, strict=True)) / np.sqrt(sum(x * x for x in a) * sum(y * y for y in b)))


@pytest.mark.parametrize("seed", range(5))
def test_both_correlations_equal_scipy(seed):
    encoder, pairs, cosines = random_pairs(50, seed)
    result = evaluate_sts(encoder, pairs)
    assert result["spearman"] == pytest.approx(100 * stats.spearmanr(cosines, pairs.scores).statistic, abs=0.006)
    assert result["pearson"] == pytest.approx(100 * stats.pearsonr(cosines, pairs.scores).statistic, abs=0.006)
    assert {key: result[key] for key in ("task", "pairs", "texts")} == {"task": "pairs", "pairs": 50, "texts": 100}
    assert result["seconds"] >= 0


def test_interval_equals_a_plain_bootstrap_loop():
    encoder, pairs, cosines = random_pairs(80)
    result = evaluate_sts(encoder, pairs)
    truth = np.array(pairs.scores)
    rng = np.random.default_rng(99)
    values = []
    for _ in range(1000):
        sample = [int(rng.integers(80)) for _ in range(80)]
        values.append(100 * stats.spearmanr(cosines[sample], truth[sample]).statistic)
    low, high = result["spearman_95"]
    assert low < result["spearman"] < high
    assert [low, high] == pytest.approx([np.percentile(values, 2.5), np.percentile(values, 97.5)], abs=2.5)


def test_interval_narrows_with_pairs_and_is_repeatable():
    widths = []
    for count in (30, 300):
        encoder, pairs, _ = random_pairs(count)
        first, second = evaluate_sts(encoder, pairs), evaluate_sts(encoder, pairs)
        assert first["spearman_95"] == second["spearman_95"]
        widths.append(first["spearman_95"][1] - first["spearman_95"][0])
    assert widths[1] < widths[0] / 2


def test_perfect_encoder_scores_100():
    scores = [0.0, 1.0, 2.5, 3.0, 5.0]
    vectors = {"same": np.array([1.0, 0.0])}
    for score in scores:
        cosine = score / 5
        vectors[f"t{score}"] = np.array([cosine, np.sqrt(1 - cosine**2)])
    pairs = ScoredPairs("perfect", ["same"] * 5, [f"t{score}" for score in scores], scores)
    result = evaluate_sts(Lookup(vectors), pairs)
    assert (result["spearman"], result["pearson"]) == (100.0, 100.0)

    reversed_scores = ScoredPairs("reversed", pairs.left, pairs.right, [-score for score in scores])
    assert evaluate_sts(Lookup(vectors), reversed_scores)["spearman"] == -100.0


@pytest.mark.parametrize("vector", [np.ones(3), np.zeros(3)], ids=["ones", "zeros"])
def test_constant_encoder_scores_0_and_not_nan(vector):
    _, pairs, _ = random_pairs(20)
    constant = Lookup(dict.fromkeys(pairs.texts(), vector))
    result = evaluate_sts(constant, pairs)
    assert (result["spearman"], result["pearson"], result["spearman_95"]) == (0.0, 0.0, [0.0, 0.0])


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_vectors_that_are_not_finite_are_refused(value):
    encoder, pairs, _ = random_pairs(10, name="broken-set")
    encoder.vectors["r7"] = np.array([0.0, value, 0.0, 0.0])
    with pytest.raises(EncoderError, match="not finite on broken-set"):
        evaluate_sts(encoder, pairs)


def test_every_text_is_encoded_once_in_one_call():
    left, right = ["a", "b", "a", "c"], ["b", "a", "a", "d"]
    rng = np.random.default_rng(0)
    encoder = Lookup({text: rng.normal(size=3) for text in "abcd"})
    pairs = ScoredPairs("repeats", left, right, [1.0, 1.0, 5.0, 0.0])
    result = evaluate_sts(encoder, pairs, batch_size=7, show_progress_bar=False)
    assert encoder.calls == [["a", "b", "c", "d"]]
    assert encoder.options == [{"batch_size": 7, "show_progress_bar": False}]
    assert (result["pairs"], result["texts"]) == (4, 4)
    cosines = [plain_cosine(encoder.vectors[a], encoder.vectors[b]) for a, b in zip(left, right, strict=True)]
    assert result["spearman"] == pytest.approx(100 * stats.spearmanr(cosines, pairs.scores).statistic, abs=0.006)


def test_one_correlation_is_computed_over_all_pairs():
    sources = [random_pairs(30, seed) for seed in (1, 2)]
    shifted = [score + 4.0 for score in sources[1][1].scores]  # the second source has higher scores
    vectors = {f"{n}{text}": vector for n, source in enumerate(sources) for text, vector in source[0].vectors.items()}
    pairs = ScoredPairs(
        "all",
        [f"{n}{text}" for n, source in enumerate(sources) for text in source[1].left],
        [f"{n}{text}" for n, source in enumerate(sources) for text in source[1].right],
        sources[0][1].scores + shifted,
    )
    spearman = evaluate_sts(Lookup(vectors), pairs)["spearman"]
    over_all = stats.spearmanr(np.concatenate([source[2] for source in sources]), pairs.scores).statistic
    mean_over_sources = np.mean([stats.spearmanr(source[2], source[1].scores).statistic for source in sources])
    assert spearman == pytest.approx(100 * over_all, abs=0.006)
    assert abs(spearman - 100 * mean_over_sources) > 10


def test_own_similarity_of_an_encoder_is_used():
    encoder, pairs, _ = random_pairs(30)

    class WithDot(Lookup):
        def similarity_pairwise(self, a, b):
            return (np.asarray(a) * np.asarray(b)).sum(axis=1)

    result = evaluate_sts(WithDot(encoder.vectors), pairs)["spearman"]
    dots = [float(encoder.vectors[a] @ encoder.vectors[b]) for a, b in zip(pairs.left, pairs.right, strict=True)]
    assert result == pytest.approx(100 * stats.spearmanr(dots, pairs.scores).statistic, abs=0.006)
    assert result != evaluate_sts(encoder, pairs)["spearman"]


def test_default_similarity_is_the_cosine():
    rng = np.random.default_rng(3)
    left, right = rng.normal(size=(6, 4)), rng.normal(size=(6, 4))
    expected = [plain_cosine(a, b) for a, b in zip(left, right, strict=True)]
    assert pairwise_similarities(object(), left, right) == pytest.approx(expected)


@pytest.mark.parametrize("similarity", ["cosine", "dot", "euclidean", "manhattan"])
def test_encoder_is_scored_by_its_similarity_setting(backbone, similarity):
    spec = EncoderSpec("tiny-llama", (Reading(3, "mean"),), similarity=similarity)
    encoder = Encoder(backbone("tiny-llama"), spec)
    left = ["A man plays.", "Two dogs run.", "Bread", "The sky is blue today."]
    right = ["A woman sings.", "Dogs", "A loaf of bread.", "Red"]
    scores = [2.0, 4.0, 4.5, 0.5]
    expected_similarity = {
        "cosine": plain_cosine,
        "dot": lambda a, b: sum(x * y for x, y in zip(a, b, strict=True)),
        "euclidean": lambda a, b: -np.sqrt(sum((x - y) ** 2 for x, y in zip(a, b, strict=True))),
        "manhattan": lambda a, b: -sum(abs(x - y) for x, y in zip(a, b, strict=True)),
    }[similarity]
    vectors = [(encoder.encode(a).tolist(), encoder.encode(b).tolist()) for a, b in zip(left, right, strict=True)]
    predicted = [expected_similarity(a, b) for a, b in vectors]
    result = evaluate_sts(encoder, ScoredPairs("own", left, right, scores))
    assert result["pearson"] == pytest.approx(100 * stats.pearsonr(predicted, scores).statistic, abs=0.01)


def test_result_can_be_written_as_json():
    encoder, pairs, _ = random_pairs(10)
    result = evaluate_sts(encoder, pairs)
    assert json.loads(json.dumps(result)) == result


# loading pairs


def test_missing_datasets_names_the_extra(monkeypatch):
    real_import = builtins.__import__

    def refuse(name, *args, **kwargs):
        if name.split(".")[0] == "datasets":
            raise ModuleNotFoundError("No module named 'datasets'", name="datasets")
        return real_import(name, *args, **kwargs)

    monkeypatch.delitem(sys.modules, "datasets", raising=False)
    monkeypatch.setattr(builtins, "__import__", refuse)
    with pytest.raises(MissingExtraError, match=r"datasets.*pip install 'decoder2vec\[hub\]'"):
        load_stsb("dev")


@pytest.mark.parametrize(("split", "hub_split"), [("train", "train"), ("dev", "validation"), ("test", "test")])
def test_stsb_splits_are_mapped_to_hub_splits(monkeypatch, split, hub_split):
    loaded = []

    def load_dataset(name, *, split):
        loaded.append((name, split))
        return {"sentence1": ("a", "b"), "sentence2": ("c", "d"), "score": (0.25, 1.0)}

    fake = ModuleType("datasets")
    fake.load_dataset = load_dataset
    monkeypatch.setitem(sys.modules, "datasets", fake)
    assert load_stsb(split) == ScoredPairs(f"stsb-{split}", ["a", "b"], ["c", "d"], [0.25, 1.0])
    assert loaded == [("sentence-transformers/stsb", hub_split)]


def test_stsb_comes_from_the_hub_and_others_from_files(monkeypatch, tmp_path):
    hub = ScoredPairs("hub", list("abc"), list("def"), [1.0, 2.0, 3.0])
    monkeypatch.setattr(similarity_module, "load_stsb", {"dev": hub}.__getitem__)
    assert similarity_module.load_pairs("stsb:dev") == hub
    assert similarity_module.load_pairs("stsb:dev", limit=2).scores == [1.0, 3.0]
    file = tmp_path / "pairs.tsv"
    file.write_text("score\tsentence1\tsentence2\n3\ta\tb\n", encoding="utf-8")
    assert similarity_module.load_pairs(file).scores == [3.0]
