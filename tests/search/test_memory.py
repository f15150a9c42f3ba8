"""Memory that documents take while they are indexed: a stated multiple of their size, whatever they hold."""

from __future__ import annotations

import tracemalloc
from types import SimpleNamespace

import pytest

from decoder2vec.search.chunks import Chunking, token_lengths
from decoder2vec.search.documents import read_documents
from decoder2vec.text.tokens import CHARACTERS_AT_ONCE, CHARACTERS_PER_TOKEN
from toys.files import word_file

SIZE = 2**19
MULTIPLE = 10
"""Of the text of a file, as docs/promises.md states it."""
PARAGRAPH = "Bread is baked in the oven at noon. " * 10


def write_html(file):
    file.write_text("<html>" + f"<p>{PARAGRAPH}</p>" * (SIZE // len(PARAGRAPH)), "utf-8")


def write_markdown(file):
    file.write_text("# Title\n\n" + f"{PARAGRAPH}\n\n" * (SIZE // len(PARAGRAPH)), "utf-8")


def write_csv(file):
    file.write_text("text\n" + f'"{PARAGRAPH}"\n' * (SIZE // len(PARAGRAPH)), "utf-8")


def write_line(file):
    file.write_text("word " * (SIZE // 5), "utf-8")


def write_docx(file):
    word_file(file, *([PARAGRAPH] * (SIZE // len(PARAGRAPH))))


WRITERS = {"html": write_html, "md": write_markdown, "csv": write_csv, "txt": write_line, "docx": write_docx}


@pytest.mark.parametrize("suffix", WRITERS)
def test_reading_a_file_takes_a_multiple_of_its_text(tmp_path, suffix):
    file = tmp_path / f"file.{suffix}"
    WRITERS[suffix](file)
    tracemalloc.start()
    try:
        n_characters = sum(len(document.text) for document in read_documents(file))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert n_characters > 0.9 * SIZE
    assert peak < MULTIPLE * SIZE


class CountingTokenizer:
    """One token for each word; it counts the characters of its calls."""

    def __init__(self):
        self.calls = []

    def __call__(self, texts, **_):
        self.calls.append(sum(map(len, texts)))
        return {"input_ids": [text.split() for text in texts]}


@pytest.mark.parametrize("text", ["word " * 200_000, "x" * 1_000_000, "A word. " * 100_000], ids=lambda text: text[:8])
def test_little_of_a_text_is_tokenised_at_a_time(text):
    """A tokenizer takes hundreds of bytes for each character; one line of 1 MB took 400 MB."""
    tokenizer = CountingTokenizer()
    Chunking(64, 8).split(text, token_lengths(SimpleNamespace(tokenizer=tokenizer)))
    assert max(tokenizer.calls) <= CHARACTERS_AT_ONCE
    assert sum(tokenizer.calls) <= 8 * len(text)


def test_long_line_is_split_as_if_it_were_measured(monkeypatch):
    """Spans that are too long for any tokenizer are halved without being tokenised, at the same places."""
    text = " ".join(f"word{index}" for index in range(20_000))
    lengths_of = token_lengths(SimpleNamespace(tokenizer=CountingTokenizer()))
    quick = Chunking(64, 8).split(text, lengths_of)
    monkeypatch.setattr("decoder2vec.search.chunks.CHARACTERS_PER_TOKEN", 10**9)
    assert quick == Chunking(64, 8).split(text, lengths_of)
    assert len(text) > 10 * 64 * CHARACTERS_PER_TOKEN
