"""Plans of pruned vocabularies against plain loops, without any weights."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest

from decoder2vec.analysis.vocabulary import measure_vocabulary, prune_vocabulary
from decoder2vec.backbone.tiny import tiny_folder
from decoder2vec.encoder import Encoder
from decoder2vec.errors import DataFileError, InputError
from decoder2vec.report.analysis_figures import draw_vocabulary
from toys.command import d2v
from toys.docstrings import run_examples
from toys.texts import sentences

TEXTS = [*sentences(24), "A cat sleeps on the sofa.", "Nobody knows why the road goes there."]
HELD_OUT = ["Quantum zebras jump.", TEXTS[3], TEXTS[0]]


def test_last_point_is_what_pruning_keeps(tmp_path):
    document = measure_vocabulary("tiny-llama", TEXTS, held_out=HELD_OUT)
    result = prune_vocabulary("tiny-llama", tmp_path / "small", TEXTS, held_out=HELD_OUT, device="cpu")
    summary = result.summary
    assert (
        document["rows_used"] == document["by_size"][-1]["rows"] == document["by_texts"][-1]["rows"] == summary.tokens
    )
    assert document["by_size"][-1]["parameters"] == summary.parameters
    assert (document["rows"], document["parameters"]) == (summary.tokens_before, summary.parameters_before)
    unchanged = 1 - summary.held_out_changed / summary.held_out
    assert document["by_size"][-1]["held_out_covered"] == pytest.approx(unchanged, abs=1e-6)
    assert document["by_texts"][-1]["held_out_covered"] == pytest.approx(unchanged, abs=1e-6)


def test_points_equal_prunings_of_fewer_texts(tmp_path):
    document = measure_vocabulary("tiny-gpt2", TEXTS, held_out=HELD_OUT)
    assert [row["texts"] for row in document["by_texts"]] == [10, 20, len(TEXTS)]
    for row in document["by_texts"]:
        out = tmp_path / str(row["texts"])
        summary = prune_vocabulary("tiny-gpt2", out, TEXTS[: row["texts"]], held_out=HELD_OUT, device="cpu").summary
        assert row["rows"] == summary.tokens
        assert row["held_out_covered"] == pytest.approx(1 - summary.held_out_changed / 3, abs=1e-6)


def test_no_weights_are_needed(tmp_path):
    folder = tmp_path / "model"
    folder.mkdir()
    for file in tiny_folder("tiny-llama").iterdir():
        if file.suffix == ".json":
            shutil.copy(file, folder)
    assert not list(folder.glob("*.safetensors"))
    document = measure_vocabulary(folder, TEXTS)
    assert {**document, "model": ""} == {**measure_vocabulary("tiny-llama", TEXTS), "model": ""}


def test_every_tenth_text_is_held_out():
    texts = [f"word{index}" for index in range(30)]
    document = measure_vocabulary("tiny-llama", texts)
    assert (document["texts"]["count"], document["held_out"]["count"]) == (27, 3)


def test_encoder_is_planned_with_its_own_template(tmp_path):
    Encoder.from_pretrained("tiny-gpt2", template="prompteol", device="cpu").save(tmp_path / "enc")
    assert "means in one word" in measure_vocabulary(tmp_path / "enc", TEXTS)["templates"][0]
    assert measure_vocabulary(tmp_path / "enc", TEXTS, template="plain")["templates"] == ["{text}"]


def test_shares_grow_with_rows_and_texts(tmp_path):
    rng = np.random.default_rng(0)
    texts = ["".join(rng.choice(list("abcdefghij "), 30)) for _ in range(300)]
    document = measure_vocabulary("tiny-llama", texts, out=tmp_path / "plan.json")
    for curve in (document["by_texts"], document["by_size"]):
        shares = [row["held_out_covered"] for row in curve]
        assert shares == sorted(shares)
    assert document["by_size"][-1]["tokens_covered"] == 1
    assert json.loads((tmp_path / "plan.json").read_text()) == document
    draw_vocabulary(document, tmp_path / "plan.png")
    assert (tmp_path / "plan.png").stat().st_size > 5000


def test_command_prints_both_tables(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "texts.txt").write_text("\n".join(TEXTS) + "\n")
    options = ["--texts", "texts.txt", "--out", "plan.json", "--plot", "plan.png"]
    result = d2v("analyze", "vocabulary", "tiny-llama", *options)
    assert result.exit_code == 0, result.output
    assert "tokens kept" in result.output and "512 tokens" in result.output
    assert (tmp_path / "plan.png").is_file()


def test_mistakes_are_one_sentence(tmp_path):
    with pytest.raises(DataFileError, match="nowhere"):
        measure_vocabulary("tiny-llama", tmp_path / "nowhere.txt")
    with pytest.raises(InputError, match="json"):
        measure_vocabulary("tiny-llama", TEXTS, out=tmp_path / "plan.txt")


def test_examples_of_the_docstrings_run():
    run_examples(measure_vocabulary)
    run_examples(prune_vocabulary)
