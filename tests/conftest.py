"""Fixtures for all tests: a separate cache, and tiny models that are built and loaded once."""

from __future__ import annotations

import os
from functools import cache
from types import SimpleNamespace

import numpy as np
import pytest


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory):
    """Use a temporary cache instead of the user's; tiny models are built once for the whole run."""
    previous = os.environ.get("D2V_CACHE")
    os.environ["D2V_CACHE"] = str(tmp_path_factory.mktemp("cache"))
    yield os.environ["D2V_CACHE"]
    if previous is None:
        del os.environ["D2V_CACHE"]
    else:
        os.environ["D2V_CACHE"] = previous


@pytest.fixture(scope="session")
def backbone(own_cache):
    """load(name, attention=None) returns a shared Backbone on the CPU in float32, which must not be changed."""
    from decoder2vec.backbone.backbone import Backbone

    @cache
    def load_once(name: str, attention: str | None) -> tuple[Backbone, str, bool]:
        model = Backbone.load(name, attention=attention, device="cpu", dtype="float32")
        return model, model.attention, is_causal(model)

    def is_causal(model: Backbone) -> bool:
        return getattr(model.model.config, "is_causal", True) is not False

    def load(name: str, attention: str | None = None) -> Backbone:
        model, original, was_causal = load_once(name, attention)
        # a training may have switched it, and which tests share a process depends on the number of cores
        if (model.attention, is_causal(model)) != (original, was_causal):
            model.set_attention(original)
        return model

    return load


@pytest.fixture(scope="session")
def quick_python(tmp_path_factory):
    """Starts Python programs in processes that have imported transformers; see toys/quick_python.py."""
    from toys.quick_python import QuickPython

    server = QuickPython(tmp_path_factory.mktemp("quick_python"))
    yield server
    server.close()


@pytest.fixture
def quick_exports(quick_python, monkeypatch):
    """Exports are checked as always, but the process that loads a folder has imported sentence-transformers already."""
    from decoder2vec.export import reload_check

    def run(command, env, **_):
        script, *arguments = command[2:]  # python -P script arguments
        code = f"__file__ = {script!r}\nexec(compile(open(__file__).read(), __file__, 'exec'))"
        return quick_python.run(code, *arguments, env=env, imported=["sentence_transformers"])

    monkeypatch.setattr(reload_check, "subprocess", SimpleNamespace(run=run))


@pytest.fixture(scope="module")
def one_thread():
    """One thread, since several only wait for each other on tiny models, and no warnings about missing kernels."""
    import torch

    from decoder2vec.backbone.machine import quiet_transformers

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with quiet_transformers():
        yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="session")
def gap():
    """gap(actual, expected): largest difference relative to the largest expected value; inf if not finite."""

    def relative(actual, expected):
        actual, expected = np.asarray(actual, np.float64), np.asarray(expected, np.float64)
        assert actual.shape == expected.shape
        if not np.isfinite(actual).all():
            return float("inf")
        return float(np.abs(actual - expected).max() / np.abs(expected).max())

    return relative
