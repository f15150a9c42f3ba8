"""`d2v analyze id` and `d2v analyze geometry`."""

from __future__ import annotations

import json

import pytest

from toys.command import d2v

TEXTS = [f"The {a} {b} {c}." for a in ("dog", "cat", "king") for b in ("sees", "eats") for c in ("it", "him", "bread")]


@pytest.fixture
def texts(tmp_path):
    file = tmp_path / "texts.txt"
    file.write_text("\n".join([*TEXTS, "", TEXTS[0]]) + "\n")
    return file


def analyze(*args):
    result = d2v("analyze", *args)
    assert result.exit_code == 0, result.output
    return result


def test_id_writes_a_document_and_a_figure(texts, tmp_path):
    out, plot = tmp_path / "new" / "id.json", tmp_path / "new" / "id.png"
    result = analyze("id", "tiny-llama", "--texts", texts, "--out", out, "--plot", plot, "--neighbours", 5)
    document = json.loads(out.read_text())
    assert document["encoder"] == "tiny-llama" and len(document["fingerprint"]) == 16
    assert document["texts"]["file"] == "texts.txt" and document["texts"]["count"] == len(TEXTS)
    assert (document["pooling"], document["attention"], document["depth"]) == ("lasttoken", "causal", 4)
    required = {"layer", "twonn", "twonn_95", "mle", "mle_95", "subsamples", "anisotropy", "effective_rank", "flags"}
    assert all(required <= row.keys() for row in document["layers"]) and len(document["layers"]) == 6
    assert document["layers"][0]["flags"] == ["constant"] and "torch" in document["versions"]
    assert plot.is_file() and "2 of 20 texts are blank or duplicates" in result.stderr
    assert f"area over depth 1, layers 1 to 4: {document['area']['unit']:.2f}" in result.stdout


def test_encoders_and_saved_curves_are_compared(texts, tmp_path):
    base, both = tmp_path / "base.json", tmp_path / "both.json"
    settings = ("--texts", texts, "--neighbours", 5, "--pooling", "mean", "--template", "plain")
    analyze("id", "tiny-llama", *settings, "--out", base)
    args = ("--out", both, "--plot", tmp_path / "both.png")
    result = analyze("id", base, "tiny-llama", *settings, "--attention", "bidirectional", *args)
    document = json.loads(both.read_text())
    assert [curve["attention"] for curve in document["encoders"]] == ["causal", "bidirectional"]
    assert document["differences"][0]["less"] == "base" and document["differences"][0]["comparable"]
    assert "area of tiny-llama minus that of base: " in result.stdout
    again = analyze("id", both, "--out", tmp_path / "again.json")  # saved curves need neither texts nor a model
    assert "area of tiny-llama minus that of base: " in again.stdout


def test_id_takes_a_saved_encoder_and_any_data_file(trained, tmp_path):
    rows = [f"The {a} sleeps.\t{b} waits.\t{3}" for a in ("dog", "cat", "sun") for b in ("One", "Two", "Three", "Four")]
    file = tmp_path / "pairs.tsv"
    file.write_text("sentence1\tsentence2\tscore\n" + "\n".join([*rows, *(f"Text {n}.\tx\t1" for n in range(9))]))
    folder = trained("sum", head="sum")
    analyze("id", folder, "--texts", file, "--out", tmp_path / "id.json", "--neighbours", 3, "--limit", 14)
    document = json.loads((tmp_path / "id.json").read_text())
    assert document["texts"]["count"] == 14 and document["embedding"]["points"] == 14


def test_geometry_writes_a_document_and_a_figure(texts, tmp_path):
    pairs = tmp_path / "pairs.csv"
    pairs.write_text("anchor,positive\nA dog.,One dog.\nA cat.,One cat.\n")
    out, plot = tmp_path / "geometry.json", tmp_path / "geometry.png"
    result = analyze("geometry", "tiny-gpt2", "--texts", texts, "--pairs", pairs, "--out", out, "--plot", plot)
    document = json.loads(out.read_text())
    assert document["pairs"]["count"] == 2 and len(document["cka"]) == len(document["layers"]) == 6
    assert f"{document['layers'][3]['alignment']:.3f}" in result.stdout and plot.is_file()
    analyze("geometry", "tiny-gpt2", "tiny-llama", "--texts", texts, "--out", out)
    assert [measured["encoder"] for measured in json.loads(out.read_text())["encoders"]] == ["tiny-gpt2", "tiny-llama"]


def test_mistakes_are_one_sentence_and_write_nothing(texts, tmp_path, mistake):
    few, out = tmp_path / "few.txt", tmp_path / "out.json"
    few.write_text("\n".join(TEXTS[:9]))
    common = ("analyze", "id", "tiny-llama", "--out", out)
    assert "10 or more" in mistake(*common, "--texts", few)
    assert "--texts FILE" in mistake(*common)
    assert "convention" in mistake(*common, "--texts", texts, "--cdf", "n")
    assert ".png" in mistake(*common, "--texts", texts, "--plot", tmp_path / "id.svg")
    assert "limit of 0" in mistake(*common, "--texts", texts, "--limit", 0)
    assert "pooling" in mistake(*common, "--texts", texts, "--pooling", "median")
    assert "There is no file" in mistake("analyze", "id", tmp_path / "absent.json", "--out", out)
    assert not out.exists()
