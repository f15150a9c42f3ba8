"""Tests of `decoder2vec.text.sentences`."""

from __future__ import annotations

import pytest

from decoder2vec.text.sentences import join_chunks, sentence_spans, split_sentences

CASES = {
    "One. Two! Three? Four": ["One.", "Two!", "Three?", "Four"],
    "Dr. Smith met J. Doe. They talked.": ["Dr. Smith met J. Doe.", "They talked."],
    'He said "No." Then he left.': ['He said "No."', "Then he left."],
    "Version 3.5 of e.g. numpy is out.": ["Version 3.5 of e.g. numpy is out."],
    "Title\n\nBody goes\non here.": ["Title", "Body goes\non here."],
    "Skills\n- Python\n- SQL": ["Skills", "- Python", "- SQL"],
    "今日は晴れです。明日は雨です。": ["今日は晴れです。", "明日は雨です。"],
    "": [],
    " \n ": [],
}


@pytest.mark.parametrize("text", CASES)
def test_texts_are_split_into_sentences(text):
    assert split_sentences(text) == CASES[text]


def test_sentence_spans_point_into_the_text():
    text = "  One.  Two.\n\nThree. "
    assert [text[begin:end] for begin, end in sentence_spans(text)] == ["One.", "Two.", "Three."]


@pytest.mark.parametrize(
    ("chunks", "text"),
    [
        (["One.", "Two."], "One. Two."),
        (["One. ", "Two.", "\nThree."], "One. Two.\nThree."),
        (["One.\n", " Two."], "One.\n Two."),
        ([" ", "a", " "], " a "),
        (["alone"], "alone"),
        ([], ""),
    ],
)
def test_joined_chunks_are_found_in_the_text(chunks, text):
    joined, spans = join_chunks(chunks)
    assert joined == text
    assert [joined[begin:end] for begin, end in spans] == chunks
