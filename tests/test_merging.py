"""Merging of saved encoders: vectors against weights averaged by hand, refusals, and what is written."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from decoder2vec.adapters.lora import Lora
from decoder2vec.adapters.soft_prompt import SoftPrompt
from decoder2vec.backbone.backbone import Backbone
from decoder2vec.config import EncoderSpec, Reading
from decoder2vec.encoder import Encoder
from decoder2vec.errors import InputError, UnknownNameError
from decoder2vec.export.transformers import write_model
from decoder2vec.merging import merge
from toys.training import perturbed

TEXTS = ["A cat sleeps.", "Stocks fell sharply today.", ""]
SPEC = EncoderSpec("tiny-llama", (Reading(3, "mean"),), max_length=64)


@pytest.fixture(scope="module", autouse=True)
def small_models(one_thread):
    """One thread: all models here are tiny."""


@pytest.fixture(scope="module")
def parents(tmp_path_factory, own_cache):
    """Folders of saved encoders: the untrained model, two of LoRA and two of all weights."""
    root = tmp_path_factory.mktemp("parents")
    model = Backbone.load("tiny-llama", device="cpu", dtype="float32")
    Encoder(model, SPEC).save(root / "untrained")
    for seed, (name, rank) in enumerate({"lora2": 2, "lora3": 3}.items()):
        Encoder(model.with_adapter(noisy(Lora.initialise(model, rank, 4), seed)), SPEC).save(root / name)
    base = {"name": "tiny-llama", "fingerprint": model.fingerprint}
    for seed, name in enumerate(("full1", "full2")):
        write_changed(model, root / f"model-{name}", seed)
        trained = Encoder(Backbone.load(root / f"model-{name}", device="cpu", dtype="float32"), SPEC)
        files = {"results.json": json.dumps({"backbone": base}).encode()}
        trained.save(root / name, copy_backbone=True, extra_files=files)
    return root


def noisy(module, seed, size=0.05):
    generator = torch.Generator().manual_seed(seed)
    for parameter in module.requires_grad_(False).parameters():
        parameter += size * torch.randn(parameter.shape, generator=generator)
    return module


def write_changed(model, folder, seed):
    """A model folder with other weights, as full fine-tuning writes it."""
    changed = Backbone.load(model.name, device="cpu", dtype="float32")
    noisy(changed.model, seed, size=0.01)
    write_model(changed, folder)


def load(folder):
    return Encoder.load(folder, device="cpu", dtype="float32")


def vectors_with(state):
    """Vectors of the model with these weights."""
    model = Backbone.load("tiny-llama", device="cpu", dtype="float32")
    model.model.load_state_dict({name: torch.tensor(value, dtype=torch.float32) for name, value in state.items()})
    return Encoder(model, SPEC).encode(TEXTS)


def weights_of(folder):
    """All weights that an encoder computes with, in float64; LoRA by its two matrices."""
    backbone = load(folder).backbone
    state = {name: tensor.double().numpy().copy() for name, tensor in backbone.model.state_dict().items()}
    if lora := backbone.adapter:
        matrices = {name: tensor.double().numpy() for name, tensor in lora.peft_state_dict().items()}
        for name, lower in matrices.items():
            if name.endswith("lora_A.weight"):
                upper = matrices[name.replace("lora_A", "lora_B")]
                path = name.removeprefix("base_model.model.").removesuffix(".lora_A.weight")
                state[f"{path}.weight"] += lora.config.alpha / lora.config.rank * upper @ lower
    return state


def averaged(folders, weights):
    states = [weights_of(folder) for folder in folders]
    return {name: sum(w * s[name] for w, s in zip(weights, states, strict=True)) for name in states[0]}


@pytest.mark.parametrize(
    "names",
    [("lora2", "lora3"), ("full1", "full2"), ("untrained", "lora2"), ("full1", "lora2"), ("full1", "full2", "lora3")],
    ids="-".join,
)
def test_vectors_are_those_of_averaged_weights(parents, tmp_path, names, gap):
    weights = [0.6, 0.3, 0.1][: len(names) - 1]
    weights.append(1 - sum(weights))
    merged = merge([parents / name for name in names], tmp_path / "merged", weights=weights)
    expected = vectors_with(averaged([parents / name for name in names], weights))
    assert gap(load(tmp_path / "merged").encode(TEXTS), expected) < 1e-5
    assert merged.fingerprint == load(tmp_path / "merged").fingerprint
    assert gap(load(parents / names[0]).encode(TEXTS), expected) > 1e-3


@pytest.mark.parametrize(
    ("name", "method"),
    [("lora2", "linear"), ("lora2", "slerp"), ("full1", "linear"), ("full1", "slerp"), ("untrained", "linear")],
)
def test_merge_with_itself_gives_the_same_vectors(parents, tmp_path, name, method, gap):
    merge([parents / name, parents / name], tmp_path / "merged", method=method)
    assert gap(load(tmp_path / "merged").encode(TEXTS), load(parents / name).encode(TEXTS)) < 1e-5


@pytest.mark.parametrize("names", [("lora2", "lora3"), ("full1", "full2")], ids="-".join)
def test_weights_of_one_and_zero_give_the_first(parents, tmp_path, names, gap):
    merge([parents / name for name in names], tmp_path / "merged", weights=[1, 0])
    assert gap(load(tmp_path / "merged").encode(TEXTS), load(parents / names[0]).encode(TEXTS)) < 1e-5


@pytest.mark.parametrize("names", [("lora2", "lora3"), ("full1", "full2")], ids="-".join)
def test_slerp_is_between_changes_of_the_base(parents, tmp_path, names, gap):
    merge([parents / name for name in names], tmp_path / "merged", weights=[0.3, 0.7], method="slerp")
    base, first, second = (weights_of(parents / name) for name in ("untrained", *names))
    expected = {}
    for name, start in base.items():
        one, two = first[name] - start, second[name] - start
        expected[name] = start
        if one.any() and two.any():
            angle = np.arccos((one * two).sum() / np.linalg.norm(one) / np.linalg.norm(two))
            expected[name] = start + (np.sin(0.3 * angle) * one + np.sin(0.7 * angle) * two) / np.sin(angle)
    assert gap(load(tmp_path / "merged").encode(TEXTS), vectors_with(expected)) < 1e-5
    assert gap(vectors_with(averaged([parents / name for name in names], [0.3, 0.7])), vectors_with(expected)) > 1e-4


def test_rank_is_cut_and_the_loss_reported(parents, tmp_path):
    lines = []
    merged = merge([parents / "lora2", parents / "lora3"], tmp_path / "merged", rank=2, notify=lines.append)
    assert merged.backbone.adapter.config.rank == 2
    record = json.loads((tmp_path / "merged" / "merge.json").read_text())
    assert record["rank"] == 2 and 0 < record["cut"] < 1
    assert any(f"{record['cut']:.1%} of the norm" in line for line in lines)
    exact = merge([parents / "lora2", parents / "lora3"], tmp_path / "exact", rank=9)
    assert exact.backbone.adapter.config.rank == 5


def test_folder_names_parents_weights_and_what_they_saw(parents, tmp_path):
    for name, hashes in (("lora2", [1, 2]), ("lora3", [2, 3])):
        folder = tmp_path / name
        load(parents / name).save(folder)
        for file in ("seen.npy", "seen_texts.npy"):
            np.save(folder / file, np.array(hashes, np.uint64))
    lines = []
    folders = [tmp_path / "lora2", tmp_path / "lora3"]
    merged = merge(folders, tmp_path / "merged", weights=[3, 1], notify=lines.append)
    assert any("do not sum to 1 and are scaled to 0.75, 0.25" in line for line in lines)
    record = json.loads((tmp_path / "merged" / "merge.json").read_text())
    assert [row["weight"] for row in record["encoders"]] == [0.75, 0.25]
    assert [row["fingerprint"] for row in record["encoders"]] == [load(folder).fingerprint for folder in folders]
    card = (tmp_path / "merged" / "README.md").read_text()
    assert all(f"| {weight} | {folder} |" in card for weight, folder in zip((0.75, 0.25), folders, strict=True))
    assert merged.fingerprint in card
    for file in ("seen.npy", "seen_texts.npy"):
        assert np.load(tmp_path / "merged" / file).tolist() == [1, 2, 3]
    assert not list(tmp_path.glob(".tmp-*"))


def test_merged_model_can_be_merged_again(parents, tmp_path):
    merge([parents / "full1", parents / "full2"], tmp_path / "once")
    merge([tmp_path / "once", parents / "full1"], tmp_path / "twice", method="slerp")
    assert json.loads((tmp_path / "twice" / "merge.json").read_text())["base"]["name"] == "tiny-llama"


def test_stored_weights_keep_their_dtype(parents, tmp_path):
    for name in ("full1", "full2"):
        trained = Backbone.load(parents / f"model-{name}", device="cpu", dtype="bfloat16")
        write_model(trained, tmp_path / f"model-{name}")
        short = Backbone.load(tmp_path / f"model-{name}", device="cpu", dtype="float32")
        Encoder(short, SPEC).save(tmp_path / name, copy_backbone=True)
    merge([tmp_path / "full1", tmp_path / "full2"], tmp_path / "merged")
    config = json.loads((tmp_path / "merged" / "backbone" / "config.json").read_text())
    assert config["dtype"] == "bfloat16"


# --- refusals -------------------------------------------------------------------------------------------------------


def refused(match, *arguments, error=InputError, **options):
    with pytest.raises(error, match=match) as caught:
        merge(*arguments, **options)
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"weights": [1]}, "one weight for each encoder: 2, not 1"),
        ({"weights": [1, -1]}, "0 or more"),
        ({"weights": [0, 0]}, "at least one is above 0"),
        ({"weights": [float("nan"), 1]}, "0 or more"),
        ({"method": "spherical"}, "Unknown method"),
        ({"rank": 0}, "1 or more, not 0"),
    ],
)
def test_wrong_options_raise_and_write_nothing(parents, tmp_path, options, match):
    refused(match, [parents / "lora2", parents / "lora3"], tmp_path / "merged", **options)
    assert list(tmp_path.iterdir()) == []


def test_wrong_numbers_of_encoders_raise(parents, tmp_path):
    refused("two encoders or more, not 1", [parents / "lora2"], tmp_path / "merged")
    refused("two encoders or more, not 1", str(parents / "lora2"), tmp_path / "merged")
    three = [parents / "lora2"] * 3
    refused("exactly two encoders, not 3", three, tmp_path / "merged", method="slerp")


def test_other_readings_raise(parents, tmp_path):
    model = load(parents / "lora2").backbone
    changes = {
        "layer or pooling": {"readings": (Reading(2, "mean"),)},
        "template": {"template": "query: {text}"},
    }
    for what, change in changes.items():
        other = Encoder(model, replace(SPEC, **change)).save(tmp_path / what)
        refused(f"differ in {what}", [parents / "lora2", other], tmp_path / "merged")
    bidirectional = Backbone.load("tiny-llama", attention="bidirectional", device="cpu", dtype="float32")
    other = Encoder(bidirectional, SPEC).save(tmp_path / "attention")
    refused("differ in attention", [parents / "untrained", other], tmp_path / "merged")


def test_settings_beside_the_reading_are_those_of_the_first(parents, tmp_path):
    longer = Encoder(load(parents / "lora2").backbone, replace(SPEC, max_length=32)).save(tmp_path / "longer")
    assert merge([longer, parents / "lora3"], tmp_path / "merged").spec.max_length == 32


def test_heads_raise(parents, tmp_path):
    headed = load(parents / "lora2").with_head("standardise", TEXTS).save(tmp_path / "headed")
    refused("has a standardise head", [parents / "lora3", headed], tmp_path / "merged")


def test_unrelated_or_unlike_models_raise(parents, tmp_path):
    other = Backbone.load("tiny-llama", device="cpu", dtype="float32")
    with torch.no_grad():
        for parameter in other.model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(3)))
    write_model(other, tmp_path / "model")
    unrelated = Encoder(Backbone.load(tmp_path / "model", device="cpu", dtype="float32"), SPEC)
    unrelated.save(tmp_path / "unrelated", copy_backbone=True)
    refused("are unrelated", [parents / "full1", tmp_path / "unrelated"], tmp_path / "merged")
    qwen = Encoder(Backbone.load("tiny-qwen3", device="cpu", dtype="float32"), SPEC).save(tmp_path / "qwen")
    refused("differ in layers, sizes or tokenizer", [parents / "full1", qwen], tmp_path / "merged")


def test_prompts_of_other_models_and_ranks_of_none_raise(parents, tmp_path):
    model = load(parents / "untrained").backbone
    prompt = Encoder(model.with_adapter(perturbed(SoftPrompt.initialise(model, 2)).requires_grad_(False)), SPEC)
    prompt.save(tmp_path / "prompt")
    refused("lora and soft_prompt have no average", [parents / "lora2", tmp_path / "prompt"], tmp_path / "merged")
    refused("has a soft_prompt, and not all", [parents / "full1", tmp_path / "prompt"], tmp_path / "merged")
    refused("these encoders have a soft_prompt", [tmp_path / "prompt"] * 2, tmp_path / "merged", rank=2)
    refused("whole models are merged", [parents / "full1", parents / "full2"], tmp_path / "merged", rank=2)


def test_slerp_of_models_without_a_known_base_raises(parents, tmp_path):
    nameless = load(parents / "full2").save(tmp_path / "nameless", copy_backbone=True)
    refused("use the method linear", [parents / "full1", nameless], tmp_path / "merged", method="slerp")


def test_folders_with_content_are_not_overwritten(parents, tmp_path):
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "notes.txt").write_text("mine")
    refused("is not empty", [parents / "lora2", parents / "lora3"], mine)
    refused("is not empty", [parents / "lora2", parents / "lora3"], parents / "lora2")
    refused("not the folder of a saved encoder", [parents / "lora2", mine], tmp_path / "merged")
    assert (mine / "notes.txt").read_text() == "mine"


def test_unknown_method_suggests_the_known(parents, tmp_path):
    refused("slerp", [parents / "lora2"] * 2, tmp_path / "merged", method="slurp", error=UnknownNameError)
