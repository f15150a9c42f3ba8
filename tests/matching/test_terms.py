"""BM25 scores equal a plain loop; matched and missing terms are those of the texts."""

import math
import re

import numpy as np

from decoder2vec.matching.terms import TermRarity, bm25_scores, stemmed_words
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
    documents = [text.split() for text in texts]
    mean_length = sum(map(len, documents)) / len(documents)
    scores = []
    for words in documents:
        total = 0.0
        for word in query.split():
            frequency = sum(word in other for other in documents)
            if frequency:
                idf = math.log(1 + (len(documents) - frequency + 0.5) / (frequency + 0.5))
                count = words.count(word)
                total += idf * count / (count + k1 * (1 - b + b * len(words) / mean_length))
        scores.append(total)
    return scores


def test_bm25_scores_equal_a_plain_loop():
    texts = [" ".join(words) for words in stemmed_words(TEXTS)]
    expected = [plain_bm25(" ".join(words), texts) for words in stemmed_words(QUERIES)]
    np.testing.assert_allclose(bm25_scores(QUERIES, TEXTS), expected, rtol=1e-5, atol=1e-6)


def test_texts_without_words_score_zero():
    assert (bm25_scores(["bread"], ["", "the", "?!"]) == 0).all()
    assert bm25_scores(["", "bread"], ["bread", "rolls"])[0].tolist() == [0, 0]


def test_words_with_the_same_stem_match():
    assert stem("pipelines") == stem("pipeline")
    assert bm25_scores(["welding"], ["he welds", "he bakes"]).argmax() == 0


JOB = "We want wiring regulations, fault finding and a driving licence. Wiring of new homes in Bonn."
RESUME = "I know the wiring regulations and found many faults; licences for driving: none."


def test_matched_terms_are_in_both_texts_missing_in_one():
    terms = TermRarity([JOB, RESUME, "Homes in Bonn", "Homes"]).compare(JOB, RESUME)
    assert "wiring regulations" in terms.matched and "wiring" not in terms.matched
    assert {"fault", "driving", "licence"} <= set(terms.matched)
    assert set(terms.missing) == {"want", "finding", "new", "homes", "Bonn"}
    job, resume = ({stem(word) for word in re.findall(r"[a-z]+", text.lower())} for text in (JOB, RESUME))
    for term in terms.matched:
        assert {stem(word) for word in term.lower().split()} <= job & resume
    for term in terms.missing:
        assert stem(term.lower()) not in resume


def test_rare_terms_come_first_and_are_limited():
    rarity = TermRarity(["homes in Bonn", "homes", "homes", "wiring"])
    assert rarity.compare("homes, wiring, Bonn", "").missing == ("wiring", "Bonn", "homes")
    assert rarity.compare("homes, wiring, Bonn", "", max_terms=1).missing == ("wiring",)


def test_blank_texts_have_no_terms():
    assert TermRarity(["", " "]).compare("", "a b") == TermRarity([""]).compare("", "")


def test_terms_of_other_scripts_are_words():
    terms = TermRarity(["Пекарь печёт хлеб", "хлеб"]).compare("Пекарь печёт хлеб", "Вкусный хлеб")
    assert (terms.matched, set(terms.missing)) == (("хлеб",), {"Пекарь", "печёт"})
