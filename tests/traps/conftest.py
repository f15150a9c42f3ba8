"""Independent references: one unpadded text through plain transformers, and pooling by plain loops."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from decoder2vec.activations.capture import Capture
from decoder2vec.backbone.machine import quiet_transformers
from decoder2vec.text.batches import collate
from decoder2vec.text.template import Template
from decoder2vec.text.tokens import Tokeniser


@pytest.fixture(scope="session", autouse=True)
def quiet(own_cache):
    """No remarks about missing kernels; and one thread, since several only wait for each other on models so small."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with quiet_transformers():
        yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="session")
def texts():
    """Of three lengths, so that a batch of them is padded."""
    return ["A long, slow rise in the fridge gives sourdough its tangy flavour.", "Short one.", "A red card, early"]


@pytest.fixture(scope="session")
def prompts_of():
    """prompts_of(backbone, texts, template, ...) -> what our tokeniser makes of the texts."""

    def make(backbone, texts, template="plain", max_length=256, on_overflow="truncate"):
        return Tokeniser(backbone, Template.of(template), max_length, on_overflow)(texts).prompts

    return make


@pytest.fixture(scope="session")
def read():
    """read(backbone, prompts, readings, side) -> [prompt, reading, dim], all prompts in one padded batch."""

    @torch.inference_mode()
    def run(backbone, prompts, readings, side="right"):
        return Capture(backbone, readings)(collate(prompts, backbone.pad_token_id, side=side)).numpy()

    return run


@pytest.fixture(scope="session")
def alone():
    """alone(backbone, ids) -> [layer, token, dim] by transformers itself: one text, no padding, no hook of ours.

    Layer 0 is the embeddings; the last layer is after the final norm, as transformers gives it.
    """

    @torch.inference_mode()
    def states(backbone, ids):
        row = torch.tensor([ids])
        found = list(backbone.model(input_ids=row, output_hidden_states=True, use_cache=False).hidden_states)
        if "mamba" in backbone.family:  # its list starts after the first block and ends with raw, normed
            found = [backbone.model.get_input_embeddings()(row), *found[:-2], found[-1]]
        return torch.cat(found).float().numpy()

    return states


@pytest.fixture(scope="session")
def by_loop():
    """by_loop(name, [token, dim] states) -> the pooled vector, in float64 and one token at a time."""

    def pooled(name, states):
        rows = [np.asarray(row, np.float64) for row in states]
        if name == "cls":
            return rows[0]
        if name == "lasttoken":
            return rows[-1]
        total, weight, best = np.zeros_like(rows[0]), 0.0, rows[0]
        for number, row in enumerate(rows, 1):
            share = number if name == "weightedmean" else 1
            total, weight, best = total + share * row, weight + share, np.maximum(best, row)
        return {"max": best, "sum": total}.get(name, total / weight)

    return pooled
