"""Fixtures for the tests of activations."""

from __future__ import annotations

import pytest

from decoder2vec.activations.capture import Capture


@pytest.fixture
def computed(monkeypatch):
    """Number of prompts of each batch that ran through the model."""
    sizes, real = [], Capture.__call__

    def counting(self, batch):
        sizes.append(len(batch.ids))
        return real(self, batch)

    monkeypatch.setattr(Capture, "__call__", counting)
    return sizes
