"""The layerwise network against numpy, plain loops and arithmetic."""

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
"""Widths whose groups do not stand together; 0 is the latent itself."""


def made(widths=MIXED, **choices):
    """A network whose every number is random."""
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
    """[text, width] code of one reading of a linear network, from the numbers in its state."""
    groups = sorted(set(net.spec.widths))
    place = [n for n, width in enumerate(net.spec.widths) if width == net.spec.widths[reading]].index(reading)
    state = {name: value.double().numpy() for name, value in net.state_dict().items()}
    name = f"encoders.{groups.index(net.spec.widths[reading])}.last"
    x = (latent.double().numpy() - state["shift"][reading]) * state["scale"][reading]
    if net.spec.widths[reading] == 0:
        return x
    return x @ state[f"{name}.weight"][place] + state[f"{name}.bias"][place]


def cosines_by_hand(net, left, right):
    """[pair, reading] cosines of the codes."""
    columns = []
    for reading in range(len(net.spec.widths)):
        a, b = (unit(code_by_hand(net, reading, side[reading])) for side in (left, right))
        columns.append((a * b).sum(axis=1))
    return np.stack(columns, axis=1)


def test_cosines_stand_in_the_order_of_the_readings(latents):
    net = made()
    left, right = latents[:, :4], latents[:, 4:]
    np.testing.assert_allclose(net.pair_cosines(left, right), cosines_by_hand(net, left, right), atol=1e-5)


def test_the_dot_product_of_two_vectors_is_the_weighted_sum_of_the_cosines(latents):
    net = made()
    left, right = latents[:, :4], latents[:, 4:]
    logits = net.pair.logits.double().numpy()
    expected = cosines_by_hand(net, left, right) @ (np.exp(logits) / np.exp(logits).sum())
    dots = (net(left).double() * net(right).double()).sum(dim=1)
    np.testing.assert_allclose(dots, expected, atol=1e-6)
    np.testing.assert_allclose(dots, net.score(left, right), atol=1e-6)


@pytest.mark.parametrize("head", ["sum", "gated", "mlp", "each"])
def test_vectors_have_unit_length_and_the_size_that_was_said(head, latents):
    net = made(head=head)
    vectors = net(latents)
    assert vectors.shape == (TEXTS, net.spec.size) == (TEXTS, 3 * 3 + 2 * 5 + DIM)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-6)


@pytest.mark.parametrize("choices", [{}, {"head": "mlp"}, {"mixing": "unified", "mixed_width": 4}], ids=str)
def test_split_is_the_inverse_of_join(choices, latents):
    net = made(**choices)
    blocks = net.blocks(latents)
    again = net.split(net.join(blocks))
    assert len(again) == len(blocks)
    for block, other in zip(blocks, again, strict=True):
        torch.testing.assert_close(other, block)


def test_split_keeps_the_precision_of_the_vectors(latents):
    net = made()
    assert all(block.dtype == torch.float64 for block in net.split(net(latents).double()))


def test_a_text_alone_has_the_vector_it_has_in_company(latents):
    net = made(hidden=7)
    torch.testing.assert_close(net(latents[:, 3:4])[0], net(latents)[3])


def test_hidden_layers_and_depth_are_those_of_plain_modules(latents):
    net = made((4,) * len(MIXED), hidden=7, depth=2)
    state = net.encoders[0].state_dict()
    steps = []
    for level, inside in enumerate((DIM, 7)):
        linear, norm = nn.Linear(inside, 7), nn.LayerNorm(7)
        linear.load_state_dict({k: state[f"hidden.{level}.{k}"][1].T.reshape(v.shape) for k, v in shapes(linear)})
        norm.load_state_dict({k: state[f"norms.{level}.{k}"][1, 0] for k, _ in shapes(norm)})
        steps += [linear, norm, nn.GELU()]
    last = nn.Linear(7, 4)
    last.load_state_dict({k: state[f"last.{k}"][1].T.reshape(v.shape) for k, v in shapes(last)})
    torch.testing.assert_close(net.codes(latents)[0][1], nn.Sequential(*steps, last)(latents[1]))


def shapes(module):
    return list(module.state_dict().items())


@pytest.mark.parametrize("kept", [[1], [0, 2], [4, 3, 0], [5, 1, 2, 3]])
def test_only_some_readings_give_the_codes_they_gave_before(kept, latents):
    net = made(head="each", noise=0.1)
    net.set_statistics(*moments(latents), standardise=True)
    part = net.only(kept).eval().requires_grad_(False)
    left, right = latents[kept][:, :4], latents[kept][:, 4:]
    np.testing.assert_allclose(
        part.pair_cosines(left, right), net.pair_cosines(latents[:, :4], latents[:, 4:])[:, kept], atol=1e-5
    )
    assert part.spec.head == "sum"
    torch.testing.assert_close(part.spread, net.spread[kept])


def test_only_keeps_the_proportions_of_the_weights():
    net = made()
    weights, kept = net.pair.weights(), [4, 0, 3]
    torch.testing.assert_close(net.only(kept).pair.weights(), weights[kept] / weights[kept].sum())


def test_changing_the_part_leaves_the_whole_as_it_was(latents):
    net = made()
    before = net(latents)
    part = net.only([0, 1])
    for parameter in part.parameters():
        parameter.data.zero_()
    torch.testing.assert_close(net(latents), before, rtol=0, atol=0)


def test_unified_sums_the_codes_projected_up(latents):
    net = made(mixing="unified", mixed_width=4)
    state = {name: value.double().numpy() for name, value in net.state_dict().items()}
    total = np.zeros((TEXTS, 4))
    for group, width in enumerate((0, 3, 5)):
        for place, reading in enumerate(n for n, each in enumerate(MIXED) if each == width):
            code = code_by_hand(net, reading, latents[reading])
            total += code @ state[f"mixer.up.{group}.weight"][place] + state[f"mixer.up.{group}.bias"][place]
    np.testing.assert_allclose(net(latents), unit(total), atol=1e-5)


@pytest.mark.parametrize("width", [0, 4])
@pytest.mark.parametrize("mixing", ["attention_latents", "attention_codes"])
def test_attention_pools_the_readings_with_softmax_weights(mixing, width, latents):
    net = made((width,) * len(MIXED), mixing=mixing, mixed_width=3)
    queries = net.mixer.queries.double().numpy()
    values = latents.double().numpy()
    if mixing == "attention_codes":
        values = np.stack([code_by_hand(net, n, latents[n]) for n in range(len(MIXED))])
    blocks = []
    for number, query in enumerate(queries):
        weights = np.exp(values @ query)  # [reading, text]
        pooled = (values * (weights / weights.sum(axis=0))[..., None]).sum(axis=0)
        if mixing == "attention_latents":
            pooled = code_by_hand(net, number, torch.from_numpy(pooled))
        blocks.append(unit(pooled))
    roots = np.sqrt(net.pair.weights().numpy()).repeat(width or DIM)
    np.testing.assert_allclose(net(latents), np.concatenate(blocks, axis=1) * roots, atol=1e-5)


def moments(latents):
    return latents.mean(dim=1, keepdim=True), latents.std(dim=1, keepdim=True, correction=0)


def test_standardised_latents_have_mean_0_and_deviation_1_and_constants_stay_finite(latents):
    latents = latents * 40 + 7
    latents[2, :, 3] = 5.0
    net = made()
    net.set_statistics(*moments(latents), standardise=True)
    clean = net.clean(latents).numpy()
    np.testing.assert_allclose(clean.mean(axis=1), 0, atol=1e-5)
    expected = np.ones((len(MIXED), DIM))
    expected[2, 3] = 0
    np.testing.assert_allclose(clean.std(axis=1), expected, atol=1e-4)
    assert np.abs(net.clean(latents + 1).numpy()[2, :, 3]).max() < 10


def test_not_standardised_each_reading_has_size_one_and_its_cosines_stay(latents):
    latents = latents * torch.logspace(-2, 3, len(MIXED))[:, None, None] + 0.5
    net = made()
    net.set_statistics(*moments(latents), standardise=False)
    clean = net.clean(latents).numpy()
    np.testing.assert_allclose((clean**2).mean(axis=(1, 2)), 1, rtol=1e-4)
    before, after = unit(latents.numpy()), unit(clean)
    np.testing.assert_allclose(after @ after.transpose(0, 2, 1), before @ before.transpose(0, 2, 1), atol=1e-5)


def test_unit_latents_have_unit_length(latents):
    np.testing.assert_allclose(np.linalg.norm(made(unit=True).clean(latents * 9), axis=-1), 1, atol=1e-6)


def test_noise_is_a_part_of_each_dimensions_deviation_and_only_there_in_training():
    latents = torch.zeros(2, 4000, DIM)
    deviation = torch.arange(1.0, 1 + 2 * DIM).reshape(2, 1, DIM)
    net = CodeNet(CodeSpec(DIM, (0, 0), noise=0.1))
    net.set_statistics(torch.zeros(2, 1, DIM), deviation, standardise=True)
    torch.manual_seed(0)
    np.testing.assert_allclose(net.train().prepare(latents).std(dim=1), 0.1, rtol=0.1)
    assert not net.eval().prepare(latents).any()


def test_dropout_is_only_there_in_training(latents):
    net = made(hidden=5, dropout=0.5)
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
def test_shapes_that_cannot_be_are_refused(choices, hint):
    with pytest.raises(InputError, match=hint):
        CodeSpec(DIM, (3, 5), **choices)


def counted(**choices):
    """Parameters on gpt2-medium's shape; nothing is allocated."""
    with torch.device("meta"):
        return CodeNet(FreezeRecipe(**choices).codes_of([24], 1024)).parameter_count()


@pytest.mark.parametrize(("hidden", "percent"), [(0, 2.7), (512, 4.9), (0.5, 4.9), (640, 6.1)])
def test_the_papers_final_model_has_under_7_percent_of_gpt2_mediums_parameters(hidden, percent):
    size = round(hidden * 1024) if isinstance(hidden, float) else hidden
    first = 1024 * size + size + 2 * size  # a linear layer and a norm
    last = [((size or 1024) + 1) * width for width in (256, 512)]
    head = (24 * 64 + 64) + (64 + 1)
    assert counted(hidden=hidden) == 24 * first + 12 * sum(last) + head
    assert round(100 * counted(hidden=hidden) / 355e6, 1) == percent
    assert counted() < 0.07 * 355e6


def test_step_2_has_over_600_thousand_parameters_more_than_step_5():
    step2 = counted(widths=(512,), pretrain="none", loss="mse")
    assert step2 - counted() > 600_000
