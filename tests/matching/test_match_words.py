"""BM25, fusion, matched and missing terms, best sentence pairs, each against a plain loop."""

import math
import re
from itertools import product

import numpy as np
import pytest

from decoder2vec.errors import InputError
from decoder2vec.matching.match import fuse
from decoder2vec.matching.sections import best_pairs, sentences
from decoder2vec.matching.terms import TermWeights, lexical_scores, tokens
from decoder2vec.text.bm25 import stem

QUERIES = ["A baker who bakes bread, bread and rolls", "pipelines of data", "the of and", "xylophone"]
TEXTS = [
    "Bakes bread at night.",
    "Welds pipelines for gas; a pipeline must not leak",
    "Data about bread data",
    "",
    "the",
]


def plain_bm25(query, texts, k1=1.5, b=0.75):
    words = [text.split() for text in texts]
    mean = sum(map(len, words)) / len(words)
    scores = []
    for held in words:
        total = 0.0
        for word in query.split():
            having = sum(word in other for other in words)
            if having:
                idf = math.log(1 + (len(words) - having + 0.5) / (having + 0.5))
                count = held.count(word)
                total += idf * count / (count + k1 * (1 - b + b * len(held) / mean))
        scores.append(total)
    return scores


def test_lexical_scores_are_those_of_a_plain_loop():
    held = [" ".join(words) for words in tokens(TEXTS)]
    expected = [plain_bm25(" ".join(words), held) for words in tokens(QUERIES)]
    np.testing.assert_allclose(lexical_scores(QUERIES, TEXTS), expected, rtol=1e-5, atol=1e-6)


def test_texts_without_a_word_score_nothing():
    assert (lexical_scores(["bread"], ["", "the", "?!"]) == 0).all()
    assert lexical_scores(["", "bread"], ["bread", "rolls"])[0].tolist() == [0, 0]


def test_words_of_one_stem_are_one_word():
    assert stem("pipelines") == stem("pipeline")
    assert lexical_scores(["welding"], ["he welds", "he bakes"]).argmax() == 0


@pytest.mark.parametrize("name", ["minmax", "zscore", "rrf"])
def test_fusion_is_that_of_a_plain_loop(name):
    rng = np.random.default_rng(0)
    dense, lexical = rng.normal(size=(4, 6)), rng.integers(0, 3, (4, 6)).astype(float)
    lexical[2] = 5.0  # nothing to tell the candidates apart
    expected = np.zeros((4, 6))
    for row, column in product(range(4), range(6)):
        for weight, scores in ((0.3, dense[row]), (0.7, lexical[row])):
            value, spread = scores[column], scores.max() - scores.min()
            if name == "minmax":
                scaled = (value - scores.min()) / spread if spread else 0
            elif name == "zscore":
                scaled = (value - scores.mean()) / scores.std() if spread else 0
            else:
                scaled = 1 / (60 + 1 + sum(other > value for other in scores))
            expected[row, column] += weight * scaled
    np.testing.assert_allclose(fuse(dense, lexical, 0.3, name), expected)


def test_fusion_refuses_what_makes_no_sense():
    one = np.ones((1, 1))
    with pytest.raises(InputError, match="from 0 to 1"):
        fuse(one, one, 1.5)
    with pytest.raises(InputError, match="fusion"):
        fuse(one, one, 0.5, "magic")


JOB = "We want wiring regulations, fault finding and a driving licence. Wiring of new homes in Bonn."
RESUME = "I know the wiring regulations and found many faults; licences for driving: none."


def test_matched_terms_stand_in_both_texts_and_missing_ones_only_in_the_first():
    found = TermWeights([JOB, RESUME, "Homes in Bonn", "Homes"]).compare(JOB, RESUME)
    assert "wiring regulations" in found.matched and "wiring" not in found.matched
    assert {"fault", "driving", "licence"} <= set(found.matched)
    assert set(found.missing) == {"want", "finding", "new", "homes", "Bonn"}
    here, there = ({stem(word) for word in re.findall(r"[a-z]+", text.lower())} for text in (JOB, RESUME))
    for term in found.matched:
        assert {stem(word) for word in term.lower().split()} <= here & there
    for term in found.missing:
        assert stem(term.lower()) not in there


def test_rare_terms_come_first_and_no_more_than_asked_for():
    weights = TermWeights(["homes in Bonn", "homes", "homes", "wiring"])
    assert weights.compare("homes, wiring, Bonn", "").missing == ("wiring", "Bonn", "homes")
    assert weights.compare("homes, wiring, Bonn", "", most=1).missing == ("wiring",)


def test_terms_of_blank_texts_are_none():
    assert TermWeights(["", " "]).compare("", "a b") == TermWeights([""]).compare("", "")


def test_terms_of_other_scripts_are_words_as_well():
    found = TermWeights(["Пекарь печёт хлеб", "хлеб"]).compare("Пекарь печёт хлеб", "Вкусный хлеб")
    assert (found.matched, set(found.missing)) == (("хлеб",), {"Пекарь", "печёт"})


def test_sentences_of_lists_lines_and_half_sentences():
    text = "I bake. They ate it!\n- rolls at night; bread by day\n\n• Oven\n2019"
    assert sentences(text) == ["I bake.", "They ate it!", "rolls at night", "bread by day"]
    assert sentences("Oven") == ["Oven"]
    assert sentences("パン職人です。十年働きました。") == ["パン職人です。", "十年働きました。"]
    assert sentences(" \n") == []


def test_best_pairs_are_taken_greedily_and_no_sentence_twice():
    rng = np.random.default_rng(1)
    left, right = [f"l{n}" for n in range(5)], [f"r{n}" for n in range(3)]
    table = rng.normal(size=(5, 3))
    free, expected = set(product(range(5), range(3))), []
    while free and len(expected) < 4:
        i, j = max(free, key=lambda place: table[place])
        expected.append((left[i], right[j], table[i, j]))
        free = {(a, b) for a, b in free if a != i and b != j}
    assert [tuple(pair) for pair in best_pairs(left, right, lambda a, b: table, 4)] == expected
    assert best_pairs([], right, lambda a, b: table) == []
