"""Shared by all tests: a cache of their own, and tiny models that are built and loaded once."""

from __future__ import annotations

import os
from functools import cache

import numpy as np
import pytest


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory):
    """The user's cache is never touched; tiny models are built once for the whole run."""
    before = os.environ.get("D2V_CACHE")
    os.environ["D2V_CACHE"] = str(tmp_path_factory.mktemp("cache"))
    yield os.environ["D2V_CACHE"]
    if before is None:
        del os.environ["D2V_CACHE"]
    else:
        os.environ["D2V_CACHE"] = before


@pytest.fixture(scope="session")
def backbone(own_cache):
    """load(name, attention=None) -> Backbone on the CPU in float32; shared, so do not change what it returns."""
    from decoder2vec.backbone.backbone import Backbone

    @cache
    def load(name: str, attention: str | None = None) -> Backbone:
        return Backbone.load(name, attention=attention, device="cpu", dtype="float32")

    return load


@pytest.fixture(scope="module")
def one_thread():
    """Several threads only wait for each other on models so small."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="session")
def gap():
    """gap(found, expected) -> largest difference, relative to the largest expected value; inf where not finite."""

    def relative(found, expected):
        found, expected = np.asarray(found, np.float64), np.asarray(expected, np.float64)
        assert found.shape == expected.shape
        if not np.isfinite(found).all():
            return float("inf")
        return float(np.abs(found - expected).max() / np.abs(expected).max())

    return relative
