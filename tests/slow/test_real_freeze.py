"""FREEZE on real weights and real pairs: set D2V_DATA to a folder with sts/stsb-train.tsv and sts/stsb-dev.tsv."""

import os
from dataclasses import replace
from pathlib import Path

import pytest

from decoder2vec import Backbone, Encoder
from decoder2vec.errors import BackboneError
from decoder2vec.evaluation.similarity import evaluate_sts
from decoder2vec.text.files import read_pairs
from decoder2vec.training.api import train
from decoder2vec.training.data import TrainingData, check_data
from decoder2vec.training.recipes.freeze import EMBEDDING, LatentSource

pytestmark = pytest.mark.slow


def test_trained_encoder_beats_the_layer_it_reads(tmp_path):
    folder = Path(os.environ.get("D2V_DATA", "nowhere")) / "sts"
    if not folder.is_dir():
        pytest.skip("D2V_DATA does not name a folder with sts/stsb-train.tsv")
    try:
        backbone = Backbone.load("smollm2-135m")
    except BackboneError as error:
        pytest.skip(f"the built-in model cannot be pulled: {error}")
    pairs = read_pairs(folder / "stsb-train.tsv", limit=600)
    dev = read_pairs(folder / "stsb-dev.tsv", limit=200)
    recipe = replace(EMBEDDING, latents=(LatentSource("prompteol_tight", "lasttoken", "0.8:1.0"),))
    outcome = train(recipe, check_data(TrainingData(pairs, (dev,))), backbone, tmp_path / "enc")
    untrained = evaluate_sts(Encoder.from_pretrained("smollm2-135m", layer=28), dev)["spearman"]
    trained = evaluate_sts(outcome.encoder, dev)["spearman"]
    assert trained > untrained + 2
    assert trained == pytest.approx(outcome.results["mean"]["dev"]["stsb-dev"]["spearman"], abs=0.3)
    assert outcome.encoder.score(dev.left[:20], dev.left[:20]).tolist() == [1.0] * 20
