"""Independent references: a single unpadded text through plain transformers, and pooling by plain loops."""

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
    """No warnings about missing kernels, and one thread, since several are slower on such small models."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with quiet_transformers():
        yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="session")
def texts():
    """Texts of three lengths, so that a batch of them is padded."""
    return ["A long, slow rise in the fridge gives sourdough its tangy flavour.", "Short one.", "A red card, early"]


@pytest.fixture(scope="session")
def tokenise():
    """tokenise(backbone, texts, template, ...) -> the prompts of our tokeniser."""

    def run(backbone, texts, template="plain", max_length=256, on_overflow="truncate"):
        return Tokeniser(backbone, Template.of(template), max_length, on_overflow)(texts).prompts

    return run


@pytest.fixture(scope="session")
def encode_batch():
    """encode_batch(backbone, prompts, readings, side) -> [prompt, reading, dim], all prompts in one padded batch."""

    @torch.inference_mode()
    def run(backbone, prompts, readings, side="right"):
        return Capture(backbone, readings)(collate(prompts, backbone.pad_token_id, side=side)).numpy()

    return run


@pytest.fixture(scope="session")
def single_states():
    """single_states(backbone, ids) -> [layer, token, dim] by transformers: one text, no padding, none of our hooks.

    Layer 0 is the embeddings; the last layer is after the final norm, as transformers returns it.
    """

    @torch.inference_mode()
    def states(backbone, ids):
        row = torch.tensor([ids])
        layers = list(backbone.model(input_ids=row, output_hidden_states=True, use_cache=False).hidden_states)
        if "mamba" in backbone.family:  # its list starts after the first block and ends with raw, normed
            layers = [backbone.model.get_input_embeddings()(row), *layers[:-2], layers[-1]]
        return torch.cat(layers).float().numpy()

    return states


@pytest.fixture(scope="session")
def pool_by_loop():
    """pool_by_loop(pooling, [token, dim] states) -> the pooled vector, in float64 and one token at a time."""

    def pooled(name, states):
        rows = [np.asarray(row, np.float64) for row in states]
        if name == "cls":
            return rows[0]
        if name == "lasttoken":
            return rows[-1]
        total, weight, maximum = np.zeros_like(rows[0]), 0.0, rows[0]
        for rank, row in enumerate(rows, 1):
            token_weight = rank if name == "weightedmean" else 1
            total, weight = total + token_weight * row, weight + token_weight
            maximum = np.maximum(maximum, row)
        return {"max": maximum, "sum": total}.get(name, total / weight)

    return pooled
