"""Tests of `decoder2vec.text.tokens`: prompts, overflow, and the tokens of spans."""

from __future__ import annotations

import random
import re
import sys
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from tokenizers import normalizers, processors
from transformers import AutoTokenizer

from decoder2vec.backbone.backbone import Backbone
from decoder2vec.backbone.tiny import tiny_folder, tiny_tokenizer
from decoder2vec.errors import InputError
from decoder2vec.text import tokens
from decoder2vec.text.template import TEMPLATES, Template
from decoder2vec.text.tokens import Tokeniser, token_positions

MODELS = ["tiny-gpt2", "tiny-llama"]
"""Without and with a BOS token."""

TEMPLATE_NAMES = ["plain", "prompteol", "echo", "instruct"]
TEXT = "Steam in the first ten minutes helps the crust."
LONG = " ".join(f"{TEXT[:-1]} number {n}," for n in range(40))

UNUSUAL = {
    "nothing": "",
    "a space": " ",
    "spaces": "   \n\t  ",
    "NUL": "\x00",
    "NUL inside": "a\x00b",
    "emoji family": "👩‍👩‍👧‍👦🇫🇷 and 👍🏽",
    "right to left": "שלום עולם, مرحبا بالعالم",
    "combining": "e\u0301\u0301\u0301 Zalgo\u0335\u0327",
    "byte order mark": "\ufeffbom",
    "Chinese": "面包在烤箱里。",
    "slot": "{text} {0}",
    "astral": "\U0001d54f" * 5,
}


def decode(backbone, ids):
    return backbone.tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)


def plain_ids(name, prompt):
    return AutoTokenizer.from_pretrained(tiny_folder(name))(prompt)["input_ids"]


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("template", TEMPLATE_NAMES)
def test_ids_equal_a_plain_call_of_the_tokenizer(name, template, backbone):
    tokenised = Tokeniser(backbone(name), Template.of(template), 256)([TEXT]).prompts[0]
    assert tokenised.ids == plain_ids(name, TEMPLATES[template].replace("{text}", TEXT))


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("template", TEMPLATE_NAMES)
@pytest.mark.parametrize("text", [TEXT, "A", "42", "naïve café", "שלום עולם"])
def test_pooled_tokens_are_the_last_copy_and_the_suffix(name, template, text, backbone):
    model = backbone(name)
    prompt = Tokeniser(model, Template.of(template), 256)([text]).prompts[0]
    suffix = TEMPLATES[template].rpartition("{text}")[2]
    pooled = decode(model, prompt.ids[prompt.start : prompt.end])
    assert prompt.end == len(prompt.ids)
    assert pooled in (text + suffix, " " + text + suffix)  # a token may include the space before the text
    if template != "plain":
        before = decode(model, prompt.ids[: prompt.start])
        assert before + pooled == TEMPLATES[template].replace("{text}", text)


@pytest.mark.parametrize(
    ("name", "first"), [("tiny-gpt2", "Steam in"), ("tiny-llama", "<bos>Steam in"), ("tiny-gemma2", "<bos>Steam in")]
)
def test_bos_token_of_a_plain_text_is_pooled(name, first, backbone):
    model = backbone(name)
    prompt = Tokeniser(model, Template.of("plain"), 256)([TEXT]).prompts[0]
    assert (prompt.start, prompt.end) == (0, len(prompt.ids))
    assert model.tokenizer.decode(prompt.ids).startswith(first)


def test_token_across_the_border_belongs_to_the_text(backbone):
    model = backbone("tiny-gpt2")
    prompt = Tokeniser(model, Template.of("bre{text}"), 256)(["ad and water"]).prompts[0]
    whole = model.tokenizer("bread and water", return_offsets_mapping=True)
    ends = [end for _, end in whole["offset_mapping"]]
    assert prompt.ids == whole["input_ids"]
    assert prompt.start == next(number for number, end in enumerate(ends) if end > 3)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("template", TEMPLATE_NAMES)
@pytest.mark.parametrize("kind", UNUSUAL)
def test_unusual_texts_have_a_pooled_span(name, template, kind, backbone):
    model = backbone(name)
    text = UNUSUAL[kind]
    prompt = Tokeniser(model, Template.of(template), 256)([text]).prompts[0]
    assert 0 <= prompt.start < prompt.end == len(prompt.ids)
    expected = text + TEMPLATES[template].rpartition("{text}")[2]
    pooled = decode(model, prompt.ids[prompt.start :])
    assert pooled.endswith(expected)
    if text:
        assert len(pooled) <= len(expected) + 3  # at most one token that began before the text


def test_empty_text_without_tokens_is_encoded_as_bos(backbone):
    model = backbone("tiny-gpt2")
    prompt = Tokeniser(model, Template.of("plain"), 256)([""]).prompts[0]
    assert (prompt.ids, prompt.start, prompt.end) == ([model.tokenizer.bos_token_id], 0, 1)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("template", TEMPLATE_NAMES)
@pytest.mark.parametrize("limit", [40, 57, 64])
def test_truncated_prompt_is_that_of_a_shorter_text(name, template, limit, backbone):
    model = backbone(name)
    tokenizer = AutoTokenizer.from_pretrained(tiny_folder(name))
    tokenised = Tokeniser(model, Template.of(template), limit)([LONG])
    prompt = tokenised.prompts[0]
    assert tokenised.overlong == [0]
    assert len(prompt.ids) <= limit
    lengths = range(300)
    candidates = tokenizer([TEMPLATES[template].replace("{text}", LONG[:length]) for length in lengths])["input_ids"]
    equal = [length for length in lengths if candidates[length] == prompt.ids]
    assert len(equal) == 1
    longest = max(length for length in lengths if len(candidates[length]) <= limit)
    assert longest - equal[0] <= 12
    short = Tokeniser(model, Template.of(template), 256)([LONG[: equal[0]]])
    assert short.overlong == []
    assert short.prompts == [prompt]


@pytest.mark.parametrize("template", ["prompteol", "prompteol_tight", "{text} , in short:"])
def test_truncation_never_cuts_the_suffix(template, backbone):
    model = backbone("tiny-llama")
    prompt_template = Template.of(template)
    suffix = prompt_template.string.rpartition("{text}")[2]
    for limit in range(28, 60):
        prompt = Tokeniser(model, prompt_template, limit)([LONG]).prompts[0]
        assert decode(model, prompt.ids).endswith(suffix)
        assert len(prompt.ids) <= limit


@pytest.mark.parametrize("kind", [kind for kind, text in UNUSUAL.items() if text])
@pytest.mark.parametrize("template", TEMPLATE_NAMES)
def test_unusual_texts_are_cut_between_characters(kind, template, backbone):
    model = backbone("tiny-gpt2")
    text = UNUSUAL[kind] * 60
    for limit in (45, 46, 47, 48):
        prompt = Tokeniser(model, Template.of(template), limit)([text]).prompts[0]
        assert len(prompt.ids) <= limit
        assert "\ufffd" not in decode(model, prompt.ids)


@pytest.mark.parametrize("kind", [kind for kind, text in UNUSUAL.items() if text])
@pytest.mark.parametrize("name", MODELS)
def test_chunks_contain_the_whole_text_in_order(kind, name, backbone):
    model = backbone(name)
    text = UNUSUAL[kind] * 60 + TEXT
    tokenised = Tokeniser(model, Template.of("plain"), 50, "chunk")([text])
    assert all(len(prompt.ids) <= 50 for prompt in tokenised.prompts)
    assert "".join(decode(model, prompt.ids) for prompt in tokenised.prompts) == text


def test_every_chunk_has_the_whole_template(backbone):
    model = backbone("tiny-llama")
    prefix, suffix = TEMPLATES["prompteol"].split("{text}")
    tokenised = Tokeniser(model, Template.of("prompteol"), 60, "chunk")([LONG])
    pieces = [decode(model, prompt.ids) for prompt in tokenised.prompts]
    assert len(pieces) > 3
    assert all(piece.startswith(prefix) and piece.endswith(suffix) for piece in pieces)
    assert "".join(piece[len(prefix) : -len(suffix)] for piece in pieces) == LONG


def test_chunks_have_the_index_of_their_text(backbone):
    tokenised = Tokeniser(backbone("tiny-gpt2"), Template.of("plain"), 64, "chunk")(["one", LONG, "two", LONG, "three"])
    count = tokenised.text_indices.count(1)
    assert tokenised.text_indices == [0] + [1] * count + [2] + [3] * count + [4]
    assert tokenised.overlong == [1, 3]


@pytest.fixture
def encoded_lengths(monkeypatch):
    """Lengths of the texts that were given to the tokenizer."""
    lengths = []
    real = Tokeniser._encode

    def counting(self, texts):
        lengths.extend(map(len, texts))
        return real(self, texts)

    monkeypatch.setattr(Tokeniser, "_encode", counting)
    return lengths


def test_chunking_does_not_tokenise_a_text_repeatedly(backbone, encoded_lengths):
    text = "bread " * 4_000
    tokenised = Tokeniser(backbone("tiny-gpt2"), Template.of("plain"), 64, "chunk")([text])
    assert len(tokenised.prompts) > 50
    assert sum(encoded_lengths) < 10 * len(text)


@pytest.mark.parametrize("on_overflow", ["truncate", "error"])
@pytest.mark.parametrize("character", ["a", " ", "é", "👍", "\x00"])
def test_200_kilobytes_of_one_character_are_read_about_once(character, on_overflow, backbone, encoded_lengths):
    text = character * (200_000 // len(character.encode()))
    tokeniser = Tokeniser(backbone("tiny-gpt2"), Template.of("plain"), 256, on_overflow)
    if on_overflow == "error":
        with pytest.raises(InputError, match="Text 0"):
            tokeniser([text])
    else:
        assert 250 <= len(tokeniser([text]).prompts[0].ids) <= 256
    assert sum(encoded_lengths) < 2 * len(text)


def test_only_overlong_texts_are_reported(backbone):
    model = backbone("tiny-llama")
    texts = [TEXT, LONG, "", LONG + "!", "x"]
    assert Tokeniser(model, Template.of("plain"), 64)(texts).overlong == [1, 3]
    exact = len(plain_ids("tiny-llama", LONG[:200]))
    assert Tokeniser(model, Template.of("plain"), exact)([LONG[:200]]).overlong == []
    assert Tokeniser(model, Template.of("plain"), exact - 1)([LONG[:200]]).overlong == [0]


def test_overflow_error_names_the_text_and_its_length(backbone):
    count = len(plain_ids("tiny-gpt2", LONG))
    with pytest.raises(InputError, match=f"Text 2 takes {count} tokens, over the limit of 64"):
        Tokeniser(backbone("tiny-gpt2"), Template.of("plain"), 64, "error")(["a", "b", LONG])


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("template", ["prompteol", "echo", "instruct"])
def test_limit_too_small_for_the_template_is_refused(name, template, backbone):
    fixed = len(plain_ids(name, TEMPLATES[template].replace("{text}", "")))
    slots = TEMPLATES[template].count("{text}")
    with pytest.raises(InputError, match=f"the template alone takes {fixed} tokens"):
        Tokeniser(backbone(name), Template.of(template), fixed)
    tightest = Tokeniser(backbone(name), Template.of(template), fixed + slots)
    assert len(tightest([LONG]).prompts[0].ids) <= fixed + slots


def test_limit_of_one_token_suffices_without_bos(backbone):
    prompt = Tokeniser(backbone("tiny-gpt2"), Template.of("plain"), 1)([TEXT]).prompts[0]
    assert len(prompt.ids) == 1


def test_limit_above_the_context_length_is_refused(backbone):
    with pytest.raises(InputError, match="256"):
        Tokeniser(backbone("tiny-gpt2"), Template.of("plain"), 257)


def test_model_without_a_context_limit_takes_any_length(backbone):
    tokenised = Tokeniser(backbone("tiny-mamba"), Template.of("plain"), 100_000)([LONG])
    assert tokenised.overlong == []


def test_unknown_on_overflow_suggests_the_nearest(backbone):
    with pytest.raises(InputError, match="truncate"):
        Tokeniser(backbone("tiny-gpt2"), Template.of("plain"), 64, "truncat")


@pytest.mark.parametrize("template", TEMPLATE_NAMES)
def test_missing_bos_token_is_added_and_counted(template, backbone):
    model = backbone("tiny-gpt2")
    without_bos = SimpleNamespace(
        tokenizer=model.tokenizer,
        context_length=256,
        missing_bos_token_id=1,
        empty_text_token_id=1,
        vocabulary_size=model.vocabulary_size,
    )
    prompt = Tokeniser(without_bos, Template.of(template), 256)([TEXT]).prompts[0]
    without = Tokeniser(model, Template.of(template), 256)([TEXT]).prompts[0]
    assert prompt.ids == [1, *without.ids]
    assert prompt.start == (0 if template == "plain" else without.start + 1)
    for limit in range(48, 56):
        assert len(Tokeniser(without_bos, Template.of(template), limit)([LONG]).prompts[0].ids) <= limit


def test_random_scripts_are_chunked_without_loss(backbone):
    model = backbone("tiny-gpt2")
    rng = np.random.default_rng(0)
    alphabet = [*"ab ,.\n", "é", "ß", "ж", "ש", "م", "面", "👍", "\u200d", "\u0301", "\x00"]
    for limit in (8, 9, 13, 30):
        text = "".join(rng.choice(alphabet, 400))
        tokenised = Tokeniser(model, Template.of("plain"), limit, "chunk")([text])
        assert max(len(prompt.ids) for prompt in tokenised.prompts) <= limit
        assert "".join(decode(model, prompt.ids) for prompt in tokenised.prompts) == text


# --- tokens of spans ------------------------------------------------------------------------------------------------

TOKENIZERS = ("no BOS", "own BOS", "BOS to add", "EOS behind", "BOS to add, EOS behind")

SPAN_TEXTS = (
    "the cats sleep in the rain and sing of boats that sail over the sea",
    "a",
    "",
    "uncommonly  spaced \t words\nand lines ",
    " zażółć gęślą jaźń 面包在烤箱里 🐈‍⬛ 👩‍👩‍👧‍👦 e\u0301\u0301 שלום \U0001d54f\U0001d54f",
    "<eos> <bos>the <pad> of words",
    "\x00 \ufeff",
)

PIECES = ("the", "bread", "\u00e9", "\U0001f408", "\u9762\u5305", " ", "  ", "\n", "-", "x")


@pytest.fixture(scope="session", params=TOKENIZERS)
def model(request, backbone):
    """Tokenizers with and without special tokens, and a family that needs a BOS that its tokenizer does not add."""
    if request.param in ("no BOS", "own BOS"):
        return backbone("tiny-gpt2" if request.param == "no BOS" else "tiny-llama")
    tokenizer = tiny_tokenizer(pad=True, bos=False)
    if "EOS" in request.param:
        after = processors.TemplateProcessing(single="$A <eos>", special_tokens=[("<eos>", 0)])
        tokenizer.backend_tokenizer.post_processor = after
    variant = replace(backbone("tiny-gemma3_text" if "BOS" in request.param else "tiny-llama"), tokenizer=tokenizer)
    assert (variant.missing_bos_token_id is not None) == ("BOS" in request.param)
    return variant


def plain_prompts(model, texts, max_length=200):
    return Tokeniser(model, Template.of("plain"), max_length)(list(texts)).prompts


def words(text):
    return [match.span() for match in re.finditer(r"\S+", text)]


def random_texts(count=60, seed=0):
    """Random texts of pieces that take one token, part of one, or several."""
    rng = random.Random(seed)
    for _ in range(count):
        unusual = [chr(rng.choice([rng.randrange(0xD800), rng.randrange(0xE000, 0x20000)])) for _ in range(3)]
        yield "".join(rng.choice([*PIECES, *unusual]) for _ in range(rng.randrange(30)))


def random_spans(text):
    rng = random.Random(len(text))
    ends = [sorted(rng.choices(range(len(text) + 1), k=2)) for _ in range(8)]
    return [(first, last) for first, last in ends if first < last]


def by_characters(model, text, spans):
    """The tokens of each span of an uncut text, character by character."""
    encoding = model.tokenizer(text, return_offsets_mapping=True)
    token_characters = [set(range(*offsets)) for offsets in encoding["offset_mapping"]]
    shift = int(model.missing_bos_token_id is not None)
    return [
        [position + shift for position, characters in enumerate(token_characters) if characters & set(range(*span))]
        for span in spans
    ]


@pytest.mark.parametrize("spans", [words, random_spans], ids=["words", "random"])
def test_span_has_the_tokens_of_its_characters(spans, model):
    texts = [*SPAN_TEXTS, *random_texts()]
    positions = token_positions(texts, plain_prompts(model, texts), model, spans)
    assert positions == [by_characters(model, text, spans(text)) for text in texts]
    assert all(tokens for word_tokens in positions for tokens in word_tokens), "this tokenizer drops no character"


def test_tokens_of_a_word_spell_it(model):
    """They may begin with the space before the word, and with nothing else."""
    texts = [*SPAN_TEXTS[:5], *random_texts()]
    prompts = plain_prompts(model, texts)
    for text, prompt, word_tokens in zip(texts, prompts, token_positions(texts, prompts, model, words), strict=True):
        spelled = [model.tokenizer.decode([prompt.ids[position] for position in tokens]) for tokens in word_tokens]
        assert [word.lstrip() for word in spelled] == text.split()


def test_spans_keep_their_order_within_each_text(model):
    def spans_of(text):
        return [(4, 8), (0, 3), (0, 8), (5, 6)] if text.startswith("the") else []

    texts = [SPAN_TEXTS[0], "a b c d e f", SPAN_TEXTS[0]]
    positions = token_positions(texts, plain_prompts(model, texts), model, spans_of)
    assert positions == [by_characters(model, texts[0], spans_of(texts[0])), [], positions[0]]
    assert set(positions[0][2]) == {*positions[0][0], *positions[0][1]} and set(positions[0][3]) < set(positions[0][0])


@pytest.mark.parametrize("max_length", [3, 4, 5, 7, 10, 16, 25])
def test_truncated_text_has_only_complete_spans(max_length, model):
    """The kept text is what the prompt spells; a span within it has the same tokens as in the whole text."""
    texts = [*SPAN_TEXTS[:5], *random_texts()]
    prompts = plain_prompts(model, texts, max_length)
    positions = token_positions(texts, prompts, model, words)
    n_cut = 0
    for text, prompt, word_tokens in zip(texts, prompts, positions, strict=True):
        kept = model.tokenizer.decode(prompt.ids, skip_special_tokens=True)
        assert text.startswith(kept)
        whole = [span for span in words(text) if span[1] <= len(kept)]
        assert word_tokens == by_characters(model, text, whole)
        assert all(position < len(prompt.ids) for tokens in word_tokens for position in tokens)
        n_cut += len(whole) < len(words(text))
    assert n_cut > 20, "many texts must be cut"


def test_spans_beyond_the_cut_or_the_text_are_dropped(model):
    text = SPAN_TEXTS[0]
    inside, across, after, outside = (4, 8), (4, 60), (50, 60), (60, len(text) + 1)
    (prompt,) = plain_prompts(model, [text], 12)
    kept = len(model.tokenizer.decode(prompt.ids, skip_special_tokens=True))
    assert 8 < kept < 50
    (positions,) = token_positions([text], [prompt], model, lambda _: [inside, across, after, outside])
    assert positions == by_characters(model, text, [inside])


def test_empty_texts_and_no_texts_have_no_spans(model):
    assert token_positions(["", " "], plain_prompts(model, ["", " "]), model, words) == [[], []]
    assert token_positions([], [], model, words) == []


def test_unicode_characters_are_mapped_to_their_tokens(backbone):
    """Separated by spaces, so that each character is a word."""
    model = backbone("tiny-llama")
    characters = [chr(code) for code in range(0, sys.maxunicode + 1, 997) if not 0xD800 <= code < 0xE000]
    texts = [" ".join(characters[begin : begin + 30]) for begin in range(0, len(characters), 30)]
    prompts = plain_prompts(model, texts)
    for text, prompt, word_tokens in zip(texts, prompts, token_positions(texts, prompts, model, words), strict=True):
        spelled = [
            model.tokenizer.decode([prompt.ids[position] for position in tokens]).strip() for tokens in word_tokens
        ]
        assert spelled == text.split()


def test_word_that_the_tokenizer_drops_has_no_tokens(backbone):
    """Its neighbours are found nevertheless, and there is one entry per span."""
    tokenizer = tiny_tokenizer(pad=True, bos=True)
    tokenizer.backend_tokenizer.normalizer = normalizers.Replace("\u200b", "")
    model = replace(backbone("tiny-llama"), tokenizer=tokenizer)
    texts = ["the \u200b cat", "\u200b"]
    first, second = token_positions(texts, plain_prompts(model, texts), model, words)
    assert [bool(tokens) for tokens in first] == [True, False, True] and second == [[]]
    ids = plain_prompts(model, texts[:1])[0].ids
    assert tokenizer.decode([ids[position] for position in first[2]]).strip() == "cat"


def test_padding_and_truncation_left_on_change_nothing(backbone):
    model = backbone("tiny-llama")
    prompts = plain_prompts(model, SPAN_TEXTS)
    expected = token_positions(SPAN_TEXTS, prompts, model, words)
    model.tokenizer(list(SPAN_TEXTS), padding="max_length", truncation=True, max_length=5)
    assert token_positions(SPAN_TEXTS, prompts, model, words) == expected


@pytest.mark.parametrize("on_overflow", ["truncate", "chunk"])
@pytest.mark.parametrize("template", ["plain", "echo", "prompteol"])
def test_long_texts_are_cut_before_they_are_tokenised(on_overflow, template, monkeypatch):
    backbone = Backbone.load("tiny-llama", device="cpu")
    tokenise = Tokeniser(backbone, Template.of(template), 48, on_overflow)
    texts = ["word " * 900, "x" * 3500, " " * 3500 + "end", "Ein Satz, noch einer. " * 150, "kurz"]
    assert min(map(len, texts[:-1])) > 2 * 48 * tokens.CHARACTERS_PER_TOKEN
    found = tokenise(texts)
    monkeypatch.setattr(tokens, "CHARACTERS_PER_TOKEN", 10**6)
    expected = tokenise(texts)
    assert found.prompts == expected.prompts
    assert (found.text_indices, found.overlong) == (expected.text_indices, expected.overlong)


def test_tokenising_takes_no_more_for_a_longer_text(monkeypatch):
    backbone = Backbone.load("tiny-llama", device="cpu")
    lengths = []
    encode = Tokeniser._encode
    monkeypatch.setattr(
        Tokeniser, "_encode", lambda self, texts: lengths.extend(map(len, texts)) or encode(self, texts)
    )
    Tokeniser(backbone, Template.of("plain"), 48)(["word " * 1_000_000])
    assert max(lengths) <= 48 * 32
