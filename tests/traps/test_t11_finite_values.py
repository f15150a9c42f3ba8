"""T11: NaN and overflow in 16 bits, in fully masked rows, in stored latents and in heads."""

import numpy as np
import pytest
import torch
from transformers import AutoModel

from decoder2vec.activations.store import Store, text_key
from decoder2vec.backbone.backbone import Backbone
from decoder2vec.backbone.machine import choose_dtype
from decoder2vec.backbone.tiny import tiny_folder
from decoder2vec.config import EncoderSpec, Reading
from decoder2vec.encoder import Encoder
from decoder2vec.heads.standardise import AffineHead
from decoder2vec.maths.pooling import POOLINGS, pool
from decoder2vec.text.batches import collate
from decoder2vec.text.template import TEMPLATES

FAMILIES = ["tiny-gpt2", "tiny-llama", "tiny-gemma3_text"]
READINGS = [Reading(layer, name, normed) for layer in (0, 2, 4) for name in POOLINGS for normed in (False, True)]


@pytest.mark.filterwarnings("ignore:mkldnn_matmul failed")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("attention", ["causal", "bidirectional"])
@pytest.mark.parametrize("family", FAMILIES)
def test_padded_batches_are_finite_in_16_bits(
    family, attention, dtype, backbone, texts, tokenise, encode_batch, single_states, pool_by_loop, gap
):
    """Every layer and pooling, also of an empty text; 16 bits cost precision only."""
    exact = backbone(family, attention)
    model = exact if dtype == "float32" else Backbone.load(family, attention=attention, device="cpu", dtype=dtype)
    assert model.dtype == getattr(torch, dtype)
    prompts = tokenise(model, [*texts, ""])
    vectors = encode_batch(model, prompts, READINGS)
    assert vectors.dtype == np.float32
    assert np.isfinite(vectors).all()
    expected = [pool_by_loop("mean", single_states(exact, prompt.ids)[-1]) for prompt in prompts]
    column = READINGS.index(Reading(4, "mean", True))
    assert gap(vectors[:, column], expected) < (1e-5 if dtype == "float32" else 0.15)


@pytest.mark.parametrize("side", ["right", "left"])
@torch.inference_mode()
def test_right_padding_leaves_no_row_fully_masked(side, backbone, texts, tokenise):
    """A query without any key is 0/0. Padding on the left has such queries, and their NaN reaches every token."""
    prompts = tokenise(backbone("tiny-llama"), texts)
    batch = collate(prompts, 2, side=side)
    width = batch.ids.shape[1]
    visible = torch.ones(width, width, dtype=torch.bool).tril() & batch.mask.bool()[:, None, None, :]
    assert bool(visible.any(dim=-1).all()) == (side == "right")

    model = AutoModel.from_pretrained(tiny_folder("tiny-llama"), attn_implementation="eager").eval()
    mask = torch.zeros(visible.shape).masked_fill(~visible, float("-inf"))
    states = model(input_ids=batch.ids, attention_mask=mask, use_cache=False).last_hidden_state
    vectors = pool(states, batch.start, batch.end, ["mean"])
    assert bool(vectors.isfinite().all()) == (side == "right")


@pytest.mark.parametrize("template", sorted(TEMPLATES))
@pytest.mark.parametrize("family", FAMILIES)
def test_pooled_span_is_never_empty(family, template, backbone, tokenise):
    """The mean over an empty span, the faulty variant, is NaN and its maximum -inf."""
    for prompt in tokenise(backbone(family), ["", " ", "a", "\n\n", "🙂"], template):
        assert 0 <= prompt.start < prompt.end == len(prompt.ids)

    faulty = pool(torch.ones(1, 3, 4), torch.tensor([1]), torch.tensor([1]), ["mean", "weightedmean", "max"])
    assert not faulty.isfinite().any()


def test_float16_is_never_chosen(monkeypatch):
    """States of real models exceed 65504, the maximum of float16 but not of bfloat16."""
    cuda, big = torch.device("cuda"), torch.tensor(1e5)
    for supported in (True, False):
        monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation=True, s=supported: s)
        assert choose_dtype(cuda) == (torch.bfloat16 if supported else torch.float32)
        assert big.to(choose_dtype(cuda)).isfinite()
    assert choose_dtype(torch.device("cpu")) == torch.float32
    assert not big.to(torch.float16).isfinite()


@pytest.mark.parametrize("name", ["sum", "mean"])
def test_pooling_float16_states_does_not_overflow(name, pool_by_loop, gap):
    """A sum of 64 tokens of 2000 exceeds the maximum of float16."""
    states = torch.full((1, 64, 2), 2000.0, dtype=torch.float16)
    ours = pool(states, torch.tensor([0]), torch.tensor([64]), [name])[0, 0]
    assert gap(ours, pool_by_loop(name, states[0])) < 1e-6
    total = torch.zeros(2, dtype=torch.float16)
    for state in states[0]:
        total = total + state
    assert total.isinf().all()


def test_stored_latents_do_not_overflow(tmp_path, gap):
    """Latents are stored in 16 bits; without a scale for each vector, large values would become infinite."""
    latents = np.array([[[3e5, 1.0, -2e6]], [[1e-3, 2e-3, 0.0]]], np.float32)
    keys = [text_key("a"), text_key("b")]
    store = Store({"test": 1}, root=tmp_path)
    store.add(keys, latents)
    stored = Store({"test": 1}, root=tmp_path).read(keys)
    for row, expected in zip(stored, latents, strict=True):
        assert gap(row, expected) < 1e-3
    with np.errstate(over="ignore"):
        assert np.isinf(latents.astype(np.float16)).any()


@pytest.fixture(scope="module")
def bfloat16_encoder(own_cache):
    return Encoder(
        Backbone.load("tiny-llama", device="cpu", dtype="bfloat16"),
        EncoderSpec("", (Reading(2, "mean"),), template="{text}"),
    )


@pytest.mark.filterwarnings("ignore:mkldnn_matmul failed")
@pytest.mark.parametrize("kind", ["standardise", "whiten", "remove_top"])
def test_heads_compute_in_float32_over_a_16_bit_backbone(kind, bfloat16_encoder, gap):
    """In bfloat16, the faulty variant, small dimensions are lost beside large ones."""
    plain = bfloat16_encoder
    corpus = [f"{word} number {count}" for count in range(20) for word in ("bread", "chain")]
    encoder = plain.with_head(kind, corpus)
    vectors = plain.encode(corpus)
    vectors[:, 0] += 1000  # one huge dimension, as decoders have
    head = AffineHead.fit(kind, vectors)
    assert head.mean.dtype == head.map.dtype == encoder.encode("bread").dtype == np.float32
    assert np.isfinite(encoder.encode(corpus)).all()

    exact = vectors.astype(np.float64) - head.mean.astype(np.float64)
    exact = exact * head.map if head.map.ndim == 1 else exact @ head.map
    assert gap(head(vectors), exact) < 1e-3
    low, centre, scale = (torch.from_numpy(array).bfloat16() for array in (vectors, head.mean, head.map))
    faulty = (low - centre) * scale if scale.ndim == 1 else (low - centre) @ scale
    assert gap(faulty.float(), exact) > 0.05
