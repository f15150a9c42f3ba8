"""Vectors of spans equal those pooled from all hidden states of transformers, one text at a time."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from decoder2vec.activations.extract import Extractor
from decoder2vec.activations.spans import SpanExtractor, TextSpan, span_keys
from decoder2vec.activations.store import Store
from decoder2vec.adapters.lora import Lora
from decoder2vec.adapters.soft_prompt import SoftPrompt
from decoder2vec.config import Reading
from decoder2vec.errors import InputError, UnsupportedError
from decoder2vec.text.template import Template

TEXTS = [
    "The old sailor sold his boat to a teacher in the harbour town.",
    "She left.",
    "When the rain began, Maria called her brother, who was still at work on the other side of the river.",
]
SPANS = [
    TextSpan(TEXTS[0], (4, 14)),
    TextSpan(TEXTS[2], (21, 26)),
    TextSpan(TEXTS[0], (20, 23)),
    TextSpan(TEXTS[1], (0, 3)),
    TextSpan(TEXTS[2], (34, 37)),
    TextSpan(TEXTS[1], (4, 9)),
]
READINGS = [Reading(layer, pooling) for layer in (0, 2, 4) for pooling in ("mean", "lasttoken", "cls", "max")]


def reference(backbone, item, reading):
    """By the hidden states of transformers and the offsets of the tokenizer."""
    encoding = backbone.tokenizer(item.text, return_offsets_mapping=True, return_tensors="pt")
    begin, end = item.span
    tokens = [i for i, (a, b) in enumerate(encoding["offset_mapping"][0].tolist()) if a < end and b > begin]
    blocks = []
    handles = [block.register_forward_hook(lambda _, __, out: blocks.append(out)) for block in backbone.blocks]
    handles.append(
        backbone.blocks[0].register_forward_pre_hook(
            lambda _, args, kwargs: blocks.append(args[0] if args else kwargs["hidden_states"]), with_kwargs=True
        )
    )
    with torch.no_grad():
        backbone.model(input_ids=encoding["input_ids"])
    for handle in handles:
        handle.remove()
    state = blocks[reading.layer]
    states = (state[0] if isinstance(state, tuple) else state)[0][tokens]
    pools = {"mean": states.mean(0), "lasttoken": states[-1], "cls": states[0], "max": states.max(0).values}
    return pools[reading.pooling].numpy()


def read(extractor, items, root):
    store = Store(extractor.space(), root=root)
    extractor.fill(store, items)
    return store.read(span_keys(items))


@pytest.mark.parametrize("attention", ["causal", "bidirectional"])
def test_spans_equal_hidden_states(backbone, gap, tmp_path, attention):
    model = backbone("tiny-llama", attention)
    vectors = read(SpanExtractor(model, READINGS), SPANS, tmp_path)
    expected = np.stack([[reference(model, item, reading) for reading in READINGS] for item in SPANS])
    assert gap(vectors, expected) < 2e-3  # stored in 16 bits


def test_a_text_is_computed_once_and_a_second_call_computes_nothing(backbone, tmp_path):
    extractor = SpanExtractor(backbone("tiny-llama"), READINGS)
    capture, rows = extractor.capture, []

    class Counting:
        readings = capture.readings

        def __call__(self, batch):
            rows.append(len(batch.ids))
            return capture(batch)

    extractor.capture = Counting()
    first = read(extractor, SPANS, tmp_path)
    assert sum(rows) == len(TEXTS)
    second = read(extractor, SPANS[::-1], tmp_path)
    assert sum(rows) == len(TEXTS)
    assert np.array_equal(first, second[::-1])


def test_a_whole_text_equals_the_extractor(backbone, gap, tmp_path):
    model = backbone("tiny-llama")
    vectors = read(SpanExtractor(model, READINGS), [TextSpan(text) for text in TEXTS], tmp_path)
    assert gap(vectors, Extractor(model, READINGS, Template.of("plain"))(TEXTS)) < 2e-3


def test_a_prepended_soft_prompt_shifts_the_spans(backbone, gap, tmp_path):
    model = backbone("tiny-llama")
    prompt = SoftPrompt(torch.zeros(3, model.dim), "prepend", "text")
    adapted = model.with_adapter(prompt)
    items = [TextSpan(text) for text in TEXTS]
    vectors = read(SpanExtractor(adapted, READINGS), items, tmp_path)
    assert gap(vectors, Extractor(adapted, READINGS, Template.of("plain"))(TEXTS)) < 2e-3


def test_adapters_change_the_space_and_the_vectors(backbone, tmp_path):
    model = backbone("tiny-llama")
    with torch.random.fork_rng():
        torch.manual_seed(0)
        lora = Lora.initialise(model, rank=2, alpha=4)
        for parameter in lora.parameters():
            torch.nn.init.normal_(parameter, std=0.3)
    plain, adapted = SpanExtractor(model, READINGS), SpanExtractor(model.with_adapter(lora), READINGS)
    assert Store(plain.space(), root=tmp_path).folder != Store(adapted.space(), root=tmp_path).folder
    assert not np.allclose(read(plain, SPANS, tmp_path)[:, -1], read(adapted, SPANS, tmp_path)[:, -1], atol=1e-2)


def test_a_pooled_soft_prompt_is_refused(backbone):
    model = backbone("tiny-llama").with_adapter(SoftPrompt(torch.zeros(3, backbone("tiny-llama").dim)))
    with pytest.raises(UnsupportedError, match="soft prompt"):
        SpanExtractor(model, READINGS)


def test_spans_that_are_cut_off_or_empty_are_errors(backbone, tmp_path):
    model = backbone("tiny-llama")
    with pytest.raises(InputError, match="longer than 8 tokens"):
        read(SpanExtractor(model, READINGS, 8), [TextSpan(TEXTS[2], (90, 95))], tmp_path)
