"""Encoders in NumPy give the vectors of `Encoder`, without torch."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pytest

from decoder2vec.encoder import Encoder
from decoder2vec.errors import InputError
from decoder2vec.quick_encoder import QuickEncoder, open_for_queries
from decoder2vec.search.index import Index
from toys.command import with_lora

TEXTS = ["A cat sleeps on the mat.", "", "Zwei Hunde bellen laut, c'est la vie! 12345", "long " * 300, "x"]


def assert_equal(folder):
    """Assert that both encoders of a folder give the same vectors, and return the quick one."""
    quick, encoder = QuickEncoder.load(folder), Encoder.load(folder, device="cpu")
    assert quick is not None
    assert quick.fingerprint == encoder.fingerprint and quick.dim == encoder.dim
    expected = encoder.encode(TEXTS)
    np.testing.assert_allclose(quick.encode(TEXTS), expected, atol=2e-5 * np.abs(expected).max())
    similarities = quick.similarity(expected[:2], expected)
    np.testing.assert_allclose(similarities, encoder.similarity(expected[:2], expected), rtol=1e-4, atol=1e-5)
    return quick


@pytest.mark.parametrize("pooling", ["lasttoken", "mean", "weightedmean", "max", "cls", "sum"])
@pytest.mark.parametrize("attention", ["causal", "bidirectional"])
def test_vectors_are_those_of_the_encoder(tmp_path, pooling, attention):
    encoder = Encoder.from_pretrained("tiny-llama", device="cpu", pooling=pooling, attention=attention, max_length=64)
    assert_equal(encoder.save(tmp_path / "encoder", copy_backbone=True))


@pytest.mark.parametrize(
    "choices",
    [
        {"layer": [0, 2, 4], "pooling": "mean"},
        {"normed": True, "template": "plain", "normalize": "rms"},
        {"template": "echo", "pooling": "mean", "normalize": True, "similarity": "dot"},
        {"similarity": "euclidean"},
        {"similarity": "manhattan", "layer": 1},
    ],
    ids=str,
)
def test_settings_are_respected(tmp_path, choices):
    encoder = Encoder.from_pretrained("tiny-llama", device="cpu", **choices)
    assert_equal(encoder.save(tmp_path / "encoder", copy_backbone=True))


@pytest.mark.parametrize("dtype", ["float32", "int8"])
def test_lora_is_added(tmp_path, dtype):
    encoder = with_lora(Encoder.from_pretrained("tiny-llama", device="cpu"))
    folder = encoder.save(tmp_path / "encoder", copy_backbone=True, lora_dtype=dtype)
    changed = assert_equal(folder).encode(TEXTS)
    assert not np.allclose(changed, Encoder.from_pretrained("tiny-llama", device="cpu").encode(TEXTS), atol=1e-3)


@pytest.mark.parametrize("kind", ["standardise", "whiten"])
def test_affine_heads_are_applied(tmp_path, kind):
    encoder = Encoder.from_pretrained("tiny-llama", device="cpu", normalize=True).with_head(kind, TEXTS)
    assert_equal(encoder.save(tmp_path / "encoder", copy_backbone=True))


def test_prompts_of_queries_and_documents_are_used(tmp_path):
    prompts = {"query": "search: ", "passage": "text: "}
    encoder = Encoder.from_pretrained("tiny-llama", device="cpu", template="plain", prompts=prompts)
    quick = assert_equal(encoder.save(tmp_path / "encoder", copy_backbone=True))
    np.testing.assert_allclose(quick.encode_query(TEXTS), encoder.encode_query(TEXTS), atol=1e-4)
    np.testing.assert_allclose(quick.encode_document(TEXTS), encoder.encode_document(TEXTS), atol=1e-4)


def test_neighbours_do_not_change_a_vector(tmp_path):
    encoder = Encoder.from_pretrained("tiny-llama", device="cpu", pooling="mean")
    quick = assert_equal(encoder.save(tmp_path / "encoder", copy_backbone=True))
    alone = np.concatenate([quick.encode([text]) for text in TEXTS * 3])
    np.testing.assert_allclose(quick.encode(TEXTS * 3), alone, atol=1e-4)
    assert quick.encode([]).shape == (0, quick.dim)


@pytest.mark.parametrize("name", ["tiny-gpt2", "tiny-mamba", "tiny-gemma3_text"])
def test_other_families_take_an_encoder(tmp_path, name):
    folder = Encoder.from_pretrained(name, device="cpu").save(tmp_path / "encoder", copy_backbone=True)
    assert QuickEncoder.load(folder) is None
    assert isinstance(open_for_queries(folder), Encoder)


@pytest.mark.parametrize("choices", [{"on_overflow": "chunk"}, {"attention": "bidirectional:2"}], ids=str)
def test_other_settings_take_an_encoder(tmp_path, choices):
    encoder = Encoder.from_pretrained("tiny-llama", device="cpu", **choices)
    assert QuickEncoder.load(encoder.save(tmp_path / "encoder", copy_backbone=True)) is None


def test_options_take_an_encoder(tmp_path):
    folder = Encoder.from_pretrained("tiny-llama", device="cpu").save(tmp_path / "encoder", copy_backbone=True)
    assert isinstance(open_for_queries(folder), QuickEncoder)
    assert isinstance(open_for_queries(folder, dtype="float64"), Encoder)
    assert isinstance(open_for_queries("tiny-llama", layer=0), Encoder)


def test_changed_folders_are_left_to_the_encoder(tmp_path):
    encoder = with_lora(Encoder.from_pretrained("tiny-llama", device="cpu"))
    folder = encoder.save(tmp_path / "encoder", copy_backbone=True)
    description = json.loads((folder / "encoder.json").read_text())
    description["spec"]["readings"][0]["layer"] = 2
    (folder / "encoder.json").write_text(json.dumps(description))
    assert QuickEncoder.load(folder) is None
    (folder / "encoder.json").write_text("[]")
    assert QuickEncoder.load(folder) is None
    assert QuickEncoder.load(tmp_path / "nothing") is None


def test_index_opened_for_queries_finds_the_same(tmp_path):
    encoder = Encoder.from_pretrained("tiny-llama", device="cpu")
    folder = encoder.save(tmp_path / "encoder", copy_backbone=True)
    index = Index.create(tmp_path / "index", Encoder.load(folder, device="cpu"))
    index.add(["Cats sleep.", "Dogs bark.", "Ships sail to the islands."])
    quick = Index.open(tmp_path / "index", folder, for_queries=True)
    assert isinstance(quick.encoder, QuickEncoder)
    for expected, found in zip(index.search("animals"), quick.search("animals"), strict=True):
        assert found.id == expected.id and found.score == pytest.approx(expected.score, abs=1e-5)
    with pytest.raises(InputError, match="opened for queries"):
        quick.add(["Birds sing."])


def test_similarity_is_printed_without_torch(tmp_path):
    encoder = Encoder.from_pretrained("tiny-llama", device="cpu")
    folder = encoder.save(tmp_path / "encoder", copy_backbone=True)
    code = (
        "import sys\n"
        "from decoder2vec.cli import main\n"
        f"sys.argv = ['d2v', 'similarity', 'a cat', 'a dog', '--encoder', {str(folder)!r}]\n"
        "try:\n    main()\nfinally:\n    assert not {'torch', 'transformers', 'scipy'} & set(sys.modules)\n"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    vectors = encoder.encode(["a cat", "a dog"])
    assert run.stdout == f"{float(encoder.similarity(vectors[0], vectors[1])):.4f}\n"
