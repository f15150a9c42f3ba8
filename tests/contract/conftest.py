"""Every recipe trained once on toy data, on each of three families; the tests look at what came of it."""

from __future__ import annotations

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
from decoder2vec.training import adapting, checkpoint
from decoder2vec.training.api import TrainingResult, train
from decoder2vec.training.plan import Plan
from toys.training import small_recipe, toy_data

TEXTS = ("cats sleep", "the dogs run over the long road in the rain and sing of boats that sail", "a", "")


@pytest.fixture(scope="session", autouse=True)
def quiet():
    """No remarks about missing kernels; and one thread, since several only wait for each other on models so small."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with quiet_transformers():
        yield
    torch.set_num_threads(threads)


@dataclass
class Trained:
    """What a run was given and what it came to."""

    backbone: Backbone
    weights: dict[str, torch.Tensor]
    """Those of the model before the run."""
    plain: Encoder
    """The model as it is."""
    vectors: np.ndarray
    """Of the texts, read by the plain model before the run."""
    folder: Path
    outcome: TrainingResult | None = None
    start: dict[str, torch.Tensor] = field(default_factory=dict)
    """What is trained, before the first step."""
    gradients: list[dict[str, torch.Tensor | None]] = field(default_factory=list)
    later: dict[str, torch.Tensor] = field(default_factory=dict)
    """What is trained, after three steps."""
    others: set[str] = field(default_factory=set)
    """Parameters of the given model that got a gradient and are not the adapter's."""

    @property
    def encoder(self) -> Encoder:
        return self.outcome.encoder

    @cached_property
    def loaded(self) -> Encoder:
        return Encoder.load(self.folder, device="cpu", dtype="float32")

    @property
    def history(self) -> dict[str, Any]:
        return self.outcome.results["seeds"][0]["notes"]["training"]


def weights_of(backbone):
    return {name: tensor.clone() for name, tensor in backbone.model.state_dict().items()}


def plain_encoder(backbone):
    return Encoder(backbone.with_adapter(None), EncoderSpec(backbone.name, (Reading(-1, "lasttoken", True),)))


def run_watched(run, recipe, on_progress=lambda _: None):
    """Train, and note start, gradients and the state after three steps on the way."""
    seen = {}
    plain_fit = adapting.fit

    def fit(module, task, seed, **options):
        seen["module"] = module
        run.start = {name: tensor.detach().clone() for name, tensor in module.named_parameters()}
        return plain_fit(module, task, seed, **options)

    def look(note):
        module = seen["module"]
        if note.step <= 3:
            run.gradients.append({name: tensor.grad for name, tensor in module.named_parameters()})
            run.later = {name: tensor.detach().clone() for name, tensor in module.named_parameters()}
            own = {id(parameter) for parameter in module.parameters()}
            given = run.backbone.model.named_parameters()
            run.others |= {name for name, tensor in given if tensor.grad is not None and id(tensor) not in own}
        on_progress(note)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(adapting, "fit", fit)
        patch.setattr(checkpoint, "_SAVE_EVERY", 0.0)
        run.outcome = train(Plan("toy", recipe=recipe), toy_data(), run.backbone, run.folder, on_progress=look)
    return run


@pytest.fixture(scope="session")
def begin(tmp_path_factory, own_cache):
    """begin(family) -> a run that has not begun, on a model of its own."""

    def make(family):
        backbone = Backbone.load(family, device="cpu", dtype="float32")
        plain = plain_encoder(backbone)
        folder = tmp_path_factory.mktemp("run") / "encoder"
        return Trained(backbone, weights_of(backbone), plain, plain.encode(TEXTS), folder)

    return make


@pytest.fixture(scope="session")
def recipe_for():
    """recipe_for(name) -> the small recipe that `trained` has run: six steps, with a look at dev after every second."""
    return lambda name: small_recipe(name, epochs=2, every=2)


@pytest.fixture(scope="session")
def trained(begin, recipe_for):
    """trained(name, family) -> Trained; each is run once, so do not change what it returns."""

    @cache
    def go(name, family):
        return run_watched(begin(family), recipe_for(name))

    return go


@pytest.fixture(scope="session")
def rewatch():
    """rewatch(run, recipe, watch): train a run that was begun, as `trained` does."""
    return run_watched


@pytest.fixture(scope="session")
def state_of():
    """state_of(backbone) -> its weights by name."""
    return weights_of


@pytest.fixture(scope="session")
def padded():
    """padded(encoder, texts, side) -> vectors of all texts in one batch padded on that side."""

    @torch.inference_mode()
    def read(encoder, texts, side):
        backbone, spec = encoder.backbone, encoder.spec
        prompts = Tokeniser(backbone, Template(spec.template), encoder.max_seq_length)(list(texts)).prompts
        batch = collate(prompts, backbone.pad_token_id, side=side)
        assert batch.padding == side
        return Capture(backbone, spec.readings)(batch)[:, 0].numpy()

    return read
