"""Tests of `decoder2vec.heads.codes` against NumPy, plain loops and arithmetic."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from decoder2vec.errors import InputError
from decoder2vec.heads.codes import CodeNet, CodeSpec
from decoder2vec.training.recipes.freeze import FreezeRecipe

DIM, TEXTS = 6, 8
MIXED = (3, 5, 3, 0, 5, 3)
"""Widths whose groups are interleaved; 0 is the latent itself."""


def random_net(widths=MIXED, **choices):
    """A network with random parameters."""
    torch.manual_seed(2)
    net = CodeNet(CodeSpec(DIM, widths, **choices))
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.normal_()
    return net.eval().requires_grad_(False)


@pytest.fixture
def latents():
    return torch.randn(len(MIXED), TEXTS, DIM, generator=torch.Generator().manual_seed(0))


def unit(rows):
    return rows / np.linalg.norm(rows, axis=-1, keepdims=True)


def code_by_hand(net, reading, latent):
    """[text, width] code of one reading of a linear network, from its state dict."""
    groups = sorted(set(net.spec.widths))
    index = [n for n, width in enumerate(net.spec.widths) if width == net.spec.widths[reading]].index(reading)
    state = {name: value.double().numpy() for name, value in net.state_dict().items()}
    name = f"encoders.{groups.index(net.spec.widths[reading])}.last"
    x = (latent.double().numpy() - state["shift"][reading]) * state["scale"][reading]
    if net.spec.widths[reading] == 0:
        return x
    return x @ state[f"{name}.weight"][index] + state[f"{name}.bias"][index]


def cosines_by_hand(net, left, right):
    """[pair, reading] cosines of the codes."""
    columns = []
    for reading in range(len(net.spec.widths)):
        a, b = (unit(code_by_hand(net, reading, side[reading])) for side in (left, right))
        columns.append((a * b).sum(axis=1))
    return np.stack(columns, axis=1)


def test_cosines_are_in_the_order_of_the_readings(latents):
    net = random_net()
    left, right = latents[:, :4], latents[:, 4:]
    np.testing.assert_allclose(net.pair_cosines(left, right), cosines_by_hand(net, left, right), atol=1e-5)


def test_dot_product_is_the_weighted_sum_of_cosines(latents):
    net = random_net()
    left, right = latents[:, :4], latents[:, 4:]
    logits = net.pair.logits.double().numpy()
    expected = cosines_by_hand(net, left, right) @ (np.exp(logits) / np.exp(logits).sum())
    dots = (net(left).double() * net(right).double()).sum(dim=1)
    np.testing.assert_allclose(dots, expected, atol=1e-6)
    np.testing.assert_allclose(dots, net.score(left, right), atol=1e-6)


@pytest.mark.parametrize("head", ["sum", "gated", "mlp", "each"])
def test_vectors_have_unit_length_and_the_stated_size(head, latents):
    net = random_net(head=head)
    vectors = net(latents)
    assert vectors.shape == (TEXTS, net.spec.size) == (TEXTS, 3 * 3 + 2 * 5 + DIM)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-6)


@pytest.mark.parametrize("choices", [{}, {"head": "mlp"}, {"mixing": "unified", "mixed_width": 4}], ids=str)
def test_split_is_the_inverse_of_join(choices, latents):
    net = random_net(**choices)
    blocks = net.blocks(latents)
    split = net.split(net.join(blocks))
    assert len(split) == len(blocks)
    for block, actual in zip(blocks, split, strict=True):
        torch.testing.assert_close(actual, block)


def test_split_keeps_the_dtype_of_the_vectors(latents):
    net = random_net()
    assert all(block.dtype == torch.float64 for block in net.split(net(latents).double()))


def test_vector_does_not_depend_on_the_batch(latents):
    net = random_net(hidden=7)
    torch.testing.assert_close(net(latents[:, 3:4])[0], net(latents)[3])


def test_hidden_layers_equal_plain_modules(latents):
    net = random_net((4,) * len(MIXED), hidden=7, depth=2)
    state = net.encoders[0].state_dict()
    layers = []
    for level, in_features in enumerate((DIM, 7)):
        linear, norm = nn.Linear(in_features, 7), nn.LayerNorm(7)
        linear.load_state_dict({k: state[f"hidden.{level}.{k}"][1].T.reshape(v.shape) for k, v in shapes(linear)})
        norm.load_state_dict({k: state[f"norms.{level}.{k}"][1, 0] for k, _ in shapes(norm)})
        layers += [linear, norm, nn.GELU()]
    last = nn.Linear(7, 4)
    last.load_state_dict({k: state[f"last.{k}"][1].T.reshape(v.shape) for k, v in shapes(last)})
    torch.testing.assert_close(net.codes(latents)[0][1], nn.Sequential(*layers, last)(latents[1]))


def shapes(module):
    return list(module.state_dict().items())


@pytest.mark.parametrize("readings", [[1], [0, 2], [4, 3, 0], [5, 1, 2, 3]])
def test_selected_readings_keep_their_codes(readings, latents):
    net = random_net(head="each", noise=0.1)
    net.set_statistics(*moments(latents), standardise=True)
    selected = net.select_readings(readings).eval().requires_grad_(False)
    left, right = latents[readings][:, :4], latents[readings][:, 4:]
    np.testing.assert_allclose(
        selected.pair_cosines(left, right), net.pair_cosines(latents[:, :4], latents[:, 4:])[:, readings], atol=1e-5
    )
    assert selected.spec.head == "sum"
    torch.testing.assert_close(selected.deviation, net.deviation[readings])


def test_selected_readings_keep_their_relative_weights():
    net = random_net()
    weights, readings = net.pair.weights(), [4, 0, 3]
    torch.testing.assert_close(
        net.select_readings(readings).pair.weights(), weights[readings] / weights[readings].sum()
    )


def test_selected_network_does_not_share_parameters(latents):
    net = random_net()
    before = net(latents)
    selected = net.select_readings([0, 1])
    for parameter in selected.parameters():
        parameter.data.zero_()
    torch.testing.assert_close(net(latents), before, rtol=0, atol=0)


def test_unified_mixing_sums_the_projected_codes(latents):
    net = random_net(mixing="unified", mixed_width=4)
    state = {name: value.double().numpy() for name, value in net.state_dict().items()}
    total = np.zeros((TEXTS, 4))
    for group, width in enumerate((0, 3, 5)):
        for index, reading in enumerate(n for n, group_width in enumerate(MIXED) if group_width == width):
            code = code_by_hand(net, reading, latents[reading])
            total += code @ state[f"mixer.up.{group}.weight"][index] + state[f"mixer.up.{group}.bias"][index]
    np.testing.assert_allclose(net(latents), unit(total), atol=1e-5)


@pytest.mark.parametrize("width", [0, 4])
@pytest.mark.parametrize("mixing", ["attention_latents", "attention_codes"])
def test_attention_pools_readings_with_softmax_weights(mixing, width, latents):
    net = random_net((width,) * len(MIXED), mixing=mixing, mixed_width=3)
    queries = net.mixer.queries.double().numpy()
    values = latents.double().numpy()
    if mixing == "attention_codes":
        values = np.stack([code_by_hand(net, n, latents[n]) for n in range(len(MIXED))])
    blocks = []
    for query_index, query in enumerate(queries):
        weights = np.exp(values @ query)  # [reading, text]
        pooled = (values * (weights / weights.sum(axis=0))[..., None]).sum(axis=0)
        if mixing == "attention_latents":
            pooled = code_by_hand(net, query_index, torch.from_numpy(pooled))
        blocks.append(unit(pooled))
    roots = np.sqrt(net.pair.weights().numpy()).repeat(width or DIM)
    np.testing.assert_allclose(net(latents), np.concatenate(blocks, axis=1) * roots, atol=1e-5)


def moments(latents):
    return latents.mean(dim=1, keepdim=True), latents.std(dim=1, keepdim=True, correction=0)


def test_standardised_latents_have_mean_0_and_deviation_1(latents):
    latents = latents * 40 + 7
    latents[2, :, 3] = 5.0
    net = random_net()
    net.set_statistics(*moments(latents), standardise=True)
    normalised = net.normalise(latents).numpy()
    np.testing.assert_allclose(normalised.mean(axis=1), 0, atol=1e-5)
    expected = np.ones((len(MIXED), DIM))
    expected[2, 3] = 0
    np.testing.assert_allclose(normalised.std(axis=1), expected, atol=1e-4)
    assert np.abs(net.normalise(latents + 1).numpy()[2, :, 3]).max() < 10


def test_latents_without_standardisation_keep_their_cosines(latents):
    latents = latents * torch.logspace(-2, 3, len(MIXED))[:, None, None] + 0.5
    net = random_net()
    net.set_statistics(*moments(latents), standardise=False)
    normalised = net.normalise(latents).numpy()
    np.testing.assert_allclose((normalised**2).mean(axis=(1, 2)), 1, rtol=1e-4)
    before, after = unit(latents.numpy()), unit(normalised)
    np.testing.assert_allclose(after @ after.transpose(0, 2, 1), before @ before.transpose(0, 2, 1), atol=1e-5)


def test_unit_latents_have_unit_length(latents):
    np.testing.assert_allclose(np.linalg.norm(random_net(unit=True).normalise(latents * 9), axis=-1), 1, atol=1e-6)


def test_noise_scales_with_the_deviation_in_training_only():
    latents = torch.zeros(2, 4000, DIM)
    deviation = torch.arange(1.0, 1 + 2 * DIM).reshape(2, 1, DIM)
    net = CodeNet(CodeSpec(DIM, (0, 0), noise=0.1))
    net.set_statistics(torch.zeros(2, 1, DIM), deviation, standardise=True)
    torch.manual_seed(0)
    np.testing.assert_allclose(net.train().prepare(latents).std(dim=1), 0.1, rtol=0.1)
    assert not net.eval().prepare(latents).any()


def test_dropout_acts_in_training_only(latents):
    net = random_net(hidden=5, dropout=0.5)
    assert torch.equal(net(latents), net(latents))
    assert not torch.equal(net.train()(latents), net(latents))


@pytest.mark.parametrize(
    ("choices", "hint"),
    [
        ({"mixing": "attention"}, "Did you mean attention_"),
        ({"head": "gate"}, "gated"),
        ({"mixing": "attention_codes", "mixed_width": 2}, "single width"),
        ({"mixing": "unified"}, "mixed_width of 1 or more"),
    ],
)
def test_invalid_specs_are_refused(choices, hint):
    with pytest.raises(InputError, match=hint):
        CodeSpec(DIM, (3, 5), **choices)


def freeze_parameters(**choices):
    """Number of parameters for gpt2-medium; nothing is allocated."""
    with torch.device("meta"):
        return CodeNet(FreezeRecipe(**choices).code_spec_for([24], 1024)).count_parameters()


@pytest.mark.parametrize(("hidden", "percent"), [(0, 2.7), (512, 4.9), (0.5, 4.9), (640, 6.1)])
def test_final_model_has_under_7_percent_of_gpt2_medium(hidden, percent):
    size = round(hidden * 1024) if isinstance(hidden, float) else hidden
    first = 1024 * size + size + 2 * size  # a linear layer and a norm
    last = [((size or 1024) + 1) * width for width in (256, 512)]
    head = (24 * 64 + 64) + (64 + 1)
    assert freeze_parameters(hidden=hidden) == 24 * first + 12 * sum(last) + head
    assert round(100 * freeze_parameters(hidden=hidden) / 355e6, 1) == percent
    assert freeze_parameters() < 0.07 * 355e6


def test_step_2_has_600_thousand_more_parameters_than_step_5():
    step2 = freeze_parameters(widths=(512,), pretrain="none", loss="mse")
    assert step2 - freeze_parameters() > 600_000
