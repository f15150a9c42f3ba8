"""Aggregators equal torch's attention and plain loops; their known special cases hold."""

from __future__ import annotations

import math

import pytest
import torch
from torch.nn import functional

from decoder2vec.choosing.aggregators import AGGREGATORS, KEY_DIM, Attention, linear_like, make_aggregator
from decoder2vec.errors import InputError, UnknownNameError


@pytest.fixture(autouse=True)
def seed():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        yield


def vectors(k, rows=6, dim=10):
    return [torch.randn(rows, dim) for _ in range(k)]


def test_attention_equals_scaled_dot_product_attention():
    inputs, attention = vectors(3), Attention([10] * 3)
    keys = torch.stack([layer(x) for layer, x in zip(attention.keys, inputs, strict=True)], dim=1)
    values = torch.stack([layer(x) for layer, x in zip(attention.values, inputs, strict=True)], dim=1)
    query = attention.query.expand(len(keys), 1, KEY_DIM)
    expected = functional.scaled_dot_product_attention(query, keys, values)[:, 0]
    torch.testing.assert_close(attention(inputs), expected)


@torch.no_grad()
def test_attention_equals_a_loop():
    inputs, attention = vectors(2, rows=3), Attention([10, 10])
    for row in range(3):
        scores, values = [], []
        for source in range(2):
            x = inputs[source][row]
            key = attention.keys[source].weight @ x + attention.keys[source].bias
            scores.append(math.exp(float(attention.query @ key) / math.sqrt(128)))
            values.append(attention.values[source].weight @ x + attention.values[source].bias)
        expected = sum(score / sum(scores) * value for score, value in zip(scores, values, strict=True))
        torch.testing.assert_close(attention(inputs)[row], expected)


def test_attention_over_one_source_is_its_value_layer():
    (x,), attention = vectors(1), Attention([10])
    assert torch.equal(attention([x]), attention.values[0](x))
    attention([x]).sum().backward()
    assert all(not parameter.grad.any() for parameter in (attention.query, *attention.keys.parameters()))


def test_equal_sources_with_equal_keys_have_equal_weights():
    attention = Attention([10] * 4)
    for key in attention.keys[1:]:
        key.load_state_dict(attention.keys[0].state_dict())
    weights = attention.source_weights(vectors(1) * 4)
    torch.testing.assert_close(weights, torch.full((6, 4), 0.25))


def test_permuting_sources_changes_nothing():
    inputs, attention = vectors(3), Attention([10] * 3)
    other, order = Attention([10] * 3), [2, 0, 1]
    other.query.data = attention.query.data
    for target, source in enumerate(order):
        other.keys[target].load_state_dict(attention.keys[source].state_dict())
        other.values[target].load_state_dict(attention.values[source].state_dict())
    torch.testing.assert_close(other([inputs[source] for source in order]), attention(inputs))


def test_mean_and_sum():
    a, b = vectors(2)
    torch.testing.assert_close(make_aggregator("mean", [10, 10])([a, b]), (a + b) / 2)
    torch.testing.assert_close(make_aggregator("sum", [10, 10])([a, b]), a + b)
    assert torch.equal(make_aggregator("mean", [10])([a]), a)


def test_concat_equals_a_sum_of_matrix_products():
    a, b = vectors(2)
    concat = make_aggregator("concat", [10, 10])
    weight, bias = concat.map.weight, concat.map.bias
    torch.testing.assert_close(concat([a, b]), a @ weight[:, :10].T + b @ weight[:, 10:].T + bias)


@pytest.mark.parametrize("name", AGGREGATORS)
def test_rows_do_not_mix(name):
    inputs, aggregator = vectors(2), make_aggregator(name, [10, 10])
    for row in range(6):
        torch.testing.assert_close(aggregator([x[row : row + 1] for x in inputs])[0], aggregator(inputs)[row])


def test_parameter_counts():
    assert Attention([768]).n_parameters - 128 - 128 * 769 == 590_592  # the value layer, as in the paper
    for k in (1, 2, 3):
        wanted = Attention([576] * k).n_parameters
        assert abs(linear_like(576, wanted).n_parameters - wanted) <= 577 / 2


def test_sources_of_different_dimensions():
    a, b = torch.randn(4, 10), torch.randn(4, 7)
    for name in ("attention", "concat"):
        assert make_aggregator(name, [10, 7])([a, b]).shape == (4, 10)
    with pytest.raises(InputError, match="10 and 7 dimensions have no mean"):
        make_aggregator("mean", [10, 7])


def test_an_unknown_name_is_an_error():
    with pytest.raises(UnknownNameError, match="attention"):
        make_aggregator("atention", [10])
