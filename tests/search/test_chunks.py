"""Chunks hold every sentence, are as long as was asked, and overlap as was asked."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest

from decoder2vec.config import EncoderSpec, Reading
from decoder2vec.encoder import Encoder
from decoder2vec.errors import InputError
from decoder2vec.search.chunks import Chunking, measure_of
from decoder2vec.text.sentences import sentences


def words(texts):
    return [len(text.split()) for text in texts]


def story(count, seed=0):
    rng = random.Random(seed)
    return " ".join(
        f"Sentence {number} says {' '.join(rng.choices(['sun', 'moon', 'sea'], k=rng.randint(1, 12)))}."
        for number in range(count)
    )


def test_a_short_text_is_one_chunk():
    assert Chunking(16, 4).cut("  One sentence.  ", words) == ["One sentence."]
    assert Chunking(16, 4).cut(" \n ", words) == []


@pytest.mark.parametrize("seed", range(5))
def test_every_sentence_stands_in_a_chunk_and_no_chunk_is_too_long(seed):
    text = story(60, seed)
    chunks = Chunking(40, 12).cut(text, words)
    assert all(count <= 40 for count in words(chunks))
    assert all(any(one in chunk for chunk in chunks) for one in sentences(text))
    assert all(chunk in text for chunk in chunks)


@pytest.mark.parametrize("overlap", [0, 6, 20])
def test_neighbours_share_whole_sentences_up_to_the_overlap(overlap):
    chunks = [sentences(chunk) for chunk in Chunking(40, overlap).cut(story(60), words)]
    shared = [[one for one in left if one in right] for left, right in pairwise(chunks)]
    assert all(left[len(left) - len(same) :] == same for left, same in zip(chunks, shared, strict=False))
    assert all(sum(words(same)) <= overlap for same in shared)
    assert any(shared) == (overlap > 0)


def test_a_sentence_that_is_too_long_is_cut_between_words():
    text = " ".join(f"word{number}" for number in range(1000))
    chunks = Chunking(16, 0).cut(text, words)
    assert " ".join(chunks) == text and max(words(chunks)) <= 16


def test_a_text_without_any_space_is_cut_all_the_same():
    text = "x" * 5000
    chunks = Chunking(64, 8).cut(text, lambda texts: [len(one) for one in texts])
    assert max(map(len, chunks)) <= 64 and "".join(chunks) == text


def test_chunks_are_measured_in_the_tokens_of_the_encoder_and_are_never_cut_by_it(backbone):
    encoder = Encoder(backbone("tiny-llama"), EncoderSpec("tiny-llama", (Reading(2, "mean"),), template="prompteol"))
    chunks = Chunking(5000, 100).within(encoder).cut(story(200), measure_of(encoder))
    assert len(chunks) > 1
    encoder.encode(chunks)
    assert encoder.stats.overlong == 0


def test_impossible_sizes_are_refused():
    for size, overlap in ((4, 0), (64, 40), (64, -1)):
        with pytest.raises(InputError, match="cannot be made"):
            Chunking(size, overlap)
