"""What every recipe that adapts a model promises, whatever it trains."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
import torch

from decoder2vec.backbone.backbone import Backbone
from decoder2vec.encoder import Encoder
from decoder2vec.errors import BackboneError, InputError, UnsupportedError
from decoder2vec.training.recipes import recipes
from decoder2vec.training.recipes.adapter import AdapterRecipe
from decoder2vec.training.recipes.recipe import Trainer
from toys.training import ADAPTER_RECIPES, small_recipe, toy_data

FAMILIES = ("tiny-llama", "tiny-gpt2", "tiny-mamba")
CASES = [(name, family) for family in FAMILIES for name in ADAPTER_RECIPES if (name, family) != ("kv_prefix", "tiny-mamba")]
TEXTS = ("cats sleep", "the dogs run over the long road in the rain and sing of boats that sail", "a", "")


class Killed(Exception):
    pass


@pytest.fixture(scope="module", params=CASES, ids="-".join)
def case(request):
    return request.param


@pytest.fixture(scope="module")
def run(case, trained):
    return trained(*case)


def same(one, other):
    assert one.keys() == other.keys()
    return all(torch.equal(one[name], other[name]) for name in one)


def test_the_recipes_that_adapt_a_model_are_those_tested_here():
    assert {name for name, kind in recipes().items() if issubclass(kind, AdapterRecipe)} == set(ADAPTER_RECIPES)


def test_a_family_without_keys_and_values_is_refused_a_prefix_with_the_reason(begin):
    with pytest.raises(UnsupportedError, match="mamba keeps no keys and values of what it has read"):
        Trainer(small_recipe("kv_prefix"), toy_data(), begin("tiny-mamba").backbone).run(0)


# --- what is trained ------------------------------------------------------------------------------------------------


def linear_sizes(run):
    """(name, in, out) of every matrix inside the blocks, by hand; what state-space kernels bypass left out."""
    found = []
    for key, tensor in run.weights.items():
        place = key.removesuffix(".weight")
        bypassed = "mamba" in run.backbone.family and place.endswith(("dt_proj", "out_proj"))
        if place == key or tensor.ndim != 2 or not place.startswith(("layers.", "h.")) or bypassed:
            continue
        rows, columns = tensor.shape
        found.append((place, rows, columns) if run.backbone.family == "gpt2" else (place, columns, rows))
    return found


def declared(name, run):
    """The shapes of all that a recipe trains, by the formulas of the papers."""
    if name == "soft_prompt":
        return {"vectors": (4, 32)}
    if name == "kv_prefix":
        heads = 2 if run.backbone.family == "llama" else 4
        return {f"layers.{layer}": (2, heads, 4, 8) for layer in range(4)}
    if name == "lora":
        kinds = Counter((place.split(".", 2)[2].replace(".", "-"), ins, outs) for place, ins, outs in linear_sizes(run))
        return {f"lower.{place}-{ins}x{outs}": (count, 4, ins) for (place, ins, outs), count in kinds.items()} | {
            f"upper.{place}-{ins}x{outs}": (count, outs, 4) for (place, ins, outs), count in kinds.items()
        }
    return {name: tuple(tensor.shape) for name, tensor in run.backbone.model.named_parameters()}


def test_exactly_what_is_declared_is_trained(case, run):
    expected = declared(case[0], run)
    assert {name: tuple(tensor.shape) for name, tensor in run.start.items()} == expected
    assert run.outcome.record["parameters"]["trained"] == sum(map(np.prod, expected.values()))


def test_parameter_counts_equal_the_formulas(case, run):
    name, family = case
    linear = sum(4 * (ins + outs) for _, ins, outs in linear_sizes(run))
    whole = sum(tensor.numel() for key, tensor in run.weights.items() if key in run.start)
    kv_heads = 2 if family == "tiny-llama" else 4
    expected = {"soft_prompt": 4 * 32, "kv_prefix": 2 * 4 * 4 * kv_heads * 8, "lora": linear, "full": whole}
    assert run.outcome.record["parameters"]["trained"] == expected[name]
    if name == "lora":
        assert linear == {"tiny-llama": 8192, "tiny-gpt2": 8192, "tiny-mamba": 3872}[family]


def test_only_what_is_declared_gets_gradients_and_all_of_it_moves(run):
    assert run.others == set(), "weights of the given model have gradients"
    for name, start in run.start.items():
        gradient = run.gradients[-1][name]  # of the third step: in the first, half of LoRA is multiplied by zeros
        assert gradient is not None and gradient.abs().max() > 0, name
        assert not torch.equal(run.later[name], start), name


def test_the_given_model_stays_as_it_was(run, state_of):
    assert same(state_of(run.backbone), run.weights)
    assert (run.plain.encode(TEXTS) == run.vectors).all()
    assert run.plain.fingerprint != run.encoder.fingerprint
    assert not any(parameter.requires_grad for parameter in run.backbone.model.parameters())


def test_the_loss_falls(run):
    losses = run.history["losses"]
    assert losses[-1] < 0.8 * losses[0]


# --- the encoder ----------------------------------------------------------------------------------------------------


def test_a_saved_encoder_gives_identical_vectors(run):
    vectors = run.loaded.encode(TEXTS)
    assert run.loaded.fingerprint == run.encoder.fingerprint
    assert (vectors == run.encoder.encode(TEXTS)).all()
    assert not np.allclose(vectors, run.vectors, atol=1e-2), "which are not those of the plain model"


def test_the_scores_told_are_those_of_the_saved_encoder(run):
    pairs, loaded = toy_data().dev[0], run.loaded
    found = np.corrcoef(loaded.similarity_pairwise(loaded.encode(pairs.left), loaded.encode(pairs.right)), pairs.scores)
    assert run.outcome.results["mean"]["dev"]["dev"]["pearson"] == pytest.approx(100 * found[0, 1], abs=0.02)
    best = max(run.history["start"], *run.history["scores"])
    assert run.outcome.results["mean"]["dev"]["dev"]["spearman"] == pytest.approx(best, abs=0.02)


def test_order_batch_and_padding_do_not_change_a_vector(run, padded, gap):
    alone = np.concatenate([run.encoder.encode([text]) for text in TEXTS])
    assert gap(run.encoder.encode(TEXTS[::-1])[::-1], alone) < 1e-4
    assert gap(run.encoder.encode(TEXTS, batch_size=1), alone) < 1e-4
    for side in ("right", "left"):
        assert gap(padded(run.encoder, TEXTS, side), alone) < 1e-4


def test_odd_texts_have_vectors_of_their_own(run):
    odd = ["", " ", "\n", "\0", "🐈‍⬛ étoile", "x" * 40, "<eos>", "{text}"]
    vectors = run.encoder.encode(odd)
    assert np.isfinite(vectors).all() and vectors.shape == (len(odd), 32)
    assert run.encoder.encode([]).shape == (0, 32)
    with pytest.raises(InputError, match="surrogate"):
        run.encoder.encode(["\ud83d"])


def test_an_over_long_text_is_cut_where_the_adapter_leaves_room(case, run):
    limit = 252 if case[0] in ("soft_prompt", "kv_prefix") else 256
    limit = 512 if case[1] == "tiny-mamba" else limit
    assert run.encoder.max_seq_length == limit
    ids = run.backbone.tokenizer(" cat" * 600)["input_ids"]
    cut = run.backbone.tokenizer.decode(ids[:limit], skip_special_tokens=True)
    assert (run.encoder.encode([" cat" * 600]) == run.encoder.encode([cut])).all()


# --- runs -----------------------------------------------------------------------------------------------------------


def test_a_killed_run_goes_on_and_ends_as_if_it_had_not_been(case, run, begin, rewatch, recipe_for, state_of):
    """In the middle between two looks. Which also says that training twice with one seed gives the same numbers."""
    again, steps = begin(case[1]), []

    def kill(note):
        if note.step == 3:
            raise Killed

    with pytest.raises(Killed):
        rewatch(again, recipe_for(case[0]), kill)
    assert not again.folder.exists()
    assert same(state_of(again.backbone), run.weights), "a run that is cut short leaves the model as it was"
    rewatch(again, recipe_for(case[0]), lambda note: steps.append(note.step))
    assert steps[0] == 4, "it did not begin anew"
    assert again.history == run.history
    assert again.encoder.fingerprint == run.encoder.fingerprint
    assert (again.encoder.encode(TEXTS) == run.encoder.encode(TEXTS)).all()


ONE_STEP = {"epochs": 1, "batch": 24}


@pytest.mark.parametrize("name", ADAPTER_RECIPES)
def test_another_seed_gives_another_encoder(name, backbone):
    training = Trainer(small_recipe(name, **ONE_STEP, choose_by="pearson"), toy_data(), backbone("tiny-gpt2"))
    one, again, other = (training.run(seed) for seed in (0, 0, 1))
    assert one.notes == again.notes != other.notes
    assert one.encoder.fingerprint == again.encoder.fingerprint != other.encoder.fingerprint


@pytest.mark.parametrize("family", FAMILIES)
def test_untrained_lora_is_the_model_itself(family, backbone):
    model = backbone(family)
    found = Trainer(small_recipe("lora", epochs=0), toy_data(), model).run(0).encoder
    bare = Encoder(model.with_adapter(None), found.spec)
    assert (found.encode(TEXTS) == bare.encode(TEXTS)).all()


def test_several_adapters_on_one_model_do_not_disturb_each_other(tmp_path):
    """Each is trained on a model that holds those before it, and reads as one that was trained alone."""
    shared = Backbone.load("tiny-gpt2", device="cpu", dtype="float32")
    order = ("lora", "soft_prompt", "kv_prefix", "full", "lora")
    results = [Trainer(small_recipe(name, **ONE_STEP), toy_data(), shared).run(3) for name in order]
    vectors = [result.encoder.encode(TEXTS) for result in results]
    for name, result, found in zip(order[1:], results[1:], vectors[1:], strict=True):
        alone = Backbone.load("tiny-gpt2", device="cpu", dtype="float32")
        expected = Trainer(small_recipe(name, **ONE_STEP), toy_data(), alone).run(3)
        assert (expected.encoder.encode(TEXTS) == found).all()
        assert (result.encoder.encode(TEXTS) == found).all(), "and later ones did not change it"
        assert expected.trained == result.trained
        assert expected.encoder.fingerprint == result.encoder.fingerprint
    encoder, copied = Trainer(small_recipe("full"), toy_data(), shared).saved_alone(results[3], tmp_path)
    encoder.save(tmp_path / "encoder", copy_backbone=copied)
    assert (Encoder.load(tmp_path / "encoder", device="cpu").encode(TEXTS) == vectors[3]).all()


def test_a_trained_copy_cannot_be_mistaken_for_the_model_it_was_copied_from(backbone, tmp_path):
    """Its weights are on no disk until the run is written; a folder that only names the model is not it."""
    found = Trainer(small_recipe("full", **ONE_STEP), toy_data(), backbone("tiny-gpt2")).run(0).encoder
    assert found.fingerprint != Encoder(backbone("tiny-gpt2"), found.spec).fingerprint
    found.save(tmp_path / "encoder")
    with pytest.raises(BackboneError, match="are not those this encoder was made with"):
        Encoder.load(tmp_path / "encoder", device="cpu")
