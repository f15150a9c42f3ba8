"""Baselines take texts as an encoder does, and give what their names promise."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from decoder2vec.errors import InputError
from decoder2vec.evaluation.baselines import BM25Words, RandomVectors, StaticEmbeddings
from decoder2vec.evaluation.similarity import evaluate_sts
from decoder2vec.text.bm25 import BM25, tokenise_words
from decoder2vec.text.files import ScoredPairs

TEXTS = ["A cat sleeps.", "The dog runs fast.", "", "A cat sleeps.", "Ünïcode 猫 🐈"]
RANDOM = (-0.9312255, 1.4444597, -0.7725450)
PLACES = {120: -1.0, 3095: 1.0}
MAKERS = {"bm25": BM25Words, "random": RandomVectors, "static": lambda: StaticEmbeddings("tiny-llama")}


@pytest.fixture(scope="module", params=MAKERS)
def baseline(request, own_cache):
    return MAKERS[request.param]()


def test_a_list_gives_rows_and_a_text_gives_one(baseline):
    rows = baseline.encode(TEXTS)
    assert rows.shape == (5, baseline.dim) and rows.dtype == np.float32 and np.isfinite(rows).all()
    assert np.array_equal(rows[0], rows[3])
    for text, row in zip(TEXTS, rows, strict=True):
        assert np.allclose(baseline.encode(text), row, atol=1e-7)  # whatever else is in the list
    assert baseline.encode([]).shape == (0, baseline.dim)


def test_arguments_mean_what_they_mean_to_an_encoder(baseline):
    plain = baseline.encode(TEXTS[:2])
    unit = baseline.encode(TEXTS[:2], normalize_embeddings=True)
    assert np.allclose(unit, plain / np.linalg.norm(plain, axis=1, keepdims=True), atol=1e-6)
    tensor = baseline.encode(TEXTS[:2], convert_to_tensor=True)
    assert isinstance(tensor, torch.Tensor) and np.array_equal(tensor.numpy(), plain)
    same = baseline.encode(TEXTS[:2], prompt="Find: ", batch_size=1, show_progress_bar=False)
    assert np.array_equal(same, plain)  # a prompt is for those who can follow one
    assert np.array_equal(baseline.encode_query(TEXTS[:2]), plain)
    with pytest.raises(InputError, match="no argument 'colour'"):
        baseline.encode(TEXTS, colour="red")


@pytest.mark.parametrize("wrong", [7, ["a", None], b"bytes"])
def test_what_is_no_text_is_refused(baseline, wrong):
    with pytest.raises(InputError):
        baseline.encode(wrong)


def test_similarities_are_cosines(baseline):
    rows = baseline.encode(TEXTS[:2]).astype(np.float64)
    expected = rows @ rows.T / np.outer(*[np.linalg.norm(rows, axis=1)] * 2)
    assert np.allclose(baseline.similarity(rows, rows), expected, atol=1e-6)
    assert np.allclose(baseline.similarity_pairwise(rows, rows[::-1]), [expected[0, 1]] * 2, atol=1e-6)


def test_names_and_sizes_are_known(baseline):
    assert baseline.kind in repr(baseline) and len(baseline.fingerprint) == 16
    assert baseline.get_embedding_dimension() == baseline.dim
    assert baseline.parameters == (baseline.rows.numel() if baseline.kind == "static" else 0)


def test_each_kind_has_a_fingerprint_of_its_own(own_cache):
    made = [BM25Words(), RandomVectors(), RandomVectors(8), *map(StaticEmbeddings, ("tiny-llama", "tiny-gpt2"))]
    assert len({one.fingerprint for one in made}) == len(made)


def test_a_text_has_the_same_vector_in_every_process_and_on_every_machine():
    """Python's own hash of a string changes from process to process; these numbers were written down once."""
    assert np.allclose(RandomVectors(3).encode("A cat sleeps."), RANDOM, atol=1e-6)
    bm25 = BM25Words().encode("A cat sleeps.")
    assert {int(place): float(np.sign(bm25[place])) for place in np.flatnonzero(bm25)} == PLACES


def test_random_vectors_are_normal_and_know_nothing_but_equality():
    rng = np.random.default_rng(0)
    texts = [f"text {number}" for number in range(2000)]
    rows = RandomVectors(64).encode(texts)
    assert abs(rows.mean()) < 0.02 and abs(rows.std() - 1) < 0.02
    scores = list(rng.random(1000))
    assert (
        abs(evaluate_sts(RandomVectors(), ScoredPairs("made-up", texts[:1000], texts[1000:], scores))["spearman"]) < 10
    )
    with pytest.raises(InputError, match="1 number or more"):
        RandomVectors(0)


def test_static_embeddings_are_means_of_rows(backbone):
    model = backbone("tiny-llama")
    rows = model.model.get_input_embeddings().weight.numpy()
    found = StaticEmbeddings("tiny-llama").encode(TEXTS)
    for text, vector in zip(TEXTS, found, strict=True):
        ids = model.tokenizer(text, add_special_tokens=False).input_ids
        assert np.allclose(vector, rows[ids].mean(axis=0) if ids else 0.0, atol=1e-6)


def test_static_embeddings_of_a_long_text_read_all_of_it(own_cache):
    static = StaticEmbeddings("tiny-llama")
    half = "cat " * 2000
    assert not np.allclose(static.encode(half), static.encode(half + "dog " * 2000), atol=1e-3)


def test_bm25_vectors_count_words_with_saturation():
    bm25 = BM25Words()
    once, twice, both = bm25.encode(["cat", "cats cat", "cat dog"])
    assert np.count_nonzero(once) == np.count_nonzero(twice) == 1 and np.count_nonzero(both) == 2
    assert np.isclose(abs(once.sum()), 1 / 2.5) and np.isclose(abs(twice.sum()), 2 / 3.5)
    assert np.isclose(bm25.similarity_pairwise(once, twice)[0], 1)
    assert np.isclose(bm25.similarity_pairwise(once, both)[0], 2**-0.5)


def test_bm25_vectors_are_close_to_those_without_a_hash():
    """Cosines of hashed vectors are those of one dimension for each word, up to a few shared places."""
    nouns, verbs = ("cat", "dog", "sun", "tree", "boat", "child"), ("sleeps", "runs", "falls", "sings")
    texts = [f"The {a} {verb} near a {b}." for a in nouns for b in nouns for verb in verbs]
    words = [set(own) for own in tokenise_words(texts)]
    vocabulary = sorted(set.union(*words))
    counts = np.array([[word in own for word in vocabulary] for own in words], float)
    for row, text in enumerate(texts):
        counts[row] *= [2 / 3.5 if tokenise_words([text])[0].count(word) == 2 else 1 / 2.5 for word in vocabulary]
    unit = counts / np.linalg.norm(counts, axis=1, keepdims=True)
    found = BM25Words().encode(texts, normalize_embeddings=True)
    assert np.allclose(found @ found.T, unit @ unit.T, atol=1e-5)


def test_bm25_ranks_by_its_real_scores():
    bm25, documents = BM25Words(), ["red fox", "a fox and a hen", "blue sea"]
    assert np.allclose(bm25.relevance(["fox", "sea"], documents), BM25(documents).scores(["fox", "sea"]))


def test_bm25_scores_pairs_among_the_documents_given():
    bm25 = BM25Words()
    queries, documents = ["fox", "sea", "fox", "sea"], ["red fox", "red fox", "blue sea", "deep blue sea"]
    unique = list(dict.fromkeys(documents))
    scores = BM25(unique).scores(queries)
    expected = [scores[row, unique.index(document)] for row, document in enumerate(documents)]
    assert np.allclose(bm25.score(queries, documents), expected) and expected[0] > 0 == expected[1]
    assert isinstance(bm25.score("fox", "red fox"), float)
    with pytest.raises(InputError, match="as many texts"):
        bm25.score(["fox"], documents)
