"""Shared by the tests of reports: one thread, and training runs on disk."""

from __future__ import annotations

import json

import pytest
import torch

from decoder2vec.backbone.machine import quiet_transformers
from toys.runs import make_record, make_results


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    """Several threads only wait for each other on models so small; and no remarks about missing kernels."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with quiet_transformers():
        yield
    torch.set_num_threads(threads)


@pytest.fixture
def write_run(tmp_path):
    """write_run(place, record, results) -> an encoder folder under tmp_path; a part that is None is left out."""

    def write(place, record, results):
        folder = tmp_path / place
        folder.mkdir(parents=True)
        for name, document in (("encoder.json", {"head": None}), ("run.json", record), ("results.json", results)):
            if document is not None:
                (folder / name).write_text(json.dumps(document), encoding="utf-8")
        return folder

    return write


@pytest.fixture
def a_run(write_run):
    """a_run(place, name) -> the folder of a complete run."""
    return lambda place, name="step5": write_run(place, make_record(name), make_results(name))
