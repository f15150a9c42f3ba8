"""The experiment that made the built-in encoder: packed texts give the encoder's vectors, and a run ends in one."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from scipy.special import softmax
from scipy.stats import entropy

from decoder2vec.activations.capture import Capture
from decoder2vec.adapters.lora import Lora
from decoder2vec.backbone.backbone import Backbone
from decoder2vec.config import Reading
from decoder2vec.encoder import Encoder, spec_from_kwargs
from decoder2vec.errors import InputError
from decoder2vec.gold import GoldVectors
from decoder2vec.training.teachers import Teacher
from distill_packed import (
    PRESETS,
    DistillationLoss,
    Pool,
    Settings,
    centre,
    distil,
    draw_batches,
    false_negatives,
    learning_rate,
    long_documents,
    pair_batches,
    prefetched,
    read_pool,
    text_batches,
)
from token_table import TokenTable
from toys.texts import sentences

TEXTS = [*sentences(24), "", "a"]
SMALL = Settings(
    rank=4, alpha=8, steps=2, max_length=32, batch_tokens=128, batch_texts=8, pair_share=0.5, long_documents=4
)
READING = {"pooling": "mean", "normed": True, "template": "plain", "max_length": SMALL.max_length, "normalize": "rms"}
TEACHERS = (Teacher("random:16"), Teacher("random:8"))
pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def llama(own_cache):
    return Backbone.load("tiny-llama", attention="bidirectional", device="cpu", dtype="float32")


@pytest.fixture(scope="module")
def table(llama):
    return TokenTable.of(llama, TEXTS, SMALL.max_length)


@pytest.fixture
def pool_folder(tmp_path):
    """Texts of two sources, and pairs of which one side is among them."""
    texts = sentences(24)
    rows = [f"{('wikipedia', 'trivia')[index % 2]}\t{text}" for index, text in enumerate(texts)]
    pairs = [f"wikipedia\t{text}\tAnother text about {text.lower()}" for text in texts[:6]]
    for name, header, lines in (("texts-1", "source\ttext", rows), ("pairs-1", "source\ttext1\ttext2", pairs)):
        with gzip.open(tmp_path / f"{name}.tsv.gz", "wt", encoding="utf-8") as file:
            file.write("\n".join([header, *lines]) + "\n")
    return tmp_path


def unit_vectors(*shape):
    vectors = torch.randn(*shape, generator=torch.Generator().manual_seed(0))
    return torch.nn.functional.normalize(vectors, dim=-1)


# --- packing --------------------------------------------------------------------------------------------------------


def test_a_table_packs_the_texts_of_its_rows(llama, table, gap):
    spec = spec_from_kwargs("tiny-llama", {**READING, "normalize": False})
    expected = Encoder(llama, spec).encode(TEXTS)
    rows = np.random.default_rng(0).permutation(len(TEXTS))
    with torch.no_grad():
        vectors = Capture(llama, [Reading(-1, "mean", normed=True)])(table.pack(rows))[:, 0]
    assert gap(vectors, expected[rows]) < 1e-5


# --- batches --------------------------------------------------------------------------------------------------------


def test_an_epoch_holds_every_text_once(table):
    batches = list(text_batches(table.lengths, SMALL, np.random.default_rng(0)))
    assert sorted(np.concatenate(batches)) == list(range(len(TEXTS)))
    sizes = [(len(rows), table.lengths[rows].sum()) for rows in batches]
    assert all(texts <= 8 and tokens <= 128 for texts, tokens in sizes)
    for (texts, tokens), rows in zip(sizes, batches[1:], strict=False):
        assert texts == 8 or tokens + table.lengths[rows[0]] > 128, "as many as fit"


def test_pairs_of_a_batch_have_one_source(table):
    pairs = {"a": np.arange(12).reshape(6, 2), "b": np.arange(12, 16).reshape(2, 2)}
    drawn = pair_batches(pairs, table.lengths, SMALL, np.random.default_rng(0))
    sources = Counter()
    for _, batch in zip(range(40), drawn, strict=False):
        assert 0 < len(batch) <= 4
        assert table.lengths[batch].sum() <= 128
        assert len({tuple(pair) for pair in batch}) == len(batch)
        (source,) = {name for name, rows in pairs.items() for pair in batch if pair.tolist() in rows.tolist()}
        sources[source] += 1
    assert sources["a"] > sources["b"] > 0


def test_steps_draw_texts_and_pairs(table):
    settings = replace(SMALL, steps=40)
    batches = list(prefetched(draw_batches(table, {"a": np.arange(8).reshape(4, 2)}, settings, torch.device("cpu"))))
    assert len(batches) == 40
    with_pairs = [batch for batch in batches if batch.n_pairs]
    assert 0 < len(with_pairs) < 40
    left, right = with_pairs[0].rows.reshape(2, -1)
    assert (right == left + 1).all()
    texts = Counter(row for batch in batches if not batch.n_pairs for row in batch.rows.tolist())
    assert set(texts) == set(range(len(TEXTS)))


def test_an_error_in_a_batch_is_raised():
    def broken():
        yield 1
        raise InputError("broken")

    with pytest.raises(InputError, match="broken"):
        list(prefetched(broken()))


def test_settings_without_room_for_a_pair_are_refused():
    with pytest.raises(InputError, match="pair"):
        Settings(batch_tokens=600)


# --- texts and losses -----------------------------------------------------------------------------------------------


def test_texts_of_pairs_join_the_pool(pool_folder):
    pool = read_pool(pool_folder)
    assert len(pool.texts) == len(set(pool.texts)) == len(pool.sources) == 24 + 6
    first, second = pool.pairs["wikipedia"][0]
    assert [pool.texts[first], pool.texts[second]] == [sentences()[0], f"Another text about {sentences()[0].lower()}"]


def test_long_documents_are_neighbours_of_one_source():
    texts = [f"<{index}>" for index in range(60)]
    sources = [("wikipedia", "trivia", "mdn")[index % 3] for index in range(60)]
    documents = long_documents(Pool(texts, sources, {}), unit_vectors(60, 8), 10)
    assert len(documents) == 10
    for document in documents:
        parts = document.split()
        assert 2 <= len(parts) == len(set(parts)) <= 7
        assert len({texts.index(part) % 3 for part in parts} & {0, 2}) == 1


def test_centred_vectors_have_unit_length():
    vectors = centre(unit_vectors(50, 4).half() * 0.1 + 1)
    assert torch.allclose(vectors.float().norm(dim=1), torch.ones(50), atol=1e-3)
    assert vectors.float().mean(0).abs().max() < 0.2


def test_losses_equal_a_plain_computation():
    targets = [unit_vectors(10, 6), unit_vectors(10, 3)]
    loss = DistillationLoss(5, targets, [3.0, 1.0], SMALL)
    vectors, rows = unit_vectors(4, 5) * 2, np.array([7, 1, 2, 9])
    total, losses = loss(vectors, rows, 2)
    unit = vectors.numpy() / 2
    similarity = 0.75 * targets[0][rows] @ targets[0][rows].T + 0.25 * targets[1][rows] @ targets[1][rows].T
    expected = 0.0
    for weight, linear, teacher in zip((0.75, 0.25), loss.maps, targets, strict=True):
        mapped = linear(vectors).detach().numpy()
        mapped /= np.linalg.norm(mapped, axis=1, keepdims=True)
        expected += weight * np.mean([1 - mapped[text] @ teacher[row].numpy() for text, row in enumerate(rows)])
    assert float(losses["vectors"]) == pytest.approx(expected, rel=1e-4)
    pairs = [(i, j) for i in range(4) for j in range(4) if i != j]
    expected = np.mean([(unit[i] @ unit[j] - float(similarity[i, j])) ** 2 for i, j in pairs])
    assert float(losses["similarities"]) == pytest.approx(expected, rel=1e-4)
    student, teacher = unit[:2] @ unit[2:].T / 0.05, similarity[:2, 2:].numpy() / 0.05
    forward, backward = (entropy(softmax(teacher, axis), softmax(student, axis), axis=axis).mean() for axis in (1, 0))
    assert float(losses["kl"]) == pytest.approx((forward + backward) / 2, rel=1e-3)
    names = {"vectors": 1.0, "similarities": 2.0, "kl": 0.1, "info_nce": 0.03}
    assert total.item() == pytest.approx(sum(weight * float(losses[name]) for name, weight in names.items()), rel=1e-4)
    assert losses.keys() == names.keys()
    assert loss(vectors, rows, 0)[1].keys() == {"vectors", "similarities"}, "texts have no losses of pairs"


def test_candidates_like_the_positive_are_masked():
    similarities = torch.tensor([[0.8, 0.79, 0.1], [0.2, 0.9, 0.5], [0.1, 0.3, 0.4]])
    masked = false_negatives(similarities).fill_diagonal_(False)
    assert masked.tolist() == [[False, True, False], [False, False, True], [False, False, False]]


def test_learning_rate_rises_then_falls_to_zero():
    settings = replace(PRESETS["lora"], steps=100)
    rates = [learning_rate(step, settings) for step in range(100)]
    assert rates[:4] == pytest.approx([settings.rate * share for share in (0.25, 0.5, 0.75, 1)])
    assert rates[4] == pytest.approx(settings.rate)
    assert rates[4:] == sorted(rates[4:], reverse=True)
    assert 0 <= rates[-1] < 0.001 * settings.rate


# --- a run ----------------------------------------------------------------------------------------------------------


def test_a_run_ends_in_an_encoder_that_loads(pool_folder, llama, gap):
    distil(pool_folder, TEACHERS, "tiny-llama", pool_folder / "enc", SMALL, device="cpu")
    encoder = Encoder.load(pool_folder / "enc", device="cpu")
    untrained = Encoder(llama, spec_from_kwargs("tiny-llama", dict(READING)))
    assert encoder.spec == untrained.spec
    assert isinstance(encoder.backbone.adapter, Lora)
    assert gap(encoder.encode(TEXTS), untrained.encode(TEXTS)) > 1e-4
    record = json.loads((pool_folder / "enc" / "distillation.json").read_text(encoding="utf-8"))
    assert (record["texts"], record["pairs"], record["documents"]) == (30, 6, 4)
    assert record["log"][-1]["step"] == 2
    gold = GoldVectors.read(pool_folder / "enc")
    assert gap(encoder.encode(gold.texts), gold.vectors) < 1e-4 and gold.dtype == "float32"


def test_a_second_run_starts_from_the_first(pool_folder, gap):
    folders = [pool_folder / name for name in ("lora", "unchanged", "full")]
    all_weights = replace(SMALL, rank=0)
    distil(pool_folder, TEACHERS, "tiny-llama", folders[0], SMALL, device="cpu")
    distil(pool_folder, TEACHERS, str(folders[0]), folders[1], replace(all_weights, rate=0.0), device="cpu")
    distil(pool_folder, TEACHERS, str(folders[0]), folders[2], replace(all_weights, rate=1e-3), device="cpu")
    lora, unchanged, full = (Encoder.load(folder, device="cpu").encode(TEXTS) for folder in folders)
    assert gap(unchanged, lora) < 1e-5
    assert gap(full, lora) > 1e-4
    maps, maps_taken_over = (load_file(folder / "teacher_maps.safetensors") for folder in folders[:2])
    assert all(torch.equal(maps[name], maps_taken_over[name]) for name in maps)


def test_lora_grows_from_one_of_lower_rank(pool_folder, gap):
    folders = [pool_folder / name for name in ("lora", "unchanged", "grown")]
    distil(pool_folder, TEACHERS, "tiny-llama", folders[0], SMALL, device="cpu")
    larger = replace(SMALL, rank=6, alpha=18)  # the updates are scaled by 3 instead of 2
    for folder, rate in zip(folders[1:], (0.0, 1e-2), strict=True):
        settings = replace(larger, rate=rate)
        distil(pool_folder, TEACHERS, "tiny-llama", folder, settings, grown_from=folders[0], device="cpu")
    lora, unchanged, grown = (Encoder.load(folder, device="cpu").encode(TEXTS) for folder in folders)
    assert gap(unchanged, lora) < 1e-5
    assert gap(grown, lora) > 1e-4
    with pytest.raises(InputError, match="same or a lower rank"):
        distil(pool_folder, TEACHERS, "tiny-llama", pool_folder / "x", SMALL, grown_from=folders[2], device="cpu")
