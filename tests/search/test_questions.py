"""Hybrid search by default: questions are answered by meaning, names and codes by words."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from decoder2vec.search.documents import Document
from decoder2vec.search.hybrid import Fusion
from decoder2vec.search.index import Index
from decoder2vec.text.bm25 import tokenise_queries, tokenise_words
from toys.encoder import WordEncoder

QUESTION = "How long can I stay at home with my baby?"
TEXTS = {
    "leave": "Parents receive sixteen paid weeks after a birth.",
    "hotel": "How long you can stay at a hotel depends on the assignment. You can ask how.",
    "desk": "How often you work from home is agreed with your team. You can change it.",
    "fee": "You can see how long it takes in form FX-12.",
    **{f"other{number}": f"How can I do number {number}? You can ask how it is done." for number in range(20)},
}
SIMILARITY = {"leave": 0.58, "hotel": 0.3, "desk": 0.2}
"""Cosine of the question and a text; that of all others is 0.1."""


class PlannedEncoder:
    """Gives texts the planned cosine with the question; all other queries are equally far from all texts."""

    dim, fingerprint = 3, "planned"

    def encode_query(self, texts):
        return np.array([[1, 0, 0] if text == QUESTION else [0, 0, 1] for text in texts], np.float32)

    def encode_document(self, texts):
        cosines = [next((SIMILARITY.get(id, 0.1) for id in TEXTS if TEXTS[id] == text), 0.1) for text in texts]
        return np.array([[cosine, math.sqrt(1 - cosine**2), 0] for cosine in cosines], np.float32)

    encode = encode_document


@pytest.fixture
def index(tmp_path):
    index = Index.create(tmp_path / "index", PlannedEncoder())
    index.add([Document(id, text) for id, text in TEXTS.items()])
    return index


def test_question_is_answered_by_meaning(index):
    assert index.search(QUESTION, 1, "dense")[0].id == "leave"
    assert index.search(QUESTION, 1, "lexical")[0].id in ("hotel", "desk")
    hits = index.search(QUESTION, 3)
    assert hits[0].id == "leave"
    assert hits[0].dense == pytest.approx((0.58 - 0.1) / (1 - 0.1), abs=1e-6) and hits[0].lexical == 0
    assert hits[0].score == pytest.approx(0.6 * hits[0].dense)
    index.set_fusion(Fusion("rrf", 0.5))
    assert index.search(QUESTION, 1)[0].id != "leave"  # ranks alone reward the weak words


def test_codes_and_names_are_answered_by_words(index):
    hit = index.search("form FX-12", 1)[0]
    assert hit.id == "fee" and hit.lexical > 0.8 and hit.dense == 0


def test_full_lexical_match_is_a_text_with_each_word_once(index):
    texts = list(TEXTS.values())
    documents = [set(words) for words in tokenise_words(texts)]
    for query in (QUESTION, "form FX-12", "unheard of", "hotel hotel"):
        expected = 0.0
        for word in tokenise_queries([query])[0]:
            count = sum(word in words for words in documents)
            expected += math.log(1 + (len(texts) - count + 0.5) / (count + 0.5)) / 2.5
        (full,) = index._ranker.full_scores([query])
        assert full == (1.0, pytest.approx(expected))


@pytest.mark.parametrize("similarity", ["cosine", "dot", "euclidean", "manhattan"])
def test_scores_are_between_0_and_1_for_all_similarities(tmp_path, similarity):
    encoder = WordEncoder()
    encoder.similarity_fn_name = similarity
    index = Index.create(tmp_path / "index", encoder)
    index.add([Document(id, text) for id, text in TEXTS.items()])
    for query in ("hotel hotel hotel", "the form", "how"):
        scores = [hit.score for hit in index.search(query, 30)]
        assert 0 <= min(scores) <= max(scores) <= 1 + 1e-6 and max(scores) > 0


def test_question_words_count_only_if_nothing_else_is_asked():
    assert tokenise_queries([QUESTION, "How could I do that?", "THE"]) == [
        ["stay", "home", "babi"],
        ["how", "could", "do"],
        [],
    ]
    assert tokenise_queries([]) == []


def test_untuned_index_of_an_older_version_gets_the_new_default(index):
    file = index.store.local_folder / "index.json"
    header = json.loads(file.read_text(encoding="utf-8"))
    del header["tuned"]  # as in an index of version 0.1
    for stored, expected in (
        ({"method": "rrf", "weight": 0.5}, Fusion()),
        ({"method": "rrf", "weight": 0.2}, Fusion("rrf", 0.2)),
        ({"method": "minmax", "weight": 0.15}, Fusion("minmax", 0.15)),
    ):
        file.write_text(json.dumps(header | {"fusion": stored}), encoding="utf-8")
        assert Index.open(index.location, PlannedEncoder()).header.fusion == expected


@pytest.mark.parametrize("fusion", [Fusion("rrf", 0.5), Fusion("zscore", 0.3), Fusion()])
def test_chosen_fusion_is_kept(index, fusion):
    index.set_fusion(fusion)
    header = Index.open(index.location, PlannedEncoder()).header
    assert header.fusion == fusion and header.tuned == (fusion != Fusion())
