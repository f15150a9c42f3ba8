"""T10: the pad token is also a real token, and the last token of a prompt is not there to be cut off."""

from dataclasses import replace

import numpy as np
import pytest
from tokenizers import processors

from decoder2vec.backbone.tiny import tiny_tokenizer
from decoder2vec.config import Reading
from decoder2vec.text.batches import collate

LONG = "A long, slow rise in the fridge gives sourdough its tangy flavour."


def appends(model, token):
    """The same backbone with a tokenizer that ends every prompt with `token`, whatever its eos_token is."""
    tokenizer = tiny_tokenizer(pad=True, bos=False)
    number = tokenizer.convert_tokens_to_ids(token)
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single=f"$A {token}", special_tokens=[(token, number)]
    )
    return replace(model, tokenizer=tokenizer), number


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("text", ["Short<eos>", "Short<eos><eos>", "<eos>", "<eos> Short", "a<eos>b"])
def test_text_with_the_pad_token_in_it_keeps_that_token(text, side, backbone, prompts_of, read, alone, by_loop, gap):
    """The mask comes from lengths; one made by `ids != pad` drops real tokens."""
    model = backbone("tiny-gpt2")
    assert model.pad_token_id == model.tokenizer.eos_token_id
    prompts = prompts_of(model, [LONG, text])
    wanted = [Reading(-1, "lasttoken", True), Reading(-1, "mean", True)]
    states = alone(model, model.tokenizer.encode(text))[-1]
    expected = np.stack([by_loop("lasttoken", states), by_loop("mean", states)])
    assert gap(read(model, prompts, wanted, side)[1], expected) < 1e-5

    assert collate(prompts, model.pad_token_id, side=side).mask[1].sum() == len(states)
    kept = states[np.array(model.tokenizer.encode(text)) != model.pad_token_id]
    with np.errstate(invalid="ignore"):
        assert gap(kept.sum(axis=0) / np.float64(len(kept)), expected[1]) > 1e-2
    if len(kept) and text.endswith("<eos>"):
        assert gap(kept[-1], expected[0]) > 1e-2


@pytest.mark.parametrize("token", ["<eos>", "<pad>"])
@pytest.mark.parametrize("template", ["plain", "prompteol", "echo"])
@pytest.mark.parametrize("on_overflow", ["truncate", "chunk"])
def test_appended_token_and_suffix_are_never_cut_off(on_overflow, template, token, backbone, prompts_of):
    """The token the tokenizer itself appends ends every prompt; slicing ids at the limit loses it."""
    model, number = appends(backbone("tiny-gpt2"), token)
    suffix = {"prompteol": '" means in one word: "'}.get(template, "")
    (whole,) = prompts_of(model, [LONG * 3], template)
    limit = len(prompts_of(model, [""], template)[0].ids) + 12
    assert len(whole.ids) > limit

    cut = prompts_of(model, [LONG * 3], template, max_length=limit, on_overflow=on_overflow)
    assert len(cut) > 1 if on_overflow == "chunk" else len(cut) == 1
    for prompt in cut:
        assert limit - 3 <= len(prompt.ids) <= limit or prompt is cut[-1]
        assert prompt.ids[-1] == number and prompt.end == len(prompt.ids)
        assert number not in prompt.ids[:-1]
        assert model.tokenizer.decode(prompt.ids[:-1]).endswith(suffix)

    faulty = whole.ids[:limit]
    assert faulty[-1] != number
    assert not suffix or not model.tokenizer.decode(faulty).endswith(suffix)


def test_cut_text_has_the_vector_of_the_shorter_text(backbone, prompts_of, alone, read, gap):
    """The appended token sees a whole prompt, tokenised as if the text had been that short."""
    model, number = appends(backbone("tiny-gpt2"), "<eos>")
    (prompt,) = prompts_of(model, [LONG], "prompteol", max_length=40)
    text = model.tokenizer.decode(prompt.ids).split('"')[1]
    assert text and LONG.startswith(text)
    ids = model.tokenizer.encode(f'This sentence : "{text}" means in one word: "')
    assert prompt.ids == ids and ids[-1] == number
    found = read(model, [prompt], [Reading(-1, "lasttoken", True)])[0, 0]
    assert gap(found, alone(model, ids)[-1, -1]) < 1e-5
