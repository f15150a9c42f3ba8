"""Distillation: the loss equals plain formulas, and students follow teachers."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.stats import spearmanr
from torch import nn

import decoder2vec
from decoder2vec.encoder import Encoder
from decoder2vec.errors import InputError
from decoder2vec.evaluation.baselines import load_encoder
from decoder2vec.maths.losses import round_trip, spread_out
from decoder2vec.maths.similarity import quantise
from decoder2vec.training.objectives.distill import DistillConfig
from decoder2vec.training.recipes.adapter import ReadSettings
from decoder2vec.training.recipes.recipe import Trainer
from decoder2vec.training.teachers import Teacher
from toys.texts import plain_data, sentences, split_twelve
from toys.training import gradients_of, module_and_task, small_recipe

TEXTS = sentences()
TRAIN_TEXTS, DEV_TEXTS = split_twelve(TEXTS)
ONE, OTHER = Teacher("random:16"), Teacher("random:40", weight=0.5)


@pytest.fixture(autouse=True)
def empty_store(tmp_path, monkeypatch):
    monkeypatch.setattr("decoder2vec.activations.store.store_root", lambda: tmp_path / "store")


def distill_recipe(name="lora", *, objective=None, **changes):
    config = DistillConfig(**{"teachers": (ONE,), **(objective or {})})
    return small_recipe(name, **{"objective": config, "read": ReadSettings(pooling="mean"), **changes})


def unit(vectors):
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def off_diagonal(matrix):
    return matrix[~np.eye(len(matrix), dtype=bool)]


def rounded(vectors):
    """A function of the precision: the vectors that `quantise` leaves, on their old scale."""

    def of(precision):
        codes = quantise(vectors.astype(np.float32), precision)
        if precision == "binary":
            signs = 2.0 * np.unpackbits((codes.astype(int) + 128).astype(np.uint8), axis=1) - 1
            return signs * np.abs(vectors).mean(axis=1, keepdims=True)
        low, high = vectors.min(axis=0), vectors.max(axis=0)
        return low + (codes.astype(np.float64) + 128) * (high - low) / 255

    return of


# --- loss -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"teachers": (ONE, OTHER)},
        {"dims": (8, 16)},
        {"vectors": 0.0, "similarities": 2.0},
        {"similarities": 1.0, "precisions": ("int8", "binary")},
        {"centre": False},
        {"teachers": (ONE, OTHER), "similarities": 1.0, "spread": 0.3, "dims": (8,)},
    ],
    ids=["one teacher", "two teachers", "matryoshka", "similarities", "quantised", "not centred", "all"],
)
def test_loss_equals_a_plain_computation(settings, backbone):
    recipe = distill_recipe(objective=settings)
    trainer = Trainer(recipe, plain_data(), backbone("tiny-llama"))
    module, task = module_and_task(recipe, plain_data(), backbone("tiny-llama"))
    loss, gradients = gradients_of(module, task, np.arange(6))
    maps = list(module[1]) if recipe.objective.vectors else [nn.Linear(32, 16)]
    spec = recipe._encoder_spec(trainer.corpus)
    vectors = Encoder(backbone("tiny-llama").with_adapter(None), spec).encode(TRAIN_TEXTS[:6]).astype(np.float64)
    config, expected = recipe.objective, 0.0
    for teacher, linear in zip(config.teachers, maps, strict=True):
        every_target = unit(load_encoder(teacher.name).encode([*TRAIN_TEXTS, *DEV_TEXTS]).astype(np.float64))
        target = every_target[:6]
        if config.centre:
            target = unit(target - every_target.mean(axis=0))
        weight, bias = (tensor.detach().double().numpy() for tensor in (linear.weight, linear.bias))
        views = [vectors, *(vectors[:, :width] for width in config.dims), *map(rounded(vectors), config.precisions)]
        for view in views:
            mapped = unit(view @ weight[:, : view.shape[1]].T + bias)
            expected += teacher.weight * config.vectors * (1 - (mapped * target).sum(1).mean()) / len(views)
            difference = unit(view) @ unit(view).T - target @ target.T
            expected += teacher.weight * config.similarities * (off_diagonal(difference) ** 2).mean() / len(views)
    cosines = off_diagonal(unit(vectors) @ unit(vectors).T)
    expected += config.spread * (cosines.mean() ** 2 + max(0, (cosines**2).mean() - 1 / vectors.shape[1]))
    assert loss == pytest.approx(expected, rel=1e-3)
    assert all(gradient is not None for name, gradient in gradients.items() if name.startswith("1."))


@pytest.mark.parametrize("batch", [256, 1])
def test_dev_metric_is_the_loss_on_held_out_texts(batch, backbone, monkeypatch):
    monkeypatch.setattr("decoder2vec.training.objectives.distill._DEV_BATCH", batch)
    _, task = module_and_task(distill_recipe(), plain_data(), backbone("tiny-llama"))
    with torch.no_grad():
        loss = task.loss(np.arange(len(TRAIN_TEXTS), len(TEXTS))).item()
    assert task.dev_metric() == pytest.approx(-100 * loss, rel=1e-4)


def test_spread_out_prefers_random_directions():
    generator = torch.Generator().manual_seed(0)
    random = torch.randn(200, 64, generator=generator)
    assert spread_out(random) < 1e-3 < spread_out(random + 2)
    assert spread_out(random[:1]) == 0, "a batch of one text has no other texts"


def test_gradients_pass_through_rounding():
    vectors = torch.randn(5, 8, generator=torch.Generator().manual_seed(0), requires_grad=True)
    for precision in ("int8", "binary"):
        (gradient,) = torch.autograd.grad(round_trip(vectors, precision).sum(), vectors)
        assert torch.equal(gradient, torch.ones(5, 8))


# --- training -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["lora", "full", "soft_prompt", "kv_prefix"])
def test_similarities_follow_those_of_the_teacher(name, backbone, tmp_path):
    teacher = Teacher("static:tiny-gpt2")
    target = unit(load_encoder(teacher.name).encode(TEXTS))

    def agreement(encoder):
        vectors = unit(encoder.encode(TEXTS))
        return spearmanr(off_diagonal(vectors @ vectors.T), off_diagonal(target @ target.T))[0]

    recipe = distill_recipe(name, objective={"teachers": (teacher,)}, epochs=40, batch=9, every=20)
    trainer = Trainer(recipe, plain_data(), backbone("tiny-llama"))
    untrained = Trainer(replace(recipe, training=replace(recipe.training, epochs=0)), plain_data(), trainer.backbone)
    result = trainer.run(0)
    before, after = (
        agreement(t.export(r, tmp_path / n)[0])
        for t, r, n in ((untrained, untrained.run(0), "a"), (trainer, result, "b"))
    )
    losses = result.notes["training"]["losses"]
    assert losses[-1] < losses[0] and after > before + 0.1
    (entry,) = result.notes["teachers"]
    assert entry["name"] == teacher.name and 0 < entry["cosine"] <= 1


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"teachers": ()}, "distill needs a teacher; give --teacher NAME"),
        ({"precisions": ("float8",)}, "Unknown precision"),
        ({"vectors": -1.0}, "The weight vectors must be 0 or more"),
        ({"vectors": 0.0}, "needs a weight above 0 for vectors or similarities"),
    ],
)
def test_unfit_settings_fail(settings, message, backbone):
    with pytest.raises(InputError, match=message):
        Trainer(distill_recipe(objective=settings), plain_data(), backbone("tiny-llama"))
    with pytest.raises(InputError, match="weight of the teacher x must be above 0"):
        Teacher("x", weight=0.0)


def test_recipe_distill_trains_all_weights(tmp_path):
    (tmp_path / "texts.txt").write_text("\n".join(TEXTS), encoding="utf-8")
    result = decoder2vec.train(
        "distill",
        tmp_path / "texts.txt",
        "tiny-llama",
        tmp_path / "enc",
        teachers=["static:tiny-gpt2"],
        settings=["training.epochs=2", "training.batch=8"],
        device="cpu",
    )
    assert result.record["parameters"]["percent"] == 100  # the map to the teacher's vectors is no part of the encoder
    seed = result.results["seeds"][0]
    cosine, history = seed["notes"]["teachers"][0]["cosine"], seed["notes"]["training"]
    start, best = -history["start"], -max([history["start"], *history["scores"]])
    assert result.results["notes"][-2:] == [
        f"seed 0: loss on held-out texts x 100 {best:.2f}, at the start {start:.2f}",
        f"seed 0: mean cosine {cosine:.3f} to the vectors of static:tiny-gpt2 on held-out texts",
    ]
    config = result.results["config"]
    assert config["full"]["objective"]["teachers"][0]["name"] == "static:tiny-gpt2"
    loaded = Encoder.load(tmp_path / "enc", device="cpu")
    assert loaded.spec.attention == "bidirectional" and loaded.spec.readings[0].pooling == "mean"
    similarities = spearmanr(loaded.encode(TEXTS).ravel(), result.encoder.encode(TEXTS).ravel())[0]
    assert similarities == pytest.approx(1, abs=1e-6)


def test_frozen_model_is_distilled_by_heads_alone(tmp_path, write_pairs, data):
    """FREEZE on plain texts and a teacher; the model is neither changed nor copied."""
    (tmp_path / "texts.txt").write_text("\n".join(TEXTS), encoding="utf-8")
    settings = ["widths=[16]", "head=sum", "pretrain=distill", "loss=none", "pretraining.epochs=4"]
    result = decoder2vec.train(
        "freeze",
        tmp_path / "texts.txt",
        "tiny-llama",
        tmp_path / "enc",
        dev=[write_pairs(tmp_path / "dev.tsv", data.dev[0])],
        teachers=["static:tiny-gpt2"],
        settings=settings,
        device="cpu",
    )
    losses = result.results["seeds"][0]["notes"]["pretraining"]["losses"]
    assert losses[-1] < losses[0] and not (tmp_path / "enc" / "backbone").exists()
    assert result.results["config"]["freeze"]["teachers"][0]["name"] == "static:tiny-gpt2"


def test_teachers_for_nothing_are_refused(tmp_path):
    with pytest.raises(InputError, match="Nothing here is distilled; use the recipe distill"):
        decoder2vec.train("lora", plain_data(), "tiny-llama", tmp_path / "enc", teachers=["random:16"])
