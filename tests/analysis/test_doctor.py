"""Every check passes on a sound model of every family, and fails when the fault it is there for is put in."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from decoder2vec.activations import capture as capture_module
from decoder2vec.activations.capture import Capture
from decoder2vec.analysis import doctor
from decoder2vec.analysis.doctor import run_doctor
from decoder2vec.backbone.backbone import Backbone
from decoder2vec.backbone.tiny import TINY, build_tiny
from decoder2vec.encoder import Encoder
from decoder2vec.maths.pooling import Pooler
from decoder2vec.text.tokens import Prompt, Tokeniser

CHECKS = {
    "finite values",
    "determinism",
    "batch size does not matter",
    "batch order does not matter",
    "padding side does not matter",
    "last token is the last real one",
    "layers are what they say",
    "attention direction",
    "suffix survives truncation",
    "save and load",
}


def fresh(name, attention=None):
    """A model of one's own, to be broken at will."""
    return Backbone.load(name, attention=attention, device="cpu", dtype="float32")


def failed(model):
    checks = list(run_doctor(model))
    assert {check.name for check in checks} == CHECKS
    assert all(check.detail for check in checks)
    return {check.name: check.detail for check in checks if not check.passed}


@pytest.mark.parametrize("name", sorted(TINY))
def test_a_sound_model_of_every_family_passes_every_check(name, backbone):
    assert failed(backbone(name)) == {}


@pytest.mark.parametrize("name", ["tiny-gpt2", "tiny-gemma3_text"])
def test_a_sound_model_read_both_ways_passes_every_check(name):
    model = fresh(name, "bidirectional")
    assert failed(model) == {}
    assert model.attention == "bidirectional"


@pytest.mark.filterwarnings("ignore:mkldnn_matmul failed")
def test_a_sound_model_in_16_bits_passes_every_check():
    model = Backbone.load("tiny-llama", device="cpu", dtype="bfloat16")
    assert failed(model) == {}


@pytest.mark.parametrize(("name", "words"), [("tiny-llama", "can be switched"), ("tiny-mamba", "left to right")])
def test_the_direction_check_says_what_the_family_can_do_and_leaves_it_as_it_was(name, words):
    model = fresh(name)
    check = next(check for check in run_doctor(model) if check.name == "attention direction")
    assert check.passed and words in check.detail
    assert model.attention == "causal"
    assert model.model.config.is_causal is True


# faults


def test_dropout_left_on_is_found():
    model = fresh("tiny-gpt2")
    model.model.train()
    assert "dropout" in failed(model)["determinism"]


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_weight_that_is_not_finite_is_found(value):
    model = fresh("tiny-llama")
    model.blocks[2].mlp.down_proj.weight[3, 5] = value
    found = failed(model)
    assert "not finite" in found["finite values"]
    assert found["finite values"].split()[0].isdigit()


def test_pooling_the_last_slot_instead_of_the_last_real_token_is_found(monkeypatch):
    class LastSlot(Pooler):
        def __init__(self, start, end, width, poolings):
            super().__init__(start, end, width, poolings)
            self.last = torch.full_like(end, width - 1)

    monkeypatch.setattr(capture_module, "Pooler", LastSlot)
    found = failed(fresh("tiny-gpt2"))
    assert {"last token is the last real one", "batch size does not matter"} <= set(found)
    assert not {"finite values", "determinism", "layers are what they say", "attention direction"} & set(found)


def test_pooling_the_token_before_the_last_is_found(monkeypatch):
    class OneBefore(Pooler):
        def __init__(self, start, end, width, poolings):
            super().__init__(start, end - 1, width, poolings)

    monkeypatch.setattr(capture_module, "Pooler", OneBefore)
    assert "last token is the last real one" in failed(fresh("tiny-gpt2"))


def test_positions_that_count_padding_are_found(monkeypatch):
    """GPT-2's learned positions count from the left edge unless told otherwise."""
    monkeypatch.setattr(capture_module, "_accepts_position_ids", lambda model: False)
    found = failed(fresh("tiny-gpt2"))
    assert set(found) == {"padding side does not matter"}


def test_a_mask_that_is_forgotten_is_found(monkeypatch):
    real = Capture.model_inputs

    def without_mask(self, batch):
        return {"input_ids": real(self, batch)["input_ids"]}

    monkeypatch.setattr(Capture, "model_inputs", without_mask)
    assert "padding side does not matter" in failed(fresh("tiny-llama"))
    assert "batch size does not matter" in failed(fresh("tiny-llama", "bidirectional"))


@pytest.mark.parametrize("normed", [True, False], ids=["on every layer", "on none"])
def test_the_final_norm_on_the_wrong_layers_is_found(monkeypatch, normed):
    def wrong(backbone, readings):
        return Capture(backbone, [replace(reading, normed=normed) for reading in readings])

    monkeypatch.setattr(doctor, "Capture", wrong)
    assert "layers are what they say" in failed(fresh("tiny-llama"))


def test_layers_counted_from_one_are_found(monkeypatch):
    def shifted(backbone, readings):
        top = backbone.n_layers
        return Capture(backbone, [replace(reading, layer=min(reading.layer + 1, top)) for reading in readings])

    monkeypatch.setattr(doctor, "Capture", shifted)
    assert "layers are what they say" in failed(fresh("tiny-gpt2"))


@pytest.mark.parametrize(("told", "moves"), [("causal", "still changes"), ("bidirectional", "does not change")])
def test_a_direction_switched_behind_our_back_is_found(told, moves):
    model = fresh("tiny-llama", told)
    model.model.config.is_causal = told != "causal"
    found = failed(model)["attention direction"]
    assert found.startswith(f"read as {told}, but changing a later token {moves} an earlier one")


def test_both_directions_above_a_layer_only_are_a_direction_of_their_own():
    assert "attention direction" not in failed(fresh("tiny-llama", "bidirectional:2"))


def test_truncation_that_cuts_the_suffix_is_found(monkeypatch):
    def cut(self, number, text, encoding):
        ids = encoding.ids[: self.max_length]
        return [Prompt(ids, 0, len(ids))]

    monkeypatch.setattr(Tokeniser, "_shorten", cut)
    assert set(failed(fresh("tiny-llama"))) == {"suffix survives truncation"}


def test_truncation_that_does_nothing_is_found(monkeypatch):
    monkeypatch.setattr(
        Tokeniser, "_shorten", lambda self, number, text, encoding: [Prompt(encoding.ids, 0, len(encoding.ids))]
    )
    assert "suffix survives truncation" in failed(fresh("tiny-llama"))


def test_weights_that_change_between_save_and_load_are_found(monkeypatch, tmp_path):
    build_tiny("llama", tmp_path / "model")
    model = fresh(tmp_path / "model")
    assert failed(model) == {}
    real = Encoder.save

    def save_then_train(self, folder, **kwargs):
        done = real(self, folder, **kwargs)
        build_tiny("llama", tmp_path / "model", seed=1)
        return done

    monkeypatch.setattr(Encoder, "save", save_then_train)
    found = failed(model)
    assert set(found) == {"save and load"}
    assert "not those this encoder was made with" in found["save and load"]


def test_weights_that_changed_in_memory_are_found():
    model = fresh("tiny-llama")
    model.blocks[0].mlp.down_proj.weight.mul_(1.01)
    assert failed(model) == {"save and load": "vectors changed"}


def test_a_head_that_is_lost_on_the_way_is_found(monkeypatch):
    real = Encoder.load

    def headless(folder, **kwargs):
        again = real(folder, **kwargs)
        again.head = None
        return again

    monkeypatch.setattr(Encoder, "load", headless)
    assert failed(fresh("tiny-llama")) == {"save and load": "the fingerprint changed"}


def test_a_check_that_cannot_run_has_failed_and_the_others_still_run(monkeypatch):
    def broken(*args, **kwargs):
        raise RuntimeError("mat1 and mat2 shapes cannot be multiplied")

    monkeypatch.setattr(doctor, "_plain_forward", broken)
    found = failed(fresh("tiny-llama"))
    assert set(found) == {"last token is the last real one", "layers are what they say"}
    assert found["layers are what they say"] == "RuntimeError: mat1 and mat2 shapes cannot be multiplied"
