"""Sections by their headings, however they are written; one section where there are none."""

import pytest

from decoder2vec.matching.sections import OTHER, WHOLE, Section, kind_of, split_sections


def kinds(text, **fields):
    return [(one.kind, one.text) for one in split_sections(text, fields)]


@pytest.mark.parametrize(
    "heading", ["Skills", "SKILLS", "Skills:", "## Skills", "**Skills**", "- Skills -", "1. Skills", "=== Skills ==="]
)
def test_a_heading_on_its_own_line_is_found_however_it_is_marked(heading):
    assert kinds(f"I bake.\n\n{heading}\nBread\nRolls") == [(OTHER, "I bake."), ("skills", "Bread\nRolls")]


@pytest.mark.parametrize("line", ["Skills: bread, rolls", "SKILLS - bread, rolls", "**Skills:** bread, rolls"])
def test_a_heading_may_stand_before_its_text(line):
    assert kinds(f"Summary\nI bake.\n{line}") == [("summary", "I bake."), ("skills", "bread, rolls")]


def test_headings_of_jobs_and_of_other_languages_are_known():
    assert [kind_of(one) for one in ("You will", "Requirements", "We  offer", "Berufserfahrung", "Compétences")] == [
        "tasks",
        "requirements",
        "offer",
        "experience",
        "skills",
    ]
    assert kind_of("Bread") == ""


def test_an_unknown_heading_begins_a_section_only_if_it_is_written_as_one():
    assert kinds("# Hobbies\nChess") == [(OTHER, "Chess")]
    assert split_sections("WHERE I LEARNED\nOven school")[0].heading == "WHERE I LEARNED"
    assert kinds("Nursery worker\nI pot plants.") == [(WHOLE, "Nursery worker\nI pot plants.")]
    assert kinds("I say this: potatoes are good.") == [(WHOLE, "I say this: potatoes are good.")]


def test_a_text_without_headings_is_one_section():
    assert split_sections("Bakes bread. Rolls too.") == [Section(WHOLE, "Bakes bread. Rolls too.")]


def test_a_text_of_one_section_is_that_section():
    assert kinds("Skills: bread") == [("skills", "bread")]


def test_fields_with_the_name_of_a_section_are_sections():
    assert kinds("I bake.", skills="Bread", name="Ann", work_history="Oven") == [
        (WHOLE, "I bake."),
        ("skills", "Bread"),
        ("experience", "Oven"),
    ]


def test_blank_texts_and_blank_sections_give_none():
    assert split_sections("  \n ") == []
    assert kinds("Skills:\n\nEducation:\nOven school") == [("education", "Oven school")]


def test_no_word_under_a_heading_is_lost():
    text = "Ann bakes.\nSKILLS\nBread; rolls\n- more rolls\nEducation: Oven school\nPersonal:\nTwo cats"
    words = " ".join(one.text for one in split_sections(text)).split()
    assert words == ["Ann", "bakes.", "Bread;", "rolls", "-", "more", "rolls", "Oven", "school", "Two", "cats"]


def test_other_scripts_are_read_whole():
    text = "パン職人です。十年働きました。"
    assert split_sections(text) == [Section(WHOLE, text)]
