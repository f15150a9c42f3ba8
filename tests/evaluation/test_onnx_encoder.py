"""ONNX folders as encoders: against numpy on a small graph, with the pooling, prompts and limits of the folder."""

from __future__ import annotations

import builtins
import json
import shutil

import numpy as np
import pytest
from transformers import AutoTokenizer

from decoder2vec.backbone.tiny import tiny_folder
from decoder2vec.errors import BackboneError, InputError, MissingExtraError, UnsupportedError
from decoder2vec.evaluation.baselines import load_encoder

TEXTS = ["A cat sleeps.", "The quick brown fox jumps over the lazy dog near the river.", "Rain", "A cat sleeps."]
DIM = 6
MODULES = ("Transformer", "Pooling", "Normalize")


def write_folder(target, *, inputs=("input_ids", "attention_mask"), inside="onnx"):
    """A model whose states are rows of a table: enough to see tokens, padding and pooling."""
    onnx = pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    target.mkdir(parents=True)
    for file in ("tokenizer.json", "tokenizer_config.json", "config.json"):
        shutil.copy(tiny_folder("tiny-llama") / file, target)
    size = len(AutoTokenizer.from_pretrained(target))
    table = np.random.default_rng(0).normal(size=(size, DIM)).astype(np.float32)
    helper, kind = onnx.helper, onnx.TensorProto
    graph = helper.make_graph(
        [helper.make_node("Gather", ["table", "input_ids"], ["last_hidden_state"])],
        "states",
        [helper.make_tensor_value_info(name, kind.INT64, ["batch", "tokens"]) for name in inputs],
        [helper.make_tensor_value_info("last_hidden_state", kind.FLOAT, ["batch", "tokens", DIM])],
        [onnx.numpy_helper.from_array(table, "table")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    (target / inside).mkdir(exist_ok=True)
    onnx.save(model, str(target / inside / "model.onnx"))
    return table


def reference(table, folder, texts, pooling="mean", limit=None):
    tokenizer = AutoTokenizer.from_pretrained(folder)
    states = [table[tokenizer(text)["input_ids"][:limit]] for text in texts]
    reduce = {
        "mean": lambda s: s.mean(0),
        "cls": lambda s: s[0],
        "lasttoken": lambda s: s[-1],
        "max": lambda s: s.max(0),
    }
    return np.stack([reduce[pooling](state) for state in states])


@pytest.mark.parametrize("inside", ["onnx", "."])
@pytest.mark.parametrize("inputs", [("input_ids",), ("input_ids", "attention_mask", "token_type_ids", "position_ids")])
def test_vectors_are_the_mean_of_the_states(inside, inputs, tmp_path):
    table = write_folder(tmp_path / "model", inside=inside, inputs=inputs)
    encoder = load_encoder(tmp_path / "model", device="cpu")
    assert (encoder.kind, encoder.dim, len(encoder.fingerprint)) == ("onnx", DIM, 16)
    assert np.allclose(encoder.encode(TEXTS), reference(table, tmp_path / "model", TEXTS), atol=1e-6)


@pytest.mark.parametrize("pooling", ["cls", "lasttoken", "max"])
def test_pooling_is_that_of_the_user_or_folder(pooling, tmp_path):
    table = write_folder(tmp_path / "model")
    expected = reference(table, tmp_path / "model", TEXTS, pooling)
    chosen = load_encoder(tmp_path / "model", device="cpu", pooling=pooling)
    assert np.allclose(chosen.encode(TEXTS), expected, atol=1e-6)
    fingerprints = {chosen.fingerprint, load_encoder(tmp_path / "model", device="cpu").fingerprint}
    flag = {"cls": "cls_token", "lasttoken": "lasttoken", "max": "max_tokens"}[pooling]
    for config in ({"pooling_mode": pooling}, {f"pooling_mode_{flag}": True, "pooling_mode_mean_tokens": False}):
        (tmp_path / "model" / "1_Pooling").mkdir(exist_ok=True)
        (tmp_path / "model" / "1_Pooling" / "config.json").write_text(json.dumps(config))
        encoder = load_encoder(tmp_path / "model", device="cpu")
        assert np.allclose(encoder.encode(TEXTS), expected, atol=1e-6)
        fingerprints.add(encoder.fingerprint)
    assert len(fingerprints) == 4


def test_settings_of_sentence_transformers_are_used(tmp_path):
    folder = tmp_path / "model"
    table = write_folder(folder)
    modules = [{"idx": n, "path": "", "type": f"sentence_transformers.models.{name}"} for n, name in enumerate(MODULES)]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": 3}))
    (folder / "config_sentence_transformers.json").write_text(json.dumps({"prompts": {"query": "Find: "}}))
    encoder = load_encoder(folder, device="cpu")
    expected = reference(table, folder, [f"Find: {text}" for text in TEXTS], limit=3)
    assert np.allclose(
        encoder.encode_query(TEXTS), expected / np.linalg.norm(expected, axis=1, keepdims=True), atol=1e-6
    )
    assert np.allclose(encoder.encode_document(TEXTS), encoder.encode(TEXTS)) and encoder.max_seq_length == 3
    assert np.allclose(encoder.encode(TEXTS, prompt="Find: "), encoder.encode_query(TEXTS))


def test_unfit_folders_are_refused(tmp_path):
    write_folder(tmp_path / "past", inputs=("input_ids", "past_key_values.0.key"))
    with pytest.raises(UnsupportedError, match=r"needs the input 'past_key_values.0.key'"):
        load_encoder(tmp_path / "past", device="cpu")
    write_folder(tmp_path / "dense")
    (tmp_path / "dense" / "modules.json").write_text(json.dumps([{"type": "sentence_transformers.models.Dense"}]))
    with pytest.raises(UnsupportedError, match="module Dense"):
        load_encoder(tmp_path / "dense", device="cpu")
    (tmp_path / "dense" / "onnx" / "model.onnx").write_bytes(b"nothing")
    with pytest.raises(BackboneError, match="onnxruntime cannot load"):
        load_encoder(tmp_path / "dense", device="cpu")
    with pytest.raises(InputError, match="Unknown pooling 'middle'"):
        load_encoder(tmp_path / "past", pooling="middle")
    with pytest.raises(InputError, match="leave out layer"):
        load_encoder(tmp_path / "past", layer=3)


def test_missing_onnxruntime_is_named(tmp_path, monkeypatch):
    (tmp_path / "onnx").mkdir()
    (tmp_path / "onnx" / "model.onnx").write_bytes(b"")
    real_import = builtins.__import__

    def fail(name, *arguments, **options):
        if name == "onnxruntime":
            raise ImportError(name)
        return real_import(name, *arguments, **options)

    monkeypatch.setattr(builtins, "__import__", fail)
    with pytest.raises(MissingExtraError, match=r"pip install 'decoder2vec\[onnx\]'"):
        load_encoder(tmp_path)
