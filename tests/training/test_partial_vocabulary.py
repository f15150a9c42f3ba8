"""Training with a partial vocabulary against training with the whole one: the same losses and weights, bit for bit."""

from __future__ import annotations

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch

from decoder2vec.analysis.vocabulary import prune_vocabulary
from decoder2vec.backbone.backbone import Backbone
from decoder2vec.encoder import Encoder
from decoder2vec.errors import InputError
from decoder2vec.export.pruned import write_pruned
from decoder2vec.text.batches import collate
from decoder2vec.text.template import Template
from decoder2vec.text.tokens import Tokeniser
from decoder2vec.training import checkpoint
from decoder2vec.training.api import train
from decoder2vec.training.loop import Schedule
from decoder2vec.training.objectives import OBJECTIVES
from decoder2vec.training.objectives.crop import CropConfig
from decoder2vec.training.objectives.mntp import MNTPConfig
from decoder2vec.training.partial_vocabulary import partial_vocabulary, used_token_ids
from decoder2vec.training.plan import Plan
from decoder2vec.training.recipes.freeze import FreezeRecipe
from decoder2vec.training.recipes.full import FullRecipe
from decoder2vec.training.recipes.lora import LoraRecipe
from decoder2vec.training.recipes.recipe import Trainer
from decoder2vec.training.recipes.rerank import RerankRecipe
from toys.contract import TOY_OBJECTIVES
from toys.regression import equal_states, state_of
from toys.texts import sentences
from toys.training import ADAPTER_RECIPES, small_recipe, toy_data, toy_examples

TEXTS = list(sentences(8))
FAMILIES = ["tiny-llama", "tiny-gpt2", "tiny-gemma3_text", "tiny-opt"]
"""With a pad token, with EOS to pad with, with scaled embeddings, and with a padding index in the embeddings."""
OPTIMIZERS = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, 0.1, momentum=0.9),
    "adamw": lambda parameters: torch.optim.AdamW(parameters, 1e-2, weight_decay=0),
    "adamw, decay": lambda parameters: torch.optim.AdamW(parameters, 1e-2, weight_decay=0.1),
}
CPU = {"device": "cpu", "dtype": "float32"}


def run(backbone, batch, optimizer, *, clip=0.0, steps=20):
    """Losses of a plain loop in torch that trains every weight of the model, with dropout where it has any."""
    torch.manual_seed(0)
    model = backbone.model.train()
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    stepper, target, losses = OPTIMIZERS[optimizer](parameters), None, []
    for _ in range(steps):
        stepper.zero_grad()
        states = model(input_ids=batch.ids, attention_mask=batch.mask, use_cache=False).last_hidden_state
        target = 0.5 * states.detach() if target is None else target
        loss = ((states - target) * batch.mask[..., None]).square().mean()
        loss.backward()
        if clip:
            torch.nn.utils.clip_grad_norm_(parameters, clip)
        stepper.step()
        losses.append(loss.item())
    return losses, stepper


def copy_of(backbone):
    model = copy.deepcopy(backbone.model).requires_grad_(True)
    return replace(backbone, model=model)


def prompts_of(backbone, texts=TEXTS):
    return Tokeniser(backbone, Template.of("plain"), 64)(texts).prompts


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("name", FAMILIES)
def test_losses_and_weights_equal_those_of_the_whole_vocabulary(name, optimizer, backbone, one_thread):
    original = backbone(name)
    prompts = prompts_of(original)
    batch, ids = collate(prompts, original.pad_token_id), used_token_ids(original, prompts)
    whole, partial = copy_of(original), copy_of(original)
    expected, _ = run(whole, batch, optimizer)
    with partial_vocabulary(partial, ids) as held:
        losses, stepper = run(partial, batch, optimizer)
        n_states = max(len(state[key]) for state in stepper.state.values() for key in state if state[key].dim() > 1)
        assert held.rows == len(ids) < held.rows_before == 512
        assert partial.model.get_input_embeddings().weight.grad.shape[0] == len(ids) and n_states < 512
    assert losses == expected and len(set(losses)) > 10
    unused = sorted(set(range(512)) - set(ids))
    before, whole_rows, rows = (
        model.model.get_input_embeddings().weight.detach() for model in (original, whole, partial)
    )
    assert torch.equal(rows[ids], whole_rows[ids]) and not torch.equal(rows[ids], before[ids])
    assert torch.equal(rows[unused], before[unused]), "what the data lack is left alone"
    assert torch.equal(whole_rows[unused], before[unused]) == (optimizer != "adamw, decay")
    for (key, weight), other in zip(whole.model.named_parameters(), partial.model.parameters(), strict=True):
        assert weight.shape == other.shape
        assert "embed" in key or "wte" in key or torch.equal(weight, other), key


def test_clipping_agrees_up_to_rounding(backbone, one_thread):
    """The norm of fewer rows is summed in another order."""
    original = backbone("tiny-llama")
    prompts = prompts_of(original)
    batch, whole, partial = collate(prompts, original.pad_token_id), copy_of(original), copy_of(original)
    expected, _ = run(whole, batch, "adamw", clip=0.01)
    with partial_vocabulary(partial, used_token_ids(original, prompts)):
        losses, _ = run(partial, batch, "adamw", clip=0.01)
    np.testing.assert_allclose(losses, expected, rtol=1e-5)
    for weight, other in zip(whole.model.parameters(), partial.model.parameters(), strict=True):
        torch.testing.assert_close(weight, other, rtol=1e-3, atol=1e-4)


def partial_recipe(name, *, partial, clip=0.0, decay=0.01, **changes):
    recipe = small_recipe(name, **changes)
    schedule = replace(recipe.training, clip=clip, partial_vocabulary=partial, weight_decay=decay)
    return replace(recipe, training=schedule)


def trained(recipe, backbone, folder, **options):
    """The encoder that a training saves."""
    return train(Plan.of(recipe, "toy"), toy_data(), backbone, folder, **options).encoder


@pytest.mark.parametrize("decay", [0.0, 0.01])
@pytest.mark.parametrize("recipe", ADAPTER_RECIPES)
def test_every_recipe_trains_the_same_encoder(recipe, decay, backbone, tmp_path, one_thread):
    model = backbone("tiny-gpt2")  # pads with EOS
    before = model.model.get_input_embeddings().weight.clone()
    texts = [example.anchor for example in toy_examples()]
    vectors = []
    for partial in (False, True):
        chosen = partial_recipe(recipe, partial=partial, decay=decay, epochs=1)
        encoder = trained(chosen, model, tmp_path / f"{partial}")
        assert encoder.backbone.model.get_input_embeddings().weight.shape == before.shape
        vectors.append(Encoder.load(tmp_path / f"{partial}", **CPU).encode(texts))
    assert np.array_equal(*vectors)
    assert torch.equal(model.model.get_input_embeddings().weight, before), "the model itself is whole and unchanged"


@pytest.mark.parametrize("name", [name for name, toy in TOY_OBJECTIVES.items() if toy.recipe.name == "lora"])
def test_every_objective_learns_the_same_or_refuses(name, backbone, one_thread):
    toy = TOY_OBJECTIVES[name]
    whole = replace(toy.recipe, training=replace(toy.recipe.training, clip=0.0))
    if OBJECTIVES[name].predicts_tokens or OBJECTIVES[name].draws_texts:
        with pytest.raises(InputError, match=r"leave out training\.partial_vocabulary"):
            replace(whole, training=replace(whole.training, partial_vocabulary=True))
        return
    partial = replace(whole, training=replace(whole.training, partial_vocabulary=True))
    model = backbone("tiny-gpt2", "bidirectional")
    states = [state_of(Trainer(recipe, toy.data, model).run(0).model.module) for recipe in (whole, partial)]
    assert equal_states(*states)


def test_clip_and_keep_train_the_same_encoder_up_to_rounding(backbone, tmp_path, one_thread):
    texts = [example.anchor for example in toy_examples()]
    encoders = [
        trained(partial_recipe("full", partial=partial, clip=0.5, keep=0.7), backbone("tiny-llama"), tmp_path / str(n))
        for n, partial in enumerate((False, True))
    ]
    np.testing.assert_allclose(encoders[0].encode(texts), encoders[1].encode(texts), rtol=1e-3, atol=1e-4)


def test_pruned_model_trains_with_a_partial_vocabulary(tmp_path, one_thread):
    write_pruned(Backbone.load("tiny-llama", **CPU), 2, tmp_path / "cut")
    prune_vocabulary(tmp_path / "cut", tmp_path / "small", [*TEXTS, *(e.anchor for e in toy_examples())], **CPU)
    model = Backbone.load(tmp_path / "small", **CPU)
    texts = [example.anchor for example in toy_examples()]
    encoders = [
        trained(partial_recipe("full", partial=partial), model, tmp_path / str(n))
        for n, partial in enumerate((False, True))
    ]
    assert np.array_equal(*(encoder.encode(texts) for encoder in encoders))


def test_interrupted_training_restores_the_model(backbone):
    model = copy_of(backbone("tiny-llama"))
    before = model.model.get_input_embeddings().weight.detach().clone()
    with pytest.raises(KeyboardInterrupt), partial_vocabulary(model, [0, 1, 2, 40]):
        assert len(model.model.get_input_embeddings().weight) == 4 and model.vocabulary_size == 512
        raise KeyboardInterrupt
    embeddings = model.model.get_input_embeddings()
    assert torch.equal(embeddings.weight, before) and embeddings.weight.requires_grad
    assert embeddings.padding_idx == backbone("tiny-llama").model.get_input_embeddings().padding_idx
    assert torch.isfinite(model.model(input_ids=torch.tensor([[500, 3]])).last_hidden_state).all()


def test_token_that_the_data_lack_is_named(backbone):
    model = copy_of(backbone("tiny-llama"))
    with partial_vocabulary(model, [0, 1, 2, 40]), pytest.raises(InputError, match="reads the token 41"):
        model.model(input_ids=torch.tensor([[40, 41]]))


def test_second_context_is_refused(backbone):
    model = copy_of(backbone("tiny-llama"))
    again = partial_vocabulary(model, [0, 1])
    with partial_vocabulary(model, [0, 1]), pytest.raises(InputError, match="partial already"):
        again.__enter__()


def test_result_says_how_many_tokens_were_held(backbone):
    model = backbone("tiny-llama")
    result = Trainer(partial_recipe("full", partial=True, epochs=1), toy_data(), model).run(0)
    notes = result.notes["partial vocabulary"]
    assert notes["of"] == 512 and notes["parameters_saved"] == 32 * (512 - notes["tokens"]) > 0
    assert result.n_trained == sum(weight.numel() for weight in model.model.parameters()) - notes["parameters_saved"]
    assert "partial vocabulary" not in Trainer(small_recipe("lora", epochs=1), toy_data(), model).run(0).notes


@pytest.mark.parametrize("recipe", ["full", "lora"])
def test_interrupted_run_resumes_with_the_same_encoder(recipe, backbone, tmp_path, monkeypatch, one_thread):
    monkeypatch.setattr(checkpoint, "_SAVE_EVERY", 0.0)
    model, chosen, steps = backbone("tiny-gpt2"), partial_recipe(recipe, partial=True), []

    def interrupt(progress):
        if progress.step == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        trained(chosen, model, tmp_path / "resumed", on_progress=interrupt)
    assert model.model.get_input_embeddings().weight.shape[0] == 512
    resumed = trained(chosen, model, tmp_path / "resumed", on_progress=lambda progress: steps.append(progress.step))
    assert min(steps) > 1, "it resumes"
    texts = [example.anchor for example in toy_examples()]
    assert np.array_equal(resumed.encode(texts), trained(chosen, model, tmp_path / "whole").encode(texts))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda schedule: FullRecipe(training=schedule, objective=MNTPConfig()), "predicts tokens"),
        (lambda schedule: LoraRecipe(training=schedule, objective=MNTPConfig()), "predicts tokens"),
        (lambda schedule: FullRecipe(training=schedule, objective=CropConfig()), "crop draws texts in every step"),
        (lambda schedule: FullRecipe(training=schedule, fsdp=True), "fsdp"),
        (lambda schedule: FreezeRecipe(training=schedule), "freeze trains on cached states"),
        (lambda schedule: RerankRecipe(training=schedule), "rerank trains with the whole vocabulary"),
    ],
)
def test_where_it_is_not_exact_it_is_refused(make, message):
    make(Schedule())  # the whole vocabulary is fine
    with pytest.raises(InputError, match=message):
        make(Schedule(partial_vocabulary=True))
