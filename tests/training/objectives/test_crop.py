"""Crops are runs of words, the loss is InfoNCE of their vectors, and topics are learned from plain texts."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from scipy.stats import rankdata

import decoder2vec
from decoder2vec.encoder import Encoder
from decoder2vec.errors import InputError
from decoder2vec.training import batch_encoder, checkpoint
from decoder2vec.training.context import TokenContext
from decoder2vec.training.loop import Schedule
from decoder2vec.training.objectives.crop import CropConfig, Cropper
from decoder2vec.training.recipes.adapter import ReadSettings
from decoder2vec.training.recipes.recipe import Trainer
from toys.texts import plain_data, sentences, split_twelve
from toys.training import (
    assert_same_gradients,
    attached,
    gradients_of,
    info_nce_by_hand,
    module_and_task,
    perturbed,
    small_recipe,
    toy_pairs,
)

TEXTS = sentences()
TRAIN_TEXTS, DEV_TEXTS = split_twelve(TEXTS)
NUMBERS = "zero one  two three\tfour five six seven\neight nine"


def crop_recipe(name="lora", *, objective=None, **changes):
    config = CropConfig(**{"temperature": 0.2, "min_words": 2, **(objective or {})})
    return small_recipe(name, **{"objective": config, "read": ReadSettings(pooling="mean"), **changes})


def cropper(max_words=1000, **settings):
    return Cropper(CropConfig(**settings), max_words)


def crops_of(text, seeds=range(200), **settings):
    """Pairs of crops, as positions (first, last) of their words in a text in which no word occurs twice."""
    words, draw = text.split(), cropper(**settings)
    pairs = [draw(text, random.Random(seed)) for seed in seeds]
    assert all(crop in text for pair in pairs for crop in pair), "white space inside a crop is that of the text"
    runs = [[crop.split() for crop in pair] for pair in pairs]
    spans = [[(words.index(run[0]), words.index(run[-1])) for run in pair] for pair in runs]
    for pair, pair_spans in zip(runs, spans, strict=True):
        assert all(words[first : last + 1] == run for run, (first, last) in zip(pair, pair_spans, strict=True))
    return spans


@pytest.fixture
def encoded(monkeypatch):
    """The crops of every training step."""
    batches, encode = [], TokenContext.encode_texts

    def call(context, texts):
        batches.append(list(texts))
        return encode(context, texts)

    monkeypatch.setattr(TokenContext, "encode_texts", call)
    return batches


# --- crops ----------------------------------------------------------------------------------------------------------


def test_crops_are_different_runs_of_words():
    spans = crops_of(NUMBERS, min_share=0.2, max_share=0.6, min_words=1)
    assert all(first != second for first, second in spans)
    lengths = [last - first + 1 for pair in spans for first, last in pair]
    assert set(lengths) == set(range(2, 6)), "a fifth to three fifths of ten words, rounded down"
    assert {first for pair in spans for first, _ in pair} == set(range(9)), "they begin everywhere"
    assert any(a[1] >= b[0] and b[1] >= a[0] for a, b in spans), "they may overlap"


def test_crops_without_overlap_share_no_word():
    spans = crops_of(NUMBERS, min_share=0.3, max_share=0.9, min_words=1, overlap=False)
    assert all(a[1] < b[0] or b[1] < a[0] for a, b in spans)
    assert {last - first + 1 for pair in spans for first, last in pair} == {3, 4, 5}, "at most half of the words"
    in_order = np.mean([a < b for a, b in spans])
    assert 0.3 < in_order < 0.7, "the anchor is the earlier crop in half of the pairs"
    assert {first for pair in spans for first, _ in pair} >= {0, 7}


@pytest.mark.parametrize("overlap", [True, False])
def test_crops_have_a_minimum_of_words(overlap):
    spans = crops_of(NUMBERS, min_share=0.01, max_share=0.02, min_words=4, overlap=overlap)
    assert {last - first + 1 for pair in spans for first, last in pair} == {4}


@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize("min_words", [1, 3])
def test_shortest_texts_have_two_different_crops(overlap, min_words):
    needed = min_words + 1 if overlap else 2 * min_words
    settings = {"min_words": min_words, "overlap": overlap, "min_share": 0.4, "max_share": 1.0}
    words = NUMBERS.split()
    assert cropper(**settings).can_crop(" ".join(words[:needed]))
    assert not cropper(**settings).can_crop(" ".join(words[: needed - 1]))
    assert all(first != second for first, second in crops_of(" ".join(words[:needed]), **settings))


def test_seed_determines_crops():
    draw = cropper()
    same, again, other = (draw(NUMBERS, random.Random(seed)) for seed in (1, 1, 2))
    assert same == again != other


def test_words_beyond_the_maximum_length_are_not_cropped():
    spans = crops_of(NUMBERS, max_words=6, min_share=0.5, max_share=0.9)
    assert {last for pair in spans for _, last in pair} == {2, 3, 4, 5}
    assert not cropper(max_words=3).can_crop(NUMBERS)


# --- loss -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "family", "changes"),
    [
        ("lora", "tiny-llama", {"attention": "bidirectional"}),
        ("lora", "tiny-mamba", {}),
        ("kv_prefix", "tiny-llama", {}),
        ("soft_prompt", "tiny-llama", {"read": ReadSettings()}),
        ("full", "tiny-llama", {"read": ReadSettings(template="echo", pooling="mean")}),
    ],
)
def test_loss_is_infonce_of_the_crops_vectors(name, family, changes, backbone, encoded):
    model, recipe = backbone(family, changes.get("attention", "causal")), crop_recipe(name, **changes)
    context, module, task = attached(recipe, plain_data(), model)
    perturbed(module)
    loss, gradients = gradients_of(module, task, np.arange(8))
    (crops,) = encoded
    for text, first, second in zip(TRAIN_TEXTS[:8], crops[:8], crops[8:], strict=True):
        assert first != second and f" {first} " in f" {text} " and f" {second} " in f" {text} "
    encoder = Encoder(context.backbone, recipe._encoder_spec(Trainer(recipe, plain_data(), model).corpus))
    assert loss == pytest.approx(info_nce_by_hand(encoder.encode(crops)), rel=1e-4)
    assert any(gradient.abs().max() > 0 for gradient in gradients.values())


def test_settings_change_the_loss(backbone, encoded):
    model = backbone("tiny-llama")

    def loss_and_vectors(**objective):
        recipe = crop_recipe(objective=objective)
        context, module, task = attached(recipe, plain_data(), model)
        perturbed(module)
        encoded.clear()
        loss = gradients_of(module, task, np.arange(8))[0]
        spec = recipe._encoder_spec(Trainer(recipe, plain_data(), model).corpus)
        return loss, Encoder(context.backbone, spec).encode(encoded[0])

    loss, vectors = loss_and_vectors(temperature=0.7)
    assert loss == pytest.approx(info_nce_by_hand(vectors, 0.7), rel=1e-4)
    loss, vectors = loss_and_vectors(dims=(32, 8))
    assert loss == pytest.approx(info_nce_by_hand(vectors) + info_nce_by_hand(vectors[:, :8]), rel=1e-4)
    loss, vectors = loss_and_vectors(symmetric=True)
    swapped = np.concatenate(np.split(vectors, 2)[::-1])
    assert loss == pytest.approx((info_nce_by_hand(vectors) + info_nce_by_hand(swapped)) / 2, rel=1e-4)


def test_batch_in_chunks_has_the_same_gradients(backbone, monkeypatch):
    results, chunks, compute = [], [], batch_encoder.checkpoint
    monkeypatch.setattr(
        batch_encoder, "checkpoint", lambda encode, rows, **kw: chunks.append(rows) or compute(encode, rows, **kw)
    )
    for chunk in (0, 40):
        recipe = crop_recipe(chunk=chunk)
        results.append(gradients_of(*module_and_task(recipe, plain_data(), backbone("tiny-llama")), np.arange(8)))
    assert len(chunks) > 2, "the batch should be split"
    whole, in_chunks = results
    assert_same_gradients(in_chunks, whole)


def test_crops_are_new_in_every_step_and_the_same_for_a_seed(backbone, encoded):
    def crops_of_run(seed):
        encoded.clear()
        Trainer(crop_recipe(batch=10), plain_data(), backbone("tiny-llama")).run(seed)
        return [sorted(crops) for crops in encoded]

    first, again, other = crops_of_run(0), crops_of_run(0), crops_of_run(1)
    assert first == again != other
    assert len(first) == 2 and first[0] != first[1], "both epochs have all ten texts in one batch"


def test_crops_of_a_long_text_fit_into_max_length(backbone, encoded):
    texts = tuple(" ".join(f"{text} {index}" for index in range(20)) for text in TEXTS)
    recipe = crop_recipe(read=ReadSettings(pooling="mean", max_length=12), objective={"max_share": 1.0})
    context, module, task = attached(recipe, plain_data(texts), backbone("tiny-llama"))
    loss, _ = gradients_of(module, task, np.arange(8))
    (crops,) = encoded
    for text, crop in zip([text for text in texts if text not in texts[::6]][:8] * 2, crops, strict=True):
        assert crop in " ".join(text.split()[:12])
    assert np.isfinite(loss)
    assert max(len(prompt.ids) for prompt in context.tokenise(crops).prompts) == 12


def test_resumed_run_equals_an_uninterrupted_one(backbone, encoded, tmp_path, monkeypatch):
    """Killed within the second epoch, so that random numbers must continue where the first run stopped."""
    monkeypatch.setattr(checkpoint, "_SAVE_EVERY", 0.0)

    def run(**options):
        encoded.clear()
        trainer = Trainer(crop_recipe(batch=4, every=1), plain_data(), backbone("tiny-llama"))
        result = trainer.run(0, **options)
        return result.notes, trainer.export(result, tmp_path)[0].encode(TEXTS), list(encoded)

    def kill(progress):
        if progress.step == 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(work=tmp_path, on_progress=kill)
    notes, vectors, crops = run(work=tmp_path)
    whole_notes, whole_vectors, all_crops = run()
    assert len(all_crops) == 6 and crops == all_crops[5:]
    assert notes == whole_notes and (vectors == whole_vectors).all()


# --- dev metric -----------------------------------------------------------------------------------------------------


def test_dev_metric_is_of_fixed_crops_of_held_out_texts(backbone):
    recipe, model = crop_recipe(), backbone("tiny-llama")
    context, _, task = attached(recipe, plain_data(), model)
    corpus = Trainer(recipe, plain_data(), model).corpus
    crops, n_texts = corpus.objective.texts, len(DEV_TEXTS)
    for text, first, second in zip(DEV_TEXTS, crops[:n_texts], crops[n_texts:], strict=True):
        assert first in text and second in text
    torch.manual_seed(3)
    before = torch.get_rng_state()
    scores = {task.dev_metric() for _ in range(3)}
    assert torch.equal(torch.get_rng_state(), before) and len(scores) == 1
    vectors = Encoder(context.backbone, recipe._encoder_spec(corpus)).encode(crops)
    assert scores.pop() == pytest.approx(-info_nce_by_hand(vectors), rel=1e-4)


def test_dev_pairs_select_the_state_where_there_are_some(backbone):
    trainer = Trainer(crop_recipe(), plain_data(dev=(toy_pairs(),)), backbone("tiny-llama"))
    result = trainer.run(0)
    history = result.notes["training"]
    assert result.dev_metric is None
    assert result.selection_score("spearman") == pytest.approx(max(history["start"], *history["scores"]), abs=0.02)


# --- learning -------------------------------------------------------------------------------------------------------


def topic_texts(count, seed):
    """Texts of six letters of a topic and four that all topics use, in random order, and the topic of each."""
    rng, topics = random.Random(seed), ("abc", "def", "ghi", "jkl", "mno")
    labels = rng.choices(range(len(topics)), k=count)
    letters = [rng.choices(topics[label], k=6) + rng.choices("pqrstuvwxyz", k=4) for label in labels]
    return tuple(" ".join(rng.sample(text, 10)) for text in letters), np.array(labels)


def topic_score(encoder, texts, labels):
    """Area under the ROC curve of cosines: do two texts of one topic have a higher one than two of different topics?"""
    vectors = encoder.encode(texts)
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    upper = np.triu_indices(len(texts), 1)
    ranks, same = rankdata((unit @ unit.T)[upper]), np.equal.outer(labels, labels)[upper]
    return (ranks[same].mean() - (same.sum() + 1) / 2) / (~same).sum()


def test_topics_are_learned_from_plain_texts(backbone, tmp_path):
    texts, _ = topic_texts(400, seed=1)
    schedule = Schedule(steps=20, batch=16, rate=1e-2, patience=100, evaluate_every=10, clip=1.0)
    recipe = crop_recipe("full", training=schedule, objective={"temperature": 0.5, "overlap": False})
    trainer = Trainer(recipe, plain_data(texts), backbone("tiny-llama"))
    untrained = Encoder(trainer.backbone, recipe._encoder_spec(trainer.corpus))
    encoder, _ = trainer.export(trainer.run(0), tmp_path)
    new_texts, labels = topic_texts(60, seed=2)
    assert topic_score(untrained, new_texts, labels) < 0.65
    assert topic_score(encoder, new_texts, labels) > 0.7


# --- data and settings ----------------------------------------------------------------------------------------------


def test_short_texts_are_left_out_and_counted(backbone):
    short = ("one two", "three", "", " ")
    trainer = Trainer(crop_recipe(), plain_data((*short, *TEXTS)), backbone("tiny-llama"))
    objective = trainer.corpus.objective
    assert (objective.train_texts, objective.dev_texts) == (TRAIN_TEXTS, DEV_TEXTS)
    assert trainer.run(0).notes["texts too short to crop"] == len(short)


def test_too_few_long_texts_fail(backbone):
    message = "crop learns from texts of 4 words or more, 4 such texts at least; there are 2"
    with pytest.raises(InputError, match=message):
        Trainer(
            crop_recipe(objective={"min_words": 3}),
            plain_data(("a b c d", "e f g h", "e f g h", "i j k", "l")),
            backbone("tiny-llama"),
        )


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"min_share": 0.0}, "0 < min_share <= max_share <= 1"),
        ({"min_share": 0.8}, "not 0.8 and 0.7"),
        ({"max_share": 1.2}, "not 0.3 and 1.2"),
        ({"min_share": 1.0, "max_share": 1.0}, "min_share below 1"),
        ({"min_share": 0.6, "overlap": False}, "Two crops of 0.6 of a text overlap; set min_share to 0.5 or less"),
        ({"min_words": 0}, "min_words must be 1 or more"),
        ({"temperature": 0.0}, "temperature must be a number above 0"),
    ],
)
def test_impossible_settings_fail(settings, message):
    with pytest.raises(InputError, match=message):
        CropConfig(**settings)


def test_file_of_texts_trains_an_encoder(own_cache, tmp_path):
    file = tmp_path / "texts.txt"
    file.write_text("\n".join(TEXTS), encoding="utf-8")
    settings = ["objective.name=crop", "objective.min_words=2", "objective.overlap=false", "training.batch=4"]
    result = decoder2vec.train("lora", file, "tiny-llama", tmp_path / "enc", settings=settings)
    assert result.encoder.encode(["the dog sleeps"]).shape == (1, 32)
