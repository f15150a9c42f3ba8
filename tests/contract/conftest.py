"""Every recipe trained once on toy data, on each of three families; the tests inspect the run and its result."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from decoder2vec.activations.capture import Capture
from decoder2vec.backbone.backbone import Backbone
from decoder2vec.backbone.machine import quiet_transformers
from decoder2vec.config import EncoderSpec, Reading
from decoder2vec.encoder import Encoder
from decoder2vec.text.batches import collate
from decoder2vec.text.template import Template
from decoder2vec.text.tokens import Tokeniser
from decoder2vec.training import checkpoint
from decoder2vec.training.api import TrainingResult, train
from decoder2vec.training.recipes import recipe as recipe_module
from toys.contract import TOY_LABELS, TOY_RECIPES
from toys.regression import state_of

TEXTS = ("cats sleep", "the dogs run over the long road in the rain and sing of boats that sail", "a", "")


@pytest.fixture(scope="session", autouse=True)
def quiet():
    """No messages about missing kernels, and one thread: all models here are tiny."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with quiet_transformers():
        yield
    torch.set_num_threads(threads)


@dataclass
class RecipeRun:
    """A model, and what training it with a recipe did."""

    backbone: Backbone
    weights: dict[str, torch.Tensor]
    """Of the model before training."""
    plain: Encoder
    """The model without adapter."""
    plain_vectors: np.ndarray
    """Of `TEXTS`, before training."""
    folder: Path
    """Of the trained encoder."""
    result: TrainingResult | None = None
    start: dict[str, torch.Tensor] = field(default_factory=dict)
    """Trained parameters before the first step."""
    gradients: list[dict[str, torch.Tensor | None]] = field(default_factory=list)
    """Of the trained parameters, after each of the first three steps."""
    after_three: dict[str, torch.Tensor] = field(default_factory=dict)
    """Trained parameters after three steps."""
    others_with_gradient: set[str] = field(default_factory=set)
    """Parameters of the model that got a gradient and are not among those trained."""

    @property
    def encoder(self) -> Encoder:
        return self.result.encoder

    @cached_property
    def loaded(self) -> Encoder:
        return Encoder.load(self.folder, device="cpu", dtype="float32")

    @property
    def history(self) -> dict[str, Any]:
        return self.result.results["seeds"][0]["notes"]["training"]

    def train(self, name: str, on_progress: Callable[..., object] = lambda _: None) -> None:
        """Train with the toy of that name, and record the parameters and gradients of the first steps."""
        module = None
        original = recipe_module.fit

        def fit(trained, *args, **options):
            nonlocal module
            module = trained
            self.start = _copy(trained)
            return original(trained, *args, **options)

        def record(state):
            if state.step <= 3:
                self.gradients.append({name: parameter.grad for name, parameter in module.named_parameters()})
                self.after_three = _copy(module)
                trained = {id(parameter) for parameter in module.parameters()}
                self.others_with_gradient |= {
                    name
                    for name, parameter in self.backbone.model.named_parameters()
                    if parameter.grad is not None and id(parameter) not in trained
                }
            on_progress(state)

        toy = TOY_LABELS if name == "labels" else TOY_RECIPES[name]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(recipe_module, "fit", fit)
            patch.setattr(checkpoint, "_SAVE_EVERY", 0.0)
            self.result = train(toy.recipe, toy.data, self.backbone, self.folder, on_progress=record)


def _copy(module):
    return {name: parameter.detach().clone() for name, parameter in module.named_parameters()}


@pytest.fixture(scope="session")
def new_run(tmp_path_factory, own_cache):
    """new_run(family) -> RecipeRun that is not trained yet, on a model of its own."""

    def make(family):
        backbone = Backbone.load(family, device="cpu", dtype="float32")
        spec = EncoderSpec(backbone.name, (Reading(-1, "lasttoken", True),))
        plain = Encoder(backbone.with_adapter(None), spec)
        folder = tmp_path_factory.mktemp("run") / "encoder"
        return RecipeRun(backbone, state_of(backbone.model), plain, plain.encode(TEXTS), folder)

    return make


@pytest.fixture(scope="session")
def trained_run(new_run):
    """trained_run(name, family) -> RecipeRun of a toy recipe; each is trained once, so do not change it."""

    @cache
    def make(name, family):
        run = new_run(family)
        run.train(name)
        return run

    return make


@pytest.fixture(scope="session")
def encode_padded():
    """encode_padded(encoder, texts, side) -> vectors of all texts in one batch padded on that side."""

    @torch.inference_mode()
    def encode(encoder, texts, side):
        backbone, spec = encoder.backbone, encoder.spec
        prompts = Tokeniser(backbone, Template(spec.template), encoder.max_seq_length)(list(texts)).prompts
        batch = collate(prompts, backbone.pad_token_id, side=side)
        assert batch.padding == side
        latents = Capture(backbone, spec.readings)(batch)
        vectors = latents.flatten(1).numpy()
        return encoder.head(vectors) if encoder.head else vectors

    return encode
