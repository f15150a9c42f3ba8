"""Every family is read correctly: each layer, pooling and norm against a plain forward pass of transformers.

The same checks write the table of supported families in docs/guide/models.md: D2V_WRITE_DOCS=1 rewrites it.
"""

from __future__ import annotations

import importlib
import os
from functools import cache, reduce
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
import torch
from transformers import AutoModel, AutoTokenizer

from decoder2vec.activations.extract import Extractor
from decoder2vec.backbone.backbone import Backbone
from decoder2vec.backbone.blocks import find_blocks, find_final_norm
from decoder2vec.backbone.machine import quiet_transformers
from decoder2vec.backbone.tiny import TINY, tiny_folder
from decoder2vec.config import Reading
from decoder2vec.errors import UnsupportedError

DOCS = Path(__file__).parents[2] / "docs" / "guide" / "models.md"
BEGIN, END = "<!-- support table -->", "<!-- end -->"

POOLINGS = ("lasttoken", "mean", "weightedmean", "max", "cls", "sum")
TEXTS = [
    "Steam in the first ten minutes of baking helps the crust turn crisp and brown, whatever the flour.",
    "A",
    "Knead the flour and water.",
    "If the loaf is dense and gummy, the yeast was probably too old, or the dough was too cold to rise.",
    "Brown bread 42",
]
"""Lengths from one token to several attention windows (16 tokens in the tiny models)."""

CAUSAL_ONLY = {"gpt_neo": "buffer", "mamba": "left to right", "mamba2": "left to right"}
TOLERANCE = 1e-5

# where each family keeps its blocks and its final norm
BLOCKS = {"gpt2": "h", "gpt_neo": "h", "gptj": "h", "falcon": "h", "bloom": "h", "opt": "decoder.layers"}
NORMS = {
    **dict.fromkeys(("gpt2", "gpt_neo", "gptj", "falcon", "bloom"), "ln_f"),
    **dict.fromkeys(("mamba", "mamba2"), "norm_f"),
    "opt": "decoder.final_layer_norm",
    "gpt_neox": "final_layer_norm",
    "phi": "final_layernorm",
}
NO_4D_MASK = ("opt", "bloom")
STATE_SPACE = ("mamba", "mamba2")
"""Their hidden_states are the outputs of the blocks, without the embeddings; those of all others are the inputs."""


def submodule(model, path):
    return reduce(getattr, path.split("."), model)


@cache
def plain_model(name, implementation):
    with quiet_transformers():
        return AutoModel.from_pretrained(tiny_folder(name), attn_implementation=implementation).eval()


@cache
def plain_tokenizer(name):
    return AutoTokenizer.from_pretrained(tiny_folder(name))


def full_attention_mask(model, width):
    """Additive 4-D mask of zeros; a sliding layer attends to its window on both sides."""
    position = torch.arange(width)
    full = torch.zeros(1, 1, width, width)
    window = getattr(model.config, "sliding_window", None)
    if window is None:
        return full
    distance = (position[:, None] - position[None, :]).abs()
    sliding = full.masked_fill(distance > window, torch.finfo(torch.float32).min)
    layer_types = getattr(model.config, "layer_types", None)
    return {"full_attention": full, "sliding_attention": sliding} if layer_types else sliding


@torch.inference_mode()
def plain_states(name, text, attention):
    """[layer, token, dim] raw and normed states of a single text without padding."""
    family = TINY[name]
    model = plain_model(name, None if attention == "causal" else "eager")
    ids = torch.tensor([plain_tokenizer(name)(text)["input_ids"]])
    inputs = {"input_ids": ids}
    if attention == "bidirectional" and family not in NO_4D_MASK:
        inputs["attention_mask"] = full_attention_mask(model, ids.shape[1])
    outputs = []
    hook = submodule(model, BLOCKS.get(family, "layers"))[-1].register_forward_hook(
        lambda _, __, out: outputs.append(out)
    )
    with pytest.MonkeyPatch.context() as patch:
        if attention == "bidirectional" and family in NO_4D_MASK:
            module = importlib.import_module(f"transformers.models.{family}.modeling_{family}")
            patch.setattr(module, "create_causal_mask", lambda **_: torch.zeros(1, 1, *[ids.shape[1]] * 2))
        output = model(**inputs, output_hidden_states=True, use_cache=False)
    hook.remove()
    last = outputs[0][0] if isinstance(outputs[0], tuple) else outputs[0]
    raw = [*output.hidden_states[:-1], last]
    if family in STATE_SPACE:
        raw = [submodule(model, "embeddings")(ids), *output.hidden_states[:-1]]
    norm = submodule(model, NORMS.get(family, "norm"))
    normed = [*(norm(states) for states in raw[:-1]), output.last_hidden_state]
    return [states[0].double().numpy() for states in raw], [states[0].double().numpy() for states in normed]


def pool_by_loop(states, pooling):
    if pooling == "lasttoken":
        return states[-1]
    if pooling == "cls":
        return states[0]
    if pooling == "max":
        return np.array([max(column) for column in states.T])
    total = np.zeros(states.shape[1])
    weight = 0
    for position, state in enumerate(states):
        step = position + 1 if pooling == "weightedmean" else 1
        total += step * state
        weight += step
    return total if pooling == "sum" else total / weight


@cache
def load_backbone(name, attention="causal"):
    return Backbone.load(name, attention=attention, device="cpu", dtype="float32")


@cache
def wrong_layers(name, attention):
    """Layers of which any pooling of any text, raw or normed, differs from the plain forward pass."""
    backbone = load_backbone(name, attention)
    readings = [
        Reading(layer, pooling, normed)
        for layer in range(backbone.n_layers + 1)
        for pooling in POOLINGS
        for normed in (False, True)
    ]
    extractor = Extractor(backbone, readings, budget=10_000)
    with mock.patch.object(Backbone, "batch_overhead", 10**6):
        batched = extractor(TEXTS)
    assert extractor.stats.padding > 0.3, "the texts must share one padded batch"
    single = np.concatenate([Extractor(backbone, readings)([text]) for text in TEXTS])
    wrong = set()
    for row, text in enumerate(TEXTS):
        states = dict(zip((False, True), plain_states(name, text, attention), strict=True))
        assert len(states[False]) == backbone.n_layers + 1
        for column, reading in enumerate(readings):
            expected = pool_by_loop(states[reading.normed][reading.layer], reading.pooling)
            tolerance = TOLERANCE * np.abs(expected).max()
            for vector in (batched[row, column], single[row, column]):
                if not np.abs(vector - expected).max() <= tolerance:
                    wrong.add(reading.layer)
    return wrong


@pytest.mark.parametrize("name", TINY)
def test_causal_readings_equal_a_plain_forward_pass(name):
    assert wrong_layers(name, "causal") == set()


@pytest.mark.parametrize("name", [name for name, family in TINY.items() if family not in CAUSAL_ONLY])
def test_bidirectional_readings_equal_a_plain_forward_pass(name):
    assert wrong_layers(name, "bidirectional") == set()


@pytest.mark.parametrize("name", [name for name, family in TINY.items() if family in CAUSAL_ONLY])
def test_causal_only_family_is_refused_with_the_reason(name):
    with pytest.raises(UnsupportedError, match=CAUSAL_ONLY[TINY[name]]) as caught:
        Backbone.load(name, attention="bidirectional")
    assert TINY[name] in str(caught.value)


@pytest.mark.parametrize("name", TINY)
def test_pad_and_bos_are_those_of_the_tokenizer(name):
    model, tokenizer = load_backbone(name), plain_tokenizer(name)
    assert model.pad_token_id == (tokenizer.eos_token_id if tokenizer.pad_token_id is None else tokenizer.pad_token_id)
    assert model.missing_bos_token_id is None
    assert model.family == TINY[name]


@pytest.mark.parametrize("name", TINY)
def test_blocks_and_final_norm_are_those_of_the_family(name):
    model, family = load_backbone(name).model, TINY[name]
    parent, blocks = find_blocks(model)
    assert blocks is submodule(model, BLOCKS.get(family, "layers"))
    assert find_final_norm(parent) is submodule(model, NORMS.get(family, "norm"))


def table_row(name):
    model, tokenizer = load_backbone(name), plain_tokenizer(name)
    wrong = wrong_layers(name, "causal")
    correct = [str(layer) for layer in range(model.n_layers + 1) if layer not in wrong]
    try:
        bidirectional = "no" if wrong_layers(name, "bidirectional") else "yes"
    except UnsupportedError as error:
        bidirectional = "no: " + str(error).partition(": ")[2].rstrip(".")
    pad = "none; EOS fills the rows" if tokenizer.pad_token is None else "its own"
    adds_bos = tokenizer("a")["input_ids"][0] == tokenizer.bos_token_id
    cells = (
        f"`{TINY[name]}`",
        ", ".join(correct) if wrong else "all",
        "no" if wrong else "yes",
        bidirectional,
        pad,
        "by the tokenizer" if adds_bos else "by us" if model.missing_bos_token_id is not None else "none",
    )
    return "| " + " | ".join(cells) + " |"


def support_table():
    head = ("Family", "Layers read", "Causal", "Bidirectional", "Pad token", "BOS")
    lines = ["| " + " | ".join(head) + " |", "|" + " --- |" * len(head), *map(table_row, TINY)]
    return "\n".join(lines)


def test_support_table_in_docs():
    text = DOCS.read_text(encoding="utf-8")
    before, _, remainder = text.partition(BEGIN)
    old, _, after = remainder.partition(END)
    new = f"\n{support_table()}\n"
    if os.environ.get("D2V_WRITE_DOCS") == "1":
        DOCS.write_text(before + BEGIN + new + END + after, encoding="utf-8")
        return
    assert old == new, "docs/guide/models.md is out of date: run this test with D2V_WRITE_DOCS=1"
