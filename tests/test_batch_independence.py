"""A text has one vector, whatever its batch, order and neighbours are: to 1e-6, with `exact` to the last bit.

The reference is a loop that encodes one text after the other.
"""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from starlette.testclient import TestClient

from decoder2vec.activations.capture import Capture
from decoder2vec.backbone.tiny import TINY
from decoder2vec.encoder import Encoder
from decoder2vec.quick_encoder import QuickEncoder
from decoder2vec.search.index import Index
from decoder2vec.serving.app import create_app
from decoder2vec.serving.service import ServerConfig
from decoder2vec.training.recipes.recipe import Trainer
from toys.command import d2v, with_lora
from toys.contract import TOY_RECIPES

TOLERANCE = 1e-6
"""Largest difference between the numbers of two vectors of length 1."""
TEXTS = [
    "A cat sleeps on the mat.",
    "Zwei Hunde bellen laut, c'est la vie! 12345",
    "x",
    "The dogs run over the long road in the rain and sing of boats that sail. " * 3 + "The end.",
    *(("Text of many words, number " * (1 + number % 4) + f"{number}.") for number in range(12)),
]
FAMILIES = ["tiny-gpt2", "tiny-llama", "tiny-gemma2", "tiny-falcon", "tiny-mamba", "tiny-mamba2"]


@pytest.fixture(scope="module", autouse=True)
def small_models(one_thread):
    """Run on one thread: the models are too small for more."""


def shuffled(seed):
    return random.Random(seed).sample(TEXTS, len(TEXTS))


def one_by_one(encoder):
    return np.stack([encoder.encode(text) for text in TEXTS])


def in_order(texts, vectors):
    """The vectors of TEXTS, given those of the same texts in another order."""
    return vectors[[texts.index(text) for text in TEXTS]]


def embed(folder, texts, name, *options):
    """The vectors that `d2v embed` writes."""
    source, out = folder / "texts.txt", folder / "vectors.npy"
    source.write_text("\n".join(texts) + "\n", encoding="utf-8")
    d2v("embed", source, "--out", out, "--encoder", name, "--device", "cpu", *options)
    return np.load(out)


def check_exact(encoder):
    """Assert that all ways to encode TEXTS give the bits of a loop over them."""
    assert encoder.exact
    expected = one_by_one(encoder)
    for seed, batch_size in enumerate((None, 1, 3, 64)):
        texts = shuffled(seed)
        vectors = encoder.encode([*texts, "another neighbour", texts[0]], batch_size=batch_size)
        assert (in_order(texts, vectors) == expected).all()
    units = np.stack([encoder.encode(text, normalize_embeddings=True, truncate_dim=7) for text in TEXTS])
    assert (encoder.encode(TEXTS, normalize_embeddings=True, truncate_dim=7) == units).all()
    return expected


@pytest.mark.parametrize("name", sorted(TINY))
def test_order_changes_vectors_by_at_most_1e_6(name, tmp_path):
    options = ("--pooling", "mean", "--normalize")
    alone = one_by_one(Encoder.from_pretrained(name, device="cpu", pooling="mean", normalize=True))
    for texts in (TEXTS, shuffled(0)):
        vectors = in_order(texts, embed(tmp_path, texts, name, *options))
        assert np.abs(vectors - alone).max() <= TOLERANCE


@pytest.mark.parametrize("name", FAMILIES)
def test_exact_vectors_are_those_of_single_texts(name):
    exact = Encoder.from_pretrained(name, device="cpu", pooling="mean", exact=True)
    vectors = check_exact(exact)
    assert (vectors == one_by_one(Encoder(exact.backbone, exact.spec))).all(), "a single text is always exact"


@pytest.mark.parametrize(
    "choices", [{"attention": "bidirectional"}, {"on_overflow": "chunk", "max_length": 40}], ids=str
)
def test_exact_vectors_with_other_settings(choices):
    check_exact(
        Encoder.from_pretrained("tiny-llama", device="cpu", layer=[1, 3], pooling="mean", exact=True, **choices)
    )


@pytest.mark.parametrize("head", ["standardise", "whiten"])
def test_exact_vectors_of_a_saved_adapter_and_head(head, tmp_path):
    encoder = with_lora(Encoder.from_pretrained("tiny-llama", device="cpu", normalize=True)).with_head(head, TEXTS)
    encoder.save(tmp_path / "encoder")
    loaded = Encoder.load(tmp_path / "encoder", device="cpu", exact=True)
    check_exact(loaded)
    check_exact(loaded.with_head("rotate", TEXTS))


def test_exact_vectors_of_a_layerwise_head(backbone, tmp_path):
    toy = TOY_RECIPES["freeze"]
    trainer = Trainer(toy.one_step(), toy.data, backbone("tiny-llama"))
    encoder, _ = trainer.export(trainer.run(0), tmp_path)
    encoder.save(tmp_path / "encoder")
    check_exact(Encoder.load(tmp_path / "encoder", device="cpu", exact=True))


def test_exact_batches_have_one_text_and_no_padding(monkeypatch):
    """This holds on every processor; whether larger batches change the last bits depends on it."""
    batches = []
    forward = Capture.__call__
    monkeypatch.setattr(Capture, "__call__", lambda self, batch: batches.append(batch) or forward(self, batch))
    encoder = Encoder.from_pretrained("tiny-llama", device="cpu")
    encoder.encode(TEXTS)
    assert len(batches) < len(TEXTS) and any(batch.past for batch in batches)
    batches.clear()
    encoder.exact = True
    encoder.encode(TEXTS, batch_size=32)
    assert [len(batch.ids) for batch in batches] == [1] * len(TEXTS)
    assert not any(batch.padding or batch.past for batch in batches)


def test_exact_vectors_do_not_depend_on_the_threads():
    """Also where the number of threads follows the load of the machine, which changes while texts are encoded."""
    encoder = with_lora(Encoder.from_pretrained("tiny-llama", device="cpu", exact=True)).with_head("whiten", TEXTS)
    encoder.exact = True
    numbers, vectors = [], []
    handle = encoder.backbone.blocks[0].register_forward_hook(lambda *_: numbers.append(torch.get_num_threads()))
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        vectors.append(encoder.encode(TEXTS))
        assert torch.get_num_threads() == threads
    handle.remove()
    torch.set_num_threads(1)
    assert set(numbers) == {1} and all((one == vectors[0]).all() for one in vectors)


@pytest.mark.parametrize("name", FAMILIES[:3])
def test_exact_files_are_equal_in_any_order(name, tmp_path):
    expected = embed(tmp_path, TEXTS, name, "--exact")
    texts = shuffled(0)
    assert (in_order(texts, embed(tmp_path, texts, name, "--exact")) == expected).all()


def test_exact_index_does_not_depend_on_the_order(tmp_path):
    stored = []
    for seed, copies in ((0, 1), (1, 2)):
        rows = [f"{TEXTS.index(text)}\t{text}" for text in shuffled(seed)]
        for part in range(copies):  # at once, or in two runs
            file = tmp_path / f"{seed}-{part}.tsv"
            file.write_text("\n".join(["id\ttext", *rows[part::copies]]) + "\n", encoding="utf-8")
            d2v("index", file, "--out", tmp_path / f"index{seed}", "--exact", *(() if part else ("-e", "tiny-llama")))
        keys, vectors = Index.open(tmp_path / f"index{seed}").store.read_vectors([str(n) for n in range(len(TEXTS))])
        stored.append(dict(zip(keys, vectors, strict=True)))
    assert stored[0].keys() == stored[1].keys() and len(stored[0]) >= len(TEXTS)
    assert all((stored[0][key] == stored[1][key]).all() for key in stored[0])


def test_exact_server_gives_the_bits_of_single_texts():
    encoder = Encoder.from_pretrained("tiny-llama", device="cpu", exact=True)
    app = create_app(ServerConfig(encoder, cache_megabytes=0, normalize=False))
    with TestClient(app, "http://localhost") as client:
        answer = client.post("/v1/embeddings", json={"input": TEXTS, "model": "encoder"}).json()
    vectors = np.array([row["embedding"] for row in answer["data"]], np.float32)
    assert (vectors == one_by_one(encoder)).all()


@pytest.mark.parametrize("attention", ["causal", "bidirectional"])
def test_encoder_in_numpy_keeps_to_1e_6_too(attention, tmp_path):
    """One text, such as the query of `d2v search`, is computed alone, so its bits are always the same."""
    encoder = with_lora(Encoder.from_pretrained("tiny-llama", device="cpu", attention=attention, normalize=True))
    quick = QuickEncoder.load(encoder.save(tmp_path / "encoder", copy_backbone=True))
    alone = np.concatenate([quick.encode([text]) for text in TEXTS])
    for texts in (TEXTS, shuffled(0), shuffled(1)):
        assert np.abs(in_order(texts, quick.encode(texts)) - alone).max() <= TOLERANCE
    assert (np.concatenate([quick.encode_query([text]) for text in TEXTS]) == alone).all()
    assert np.abs(encoder.encode(TEXTS) - alone).max() <= 1e-5, "torch and NumPy compute in different orders"
