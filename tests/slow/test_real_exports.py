"""Every export scores on STS12 what the encoder scores: set D2V_DATA to a folder with sts/sts12-test.tsv."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from peft import PeftModel
from transformers import AutoModel, AutoTokenizer

from decoder2vec.backbone.sources import resolve_model_folder
from decoder2vec.encoder import Encoder
from decoder2vec.errors import BackboneError
from decoder2vec.evaluation.baselines import load_encoder
from decoder2vec.evaluation.similarity import evaluate_sts
from decoder2vec.export.formats import export
from decoder2vec.text.files import read_pairs

pytestmark = pytest.mark.slow

TOLERANCE = 5e-4
"""Of a Spearman correlation; scores are in points, a hundred times that."""


class MeanOfStates:
    """An exported language model with the pooling of the encoder, which such a folder does not have."""

    def __init__(self, model, folder):
        self.model, self.tokenizer = model.eval(), AutoTokenizer.from_pretrained(folder)

    @torch.inference_mode()
    def encode(self, texts, **_):
        batches = (self.tokenizer(text, return_tensors="pt") for text in texts)
        return torch.cat([self.model(**batch).last_hidden_state.mean(1) for batch in batches]).numpy()


def load_transformers(folder):
    return MeanOfStates(AutoModel.from_pretrained(folder), folder)


def load_peft(folder):
    base = resolve_model_folder("smollm2-135m")
    model = AutoModel.from_pretrained(base)
    model.config.is_causal = False
    return MeanOfStates(PeftModel.from_pretrained(model, folder), base)


LOADERS = {
    "sentence-transformers": load_encoder,
    "onnx": load_encoder,
    "transformers": load_transformers,
    "peft": load_peft,
}


@pytest.fixture(scope="module")
def pairs():
    file = Path(os.environ.get("D2V_DATA", "nowhere")) / "sts" / "sts12-test.tsv"
    if not file.is_file():
        pytest.skip("D2V_DATA does not name a folder with sts/sts12-test.tsv")
    return read_pairs(file)


@pytest.fixture(scope="module")
def encoder():
    try:
        return Encoder.load("smollm2-135m-general", device="cpu", dtype="float32")
    except BackboneError as error:
        pytest.skip(f"the built-in model cannot be pulled: {error}")


@pytest.fixture(scope="module")
def expected(encoder, pairs):
    return evaluate_sts(encoder, pairs)["spearman"]


@pytest.mark.parametrize("format", LOADERS)
def test_export_scores_what_the_encoder_scores_on_sts12(format, encoder, pairs, expected, tmp_path):
    export(encoder, format, tmp_path / "exported")
    score = evaluate_sts(LOADERS[format](tmp_path / "exported"), pairs)["spearman"]
    print(f"{format}: {score:.4f}, the encoder: {expected:.4f}")
    assert abs(score - expected) <= 100 * TOLERANCE
