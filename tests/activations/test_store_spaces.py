"""Tests of `decoder2vec.activations.store`: covering spaces, descriptions of spaces, and reading into arrays."""

from __future__ import annotations

import json

import numpy as np
import pytest

from decoder2vec.activations.store import Store, find_covering_space, iter_spaces, space_name, text_key
from decoder2vec.errors import StorageError

SPACE = {"weights": "abc", "template": "{text}", "backbone": "x", "readings": [[1, "mean", False], [2, "mean", False]]}
KEYS = [text_key(str(n)) for n in range(50)]


@pytest.fixture(autouse=True)
def root(tmp_path, monkeypatch):
    """A separate store for every test."""
    monkeypatch.setattr("decoder2vec.activations.store.cache_root", lambda: tmp_path)
    return tmp_path / "latents"


def assert_stored(vectors, expected):
    """Equal up to 10 bits of each vector's largest value."""
    assert vectors.shape == expected.shape
    largest = np.abs(expected).max(axis=-1, keepdims=True)
    assert (np.abs(vectors - expected) <= 2.0**-10 * largest).all()


def fill(space, count=4, root=None):
    store = Store(space, root=root)
    width = len(space["readings"])
    values = np.random.default_rng(width).normal(size=(count, width, 8)).astype(np.float32)
    store.add([text_key(str(n)) for n in range(count)], values)
    return store


def test_covering_space_has_most_texts_then_fewest_readings(root):
    wide = [*SPACE["readings"], [3, "mean", False]]
    fill(SPACE, 4)
    fill({**SPACE, "readings": wide}, 50)
    assert find_covering_space(SPACE, KEYS) == wide
    assert find_covering_space({**SPACE, "readings": wide[::-1]}, KEYS) == wide
    fill(SPACE, 500)
    assert find_covering_space(SPACE, KEYS) == SPACE["readings"]


@pytest.mark.parametrize(
    "other",
    [
        {"weights": "abd"},
        {"template": "x {text}"},
        {"readings": [[1, "mean", True]]},
        {"readings": [[1, "lasttoken", False]]},
        {"readings": [[1, "mean", False], [4, "mean", False]]},
    ],
)
def test_other_space_covers_nothing(other):
    fill(SPACE)
    assert find_covering_space({**SPACE, **other}, KEYS) is None


def test_covering_space_ignores_the_backbone_name():
    fill(SPACE)
    assert find_covering_space({**SPACE, "backbone": "y"}, KEYS) == SPACE["readings"]


@pytest.mark.parametrize("description", ["", "{", "[]", "3", '{"weights": "abc"}'])
def test_malformed_description_covers_nothing(description, root):
    (root / "odd").mkdir(parents=True)
    (root / "odd" / "space.json").write_text(description)
    assert find_covering_space(SPACE, KEYS) is None


def test_read_into_reads_rows_of_several_segments(root):
    store = Store(SPACE)
    values = np.random.default_rng(0).normal(size=(9, 2, 8)).astype(np.float32)
    keys = [text_key(str(n)) for n in range(9)]
    for begin in (0, 4, 7):
        store.add(keys[begin : begin + 4], values[begin : begin + 4])
    order = [8, 0, 5, 5, 3]
    positions = store.positions([keys[n] for n in order])
    out = np.zeros((3, 5, 8), np.float32)
    store.read_into(out, positions, [(2, 0), (0, 1)])
    expected = store.read([keys[n] for n in order])
    assert (out[2] == expected[:, 0]).all() and (out[0] == expected[:, 1]).all()
    assert (out[1] == 0).all()
    assert_stored(expected, values[order])


@pytest.mark.parametrize("description", ['{"weights": "of another model"}', "[1]"])
def test_folder_that_describes_another_space_is_refused(description, root):
    store = fill(SPACE)
    (store.folder / "space.json").write_text(description)
    with pytest.raises(StorageError, match="holds latents of another model, template or reading"):
        Store(SPACE)
    assert [report.texts for report in iter_spaces()] == [0]


def test_folder_renamed_to_another_space_is_refused(root):
    """Otherwise vectors of one template would be taken for those of another."""
    other = {**SPACE, "template": "x {text}"}
    fill(SPACE).folder.rename(root / space_name(other))
    with pytest.raises(StorageError, match=r"\(x, '\{text\}'\); remove that folder"):
        Store(other)


def test_folder_without_readable_description_is_accepted(root):
    store = fill(SPACE)
    assert json.loads((store.folder / "space.json").read_text()) == SPACE
    (store.folder / "space.json").write_text("{")
    assert len(Store(SPACE)) == 4
