"""The projector against plain soft prompts, and the norms of soft tokens against real embeddings."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from decoder2vec.activations.capture import Capture
from decoder2vec.adapters.soft_prompt import SoftPrompt
from decoder2vec.backbone.backbone import Backbone
from decoder2vec.backbone.tiny import TINY
from decoder2vec.bridge.bridge import Bridge
from decoder2vec.bridge.projector import Projector, soft_token_batch, template_pieces
from decoder2vec.config import EncoderSpec, Reading
from decoder2vec.encoder import Encoder
from decoder2vec.errors import InputError, UnknownNameError
from decoder2vec.text.batches import collate
from decoder2vec.text.template import Template
from decoder2vec.text.tokens import Tokeniser

VECTORS = np.random.default_rng(0).normal(3.0, 5.0, (50, 12)).astype(np.float32)


@pytest.fixture(scope="module", params=TINY)
def model(request, own_cache):
    return Backbone.load(request.param, device="cpu", dtype="float32")


def without_vector(projector):
    """The projector with the weight of its last layer at zero."""
    with torch.no_grad():
        projector.output.weight.zero_()
    return projector


@pytest.mark.parametrize("kind", ["linear", "mlp"])
def test_soft_tokens_have_the_norm_of_real_embeddings(kind, model):
    torch.manual_seed(0)
    embeddings = model.model.get_input_embeddings()(torch.arange(model.vocabulary_size))
    tokens = Projector.initialise(model, VECTORS, 4, kind)(VECTORS)
    expected = embeddings.norm(dim=1).mean()
    assert torch.allclose(tokens.norm(dim=2).mean(dim=0), expected, rtol=1e-5)
    spread = tokens.std(dim=0).mean() / embeddings.std(dim=0).mean()
    assert 0.3 < spread < 1.2, "a vector changes its soft tokens by about as much as embeddings differ"


def test_vectors_of_any_scale_give_the_same_soft_tokens(backbone):
    tokens = []
    for scale, shift in ((1, 0), (1e4, -7e4), (1e-4, 3e-4)):
        torch.manual_seed(0)
        vectors = VECTORS.astype(np.float64) * scale + shift
        tokens.append(Projector.initialise(backbone("tiny-llama"), vectors, 4)(vectors))
    assert torch.allclose(tokens[0], tokens[1], atol=1e-3)
    assert torch.allclose(tokens[0], tokens[2], atol=1e-3)


@pytest.mark.parametrize("kind", ["linear", "mlp"])
def test_without_weights_items_equal_a_soft_prompt_bit_for_bit(kind, model):
    """A BOS token stands in front of the soft tokens of an item, so it is left out here."""
    torch.manual_seed(0)
    reading = Reading(-1, "lasttoken", True)
    encoder = Encoder(model, EncoderSpec(model.name, (reading,), "{text}"))
    bridge = Bridge(encoder, without_vector(Projector.initialise(model, VECTORS, 4, kind)), prompt="the cats sleep")
    prompt = Tokeniser(model, Template.of("plain"), 64)(["the cats sleep"]).prompts[0]
    assert [*bridge.pieces[0], *bridge.pieces[1]] == prompt.ids
    bridge.pieces = [[], prompt.ids]
    bias = bridge.projector.output.bias.detach().view(4, -1)
    adapted = model.with_adapter(SoftPrompt(bias, "prepend", "text"))
    batch = collate([prompt] * 3, model.pad_token_id)
    assert torch.equal(bridge.input_batch(VECTORS[:3]).embeds, adapted.adapt(batch).embeds)
    assert torch.equal(bridge.item_vectors(VECTORS[:3]), Capture(adapted, [reading])(batch)[:, 0])


def test_soft_tokens_fill_every_slot_of_a_template(backbone):
    model = backbone("tiny-llama")
    pieces = template_pieces(model, Template.of("echo"), "!")
    soft = torch.arange(3.0)[:, None, None] * torch.ones(3, 2, 32)
    batch = soft_token_batch(model, pieces, soft)
    lengths = [len(piece) for piece in pieces]
    assert len(pieces) == 3 and batch.width == sum(lengths) + 4
    assert batch.start.tolist() == [lengths[0] + 2 + lengths[1]] * 3 and batch.end.tolist() == [batch.width] * 3
    assert torch.equal(batch.embeds[:, lengths[0] : lengths[0] + 2], soft)
    assert torch.equal(batch.embeds[:, batch.start[0] : batch.start[0] + 2], soft)


def test_an_item_with_the_embeddings_of_a_text_has_the_vector_of_the_text(model, gap):
    """If soft tokens are the embeddings of words, the item is what the encoder makes of these words."""
    encoder = Encoder(model, EncoderSpec(model.name, (Reading(-1, "mean", True),), "{text} in short", normalize=True))
    text = "the cats sleep"
    prompt = Tokeniser(model, Template("{text} in short"), 64)([text]).prompts[0]
    pieces = template_pieces(model, Template("{text} in short"))
    n_before, n_after = map(len, pieces)
    words = prompt.ids[n_before : len(prompt.ids) - n_after]
    assert [*pieces[0], *words, *pieces[1]] == prompt.ids
    batch = soft_token_batch(model, pieces, model.model.get_input_embeddings()(torch.tensor([words])))
    states = Capture(model, [Reading(-1, "mean", True)])(batch)[:, 0].detach().numpy()
    if n_before == 0:  # else the template begins after a BOS token, which mean pooling of a plain prompt includes
        assert gap(states / np.linalg.norm(states), encoder.encode([text])) < 1e-5


def test_wrong_projectors_are_one_sentence(backbone):
    with pytest.raises(UnknownNameError, match="mpl"):
        Projector(12, 32, 4, "mpl")
    with pytest.raises(InputError, match="not 12 and 0"):
        Projector(12, 32, 0)
    with pytest.raises(InputError, match="A projector has 1 to"):
        Projector.initialise(backbone("tiny-llama"), VECTORS, 1000)
