"""The best sentence is marked; vectors are computed only where no sentence shares a word with the query."""

from __future__ import annotations

import html

from decoder2vec.search.snippets import Snippet, make_snippets
from toys.encoder import WordEncoder

TEXT = "The moon is full tonight. A kitten naps on the red sofa. Stocks fell sharply on Monday."


def must_not_encode(texts, role):
    raise AssertionError("shared words are enough")


def best_sentence(query, text, encode=must_not_encode):
    snippet = make_snippets(query, [text], encode)[0]
    assert snippet.text in text or snippet.text.endswith("…")
    return snippet.text[snippet.start : snippet.end]


def test_sentence_with_most_shared_words_is_best():
    assert best_sentence("where does the kitten nap, on which sofa", TEXT) == "A kitten naps on the red sofa."
    assert best_sentence("stocks", TEXT) == "Stocks fell sharply on Monday."


def test_rare_words_count_more():
    text = "Red wine and red roses. Red cars. Red sofa."
    assert best_sentence("red sofa", text) == "Red sofa."


def test_nearest_vector_is_best_without_shared_words():
    calls = []

    def encode(texts, role):
        calls.append((role, len(texts)))
        synonyms = {"A kitten naps on the red sofa.": "cat", "feline": "cat"}
        return WordEncoder().encode([synonyms.get(text, text) for text in texts])

    assert best_sentence("feline", TEXT, encode) == "A kitten naps on the red sofa."
    assert calls == [("document", 3), ("query", 1)]


def test_snippet_is_limited_in_length():
    text = " ".join(f"Sentence {number} is about nothing much at all." for number in range(50))
    snippet = make_snippets("25", [text], must_not_encode)[0]
    assert len(snippet.text) <= 300 and snippet.text[snippet.start : snippet.end].startswith("Sentence 25 ")
    assert "Sentence 26" in snippet.text
    long = make_snippets("word", ["word " * 500], must_not_encode)[0]
    assert len(long.text) <= 302 and long.text.endswith("word …")


def test_marked_snippet_escapes_all_text():
    snippet = Snippet("a < b. c > d.", 7, 13)
    assert snippet.marked("<b>", "</b>", html.escape) == "a &lt; b. <b>c &gt; d.</b>"


def test_empty_text_has_an_empty_snippet():
    assert make_snippets("x", [""], must_not_encode) == [Snippet("", 0, 0)]
