"""Fixture of the analysis tests."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="module", autouse=True)
def small_models(one_thread):
    """One thread: all models here are tiny."""
