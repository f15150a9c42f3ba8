"""Sections are found by their headings, however these are written; sentences are split and paired."""

from itertools import product

import numpy as np
import pytest

from decoder2vec.matching.sections import (
    OTHER,
    WHOLE,
    Section,
    best_sentence_pairs,
    section_kind,
    split_sections,
    split_sentences,
)


def kinds_and_texts(text, **fields):
    return [(section.kind, section.text) for section in split_sections(text, fields)]


@pytest.mark.parametrize(
    "heading", ["Skills", "SKILLS", "Skills:", "## Skills", "**Skills**", "- Skills -", "1. Skills", "=== Skills ==="]
)
def test_heading_on_its_own_line_is_found(heading):
    expected = [(OTHER, "I bake."), ("skills", "Bread\nRolls")]
    assert kinds_and_texts(f"I bake.\n\n{heading}\nBread\nRolls") == expected


@pytest.mark.parametrize("line", ["Skills: bread, rolls", "SKILLS - bread, rolls", "**Skills:** bread, rolls"])
def test_heading_before_its_text_is_found(line):
    assert kinds_and_texts(f"Summary\nI bake.\n{line}") == [("summary", "I bake."), ("skills", "bread, rolls")]


def test_headings_of_jobs_and_other_languages_are_known():
    headings = ("You will", "Requirements", "We  offer", "Berufserfahrung", "Compétences")
    assert [section_kind(heading) for heading in headings] == ["tasks", "requirements", "offer", "experience", "skills"]
    assert section_kind("Bread") == ""


def test_unknown_heading_counts_only_if_written_as_one():
    assert kinds_and_texts("# Pastimes\nChess") == [(OTHER, "Chess")]
    assert split_sections("WHERE I LEARNED\nOven school")[0].heading == "WHERE I LEARNED"
    assert kinds_and_texts("Nursery worker\nI pot plants.") == [(WHOLE, "Nursery worker\nI pot plants.")]
    assert kinds_and_texts("I say this: potatoes are good.") == [(WHOLE, "I say this: potatoes are good.")]


def test_text_without_headings_is_one_section():
    assert split_sections("Bakes bread. Rolls too.") == [Section(WHOLE, "Bakes bread. Rolls too.")]


def test_text_with_one_heading_is_that_section():
    assert kinds_and_texts("Skills: bread") == [("skills", "bread")]


def test_fields_named_like_sections_are_sections():
    assert kinds_and_texts("I bake.", skills="Bread", name="Ann", work_history="Oven") == [
        (WHOLE, "I bake."),
        ("skills", "Bread"),
        ("experience", "Oven"),
    ]


def test_blank_texts_and_sections_are_left_out():
    assert split_sections("  \n ") == []
    assert kinds_and_texts("Skills:\n\nEducation:\nOven school") == [("education", "Oven school")]


def test_no_word_under_a_heading_is_lost():
    text = "Ann bakes.\nSKILLS\nBread; rolls\n- more rolls\nEducation: Oven school\nPersonal:\nTwo cats"
    words = " ".join(section.text for section in split_sections(text)).split()
    assert words == ["Ann", "bakes.", "Bread;", "rolls", "-", "more", "rolls", "Oven", "school", "Two", "cats"]


def test_other_scripts_are_one_section():
    text = "パン職人です。十年働きました。"
    assert split_sections(text) == [Section(WHOLE, text)]


def test_lines_bullets_and_half_sentences_are_split():
    text = "I bake. They ate it!\n- rolls at night; bread by day\n\n• Oven\n2019"
    assert split_sentences(text) == ["I bake.", "They ate it!", "rolls at night", "bread by day"]
    assert split_sentences("Oven") == ["Oven"]
    assert split_sentences("パン職人です。十年働きました。") == ["パン職人です。", "十年働きました。"]
    assert split_sentences(" \n") == []


def test_best_pairs_are_greedy_and_use_a_sentence_once():
    rng = np.random.default_rng(1)
    left, right = [f"l{n}" for n in range(5)], [f"r{n}" for n in range(3)]
    table = rng.normal(size=(5, 3))
    unused, expected = set(product(range(5), range(3))), []
    while unused and len(expected) < 4:
        i, j = max(unused, key=lambda pair: table[pair])
        expected.append((left[i], right[j], table[i, j]))
        unused = {(a, b) for a, b in unused if a != i and b != j}
    assert [tuple(pair) for pair in best_sentence_pairs(left, right, lambda a, b: table, 4)] == expected
    assert best_sentence_pairs([], right, lambda a, b: table) == []


def test_headings_with_qualifiers_and_of_two_kinds_are_known():
    assert section_kind("Minimum Qualifications") == "education" and section_kind("JOB DESCRIPTION") == "tasks"
    assert section_kind("Skills & Education") == "skills" and section_kind("Hobbies and Interests") == "formalities"
    assert section_kind("Skills and pumps") == ""


def test_address_and_salary_are_no_sections_of_a_row():
    fields = {"skills": "Python", "address": "12 Main Street", "salary": "80,000", "benefits": "parking"}
    assert [section.text for section in split_sections("", fields)] == ["Python"]


def test_list_item_that_names_a_section_is_no_heading():
    text = "Skills:\n- Contract drafting\n- Legal\n- Litigation\nBenefits:\nFree fruit"
    skills, offer = split_sections(text, {})
    assert skills.text.splitlines() == ["- Contract drafting", "- Legal", "- Litigation"]
    assert offer.text == "Free fruit"
