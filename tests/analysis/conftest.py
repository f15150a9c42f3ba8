"""Fixture of the analysis tests: one thread."""

from __future__ import annotations

import pytest
import torch

from decoder2vec.backbone.machine import quiet_transformers


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    """One thread, since several only wait for each other on tiny models, and no warnings about missing kernels."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with quiet_transformers():
        yield
    torch.set_num_threads(threads)
