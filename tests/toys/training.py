"""Toy data that every recipe can learn from in a few steps, and small recipes to learn with."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from scipy.special import logsumexp

from decoder2vec.text.files import ScoredPairs
from decoder2vec.training.contrastive_examples import ContrastiveExamples, Example
from decoder2vec.training.data import TrainingData, check_data
from decoder2vec.training.loop import Schedule
from decoder2vec.training.objectives.objective import trained_module, training_task
from decoder2vec.training.recipes import recipe_class
from decoder2vec.training.recipes.recipe import Trainer

TOPICS = ("cats sleep", "dogs run", "rain falls", "birds sing", "stocks rise", "cars stop", "boats sail", "kids play")
WHEN = ("today", "here", "now", "often")

SETTINGS = {
    "soft_prompt": {"tokens": 4},
    "kv_prefix": {"tokens": 4, "start": ""},
    "lora": {"rank": 4, "alpha": 8},
    "bottleneck": {"width": 4},
    "conv": {"width": 4},
    "full": {},
    "rerank": {"rank": 4, "alpha": 8, "max_length": 64},
}
RATES = {
    **{"soft_prompt": 5e-2, "kv_prefix": 5e-2, "lora": 1e-2, "full": 3e-3, "rerank": 1e-2},
    **{"bottleneck": 3e-2, "conv": 3e-2},
}
ADAPTER_RECIPES = ("soft_prompt", "kv_prefix", "lora", "bottleneck", "conv", "full")


def toy_examples() -> list[Example]:
    """24 examples without a repeated text: the same topic at another time is a positive, another topic a negative."""
    return [
        Example(f"the {topic} {here}", f"{topic} {there}", (f"the {TOPICS[index - 3]} {there}",), topic)
        for index, topic in enumerate(TOPICS)
        for here, there in pairwise(WHEN)
    ]


def toy_pairs(name: str = "dev") -> ScoredPairs:
    """Five pairs of one topic and five of two, all of whose texts are in the examples."""
    left = [f"the {topic} {WHEN[index % 3]}" for index, topic in enumerate(TOPICS[:5])]
    right = [f"{topic} {WHEN[1 + index % 3]}" for index, topic in enumerate(TOPICS[:5])]
    scores = [1 - index / 100 for index in range(5)] + [index / 100 for index in range(5)]
    return ScoredPairs(name, left + left, right + right[2:] + right[:2], scores)


def toy_data(**changes: object) -> TrainingData:
    """The examples, and dev pairs."""
    data = TrainingData(None, (toy_pairs(),), contrastive=ContrastiveExamples.of(toy_examples()))
    return check_data(replace(data, **changes))


def small_recipe(name: str, *, epochs: int = 2, batch: int = 8, every: int = 0, **changes: object):
    """An adapter recipe that takes `epochs` times three steps on the toy data."""
    schedule = Schedule(epochs=epochs, batch=batch, rate=RATES[name], evaluate_every=every, patience=100, clip=1.0)
    return recipe_class(name)(**{"training": schedule, **SETTINGS[name], **changes})


@torch.no_grad()
def perturbed(module):
    """The module with every parameter changed a little: LoRA starts at zero, which would hide what it does."""
    generator = torch.Generator().manual_seed(1)
    for parameter in module.parameters():
        parameter += 0.1 * torch.randn(parameter.shape, generator=generator)
    return module


def attached(recipe, data, backbone, seed=0):
    """(context, module, task) as training passes them to its loop, which does not run."""
    trainer = Trainer(recipe, data, backbone)
    torch.manual_seed(seed)
    context = recipe.attach(trainer.corpus)
    objective = trainer.corpus.objective
    module = trained_module(objective, context)
    return context, module, training_task(objective, context, recipe.training, recipe.choose_by)


def module_and_task(recipe, data, backbone, seed=0):
    """(module, task) of `attached`."""
    return attached(recipe, data, backbone, seed)[1:]


def gradients_of(module, task, rows, seed=5):
    """The loss of a batch and the gradient of everything trained, by name."""
    module.train()
    module.zero_grad()
    torch.manual_seed(seed)
    with task.step_context():
        loss = task.loss(rows)
        loss.backward()
    module.eval()
    return loss.item(), {name: tensor.grad for name, tensor in module.named_parameters() if tensor.requires_grad}


def assert_same_gradients(actual, expected):
    """Compare two results of `gradients_of`."""
    (loss, gradients), (expected_loss, expected_gradients) = actual, expected
    assert loss == pytest.approx(expected_loss, rel=1e-5)
    for name, gradient in expected_gradients.items():
        torch.testing.assert_close(gradients[name], gradient, rtol=1e-3, atol=2e-5 * float(gradient.abs().max()))


def info_nce_by_hand(vectors, temperature=0.2):
    """InfoNCE text by text; the first half of the vectors are first views, the second half second ones."""
    unit = vectors.astype(np.float64) / np.linalg.norm(vectors, axis=1, keepdims=True)
    first, second = np.split(unit, 2)
    losses = []
    for row, anchor in enumerate(first):
        scores = [anchor @ vector / temperature for vector in second]
        losses.append(logsumexp(scores) - scores[row])
    return np.mean(losses)
