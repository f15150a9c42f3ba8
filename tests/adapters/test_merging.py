"""Averages of adapters, against the updates of all weights computed in numpy."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from decoder2vec.adapters.kv_prefix import KeyValuePrefix
from decoder2vec.adapters.lora import Lora, LoraConfig
from decoder2vec.adapters.merging import merge_adapters, truncate_rank
from decoder2vec.adapters.soft_prompt import SoftPrompt
from decoder2vec.errors import InputError


@pytest.fixture(params=["tiny-llama", "tiny-gpt2"])
def model(request, backbone):
    """The weights of GPT-2 are transposed."""
    return backbone(request.param)


def noisy(adapter, seed):
    generator = torch.Generator().manual_seed(seed)
    for parameter in adapter.requires_grad_(False).parameters():
        parameter += 0.1 * torch.randn(parameter.shape, generator=generator)
    return adapter


def lora(model, rank, alpha, seed, **config):
    return noisy(Lora(model, LoraConfig(rank, alpha, **config)), seed)


def updates(adapter):
    """alpha / rank x B A of each layer, by its path."""
    state = {name: tensor.double().numpy() for name, tensor in adapter.peft_state_dict().items()}
    paths = [name.removesuffix(".lora_A.weight") for name in state if name.endswith("lora_A.weight")]
    scale = adapter.config.alpha / adapter.config.rank
    return {path: scale * state[f"{path}.lora_B.weight"] @ state[f"{path}.lora_A.weight"] for path in paths}


def assert_updates(adapter, expected):
    actual = updates(adapter)
    assert actual.keys() == expected.keys()
    for path, update in actual.items():
        np.testing.assert_allclose(update, expected[path], atol=1e-5 * np.abs(expected[path]).max())


def test_lora_is_averaged_as_the_product(model):
    first, second, third = lora(model, 2, 8, 1), lora(model, 3, 3, 2), lora(model, 1, 2, 3)
    merged = merge_adapters([first, second, third], [0.5, 0.3, 0.2], "linear", model)
    expected = {
        path: 0.5 * update + 0.3 * updates(second)[path] + 0.2 * updates(third)[path]
        for path, update in updates(first).items()
    }
    assert_updates(merged, expected)
    assert merged.config.rank == 6


def test_average_of_the_matrices_is_another_update(model):
    """The trap: the product of averages is not the average of products."""
    first, second, wrong = lora(model, 2, 2, 1), lora(model, 2, 2, 2), lora(model, 2, 2, 3)
    states = [adapter.peft_state_dict() for adapter in (first, second)]
    wrong.load_peft_state_dict({name: (tensor + states[1][name]) / 2 for name, tensor in states[0].items()})
    merged = updates(merge_adapters([first, second], [0.5, 0.5], "linear", model))
    assert all(np.abs(update - merged[path]).max() > 1e-3 for path, update in updates(wrong).items())


def test_layers_that_only_one_lora_has_are_kept(backbone):
    model = backbone("tiny-llama")
    attention = lora(model, 2, 4, 1, targets=("q_proj",), depth=2)
    both = lora(model, 2, 4, 2, targets=("q_proj", "up_proj"), depth=3)
    merged = merge_adapters([attention, both], [0.25, 0.75], "linear", model)
    first = updates(attention)
    expected = {path: 0.75 * update + 0.25 * first.get(path, 0) for path, update in updates(both).items()}
    assert_updates(merged, expected)


def test_no_adapter_is_an_update_of_zero(model):
    only = lora(model, 2, 4, 1)
    merged = merge_adapters([None, only], [0.3, 0.7], "linear", model)
    assert_updates(merged, {path: 0.7 * update for path, update in updates(only).items()})
    assert merged.config.rank == 2


def test_slerp_of_lora_is_between_updates(model):
    first, second = lora(model, 2, 8, 1), lora(model, 3, 3, 2)
    merged = merge_adapters([first, second], [0.7, 0.3], "slerp", model)
    expected = {}
    for path, one in updates(first).items():
        two = updates(second)[path]
        angle = np.arccos((one * two).sum() / np.linalg.norm(one) / np.linalg.norm(two))
        expected[path] = (np.sin(0.7 * angle) * one + np.sin(0.3 * angle) * two) / np.sin(angle)
    assert_updates(merged, expected)


@pytest.mark.parametrize("rank", [1, 3])
def test_lower_rank_is_the_best_by_svd(model, rank):
    full = lora(model, 5, 10, 1)
    cut, lost = truncate_rank(full, rank, model)
    expected, cut_off, total = {}, 0.0, 0.0
    for path, update in updates(full).items():
        left, values, right = np.linalg.svd(update, full_matrices=False)
        expected[path] = (left[:, :rank] * values[:rank]) @ right[:rank]
        cut_off += (values[rank:] ** 2).sum()
        total += (values**2).sum()
    assert cut.config.rank == rank
    assert_updates(cut, expected)
    assert lost == pytest.approx((cut_off / total) ** 0.5, rel=1e-4)


def test_rank_above_the_width_of_a_layer_is_exact(backbone):
    model = backbone("tiny-llama")
    full = lora(model, 60, 60, 1)
    cut, lost = truncate_rank(full, 50, model)
    assert lost < 1e-6
    assert_updates(cut, updates(full))


@pytest.mark.parametrize("make", [SoftPrompt.initialise, KeyValuePrefix.initialise])
@pytest.mark.parametrize("method", ["linear", "slerp"])
def test_values_of_prompts_and_prefixes_are_averaged(backbone, make, method):
    model = backbone("tiny-llama")
    first, second = noisy(make(model, 3), 1), noisy(make(model, 3), 2)
    merged = merge_adapters([first, second], [0.6, 0.4], method, model)
    for name, value in merged.state_dict().items():
        one, two = (adapter.state_dict()[name].double().numpy() for adapter in (first, second))
        factors = [0.6, 0.4]
        if method == "slerp":
            angle = np.arccos((one * two).sum() / np.linalg.norm(one) / np.linalg.norm(two))
            factors = [np.sin(factor * angle) / np.sin(angle) for factor in factors]
        np.testing.assert_allclose(value, factors[0] * one + factors[1] * two, atol=1e-5)
    assert not any(parameter.requires_grad for parameter in merged.parameters())


def test_adapters_without_an_average_raise(backbone):
    model = backbone("tiny-llama")
    prompt = SoftPrompt.initialise(model, 3)
    cases = {
        "lora and soft_prompt": [lora(model, 2, 4, 1), prompt],
        "soft_prompt and no adapter": [prompt, None],
        "of one size": [prompt, SoftPrompt.initialise(model, 4)],
        "the same settings": [prompt, SoftPrompt.initialise(model, 3, output="text")],
    }
    for message, adapters in cases.items():
        with pytest.raises(InputError, match=message):
            merge_adapters(adapters, [0.5, 0.5], "linear", model)
