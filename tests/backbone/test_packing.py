"""Packed rows give the vectors of padded batches, on every family that passes the check; the others are not packed."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from decoder2vec.activations import extract
from decoder2vec.activations.capture import Capture
from decoder2vec.activations.extract import Extractor
from decoder2vec.adapters.lora import Lora
from decoder2vec.adapters.soft_prompt import SoftPrompt
from decoder2vec.backbone import packing
from decoder2vec.backbone.backbone import Backbone
from decoder2vec.backbone.batch import Packing
from decoder2vec.backbone.block_modes import BusyBlocks
from decoder2vec.backbone.packing import can_pack, longest_packed_text, packing_pays
from decoder2vec.backbone.tiny import TINY
from decoder2vec.config import Reading
from decoder2vec.maths.pooling import POOLINGS
from decoder2vec.text.batches import collate, pack, plan_rows
from decoder2vec.text.template import Template
from decoder2vec.text.tokens import Tokeniser
from decoder2vec.training import batch_encoder
from decoder2vec.training.batch_encoder import choose_batch_encoder
from toys.texts import sentences

NEVER_PACKED = {
    "gpt_neo": "attention of its own",
    "gptj": "attention of its own",
    "falcon": "attention of its own",
    "bloom": "positions are added to the scores",
    "gemma2": "scores are limited",
    "mamba": "no attention",
    "mamba2": "no attention",
}
TEXTS = ["A cat.", "Dogs run.", "x", "The committee met."]

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def packed_on_cpu(monkeypatch):
    """As if this machine had a GPU, on which packing pays."""
    monkeypatch.setattr(extract, "packing_pays", can_pack)
    monkeypatch.setattr(batch_encoder, "packing_pays", lambda backbone, _: can_pack(backbone))


@pytest.fixture
def llama(own_cache):
    return Backbone.load("tiny-llama", device="cpu", dtype="float32")


def prompts_of(backbone, texts, template="plain"):
    return Tokeniser(backbone, Template.of(template), 64)(texts).prompts


def all_readings(backbone):
    return [Reading(layer, name) for layer in range(backbone.n_layers + 1) for name in POOLINGS]


# --- families --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("grouped", [True, False])
@pytest.mark.parametrize("attention", ["causal", "bidirectional"])
@pytest.mark.parametrize("name", [name for name, family in TINY.items() if family not in NEVER_PACKED])
def test_packed_vectors_equal_padded_ones(name, attention, grouped, gap):
    backbone = Backbone.load(name, attention=attention, device="cpu", dtype="float32")
    assert can_pack(backbone)
    for template in ("plain", "{text}."):
        prompts = [p for p in prompts_of(backbone, TEXTS, template) if len(p.ids) <= longest_packed_text(backbone)]
        row = pack(prompts)
        assert row.packing.groups
        if not grouped:
            row = replace(row, packing=replace(row.packing, groups=None))
        capture = Capture(backbone, all_readings(backbone))
        with torch.inference_mode():
            assert gap(capture(row), capture(collate(prompts, backbone.pad_token_id))) < 1e-5


@pytest.mark.parametrize("name", [name for name, family in TINY.items() if family in NEVER_PACKED])
def test_other_families_are_not_packed(name):
    assert not can_pack(Backbone.load(name, attention="causal", device="cpu", dtype="float32"))


def test_attention_between_texts_is_noticed(llama, monkeypatch):
    def one_text(query, key, value, positions, mask, dropout, scaling):
        repeats = query.shape[1] // key.shape[1]
        key, value = key.repeat_interleave(repeats, 1), value.repeat_interleave(repeats, 1)
        weights = torch.einsum("qhd,khd->hqk", query, key).mul(scaling).softmax(-1)
        return torch.einsum("hqk,khd->qhd", weights, value)

    monkeypatch.setattr(packing, "_in_groups", one_text)
    assert not can_pack(llama)


def test_windows_of_local_attention_limit_packed_texts(llama):
    mistral = Backbone.load("tiny-mistral", device="cpu", dtype="float32")
    assert longest_packed_text(mistral) == mistral.model.config.sliding_window
    assert longest_packed_text(llama) > 1e9


def test_a_cpu_does_not_pack(llama):
    assert can_pack(llama) and not packing_pays(llama)


@pytest.mark.parametrize(("name", "has_heads"), [("tiny-llama", True), ("tiny-gpt2", True), ("tiny-mamba", False)])
def test_a_gpu_packs_in_16_bits_only(name, has_heads, monkeypatch):
    backbone = Backbone.load(name, device="cpu", dtype="float32")
    monkeypatch.setattr(Backbone, "device", torch.device("cuda"))
    monkeypatch.setattr(packing, "can_pack", lambda _: True)
    assert not packing_pays(backbone), "in float32 there is no kernel"
    assert packing_pays(backbone, torch.bfloat16) == has_heads


def test_only_adapters_that_leave_tokens_alone_are_packed(llama):
    assert can_pack(llama.with_adapter(Lora.initialise(llama, 2, 4)))
    assert not can_pack(llama.with_adapter(SoftPrompt(torch.zeros(2, llama.dim), "append")))
    llama.set_attention("bidirectional:1")
    assert not can_pack(llama)


# --- batches ---------------------------------------------------------------------------------------------------------


def test_a_row_holds_the_prompts_one_after_the_other(llama):
    prompts = prompts_of(llama, TEXTS, "Say: {text}")
    row = pack(prompts)
    assert row.ids[0].tolist() == [token for prompt in prompts for token in prompt.ids]
    bounds = row.packing.boundaries.tolist()
    for index, prompt in enumerate(prompts):
        inside = slice(bounds[index], bounds[index + 1])
        assert row.packing.positions[0, inside].tolist() == list(range(len(prompt.ids)))
        assert (row.start[index], row.end[index]) == (bounds[index] + prompt.start, bounds[index] + prompt.end)


def test_groups_hold_whole_texts(llama):
    lengths = np.random.default_rng(0).integers(1, 60, 200)
    groups = Packing.of(lengths).groups
    placed = groups.prompts.flatten()[groups.positions]
    assert placed.tolist() == np.repeat(np.arange(200), lengths).tolist()
    assert sorted(set(groups.positions.tolist())) == groups.positions.tolist(), "every position is taken once"
    for text in range(200):
        assert len((groups.prompts == text).any(dim=1).nonzero()) == 1, "no text is divided"
    assert len(groups.prompts) <= 1.4 * lengths.sum() / 128


def test_long_texts_are_not_grouped():
    assert Packing.of([200, 1, 1, 1, 1, 1, 1, 1, 1, 1]).groups is None
    assert Packing.of([100, 90]).groups is None


def test_rows_are_filled_in_order():
    assert list(plan_rows([3, 4, 2, 9, 1], 8)) == [[0, 1], [2], [3], [4]]
    assert list(plan_rows([], 8)) == []


@pytest.mark.parametrize("budget", [8, 37, 100, 1000, 100_000])
def test_even_rows_are_within_the_budget_and_of_about_one_size(budget):
    lengths = np.random.default_rng(0).integers(1, 9, 500).tolist()
    rows = list(plan_rows(lengths, budget, even=True))
    sizes = [sum(lengths[text] for text in row) for row in rows]
    assert [text for row in rows for text in row] == list(range(500))
    assert max(sizes) <= budget
    if budget > 100:  # rows of many texts
        assert len(rows) == -(-sum(lengths) // budget) and min(sizes) >= 0.9 * max(sizes) - 2 * len(rows) * max(lengths)
    assert list(plan_rows([], budget, even=True)) == []


def test_no_packing_has_a_single_group():
    """torch compiles a size of 1 apart from all others: a small chunk must not be compiled anew."""
    assert len(Packing.of([3, 4]).groups.prompts) == 2


# --- in use ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("on_overflow", ["truncate", "chunk"])
def test_extracted_latents_are_the_same(llama, packed_on_cpu, monkeypatch, gap, on_overflow):
    texts = [*sentences(40), " ".join(sentences(6)), "", "a"]
    readings = [Reading(layer, "mean") for layer in range(llama.n_layers + 1)]
    extractor = Extractor(llama, readings, max_length=24, on_overflow=on_overflow, budget=100)
    monkeypatch.setattr(extract, "_WINDOW_CHARACTERS", 300)  # several windows
    packed = extractor(texts)
    assert extractor.stats.padding == 0 and extractor.stats.texts == len(texts)
    monkeypatch.setattr(extract, "packing_pays", lambda _: False)
    assert gap(packed, Extractor(llama, readings, max_length=24, on_overflow=on_overflow)(texts)) < 1e-5


def test_a_row_too_large_for_memory_is_divided(llama, packed_on_cpu, monkeypatch, gap):
    texts = sentences(16)
    expected = Extractor(llama, [Reading(-1, "mean")])(texts)
    real = Capture.__call__

    def small_memory(capture, batch):
        if batch.width > 60:
            raise torch.OutOfMemoryError("out of memory")
        return real(capture, batch)

    monkeypatch.setattr(Capture, "__call__", small_memory)
    extractor = Extractor(llama, [Reading(-1, "mean")], budget=400)
    assert gap(extractor(texts), expected) < 1e-5
    assert extractor.budget < 400


def test_busy_blocks_are_compiled_and_give_the_same_vectors(llama, gap):
    prompts = prompts_of(llama, sentences(8))
    capture, busy = Capture(llama, [Reading(-1, "mean")]), BusyBlocks(llama, after=50, backend="aot_eager")
    row = pack(prompts)
    with torch.inference_mode():
        first = busy.run(lambda: capture(row), 50)
        assert not busy.compiles
        assert gap(busy.run(lambda: capture(row), 1), first) < 1e-5
        assert busy.compiles
    assert all("forward" not in vars(block) for block in llama.blocks), "the model is left as it was"


def test_blocks_that_cannot_be_compiled_run_as_they_are(llama, gap):
    def broken(*_):
        raise RuntimeError("no compiler")

    capture, busy = Capture(llama, [Reading(-1, "mean")]), BusyBlocks(llama, after=0, backend=broken)
    row = pack(prompts_of(llama, sentences(4)))
    torch._dynamo.reset()  # blocks of this kind may have been compiled by another test
    with torch.inference_mode():
        assert gap(busy.run(lambda: capture(row), 1), capture(row)) < 1e-6
        assert not busy.compiles


def test_gradients_are_the_same(llama, packed_on_cpu, monkeypatch, gap):
    prompts, rows = prompts_of(llama, sentences(12)), [3, 0, 7, 11, 5]
    gradients = []
    for pays in (True, False):
        monkeypatch.setattr(batch_encoder, "packing_pays", lambda *_, pays=pays: pays)
        torch.manual_seed(0)
        lora = Lora.initialise(llama, 2, 4).requires_grad_(True)
        encode = choose_batch_encoder(llama.with_adapter(lora), prompts, Reading(-1, "mean"), budget=40)
        assert encode.packed is pays
        vectors = encode(rows)
        (vectors * torch.arange(vectors.numel()).view_as(vectors).cos()).sum().backward()
        gradients.append([vectors.detach(), *(matrix.grad for matrix in lora.upper.values())])
    for packed, padded in zip(*gradients, strict=True):
        assert gap(packed, padded) < 1e-5
