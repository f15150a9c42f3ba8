"""Hierarchical attention equals plain loops over the rules of DEPTH, on every family that is bidirectional."""

from __future__ import annotations

import pytest
import torch

from decoder2vec.backbone.backbone import Backbone
from decoder2vec.backbone.sentence_attention import (
    PADDING,
    TARGET,
    check_hierarchical_attention,
    hierarchical_attention,
    hierarchical_mask,
)
from decoder2vec.backbone.tiny import TINY
from decoder2vec.errors import UnsupportedError

CAUSAL_ONLY = ("gpt_neo", "mamba", "mamba2")
SUPPORTED = [name for name, family in TINY.items() if family not in CAUSAL_ONLY]


def mask_by_hand(sentences, is_token):
    """The three masks of an encoder-decoder in one, pair by pair; rows of padding see the text."""
    mask = torch.zeros(len(sentences), len(sentences[0]), len(sentences[0]), dtype=torch.bool)
    for text, numbers in enumerate(sentences):
        for row, of_row in enumerate(numbers):
            for column, of_column in enumerate(numbers):
                if of_column == PADDING:
                    seen = False
                elif of_row == TARGET and of_column == TARGET:  # decoder self-attention
                    seen = column <= row and (is_token[text][column] or not is_token[text][row])
                elif of_row == TARGET:  # cross-attention
                    seen = is_token[text][column] or not is_token[text][row]
                elif of_column == TARGET:
                    seen = False
                else:  # encoder self-attention
                    seen = of_row == of_column or not is_token[text][row]
                mask[text, row, column] = seen
    return mask


def random_layouts(generator, n_texts=4, n_tokens=17):
    sentences, is_token = [], []
    for _ in range(n_texts):
        n_source, n_target = (int(torch.randint(3, 8, (), generator=generator)) for _ in range(2))
        numbers = torch.randint(1, 4, (n_source,), generator=generator).sort().values.tolist()
        sentences.append((numbers + [TARGET] * n_target + [PADDING] * n_tokens)[:n_tokens])
        tokens = torch.rand(n_tokens, generator=generator) < 0.3
        is_token.append((tokens & (torch.tensor(sentences[-1]) != PADDING)).tolist())
    return sentences, is_token


@pytest.mark.parametrize("seed", range(20))
def test_mask_equals_a_loop_over_pairs(seed):
    sentences, is_token = random_layouts(torch.Generator().manual_seed(seed))
    mask = hierarchical_mask(torch.tensor(sentences), torch.tensor(is_token))
    assert torch.equal(mask, mask_by_hand(sentences, is_token))


def test_worked_example_of_the_paper():
    """Source `E S7 a X5 E | S2 X9 b E EOS`, target `<s> E S7 X5 c E S2 X9 d E`."""
    sentences = [1] * 5 + [2] * 5 + [TARGET] * 10
    is_token = [position in (1, 5, 12, 16) for position in range(20)]
    mask = hierarchical_mask(torch.tensor([sentences]), torch.tensor([is_token]))[0].int()
    assert mask[1, :10].tolist() == [1] * 5 + [0] * 5 and mask[5, :10].tolist() == [0] * 5 + [1] * 5
    assert mask[12].nonzero().flatten().tolist() == [1, 5, 12]
    assert mask[16].nonzero().flatten().tolist() == [1, 5, 12, 16]
    for row in (0, 2, 3, 4, 6, 7, 8, 9):
        assert mask[row].nonzero().flatten().tolist() == list(range(10))
    for row in (10, 11, 13, 14, 15, 17, 18, 19):
        assert mask[row].nonzero().flatten().tolist() == list(range(row + 1))


def test_no_row_is_empty():
    sentences, is_token = random_layouts(torch.Generator().manual_seed(0), n_texts=50)
    for row, numbers in enumerate(sentences):  # as in real texts, a sentence token is within its sentence
        is_token[row] = [flag and numbers[column] != PADDING for column, flag in enumerate(is_token[row])]
    assert hierarchical_mask(torch.tensor(sentences), torch.tensor(is_token)).any(dim=2).all()


@pytest.mark.parametrize("family", SUPPORTED)
def test_support_is_verified(family):
    check_hierarchical_attention(Backbone.load(family, attention="bidirectional").model)
    with pytest.raises(UnsupportedError, match=r"cannot attend to sentences and sentence tokens apart\.$"):
        check_hierarchical_attention(Backbone.load(family, attention="causal").model)


def test_a_mask_that_is_ignored_is_refused(monkeypatch):
    model = Backbone.load("tiny-llama", attention="bidirectional").model
    monkeypatch.setattr("decoder2vec.backbone.sentence_attention.restrict_attention", lambda *_: [])
    with pytest.raises(UnsupportedError, match="llama cannot attend to sentences"):
        check_hierarchical_attention(model)


SENTENCES = torch.tensor([[1, 1, 1, 1, 2, 2, 2, 2, TARGET, TARGET, TARGET]])
IS_TOKEN = torch.tensor([[column in (1, 4, 10) for column in range(11)]])


def gradient_to_inputs(model, layer, row):
    """[token] size of the gradient of a token's state after some layers with respect to the input embeddings."""
    backbone = Backbone("", model, None, "bidirectional", "")
    embeds = model.get_input_embeddings()(torch.arange(20, 31)[None]).detach().requires_grad_(True)
    states = {}
    handle = backbone.blocks[layer - 1].register_forward_hook(
        lambda _, __, output: states.update(out=output[0] if isinstance(output, tuple) else output)
    )
    with hierarchical_attention(backbone.blocks, hierarchical_mask(SENTENCES, IS_TOKEN)):
        model(inputs_embeds=embeds, use_cache=False)
    handle.remove()
    states["out"][0, row].sum().backward()
    return embeds.grad[0].abs().sum(dim=1)


@pytest.mark.parametrize("family", ["tiny-llama", "tiny-gpt2", "tiny-gemma3_text"])
def test_a_sentence_token_sees_its_sentence_only(family):
    """Exactly, after one layer; after two, other tokens have carried information across."""
    model = Backbone.load(family, attention="bidirectional", dtype="float32").model
    gradient = gradient_to_inputs(model, 1, 4)
    assert (gradient[4:8] > 0).all() and (gradient[:4] == 0).all() and (gradient[8:] == 0).all()
    gradient = gradient_to_inputs(model, 1, 10)  # in the target: the sentence tokens
    assert (gradient > 0).nonzero().flatten().tolist() == [1, 4, 10]
    assert (gradient_to_inputs(model, 2, 4)[:8] > 0).all()


@torch.inference_mode()
def test_padding_changes_nothing():
    backbone = Backbone.load("tiny-llama", attention="bidirectional", dtype="float32")
    ids = torch.arange(20, 31)[None]

    def states(ids, sentences, is_token):
        with hierarchical_attention(backbone.blocks, hierarchical_mask(sentences, is_token)):
            mask = (sentences != PADDING).long()
            return backbone.model(input_ids=ids, attention_mask=mask, use_cache=False).last_hidden_state

    alone = states(ids, SENTENCES, IS_TOKEN)
    padded = [torch.nn.functional.pad(tensor, (0, 3), value=value) for tensor, value in ((ids, 5), (IS_TOKEN, False))]
    sentences = torch.nn.functional.pad(SENTENCES, (0, 3), value=PADDING)
    assert torch.allclose(states(padded[0], sentences, padded[1])[:, :11], alone, atol=1e-5)
