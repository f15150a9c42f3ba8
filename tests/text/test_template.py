"""Tests of `decoder2vec.text.template`."""

from __future__ import annotations

import pytest

from decoder2vec.errors import InputError
from decoder2vec.text.template import TEMPLATES, Template


@pytest.mark.parametrize("name", TEMPLATES)
def test_template_is_found_by_name(name):
    assert Template.of(name).string == TEMPLATES[name]
    assert "{text}" in TEMPLATES[name]


def test_plain_template_is_the_text_itself():
    assert Template.of("plain").render("Bread.") == ("Bread.", 0, 6)


def test_any_string_with_a_slot_is_a_template():
    assert Template.of("query: {text} ?").render("a b") == ("query: a b ?", 7, 10)


@pytest.mark.parametrize(
    ("wrong", "nearest"), [("promteol", "prompteol"), ("Echo", "echo"), ("plane", "plain"), ("instuct", "instruct")]
)
def test_unknown_name_suggests_the_nearest(wrong, nearest):
    with pytest.raises(InputError, match=rf"Did you mean .*{nearest}") as caught:
        Template.of(wrong)
    assert "{text}" in str(caught.value)


@pytest.mark.parametrize("wrong", ["", "no slot here at all, only words", "{TEXT}", "{ text }"])
def test_string_without_a_slot_is_refused(wrong):
    with pytest.raises(InputError, match=r"must contain \{text\}"):
        Template.of(wrong)


@pytest.mark.parametrize("name", TEMPLATES)
@pytest.mark.parametrize("text", ["Bread.", "", "{text}", "{0} {} %s {text", "שלום", "a\x00b", "👩‍👧"])
def test_render_returns_the_prompt_and_the_last_copy(name, text):
    template = Template.of(name)
    pieces = TEMPLATES[name].split("{text}")
    prompt, first, last = template.render(text)
    assert prompt == text.join(pieces)
    assert prompt[first:last] == text
    assert template.pooled_from(text) == first
    assert prompt[last:] == pieces[-1]


@pytest.mark.parametrize(("string", "slots"), [("{text}", 1), ("{text}{text}", 2), ("a {text} b {text} c {text}", 3)])
def test_slots_are_counted(string, slots):
    assert Template.of(string).slots == slots


def test_prefix_is_put_in_front_of_the_template():
    assert Template.of("query: {text}!").with_prefix("Find: ").string == "Find: query: {text}!"


def test_prefix_with_a_slot_replaces_the_template():
    assert Template.of("echo").with_prefix("<{text}>").string == "<{text}>"


def test_empty_prefix_changes_nothing():
    assert Template.of("echo").with_prefix("") == Template.of("echo")
