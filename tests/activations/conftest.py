"""Shared by the tests of latents."""

from __future__ import annotations

import pytest

from decoder2vec.activations.capture import Capture


@pytest.fixture
def computed(monkeypatch):
    """How many prompts went through the model: a list with one number per batch."""
    rows, real = [], Capture.__call__

    def counting(self, batch):
        rows.append(len(batch.ids))
        return real(self, batch)

    monkeypatch.setattr(Capture, "__call__", counting)
    return rows
