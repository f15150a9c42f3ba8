"""T10: the pad token may be a real token, and truncation must not remove the last token of a prompt."""

from dataclasses import replace

import numpy as np
import pytest
from tokenizers import processors

from decoder2vec.backbone.tiny import tiny_tokenizer
from decoder2vec.config import Reading
from decoder2vec.text.batches import collate

LONG = "A long, slow rise in the fridge gives sourdough its tangy flavour."


def with_appended_token(model, token):
    """The backbone with a tokenizer that appends `token` to every prompt; and the id of the token."""
    tokenizer = tiny_tokenizer(pad=True, bos=False)
    token_id = tokenizer.convert_tokens_to_ids(token)
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single=f"$A {token}", special_tokens=[(token, token_id)]
    )
    return replace(model, tokenizer=tokenizer), token_id


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("text", ["Short<eos>", "Short<eos><eos>", "<eos>", "<eos> Short", "a<eos>b"])
def test_pad_token_inside_a_text_is_kept(
    text, side, backbone, tokenise, encode_batch, single_states, pool_by_loop, gap
):
    """The mask is computed from lengths; `ids != pad`, the faulty variant, drops real tokens."""
    model = backbone("tiny-gpt2")
    assert model.pad_token_id == model.tokenizer.eos_token_id
    prompts = tokenise(model, [LONG, text])
    readings = [Reading(-1, "lasttoken", True), Reading(-1, "mean", True)]
    states = single_states(model, model.tokenizer.encode(text))[-1]
    expected = np.stack([pool_by_loop("lasttoken", states), pool_by_loop("mean", states)])
    assert gap(encode_batch(model, prompts, readings, side)[1], expected) < 1e-5

    assert collate(prompts, model.pad_token_id, side=side).mask[1].sum() == len(states)
    without_pad = states[np.array(model.tokenizer.encode(text)) != model.pad_token_id]
    with np.errstate(invalid="ignore"):
        assert gap(without_pad.sum(axis=0) / np.float64(len(without_pad)), expected[1]) > 1e-2
    if len(without_pad) and text.endswith("<eos>"):
        assert gap(without_pad[-1], expected[0]) > 1e-2


@pytest.mark.parametrize("token", ["<eos>", "<pad>"])
@pytest.mark.parametrize("template", ["plain", "prompteol", "echo"])
@pytest.mark.parametrize("on_overflow", ["truncate", "chunk"])
def test_truncation_keeps_suffix_and_appended_token(on_overflow, template, token, backbone, tokenise):
    """Every prompt ends with the token that the tokenizer appends; slicing ids, the faulty variant, loses it."""
    model, token_id = with_appended_token(backbone("tiny-gpt2"), token)
    suffix = {"prompteol": '" means in one word: "'}.get(template, "")
    (untruncated,) = tokenise(model, [LONG * 3], template)
    limit = len(tokenise(model, [""], template)[0].ids) + 12
    assert len(untruncated.ids) > limit

    truncated = tokenise(model, [LONG * 3], template, max_length=limit, on_overflow=on_overflow)
    assert len(truncated) > 1 if on_overflow == "chunk" else len(truncated) == 1
    for prompt in truncated:
        assert limit - 3 <= len(prompt.ids) <= limit or prompt is truncated[-1]
        assert prompt.ids[-1] == token_id and prompt.end == len(prompt.ids)
        assert token_id not in prompt.ids[:-1]
        assert model.tokenizer.decode(prompt.ids[:-1]).endswith(suffix)

    faulty = untruncated.ids[:limit]
    assert faulty[-1] != token_id
    assert not suffix or not model.tokenizer.decode(faulty).endswith(suffix)


def test_truncated_text_has_the_vector_of_the_shorter_text(backbone, tokenise, single_states, encode_batch, gap):
    """The prompt is tokenised as if the text had been that short."""
    model, token_id = with_appended_token(backbone("tiny-gpt2"), "<eos>")
    (prompt,) = tokenise(model, [LONG], "prompteol", max_length=40)
    text = model.tokenizer.decode(prompt.ids).split('"')[1]
    assert text and LONG.startswith(text)
    ids = model.tokenizer.encode(f'This sentence : "{text}" means in one word: "')
    assert prompt.ids == ids and ids[-1] == token_id
    vector = encode_batch(model, [prompt], [Reading(-1, "lasttoken", True)])[0, 0]
    assert gap(vector, single_states(model, ids)[-1, -1]) < 1e-5
