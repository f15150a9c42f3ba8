"""Texts to token ids and pooled spans, checked by decoding and against the tokenizer called the ordinary way."""

from __future__ import annotations

import time
from types import SimpleNamespace

import numpy as np
import pytest
from transformers import AutoTokenizer

from decoder2vec.backbone.tiny import tiny_folder
from decoder2vec.errors import InputError
from decoder2vec.text.template import TEMPLATES, Template
from decoder2vec.text.tokens import Tokeniser

MODELS = ["tiny-gpt2", "tiny-llama"]
"""Without and with a BOS token."""

TEMPLATES_TRIED = ["plain", "prompteol", "echo", "instruct"]
TEXT = "Steam in the first ten minutes helps the crust."
LONG = " ".join(f"{TEXT[:-1]} number {n}," for n in range(40))

STRANGE = {
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


def ordinary(name, prompt):
    return AutoTokenizer.from_pretrained(tiny_folder(name))(prompt)["input_ids"]


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("template", TEMPLATES_TRIED)
def test_ids_are_those_of_the_whole_prompt_tokenised_the_ordinary_way(name, template, backbone):
    found = Tokeniser(backbone(name), Template.of(template), 256)([TEXT]).prompts[0]
    assert found.ids == ordinary(name, TEMPLATES[template].replace("{text}", TEXT))


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("template", TEMPLATES_TRIED)
@pytest.mark.parametrize("text", [TEXT, "A", "42", "naïve café", "שלום עולם"])
def test_the_pooled_tokens_are_the_last_copy_of_the_text_and_what_follows(name, template, text, backbone):
    model = backbone(name)
    prompt = Tokeniser(model, Template.of(template), 256)([text]).prompts[0]
    suffix = TEMPLATES[template].rpartition("{text}")[2]
    pooled = decode(model, prompt.ids[prompt.start : prompt.end])
    assert prompt.end == len(prompt.ids)
    assert pooled in (text + suffix, " " + text + suffix)  # a token may hold the blank before the text
    if template != "plain":
        before = decode(model, prompt.ids[: prompt.start])
        assert before + pooled == TEMPLATES[template].replace("{text}", text)


@pytest.mark.parametrize(
    ("name", "first"), [("tiny-gpt2", "Steam in"), ("tiny-llama", "<bos>Steam in"), ("tiny-gemma2", "<bos>Steam in")]
)
def test_a_plain_text_is_pooled_with_the_bos_token_where_there_is_one(name, first, backbone):
    model = backbone(name)
    prompt = Tokeniser(model, Template.of("plain"), 256)([TEXT]).prompts[0]
    assert (prompt.start, prompt.end) == (0, len(prompt.ids))
    assert model.tokenizer.decode(prompt.ids).startswith(first)


def test_a_token_that_straddles_the_border_belongs_to_the_text(backbone):
    model = backbone("tiny-gpt2")
    prompt = Tokeniser(model, Template.of("bre{text}"), 256)(["ad and water"]).prompts[0]
    whole = model.tokenizer("bread and water", return_offsets_mapping=True)
    ends = [end for _, end in whole["offset_mapping"]]
    assert prompt.ids == whole["input_ids"]
    assert prompt.start == next(number for number, end in enumerate(ends) if end > 3)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("template", TEMPLATES_TRIED)
@pytest.mark.parametrize("kind", STRANGE)
def test_strange_texts_have_a_span_of_their_own(name, template, kind, backbone):
    model = backbone(name)
    text = STRANGE[kind]
    prompt = Tokeniser(model, Template.of(template), 256)([text]).prompts[0]
    assert 0 <= prompt.start < prompt.end == len(prompt.ids)
    expected = text + TEMPLATES[template].rpartition("{text}")[2]
    pooled = decode(model, prompt.ids[prompt.start :])
    assert pooled.endswith(expected)
    if text:
        assert len(pooled) <= len(expected) + 3  # at most one token that began before the text


def test_an_empty_text_without_any_token_is_read_as_bos(backbone):
    model = backbone("tiny-gpt2")
    prompt = Tokeniser(model, Template.of("plain"), 256)([""]).prompts[0]
    assert (prompt.ids, prompt.start, prompt.end) == ([model.tokenizer.bos_token_id], 0, 1)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("template", TEMPLATES_TRIED)
@pytest.mark.parametrize("limit", [40, 57, 64])
def test_a_cut_prompt_is_the_prompt_of_a_shorter_text_and_nearly_fills_the_limit(name, template, limit, backbone):
    model = backbone(name)
    tokenizer = AutoTokenizer.from_pretrained(tiny_folder(name))
    found = Tokeniser(model, Template.of(template), limit)([LONG])
    prompt = found.prompts[0]
    assert found.overlong == [0]
    assert len(prompt.ids) <= limit
    heads = range(300)
    candidates = tokenizer([TEMPLATES[template].replace("{text}", LONG[:head]) for head in heads])["input_ids"]
    same = [head for head in heads if candidates[head] == prompt.ids]
    assert len(same) == 1
    longest = max(head for head in heads if len(candidates[head]) <= limit)
    assert longest - same[0] <= 12
    short = Tokeniser(model, Template.of(template), 256)([LONG[: same[0]]])
    assert short.overlong == []
    assert short.prompts == [prompt]


@pytest.mark.parametrize("template", ["prompteol", "prompteol_tight", "{text} , in short:"])
def test_truncation_never_cuts_the_suffix(template, backbone):
    model = backbone("tiny-llama")
    chosen = Template.of(template)
    suffix = chosen.string.rpartition("{text}")[2]
    for limit in range(28, 60):
        prompt = Tokeniser(model, chosen, limit)([LONG]).prompts[0]
        assert decode(model, prompt.ids).endswith(suffix)
        assert len(prompt.ids) <= limit


@pytest.mark.parametrize("kind", [kind for kind, text in STRANGE.items() if text])
@pytest.mark.parametrize("template", TEMPLATES_TRIED)
def test_strange_texts_are_cut_between_characters(kind, template, backbone):
    model = backbone("tiny-gpt2")
    text = STRANGE[kind] * 60
    for limit in (45, 46, 47, 48):
        prompt = Tokeniser(model, Template.of(template), limit)([text]).prompts[0]
        assert len(prompt.ids) <= limit
        assert "\ufffd" not in decode(model, prompt.ids)


@pytest.mark.parametrize("kind", [kind for kind, text in STRANGE.items() if text])
@pytest.mark.parametrize("name", MODELS)
def test_chunks_hold_the_whole_text_in_order(kind, name, backbone):
    model = backbone(name)
    text = STRANGE[kind] * 60 + TEXT
    found = Tokeniser(model, Template.of("plain"), 50, "chunk")([text])
    assert all(len(prompt.ids) <= 50 for prompt in found.prompts)
    assert "".join(decode(model, prompt.ids) for prompt in found.prompts) == text


def test_every_chunk_stands_in_the_whole_template(backbone):
    model = backbone("tiny-llama")
    head, tail = TEMPLATES["prompteol"].split("{text}")
    found = Tokeniser(model, Template.of("prompteol"), 60, "chunk")([LONG])
    pieces = [decode(model, prompt.ids) for prompt in found.prompts]
    assert len(pieces) > 3
    assert all(piece.startswith(head) and piece.endswith(tail) for piece in pieces)
    assert "".join(piece[len(head) : -len(tail)] for piece in pieces) == LONG


def test_chunks_know_their_text(backbone):
    found = Tokeniser(backbone("tiny-gpt2"), Template.of("plain"), 64, "chunk")(["one", LONG, "two", LONG, "three"])
    count = found.text_indices.count(1)
    assert found.text_indices == [0] + [1] * count + [2] + [3] * count + [4]
    assert found.overlong == [1, 3]


def test_chunking_a_long_text_does_not_tokenise_it_over_and_over(backbone, monkeypatch):
    spelled = []
    real = Tokeniser._encode

    def counting(self, texts):
        spelled.extend(map(len, texts))
        return real(self, texts)

    monkeypatch.setattr(Tokeniser, "_encode", counting)
    text = "bread " * 4_000
    found = Tokeniser(backbone("tiny-gpt2"), Template.of("plain"), 64, "chunk")([text])
    assert len(found.prompts) > 50
    assert sum(spelled) < 10 * len(text)


@pytest.mark.parametrize("on_overflow", ["truncate", "error"])
@pytest.mark.parametrize("character", ["a", " ", "é", "👍", "\x00"])
def test_200_kilobytes_of_one_character_take_seconds_at_most(character, on_overflow, backbone):
    text = character * (200_000 // len(character.encode()))
    tokeniser = Tokeniser(backbone("tiny-gpt2"), Template.of("plain"), 256, on_overflow)
    started = time.perf_counter()
    if on_overflow == "error":
        with pytest.raises(InputError, match="Text 0"):
            tokeniser([text])
    else:
        assert 250 <= len(tokeniser([text]).prompts[0].ids) <= 256
    assert time.perf_counter() - started < 5


def test_over_long_texts_are_counted_and_only_those(backbone):
    model = backbone("tiny-llama")
    texts = [TEXT, LONG, "", LONG + "!", "x"]
    assert Tokeniser(model, Template.of("plain"), 64)(texts).overlong == [1, 3]
    exact = len(ordinary("tiny-llama", LONG[:200]))
    assert Tokeniser(model, Template.of("plain"), exact)([LONG[:200]]).overlong == []
    assert Tokeniser(model, Template.of("plain"), exact - 1)([LONG[:200]]).overlong == [0]


def test_error_says_which_text_is_too_long_and_by_how_much(backbone):
    count = len(ordinary("tiny-gpt2", LONG))
    with pytest.raises(InputError, match=f"Text 2 takes {count} tokens, over the limit of 64"):
        Tokeniser(backbone("tiny-gpt2"), Template.of("plain"), 64, "error")(["a", "b", LONG])


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("template", ["prompteol", "echo", "instruct"])
def test_a_limit_too_small_for_the_template_is_refused(name, template, backbone):
    fixed = len(ordinary(name, TEMPLATES[template].replace("{text}", "")))
    slots = TEMPLATES[template].count("{text}")
    with pytest.raises(InputError, match=f"the template alone takes {fixed} tokens"):
        Tokeniser(backbone(name), Template.of(template), fixed)
    tightest = Tokeniser(backbone(name), Template.of(template), fixed + slots)
    assert len(tightest([LONG]).prompts[0].ids) <= fixed + slots


def test_one_token_is_room_enough_for_a_plain_text_without_bos(backbone):
    prompt = Tokeniser(backbone("tiny-gpt2"), Template.of("plain"), 1)([TEXT]).prompts[0]
    assert len(prompt.ids) == 1


def test_a_limit_over_the_models_context_is_refused(backbone):
    with pytest.raises(InputError, match="256"):
        Tokeniser(backbone("tiny-gpt2"), Template.of("plain"), 257)


def test_a_model_without_a_context_limit_takes_any_length(backbone):
    found = Tokeniser(backbone("tiny-mamba"), Template.of("plain"), 100_000)([LONG])
    assert found.overlong == []


def test_an_unknown_way_to_handle_overflow_suggests_the_nearest(backbone):
    with pytest.raises(InputError, match="truncate"):
        Tokeniser(backbone("tiny-gpt2"), Template.of("plain"), 64, "truncat")


@pytest.mark.parametrize("template", TEMPLATES_TRIED)
def test_a_bos_token_that_the_tokenizer_forgets_is_added_and_counted(template, backbone):
    model = backbone("tiny-gpt2")
    forgetful = SimpleNamespace(
        tokenizer=model.tokenizer, context_length=256, missing_bos_token_id=1, empty_text_token_id=1
    )
    prompt = Tokeniser(forgetful, Template.of(template), 256)([TEXT]).prompts[0]
    without = Tokeniser(model, Template.of(template), 256)([TEXT]).prompts[0]
    assert prompt.ids == [1, *without.ids]
    assert prompt.start == (0 if template == "plain" else without.start + 1)
    for limit in range(48, 56):
        assert len(Tokeniser(forgetful, Template.of(template), limit)([LONG]).prompts[0].ids) <= limit


def test_random_mixes_of_scripts_are_chunked_without_loss(backbone):
    model = backbone("tiny-gpt2")
    rng = np.random.default_rng(0)
    alphabet = [*"ab ,.\n", "é", "ß", "ж", "ש", "م", "面", "👍", "\u200d", "\u0301", "\x00"]
    for limit in (8, 9, 13, 30):
        text = "".join(rng.choice(alphabet, 400))
        found = Tokeniser(model, Template.of("plain"), limit, "chunk")([text])
        assert max(len(prompt.ids) for prompt in found.prompts) <= limit
        assert "".join(decode(model, prompt.ids) for prompt in found.prompts) == text
