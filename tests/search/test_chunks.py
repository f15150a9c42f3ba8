"""Chunks contain every sentence, and keep their maximum length and overlap."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest

from decoder2vec.config import EncoderSpec, Reading
from decoder2vec.encoder import Encoder
from decoder2vec.errors import InputError
from decoder2vec.search.chunks import Chunking, token_lengths
from decoder2vec.text.sentences import split_sentences


def word_counts(texts):
    return [len(text.split()) for text in texts]


def toy_text(count, seed=0):
    rng = random.Random(seed)
    return " ".join(
        f"Sentence {number} says {' '.join(rng.choices(['sun', 'moon', 'sea'], k=rng.randint(1, 12)))}."
        for number in range(count)
    )


def test_short_text_is_one_chunk():
    assert Chunking(16, 4).split("  One sentence.  ", word_counts) == ["One sentence."]
    assert Chunking(16, 4).split(" \n ", word_counts) == []


@pytest.mark.parametrize("seed", range(5))
def test_chunks_hold_every_sentence_within_the_size(seed):
    text = toy_text(60, seed)
    chunks = Chunking(40, 12).split(text, word_counts)
    assert all(count <= 40 for count in word_counts(chunks))
    assert all(any(sentence in chunk for chunk in chunks) for sentence in split_sentences(text))
    assert all(chunk in text for chunk in chunks)


@pytest.mark.parametrize("overlap", [0, 6, 20])
def test_neighbouring_chunks_share_sentences_within_overlap(overlap):
    chunks = [split_sentences(chunk) for chunk in Chunking(40, overlap).split(toy_text(60), word_counts)]
    shared = [[sentence for sentence in left if sentence in right] for left, right in pairwise(chunks)]
    assert all(left[len(left) - len(common) :] == common for left, common in zip(chunks, shared, strict=False))
    assert all(sum(word_counts(common)) <= overlap for common in shared)
    assert any(shared) == (overlap > 0)


def test_overlong_sentence_is_split_between_words():
    text = " ".join(f"word{number}" for number in range(1000))
    chunks = Chunking(16, 0).split(text, word_counts)
    assert " ".join(chunks) == text and max(word_counts(chunks)) <= 16


def test_text_without_spaces_is_split():
    text = "x" * 5000
    chunks = Chunking(64, 8).split(text, lambda texts: [len(piece) for piece in texts])
    assert max(map(len, chunks)) <= 64 and "".join(chunks) == text


def test_encoder_never_truncates_a_chunk(backbone):
    """Chunks are measured in the encoder's tokens, and the room that its template takes is left free."""
    encoder = Encoder(backbone("tiny-llama"), EncoderSpec("tiny-llama", (Reading(2, "mean"),), template="prompteol"))
    chunks = Chunking(5000, 100).limited_to(encoder).split(toy_text(200), token_lengths(encoder))
    assert len(chunks) > 1
    encoder.encode(chunks)
    assert encoder.stats.overlong == 0


def test_impossible_sizes_are_refused():
    for size, overlap in ((4, 0), (64, 40), (64, -1)):
        with pytest.raises(InputError, match="not possible"):
            Chunking(size, overlap)
