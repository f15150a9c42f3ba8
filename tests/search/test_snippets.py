"""The best sentence is marked, and meaning is asked only where words are silent."""

from __future__ import annotations

import html

from decoder2vec.search.snippets import Snippet, snippets
from toys.encoder import WordEncoder

TEXT = "The moon is full tonight. A kitten naps on the red sofa. Stocks fell sharply on Monday."


def never(texts, role):
    raise AssertionError("words are enough")


def best(query, text, encode=never):
    found = snippets(query, [text], encode)[0]
    assert found.text in text or found.text.endswith("…")
    return found.text[found.start : found.end]


def test_the_sentence_that_shares_most_words_is_marked():
    assert best("where does the kitten nap, on which sofa", TEXT) == "A kitten naps on the red sofa."
    assert best("stocks", TEXT) == "Stocks fell sharply on Monday."


def test_a_rare_word_counts_more_than_a_common_one():
    text = "Red wine and red roses. Red cars. Red sofa."
    assert best("red sofa", text) == "Red sofa."


def test_where_no_word_is_shared_the_nearest_meaning_is_marked():
    asked = []

    def encode(texts, role):
        asked.append((role, len(texts)))
        near = {"A kitten naps on the red sofa.": "cat", "feline": "cat"}
        return WordEncoder().encode([near.get(text, text) for text in texts])

    assert best("feline", TEXT, encode) == "A kitten naps on the red sofa."
    assert asked == [("document", 3), ("query", 1)]


def test_a_snippet_has_room_for_some_sentences_only():
    text = " ".join(f"Sentence {number} is about nothing much at all." for number in range(50))
    found = snippets("25", [text], never)[0]
    assert len(found.text) <= 300 and found.text[found.start : found.end].startswith("Sentence 25 ")
    assert "Sentence 26" in found.text
    long = snippets("word", ["word " * 500], never)[0]
    assert len(long.text) <= 302 and long.text.endswith("word …")


def test_marks_stand_around_the_best_sentence_and_the_rest_is_quoted():
    found = Snippet("a < b. c > d.", 7, 13)
    assert found.marked("<b>", "</b>", html.escape) == "a &lt; b. <b>c &gt; d.</b>"


def test_no_text_at_all_is_a_snippet_too():
    assert snippets("x", [""], never) == [Snippet("", 0, 0)]
