"""Forum posts join the pool: clean, different from what is evaluated, with fragments as people type them."""

from __future__ import annotations

import csv
import random

import pytest

from distill_packed import read_pool
from forum_posts import add_posts, clean, fragments, write_table

POST = (
    "I have a question about my old telescope, because the mirror is dusty and nobody near me repairs such things " * 2
)
POOL_TEXTS = [f"The small town number {number} lies by the sea and has a harbour." for number in range(30)]


@pytest.fixture
def pool(tmp_path):
    forum, pool = tmp_path / "forums", tmp_path / "pool"
    forum.mkdir()
    pool.mkdir()
    rows = [
        {"title": "Which telescope for a beginner?", "selftext": POST, "over_18": "False"},
        {"title": "Look at [this moon](http://x.org/a) &amp; stars", "selftext": "", "over_18": "False"},
        {"title": "A sentence of the test set!", "selftext": "", "over_18": "False"},
        {"title": "Not for everybody at all", "selftext": "", "over_18": "True"},
        {"title": "Что это за звезда на небе", "selftext": "", "over_18": "False"},
    ]
    with (forum / "Astronomy.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)
    (tmp_path / "test.tsv").write_text("score\tsentence1\tsentence2\n1\ta sentence of the test set\tx\n")
    write_table(pool / "texts-1.tsv.gz", "source\ttext", [("wikipedia", text) for text in POOL_TEXTS])
    add_posts(forum, pool, [tmp_path / "test.tsv"], n_fragments=20)
    return read_pool(pool)


def test_titles_and_posts_join_the_pool(pool):
    titles = {text for text, source in zip(pool.texts, pool.sources, strict=True) if source == "reddit-title"}
    assert titles == {"Look at this moon & stars"}
    (pair,) = pool.pairs["reddit"]
    question, post = (pool.texts[row] for row in pair)
    assert question == "Which telescope for a beginner?" and POST.startswith(post)


def test_fragments_are_few_neighbouring_words(pool):
    found = [text for text, source in zip(pool.texts, pool.sources, strict=True) if source == "fragment"]
    assert len(found) == 20
    lower = " | ".join(POOL_TEXTS).lower()
    assert all(fragment.lower() in lower and len(fragment.split()) <= 8 for fragment in found)


def test_fragments_of_few_texts_end():
    assert len(list(fragments(["one two three four five six"], 1000, random.Random(0)))) < 1000


@pytest.mark.parametrize(
    ("text", "expected"),
    [("**Bold** &amp;gt; see http://a.b/c now", "Bold see now"), ("a [link](http://x) \n b", "a link b")],
)
def test_markdown_and_addresses_are_removed(text, expected):
    assert clean(text) == expected
