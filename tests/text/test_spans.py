"""Stretches of a text and the tokens they are made of, against plain loops, decoded tokens and other cuts."""

from __future__ import annotations

import random
import re
import sys
from dataclasses import replace

import pytest
from tokenizers import normalizers, processors

from decoder2vec.backbone.tiny import tiny_tokenizer
from decoder2vec.text.template import Template
from decoder2vec.text.tokens import Tokeniser, token_positions

MODELS = ("no BOS", "own BOS", "BOS to add", "EOS behind", "BOS to add, EOS behind")

TEXTS = (
    "the cats sleep in the rain and sing of boats that sail over the sea",
    "a",
    "",
    "uncommonly  spaced \t words\nand lines ",
    " zażółć gęślą jaźń 面包在烤箱里 🐈‍⬛ 👩‍👩‍👧‍👦 e\u0301\u0301 שלום \U0001d54f\U0001d54f",
    "<eos> <bos>the <pad> of words",
    "\x00 \ufeff",
)

PIECES = ("the", "bread", "\u00e9", "\U0001f408", "\u9762\u5305", " ", "  ", "\n", "-", "x")


@pytest.fixture(scope="session", params=MODELS)
def model(request, backbone):
    """Tokenizers that put something around a text, and a family that needs a BOS which its tokenizer forgets."""
    if request.param in ("no BOS", "own BOS"):
        return backbone("tiny-gpt2" if request.param == "no BOS" else "tiny-llama")
    tokenizer = tiny_tokenizer(pad=True, bos=False)
    if "EOS" in request.param:
        behind = processors.TemplateProcessing(single="$A <eos>", special_tokens=[("<eos>", 0)])
        tokenizer.backend_tokenizer.post_processor = behind
    made = replace(backbone("tiny-gemma3_text" if "BOS" in request.param else "tiny-llama"), tokenizer=tokenizer)
    assert (made.missing_bos_token_id is not None) == ("BOS" in request.param)
    return made


def prompts_of(model, texts, max_length=200):
    return Tokeniser(model, Template.of("plain"), max_length)(list(texts)).prompts


def words(text):
    return [match.span() for match in re.finditer(r"\S+", text)]


def random_texts(count=60, seed=0):
    """Of pieces that take one token, part of one, or several."""
    rng = random.Random(seed)
    for _ in range(count):
        odd = [chr(rng.choice([rng.randrange(0xD800), rng.randrange(0xE000, 0x20000)])) for _ in range(3)]
        yield "".join(rng.choice([*PIECES, *odd]) for _ in range(rng.randrange(30)))


def random_spans(text):
    rng = random.Random(len(text))
    ends = [sorted(rng.choices(range(len(text) + 1), k=2)) for _ in range(8)]
    return [(first, last) for first, last in ends if first < last]


def by_characters(model, text, spans):
    """Character by character, in a text that was not cut: the tokens of which it is a part."""
    encoding = model.tokenizer(text, return_offsets_mapping=True)
    parts = [set(range(*offsets)) for offsets in encoding["offset_mapping"]]
    shift = int(model.missing_bos_token_id is not None)
    return [[place + shift for place, part in enumerate(parts) if part & set(range(*span))] for span in spans]


@pytest.mark.parametrize("spans", [words, random_spans], ids=["words", "random"])
def test_every_span_has_the_tokens_that_hold_one_of_its_characters(spans, model):
    texts = [*TEXTS, *random_texts()]
    found = token_positions(texts, prompts_of(model, texts), model, spans)
    assert found == [by_characters(model, text, spans(text)) for text in texts]
    assert all(places for own in found for places in own), "this tokenizer loses no character"


def test_the_tokens_of_a_word_spell_it(model):
    """They may begin with the space before it, and nothing else."""
    texts = [*TEXTS[:5], *random_texts()]
    prompts = prompts_of(model, texts)
    for text, prompt, own in zip(texts, prompts, token_positions(texts, prompts, model, words), strict=True):
        told = [model.tokenizer.decode([prompt.ids[place] for place in places]) for places in own]
        assert [word.lstrip() for word in told] == text.split()


def test_spans_are_looked_for_in_each_text_by_itself_and_in_their_own_order(model):
    def some(text):
        return [(4, 8), (0, 3), (0, 8), (5, 6)] if text.startswith("the") else []

    texts = [TEXTS[0], "a b c d e f", TEXTS[0]]
    found = token_positions(texts, prompts_of(model, texts), model, some)
    assert found == [by_characters(model, texts[0], some(texts[0])), [], found[0]]
    assert set(found[0][2]) == {*found[0][0], *found[0][1]} and set(found[0][3]) < set(found[0][0])


@pytest.mark.parametrize("max_length", [3, 4, 5, 7, 10, 16, 25])
def test_a_text_that_was_cut_has_the_spans_that_stand_whole_in_what_is_left(max_length, model):
    """What is left is what its prompt spells; a span there has the tokens that it had in the whole text."""
    texts = [*TEXTS[:5], *random_texts()]
    prompts = prompts_of(model, texts, max_length)
    found = token_positions(texts, prompts, model, words)
    cut = 0
    for text, prompt, own in zip(texts, prompts, found, strict=True):
        left = model.tokenizer.decode(prompt.ids, skip_special_tokens=True)
        assert text.startswith(left)
        whole = [span for span in words(text) if span[1] <= len(left)]
        assert own == by_characters(model, text, whole)
        assert all(place < len(prompt.ids) for places in own for place in places)
        cut += len(whole) < len(words(text))
    assert cut > 20, "they were meant to be cut"


def test_spans_beyond_a_cut_or_beyond_the_text_are_left_out(model):
    text = TEXTS[0]
    inside, across, behind, outside = (4, 8), (4, 60), (50, 60), (60, len(text) + 1)
    (prompt,) = prompts_of(model, [text], 12)
    left = len(model.tokenizer.decode(prompt.ids, skip_special_tokens=True))
    assert 8 < left < 50
    (found,) = token_positions([text], [prompt], model, lambda _: [inside, across, behind, outside])
    assert found == by_characters(model, text, [inside])


def test_nothing_has_no_spans_and_no_texts_have_no_answer(model):
    assert token_positions(["", " "], prompts_of(model, ["", " "]), model, words) == [[], []]
    assert token_positions([], [], model, words) == []


def test_every_character_of_unicode_is_found_again(backbone):
    """In the midst of others, so that each is a word of its own."""
    model = backbone("tiny-llama")
    seen = [chr(code) for code in range(0, sys.maxunicode + 1, 997) if not 0xD800 <= code < 0xE000]
    texts = [" ".join(seen[begin : begin + 30]) for begin in range(0, len(seen), 30)]
    prompts = prompts_of(model, texts)
    for text, prompt, own in zip(texts, prompts, token_positions(texts, prompts, model, words), strict=True):
        told = [model.tokenizer.decode([prompt.ids[place] for place in places]).strip() for places in own]
        assert told == text.split()


def test_a_word_of_which_the_tokenizer_keeps_nothing_has_no_tokens(backbone):
    """Its neighbours are found all the same, and the answer has as many entries as there are spans."""
    tokenizer = tiny_tokenizer(pad=True, bos=True)
    tokenizer.backend_tokenizer.normalizer = normalizers.Replace("\u200b", "")
    model = replace(backbone("tiny-llama"), tokenizer=tokenizer)
    texts = ["the \u200b cat", "\u200b"]
    first, second = token_positions(texts, prompts_of(model, texts), model, words)
    assert [bool(places) for places in first] == [True, False, True] and second == [[]]
    ids = prompts_of(model, texts[:1])[0].ids
    assert tokenizer.decode([ids[place] for place in first[2]]).strip() == "cat"


def test_padding_and_truncation_that_someone_left_switched_on_change_nothing(backbone):
    model = backbone("tiny-llama")
    prompts = prompts_of(model, TEXTS)
    expected = token_positions(TEXTS, prompts, model, words)
    model.tokenizer(list(TEXTS), padding="max_length", truncation=True, max_length=5)
    assert token_positions(TEXTS, prompts, model, words) == expected
