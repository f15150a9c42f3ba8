"""Toy data that every recipe can learn from in a few steps, and small recipes to learn with."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import torch

from decoder2vec.recipes.registry import recipe_named
from decoder2vec.recipes.schedule import Schedule
from decoder2vec.text.files import ScoredPairs
from decoder2vec.training.adapting import AdapterTraining
from decoder2vec.training.contrast import Contrast, Example
from decoder2vec.training.data import TrainingData, check_data

TOPICS = ("cats sleep", "dogs run", "rain falls", "birds sing", "stocks rise", "cars stop", "boats sail", "kids play")
WHEN = ("today", "here", "now", "often")

SETTINGS = {
    "soft_prompt": {"tokens": 4},
    "kv_prefix": {"tokens": 4, "start": ""},
    "lora": {"rank": 4, "alpha": 8},
    "full": {},
}
RATES = {"soft_prompt": 5e-2, "kv_prefix": 5e-2, "lora": 1e-2, "full": 3e-3}
ADAPTING = tuple(SETTINGS)


def toy_examples() -> list[Example]:
    """24 examples without a text twice: the same topic at another time belongs to it, another topic does not."""
    return [
        Example(f"the {topic} {here}", f"{topic} {there}", (f"the {TOPICS[number - 3]} {there}",), topic)
        for number, topic in enumerate(TOPICS)
        for here, there in pairwise(WHEN)
    ]


def toy_pairs(name: str = "dev") -> ScoredPairs:
    """Five pairs of one topic and five of two, all of whose texts stand in the examples."""
    left = [f"the {topic} {WHEN[number % 3]}" for number, topic in enumerate(TOPICS[:5])]
    right = [f"{topic} {WHEN[1 + number % 3]}" for number, topic in enumerate(TOPICS[:5])]
    scores = [1 - number / 100 for number in range(5)] + [number / 100 for number in range(5)]
    return ScoredPairs(name, left + left, right + right[2:] + right[:2], scores)


def toy_data(**changes: object) -> TrainingData:
    """The examples, and pairs to choose on."""
    data = TrainingData(None, (toy_pairs(),), contrast=Contrast.of(toy_examples()))
    return check_data(replace(data, **changes))


def small(name: str, *, epochs: int = 2, batch: int = 8, every: int = 0, **changes: object):
    """A recipe that takes `epochs` times three steps on the toy data."""
    schedule = Schedule(epochs=epochs, batch=batch, rate=RATES[name], evaluate_every=every, patience=100, clip=1.0)
    return recipe_named(name)(**{"training": schedule, **SETTINGS[name], **changes})


@torch.no_grad()
def moved(module):
    """A little, each number: LoRA begins with zeros, which would hide what it does."""
    numbers = torch.Generator().manual_seed(1)
    for parameter in module.parameters():
        parameter += 0.1 * torch.randn(parameter.shape, generator=numbers)
    return module


def task_of(recipe, data, backbone, seed=0):
    """(module, task) as training hands them to its loop, which does not run."""
    _, module, task = AdapterTraining(recipe, data, backbone).prepare(seed)
    return module, task


def gradients_of(module, task, rows, seed=5):
    """The loss of a batch and the gradient of everything trained, by name."""
    module.train()
    module.zero_grad()
    torch.manual_seed(seed)
    with task.around():
        loss = task.loss(rows)
        loss.backward()
    module.eval()
    return loss.item(), {name: tensor.grad for name, tensor in module.named_parameters() if tensor.requires_grad}
