"""The best of a search are scored once more, by a pair head or by anything with `rerank`."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import spearmanr

from decoder2vec.config import EncoderSpec
from decoder2vec.encoder import Encoder
from decoder2vec.errors import InputError
from decoder2vec.heads.codes import CodeNet
from decoder2vec.heads.layerwise import LayerwiseHead
from decoder2vec.search.documents import Document
from decoder2vec.search.index import Index
from decoder2vec.search.rerank import PairHead, PairReranker
from decoder2vec.text.files import ScoredPairs
from decoder2vec.training.recipes.freeze import FreezeRecipe
from toys.encoder import WordEncoder

TEXTS = ["A cat sleeps on the sofa.", "Stocks fell sharply.", "The kitten is napping.", "Rain in the afternoon."]


class Longest:
    """The longer a text, the better."""

    def __init__(self):
        self.asked = []

    def rerank(self, query, texts):
        self.asked.append((query, list(texts)))
        return [len(text) for text in texts]


@pytest.fixture
def index(tmp_path):
    made = Index.create(tmp_path / "index", WordEncoder())
    made.add([Document(str(number), text) for number, text in enumerate(TEXTS)])
    return made


def test_any_reranker_decides_the_order(index):
    reranker = Longest()
    hits = index.search("cat", 2, "dense", reranker=reranker)
    assert [hit.text for hit in hits] == [TEXTS[0], TEXTS[2]] and hits[0].score == len(TEXTS[0])
    assert len(reranker.asked[0][1]) == len(TEXTS)  # more than are shown are scored


def test_a_pair_head_scores_each_text_beside_the_query(index, backbone):
    recipe = FreezeRecipe(head="gated")
    model = backbone("tiny-llama")
    encoder = Encoder(
        model, EncoderSpec("tiny-llama", recipe.readings(model)), LayerwiseHead(CodeNet(recipe.codes(model)))
    )
    hits = index.search("A cat sleeps on the sofa.", 4, "dense", reranker=PairReranker(encoder))
    expected = {text: encoder.score("A cat sleeps on the sofa.", text) for text in TEXTS}
    assert {hit.text: hit.score for hit in hits} == pytest.approx(expected, abs=1e-5)
    assert [hit.score for hit in hits] == pytest.approx(sorted(expected.values(), reverse=True), abs=1e-5)
    assert hits[0].text == TEXTS[0] and hits[0].score == pytest.approx(1)
    assert PairReranker(encoder).rerank("x", []) == []


def test_what_cannot_score_pairs_is_refused():
    with pytest.raises(InputError, match="must have `score`"):
        PairReranker(WordEncoder())


def noisy_pairs(count, seed):
    """Two texts are alike if they share their subject; half of the words say nothing, and outnumber it."""
    rng = np.random.default_rng(seed)

    def text(subject):
        return " ".join([f"subject{subject}", *(f"noise{number}" for number in rng.integers(0, 8, 3))])

    subjects = rng.integers(0, 6, (count, 2))
    left, right = ([text(one) for one in column] for column in subjects.T)
    return ScoredPairs("made up", left, right, [5.0 * (a == b) for a, b in subjects])


def test_a_head_learned_on_any_encoder_ranks_new_pairs_better_than_the_cosine(tmp_path):
    encoder, new = WordEncoder(dim=64), noisy_pairs(300, 1)
    head = PairHead.fit(encoder, noisy_pairs(600, 0))
    a, b = (encoder.encode(side) for side in (new.left, new.right))
    cosines = (a * b).sum(axis=1) / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1)
    scores = [head.rerank(left, [right])[0] for left, right in zip(new.left, new.right, strict=True)]
    assert spearmanr(scores, new.scores)[0] > spearmanr(cosines, new.scores)[0] + 0.2
    head.save(tmp_path / "head.safetensors")
    again = PairHead.load(tmp_path / "head.safetensors", WordEncoder(dim=64))
    assert again.rerank(new.left[0], new.right[:5]) == head.rerank(new.left[0], new.right[:5])
    assert head.rerank("x", []) == []
    with pytest.raises(InputError, match="another embedding space"):
        PairHead.load(tmp_path / "head.safetensors", WordEncoder(dim=64, seed=1))
    with pytest.raises(InputError, match="d2v tune --pairs"):
        PairHead.load(tmp_path / "nothing", encoder)


def test_pairs_that_all_score_the_same_teach_nothing():
    with pytest.raises(InputError, match="nothing to learn"):
        PairHead.fit(WordEncoder(), ScoredPairs("flat", ["a", "b"], ["c", "d"], [1.0, 1.0]))
