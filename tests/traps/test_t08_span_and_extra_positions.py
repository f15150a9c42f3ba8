"""T8: positions that do not belong to the text (padding, prefix, virtual tokens) must not be pooled."""

import numpy as np
import pytest
import torch
from sentence_transformers.sentence_transformer.modules import Pooling

from decoder2vec.config import Reading
from decoder2vec.maths import pooling
from decoder2vec.maths.pooling import pool
from decoder2vec.text.batches import collate

VIRTUAL = 4


@pytest.fixture(scope="module")
def with_virtual_tokens(backbone):
    """with_virtual_tokens(prompts) -> (states, batch): states with four virtual tokens, as in prompt tuning."""
    model = backbone("tiny-llama")
    prefix = torch.randn(1, VIRTUAL, model.dim, generator=torch.Generator().manual_seed(0))

    @torch.inference_mode()
    def run(prompts):
        batch = collate(prompts, model.pad_token_id)
        tokens = model.model.get_input_embeddings()(batch.ids)
        rows = torch.cat([prefix.expand(len(prompts), -1, -1), tokens], dim=1)
        mask = torch.cat([torch.ones(len(prompts), VIRTUAL, dtype=torch.long), batch.mask], dim=1)
        return model.model(inputs_embeds=rows, attention_mask=mask, use_cache=False).last_hidden_state, batch

    return run


@pytest.mark.parametrize("name", ["mean", "weightedmean", "max", "lasttoken"])
def test_span_excludes_virtual_tokens(name, with_virtual_tokens, backbone, texts, tokenise, pool_by_loop, gap):
    """The faulty variant: sentence-transformers pools every position if mask and states differ in length."""
    prompts = tokenise(backbone("tiny-llama"), texts)
    single = [with_virtual_tokens([prompt])[0][0] for prompt in prompts]
    expected = np.stack([pool_by_loop(name, states[VIRTUAL:]) for states in single])

    states, batch = with_virtual_tokens(prompts)
    ours = pool(states, batch.start + VIRTUAL, batch.end + VIRTUAL, [name])[:, 0]
    assert gap(ours, expected) < 1e-5

    pooling_module = Pooling(embedding_dimension=states.shape[-1], pooling_mode=name)
    batched = pooling_module({"token_embeddings": states, "attention_mask": batch.mask})["sentence_embedding"]
    single_states = [
        pooling_module({"token_embeddings": row[None], "attention_mask": torch.ones(1, len(prompt.ids))})[
            "sentence_embedding"
        ]
        for row, prompt in zip(single, prompts, strict=True)
    ]
    assert gap(batched, torch.cat(single_states)) > 0.05


@pytest.mark.parametrize("name", ["mean", "weightedmean", "sum", "max"])
def test_padding_positions_are_not_pooled(
    name, backbone, texts, tokenise, encode_batch, single_states, pool_by_loop, gap, monkeypatch
):
    """With a mask of ones, the faulty variant, a vector depends on the longest text of its batch."""
    model = backbone("tiny-gpt2")
    prompts = tokenise(model, texts)
    readings = [Reading(-1, name, True)]
    expected = np.stack([pool_by_loop(name, single_states(model, prompt.ids)[-1])[None] for prompt in prompts])
    assert gap(encode_batch(model, prompts, readings), expected) < 1e-5

    monkeypatch.setattr(
        pooling, "_inside_span", lambda width, start, end: torch.ones(len(start), width, dtype=torch.bool)
    )
    assert gap(encode_batch(model, prompts, readings), expected) > 0.05
    assert gap(encode_batch(model, prompts[:1], readings), expected[:1]) < 1e-5  # invisible for a single text


@pytest.mark.parametrize("family", ["tiny-gpt2", "tiny-llama", "tiny-gemma3_text"])
@pytest.mark.parametrize("template", ["prompteol", "echo", "instruct"])
def test_template_prefix_is_not_pooled(
    family, template, backbone, texts, tokenise, encode_batch, single_states, pool_by_loop, gap
):
    """The span starts at the last copy of the text; a mean over the whole prompt, the faulty variant, differs."""
    model = backbone(family)
    prompts = tokenise(model, texts, template)
    vectors = encode_batch(model, prompts, [Reading(-1, "mean", True)])[:, 0]
    for text, prompt, vector in zip(texts, prompts, vectors, strict=True):
        states = single_states(model, prompt.ids)[-1]
        tail = model.tokenizer.decode(prompt.ids[prompt.start :])
        assert tail.lstrip(' "').startswith(text)
        assert gap(vector, pool_by_loop("mean", states[prompt.start :])) < 1e-5
        assert gap(vector, pool_by_loop("mean", states)) > 1e-2
