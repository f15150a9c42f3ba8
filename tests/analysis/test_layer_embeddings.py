"""Vectors of every layer of an encoder, against the model's own hidden states and `encode`."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from decoder2vec.analysis.layer_embeddings import LayerEmbeddings, curve_indices, load_texts, sample_texts
from decoder2vec.encoder import Encoder
from decoder2vec.errors import InputError

TEXTS = [
    f"The {who} {does} {what}."
    for who in ("dog", "cat", "old king", "child")
    for does in ("sees", "eats", "likes", "finds", "sells")
    for what in ("fish", "bread", "the sea")
]


@pytest.fixture(scope="module")
def encoder(own_cache):
    return Encoder.from_pretrained("tiny-llama", device="cpu", dtype="float32", template="plain", pooling="mean")


@pytest.fixture(scope="module")
def layers(encoder):
    return LayerEmbeddings(encoder, TEXTS)


@pytest.mark.parametrize("padding", ["left", "right"])
@pytest.mark.parametrize("pooling", ["mean", "lasttoken"])
def test_layers_are_block_outputs_with_either_padding(encoder, pooling, padding):
    layers = LayerEmbeddings(encoder, TEXTS, pooling)
    model, tokenizer = encoder.backbone.model, encoder.backbone.tokenizer
    outputs = {}
    hooks = [
        block.register_forward_hook(
            lambda _, __, out, n=n: outputs.update({n: out[0] if isinstance(out, tuple) else out})
        )
        for n, block in enumerate(encoder.backbone.blocks, 1)
    ]
    ids = [tokenizer(text)["input_ids"] for text in TEXTS]
    width = max(map(len, ids))
    padding_ids = [[0] * (width - len(text_ids)) for text_ids in ids]
    rows = [[*b, *i] if padding == "left" else [*i, *b] for i, b in zip(ids, padding_ids, strict=True)]
    masks = [
        [*b, *[1] * len(i)] if padding == "left" else [*[1] * len(i), *b] for i, b in zip(ids, padding_ids, strict=True)
    ]
    mask = torch.tensor(masks)
    with torch.no_grad():
        positions = (mask.cumsum(1) - 1).clamp(min=0)
        model(input_ids=torch.tensor(rows), attention_mask=mask, position_ids=positions, use_cache=False)
    for hook in hooks:
        hook.remove()
    for index, reading in enumerate(layers.readings[1:-1], 1):
        states = outputs[reading.layer]
        if pooling == "mean":
            expected = (states * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)
        else:
            last = (mask * torch.arange(width)).argmax(1)
            expected = states[torch.arange(len(TEXTS)), last]
        np.testing.assert_allclose(layers.layer(index), expected.numpy(), rtol=2e-3, atol=2e-3)


def test_curve_has_layers_1_to_last_with_the_last_normed(layers):
    curve = [layers.readings[index] for index in curve_indices(layers.readings)]
    assert [(r.layer, r.normed) for r in curve] == [(1, False), (2, False), (3, False), (4, True)]
    assert [(r.layer, r.normed) for r in layers.readings] == [*((n, False) for n in range(5)), (4, True)]


def test_embeddings_equal_encode(encoder, layers, gap):
    assert gap(layers.embeddings(), encoder.encode(TEXTS)) < 1e-3  # the store keeps 11 bits
    with_head = encoder.with_head("standardise", TEXTS)
    assert gap(LayerEmbeddings(with_head, TEXTS).embeddings(), with_head.encode(TEXTS)) < 2e-2
    two_layers = Encoder.from_pretrained("tiny-llama", device="cpu", dtype="float32", layer=[1, 3], normalize=True)
    assert gap(LayerEmbeddings(two_layers, TEXTS).embeddings(), two_layers.encode(TEXTS)) < 1e-3


def test_duplicate_texts_are_dropped(encoder):
    assert len(LayerEmbeddings(encoder, [*TEXTS, *TEXTS[:7]]).texts) == len(TEXTS)


def test_sample_has_no_blanks_or_duplicates():
    assert sample_texts(["b", " ", "a", "b", "", "c"]) == ["b", "a", "c"]
    assert sample_texts([str(n) for n in range(101)], 3) == ["0", "50", "100"]
    assert sample_texts(["a", "b"], 1) == ["a"]


def test_texts_are_loaded_from_a_file_or_a_list(tmp_path):
    file, messages = tmp_path / "texts.txt", []
    file.write_text("a\n\nb\na\nc\n")
    assert load_texts(file, notify=messages.append) == (["a", "b", "c"], "texts.txt")
    assert messages == [f"{file}: 2 of 5 texts are blank or duplicates; left out"]
    assert load_texts(["a", "b", "c"], limit=2) == (["a", "c"], None)
    with pytest.raises(InputError, match="--texts FILE"):
        load_texts(None)
    with pytest.raises(InputError, match="limit of 0"):
        load_texts(["a"], limit=0)
