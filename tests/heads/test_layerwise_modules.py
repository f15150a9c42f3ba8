"""Modules that compute all layers at once, against a loop over torch.nn modules."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from torch import nn

from decoder2vec.heads.codes import LayerwiseLinear, LayerwiseMLP, LayerwiseNorm, spread_widths

LAYERS, TEXTS, WIDTH = 5, 7, 6


@pytest.fixture
def states():
    torch.manual_seed(0)
    return torch.randn(LAYERS, TEXTS, WIDTH)


def randomised(module):
    """The module with all parameters random, so that no bias or scale keeps its initial value."""
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.normal_()
    return module


def plain_linear(linear, layer):
    """The nn.Linear of one layer."""
    _, in_features, out_features = linear.weight.shape
    plain = nn.Linear(in_features, out_features)
    plain.load_state_dict({"weight": linear.weight[layer].T, "bias": linear.bias[layer, 0]})
    return plain


def plain_norm(norm, layer):
    """The nn.LayerNorm of one layer."""
    plain = nn.LayerNorm(norm.weight.shape[-1])
    plain.load_state_dict({"weight": norm.weight[layer, 0], "bias": norm.bias[layer, 0]})
    return plain


def plain_mlp(mlp, layer, x):
    """What torch.nn gives for one layer."""
    steps = []
    for linear, norm in zip(mlp.hidden, mlp.norms, strict=True):
        steps += [plain_linear(linear, layer), plain_norm(norm, layer), nn.GELU()]
    y = nn.Sequential(*steps, plain_linear(mlp.last, layer))(x)
    return y if mlp.shortcut is None else y + plain_linear(mlp.shortcut, layer)(x)


def test_layerwise_linear_equals_a_loop(states):
    linear = randomised(LayerwiseLinear(LAYERS, WIDTH, 3))
    expected = torch.stack([plain_linear(linear, layer)(states[layer]) for layer in range(LAYERS)])
    torch.testing.assert_close(linear(states), expected)


def test_layerwise_norm_equals_a_loop(states):
    norm = randomised(LayerwiseNorm(LAYERS, WIDTH))
    expected = torch.stack([plain_norm(norm, layer)(states[layer]) for layer in range(LAYERS)])
    torch.testing.assert_close(norm(states), expected)


@pytest.mark.parametrize("shortcut", [False, True])
@pytest.mark.parametrize("hidden", [(), (9,), (9, 4)])
def test_layerwise_mlp_equals_a_loop(states, hidden, shortcut):
    mlp = randomised(LayerwiseMLP(LAYERS, (WIDTH, *hidden, 3), shortcut=shortcut))
    expected = torch.stack([plain_mlp(mlp, layer, states[layer]) for layer in range(LAYERS)])
    torch.testing.assert_close(mlp(states), expected)


def test_gradients_of_a_layer_equal_those_of_its_module(states):
    mlp = randomised(LayerwiseMLP(LAYERS, (WIDTH, 9, 3)))
    mlp(states)[2].pow(2).sum().backward()
    first = plain_linear(mlp.hidden[0], 2)
    following = nn.Sequential(plain_norm(mlp.norms[0], 2), nn.GELU(), plain_linear(mlp.last, 2))
    following(first(states[2])).pow(2).sum().backward()
    torch.testing.assert_close(mlp.hidden[0].weight.grad[2].T, first.weight.grad, rtol=1e-4, atol=1e-4)
    assert not mlp.hidden[0].weight.grad[[0, 1, 3, 4]].any()


def test_parameter_count_equals_the_loop():
    count = sum(parameter.numel() for parameter in LayerwiseMLP(LAYERS, (WIDTH, 9, 3), shortcut=True).parameters())
    plain = nn.ModuleList([nn.Linear(WIDTH, 9), nn.LayerNorm(9), nn.Linear(9, 3), nn.Linear(WIDTH, 3)])
    assert count == LAYERS * sum(parameter.numel() for parameter in plain.parameters())


def cosines(rows):
    unit = nn.functional.normalize(rows, dim=-1)
    return unit @ unit.transpose(1, 2)


@pytest.mark.parametrize("hidden", [(), (9,), (9, 9)])
def test_initial_linear_maps_and_shortcuts_keep_angles(states, hidden):
    mlp = LayerwiseMLP(LAYERS, (WIDTH, *hidden, 2 * WIDTH), shortcut=True)
    torch.testing.assert_close(cosines(mlp(states)), cosines(states), rtol=1e-4, atol=1e-5)


def test_layers_have_different_initial_weights():
    linear = LayerwiseLinear(LAYERS, WIDTH, 3)
    assert all(not torch.equal(a, b) for a, b in pairwise(linear.weight))


def test_dropout_is_active_in_training_only(states):
    mlp = LayerwiseMLP(LAYERS, (WIDTH, 9, 3), dropout=0.5)
    assert not torch.equal(mlp(states), mlp(states))
    mlp.eval()
    torch.testing.assert_close(mlp(states)[1], plain_mlp(mlp, 1, states[1]))


@pytest.mark.parametrize("count", range(1, 33))
def test_two_values_go_to_halves_the_upper_rounded_down(count):
    assert spread_widths((256, 512), count) == (256,) * (count - count // 2) + (512,) * (count // 2)


def test_one_value_goes_to_all_layers():
    assert spread_widths((7,), 5) == (7,) * 5
    assert spread_widths((7,), 0) == ()


@pytest.mark.parametrize(
    ("count", "expected"),
    [(3, (1, 2, 3)), (4, (1, 1, 2, 3)), (5, (1, 1, 2, 2, 3)), (6, (1, 1, 2, 2, 3, 3)), (2, (1, 2)), (1, (1,))],
)
def test_three_values_go_to_thirds_the_upper_smaller(count, expected):
    assert spread_widths((1, 2, 3), count) == expected
