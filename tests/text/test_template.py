"""Templates: names, strings of the user's own, and where the text stands in the prompt."""

from __future__ import annotations

import pytest

from decoder2vec.errors import InputError
from decoder2vec.text.template import TEMPLATES, Template


@pytest.mark.parametrize("name", TEMPLATES)
def test_a_name_gives_its_template(name):
    assert Template.of(name).string == TEMPLATES[name]
    assert "{text}" in TEMPLATES[name]


def test_plain_is_the_text_itself():
    assert Template.of("plain").render("Bread.") == ("Bread.", 0, 6)


def test_any_string_with_a_slot_is_a_template():
    assert Template.of("query: {text} ?").render("a b") == ("query: a b ?", 7, 10)


@pytest.mark.parametrize(
    ("wrong", "nearest"), [("promteol", "prompteol"), ("Echo", "echo"), ("plane", "plain"), ("instuct", "instruct")]
)
def test_a_wrong_name_suggests_the_nearest(wrong, nearest):
    with pytest.raises(InputError, match=rf"Did you mean .*{nearest}") as caught:
        Template.of(wrong)
    assert "{text}" in str(caught.value)


@pytest.mark.parametrize("wrong", ["", "no slot here at all, only words", "{TEXT}", "{ text }"])
def test_a_string_without_a_slot_is_refused(wrong):
    with pytest.raises(InputError, match=r"must contain \{text\}"):
        Template.of(wrong)


@pytest.mark.parametrize("name", TEMPLATES)
@pytest.mark.parametrize("text", ["Bread.", "", "{text}", "{0} {} %s {text", "שלום", "a\x00b", "👩‍👧"])
def test_rendering_equals_plain_replacement_and_marks_the_last_copy(name, text):
    template = Template.of(name)
    pieces = TEMPLATES[name].split("{text}")
    prompt, first, last = template.render(text)
    assert prompt == text.join(pieces)
    assert prompt[first:last] == text
    assert prompt[last:] == pieces[-1]


@pytest.mark.parametrize(("string", "slots"), [("{text}", 1), ("{text}{text}", 2), ("a {text} b {text} c {text}", 3)])
def test_slots_are_counted(string, slots):
    assert Template.of(string).slots == slots


def test_a_prompt_stands_in_front_of_the_template():
    assert Template.of("query: {text}!").with_prefix("Find: ").string == "Find: query: {text}!"


def test_a_prompt_with_a_slot_of_its_own_replaces_the_template():
    assert Template.of("echo").with_prefix("<{text}>").string == "<{text}>"


def test_an_empty_prompt_changes_nothing():
    assert Template.of("echo").with_prefix("") == Template.of("echo")
