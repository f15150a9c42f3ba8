"""Every check passes on a correct model of every family, and fails if the fault it looks for is introduced."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch

from decoder2vec.activations import capture as capture_module
from decoder2vec.activations.capture import Capture
from decoder2vec.analysis import doctor as doctor_module
from decoder2vec.analysis.doctor import doctor, run_checks
from decoder2vec.backbone.backbone import Backbone
from decoder2vec.backbone.tiny import TINY, build_tiny
from decoder2vec.encoder import Encoder
from decoder2vec.gold import GOLD_FILE, GoldVectors
from decoder2vec.maths.pooling import Pooler
from decoder2vec.reranker import Reranker
from decoder2vec.text.tokens import Prompt, Tokeniser
from toys.docstrings import run_examples

CHECKS = {
    "finite values",
    "determinism",
    "batch size does not matter",
    "batch order does not matter",
    "padding side does not matter",
    "last token is not padding",
    "layers match a plain forward pass",
    "attention direction",
    "suffix survives truncation",
    "save and load",
}


def load(name, attention=None):
    """A model that is not shared, so that a test may break it."""
    return Backbone.load(name, attention=attention, device="cpu", dtype="float32")


def failed(model):
    checks = list(run_checks(model))
    assert {check.name for check in checks} == CHECKS
    assert all(check.detail for check in checks)
    return {check.name: check.detail for check in checks if not check.passed}


@pytest.mark.parametrize("name", sorted(TINY))
def test_model_of_every_family_passes(name, backbone):
    assert failed(backbone(name)) == {}


@pytest.mark.parametrize("name", ["tiny-gpt2", "tiny-gemma3_text"])
def test_bidirectional_model_passes(name):
    model = load(name, "bidirectional")
    assert failed(model) == {}
    assert model.attention == "bidirectional"


@pytest.mark.filterwarnings("ignore:mkldnn_matmul failed")
def test_bfloat16_model_passes():
    model = Backbone.load("tiny-llama", device="cpu", dtype="bfloat16")
    assert failed(model) == {}


@pytest.mark.parametrize(("name", "detail"), [("tiny-llama", "can be switched"), ("tiny-mamba", "left to right")])
def test_direction_check_reports_and_restores_attention(name, detail):
    model = load(name)
    check = next(check for check in run_checks(model) if check.name == "attention direction")
    assert check.passed and detail in check.detail
    assert model.attention == "causal"
    assert model.model.config.is_causal is True


# doctor


def test_example_in_docstring_runs():
    run_examples(doctor)


def test_doctor_returns_the_checks_of_the_loaded_model():
    messages = []
    checks = doctor("tiny-gpt2", attention="bidirectional", device="cpu", dtype="float32", notify=messages.append)
    assert checks == list(run_checks(load("tiny-gpt2", "bidirectional")))
    assert messages == ["tiny-gpt2: gpt2, 4 layers x 32, float32, 0 MB of weights, cpu"]


# faults


def test_dropout_is_detected():
    model = load("tiny-gpt2")
    model.model.train()
    assert "dropout" in failed(model)["determinism"]


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_weight_that_is_not_finite_is_detected(value):
    model = load("tiny-llama")
    model.blocks[2].mlp.down_proj.weight[3, 5] = value
    failures = failed(model)
    assert "not finite" in failures["finite values"]
    assert failures["finite values"].split()[0].isdigit()


def test_pooling_a_padding_token_is_detected(monkeypatch):
    class LastPosition(Pooler):
        def __init__(self, start, end, width, poolings):
            super().__init__(start, end, width, poolings)
            self.last = torch.full_like(end, width - 1)

    monkeypatch.setattr(capture_module, "Pooler", LastPosition)
    failures = set(failed(load("tiny-gpt2")))
    assert {"last token is not padding", "batch size does not matter"} <= failures
    assert not {"finite values", "determinism", "layers match a plain forward pass", "attention direction"} & failures


def test_pooling_the_token_before_the_last_is_detected(monkeypatch):
    class OneBefore(Pooler):
        def __init__(self, start, end, width, poolings):
            super().__init__(start, end - 1, width, poolings)

    monkeypatch.setattr(capture_module, "Pooler", OneBefore)
    assert "last token is not padding" in failed(load("tiny-gpt2"))


def test_positions_that_count_padding_are_detected(monkeypatch):
    """GPT-2's learned positions count from the left edge unless position ids are passed."""
    monkeypatch.setattr(capture_module, "_accepts_position_ids", lambda model: False)
    assert set(failed(load("tiny-gpt2"))) == {"padding side does not matter"}


def test_missing_attention_mask_is_detected(monkeypatch):
    model_inputs = Capture.model_inputs

    def without_mask(self, batch):
        return {"input_ids": model_inputs(self, batch)["input_ids"]}

    monkeypatch.setattr(Capture, "model_inputs", without_mask)
    assert "padding side does not matter" in failed(load("tiny-llama"))
    assert "batch size does not matter" in failed(load("tiny-llama", "bidirectional"))


@pytest.mark.parametrize("normed", [True, False], ids=["on every layer", "on none"])
def test_final_norm_on_wrong_layers_is_detected(monkeypatch, normed):
    def wrong(backbone, readings):
        return Capture(backbone, [replace(reading, normed=normed) for reading in readings])

    monkeypatch.setattr(doctor_module, "Capture", wrong)
    assert "layers match a plain forward pass" in failed(load("tiny-llama"))


def test_layers_counted_from_one_are_detected(monkeypatch):
    def shifted(backbone, readings):
        top = backbone.n_layers
        return Capture(backbone, [replace(reading, layer=min(reading.layer + 1, top)) for reading in readings])

    monkeypatch.setattr(doctor_module, "Capture", shifted)
    assert "layers match a plain forward pass" in failed(load("tiny-gpt2"))


@pytest.mark.parametrize(("attention", "effect"), [("causal", "still changes"), ("bidirectional", "does not change")])
def test_wrong_attention_direction_is_detected(attention, effect):
    model = load("tiny-llama", attention)
    model.model.config.is_causal = attention != "causal"
    detail = failed(model)["attention direction"]
    assert detail.startswith(f"read as {attention}, but changing a later token {effect} an earlier one")


def test_bidirectional_above_a_layer_passes():
    assert "attention direction" not in failed(load("tiny-llama", "bidirectional:2"))


def test_truncation_of_the_suffix_is_detected(monkeypatch):
    def cut(self, number, text, encoding):
        ids = encoding.ids[: self.max_length]
        return [Prompt(ids, 0, len(ids))]

    monkeypatch.setattr(Tokeniser, "_shorten", cut)
    assert set(failed(load("tiny-llama"))) == {"suffix survives truncation"}


def test_missing_truncation_is_detected(monkeypatch):
    monkeypatch.setattr(
        Tokeniser, "_shorten", lambda self, number, text, encoding: [Prompt(encoding.ids, 0, len(encoding.ids))]
    )
    assert "suffix survives truncation" in failed(load("tiny-llama"))


def test_weights_changed_on_disk_are_detected(monkeypatch, tmp_path):
    build_tiny("llama", tmp_path / "model")
    model = load(tmp_path / "model")
    assert failed(model) == {}
    save = Encoder.save

    def save_and_change_weights(self, folder, **kwargs):
        saved = save(self, folder, **kwargs)
        build_tiny("llama", tmp_path / "model", seed=1)
        return saved

    monkeypatch.setattr(Encoder, "save", save_and_change_weights)
    failures = failed(model)
    assert set(failures) == {"save and load"}
    assert "not those this encoder was made with" in failures["save and load"]


def test_weights_changed_in_memory_are_detected():
    model = load("tiny-llama")
    model.blocks[0].mlp.down_proj.weight.mul_(1.01)
    assert failed(model) == {"save and load": "vectors changed"}


def test_lost_head_is_detected(monkeypatch):
    load_encoder = Encoder.load

    def load_without_head(folder, **kwargs):
        encoder = load_encoder(folder, **kwargs)
        encoder.head = None
        return encoder

    monkeypatch.setattr(Encoder, "load", load_without_head)
    assert failed(load("tiny-llama")) == {"save and load": "the fingerprint changed"}


def test_check_that_raises_fails_and_others_still_run(monkeypatch):
    def broken(*args, **kwargs):
        raise RuntimeError("mat1 and mat2 shapes cannot be multiplied")

    monkeypatch.setattr(doctor_module, "_plain_forward", broken)
    failures = failed(load("tiny-llama"))
    assert set(failures) == {"last token is not padding", "layers match a plain forward pass"}
    assert failures["layers match a plain forward pass"] == "RuntimeError: mat1 and mat2 shapes cannot be multiplied"


def test_the_scores_of_a_saved_reranker_are_computed_again(tmp_path):
    reranker = Reranker.from_pretrained("tiny-llama", method="yes_no", device="cpu", dtype="float32")
    folder = reranker.save(tmp_path / "reranker")
    checks = doctor(folder, device="cpu", dtype="float32")
    assert {check.name for check in checks} == CHECKS | {"gold scores"}
    assert all(check.passed for check in checks)
    file = folder / GOLD_FILE
    gold = json.loads(file.read_text("utf-8"))
    GoldVectors(gold["texts"], 1.01 * reranker.gold_scores(gold["texts"]), "float32").write(folder, {})
    assert {check.name for check in doctor(folder, device="cpu", dtype="float32") if not check.passed} == {
        "gold scores"
    }
