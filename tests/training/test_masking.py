"""Which tokens are hidden, how often, and behind what."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from decoder2vec.recipes.objective import Masking

from decoder2vec.backbone.tiny import tiny_tokenizer
from decoder2vec.errors import InputError, UnknownNameError
from decoder2vec.training.objectives.masking import RandomMasking, mask_token_id

EOS, BOS, PAD = 0, 1, 2
TEXTS = [[3 + (7 * row + 11 * place) % 500 for place in range(51)] for row in range(200)]
"""200 of 51 tokens, none of them special."""


@pytest.fixture
def hide(backbone):
    """hide(texts, seed, **settings) -> each text with some tokens hidden."""

    def make(texts, seed=0, **settings):
        masking = RandomMasking(Masking(**settings), backbone("tiny-qwen2"))
        return masking(texts, torch.Generator().manual_seed(seed))

    return make


def within(found, share, total):
    """Four standard deviations of a binomial."""
    return abs(found - share * total) < 4 * math.sqrt(share * (1 - share) * total)


@pytest.mark.parametrize("rate", [0.15, 0.2, 0.8])
def test_the_share_of_tokens_asked_for_is_chosen(rate, hide):
    chosen = sum(len(one.places) for one in hide(TEXTS, rate=rate))
    assert within(chosen, rate, 200 * 50), chosen


@pytest.mark.parametrize("style", ["mask", "bert"])
def test_every_token_can_be_chosen_but_the_first_which_has_none_before_it(style, hide):
    """Each with the same chance."""
    counts = torch.zeros(51)
    for one in hide(TEXTS, rate=0.5, style=style):
        assert one.places == sorted(set(one.places))
        counts[one.places] += 1
    assert counts[0] == 0
    assert all(within(count, 0.5, 200) for count in counts[1:].tolist())


def test_special_tokens_are_never_chosen(hide):
    texts = [[BOS, *text[:20], EOS, *text[20:], EOS, PAD] for text in TEXTS]
    found = hide(texts, rate=0.9)
    assert not {text[place] for text, one in zip(texts, found, strict=True) for place in one.places} & {EOS, BOS, PAD}
    assert any(1 in one.places for one in found), "the first after BOS is told from it"


@pytest.mark.parametrize("rate", [1e-6, 0.2])
@pytest.mark.parametrize("length", [2, 3, 51])
def test_every_text_has_one_hidden_token_or_more(rate, length, hide):
    found = hide([text[:length] for text in TEXTS], rate=rate)
    assert all(one.places for one in found)
    if rate < 0.1:
        assert all(len(one.places) == 1 for one in found)
        assert len({one.places[0] for one in found}) > 0.8 * (length - 1), "and not always the same"


@pytest.mark.parametrize("ids", [[], [7], [BOS], [BOS, EOS], [7, EOS, PAD]])
def test_a_text_of_which_nothing_can_be_told_stays_as_it_is(ids, hide, backbone):
    (found,) = hide([ids])
    assert (found.ids, found.places) == (ids, [])
    assert RandomMasking(Masking(), backbone("tiny-qwen2")).can_hide(ids) == []


@pytest.mark.parametrize("style", ["mask", "bert"])
def test_what_was_not_chosen_is_not_changed_and_the_text_that_was_given_neither(style, hide):
    given = [list(text) for text in TEXTS]
    for text, one in zip(given, hide(given, rate=0.3, style=style), strict=True):
        changed = [place for place, (a, b) in enumerate(zip(text, one.ids, strict=True)) if a != b]
        assert set(changed) <= set(one.places)
    assert given == TEXTS


def fates(found, mask):
    """How many chosen tokens are hidden, are others, and are what they were."""
    kinds = [
        "hidden" if one.ids[place] == mask else "stays" if one.ids[place] == text[place] else "other"
        for text, one in zip(TEXTS, found, strict=True)
        for place in one.places
        if text[place] != mask
    ]
    return [kinds.count(kind) for kind in ("hidden", "other", "stays")], len(kinds)


def test_all_chosen_tokens_are_hidden(hide, backbone):
    (hidden, other, stays), total = fates(hide(TEXTS), mask_token_id("", backbone("tiny-qwen2").tokenizer))
    assert (hidden, other, stays) == (total, 0, 0) and total > 1000


def test_as_bert_eight_in_ten_are_hidden_one_is_another_token_and_one_stays(hide, backbone):
    found = hide(TEXTS, style="bert", rate=0.5)
    counts, total = fates(found, mask_token_id("", backbone("tiny-qwen2").tokenizer))
    assert all(within(count, share, total) for count, share in zip(counts, (0.8, 0.1, 0.1), strict=True)), counts
    others = {one.ids[place] for one in found for place in one.places}
    assert len(others) > 300, "which may be any token"


def test_the_same_seed_hides_the_same_tokens_and_another_seed_others(hide):
    settings = {"style": "bert", "rate": 0.3}
    assert hide(TEXTS, 4, **settings) == hide(TEXTS, 4, **settings) != hide(TEXTS, 5, **settings)


def test_without_a_generator_torchs_own_numbers_are_drawn_and_with_one_they_are_left_alone(backbone):
    masking = RandomMasking(Masking(style="bert"), backbone("tiny-qwen2"))
    torch.manual_seed(3)
    first, after = masking(TEXTS), torch.get_rng_state()
    again = masking(TEXTS)
    torch.manual_seed(3)
    assert masking(TEXTS) == first != again
    masking(TEXTS, torch.Generator().manual_seed(9))
    assert torch.equal(torch.get_rng_state(), after)


# --- settings -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rate", [0.0, 1.0, -0.1, 1.5, math.nan])
def test_a_share_that_is_none_or_all_is_refused(rate):
    with pytest.raises(InputError, match="The share of masked tokens lies between 0 and 1, not at"):
        Masking(rate=rate)


def test_a_style_that_does_not_exist_is_refused():
    with pytest.raises(UnknownNameError, match="Unknown style of masking 'roberta'"):
        Masking(style="roberta")


@pytest.fixture
def tokenizer():
    return tiny_tokenizer(pad=True, bos=False)


def test_an_underscore_stands_for_a_hidden_token_where_the_tokenizer_has_no_mask(tokenizer):
    assert tokenizer.mask_token_id is None
    assert tokenizer.decode([mask_token_id("", tokenizer)]) == "_"


def test_the_tokenizers_own_mask_comes_first_unless_another_is_asked_for(tokenizer):
    tokenizer.mask_token_id = "<pad>"
    assert mask_token_id("", tokenizer) == PAD
    assert tokenizer.decode([mask_token_id("#", tokenizer)]) == "#"
    assert mask_token_id("<eos>", tokenizer) == EOS


@pytest.mark.parametrize("asked", ["two words", "[MASK]", "🐈"])
def test_a_mask_of_several_tokens_is_refused(asked, tokenizer):
    with pytest.raises(InputError, match=r"is \d+ tokens here; name a mask token that is a single one"):
        mask_token_id(asked, tokenizer)


def test_tokens_that_the_model_does_not_have_are_neither_mask_nor_put_in(tokenizer, backbone):
    """Some tokenizers have more tokens than their model has embeddings."""
    tokenizer.add_tokens([f"<new {number}>" for number in range(500)])
    model = replace(backbone("tiny-qwen2"), tokenizer=tokenizer)
    found = RandomMasking(Masking(rate=0.5, style="bert"), model)(TEXTS, torch.Generator().manual_seed(0))
    assert max(token for one in found for token in one.ids) < 512
    tokenizer.mask_token_id = "<new 3>"
    with pytest.raises(InputError, match="does not know the mask token '<new 3>' of its tokenizer; name another"):
        RandomMasking(Masking(), model)
    assert RandomMasking(Masking(token="_"), model).mask_id < 512
