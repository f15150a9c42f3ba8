"""`d2v similarity`, and `--explain` on encoders trained in the test."""

from __future__ import annotations

import re

import pytest
from PIL import Image

from decoder2vec.encoder import Encoder
from toys.command import SCORED_ROWS, as_options, cosine, d2v, tiny_encoder

PAIR = ("A dog waits.", "The cat waits there.")


@pytest.mark.parametrize(
    "choices",
    [
        {},
        {"layer": 2, "pooling": "mean", "template": "plain"},
        {"layer": -2, "pooling": "max", "template": "Say {text} again", "attention": "bidirectional"},
    ],
    ids=["defaults", "layer", "all"],
)
def test_similarity_is_the_cosine(choices):
    texts = ("A cat sleeps.", "A kitten is napping.")
    result = d2v("similarity", *texts, "--encoder", "tiny-llama", *as_options(choices))
    encoder = tiny_encoder(**choices)
    assert result.exit_code == 0
    assert re.fullmatch(r"-?\d\.\d{4}\n", result.stdout)
    assert float(result.stdout) == pytest.approx(cosine(*map(encoder.encode, texts)), abs=1e-4)


def test_similarity_by_a_saved_encoder(tmp_path):
    encoder = tiny_encoder(layer=3, pooling="mean", template="plain")
    encoder = encoder.with_head("standardise", [text for text, *_ in SCORED_ROWS])
    encoder.save(tmp_path / "mine")
    expected = cosine(encoder.encode("It rains."), encoder.encode("Two dogs"))
    result = d2v("similarity", "It rains.", "Two dogs", "-e", tmp_path / "mine")
    assert float(result.stdout) == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("head", ["sum", "mlp"])
def test_similarity_explains_the_contribution_of_layers(head, trained):
    folder = trained(f"explain-{head}", head=head)
    plain, explained = (d2v("similarity", *PAIR, "-e", folder, *flags) for flags in ([], ["--explain"]))
    expected = Encoder.from_pretrained(folder, device="cpu").explain(*PAIR)
    assert plain.stdout == f"{expected.similarity:.4f}\n"
    first, *table, last = explained.stdout.strip().splitlines()
    assert f"{first}\n" == plain.stdout
    assert last == f"score between 0 and 1: {expected.score:.4f}"
    rows = re.findall(r"(layer \d, \w+)\s+(-?\d\.\d{4})\s+([+-]\d\.\d{4})", "\n".join(table))
    assert [name for name, *_ in rows] == [str(reading) for reading in expected.readings]
    assert [float(cosine) for _, cosine, _ in rows] == pytest.approx(expected.cosines, abs=1e-4)
    assert [float(value) for *_, value in rows] == pytest.approx(expected.contributions, abs=1e-4)
    if head == "sum":
        assert sum(float(value) for *_, value in rows) == pytest.approx(float(first), abs=1e-3)


def test_similarity_draws_the_explanation(trained, tmp_path):
    file = tmp_path / "new" / "why.png"
    result = d2v("similarity", *PAIR, "-e", trained("explain-sum", head="sum"), "--plot", file)
    assert result.exit_code == 0
    assert "contribution" in result.stdout and f"wrote {file}" in result.stderr
    with Image.open(file) as image:
        assert image.format == "PNG"


def test_similarity_that_cannot_be_explained_is_an_error(mistake, trained, tmp_path):
    assert "train one: `d2v train`" in mistake("similarity", *PAIR, "-e", "tiny-llama", "--explain")
    assert "must end in .png" in mistake("similarity", *PAIR, "-e", "tiny-llama", "--plot", tmp_path / "why.pdf")
    (tmp_path / "file").write_text("x", encoding="utf-8")
    folder = trained("explain-sum", head="sum")
    assert "file" in mistake("similarity", *PAIR, "-e", folder, "--plot", tmp_path / "file" / "why.png")
