"""Latents as a table to train on, and the parts of the store that serve it."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from decoder2vec.activations import latent_table as table_module
from decoder2vec.activations.extract import Extractor, Reader
from decoder2vec.activations.latent_table import LatentTable
from decoder2vec.activations.store import Store, find_covering_space, iter_spaces, space_name, text_key
from decoder2vec.config import Reading
from decoder2vec.errors import EncoderError, StorageError
from decoder2vec.text.template import Template

PLAIN = Template("{text}")
ASKED = 'In a word, "{text}" is "'
TEXTS = [f"Loaf {n} of {n * n}" for n in range(20)]
READINGS = (Reading(4, "lasttoken", template=ASKED), Reading(2), Reading(1, "lasttoken", template=ASKED))
ALL = [Reading(layer, "mean") for layer in range(1, 5)]


@pytest.fixture(autouse=True)
def root(tmp_path, monkeypatch):
    """A store of its own for every test."""
    monkeypatch.setattr("decoder2vec.activations.store.cache_root", lambda: tmp_path)
    return tmp_path / "latents"


@pytest.fixture
def reader(backbone):
    return Reader(backbone("tiny-llama"), READINGS, PLAIN)


def assert_as_kept(found, expected):
    """Equal to 11 bits of each vector's largest value."""
    assert found.shape == expected.shape
    largest = np.abs(expected).max(axis=-1, keepdims=True)
    assert (np.abs(found - expected) <= 2.0**-10 * largest).all()


def test_batches_are_the_readers_vectors_in_the_order_asked(reader):
    table = LatentTable(reader, TEXTS)
    assert table.shape == (3, 20, 32)
    rows = table.rows([TEXTS[7], TEXTS[0], TEXTS[7]])
    assert rows.tolist() == [7, 0, 7]
    expected = reader([TEXTS[7], TEXTS[0], TEXTS[7]]).swapaxes(0, 1)
    assert_as_kept(table.batch(rows).numpy(), expected)


def test_a_text_given_twice_is_one_row(reader):
    table = LatentTable(reader, ["b", "a", "b"])
    assert table.texts == ["b", "a"]
    assert table.rows(["b", "a", "b"]).tolist() == [0, 1, 0]


def test_latents_are_computed_once(reader, computed):
    LatentTable(reader, TEXTS)
    assert sum(computed) == 40, "once for each template"
    LatentTable(reader, TEXTS[::-1])
    assert sum(computed) == 40
    LatentTable(reader, [*TEXTS, "one more"])
    assert sum(computed) == 42


def test_some_readings_of_a_table(reader):
    table = LatentTable(reader, TEXTS)
    rows = np.arange(20)
    part = table.select_readings([2, 0])
    assert part.shape == (2, 20, 32)
    assert torch.equal(part.batch(rows), table.batch(rows)[[2, 0]])
    assert table.shape == (3, 20, 32) and table.batch(rows).shape == (3, 20, 32)
    assert part.fingerprint not in (table.fingerprint, table.select_readings([0, 2]).fingerprint)


def test_the_fingerprint_names_the_latents_and_not_the_texts(backbone, reader):
    found = LatentTable(reader, TEXTS).fingerprint
    assert LatentTable(reader, ["another"]).fingerprint == found
    other = Reader(backbone("tiny-llama"), READINGS[:2], PLAIN)
    assert LatentTable(other, TEXTS).fingerprint != found
    swapped = Reader(backbone("tiny-llama"), [READINGS[2], READINGS[1], READINGS[0]], PLAIN)
    assert LatentTable(swapped, TEXTS).fingerprint != found


def test_moments_equal_numpys(reader, monkeypatch):
    monkeypatch.setattr(table_module, "_CHUNK", 7)
    table = LatentTable(reader, TEXTS)
    rows = np.array([3, 1, 4, 15, 9, 2, 6, 5, 3, 0, 19])
    mean, deviation = table.moments(rows)
    values = table.batch(rows).double().numpy()
    assert mean.shape == deviation.shape == (3, 1, 32)
    np.testing.assert_allclose(mean[:, 0].numpy(), values.mean(axis=1), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(deviation[:, 0].numpy(), values.std(axis=1), rtol=1e-4, atol=1e-6)


def test_moments_survive_a_huge_dimension(backbone, monkeypatch):
    """A mean ten thousand times the deviation: sums of squares around 0 would lose it."""
    table = LatentTable(Reader(backbone("tiny-llama"), [Reading(1)], PLAIN), TEXTS)
    values = torch.randn(1, 20, 32, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) + 1e4
    monkeypatch.setattr(table, "_resident", values.float())
    _, deviation = table.moments(np.arange(20))
    np.testing.assert_allclose(deviation[0, 0].numpy(), values[0].numpy().std(axis=0), rtol=1e-3)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_latents_that_are_not_finite_are_refused_and_the_text_is_named(value, reader, monkeypatch):
    table = LatentTable(reader, TEXTS)
    values = table.batch(np.arange(20))
    values[1, 13, 5] = value
    monkeypatch.setattr(table, "_resident", values)
    for look in (table.moments, table.check_finite):
        with pytest.raises(EncoderError, match=r"'Loaf 13 of 169' are not finite; run `d2v doctor`"):
            look(np.array([2, 13, 4]))
        look(np.array([2, 12, 4]))


def test_a_table_does_not_hold_what_was_not_asked_for(backbone, monkeypatch):
    """Only rows of a batch are read from the mapped files: the most that is read at once is the batch."""
    asked, real = [], Store.read_into

    def counting(self, out, positions, columns):
        asked.append(out.size)
        real(self, out, positions, columns)

    monkeypatch.setattr(Store, "read_into", counting)
    table = LatentTable(Reader(backbone("tiny-llama"), ALL, PLAIN), [f"Loaf {n}" for n in range(300)])
    assert asked == [], "making the table reads nothing"
    table.batch(np.arange(10))
    assert asked == [4 * 10 * 32]
    monkeypatch.setattr(table_module, "_CHUNK", 64)
    table.moments(np.arange(300))
    assert max(asked) == 4 * 64 * 32
    held = [value for value in vars(table).values() if isinstance(value, torch.Tensor)]
    assert held == []


def test_some_layers_are_taken_from_a_space_that_has_all_of_them(backbone, computed):
    whole = LatentTable(Reader(backbone("tiny-llama"), ALL, PLAIN), TEXTS)
    before = sum(computed)
    part = LatentTable(Reader(backbone("tiny-llama"), [ALL[3], ALL[1]], PLAIN), TEXTS)
    assert sum(computed) == before
    assert torch.equal(part.batch(np.arange(20)), whole.batch(np.arange(20))[[3, 1]])
    alone = Extractor(backbone("tiny-llama"), [ALL[3], ALL[1]])(TEXTS)
    assert_as_kept(part.batch(np.arange(20)).numpy(), alone.swapaxes(0, 1))


def test_a_table_has_the_same_name_whether_it_was_widened_or_not(backbone):
    narrow = Reader(backbone("tiny-llama"), [ALL[1]], PLAIN)
    before = LatentTable(narrow, TEXTS).fingerprint
    LatentTable(Reader(backbone("tiny-llama"), ALL, PLAIN), [*TEXTS, *(f"More {n}" for n in range(50))])
    assert LatentTable(narrow, TEXTS).fingerprint == before


# --- the store underneath -------------------------------------------------------------------------------------------

SPACE = {"weights": "abc", "template": "{text}", "backbone": "x", "readings": [[1, "mean", False], [2, "mean", False]]}


KEYS = [text_key(str(n)) for n in range(50)]


def filled(space, count=4, root=None):
    store = Store(space, root=root)
    width = len(space["readings"])
    values = np.random.default_rng(width).normal(size=(count, width, 8)).astype(np.float32)
    store.add([text_key(str(n)) for n in range(count)], values)
    return store


def test_of_spaces_that_read_enough_the_one_with_most_of_the_texts_and_fewest_readings_is_found(root):
    wide = [*SPACE["readings"], [3, "mean", False]]
    filled(SPACE, 4)
    filled({**SPACE, "readings": wide}, 50)
    assert find_covering_space(SPACE, KEYS) == wide
    assert find_covering_space({**SPACE, "readings": wide[::-1]}, KEYS) == wide
    filled(SPACE, 500)
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
def test_a_space_of_something_else_covers_nothing(other):
    filled(SPACE)
    assert find_covering_space({**SPACE, **other}, KEYS) is None


def test_what_the_backbone_is_called_does_not_matter():
    filled(SPACE)
    assert find_covering_space({**SPACE, "backbone": "y"}, KEYS) == SPACE["readings"]


@pytest.mark.parametrize("note", ["", "{", "[]", "3", '{"weights": "abc"}'])
def test_a_folder_with_an_odd_note_covers_nothing(note, root):
    (root / "odd").mkdir(parents=True)
    (root / "odd" / "space.json").write_text(note)
    assert find_covering_space(SPACE, KEYS) is None


def test_rows_of_several_segments_are_read_into_place(root):
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
    assert_as_kept(expected, values[order])


@pytest.mark.parametrize("note", ['{"weights": "of another model"}', "[1]"])
def test_a_folder_that_says_it_holds_another_space_is_refused(note, root):
    store = filled(SPACE)
    (store.folder / "space.json").write_text(note)
    with pytest.raises(StorageError, match="holds latents of another model, template or reading"):
        Store(SPACE)
    assert [report.texts for report in iter_spaces()] == [0]


def test_a_folder_renamed_to_another_space_is_refused(root):
    """Vectors of one template would else be taken for those of another."""
    other = {**SPACE, "template": "x {text}"}
    filled(SPACE).folder.rename(root / space_name(other))
    with pytest.raises(StorageError, match=r"\(x, '\{text\}'\); remove that folder"):
        Store(other)


def test_a_folder_without_a_readable_note_is_taken_at_its_name(root):
    store = filled(SPACE)
    assert json.loads((store.folder / "space.json").read_text()) == SPACE
    (store.folder / "space.json").write_text("{")
    assert len(Store(SPACE)) == 4
