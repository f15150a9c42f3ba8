"""Fixtures for the tests of adapters: texts of different lengths as tokens, and adapters with random parameters."""

from __future__ import annotations

import pytest
import torch

from decoder2vec.backbone.machine import quiet_transformers
from decoder2vec.text.batches import collate
from decoder2vec.text.template import Template
from decoder2vec.text.tokens import Tokeniser

TEXTS = ["the dogs run over the long road in the rain and sing of boats", "cats sleep", "a"]


@pytest.fixture(scope="module", autouse=True)
def small_models(one_thread):
    """One thread for tiny models, and no warnings about missing kernels."""
    with quiet_transformers():
        yield


@pytest.fixture(scope="session")
def prompts_of():
    """prompts_of(backbone) -> the tokenised texts."""
    return lambda backbone: Tokeniser(backbone, Template.of("plain"), 64)(TEXTS).prompts


@pytest.fixture(scope="session")
def batch_of(prompts_of):
    """batch_of(backbone, side) -> all texts in one padded batch."""
    return lambda backbone, side="right": collate(prompts_of(backbone), backbone.pad_token_id, side=side)


@pytest.fixture
def randomised():
    """randomised(adapter) -> the same adapter, frozen, with noise added to all parameters."""

    def add_noise(adapter, size=0.1):
        torch.manual_seed(1)
        for parameter in adapter.requires_grad_(False).parameters():
            parameter += size * torch.randn_like(parameter)
        return adapter

    return add_noise
