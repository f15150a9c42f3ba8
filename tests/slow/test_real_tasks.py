"""Real tasks: set D2V_DATA to a folder in the layout of docs/guide/evaluate.md."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from decoder2vec.evaluation.suite import Suite
from decoder2vec.evaluation.tasks.layout import find_tasks
from toys.tasks import RandomEncoder

pytestmark = pytest.mark.slow


def test_random_encoder_scores_by_chance_on_real_tasks():
    folder = Path(os.environ.get("D2V_DATA", "nowhere"))
    if not (folder / "retrieval").is_dir():
        pytest.skip("D2V_DATA does not name a folder with sts/, pairs/, retrieval/, ...")
    tasks = find_tasks(folder)
    encoder = RandomEncoder()
    results = Suite(encoder, tasks).run()["tasks"]
    assert len(encoder.encoded) == len({text for task in tasks for texts in task.texts().values() for text in texts})
    for name, chance, tolerance in [
        ("stsb", 0, 8),
        ("quora-mini", 0, 0.2),
        ("scifact", 0, 0.5),
        ("quora", 50, 2),
        ("banking77", 100 / 77, 0.5),
        ("tweet-sentiment", 100 / 3, 3),
    ]:
        assert results[name]["score"] == pytest.approx(chance, abs=tolerance), name
