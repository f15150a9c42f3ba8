"""T8: positions in the row that are not the text's (padding, prefix, virtual tokens) must stay out of the vector."""

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
    """with_virtual_tokens(prompts) -> states four positions longer than the batch, and the batch: prompt tuning."""
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
def test_span_follows_virtual_tokens_where_an_all_ones_mask_pools_padding(
    name, with_virtual_tokens, backbone, texts, prompts_of, by_loop, gap
):
    """Sentence-transformers, given a mask of another length than the states, takes every position: the fault."""
    prompts = prompts_of(backbone("tiny-llama"), texts)
    single = [with_virtual_tokens([prompt])[0][0] for prompt in prompts]
    expected = np.stack([by_loop(name, states[VIRTUAL:]) for states in single])

    states, batch = with_virtual_tokens(prompts)
    ours = pool(states, batch.start + VIRTUAL, batch.end + VIRTUAL, [name])[:, 0]
    assert gap(ours, expected) < 1e-5

    mode = Pooling(embedding_dimension=states.shape[-1], pooling_mode=name)
    batched = mode({"token_embeddings": states, "attention_mask": batch.mask})["sentence_embedding"]
    alone = [
        mode({"token_embeddings": row[None], "attention_mask": torch.ones(1, len(prompt.ids))})["sentence_embedding"]
        for row, prompt in zip(single, prompts, strict=True)
    ]
    assert gap(batched, torch.cat(alone)) > 0.05


@pytest.mark.parametrize("name", ["mean", "weightedmean", "sum", "max"])
def test_padding_positions_are_not_pooled(name, backbone, texts, prompts_of, read, alone, by_loop, gap, monkeypatch):
    """An all-ones mask makes a vector depend on the longest text in its batch."""
    model = backbone("tiny-gpt2")
    prompts = prompts_of(model, texts)
    wanted = [Reading(-1, name, True)]
    expected = np.stack([by_loop(name, alone(model, prompt.ids)[-1])[None] for prompt in prompts])
    assert gap(read(model, prompts, wanted), expected) < 1e-5

    monkeypatch.setattr(
        pooling, "_inside_span", lambda width, start, end: torch.ones(len(start), width, dtype=torch.bool)
    )
    assert gap(read(model, prompts, wanted), expected) > 0.05
    assert gap(read(model, prompts[:1], wanted), expected[:1]) < 1e-5  # unseen when a text is read alone


@pytest.mark.parametrize("family", ["tiny-gpt2", "tiny-llama", "tiny-gemma3_text"])
@pytest.mark.parametrize("template", ["prompteol", "echo", "instruct"])
def test_prefix_of_a_template_is_not_pooled(family, template, backbone, texts, prompts_of, read, alone, by_loop, gap):
    """The span starts at the last copy of the text; a mean over the whole prompt is something else."""
    model = backbone(family)
    prompts = prompts_of(model, texts, template)
    found = read(model, prompts, [Reading(-1, "mean", True)])[:, 0]
    for text, prompt, vector in zip(texts, prompts, found, strict=True):
        states = alone(model, prompt.ids)[-1]
        tail = model.tokenizer.decode(prompt.ids[prompt.start :])
        assert tail.lstrip(' "').startswith(text)
        assert gap(vector, by_loop("mean", states[prompt.start :])) < 1e-5
        assert gap(vector, by_loop("mean", states)) > 1e-2
