"""Rerankers as CrossEncoder folders of sentence-transformers, compared in a new process."""

from __future__ import annotations

import json
import sys
from contextlib import suppress

import numpy as np
import pytest
import torch

from decoder2vec.adapters.lora import Lora
from decoder2vec.cli import main
from decoder2vec.errors import BackboneError, InputError, UnsupportedError
from decoder2vec.export import cross_encoder
from decoder2vec.export.formats import export
from decoder2vec.reranker import Reranker, RerankerSpec

pytest.importorskip("sentence_transformers")
PAIRS = [("why is it dense?", "The loaf is dense."), ("cats", ""), ("", "a dog runs\nfar"), ("bread", "{query}" * 3)]
SCRIPT = """
import json, sys
sys.modules["decoder2vec"] = None
from sentence_transformers import CrossEncoder
scores = []
for folder in json.loads(sys.argv[1]):
    model = CrossEncoder(folder, device="cpu", local_files_only=True)
    pairs = json.loads(sys.argv[2])
    scores.append([float(score) for size in (1, 32) for score in model.predict(pairs, batch_size=size)])
print(json.dumps(scores))
"""
RERANKERS = (
    ("tiny-gemma2", "linear", False),
    ("tiny-mamba", "linear", True),
    ("tiny-gpt2", "yes_no", False),
    ("tiny-granite", "yes_no", False),
    ("tiny-mamba", "yes_no", False),
)


def make(backbone, name, method, *, lora=False):
    model = backbone(name)
    head = torch.randn(model.dim, generator=torch.Generator().manual_seed(1)) if method == "linear" else None
    if lora:
        adapter = Lora.initialise(model, 2, 4)
        with torch.no_grad():
            for matrix in adapter.upper.values():
                matrix.normal_(std=0.1, generator=torch.Generator().manual_seed(2))
        model = model.with_adapter(adapter)
    return Reranker(model, RerankerSpec(model.name, method), head)


def test_cross_encoders_give_the_same_scores_alone_and_in_a_batch(backbone, tmp_path, quick_python, monkeypatch):
    """All folders in one new process; another test has the check of `export` itself."""
    monkeypatch.setattr(cross_encoder, "_check_scores", lambda *_: "")
    rerankers = [make(backbone, name, method, lora=lora) for name, method, lora in RERANKERS]
    folders = [str(tmp_path / str(number)) for number in range(len(rerankers))]
    for reranker, folder in zip(rerankers, folders, strict=True):
        export(reranker, "cross-encoder", folder)
    process = quick_python.run(SCRIPT, json.dumps(folders), json.dumps(PAIRS), imported=["sentence_transformers"])
    process.check_returncode()
    for reranker, scores in zip(rerankers, json.loads(process.stdout.splitlines()[-1]), strict=True):
        expected = np.tile(reranker.score_pairs(*zip(*PAIRS, strict=True)), 2)
        assert np.abs(np.array(scores) - expected).max() < 1e-4 * np.abs(expected).max(), reranker


def test_what_a_cross_encoder_cannot_express_is_refused(backbone, tmp_path):
    with pytest.raises(UnsupportedError, match="has no likelihood"):
        export(make(backbone, "tiny-gpt2", "likelihood"), "cross-encoder", tmp_path / "out")
    with pytest.raises(UnsupportedError, match="gemma2 caps its logits"):
        export(make(backbone, "tiny-gemma2", "yes_no"), "cross-encoder", tmp_path / "out")
    with pytest.raises(InputError, match="This is a reranker, which has no format onnx"):
        export(make(backbone, "tiny-gpt2", "linear"), "onnx", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_folder_with_other_scores_is_removed(backbone, tmp_path, quick_exports, monkeypatch):
    monkeypatch.setattr(cross_encoder, "_chat_template", lambda _: "{{ messages[0].content }}{{ messages[1].content }}")
    with pytest.raises(BackboneError, match="scores differ"):
        export(make(backbone, "tiny-gpt2", "linear"), "cross-encoder", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_the_command_exports_a_saved_reranker(backbone, tmp_path, capsys, quick_exports, monkeypatch):
    make(backbone, "tiny-llama", "linear", lora=True).save(tmp_path / "reranker")
    options = ["--format", "cross-encoder", "--out", str(tmp_path / "out"), "--device", "cpu"]
    monkeypatch.setattr(sys, "argv", ["d2v", "export", str(tmp_path / "reranker"), *options])
    with suppress(SystemExit):
        main()
    output = "".join(capsys.readouterr())
    assert "Transformer + Pooling + Dense" in output and "the largest difference is" in output
    assert (tmp_path / "out" / "modules.json").is_file()
