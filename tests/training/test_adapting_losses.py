"""What adapters are trained with: losses against plain loops, batches, and texts read as the encoder reads them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from decoder2vec.recipes.objective import Objective
from scipy.special import logsumexp

from decoder2vec.encoder import Encoder
from decoder2vec.errors import InputError
from decoder2vec.training import adapting
from decoder2vec.training.contrastive_examples import ContrastiveExamples, Example
from decoder2vec.training.data import TrainingData, check_data
from decoder2vec.training.recipes.adapter import ReadSettings
from decoder2vec.training.recipes.recipe import Trainer
from toys.training import module_and_task, small_recipe, toy_data, toy_examples, toy_pairs


@pytest.fixture
def model(backbone):
    return backbone("tiny-llama")


@pytest.fixture
def scored(make_pairs):
    """40 pairs with scores from 0 to 5, and pairs to choose on."""
    return check_data(TrainingData(make_pairs(), (toy_pairs(),)), (0.0, 5.0))


def unit(vectors):
    return vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)


def loss_of(recipe, data, model, rows):
    """(loss, the encoder that is trained) before the first step."""
    module, task = module_and_task(recipe, data, model)
    with torch.no_grad():
        loss = task.loss(np.asarray(rows)).item()
    spec = Trainer(recipe, data, model)._spec()
    return loss, Encoder(model.with_adapter(module), spec)


# --- losses ---------------------------------------------------------------------------------------------------------


def contrastive_by_hand(encoder, examples, temperature, dim=None):
    """Example by example: what belongs to an anchor is no negative of it, and nor is a negative that is missing."""
    together = {}
    for example in examples:
        together.setdefault(example.group, set()).update((example.anchor, example.positive))

    texts = [text for example in examples for text in (example.anchor, example.positive, *example.negatives)]
    vectors = dict(zip(texts, unit(encoder.encode(texts)[:, :dim].astype(np.float64)), strict=True))
    losses = []
    for example in examples:
        against = [other.positive for other in examples]
        for column in range(max(len(other.negatives) for other in examples)):
            against += [other.negatives[column] for other in examples if column < len(other.negatives)]
        against = [text for text in against if text not in together[example.group]]
        scores = [vectors[example.anchor] @ vectors[text] / temperature for text in (example.positive, *against)]
        losses.append(logsumexp(scores) - scores[0])
    return np.mean(losses)


@pytest.mark.parametrize("name", ["soft_prompt", "kv_prefix", "lora"])
def test_the_contrastive_loss_equals_a_loop(name, model):
    examples = toy_examples()
    examples[1] = examples[1]._replace(negatives=())
    examples[4] = examples[4]._replace(negatives=("rain falls", "a boat sails", examples[4].positive))
    rows = [0, 1, 4, 5, 9, 13]
    data = toy_data(contrastive=ContrastiveExamples.of(examples))
    recipe = small_recipe(name, objective=Objective(temperature=0.2))
    found, encoder = loss_of(recipe, data, model, rows)
    expected = contrastive_by_hand(encoder, [examples[row] for row in rows], 0.2)
    assert found == pytest.approx(expected, rel=1e-4)


def test_matryoshka_adds_up_the_losses_of_the_first_dimensions(model):
    recipe = small_recipe("soft_prompt", objective=Objective(temperature=0.2, dims=(32, 8, 2)))
    found, encoder = loss_of(recipe, toy_data(), model, range(6))
    expected = sum(contrastive_by_hand(encoder, toy_examples()[:6], 0.2, dim) for dim in (32, 8, 2))
    assert found == pytest.approx(expected, rel=1e-4)


def test_matryoshka_dimensions_that_the_model_does_not_have_are_refused(model):
    recipe = small_recipe("soft_prompt", objective=Objective(dims=(32, 64)))
    with pytest.raises(InputError, match="have 32 dimensions; lower the Matryoshka dimension 64"):
        Trainer(recipe, toy_data(), model).run(0)


def test_scored_pairs_are_learned_as_parts_of_their_scale(scored, model):
    found, encoder = loss_of(small_recipe("soft_prompt", objective=Objective("cosine_mse")), scored, model, range(10))
    pairs = scored.train
    left, right = (unit(encoder.encode(side[:10])) for side in (pairs.left, pairs.right))
    expected = np.mean(((left * right).sum(axis=1) - np.array(pairs.scores[:10]) / 5) ** 2)
    assert found == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("objective", ["cosent", "angle", "cosine_mse"])
def test_every_objective_of_pairs_is_learned(objective, scored, model):
    recipe = small_recipe("lora", epochs=4, batch=20, objective=Objective(objective, dims=(32, 16)))
    found = Trainer(recipe, scored, model).run(0)
    losses = found.notes["training"]["losses"]
    assert losses[-1] < 0.9 * losses[0]


def test_the_objective_says_what_is_learned_from_not_the_data(scored, model):
    both = replace(scored, contrastive=toy_data().contrastive)
    stages = [module_and_task(small_recipe("lora", objective=Objective(name)), both, model)[1].stage for name in ("info_nce", "angle")]
    assert stages == ["triplets", "pairs"]


def test_data_that_the_objective_cannot_learn_from_is_refused(scored, model):
    with pytest.raises(InputError, match="info_nce learns from texts that belong together"):
        Trainer(small_recipe("lora"), scored, model)
    with pytest.raises(InputError, match="cosent learns from scored pairs"):
        Trainer(small_recipe("lora", objective=Objective("cosent")), toy_data(), model)


# --- batches and texts ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("size", "sizes"), [(8, [8, 8, 8]), (7, [7, 7, 7, 3]), (23, [23]), (22, [22, 2]), (64, [24])])
def test_a_tail_too_small_to_contrast_waits_for_another_epoch(size, sizes, model):
    task = module_and_task(small_recipe("soft_prompt", batch=size), toy_data(), model)[1]
    assert [len(rows) for rows in task.batches(np.arange(24), size)] == sizes


def test_where_no_batch_is_large_all_are_taken(model):
    """Examples of one anchor never meet."""
    examples = [Example("cats sleep", f"cats sleep {when}", ("dogs run",), "cats") for when in ("now", "here", "often")]
    task = module_and_task(small_recipe("soft_prompt"), toy_data(contrastive=ContrastiveExamples.of(examples)), model)[1]
    assert [len(rows) for rows in task.batches(np.arange(3), 8)] == [1, 1, 1]


def test_the_tail_of_scored_pairs_is_never_one_pair(scored, model):
    task = module_and_task(small_recipe("soft_prompt", objective=Objective("cosent")), scored, model)[1]
    assert [len(rows) for rows in task.batches(np.arange(40), 13)] == [13, 13, 14]


@pytest.mark.parametrize("family", ["tiny-llama", "tiny-mamba"])
@pytest.mark.parametrize("name", ["soft_prompt", "lora"])
def test_training_reads_a_text_as_the_encoder_does(name, family, backbone, monkeypatch):
    """Over-long ones are cut at the same place, and what was cut is told."""
    long = "the cats sleep near the dogs that run in the rain, " * 4
    examples = [*toy_examples()[:5], Example(long, long + "often", (), "long")]
    scores = []
    monkeypatch.setattr(adapting, "cosine_pairs", lambda *sides: scores.append(sides) or np.arange(10.0))
    recipe = small_recipe(name, epochs=0, read=ReadSettings(template="prompteol", max_length=40, pooling="mean"))
    pairs = replace(toy_pairs(), left=[long, *toy_pairs().left[1:]])
    data = toy_data(contrastive=ContrastiveExamples.of(examples), dev=(pairs,))
    result = Trainer(recipe, data, backbone(family)).run(0)
    (trained, _), (encoded, _), *_ = scores
    np.testing.assert_allclose(trained, encoded, rtol=1e-3, atol=1e-4)
    assert result.notes["texts cut"] == 2
