"""BM25 scores and shares of terms equal plain loops; matched and missing terms are skills of the texts."""

import math
import re

import numpy as np

from decoder2vec.matching.terms import TermWeights, TextTerms, bm25_scores, compare_terms, shared_terms, stemmed_words
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


def compare(text, other, more=(), **options):
    """The terms of two texts; `more` texts only count how common each term is."""
    terms = [TextTerms(one) for one in (text, other, *more)]
    return compare_terms(*terms[:2], TermWeights(one.stems for one in terms), **options)


def test_shares_of_terms_equal_a_plain_loop():
    left = [{"bread", "oven"}, {"gas"}, set()]
    right = [{"bread", "roll", "gas"}, {"oven", "bread"}]
    weights = TermWeights([*left, *right])
    expected = np.zeros((3, 2))
    for i, a in enumerate(left):
        for j, b in enumerate(right):
            common = sum(math.log(6 / (sum(word in c for c in (*left, *right)) + 0.5)) for word in a & b)
            totals = [sum(math.log(6 / (sum(word in c for c in (*left, *right)) + 0.5)) for word in c) for c in (a, b)]
            expected[i, j] = sum(common / total if total else 0 for total in totals) / 2
    np.testing.assert_allclose(shared_terms(left, right, weights), expected)
    assert expected[0, 1] == 1 and (expected[2] == 0).all()


def test_matched_terms_are_in_both_texts_missing_in_one():
    terms = compare(JOB, RESUME, ["Homes in Bonn", "Homes"])
    assert "wiring regulations" in terms.matched and "wiring" not in terms.matched
    assert {"fault", "driving licence"} & set(terms.matched)
    assert set(terms.missing) <= {"finding", "homes"}
    job, resume = ({stem(word) for word in re.findall(r"[a-z]+", text.lower())} for text in (JOB, RESUME))
    for term in terms.matched:
        assert {stem(word) for word in term.lower().split()} <= job & resume
    for term in terms.missing:
        assert stem(term.lower()) not in resume


def test_missing_terms_are_skills_and_not_boilerplate():
    job = (
        "Responsibilities include Kubernetes and Terraform on AWS. W2 only, Albany, NY. 8 hr shifts, HR in Boston. "
        "The ideal candidate has 5+ years of experience, excellent communication skills and works in a team. "
        "Python for data pipelines."
    )
    missing = set(compare(job, "I bake bread.").missing)
    assert {"Kubernetes", "Terraform", "AWS", "Python", "data pipelines"} <= missing
    words = {word for term in missing for word in term.lower().split()}
    assert not words & {
        "w2",
        "ny",
        "hr",
        "boston",
        "responsibilities",
        "include",
        "years",
        "experience",
        "team",
        "skills",
    }


def test_a_name_that_only_one_document_has_comes_last():
    job = "Welding near Quarlwick for Tarnholm. Soldering and brazing."
    missing = compare(job, "bread", max_terms=8).missing
    assert missing.index("Quarlwick") > missing.index("brazing") and missing.index("Tarnholm") > missing.index(
        "brazing"
    )


def test_adjacent_missing_words_are_one_phrase():
    assert compare("Gas chromatography, ion traps.", "nothing").missing == ("Gas chromatography", "ion traps")
    assert compare("gas chromatography", "gas").missing == ("chromatography",)
    assert compare("alpha beta gamma delta", "nothing").missing == ("alpha beta gamma", "delta")
    assert compare("gas\nchromatography", "nothing").missing == ("gas", "chromatography")  # lines of a list


def test_rare_and_required_terms_come_first_and_are_limited():
    more = ["fuses", "fuses", "fuses", "wiring"]
    assert compare("fuses, wiring, conduits", "", more).missing == ("conduits", "wiring", "fuses")
    assert compare("fuses, wiring, conduits", "", more, max_terms=1).missing == ("conduits",)
    assert compare("fuses, wiring, conduits", "", more, required={stem("wiring")}).missing[0] == "wiring"


def test_blank_texts_have_no_terms():
    assert compare("", "a b") == compare(" ", "")


def test_terms_of_other_scripts_are_words():
    terms = compare("Пекарь, печёт хлеб", "Вкусный хлеб")
    assert (terms.matched, set(terms.missing)) == (("хлеб",), {"Пекарь", "печёт"})
