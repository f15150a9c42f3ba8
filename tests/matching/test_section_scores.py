"""Dense scores of documents equal plain loops over their sections."""

import math

import numpy as np
import pytest

from decoder2vec.errors import InputError
from decoder2vec.matching.boilerplate import is_common, is_formality
from decoder2vec.matching.calibration import background_weights, reference_sides
from decoder2vec.matching.match import score_sides
from decoder2vec.matching.section_scores import TextSimilarity, document_sections, full_text
from decoder2vec.matching.sides import Side, SideDocument
from decoder2vec.matching.terms import TextTerms
from toys.sides import JOBS, RESUMES, LetterEncoder


def cosine(a, b):
    left, right = LetterEncoder().encode([a, b])
    return left @ right / np.linalg.norm(left) / np.linalg.norm(right)


def plain_score(job, resume, aggregate):
    job_sections, resume_sections = document_sections(job), document_sections(resume)
    if aggregate == "whole":
        return cosine(*("\n".join(section.text for section in side) for side in (job_sections, resume_sections)))
    table = [[cosine(left.text, right.text) for right in resume_sections] for left in job_sections]
    if aggregate == "best":
        return max(map(max, table))

    documents = [
        TextTerms(full_text(document)).stems
        for side in (JOBS, RESUMES, *reference_sides())
        for document in side.documents
    ]

    def term_weight(stem):
        if is_common(stem):
            return math.log(2)
        share = (sum(stem in stems for stems in documents) + 0.5) / (len(documents) + 1)
        background = math.exp(-background_weights()(stem))
        return -math.log((share + background) / 2)  # three jobs, four resumes

    def weight(section):
        return max(0.1, sum(map(term_weight, TextTerms(section.text).stems)))

    transposed = [list(column) for column in zip(*table, strict=True)]
    means = [
        sum(max(row) * weight(section) for row, section in zip(rows, sections, strict=True))
        / sum(weight(section) for section in sections)
        for rows, sections in ((table, job_sections), (transposed, resume_sections))
    ]
    return sum(means) / 2


@pytest.mark.parametrize("aggregate", ["whole", "sections", "best"])
def test_dense_scores_equal_a_plain_loop(aggregate):
    scores = score_sides(JOBS, RESUMES, TextSimilarity(LetterEncoder()), aggregate)
    expected = [[plain_score(job, resume, aggregate) for resume in RESUMES.documents] for job in JOBS.documents]
    np.testing.assert_allclose(scores.dense, expected)


def test_standardised_similarity_is_the_cosine_of_z_scores():
    class RandomEncoder:
        def encode(self, texts, **_):
            rows = [np.random.default_rng(int(text)).normal(3, [1, 5, 0.1], 3) for text in texts]
            return np.array(rows, np.float32)

    texts = [str(n) for n in range(30)]
    vectors = RandomEncoder().encode(texts).astype(float)
    z_scores = (vectors - vectors.mean(0)) / vectors.std(0)
    z_unit = z_scores / np.linalg.norm(z_scores, axis=1, keepdims=True)
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    similarity = TextSimilarity(RandomEncoder())
    standardised = similarity.standardised([*texts, texts[0]])
    np.testing.assert_allclose(standardised(texts[:4], texts[4:9]), z_unit[:4] @ z_unit[4:9].T, atol=1e-4)
    np.testing.assert_allclose(similarity(texts[:4], texts[4:9]), unit[:4] @ unit[4:9].T)  # the original is unchanged
    with pytest.raises(InputError, match="too few"):
        similarity.standardised(texts[:5])


def test_long_text_is_split_and_no_word_is_lost():
    long = SideDocument("long", "\n".join(f"Sentence number {n} of a long life in bakeries." for n in range(120)))
    encoder = LetterEncoder()
    score_sides(JOBS, Side("long", [long]), TextSimilarity(encoder), "whole")
    passages = [text for text in encoder.encoded_texts if text.startswith("Sentence")]
    assert " ".join(passages).split() == long.text.split()
    assert max(len(passage.split()) for passage in passages) <= 200


def test_document_with_only_a_heading_is_one_section():
    assert [section.text for section in document_sections(SideDocument("a", "Skills"))] == ["Skills"]


def test_formalities_are_no_part_of_what_is_compared():
    text = (
        "person@example.com\nNationality: US citizen.\n\nSkills\nWelding of pipes.\n\nBenefits\n401(k) and dental.\n\n"
        "EEO Statement\nWe are an Equal Opportunity Employer.\n\nReferences\nAvailable upon request.\n\n"
        "Experience\nTen years on gas pipelines. References available upon request."
    )
    sections = document_sections(SideDocument("a", text))
    assert [(section.kind, section.text) for section in sections] == [
        ("skills", "Welding of pipes."),
        ("experience", "Ten years on gas pipelines."),
    ]
    assert document_sections(SideDocument("b", "References\nOn request."))[0].text  # there is nothing else


def test_one_word_lines_stay_where_formalities_are_left_out():
    text = "Skills\nPython\nSQL\nDocker\nReferences available on request\nData pipelines"
    (section,) = document_sections(SideDocument("a", text))
    assert section.text.splitlines() == ["Python", "SQL", "Docker", "Data pipelines"]


@pytest.mark.parametrize(
    "sentence",
    [
        "Ability to apply statistical methods to fraud data",
        "Languages including but not limited to Python, Java and Scala",
        "Sold life insurance to 200 families",
        "Prepared W-2 forms and payroll taxes",
        "Built https://example.org with Django",
    ],
)
def test_sentences_about_the_work_are_no_formalities(sentence):
    assert not is_formality(sentence)
