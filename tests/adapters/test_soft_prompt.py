"""Soft prompts against transformers on each text separately."""

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
def encode_single(model, prompt, ids, pooling, start):
    """Vector of one text from its embeddings and the prompt, by transformers alone."""
    tokens = model.model.get_input_embeddings()(torch.tensor(ids))
    vectors = prompt.vectors.detach()
    row = torch.cat([tokens, vectors] if prompt.position == "append" else [vectors, tokens])
    states = model.model(inputs_embeds=row[None], use_cache=False).last_hidden_state[0]
    prompt_start = len(ids) if prompt.position == "append" else 0
    if prompt.output == "prompt":
        states = states[prompt_start : prompt_start + len(vectors)]
    else:
        states = states[len(vectors) + start :] if prompt.position == "prepend" else states[start : len(ids)]
    return states[-1] if pooling == "lasttoken" else states.mean(dim=0)


@pytest.mark.parametrize(("position", "output"), CASES)
@pytest.mark.parametrize("family", FAMILIES)
def test_padded_batch_equals_single_texts(family, position, output, backbone, prompts_of):
    model = backbone(family)
    torch.manual_seed(0)
    prompt = SoftPrompt.initialise(model, 3, position=position, output=output)
    readings = [Reading(-1, pooling, True) for pooling in ("lasttoken", "mean")]
    capture = Capture(model.with_adapter(prompt), readings)
    prompts = prompts_of(model)
    for side in ("right", "left"):
        with torch.no_grad():
            vectors = capture(collate(prompts, model.pad_token_id, side=side))
        for row, text in enumerate(prompts):
            for column, reading in enumerate(readings):
                expected = encode_single(model, prompt, text.ids, reading.pooling, text.start)
                torch.testing.assert_close(vectors[row, column], expected, rtol=1e-4, atol=1e-5)


def test_prompt_on_a_bidirectional_model_equals_single_texts(own_cache, prompts_of):
    from decoder2vec.backbone.backbone import Backbone

    model = Backbone.load("tiny-llama", attention="bidirectional", device="cpu", dtype="float32")
    torch.manual_seed(0)
    for position, output in CASES:
        prompt = SoftPrompt.initialise(model, 3, position=position, output=output)
        capture = Capture(model.with_adapter(prompt), [Reading(-1, "mean", True)])
        for side in ("right", "left"):
            with torch.no_grad():
                vectors = capture(collate(prompts_of(model), model.pad_token_id, side=side))[:, 0]
            for row, text in zip(vectors, prompts_of(model), strict=True):
                expected = encode_single(model, prompt, text.ids, "mean", text.start)
                torch.testing.assert_close(row, expected, rtol=1e-4, atol=1e-5)


def test_only_the_prompt_gets_gradients(backbone, batch_of):
    model = backbone("tiny-llama")
    prompt = SoftPrompt.initialise(model, 3)
    Capture(model.with_adapter(prompt), [Reading(-1, "mean")])(batch_of(model)).sum().backward()
    assert prompt.vectors.grad.abs().min() > 0
    assert all(parameter.grad is None for parameter in model.model.parameters())


def test_prompt_from_a_text_repeats_its_embeddings(backbone):
    model = backbone("tiny-gemma3_text")  # this family scales its embeddings
    ids = model.tokenizer("cats sleep", add_special_tokens=False)["input_ids"]
    vectors = SoftPrompt.initialise(model, 2 * len(ids) + 1, "cats sleep").vectors
    expected = model.model.get_input_embeddings()(torch.tensor([*ids, *ids, ids[0]]))
    assert torch.equal(vectors, expected)


@pytest.mark.parametrize("family", ["tiny-llama", "tiny-gemma2", "tiny-gemma3_text"])
def test_random_prompt_is_distributed_like_the_embeddings(family, backbone):
    """Like those after the scaling that some families apply, not like the embedding table."""
    model = backbone(family)
    embeddings = model.model.get_input_embeddings()(torch.arange(512))
    torch.manual_seed(0)
    vectors = SoftPrompt.initialise(model, 200).vectors.detach()
    torch.testing.assert_close(vectors.mean(dim=0), embeddings.mean(dim=0), rtol=0, atol=0.4 * embeddings.std().item())
    assert vectors.std().item() == pytest.approx(embeddings.std().item(), rel=0.1)


def test_prompt_reduces_the_context_length(backbone):
    model = backbone("tiny-llama")
    assert model.with_adapter(SoftPrompt.initialise(model, 6)).context_length == model.context_length - 6
    bloom = backbone("tiny-bloom")
    assert bloom.with_adapter(SoftPrompt.initialise(bloom, 6)).context_length is None


@pytest.mark.parametrize("tokens", [0, -1, 256, 1000])
def test_prompt_of_invalid_length_is_refused(tokens, backbone):
    with pytest.raises(InputError, match=rf"A soft prompt has 1 to 255 tokens on this model, not {tokens}\."):
        SoftPrompt.initialise(backbone("tiny-llama"), tokens)


def test_model_without_a_limit_accepts_any_length_above_0(backbone):
    assert len(SoftPrompt.initialise(backbone("tiny-bloom"), 300).vectors) == 300
    with pytest.raises(InputError, match=r"A soft prompt has 1 token or more, not 0\."):
        SoftPrompt.initialise(backbone("tiny-bloom"), 0)


@pytest.mark.parametrize(("wrong", "option"), [({"position": "behind"}, "place"), ({"output": "texts"}, "output")])
def test_unknown_position_or_output_is_refused(wrong, option, backbone):
    with pytest.raises(InputError, match=f"Unknown {option}"):
        SoftPrompt.initialise(backbone("tiny-llama"), 2, **wrong)
