"""`keep`: the trained change is scaled, against the same training without it."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from decoder2vec.adapters.bottleneck import TextBounds
from decoder2vec.encoder import Encoder
from decoder2vec.errors import InputError
from decoder2vec.text.batches import collate
from decoder2vec.text.tokens import Prompt
from decoder2vec.training.api import train
from decoder2vec.training.objectives import objective_config
from decoder2vec.training.recipes.freeze import FreezeRecipe
from decoder2vec.training.recipes.recipe import Trainer
from toys.training import ADAPTER_RECIPES, small_recipe, toy_data


def values(backbone):
    """What a recipe changes: weights, updates of weights, values of a prompt or prefix, or states, in float64."""
    adapter = backbone.adapter
    if adapter is None:
        return {name: tensor.double().numpy() for name, tensor in backbone.model.state_dict().items()}
    state = {name: tensor.double().numpy() for name, tensor in adapter.state_dict().items()}
    if adapter.kind == "lora":
        return {name: state[f"upper.{name}"] @ state[f"lower.{name}"] for name in adapter.groups}
    if adapter.kind in ("bottleneck", "conv"):
        return changes_of_states(adapter)
    return state


@torch.no_grad()
def changes_of_states(adapter):
    """What each network adds to the states of a text."""
    states = torch.linspace(-1, 1, 5 * 32).view(1, 5, 32)
    bounds = TextBounds(collate([Prompt([1, 2, 3, 4, 5], 0, 5)], 0))
    return {name: (network(states, bounds) - states).double().numpy() for name, network in adapter.inserted.items()}


def trained(recipe, model):
    """The backbone after training."""
    return Trainer(recipe, toy_data(), model).run(3).model.backbone


@pytest.mark.parametrize("name", ADAPTER_RECIPES)
def test_change_is_scaled(name, backbone):
    model = backbone("tiny-llama")
    whole = trained(small_recipe(name), model)
    kept = trained(small_recipe(name, keep=0.3), model)
    start = trained(small_recipe(name, epochs=0), model)
    first, last = values(start), values(whole)
    assert any(np.abs(last[key] - first[key]).max() > 1e-4 for key in last), "nothing was learned"
    for key, value in values(kept).items():
        np.testing.assert_allclose(value, 0.7 * first[key] + 0.3 * last[key], atol=1e-6)
    assert len({adapted.effective_fingerprint for adapted in (whole, kept, start)}) == 3


def test_start_may_be_a_saved_encoder(backbone, tmp_path):
    train(small_recipe("lora"), toy_data(), backbone("tiny-llama"), tmp_path / "first")
    options = {"backbone": tmp_path / "first", "device": "cpu", "dtype": "float32"}
    data = toy_data()
    whole = train(small_recipe("full"), data, out=tmp_path / "whole", **options).encoder
    kept = train(small_recipe("full"), data, out=tmp_path / "kept", keep=0.5, **options).encoder
    first = Encoder.load(tmp_path / "first", device="cpu", dtype="float32").backbone
    start = {name: tensor.double().numpy() for name, tensor in first.model.state_dict().items()}
    start |= {f"{path}.weight": w.double().numpy() for path, w in first.adapter.merged_weights_by_path().items()}
    last = values(whole.backbone)
    for key, value in values(kept.backbone).items():
        np.testing.assert_allclose(value, (start[key] + last[key]) / 2, atol=1e-6)


def test_dev_is_reported_before_and_after(backbone, tmp_path):
    model, data = backbone("tiny-llama"), toy_data()
    whole = train(small_recipe("lora"), data, model, tmp_path / "whole")
    kept = train(small_recipe("lora"), data, model, tmp_path / "kept", keep=0.2)
    note = kept.results["seeds"][0]["notes"]["keep"]
    before, after = (result.results["mean"]["dev"]["dev"]["spearman"] for result in (whole, kept))
    assert note["share"] == 0.2
    assert note["dev_trained"] == pytest.approx(before, abs=0.01)
    assert note["dev_kept"] == pytest.approx(after, abs=0.01)
    line = f"dev {note['dev_trained']:.2f} as trained, {note['dev_kept']:.2f} with 20 % of the change kept"
    assert any(line in text for text in kept.results["notes"])
    assert "20 % (the rest is the start)" in (tmp_path / "kept" / "README.md").read_text()
    assert kept.results["config"]["lora"]["keep"] == 0.2 and "keep" not in whole.results["seeds"][0]["notes"]


def test_resumed_run_keeps_the_same_share(backbone, tmp_path):
    model, data = backbone("tiny-llama"), toy_data()
    recipe = small_recipe("soft_prompt", keep=0.5)
    first = Trainer(recipe, data, model).run(0, work=tmp_path)
    torch.manual_seed(9)
    again = Trainer(recipe, data, model).run(0, work=tmp_path)  # from the checkpoint of the finished run
    assert torch.equal(first.model.module.vectors, again.model.module.vectors)


def test_score_without_dev_pairs_is_that_after_interpolation(backbone):
    data = toy_data(dev=(), texts=tuple(toy_data().contrastive.texts), contrastive=None)
    recipe = small_recipe("lora", keep=0.5, objective=objective_config({"name": "simcse"}))
    result = Trainer(recipe, data, backbone("tiny-llama")).run(0)
    assert result.dev_metric == result.notes["keep"]["dev_kept"]


@pytest.mark.parametrize("keep", [0, -0.5, 1.5, float("nan")])
def test_shares_out_of_range_raise(keep, backbone, tmp_path):
    with pytest.raises(InputError, match="above 0 and at most 1"):
        train(small_recipe("lora"), toy_data(), backbone("tiny-llama"), tmp_path / "out", keep=keep)


def test_recipes_and_plans_without_one_start_raise(backbone, tmp_path):
    listed = "use lora, full, soft_prompt, kv_prefix, bottleneck or conv"
    with pytest.raises(InputError, match=f"freeze trains something new; leave it out, or {listed}"):
        train(FreezeRecipe(), toy_data(), backbone("tiny-llama"), tmp_path / "out", keep=0.5)
    with pytest.raises(InputError, match=r"--set simcse.keep=0.5"):
        train("bidirectional", toy_data(), backbone("tiny-llama"), tmp_path / "out", keep=0.5)
    assert not list(tmp_path.glob("out*"))
