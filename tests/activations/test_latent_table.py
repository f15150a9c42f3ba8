"""Tests of `decoder2vec.activations.latent_table`."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from decoder2vec.activations import latent_table as table_module
from decoder2vec.activations.extract import Extractor, Reader
from decoder2vec.activations.latent_table import LatentTable
from decoder2vec.activations.store import Store
from decoder2vec.config import Reading
from decoder2vec.errors import EncoderError
from decoder2vec.text.template import Template

PLAIN = Template("{text}")
QUESTION = 'In a word, "{text}" is "'
TEXTS = [f"Loaf {n} of {n * n}" for n in range(20)]
READINGS = (Reading(4, "lasttoken", template=QUESTION), Reading(2), Reading(1, "lasttoken", template=QUESTION))
ALL = [Reading(layer, "mean") for layer in range(1, 5)]


@pytest.fixture(autouse=True)
def root(tmp_path, monkeypatch):
    """A separate store for every test."""
    monkeypatch.setattr("decoder2vec.activations.store.cache_root", lambda: tmp_path)
    return tmp_path / "latents"


@pytest.fixture
def reader(backbone):
    return Reader(backbone("tiny-llama"), READINGS, PLAIN)


def assert_stored(vectors, expected):
    """Equal up to 10 bits of each vector's largest value."""
    assert vectors.shape == expected.shape
    largest = np.abs(expected).max(axis=-1, keepdims=True)
    assert (np.abs(vectors - expected) <= 2.0**-10 * largest).all()


def test_batches_equal_the_readers_vectors(reader):
    table = LatentTable(reader, TEXTS)
    assert table.shape == (3, 20, 32)
    rows = table.rows([TEXTS[7], TEXTS[0], TEXTS[7]])
    assert rows.tolist() == [7, 0, 7]
    expected = reader([TEXTS[7], TEXTS[0], TEXTS[7]]).swapaxes(0, 1)
    assert_stored(table.batch(rows).numpy(), expected)


def test_duplicate_texts_share_a_row(reader):
    table = LatentTable(reader, ["b", "a", "b"])
    assert table.texts == ["b", "a"]
    assert table.rows(["b", "a", "b"]).tolist() == [0, 1, 0]


def test_latents_are_computed_once(reader, computed):
    LatentTable(reader, TEXTS)
    assert sum(computed) == 40, "once per template"
    LatentTable(reader, TEXTS[::-1])
    assert sum(computed) == 40
    LatentTable(reader, [*TEXTS, "one more"])
    assert sum(computed) == 42


def test_select_readings_returns_a_part_of_the_table(reader):
    table = LatentTable(reader, TEXTS)
    rows = np.arange(20)
    selected = table.select_readings([2, 0])
    assert selected.shape == (2, 20, 32)
    assert torch.equal(selected.batch(rows), table.batch(rows)[[2, 0]])
    assert table.shape == (3, 20, 32) and table.batch(rows).shape == (3, 20, 32)
    assert selected.fingerprint not in (table.fingerprint, table.select_readings([0, 2]).fingerprint)


def test_fingerprint_depends_on_latents_not_on_texts(backbone, reader):
    fingerprint = LatentTable(reader, TEXTS).fingerprint
    assert LatentTable(reader, ["another"]).fingerprint == fingerprint
    other = Reader(backbone("tiny-llama"), READINGS[:2], PLAIN)
    assert LatentTable(other, TEXTS).fingerprint != fingerprint
    swapped = Reader(backbone("tiny-llama"), [READINGS[2], READINGS[1], READINGS[0]], PLAIN)
    assert LatentTable(swapped, TEXTS).fingerprint != fingerprint


def test_moments_equal_numpy(reader, monkeypatch):
    monkeypatch.setattr(table_module, "_CHUNK", 7)
    table = LatentTable(reader, TEXTS)
    rows = np.array([3, 1, 4, 15, 9, 2, 6, 5, 3, 0, 19])
    mean, deviation = table.moments(rows)
    values = table.batch(rows).double().numpy()
    assert mean.shape == deviation.shape == (3, 1, 32)
    np.testing.assert_allclose(mean[:, 0].numpy(), values.mean(axis=1), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(deviation[:, 0].numpy(), values.std(axis=1), rtol=1e-4, atol=1e-6)


def test_moments_are_exact_for_a_huge_mean(backbone, monkeypatch):
    """The mean is ten thousand times the deviation: sums of squares around 0 would lose precision."""
    table = LatentTable(Reader(backbone("tiny-llama"), [Reading(1)], PLAIN), TEXTS)
    values = torch.randn(1, 20, 32, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) + 1e4
    monkeypatch.setattr(table, "_resident", values.float())
    _, deviation = table.moments(np.arange(20))
    np.testing.assert_allclose(deviation[0, 0].numpy(), values[0].numpy().std(axis=0), rtol=1e-3)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_latents_that_are_not_finite_name_the_text(value, reader, monkeypatch):
    table = LatentTable(reader, TEXTS)
    values = table.batch(np.arange(20))
    values[1, 13, 5] = value
    monkeypatch.setattr(table, "_resident", values)
    for check in (table.moments, table.check_finite):
        with pytest.raises(EncoderError, match=r"'Loaf 13 of 169' are not finite; run `d2v doctor`"):
            check(np.array([2, 13, 4]))
        check(np.array([2, 12, 4]))


def test_only_requested_rows_are_read(backbone, monkeypatch):
    """Only the rows of a batch are read from the mapped files."""
    sizes, real = [], Store.read_into

    def counting(self, out, positions, columns):
        sizes.append(out.size)
        real(self, out, positions, columns)

    monkeypatch.setattr(Store, "read_into", counting)
    table = LatentTable(Reader(backbone("tiny-llama"), ALL, PLAIN), [f"Loaf {n}" for n in range(300)])
    assert sizes == [], "creating the table reads nothing"
    table.batch(np.arange(10))
    assert sizes == [4 * 10 * 32]
    monkeypatch.setattr(table_module, "_CHUNK", 64)
    table.moments(np.arange(300))
    assert max(sizes) == 4 * 64 * 32
    tensors = [value for value in vars(table).values() if isinstance(value, torch.Tensor)]
    assert tensors == []


def test_selected_layers_reuse_a_space_of_all_layers(backbone, computed):
    full = LatentTable(Reader(backbone("tiny-llama"), ALL, PLAIN), TEXTS)
    previous = sum(computed)
    selected = LatentTable(Reader(backbone("tiny-llama"), [ALL[3], ALL[1]], PLAIN), TEXTS)
    assert sum(computed) == previous
    assert torch.equal(selected.batch(np.arange(20)), full.batch(np.arange(20))[[3, 1]])
    expected = Extractor(backbone("tiny-llama"), [ALL[3], ALL[1]])(TEXTS)
    assert_stored(selected.batch(np.arange(20)).numpy(), expected.swapaxes(0, 1))


def test_fingerprint_does_not_depend_on_reused_spaces(backbone):
    narrow = Reader(backbone("tiny-llama"), [ALL[1]], PLAIN)
    previous = LatentTable(narrow, TEXTS).fingerprint
    LatentTable(Reader(backbone("tiny-llama"), ALL, PLAIN), [*TEXTS, *(f"More {n}" for n in range(50))])
    assert LatentTable(narrow, TEXTS).fingerprint == previous
