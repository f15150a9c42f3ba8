"""A small code network on the latents of a tiny model, tasks to train it on, and its codes by plain loops."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from scipy import stats

from decoder2vec.activations.extract import Reader
from decoder2vec.activations.latent_table import LatentTable
from decoder2vec.heads.codes import CodeNet
from decoder2vec.text.template import Template
from decoder2vec.training.context import InputSpec, LatentContext, Reads
from decoder2vec.training.loop import Schedule
from decoder2vec.training.objectives.objective import trained_module, training_task
from decoder2vec.training.recipes.freeze import FreezeRecipe

RECIPE = FreezeRecipe(widths=(8, 16), hidden=12, head="sum", pretrain="none", loss="mse")
LATENTS = InputSpec(Reads.LATENTS)


def latent_context(backbone, data, **changes):
    """A code network with random parameters on the latents of all texts; `changes` are settings of the recipe."""
    recipe = replace(RECIPE, **changes)
    table = LatentTable(Reader(backbone, recipe.readings(backbone), Template("{text}")), data.all_texts())
    torch.manual_seed(1)
    net = CodeNet(recipe.code_spec(backbone))
    mean, deviation = table.moments(np.arange(table.shape[1]))
    net.set_statistics(mean, deviation, standardise=recipe.standardise)
    if hasattr(net.pair, "logits"):
        torch.nn.init.normal_(net.pair.logits)
    return LatentContext(net.eval(), table)


def latent_task(objective, context):
    """The objective as the training loop runs it, with its extra modules in evaluation mode."""
    trained_module(objective, context).eval()
    return training_task(objective, context, Schedule(), "pearson")


def reading_position(spec, reading):
    """(group, position in the group) of a reading."""
    group = next(index for index, readings in enumerate(spec.groups) if reading in readings)
    return group, spec.groups[group].index(reading)


def layer_linear(layer, x, position):
    """A layerwise linear layer on one of its layers."""
    return x @ layer.weight[position].double().numpy() + layer.bias[position].double().numpy()


def unit_codes(net, latents):
    """Unit codes of [readings, texts, dim] latents by plain loops: linear, layer norm, GELU, linear."""
    codes = []
    for reading, width in enumerate(net.spec.widths):
        group, position = reading_position(net.spec, reading)
        encoder = net.encoders[group]
        scale, shift = net.scale[reading].double().numpy(), net.shift[reading].double().numpy()
        x = (latents[reading].double().numpy() - shift) * scale
        x = layer_linear(encoder.hidden[0], x, position)
        x = (x - x.mean(axis=1, keepdims=True)) / np.sqrt(x.var(axis=1, keepdims=True) + 1e-5)
        x = x * encoder.norms[0].weight[position].double().numpy() + encoder.norms[0].bias[position].double().numpy()
        x = x * stats.norm.cdf(x)
        codes.append(layer_linear(encoder.last, x, position))
        assert codes[-1].shape[1] == width
    return [code / np.linalg.norm(code, axis=1, keepdims=True) for code in codes]


def code_cosines(context, left, right):
    """[pairs, readings] cosines of the codes of two texts, by plain loops."""
    codes = (unit_codes(context.net, context.table.batch(rows)) for rows in (left, right))
    return np.stack([(a * b).sum(axis=1) for a, b in zip(*codes, strict=True)], axis=1)


def net_state(result):
    """The parameters of the code network of a FREEZE result, by name."""
    return {name: tensor.clone() for name, tensor in result.model.net.state_dict().items()}


def equal_states(state, other):
    """Whether two state dicts are equal bit for bit."""
    return state.keys() == other.keys() and all(torch.equal(state[name], other[name]) for name in state)
