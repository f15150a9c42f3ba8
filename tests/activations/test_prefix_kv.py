"""Keys and values of texts: cached on disk up to a size, recomputed beyond it."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from decoder2vec.activations import prefix_kv
from decoder2vec.activations.prefix_kv import cache_keys_values
from decoder2vec.errors import UnsupportedError
from decoder2vec.text.template import Template
from decoder2vec.text.tokens import Tokeniser

pytestmark = pytest.mark.usefixtures("one_thread")

TEXTS = ["cats sleep", "a", "the dogs run over the long road in the rain and sing of boats that sail", "kids play now"]


@pytest.fixture
def model(backbone):
    return backbone("tiny-llama")


@pytest.fixture
def prompts(model):
    return Tokeniser(model, Template.of("plain"), 64)(TEXTS).prompts


@pytest.fixture
def cached_files(tmp_path, monkeypatch):
    """cached_files() -> the files in a cache of this test's own."""
    monkeypatch.setattr(prefix_kv, "prefix_kv_root", lambda: tmp_path / "prefix_kv")
    return lambda: sorted((tmp_path / "prefix_kv").glob("*"))


def test_cached_file_is_reused(model, prompts, cached_files, monkeypatch):
    first = cache_keys_values(model, prompts, 4)([0, 1, 2])
    assert len(cached_files()) == 1
    monkeypatch.setattr(prefix_kv, "collate", lambda *_: pytest.fail("the texts were run again"))
    second = cache_keys_values(model, prompts, 4)([0, 1, 2])
    for layer, same_layer in zip(first.layers, second.layers, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(layer, same_layer, strict=True))


def test_texts_depth_and_weights_have_files_of_their_own(model, prompts, backbone, cached_files):
    for other_model, other_prompts, depth in (
        (model, prompts, 4),
        (model, prompts, 2),
        (model, prompts[1:], 4),
        (backbone("tiny-qwen2"), prompts, 4),
    ):
        cache_keys_values(other_model, other_prompts, depth)
    assert len(cached_files()) == 4


def test_truncated_file_is_computed_again(model, prompts, cached_files):
    expected = cache_keys_values(model, prompts, 4)([0, 2]).layers[3][1].clone()
    file = cached_files()[0]
    file.write_bytes(file.read_bytes()[:1000])
    assert torch.equal(cache_keys_values(model, prompts, 4)([0, 2]).layers[3][1], expected)


def test_nothing_is_cached_beyond_the_size_in_bytes(model, prompts, cached_files):
    n_tokens = sum(len(prompt.ids) for prompt in prompts)
    size = n_tokens * 3 * 2 * 2 * 8 * 4  # layers, keys and values, heads, width, bytes
    cache_keys_values(model, prompts, 3, size - 1)
    assert cached_files() == []
    cache_keys_values(model, prompts, 3, size)
    assert [file.stat().st_size for file in cached_files()] == [size + 32]  # the checksum


def test_full_disk_means_recomputing(model, prompts, cached_files, monkeypatch, caplog):
    expected = cache_keys_values(model, prompts, 4)([0, 2]).layers[3][1]
    cached_files()[0].unlink()
    monkeypatch.setattr(prefix_kv.shutil, "disk_usage", lambda _: SimpleNamespace(free=1000))
    values = cache_keys_values(model, prompts, 4)([0, 2]).layers[3][1]
    length = len(prompts[0].ids)
    torch.testing.assert_close(values[:, :, -length:], expected[:, :, -length:])
    assert cached_files() == [] and "No space left on device" in caplog.text


def test_family_without_keys_and_values_fails(prompts, backbone):
    with pytest.raises(UnsupportedError, match="mamba has no keys and values"):
        cache_keys_values(backbone("tiny-mamba"), prompts, 4)
