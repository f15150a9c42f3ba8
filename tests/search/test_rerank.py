"""Rerankers rescore the best documents of a search: with a pair head, a learned cosine, or anything with `rerank`."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import spearmanr

from decoder2vec.config import EncoderSpec
from decoder2vec.encoder import Encoder
from decoder2vec.errors import DataFileError, InputError, StorageError
from decoder2vec.heads.codes import CodeNet
from decoder2vec.heads.layerwise import LayerwiseHead
from decoder2vec.search.documents import Document
from decoder2vec.search.index import Index
from decoder2vec.search.rerank import PairReranker, WeightedCosineReranker
from decoder2vec.text.files import ScoredPairs
from decoder2vec.training.recipes.freeze import FreezeRecipe
from toys.encoder import WordEncoder

TEXTS = ["A cat sleeps on the sofa.", "Stocks fell sharply.", "The kitten is napping.", "Rain in the afternoon."]


class LengthReranker:
    """Prefers longer texts."""

    def __init__(self):
        self.calls = []

    def rerank(self, query, texts):
        self.calls.append((query, list(texts)))
        return [len(text) for text in texts]


@pytest.fixture
def index(tmp_path):
    index = Index.create(tmp_path / "index", WordEncoder())
    index.add([Document(str(number), text) for number, text in enumerate(TEXTS)])
    return index


def test_any_reranker_decides_the_order(index):
    reranker = LengthReranker()
    hits = index.search("cat", 2, "dense", rerank=reranker)
    assert [hit.text for hit in hits] == [TEXTS[0], TEXTS[2]] and hits[0].score == len(TEXTS[0])
    assert len(reranker.calls[0][1]) == len(TEXTS)  # more documents are rescored than returned


def test_pair_reranker_returns_scores_of_the_encoder(index, backbone):
    recipe = FreezeRecipe(head="gated")
    model = backbone("tiny-llama")
    encoder = Encoder(
        model, EncoderSpec("tiny-llama", recipe.readings(model)), LayerwiseHead(CodeNet(recipe.code_spec(model)))
    )
    hits = index.search("A cat sleeps on the sofa.", 4, "dense", rerank=PairReranker(encoder))
    expected = {text: encoder.score("A cat sleeps on the sofa.", text) for text in TEXTS}
    assert {hit.text: hit.score for hit in hits} == pytest.approx(expected, abs=1e-5)
    assert [hit.score for hit in hits] == pytest.approx(sorted(expected.values(), reverse=True), abs=1e-5)
    assert hits[0].text == TEXTS[0] and hits[0].score == pytest.approx(1)
    assert PairReranker(encoder).rerank("x", []) == []


def test_encoder_without_score_is_refused():
    with pytest.raises(InputError, match="must have `score`"):
        PairReranker(WordEncoder())


def noisy_pairs(count, seed):
    """Pairs that are similar if they share their subject, a minority among words that are noise."""
    rng = np.random.default_rng(seed)

    def text(subject):
        return " ".join([f"subject{subject}", *(f"noise{number}" for number in rng.integers(0, 8, 3))])

    subjects = rng.integers(0, 6, (count, 2))
    left, right = ([text(subject) for subject in column] for column in subjects.T)
    return ScoredPairs("toy", left, right, [5.0 * (a == b) for a, b in subjects])


def test_learned_reranker_beats_the_cosine_on_new_pairs(tmp_path):
    encoder, new = WordEncoder(dim=64), noisy_pairs(300, 1)
    reranker = WeightedCosineReranker.fit(encoder, noisy_pairs(600, 0))
    a, b = (encoder.encode(side) for side in (new.left, new.right))
    cosines = (a * b).sum(axis=1) / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1)
    scores = [reranker.rerank(left, [right])[0] for left, right in zip(new.left, new.right, strict=True)]
    assert spearmanr(scores, new.scores)[0] > spearmanr(cosines, new.scores)[0] + 0.2
    assert reranker.rerank("x", []) == []
    file = tmp_path / "head.safetensors"
    reranker.save(file)
    loaded = WeightedCosineReranker.load(file, WordEncoder(dim=64))
    assert loaded.rerank(new.left[0], new.right[:5]) == reranker.rerank(new.left[0], new.right[:5])
    with pytest.raises(InputError, match="another embedding space"):
        WeightedCosineReranker.load(file, WordEncoder(dim=64, seed=1))
    with pytest.raises(InputError, match="d2v index --tune --pairs"):
        WeightedCosineReranker.load(tmp_path / "nothing", encoder)
    file.write_bytes(file.read_bytes()[:20])
    with pytest.raises(StorageError, match="damaged"):
        WeightedCosineReranker.load(file, encoder)


def test_pairs_with_equal_scores_are_refused():
    with pytest.raises(DataFileError, match="different scores"):
        WeightedCosineReranker.fit(WordEncoder(), ScoredPairs("flat", ["a", "b"], ["c", "d"], [1.0, 1.0]))
