"""Contexts: scores of cached latents worked out by hand, and texts encoded as the encoder encodes them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import stats

from decoder2vec.errors import DivergedError
from decoder2vec.training import context as context_module
from decoder2vec.training.contrastive_examples import ContrastiveExamples, Example
from decoder2vec.training.recipes import adapter
from decoder2vec.training.recipes.adapter import ReadSettings
from decoder2vec.training.recipes.recipe import Trainer
from toys.codes import code_cosines, latent_context
from toys.training import small_recipe, toy_data, toy_examples, toy_pairs

# --- cached latents -------------------------------------------------------------------------------------------------


@pytest.fixture
def latents(backbone, data):
    """latents(**changes) -> a code network on cached latents."""
    return lambda **changes: latent_context(backbone("tiny-llama"), data, **changes)


@torch.no_grad()
def test_score_is_weighted_sum_of_layer_cosines(latents, data):
    context = latents()
    pairs = context.pair_rows(data.dev[0])
    logits = context.net.pair.logits.double().numpy()
    weights = np.exp(logits) / np.exp(logits).sum()
    expected = code_cosines(context, pairs.left, pairs.right) @ weights
    np.testing.assert_allclose(context.predict(pairs), expected, atol=1e-5)


def test_dev_scores_are_mean_correlations_over_files(latents, data):
    context = latents()
    files = (data.dev[0], data.test[0])
    expected = [
        100 * stats.spearmanr(context.predict(context.pair_rows(pairs)), pairs.scores).statistic for pairs in files
    ]
    rows = [context.pair_rows(pairs) for pairs in files]
    assert context.dev_scores(rows, "spearman") == pytest.approx([np.mean(expected)])
    assert context.dev_scores(rows[:1], "spearman") == pytest.approx(expected[:1])
    assert context.dev_score(files, "spearman") == pytest.approx(np.mean(expected))


def test_head_each_has_a_dev_score_for_every_layer(latents, data):
    context = latents(head="each")
    files = (data.dev[0], data.test[0])
    columns = [context.predict(context.pair_rows(pairs)).T for pairs in files]
    expected = [
        np.mean(
            [
                100 * stats.pearsonr(scores[layer], pairs.scores).statistic
                for scores, pairs in zip(columns, files, strict=True)
            ]
        )
        for layer in range(4)
    ]
    rows = [context.pair_rows(pairs) for pairs in files]
    np.testing.assert_allclose(context.dev_scores(rows, "pearson"), expected, rtol=1e-6)
    assert context.dev_score(files, "pearson") == pytest.approx(max(expected)), "the best layer counts"


def test_scores_that_are_not_finite_fail(latents, data):
    """Their correlation would be 0."""
    context = latents()
    context.net.pair.logits.data[0] = float("nan")
    with pytest.raises(DivergedError, match="no longer finite; try a lower learning rate"):
        context.predict(context.pair_rows(data.dev[0]))


def test_predictions_do_not_depend_on_pairs_per_pass(latents, data, monkeypatch):
    context = latents()
    pairs = context.pair_rows(data.dev[0])
    expected = context.predict(pairs)
    monkeypatch.setattr(context_module, "_PAIRS_PER_PASS", 3)
    np.testing.assert_allclose(context.predict(pairs), expected, atol=1e-6)


@torch.no_grad()
def test_noise_and_dropout_are_for_training_only(latents, data):
    context = latents(noise=0.1, dropout=0.3)
    net, pairs = context.net, context.pair_rows(data.dev[0])
    net.train()
    first = context.predict(pairs)
    net.train()
    assert (first == context.predict(pairs)).all()
    net.train()
    rows = np.arange(5)
    assert not torch.equal(context.encode(rows), context.encode(rows))


# --- tokens ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", ["tiny-llama", "tiny-mamba"])
@pytest.mark.parametrize("name", ["soft_prompt", "lora"])
def test_training_encodes_texts_as_the_encoder_does(name, family, backbone, monkeypatch):
    """Long texts are truncated at the same token, and their number is noted."""
    long = "the cats sleep near the dogs that run in the rain, " * 4
    examples = [*toy_examples()[:5], Example(long, long + "often", (), "long")]
    left_vectors = []
    for module in (context_module, adapter):  # dev score of training, evaluation of the encoder
        monkeypatch.setattr(module, "pairwise_cos_sim", lambda left, _: left_vectors.append(left) or np.arange(10.0))
    recipe = small_recipe(name, epochs=0, read=ReadSettings(template="prompteol", max_length=40, pooling="mean"))
    pairs = replace(toy_pairs(), left=[long, *toy_pairs().left[1:]])
    data = toy_data(contrastive=ContrastiveExamples.of(examples), dev=(pairs,))
    result = Trainer(recipe, data, backbone(family)).run(0)
    in_training, by_encoder, *_ = left_vectors
    np.testing.assert_allclose(in_training, by_encoder, rtol=1e-3, atol=1e-4)
    assert result.notes["texts cut"] == 2
