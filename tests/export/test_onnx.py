"""ONNX folders: run by onnxruntime they give the encoder's vectors, whatever the padding and the size of a batch."""

from __future__ import annotations

import json
from importlib import metadata

import numpy as np
import onnx
import onnxruntime
import pytest
import torch

from decoder2vec.adapters.bottleneck import Bottleneck, BottleneckConfig, Convolution, ConvolutionConfig
from decoder2vec.analysis.doctor import doctor
from decoder2vec.encoder import Encoder
from decoder2vec.errors import BackboneError, InputError, MissingExtraError, UnknownNameError, UnsupportedError
from decoder2vec.evaluation.baselines import load_encoder
from decoder2vec.export import onnx as onnx_export
from decoder2vec.export.formats import export
from decoder2vec.gold import GoldVectors
from decoder2vec.text.batches import collate
from decoder2vec.text.template import Template
from decoder2vec.text.tokens import Tokeniser
from toys.command import d2v

TEXTS = ["A dog runs.", "", 'She said: "no"', "the long road goes over the green hills " * 20, "Ein Café – 中文!"]

ENCODERS = (
    *("mean", "lasttoken", "weightedmean", "cls", "lora, cut", "bidirectional, cut", "inner layer, mean"),
    *("root mean square", "template, mean", "suffix", "two layers", "freeze, projected"),
)
"""Of these, tiny models of llama, qwen3, opt, gpt2 and gemma3 are the backbones."""


@pytest.fixture(scope="module")
def exported(encoders, tmp_path_factory):
    """exported(name) -> the folder of one of the encoders, written once."""
    root, folders = tmp_path_factory.mktemp("onnx"), {}

    def write(name):
        if name not in folders:
            folders[name] = root / name
            assert "run by onnxruntime alone" in export(encoders[name], "onnx", folders[name])
        return folders[name]

    return write


def distance(vectors, expected):
    return (np.linalg.norm(vectors - expected, axis=1) / np.linalg.norm(expected, axis=1)).max()


@pytest.mark.parametrize("name", ENCODERS)
def test_our_loader_gives_the_vectors_of_the_encoder(name, exported, encoders):
    loaded = load_encoder(exported(name), device="cpu")
    assert loaded.kind == "onnx" and loaded.dim == encoders[name].dim
    assert distance(loaded.encode(TEXTS), encoders[name].encode(TEXTS)) < 1e-4


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("name", ["mean", "weightedmean", "bidirectional, cut", "suffix"])
def test_padding_and_batches_do_not_change_vectors(name, side, exported, encoders):
    encoder = encoders[name]
    session = onnxruntime.InferenceSession(exported(name) / "onnx" / "model.onnx")
    tokeniser = Tokeniser(encoder.backbone, Template(encoder.spec.template), encoder.max_seq_length)
    batch = collate(tokeniser(TEXTS).prompts, 7, side=side)
    inputs = {"input_ids": batch.ids.numpy(), "attention_mask": batch.mask.numpy()}
    (vectors,) = session.run(["sentence_embedding"], inputs)
    assert distance(vectors, encoder.encode(TEXTS)) < 1e-4


BRANCH_ADAPTERS = {
    "bottleneck": ("tiny-llama", None, lambda model: Bottleneck(model, BottleneckConfig(5, norm="post")), {}),
    "convolution": ("tiny-gpt2", None, lambda model: Convolution(model, ConvolutionConfig(3, 5)), {"layer": 3}),
    "convolution, both sides": (
        "tiny-qwen3",
        "bidirectional",
        lambda model: Convolution(model, ConvolutionConfig(4, 5, where=("mlp",))),
        {"pooling": "lasttoken", "normed": False},
    ),
}


@pytest.mark.parametrize("name", BRANCH_ADAPTERS)
def test_bottleneck_and_convolution_adapters_are_in_the_graph(name, make_encoder, tmp_path):
    model, attention, make_adapter, choices = BRANCH_ADAPTERS[name]
    plain = make_encoder(model, attention, **choices)
    torch.manual_seed(0)
    adapter = make_adapter(plain.backbone).requires_grad_(False)
    for parameter in adapter.parameters():
        parameter += 0.3 * torch.randn_like(parameter)
    encoder = Encoder(plain.backbone.with_adapter(adapter), plain.spec)
    expected = encoder.encode(TEXTS)
    assert distance(plain.encode(TEXTS), expected) > 0.1
    export(encoder, "onnx", tmp_path / "onnx")
    session = onnxruntime.InferenceSession(tmp_path / "onnx" / "onnx" / "model.onnx")
    prompts = Tokeniser(encoder.backbone, Template(encoder.spec.template), encoder.max_seq_length)(TEXTS).prompts
    for side in ("left", "right"):
        batch = collate(prompts, 7, side=side)
        inputs = {"input_ids": batch.ids.numpy(), "attention_mask": batch.mask.numpy()}
        assert distance(session.run(["sentence_embedding"], inputs)[0], expected) < 1e-4
    assert np.array_equal(encoder.encode(TEXTS), expected), "the encoder is not changed"


def test_graph_has_two_inputs_and_dynamic_axes(exported):
    session = onnxruntime.InferenceSession(exported("mean") / "onnx" / "model.onnx")
    assert [(entry.name, entry.shape) for entry in session.get_inputs()] == [
        ("input_ids", ["batch_size", "sequence_length"]),
        ("attention_mask", ["batch_size", "sequence_length"]),
    ]
    outputs = {entry.name: entry.shape for entry in session.get_outputs()}
    assert outputs["sentence_embedding"][0] == "batch_size" and outputs["last_hidden_state"][1] == "sequence_length"


@pytest.mark.parametrize("name", ["mean", "lasttoken", "inner layer, mean"])
def test_states_are_those_that_the_folder_pools(name, exported):
    """The ONNX backend of sentence-transformers and transformers.js pool `last_hidden_state` themselves."""
    folder = exported(name)
    pooling = json.loads((folder / "1_Pooling" / "config.json").read_text(encoding="utf-8"))["pooling_mode"]
    inside, outside = load_encoder(folder, device="cpu"), load_encoder(folder, device="cpu", pooling=pooling)
    assert distance(outside.encode(TEXTS), inside.encode(TEXTS)) < 1e-4


def test_readme_of_the_folder_runs(exported, encoders):
    folder = exported("mean")
    code = (folder / "README.md").read_text(encoding="utf-8").split("```python")[1].split("```")[0]
    names: dict = {}
    exec(code.replace("this folder", str(folder)), names)
    assert distance(names["vectors"], encoders["mean"].encode(["A dog runs.", "A puppy is running."])) < 1e-4


def test_doctor_checks_gold_vectors_of_the_folder(exported):
    (check,) = doctor(exported("suffix"), device="cpu")
    assert check.name == "gold vectors" and check.passed
    assert len(GoldVectors.read(exported("mean")).texts) == 16


def test_int8_is_smaller_and_its_difference_is_told(encoders, exported, tmp_path):
    text = export(encoders["mean"], "onnx", tmp_path / "int8", dtype="int8")
    assert "int8" in text and "cosine 0.9" in text
    (file,) = (tmp_path / "int8" / "onnx").iterdir()
    assert file.name == "model_quantized.onnx"
    arrays = [onnx.numpy_helper.to_array(weight) for weight in onnx.load(file).graph.initializer]
    weights = [array for array in arrays if array.dtype == np.int8 and array.size > 1]
    assert weights and max(np.abs(array.astype(int)).max() for array in weights) <= 64  # 7 bits
    loaded = load_encoder(tmp_path / "int8", device="cpu")
    assert loaded.dtype == "int8" and 1e-4 < distance(loaded.encode(TEXTS), encoders["mean"].encode(TEXTS)) < 0.3
    assert all(check.passed for check in doctor(tmp_path / "int8", device="cpu"))


def test_large_weights_lie_in_one_file_of_their_own(encoders, tmp_path, monkeypatch):
    monkeypatch.setattr(onnx_export, "_LARGEST_FILE", 0)
    export(encoders["mean"], "onnx", tmp_path / "large")
    assert {file.name for file in (tmp_path / "large" / "onnx").iterdir()} == {"model.onnx", "model.onnx_data"}
    assert (tmp_path / "large" / "onnx" / "model.onnx").stat().st_size < 400_000
    loaded = load_encoder(tmp_path / "large", device="cpu")
    assert distance(loaded.encode(TEXTS), encoders["mean"].encode(TEXTS)) < 1e-4


def test_graph_passes_the_checker_of_onnx(exported):
    onnx.checker.check_model(str(exported("freeze, projected") / "onnx" / "model.onnx"))


# --- errors ---------------------------------------------------------------------------------------------------------


def test_wrong_vectors_are_detected_and_removed(encoders, tmp_path, monkeypatch):
    forward = onnx_export.OnnxGraph.forward

    def counts_padding(self, input_ids, attention_mask):
        return forward(self, input_ids, torch.ones_like(attention_mask))

    monkeypatch.setattr(onnx_export.OnnxGraph, "forward", counts_padding)
    with pytest.raises(BackboneError, match="its vectors differ by"):
        export(encoders["bidirectional, cut"], "onnx", tmp_path / "wrong")
    assert not (tmp_path / "wrong").exists()


def test_family_that_cannot_be_traced_is_refused(tmp_path):
    encoder = Encoder.from_pretrained("tiny-mamba", template="plain", device="cpu", dtype="float32")
    with pytest.raises(UnsupportedError, match="export it for sentence-transformers instead"):
        export(encoder, "onnx", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_prompts_of_several_lengths_are_refused(make_encoder, tmp_path):
    encoder = make_encoder(prompts={"query": "Find:\n"})
    with pytest.raises(UnsupportedError, match="cannot be told how many"):
        export(encoder, "onnx", tmp_path / "out")


def test_dtypes_are_those_of_the_format(encoders, tmp_path):
    with pytest.raises(UnknownNameError, match="int4"):
        export(encoders["mean"], "onnx", tmp_path / "out", dtype="int4")
    with pytest.raises(InputError, match="leave out dtype"):
        export(encoders["mean"], "transformers", tmp_path / "out", dtype="int8")


def test_missing_package_is_named(encoders, tmp_path, monkeypatch):
    monkeypatch.setattr(onnx_export, "find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=r"pip install 'decoder2vec\[onnx\]'"):
        export(encoders["mean"], "onnx", tmp_path / "out")


@pytest.mark.parametrize("version", ["2.6.0", "2.8.1+cpu"])
def test_torch_that_is_too_old_is_named_with_the_version_that_is_needed(encoders, tmp_path, monkeypatch, version):
    needed = next(line for line in metadata.requires("decoder2vec") if line.startswith("torch") and "onnx" in line)
    monkeypatch.setattr(torch, "__version__", version)
    with pytest.raises(MissingExtraError) as error:
        export(encoders["mean"], "onnx", tmp_path / "onnx")
    assert str(error.value) == (
        f"This needs torch 2.9 or later (torch {version} writes wrong graphs): pip install 'decoder2vec[onnx]'."
    )
    assert "torch>=2.9" in needed.replace(" ", "")
    assert not (tmp_path / "onnx").exists()


def test_command_writes_the_folder(encoders, tmp_path):
    folder = encoders["mean"].save(tmp_path / "encoder")
    result = d2v("export", folder, "--format", "onnx", "--dtype", "int8", "--out", tmp_path / "out", "--device", "cpu")
    assert result.exit_code == 0 and "int8" in result.stderr
    assert (tmp_path / "out" / "onnx" / "model_quantized.onnx").is_file()
