"""The bridge against transformers: the loss on captions, generation with a cache; and its folder."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from decoder2vec.adapters.lora import Lora
from decoder2vec.adapters.soft_prompt import SoftPrompt
from decoder2vec.backbone.backbone import Backbone
from decoder2vec.backbone.sources import resolve_model_folder
from decoder2vec.backbone.tiny import TINY
from decoder2vec.bridge.bridge import Bridge
from decoder2vec.bridge.generation import generate
from decoder2vec.bridge.projector import Projector
from decoder2vec.config import EncoderSpec, Reading
from decoder2vec.encoder import Encoder
from decoder2vec.errors import EncoderError, InputError, UnsupportedError
from decoder2vec.text.batches import collate
from decoder2vec.text.tokens import Prompt
from toys.bridge import toy_items
from toys.training import perturbed

ITEMS = toy_items()
CAPTIONS = ["cats sleep", "the dogs run over the long road in the rain", "birds", "stocks rise and fall"]


@pytest.fixture(scope="module", params=TINY)
def model(request, own_cache):
    return Backbone.load(request.param, device="cpu", dtype="float32")


def projector_for(model, tokens=4, kind="mlp"):
    torch.manual_seed(0)
    return Projector.initialise(model, ITEMS.vectors, tokens, kind).requires_grad_(False)


def describing(model, **options):
    return Bridge(model, projector_for(model), "Description:", **options)


def language_model(model):
    """The whole model, as transformers loads it."""
    return AutoModelForCausalLM.from_pretrained(resolve_model_folder(model.name), dtype=torch.float32).eval()


def encoder_of(model, **options):
    return Encoder(model, EncoderSpec(model.name, (Reading(-1, "mean", True),), "{text}", **options))


def test_the_loss_is_that_of_transformers_on_the_target_tokens_only(model, gap):
    bridge, reference = describing(model), language_model(model)
    losses, counts = bridge.caption_losses(ITEMS.vectors[:4], CAPTIONS)
    targets = bridge.caption_ids(CAPTIONS)
    embed = reference.get_input_embeddings()
    for row, target in enumerate(targets):
        before = bridge.input_batch(ITEMS.vectors[row : row + 1]).embeds
        labels = torch.tensor([[-100] * before.shape[1] + target])
        with torch.no_grad():
            embeds = torch.cat([before, embed(torch.tensor([target]))], dim=1)
            expected = reference(inputs_embeds=embeds, labels=labels).loss
        assert counts[row] == len(target)
        assert gap(losses[row] / counts[row], expected) < 1e-4


def test_soft_tokens_of_other_items_padding_and_prompt_are_not_in_the_loss(backbone):
    bridge = describing(backbone("tiny-llama"))
    alone = np.concatenate([bridge.caption_losses(ITEMS.vectors[[row]], [CAPTIONS[row]])[0] for row in range(4)])
    assert np.allclose(bridge.caption_losses(ITEMS.vectors[:4], CAPTIONS)[0], alone, rtol=1e-5)
    states, ids = bridge.target_states(ITEMS.vectors[:4], bridge.caption_ids(CAPTIONS))
    assert ids.tolist() == [id for target in bridge.caption_ids(CAPTIONS) for id in target]
    assert len(states) == len(ids)


def test_generation_is_that_of_transformers(model):
    """With a cache and in a batch, against `generate`; tiny random models seldom stop, so each length is compared."""
    bridge, reference = describing(model), language_model(model)
    embeds = bridge.input_batch(ITEMS.vectors[:3]).embeds
    stop = model.closing_token_id
    with torch.no_grad():
        expected = reference.generate(
            inputs_embeds=embeds,
            attention_mask=torch.ones(embeds.shape[:2], dtype=torch.long),
            max_new_tokens=12,
            do_sample=False,
            eos_token_id=stop,
            pad_token_id=stop,
        )
    texts = bridge.describe(ITEMS.vectors[:3], max_tokens=12)
    rows = [row[: row.index(stop)] if stop in row else row for row in expected.tolist()]
    assert texts == [model.tokenizer.decode(row, skip_special_tokens=True).strip() for row in rows]


def test_descriptions_do_not_depend_on_the_batch_or_the_run(backbone):
    bridge = describing(backbone("tiny-llama"))
    texts = bridge.describe(ITEMS.vectors[:9], 10)
    assert texts == bridge.describe(ITEMS.vectors[:9], 10)
    assert texts == bridge.describe(ITEMS.vectors[:9], 10, batch_size=2)
    assert len(set(texts)) > 1
    assert bridge.describe(ITEMS.vectors[[0, 0]], 10) == [texts[0]] * 2


def test_a_description_ends_at_the_stop_token(backbone):
    model = backbone("tiny-llama")
    bridge = describing(model)
    embeds = bridge.input_batch(ITEMS.vectors[:2]).embeds
    ids = generate(model, bridge.head, embeds, 12, stop_id=-1)
    stop = ids[0][5]
    stopped = generate(model, bridge.head, embeds, 12, stop_id=stop)
    assert stopped == [row[: row.index(stop)] if stop in row else row for row in ids]
    assert stop not in stopped[0] and len(stopped[0]) <= 5


def test_without_weights_descriptions_read_a_soft_prompt_bit_for_bit(backbone):
    model = backbone("tiny-gpt2")
    bridge = describing(model)
    bridge.projector.output.weight.zero_()
    targets = bridge.caption_ids(CAPTIONS[:1])
    states, _ = bridge.target_states(ITEMS.vectors[:1], targets)
    prompt = SoftPrompt(bridge.projector.output.bias.view(4, -1), "prepend", "text")
    ids = [*bridge.pieces[0], *bridge.pieces[1], *targets[0]][:-1]
    batch = prompt.adapt(collate([Prompt(ids, 0, len(ids))], 0), model.model)
    expected = model.model(inputs_embeds=batch.embeds, use_cache=False).last_hidden_state
    assert torch.equal(states, expected[0, -len(targets[0]) :])


@pytest.mark.parametrize("head", [None, "whiten", "standardise"])
def test_items_have_the_shape_and_norm_of_document_vectors(head, backbone, gap):
    encoder = encoder_of(backbone("tiny-llama"), normalize=True)
    if head:
        encoder = encoder.with_head(head, [f"{caption} {n}" for n, caption in enumerate(ITEMS.captions)])
    bridge = Bridge(encoder, projector_for(encoder.backbone))
    items = bridge.encode(ITEMS.vectors[:5])
    assert items.shape == (5, encoder.dim) and items.dtype == np.float32
    assert np.allclose(np.linalg.norm(items, axis=1), 1, atol=1e-5)
    latents = bridge._capture(bridge.input_batch(ITEMS.vectors[:5])).detach().numpy().reshape(5, -1)
    expected = encoder.head(latents) if head else latents
    assert gap(items, expected / np.linalg.norm(expected, axis=1, keepdims=True)) < 1e-5
    assert gap(bridge.encode(ITEMS.vectors[:1]), items[:1]) < 1e-5


def test_saved_and_loaded_bridges_are_equal(backbone, tmp_path):
    model = backbone("tiny-llama")
    lora = perturbed(Lora.initialise(model, 2, 4)).requires_grad_(False)
    encoder = encoder_of(model)
    named = encoder.save(tmp_path / "enc")
    for number, bridge in enumerate(
        [
            describing(model),
            describing(model, lora=lora),
            Bridge(encoder, projector_for(model, kind="linear")),
            Bridge(encoder, projector_for(model), "!", lora, str(named)),
        ]
    ):
        folder = bridge.save(tmp_path / f"bridge{number}", {"README.md": b"card"})
        bridge.save(folder)  # replaces what it wrote
        assert not list(folder.glob("**/*.bin")) and not list(folder.glob("**/*.pt"))
        loaded = Bridge.from_pretrained(folder, device="cpu", dtype="float32")
        assert loaded.fingerprint == bridge.fingerprint and loaded.objective == bridge.objective
        assert (folder / "encoder").is_dir() == (number == 2)
        if bridge.objective == "lm":
            assert loaded.describe(ITEMS.vectors[:4], 8) == bridge.describe(ITEMS.vectors[:4], 8)
        else:
            assert np.array_equal(loaded.encode(ITEMS.vectors[:4]), bridge.encode(ITEMS.vectors[:4]))
    assert bridge.fingerprint != describing(model).fingerprint


def test_damaged_folders_are_one_sentence(backbone, tmp_path):
    bridge = describing(backbone("tiny-llama"))
    folder = bridge.save(tmp_path / "bridge")
    with pytest.raises(InputError, match=r"has no bridge\.json"):
        Bridge.from_pretrained(tmp_path)
    weights = (folder / "projector.safetensors").read_bytes()
    (folder / "projector.safetensors").write_bytes(weights[:-8] + b"damaged!")
    with pytest.raises(EncoderError, match="is damaged"):
        Bridge.from_pretrained(folder)
    (folder / "projector.safetensors").write_bytes(weights)
    description = json.loads((folder / "bridge.json").read_text())
    for changes in ({"format": 9}, {"objective": "x"}, {"projector": 3}, {"lora": None}, {"base": 4}):
        (folder / "bridge.json").write_text(json.dumps(description | changes))
        with pytest.raises(EncoderError, match="damaged"):
            Bridge.from_pretrained(folder)
    (folder / "bridge.json").write_text(json.dumps(description | {"base_fingerprint": "other"}))
    with pytest.raises(EncoderError, match="is not the model"):
        Bridge.from_pretrained(folder)
    (folder / "notes.txt").write_text("mine")
    with pytest.raises(InputError, match=r"holds notes\.txt"):
        bridge.save(folder)


def test_a_bridge_refuses_what_it_cannot_do(backbone):
    model = backbone("tiny-llama")
    bridge, searching = describing(model), Bridge(encoder_of(model), projector_for(model))
    with pytest.raises(InputError, match="--loss contrastive"):
        bridge.encode(ITEMS.vectors)
    with pytest.raises(InputError, match="--loss lm"):
        searching.describe(ITEMS.vectors)
    with pytest.raises(InputError, match=r"has vectors of 3 dimensions; this bridge takes those of 12"):
        bridge.describe(np.ones((2, 3)) * [1, 2, 3])
    with pytest.raises(UnsupportedError, match="bidirectional attention cannot write"):
        describing(backbone("tiny-llama", "bidirectional"))
    prompted = model.with_adapter(SoftPrompt.initialise(model, 2))
    with pytest.raises(UnsupportedError, match="of the kind soft_prompt"):
        Bridge(encoder_of(prompted), projector_for(model))
    readings = (Reading(-1, "mean", True, "{text}!"), Reading(-1, "mean", True, "{text}?"))
    with pytest.raises(UnsupportedError, match="several prompts"):
        Bridge(Encoder(model, EncoderSpec(model.name, readings, "{text}")), projector_for(model))
