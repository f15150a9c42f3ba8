"""The dtype of a model on a CPU is measured, checked on its vectors, and remembered."""

import json
import os
from pathlib import Path

import pytest
import torch

from decoder2vec.backbone import cpu_dtype
from decoder2vec.backbone.backbone import Backbone
from decoder2vec.encoder import Encoder

SENTENCE = "The cat sleeps on the sofa."


class Machine:
    """A processor of known speed; counts what is measured on it."""

    def __init__(self, monkeypatch, gain):
        self.measured, self.seconds = 0, {torch.float32: 1.0, torch.bfloat16: 1.0 / gain}
        self.layer_gain = gain
        run_probe = cpu_dtype._run_probe

        def timed_probe(model, token_ids):
            self.measured += 1
            return run_probe(model, token_ids)[0], self.seconds[next(model.parameters()).dtype]

        monkeypatch.setattr(cpu_dtype, "MIN_WIDTH", 1)
        monkeypatch.setattr(cpu_dtype, "MIN_COSINE", 0.99)  # random weights are sensitive
        monkeypatch.setattr(cpu_dtype, "layer_gain", self.measure_layer)
        monkeypatch.setattr(cpu_dtype, "_run_probe", timed_probe)

    def measure_layer(self, model):
        self.measured += 1
        return self.layer_gain


@pytest.fixture(autouse=True)
def empty_memory(own_cache):
    """Forget what was measured before and in the test."""
    yield
    for note in notes():
        note.unlink()


def notes():
    return list(Path(os.environ["D2V_CACHE"], "dtypes").glob("*.json"))


def load(**options):
    return Backbone.load("tiny-llama", device="cpu", **options)


def test_a_fast_processor_computes_in_16_bits(monkeypatch):
    Machine(monkeypatch, gain=3)
    model = load()
    assert model.dtype == torch.bfloat16
    assert "3 times the speed of float32" in model.dtype_reason
    assert "3 times the speed of float32" in repr(Encoder.from_pretrained("tiny-llama", device="cpu"))


def test_vectors_in_16_bits_are_those_of_float32(monkeypatch):
    plain = Encoder.from_pretrained("tiny-llama", device="cpu", dtype="float32").encode([SENTENCE])
    Machine(monkeypatch, gain=3)
    fast = Encoder.from_pretrained("tiny-llama", device="cpu", dtype="auto").encode([SENTENCE])
    assert not (fast == plain).all()
    assert torch.cosine_similarity(torch.from_numpy(fast), torch.from_numpy(plain)).item() > 0.99


def test_a_slow_layer_ends_the_measurement(monkeypatch):
    machine = Machine(monkeypatch, gain=0.1)
    model = load()
    assert (model.dtype, machine.measured) == (torch.float32, 1)
    assert model.dtype_reason == "a layer in bfloat16 has 0.1 times the speed of float32 on this processor"


def test_a_slow_model_of_fast_layers_stays_in_float32(monkeypatch):
    machine = Machine(monkeypatch, gain=3)
    machine.seconds[torch.bfloat16] = 2.0
    assert load().dtype == torch.float32


def test_other_vectors_mean_float32(monkeypatch):
    Machine(monkeypatch, gain=3)
    monkeypatch.setattr(cpu_dtype, "MIN_COSINE", 1.1)
    model = load()
    assert model.dtype == torch.float32
    exact = Backbone.load("tiny-llama", device="cpu", dtype="float32")
    for ours, reference in zip(model.model.parameters(), exact.model.parameters(), strict=True):
        assert torch.equal(ours, reference)


def test_not_a_number_means_float32(monkeypatch):
    Machine(monkeypatch, gain=3)
    monkeypatch.setattr(cpu_dtype.F, "cosine_similarity", lambda *_: torch.tensor([float("nan")]))
    assert load().dtype == torch.float32


@pytest.mark.parametrize("gain", [3, 0.1])
def test_the_choice_is_remembered(monkeypatch, gain):
    machine = Machine(monkeypatch, gain)
    first = load()
    machine.measured = 0
    second = load()
    assert (second.dtype, second.dtype_reason, machine.measured) == (first.dtype, first.dtype_reason, 0)


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"dtype": "float16", "reason": ""}', "[" * 100_000])
def test_a_damaged_note_is_measured_again(monkeypatch, content):
    Machine(monkeypatch, gain=3)
    load()
    (note,) = notes()
    note.write_text(content)
    assert load().dtype == torch.bfloat16
    assert json.loads(note.read_text())["dtype"] == "bfloat16"


def test_another_processor_is_measured(monkeypatch):
    machine = Machine(monkeypatch, gain=3)
    load()
    machine.layer_gain = 0.1
    monkeypatch.setattr(cpu_dtype, "_processor", lambda: "another")
    assert load().dtype == torch.float32


def test_a_cache_that_cannot_be_written_is_no_error(monkeypatch):
    Machine(monkeypatch, gain=3)
    load()  # the tiny model is built
    notes()[0].unlink()
    monkeypatch.setattr(cpu_dtype, "write_json", refuse)
    assert load().dtype == torch.bfloat16


def refuse(*_):
    raise PermissionError(13, "Permission denied")


def test_a_given_dtype_is_not_questioned(monkeypatch):
    machine = Machine(monkeypatch, gain=3)
    assert load(dtype="float32").dtype == torch.float32
    assert load(dtype=torch.bfloat16).dtype == torch.bfloat16
    assert machine.measured == 0


def test_small_models_are_not_measured():
    model = load()
    assert (model.dtype, model.dtype_reason, notes()) == (torch.float32, "", [])


@pytest.mark.parametrize("name", ["tiny-llama", "tiny-gpt2"])
def test_the_largest_layer_of_the_blocks_is_measured(monkeypatch, backbone, name):
    model, outputs = backbone(name), []
    monkeypatch.setattr(cpu_dtype, "fastest_seconds", lambda run: outputs.append(run()) or [6.0, 2.0][len(outputs) - 1])
    assert cpu_dtype.layer_gain(model.model) == 3
    assert [output.dtype for output in outputs] == [torch.float32, torch.bfloat16]
    sizes = [max(weight.shape) for weight in model.blocks.parameters() if weight.ndim == 2]
    assert max(sizes) < len(model.model.get_input_embeddings().weight)  # which is the largest matrix of the model
    assert {output.shape[1] for output in outputs} <= set(sizes) | {model.dim}


def test_speeds_are_compared_with_one_thread():
    """With several, one busy process on the machine may make the faster dtype look slower."""
    before, threads = torch.get_num_threads(), []
    torch.set_num_threads(2)
    try:
        cpu_dtype.fastest_seconds(lambda: threads.append(torch.get_num_threads()))
        assert (set(threads), torch.get_num_threads()) == ({1}, 2)
    finally:
        torch.set_num_threads(before)


def test_seconds_are_those_of_the_fastest_run(monkeypatch):
    runs, clock = [], iter([0.0, 5.0, 10.0, 12.0, 20.0, 23.0])
    monkeypatch.setattr(cpu_dtype, "perf_counter", lambda: next(clock))
    assert cpu_dtype.fastest_seconds(lambda: runs.append(1)) == 2.0
    assert len(runs) == 4  # the first does not count
