"""Soft prompts against a plain loop that builds each row by itself."""

from __future__ import annotations

import pytest
import torch

from decoder2vec.activations.capture import Capture
from decoder2vec.adapters.soft_prompt import SoftPrompt
from decoder2vec.config import Reading
from decoder2vec.errors import InputError
from decoder2vec.text.batches import collate

FAMILIES = ("tiny-llama", "tiny-gpt2", "tiny-gemma3_text", "tiny-opt", "tiny-bloom", "tiny-mamba")
CASES = [("append", "prompt"), ("prepend", "text"), ("prepend", "prompt"), ("append", "text")]


@torch.no_grad()
def row_by_row(model, prompt, ids, pooling, start):
    """One text, its embeddings and the prompt side by side, through transformers alone."""
    tokens = model.model.get_input_embeddings()(torch.tensor(ids))
    vectors = prompt.vectors.detach()
    row = torch.cat([tokens, vectors] if prompt.place == "append" else [vectors, tokens])
    states = model.model(inputs_embeds=row[None], use_cache=False).last_hidden_state[0]
    here = len(ids) if prompt.place == "append" else 0
    if prompt.output == "prompt":
        states = states[here : here + len(vectors)]
    else:
        states = states[len(vectors) + start :] if prompt.place == "prepend" else states[start : len(ids)]
    return states[-1] if pooling == "lasttoken" else states.mean(dim=0)


@pytest.mark.parametrize(("place", "output"), CASES)
@pytest.mark.parametrize("family", FAMILIES)
def test_a_padded_batch_equals_rows_built_one_by_one(family, place, output, backbone, prompts_of):
    model = backbone(family)
    torch.manual_seed(0)
    prompt = SoftPrompt.initialise(model, 3, place=place, output=output)
    readings = [Reading(-1, pooling, True) for pooling in ("lasttoken", "mean")]
    capture = Capture(model.with_adapter(prompt), readings)
    prompts = prompts_of(model)
    for side in ("right", "left"):
        with torch.no_grad():
            found = capture(collate(prompts, model.pad_token_id, side=side))
        for row, text in enumerate(prompts):
            for column, reading in enumerate(readings):
                expected = row_by_row(model, prompt, text.ids, reading.pooling, text.start)
                torch.testing.assert_close(found[row, column], expected, rtol=1e-4, atol=1e-5)


def test_a_bidirectional_model_sees_the_prompt_from_everywhere(own_cache, prompts_of):
    from decoder2vec.backbone.backbone import Backbone

    model = Backbone.load("tiny-llama", attention="bidirectional", device="cpu", dtype="float32")
    torch.manual_seed(0)
    for place, output in CASES:
        prompt = SoftPrompt.initialise(model, 3, place=place, output=output)
        capture = Capture(model.with_adapter(prompt), [Reading(-1, "mean", True)])
        for side in ("right", "left"):
            with torch.no_grad():
                found = capture(collate(prompts_of(model), model.pad_token_id, side=side))[:, 0]
            for row, text in zip(found, prompts_of(model), strict=True):
                expected = row_by_row(model, prompt, text.ids, "mean", text.start)
                torch.testing.assert_close(row, expected, rtol=1e-4, atol=1e-5)


def test_gradients_reach_the_prompt_and_nothing_else(backbone, batch_of):
    model = backbone("tiny-llama")
    prompt = SoftPrompt.initialise(model, 3)
    Capture(model.with_adapter(prompt), [Reading(-1, "mean")])(batch_of(model)).sum().backward()
    assert prompt.vectors.grad.abs().min() > 0
    assert all(parameter.grad is None for parameter in model.model.parameters())


def test_a_prompt_starts_from_the_tokens_of_a_text_again_and_again(backbone):
    model = backbone("tiny-gemma3_text")  # whose embeddings are scaled on their way into the model
    ids = model.tokenizer("cats sleep", add_special_tokens=False)["input_ids"]
    found = SoftPrompt.initialise(model, 2 * len(ids) + 1, "cats sleep").vectors
    expected = model.model.get_input_embeddings()(torch.tensor([*ids, *ids, ids[0]]))
    assert torch.equal(found, expected)


@pytest.mark.parametrize("family", ["tiny-llama", "tiny-gemma2", "tiny-gemma3_text"])
def test_random_vectors_look_like_what_the_model_reads(family, backbone):
    """Not like its table: some families scale what they look up there."""
    model = backbone(family)
    read = model.model.get_input_embeddings()(torch.arange(512))
    torch.manual_seed(0)
    found = SoftPrompt.initialise(model, 200).vectors.detach()
    torch.testing.assert_close(found.mean(dim=0), read.mean(dim=0), rtol=0, atol=0.4 * read.std().item())
    assert found.std().item() == pytest.approx(read.std().item(), rel=0.1)


def test_a_prompt_takes_its_place_in_the_context(backbone):
    model = backbone("tiny-llama")
    assert model.with_adapter(SoftPrompt.initialise(model, 6)).context_length == model.context_length - 6
    bloom = backbone("tiny-bloom")
    assert bloom.with_adapter(SoftPrompt.initialise(bloom, 6)).context_length is None


@pytest.mark.parametrize("tokens", [0, -1, 256, 1000])
def test_a_prompt_of_no_length_or_longer_than_the_context_is_refused(tokens, backbone):
    with pytest.raises(InputError, match=rf"A soft prompt has 1 to 255 tokens on this model, not {tokens}\."):
        SoftPrompt.initialise(backbone("tiny-llama"), tokens)


def test_a_model_without_a_limit_takes_any_length_but_none(backbone):
    assert len(SoftPrompt.initialise(backbone("tiny-bloom"), 300).vectors) == 300
    with pytest.raises(InputError, match=r"A soft prompt has 1 token or more, not 0\."):
        SoftPrompt.initialise(backbone("tiny-bloom"), 0)


@pytest.mark.parametrize(("wrong", "said"), [({"place": "behind"}, "place"), ({"output": "texts"}, "output")])
def test_places_that_do_not_exist_are_refused(wrong, said, backbone):
    with pytest.raises(InputError, match=f"Unknown {said}"):
        SoftPrompt.initialise(backbone("tiny-llama"), 2, **wrong)
