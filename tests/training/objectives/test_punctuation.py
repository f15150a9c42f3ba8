"""Punctuation restoration equals plain loops over the stock model: loss, gradients, report and held-out texts."""

from __future__ import annotations

import random
import re
from collections import Counter
from dataclasses import replace
from itertools import cycle, islice, product

import numpy as np
import pytest
import torch
from scipy.special import logsumexp
from tokenizers import normalizers
from torch.nn.utils.rnn import pad_sequence
from torch.utils.checkpoint import checkpoint as torch_checkpoint
from transformers import AutoModel, AutoTokenizer

from decoder2vec.backbone.attention import attention_mismatch
from decoder2vec.backbone.backbone import Backbone
from decoder2vec.backbone.tiny import tiny_folder, tiny_tokenizer
from decoder2vec.encoder import Encoder
from decoder2vec.errors import InputError
from decoder2vec.text.punctuation import score_restoration
from decoder2vec.training import checkpoint, distributed
from decoder2vec.training.loop import History
from decoder2vec.training.objectives import token_states
from decoder2vec.training.objectives.punctuation import PunctuationConfig
from decoder2vec.training.recipes import recipe as recipe_module
from decoder2vec.training.recipes.adapter import ReadSettings
from decoder2vec.training.recipes.recipe import Trainer
from toys.sentences import NOUNS, VERBS
from toys.texts import merge_into_stock, plain_data, split_twelve, stock_model, stock_prefix
from toys.training import gradients_of, module_and_task, perturbed, small_recipe

CASES = [
    ("lora", "tiny-llama", "causal"),
    ("lora", "tiny-llama", "bidirectional"),
    ("lora", "tiny-gpt2", "causal"),
    ("lora", "tiny-gpt2", "bidirectional"),
    ("lora", "tiny-gemma3_text", "causal"),
    ("lora", "tiny-gemma3_text", "bidirectional"),
    ("kv_prefix", "tiny-llama", "bidirectional"),
    ("full", "tiny-llama", "bidirectional"),
]
PERSONS = ("Anna", "Ben", "Otto", "Ida")
SIZES = (100, 60, 95, 70, 88)
"""In words; two in a row exceed 150, so that no two texts are packed into one excerpt."""
NO_LIMIT = 10**6


def article(seed, n_words):
    """Words of sentences: questions start with Who and end with a question mark, names have capitals."""
    rng, words = random.Random(seed), []
    while len(words) < n_words:
        question = rng.random() < 0.3
        first = "Who" if question else rng.choice(["The", *PERSONS])
        end = ["sees", rng.choice(PERSONS), "near", "the", f"{rng.choice(NOUNS)}{'?' if question else '.'}"]
        words += [first, *end] if question else [first, rng.choice(NOUNS), f"{rng.choice(VERBS)},", "and", *end[2:]]
    return words[:n_words]


def articles(count=12, sizes=SIZES):
    return tuple(" ".join(article(index, size)) for index, size in enumerate(islice(cycle(sizes), count)))


def with_rare_words(texts):
    """The texts with words between them whose edits are unique or rare."""
    rare = cycle(["don't", "U.S.", "McCoy", "1,000", '"sea', "sea!", "\u2018Ben\u2019", "...", "house ;"])
    return tuple(
        " ".join(f"{word} {next(rare)}" if index % 40 == 20 else word for index, word in enumerate(text.split()))
        for text in texts
    )


TEXTS = with_rare_words(articles())


def punctuation_recipe(name="lora", **changes):
    return small_recipe(name, objective=PunctuationConfig(), **changes)


@pytest.fixture
def prepared(backbone):
    """prepared(name, family, attention, ...) -> module, task and backbone of a training, with perturbed parameters."""

    def prepare(name="lora", family="tiny-llama", attention="causal", texts=TEXTS, model=None, **changes):
        model = model or backbone(family, attention)
        recipe = punctuation_recipe(name, attention=attention, **changes)
        module, task = module_and_task(recipe, plain_data(texts), model)
        return perturbed(module), task, model

    return prepare


# --- by hand --------------------------------------------------------------------------------------------------------


def cleared_words(text):
    return [word for word in re.sub("[,.!?'\"\u2018\u2019\u201c\u201d]", "", text.lower()).split() if word]


def original_words(text):
    """Punctuation that stands alone belongs to the word before it."""
    words = []
    for word in text.split():
        if cleared_words(word):
            words.append(word)
        else:
            words[-1] += f" {word}"
    return words


def simple_edit(word):
    """(capital, punctuation behind) of a word that needs no other edit; other words of these texts are all rare."""
    match = re.fullmatch(r"([A-Z]?)[a-z;]*([,.!?]*)", word)
    return (bool(match[1]), match[2]) if match else None


def edit_labels(texts):
    """Edits by label: no edit is 0, then the most frequent first; edits that occur fewer than five times have none."""
    counts = Counter(simple_edit(word) for text in texts for word in original_words(text))
    del counts[None]
    unchanged = (False, "")
    frequent = [(count, edit) for edit, count in counts.items() if count >= 5 and edit != unchanged]
    assert len({count for count, _ in frequent}) == len(frequent), "the order should be unambiguous"
    return [unchanged, *(edit for _, edit in sorted(frequent, reverse=True))]


def apply_edit(edit, word):
    capital, punctuation = edit
    return (word.capitalize() if capital else word) + punctuation


@torch.no_grad()
def stock_states(name, adapter, family, attention, texts, max_length=NO_LIMIT):
    """([texts, tokens, dim] states of the stock model with the adapter, (first, last) token of each word that fits)."""
    stock = stock_model(family, causal=attention == "causal", model_class=AutoModel)
    model = merge_into_stock(stock, name, adapter, family)
    tokenizer = AutoTokenizer.from_pretrained(tiny_folder(family))
    encodings = [tokenizer(" ".join(cleared_words(text)), return_offsets_mapping=True) for text in texts]
    ids = [torch.tensor(encoding["input_ids"][:max_length]) for encoding in encodings]
    padded = pad_sequence(ids, batch_first=True, padding_value=7)
    mask = pad_sequence([torch.ones_like(row) for row in ids], batch_first=True)
    inputs = stock_prefix(adapter, len(ids), mask) if name == "kv_prefix" else {"attention_mask": mask}
    states = model(input_ids=padded, **inputs).last_hidden_state
    return states.double().numpy(), [
        word_ends(text, encoding, max_length) for text, encoding in zip(texts, encodings, strict=True)
    ]


def word_ends(text, encoding, max_length):
    """(first, last) token of each word, by the character offsets of the tokens."""
    start, ends = 0, []
    for word in cleared_words(text):
        letters = set(range(start, start + len(word)))
        tokens = [index for index, span in enumerate(encoding["offset_mapping"]) if letters & set(range(*span))]
        ends += [(tokens[0], tokens[-1])] if tokens[-1] < max_length else []
        start += len(word) + 1
    return ends


def logits_by_hand(module, states, ends):
    """One row of logits for each word of each text."""
    weight, bias = (tensor.detach().double().numpy() for tensor in module[1].parameters())
    return [
        [weight @ np.concatenate([text_states[first], text_states[last]]) + bias for first, last in text_ends]
        for text_states, text_ends in zip(states, ends, strict=True)
    ]


def loss_by_hand(name, module, family, attention, texts, labels, max_length=NO_LIMIT):
    """Mean cross-entropy over the words whose edit has a label."""
    logits = logits_by_hand(module, *stock_states(name, module[0], family, attention, texts, max_length))
    losses = []
    for text, rows in zip(texts, logits, strict=True):
        for word, row in zip(original_words(text), rows, strict=False):
            if simple_edit(word) in labels:
                losses.append(logsumexp(row) - row[labels.index(simple_edit(word))])
    return np.mean(losses)


def assert_close(gradient, expected):
    torch.testing.assert_close(gradient, expected, rtol=1e-3, atol=2e-5 * float(expected.abs().max()))


# --- loss -----------------------------------------------------------------------------------------------------------


def test_toy_texts_have_frequent_and_rare_edits():
    train, _ = split_twelve(TEXTS)
    labels = edit_labels(train)
    assert set(labels) == {(False, ""), (True, ""), (False, "."), (False, ","), (False, "?")}
    assert len({word for text in train for word in original_words(text) if simple_edit(word) not in labels}) > 6
    assert all(len(original_words(text)) == len(cleared_words(text)) for text in TEXTS)


@pytest.mark.parametrize(("name", "family", "attention"), CASES, ids=map("-".join, CASES))
def test_loss_is_mean_cross_entropy_of_labelled_words(name, family, attention, prepared, monkeypatch):
    """Each word's edit is predicted from the states of its first and last token."""
    # one padded batch
    monkeypatch.setattr("decoder2vec.training.batch_encoder.training_batch_overhead", lambda *_: 10**6)
    module, task, _ = prepared(name, family, attention)
    train, _ = split_twelve(TEXTS)
    labels, rows = edit_labels(train), np.arange(4)
    texts, shapes = [train[row] for row in rows], []
    assert len({len(text.split()) for text in texts}) == 4
    assert module[1].weight.shape == (len(labels), 64)
    module[1].register_forward_pre_hook(lambda _, inputs: shapes.append(inputs[0].shape))
    with torch.no_grad(), task.step_context():
        loss = task.loss(rows).item()
    assert shapes == [(sum(len(cleared_words(text)) for text in texts), 64)]
    assert loss == pytest.approx(loss_by_hand(name, module, family, attention, texts, labels), rel=1e-5)


def test_truncated_words_are_not_in_the_loss(prepared):
    module, task, _ = prepared(read=ReadSettings(max_length=50))
    train, _ = split_twelve(TEXTS)
    with torch.no_grad(), task.step_context():
        loss = task.loss(np.arange(10)).item()
    expected = loss_by_hand("lora", module, "tiny-llama", "causal", train, edit_labels(train), max_length=50)
    assert loss == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("chunk", [0, 300])
def test_dev_metric_is_loss_of_held_out_texts(chunk, prepared):
    """With the labels of the training texts."""
    module, task, _ = prepared(chunk=chunk)
    train, dev = split_twelve(TEXTS)
    expected = loss_by_hand("lora", module, "tiny-llama", "causal", dev, edit_labels(train))
    assert task.dev_metric() == task.dev_metric() == pytest.approx(-expected, rel=1e-5)


# --- gradients ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "family", "attention"), CASES, ids=map("-".join, CASES))
def test_gradients_reach_all_trained_parameters_and_no_other(name, family, attention, prepared):
    module, task, model = prepared(name, family, attention)
    loss, gradients = gradients_of(module, task, np.arange(4))
    assert np.isfinite(loss)
    assert all(parameter.requires_grad for parameter in module.parameters())
    assert {key for key in gradients if key.startswith("1.")} == {"1.weight", "1.bias"}, "the tagging layer"
    assert [key for key, gradient in gradients.items() if gradient is None or not gradient.any()] == []
    assert not any(tensor.requires_grad or tensor.grad is not None for tensor in model.model.parameters())


@pytest.mark.parametrize(
    ("name", "attention"), [("lora", "bidirectional"), ("kv_prefix", "causal"), ("full", "bidirectional")]
)
def test_chunked_batch_has_same_loss_and_gradients(name, attention, prepared, monkeypatch):
    calls = []
    monkeypatch.setattr(
        token_states, "checkpoint", lambda *args, **options: calls.append(1) or torch_checkpoint(*args, **options)
    )
    chunked, whole = (
        gradients_of(*prepared(name, attention=attention, chunk=chunk)[:2], np.arange(4)) for chunk in (250, 0)
    )
    assert len(calls) > 2, "the batch should be split"
    assert chunked[0] == pytest.approx(whole[0], rel=1e-5)
    assert chunked[1].keys() == whole[1].keys()
    for key, gradient in whole[1].items():
        assert_close(chunked[1][key], gradient)


def test_shares_of_processes_sum_to_the_whole(prepared, monkeypatch):
    """Three texts on four processes, one of which has none: the gradients sum to those of a single process."""
    module, task, _ = prepared()
    whole, expected = gradients_of(module, task, np.arange(3))
    expected = {name: gradient.clone() for name, gradient in expected.items()}
    monkeypatch.setattr(distributed, "world_size", lambda: 4)
    monkeypatch.setattr(distributed, "gather_rows", lambda local, length: local)  # nothing from the others
    losses, sums = [], {name: torch.zeros_like(gradient) for name, gradient in expected.items()}
    for rank in range(4):
        monkeypatch.setattr(distributed, "rank", lambda rank=rank: rank)
        loss, gradients = gradients_of(module, task, np.arange(3))
        losses.append(loss)
        for name, gradient in gradients.items():
            sums[name] += gradient
    assert losses[3] == 0 and sum(losses) == pytest.approx(whole, rel=1e-5)
    for name, gradient in expected.items():
        assert_close(sums[name], gradient)


RARE = " ".join(f"{word}{''.join(marks)}" for word, marks in zip(NOUNS * 6, product(",.!?", repeat=4), strict=False))
"""No two of its words need the same edit."""


@pytest.mark.parametrize("chunk", [0, 100], ids=["whole", "in chunks"])
def test_texts_without_labelled_words_add_nothing_to_loss(chunk, prepared):
    """All edits are too rare, or the first word is so long that truncation leaves no whole word."""
    texts = (TEXTS[0], RARE, f"{'x' * 400} {TEXTS[2]}", *TEXTS[3:])
    module, task, _ = prepared(texts=texts, chunk=chunk)
    for rows in ([0], [1], [0, 1]):
        loss, gradients = gradients_of(module, task, np.array(rows))
        assert loss == 0
        assert all(gradient is not None and not gradient.any() for gradient in gradients.values())
    alone, expected = gradients_of(module, task, np.array([2]))
    expected = {name: gradient.clone() for name, gradient in expected.items()}
    with_others, gradients = gradients_of(module, task, np.array([0, 1, 2]))
    assert alone == pytest.approx(with_others, rel=1e-5) and alone > 0.1
    for name, gradient in gradients.items():
        assert_close(gradient, expected[name])


# --- report ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def run_perturbed(backbone, monkeypatch):
    """run_perturbed(name, family, attention, ...) -> result and module of a training that perturbs every parameter.

    Random edits are predicted for so many words that some are right.
    """

    def run(name="lora", family="tiny-llama", attention="causal", texts=TEXTS, model=None, **changes):
        modules = []

        def fit(module, *_, **__):
            modules.append(perturbed(module))
            return History(start=0.0)

        recipe = punctuation_recipe(name, attention=attention, **changes)
        with monkeypatch.context() as patch:
            patch.setattr(recipe_module, "fit", fit)
            result = Trainer(recipe, plain_data(texts), model or backbone(family, attention)).run(0)
        return result, modules[0]

    return run


@pytest.mark.parametrize("max_length", [256, 100], ids=["whole", "truncated"])
@pytest.mark.parametrize(
    ("name", "family", "attention"),
    [
        ("lora", "tiny-llama", "bidirectional"),
        ("lora", "tiny-gemma3_text", "causal"),
        ("kv_prefix", "tiny-llama", "causal"),
        ("full", "tiny-gpt2", "bidirectional"),
    ],
)
def test_report_scores_restored_held_out_texts(name, family, attention, max_length, run_perturbed):
    """Truncated words stay unrestored and count as missed."""
    result, module = run_perturbed(name, family, attention, read=ReadSettings(max_length=max_length))
    train, dev = split_twelve(TEXTS)
    labels = edit_labels(train)
    source, target = [cleared_words(text) for text in dev], [original_words(text) for text in dev]
    logits = logits_by_hand(module, *stock_states(name, module[0], family, attention, dev, max_length))
    assert all((len(rows) < len(words)) == (max_length == 100) for rows, words in zip(logits, source, strict=True))
    output = [
        [apply_edit(labels[int(np.argmax(row))], word) for row, word in zip(rows, words, strict=False)]
        + words[len(rows) :]
        for rows, words in zip(logits, source, strict=True)
    ]
    restoration, expected = result.notes["restoration"], score_restoration(source, output, target)
    assert expected.attempts > 20 and expected.hits > 0, "there should be something to score"
    for rate in ("precision", "recall", "f1"):
        assert restoration[rate] == pytest.approx(getattr(expected, rate), abs=5e-5)
    assert restoration["problems"] == sum(
        a != b for pair in zip(source, target, strict=True) for a, b in zip(*pair, strict=True)
    )
    assert restoration["edits"] == len(labels)
    rare = [word for text in train for word in original_words(text) if simple_edit(word) not in labels]
    assert restoration["words without label"] == len(rare)
    assert result.notes.get("texts cut", 0) == (12 if max_length == 100 else 0)


def test_training_restores_and_encoder_stays_bidirectional(backbone, tmp_path):
    texts = articles(48, (78,))
    results, encoders = [], []
    for epochs in (0, 3):
        recipe = punctuation_recipe(epochs=epochs, batch=4, attention="bidirectional")
        trainer = Trainer(recipe, plain_data(texts), backbone("tiny-llama", "bidirectional"))
        results.append(trainer.run(0))
        encoders.append(trainer.export(results[-1], tmp_path)[0])
    untrained, trained = (result.notes["restoration"] for result in results)
    assert untrained["f1"] < 0.2 and trained["f1"] > 0.5
    history = results[1].notes["training"]
    assert [history["start"], *history["scores"]] == sorted([history["start"], *history["scores"]])
    assert results[1].dev_metric == history["scores"][-1] > 0.4 * history["start"]
    encoders[1].save(tmp_path / "encoder")
    loaded = Encoder.load(tmp_path / "encoder", device="cpu", dtype="float32")
    assert loaded.spec.attention == loaded.backbone.attention == "bidirectional"
    assert not attention_mismatch(loaded.backbone.model, "bidirectional")
    assert (loaded.encode(texts[:3]) == encoders[1].encode(texts[:3])).all()
    assert not np.allclose(loaded.encode(texts[:3]), encoders[0].encode(texts[:3]), atol=1e-3)


# --- texts ----------------------------------------------------------------------------------------------------------


def test_short_sentences_are_packed_into_excerpts(prepared):
    """Nine excerpts of up to 150 words, of which every fourth is held out."""
    sentences = tuple(" ".join(article(seed, 12)) for seed in range(100))
    assert prepared(texts=sentences)[1].n_examples == 6


def test_words_without_tokens_change_nothing_else(backbone, prepared, run_perturbed):
    tokenizer = tiny_tokenizer(pad=True, bos=True)
    tokenizer.backend_tokenizer.normalizer = normalizers.Replace(" \u200b", "")
    model = replace(backbone("tiny-llama"), tokenizer=tokenizer)
    with_empty_words = tuple(text.replace(" the ", " the \u200b ") for text in TEXTS)
    assert min(text.count("\u200b") for text in with_empty_words) > 5
    loss, expected = (
        gradients_of(*prepared(texts=texts, model=model)[:2], np.arange(5))[0] for texts in (with_empty_words, TEXTS)
    )
    assert loss == pytest.approx(expected, rel=1e-5)
    restoration, expected = (
        run_perturbed(texts=texts, model=model)[0].notes["restoration"] for texts in (with_empty_words, TEXTS)
    )
    assert restoration == expected


@pytest.mark.filterwarnings("ignore:mkldnn_matmul")
@pytest.mark.parametrize("name", ["lora", "full"])
def test_half_precision_model_learns(name, own_cache):
    model = Backbone.load("tiny-llama", attention="bidirectional", device="cpu", dtype="bfloat16")
    recipe = punctuation_recipe(name, attention="bidirectional", read=ReadSettings(max_length=12))
    result = Trainer(recipe, plain_data(TEXTS), model).run(0)
    assert result.dev_metric > result.notes["training"]["start"]


# --- runs -----------------------------------------------------------------------------------------------------------


class Killed(Exception):
    """Stands for a process that is killed."""


def test_resumed_run_equals_an_uninterrupted_one(backbone, tmp_path, monkeypatch):
    """The tagging layer, which is no part of the encoder, is resumed as well."""
    monkeypatch.setattr(checkpoint, "_SAVE_EVERY", 0.0)

    def run(**options):
        recipe = punctuation_recipe(batch=5, every=2, attention="bidirectional")
        trainer = Trainer(recipe, plain_data(TEXTS), backbone("tiny-llama", "bidirectional"))
        result = trainer.run(0, **options)
        return result, trainer.export(result, tmp_path)[0]

    def kill(progress):
        if progress.step == 3:  # between two evaluations
            raise Killed

    with pytest.raises(Killed):
        run(work=tmp_path, on_progress=kill)
    steps = []
    resumed, resumed_encoder = run(work=tmp_path, on_progress=lambda progress: steps.append(progress.step))
    whole, whole_encoder = run()
    assert steps[0] == 4, "it should not start again"
    assert resumed.notes == whole.notes
    assert resumed_encoder.fingerprint == whole_encoder.fingerprint
    assert (resumed_encoder.encode(TEXTS[:2]) == whole_encoder.encode(TEXTS[:2])).all()


def test_seeds_run_one_after_another_are_independent(backbone):
    recipe, model = punctuation_recipe(epochs=1), backbone("tiny-gpt2")
    trainer = Trainer(recipe, plain_data(TEXTS), model)
    first, second = trainer.run(0), trainer.run(1)
    assert first.notes != second.notes == Trainer(recipe, plain_data(TEXTS), model).run(1).notes


# --- what cannot be trained -----------------------------------------------------------------------------------------

CLEARED = tuple(" ".join(cleared_words(text)) for text in TEXTS)
REFUSED = {
    "a soft prompt": ("soft_prompt", {}, TEXTS, "use lora, kv_prefix or full"),
    "a soft prompt before the text": (
        "soft_prompt",
        {"place": "prepend", "output": "text"},
        TEXTS,
        "use lora, kv_prefix or full",
    ),
    "a bidirectional soft prompt": (
        "soft_prompt",
        {"attention": "bidirectional"},
        TEXTS,
        "use lora, kv_prefix or full",
    ),
    "a soft prompt that encodes every token": (
        "soft_prompt",
        {"checkpoint_blocks": True},
        TEXTS,
        "use lora, kv_prefix or full",
    ),
    "a lower layer": ("lora", {"read": ReadSettings(layer=2)}, TEXTS, "from the top layer; leave the layer at -1"),
    "a template": ("lora", {"read": ReadSettings("echo")}, TEXTS, "from plain texts; leave the template at plain"),
    "no punctuation and no capitals": ("lora", {}, CLEARED, "No change of a word occurs 5 times"),
    "only rare edits": ("lora", {}, (RARE, *CLEARED), "No change of a word occurs 5 times"),
    "no texts": ("lora", {}, (), "punctuation learns from 4 excerpts or more"),
    "only punctuation": ("lora", {}, ("...", "?", " ", "! !", "'"), "these texts make 0; give more text"),
}


@pytest.mark.parametrize(("name", "changes", "texts", "message"), REFUSED.values(), ids=REFUSED)
def test_unfit_recipe_or_texts_fail_with_one_sentence(name, changes, texts, message, backbone):
    attention = changes.get("attention", "causal")
    with pytest.raises(InputError, match=message) as error:
        Trainer(punctuation_recipe(name, **changes), plain_data(texts), backbone("tiny-gpt2", attention)).run(0)
    assert re.fullmatch(r"[^.\n]+\.", str(error.value))
