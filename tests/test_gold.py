"""Gold vectors: every saved encoder and export has them, and they tell whether an encoder still gives the same."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from decoder2vec.analysis.doctor import doctor
from decoder2vec.encoder import Encoder
from decoder2vec.errors import EncoderError
from decoder2vec.export.formats import export
from decoder2vec.gold import GOLD_FILE, GOLD_TEXTS, GoldVectors, differences
from toys.command import d2v


@pytest.fixture(scope="module")
def encoder(own_cache):
    choices = {"layer": 3, "pooling": "mean", "template": "plain", "max_length": 128}
    return Encoder.from_pretrained("tiny-llama", device="cpu", dtype="float32", **choices)


@pytest.fixture
def folder(encoder, tmp_path):
    return encoder.save(tmp_path / "encoder")


def gold_check(folder, **options):
    (check,) = (check for check in doctor(folder, device="cpu", **options) if check.name == "gold vectors")
    return check


def change_gold(folder, **changes):
    content = json.loads((folder / GOLD_FILE).read_text(encoding="utf-8"))
    (folder / GOLD_FILE).write_text(json.dumps({**content, **changes}), encoding="utf-8")


def test_texts_are_16_and_all_different():
    assert len(set(GOLD_TEXTS)) == len(GOLD_TEXTS) == 16


def test_saved_encoder_has_the_vectors_of_all_texts(encoder, folder):
    content = json.loads((folder / GOLD_FILE).read_text(encoding="utf-8"))
    expected = np.stack([encoder.encode(text) for text in GOLD_TEXTS])
    assert content["texts"] == list(GOLD_TEXTS) and content["dtype"] == "float32"
    assert content["settings"]["readings"] == [{"layer": 3, "pooling": "mean", "normed": False}]
    assert "backbone" not in content["settings"]  # it may be a path of the machine
    assert np.allclose(content["vectors"], expected, rtol=1e-4, atol=1e-5)


def test_saving_warns_of_no_truncation(encoder, tmp_path, caplog):
    encoder.save(tmp_path / "encoder")
    assert not caplog.records


def test_doctor_computes_them_again(folder):
    check = gold_check(folder)
    assert check.passed and "allowed 5e-04" in check.detail


def test_doctor_finds_another_vector(folder):
    vectors = GoldVectors.read(folder).vectors
    vectors[3, 5] += 0.01 * np.abs(vectors[3]).max()
    change_gold(folder, vectors=vectors.tolist())
    assert not gold_check(folder).passed


def test_folder_without_them_is_no_failure(folder):
    (folder / GOLD_FILE).unlink()
    check = gold_check(folder)
    assert check.passed and "earlier version" in check.detail


def test_damaged_file_is_reported(folder):
    (folder / GOLD_FILE).write_text("{", encoding="utf-8")
    with pytest.raises(EncoderError, match="save or export the encoder again"):
        GoldVectors.read(folder)
    assert not gold_check(folder).passed


@pytest.mark.filterwarnings("ignore:mkldnn_matmul failed")
def test_vectors_in_16_bits_are_compared_less_strictly(encoder, tmp_path):
    encoder = Encoder.from_pretrained("tiny-llama", layer=3, pooling="mean", device="cpu", dtype="bfloat16")
    folder = encoder.save(tmp_path / "encoder")
    assert GoldVectors.read(folder).dtype == "bfloat16"
    check = gold_check(folder, dtype="float32")
    assert check.passed and "allowed 5e-02" in check.detail


def test_texts_too_long_for_the_encoder_are_left_out(encoder, tmp_path):
    strict = Encoder(encoder.backbone, replace(encoder.spec, on_overflow="error", max_length=64))
    texts = GoldVectors.read(strict.save(tmp_path / "encoder")).texts
    assert "Two dogs" in texts and GOLD_TEXTS[-1] not in texts
    assert gold_check(tmp_path / "encoder").passed


def test_vectors_that_are_not_finite_are_not_written(tmp_path, caplog):
    encoder = Encoder.from_pretrained("tiny-llama", layer=3, device="cpu", dtype="float32")
    encoder.backbone.blocks[0].mlp.down_proj.weight[0, 0] = float("nan")
    folder = encoder.save(tmp_path / "encoder")
    assert not (folder / GOLD_FILE).exists() and "not finite" in caplog.text


def test_differences_are_relative_and_nan_is_infinite():
    expected = np.array([[1.0, -4.0], [0.5, 0.25]], np.float32)
    vectors = np.array([[1.0, -3.0], [np.nan, 0.25]], np.float32)
    assert differences(vectors, expected).tolist()[0] == 0.25
    assert differences(vectors, expected)[1] > 1e30


@pytest.mark.parametrize(("dtype", "off"), [("int8", 1.2), ("4bit", 2.0)])
def test_weights_of_few_bits_are_compared_by_whole_vectors(dtype, off):
    """One number may be far off; half of all numbers with the other sign is another vector, however small they are."""
    expected = np.ones((2, 100), np.float32)
    expected[:, 0] = 2.0
    one_number, other_vector = expected.copy(), expected.copy()
    one_number[1, 0] += off
    other_vector[1, 1:40] *= -1
    gold = GoldVectors(["a", "b"], expected, "float32")
    for vectors, passes in ((one_number, True), (other_vector, False)):
        difference, allowed = gold.compare(vectors, dtype)
        assert difference == pytest.approx(np.linalg.norm(vectors[1] - expected[1]) / np.linalg.norm(expected[1]))
        assert (difference <= allowed) == passes
    one_number[0, 3] = np.nan
    assert gold.compare(one_number, dtype)[0] == np.inf


@pytest.mark.parametrize("format", ["sentence-transformers", "transformers"])
def test_exports_have_them(encoder, format, tmp_path, quick_exports):
    export(encoder, format, tmp_path / "exported")
    gold = GoldVectors.read(tmp_path / "exported")
    assert differences(encoder.encode(gold.texts), gold.vectors).max() < 1e-5


def test_doctor_checks_a_sentence_transformers_export(encoder, tmp_path, quick_exports):
    export(encoder, "sentence-transformers", tmp_path / "exported")
    assert gold_check(tmp_path / "exported").passed
    config = tmp_path / "exported" / "1_Pooling" / "config.json"
    pooling = {"word_embedding_dimension": 32, "pooling_mode_lasttoken": True, "pooling_mode_mean_tokens": False}
    config.write_text(json.dumps(pooling))
    result = d2v("doctor", tmp_path / "exported", "--device", "cpu")
    assert result.exit_code == 1 and "gold vectors" in result.stderr
