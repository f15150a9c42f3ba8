"""Telling marks and capitals that were taken away, against plain loops over the stock model; and what is refused."""

from __future__ import annotations

import random
import re
from collections import Counter
from dataclasses import replace
from itertools import cycle, islice, product

import numpy as np
import pytest
import torch
from decoder2vec.recipes.objective import Objective
from decoder2vec.training.lessons import parts
from scipy.special import logsumexp
from tokenizers import normalizers
from torch.utils.checkpoint import checkpoint as computed_twice
from transformers import AutoModel, AutoTokenizer, DynamicCache

from decoder2vec.backbone.attention import attention_fault
from decoder2vec.backbone.backbone import Backbone
from decoder2vec.backbone.machine import quiet_transformers
from decoder2vec.backbone.tiny import tiny_folder, tiny_tokenizer
from decoder2vec.encoder import Encoder
from decoder2vec.errors import InputError
from decoder2vec.text.punctuation import score
from decoder2vec.training import adapting, checkpoint, processes
from decoder2vec.training.loop import History
from decoder2vec.training.recipes.adapter import ReadSettings
from decoder2vec.training.recipes.recipe import Trainer
from toys.sentences import NOUNS, VERBS
from toys.texts import plain_data
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
NAMES = ("Anna", "Ben", "Otto", "Ida")
SIZES = (100, 60, 95, 70, 88)
"""In words; two in a row are over 150, so that each text stays alone."""


def article(number, size):
    """Questions begin with who, names have capitals, and a full stop or a question mark is where a sentence ends."""
    rng, words = random.Random(number), []
    while len(words) < size:
        asks = rng.random() < 0.3
        first = "Who" if asks else rng.choice(["The", *NAMES])
        rest = ["sees", rng.choice(NAMES), "near", "the", f"{rng.choice(NOUNS)}{'?' if asks else '.'}"]
        words += [first, *rest] if asks else [first, rng.choice(NOUNS), f"{rng.choice(VERBS)},", "and", *rest[2:]]
    return words[:size]


def articles(count=12, sizes=SIZES):
    return tuple(" ".join(article(number, size)) for number, size in enumerate(islice(cycle(sizes), count)))


def with_rare_words(texts):
    """Some words that need an edit of their own, some of them where a few others need the same."""
    rare = cycle(["don't", "U.S.", "McCoy", "1,000", '"sea', "sea!", "\u2018Ben\u2019", "...", "house ;"])
    return tuple(
        " ".join(f"{word} {next(rare)}" if place % 40 == 20 else word for place, word in enumerate(text.split()))
        for text in texts
    )


TEXTS = with_rare_words(articles())


def lesson_recipe(name="lora", **changes):
    return small_recipe(name, objective=Objective("punctuation"), **changes)


@pytest.fixture
def prepared(backbone):
    """prepared(name, family, attention, ...) -> module, task and backbone of a training, all numbers moved."""

    def make(name="lora", family="tiny-llama", attention="causal", texts=TEXTS, model=None, **changes):
        model = model or backbone(family, attention)
        module, task = module_and_task(lesson_recipe(name, attention=attention, **changes), plain_data(texts), model)
        return perturbed(module), task, model

    return make


# --- by hand --------------------------------------------------------------------------------------------------------


def learned_and_apart(texts):
    """By hand: of a dozen texts every sixth is set aside."""
    assert len(texts) == 12
    return [text for number, text in enumerate(texts) if number % 6], list(texts[::6])


def cleared_words(text):
    return [word for word in re.sub("[,.!?'\"\u2018\u2019\u201c\u201d]", "", text.lower()).split() if word]


def original_words(text):
    """A mark that stands alone belongs to the word before it."""
    found = []
    for word in text.split():
        if cleared_words(word):
            found.append(word)
        else:
            found[-1] += f" {word}"
    return found


def change(word):
    """(capital, marks behind) of a word that needs nothing else; other words of these texts are all rare."""
    found = re.fullmatch(r"([A-Z]?)[a-z;]*([,.!?]*)", word)
    return (bool(found[1]), found[2]) if found else None


def changes_by_number(texts):
    """Nothing to do is 0, then the commonest first; what is done fewer than five times has no number."""
    counts = Counter(change(word) for text in texts for word in original_words(text))
    del counts[None]
    plain = (False, "")
    often = [(count, one) for one, count in counts.items() if count >= 5 and one != plain]
    assert len({count for count, _ in often}) == len(often), "the order was meant to be clear"
    return [plain, *(one for _, one in sorted(often, reverse=True))]


def done(changed, word):
    capital, marks = changed
    return (word.capitalize() if capital else word) + marks


@torch.no_grad()
def states_by_hand(name, adapter, family, attention, texts, max_length=10**6):
    """(states [text, token, width], (first, last) of each word that fits) of the stock model, adapted by hand."""
    with quiet_transformers():
        model = AutoModel.from_pretrained(tiny_folder(family), dtype=torch.float32).eval()
    model.config.is_causal = attention == "causal"
    if name == "full":
        model.load_state_dict(adapter.state_dict())
    if name == "lora":
        state = adapter.public_state()
        for key in [key for key in state if "lora_A" in key]:
            place = key.removeprefix("base_model.model.").removesuffix(".lora_A.weight")
            added = 2.0 * state[key.replace("lora_A", "lora_B")] @ state[key]  # alpha 8, rank 4
            model.get_submodule(place).weight += added.T if family == "tiny-gpt2" else added
    tokenizer = AutoTokenizer.from_pretrained(tiny_folder(family))
    found = [tokenizer(" ".join(cleared_words(text)), return_offsets_mapping=True) for text in texts]
    ids = [torch.tensor(one["input_ids"][:max_length]) for one in found]
    padded = torch.nn.utils.rnn.pad_sequence(ids, batch_first=True, padding_value=7)
    mask = torch.nn.utils.rnn.pad_sequence([torch.ones_like(one) for one in ids], batch_first=True)
    more = {}
    if name == "kv_prefix":
        cache = DynamicCache()
        for number, (keys, values) in enumerate(adapter.layers):
            cache.update(keys.expand(len(ids), -1, -1, -1), values.expand(len(ids), -1, -1, -1), number)
        more = {"past_key_values": cache, "position_ids": torch.arange(padded.shape[1])[None]}
        mask = torch.cat([torch.ones(len(ids), 4, dtype=torch.long), mask], dim=1)
    states = model(input_ids=padded, attention_mask=mask, **more).last_hidden_state
    return states.double().numpy(), [
        ends_by_hand(text, one, max_length) for text, one in zip(texts, found, strict=True)
    ]


def ends_by_hand(text, encoding, max_length):
    begin, ends = 0, []
    for word in cleared_words(text):
        letters = set(range(begin, begin + len(word)))
        places = [place for place, span in enumerate(encoding["offset_mapping"]) if letters & set(range(*span))]
        ends += [(places[0], places[-1])] if places[-1] < max_length else []
        begin += len(word) + 1
    return ends


def logits_by_hand(module, states, ends):
    """One row of logits for each word of each text."""
    weight, bias = (tensor.detach().double().numpy() for tensor in module[1].parameters())
    return [
        [weight @ np.concatenate([of_text[first], of_text[last]]) + bias for first, last in own]
        for of_text, own in zip(states, ends, strict=True)
    ]


def loss_by_hand(name, module, family, attention, texts, numbers, max_length=10**6):
    """Word by word: how surprising its change is, on average over those that have a number."""
    logits = logits_by_hand(module, *states_by_hand(name, module[0], family, attention, texts, max_length))
    losses = []
    for text, rows in zip(texts, logits, strict=True):
        for word, row in zip(original_words(text), rows, strict=False):
            if change(word) in numbers:
                losses.append(logsumexp(row) - row[numbers.index(change(word))])
    return np.mean(losses)


def close(found, expected):
    return torch.testing.assert_close(found, expected, rtol=1e-3, atol=2e-5 * float(expected.abs().max()))


# --- the loss -------------------------------------------------------------------------------------------------------


def test_the_texts_are_what_they_were_meant_to_be():
    learned, _ = learned_and_apart(TEXTS)
    numbers = changes_by_number(learned)
    assert set(numbers) == {(False, ""), (True, ""), (False, "."), (False, ","), (False, "?")}
    assert len({word for text in learned for word in original_words(text) if change(word) not in numbers}) > 6
    assert all(len(original_words(text)) == len(cleared_words(text)) for text in TEXTS)


@pytest.mark.parametrize(("name", "family", "attention"), CASES, ids=map("-".join, CASES))
def test_the_loss_is_the_mean_cross_entropy_of_labelled_words_told_from_their_first_and_last_tokens(
    name, family, attention, prepared, monkeypatch
):
    monkeypatch.setattr("decoder2vec.training.batch_encoder.batch_overhead", lambda *_: 10**6)  # all in one padded batch
    module, task, _ = prepared(name, family, attention)
    learned, _ = learned_and_apart(TEXTS)
    numbers, rows = changes_by_number(learned), np.arange(4)
    texts, shapes = [learned[row] for row in rows], []
    assert len({len(text.split()) for text in texts}) == 4
    assert module[1].weight.shape == (len(numbers), 64)
    module[1].register_forward_pre_hook(lambda _, given: shapes.append(given[0].shape))
    with torch.no_grad(), task.step_context():
        found = task.loss(rows).item()
    assert shapes == [(sum(len(cleared_words(text)) for text in texts), 64)]
    assert found == pytest.approx(loss_by_hand(name, module, family, attention, texts, numbers), rel=1e-5)


def test_words_beyond_a_cut_are_not_in_the_loss(prepared):
    module, task, _ = prepared(read=ReadSettings(max_length=50))
    learned, _ = learned_and_apart(TEXTS)
    with torch.no_grad(), task.step_context():
        found = task.loss(np.arange(10)).item()
    expected = loss_by_hand("lora", module, "tiny-llama", "causal", learned, changes_by_number(learned), max_length=50)
    assert found == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("chunk", [0, 300])
def test_the_score_is_the_loss_of_the_texts_set_aside_by_the_labels_of_the_others(chunk, prepared):
    module, task, _ = prepared(chunk=chunk)
    learned, apart = learned_and_apart(TEXTS)
    expected = loss_by_hand("lora", module, "tiny-llama", "causal", apart, changes_by_number(learned))
    assert task.score() == task.score() == pytest.approx(-expected, rel=1e-5)


# --- gradients ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "family", "attention"), CASES, ids=map("-".join, CASES))
def test_gradients_reach_all_that_is_trained_and_nothing_else(name, family, attention, prepared):
    module, task, model = prepared(name, family, attention)
    loss, gradients = gradients_of(module, task, np.arange(4))
    assert np.isfinite(loss)
    assert all(parameter.requires_grad for parameter in module.parameters())
    assert {key for key in gradients if key.startswith("1.")} == {"1.weight", "1.bias"}, "the layer that tells"
    still = [key for key, gradient in gradients.items() if gradient is None or not gradient.any()]
    assert still == []
    assert not any(tensor.requires_grad or tensor.grad is not None for tensor in model.model.parameters())


@pytest.mark.parametrize(
    ("name", "attention"), [("lora", "bidirectional"), ("kv_prefix", "causal"), ("full", "bidirectional")]
)
def test_a_batch_in_parts_has_the_loss_and_gradients_of_the_whole(name, attention, prepared, monkeypatch):
    calls = []
    monkeypatch.setattr(parts, "checkpoint", lambda *args, **more: calls.append(1) or computed_twice(*args, **more))
    found, expected = (
        gradients_of(*prepared(name, attention=attention, chunk=chunk)[:2], np.arange(4)) for chunk in (250, 0)
    )
    assert len(calls) > 2, "the batch was meant to be cut"
    assert found[0] == pytest.approx(expected[0], rel=1e-5)
    assert found[1].keys() == expected[1].keys()
    for name, gradient in expected[1].items():
        close(found[1][name], gradient)


def test_parts_of_several_processes_add_up_also_where_one_has_nothing_to_read(prepared, monkeypatch):
    """Three texts for four processes: the gradients of all together are those of one."""
    module, task, _ = prepared()
    whole, expected = gradients_of(module, task, np.arange(3))
    expected = {name: gradient.clone() for name, gradient in expected.items()}
    monkeypatch.setattr(processes, "count", lambda: 4)
    monkeypatch.setattr(processes, "gather", lambda own, length: own)  # the others' are not heard
    losses, sums = [], {name: torch.zeros_like(gradient) for name, gradient in expected.items()}
    for rank in range(4):
        monkeypatch.setattr(processes, "rank", lambda rank=rank: rank)
        loss, gradients = gradients_of(module, task, np.arange(3))
        losses.append(loss)
        for name, gradient in gradients.items():
            sums[name] += gradient
    assert losses[3] == 0 and sum(losses) == pytest.approx(whole, rel=1e-5)
    for name, gradient in expected.items():
        close(sums[name], gradient)


RARE = " ".join(f"{word}{''.join(marks)}" for word, marks in zip(NOUNS * 6, product(",.!?", repeat=4), strict=False))
"""No two of its words need the same."""


@pytest.mark.parametrize("chunk", [0, 100], ids=["whole", "in parts"])
def test_a_batch_without_a_labelled_word_counts_for_nothing(chunk, prepared):
    """All edits too rare, or a first word so long that the cut leaves no word whole."""
    texts = (TEXTS[0], RARE, f"{'x' * 400} {TEXTS[2]}", *TEXTS[3:])
    module, task, _ = prepared(texts=texts, chunk=chunk)
    for rows in ([0], [1], [0, 1]):
        loss, gradients = gradients_of(module, task, np.array(rows))
        assert loss == 0
        assert all(gradient is not None and not gradient.any() for gradient in gradients.values())
    alone, expected = gradients_of(module, task, np.array([2]))
    expected = {name: gradient.clone() for name, gradient in expected.items()}
    among, gradients = gradients_of(module, task, np.array([0, 1, 2]))
    assert alone == pytest.approx(among, rel=1e-5) and alone > 0.1
    for name, gradient in gradients.items():
        close(gradient, expected[name])


# --- the report -----------------------------------------------------------------------------------------------------


@pytest.fixture
def ended(backbone, monkeypatch):
    """ended(name, family, attention, ...) -> result and module of a training that does nothing but move every number.

    So much is guessed that some of it is right.
    """

    def go(name="lora", family="tiny-llama", attention="causal", texts=TEXTS, model=None, **changes):
        seen = []

        def fit(module, *_, **__):
            seen.append(perturbed(module))
            return History(start=0.0)

        recipe = lesson_recipe(name, attention=attention, **changes)
        with monkeypatch.context() as patch:
            patch.setattr(adapting, "fit", fit)
            result = Trainer(recipe, plain_data(texts), model or backbone(family, attention)).run(0)
        return result, seen[0]

    return go


@pytest.mark.parametrize("max_length", [256, 100], ids=["whole", "cut"])
@pytest.mark.parametrize(
    ("name", "family", "attention"),
    [
        ("lora", "tiny-llama", "bidirectional"),
        ("lora", "tiny-gemma3_text", "causal"),
        ("kv_prefix", "tiny-llama", "causal"),
        ("full", "tiny-gpt2", "bidirectional"),
    ],
)
def test_the_report_scores_texts_that_were_restored_by_hand(name, family, attention, max_length, ended):
    """Of a text that was cut, words that were not read stay as they are, and count as missed."""
    result, module = ended(name, family, attention, read=ReadSettings(max_length=max_length))
    learned, apart = learned_and_apart(TEXTS)
    numbers = changes_by_number(learned)
    source, target = [cleared_words(text) for text in apart], [original_words(text) for text in apart]
    logits = logits_by_hand(module, *states_by_hand(name, module[0], family, attention, apart, max_length))
    assert all((len(rows) < len(words)) == (max_length == 100) for rows, words in zip(logits, source, strict=True))
    output = [
        [done(numbers[int(np.argmax(row))], word) for row, word in zip(rows, words, strict=False)] + words[len(rows) :]
        for rows, words in zip(logits, source, strict=True)
    ]
    found, expected = result.notes["restoration"], score(source, output, target)
    assert expected.attempts > 20 and expected.hits > 0, "there was meant to be something to score"
    for part in ("precision", "recall", "f1"):
        assert found[part] == pytest.approx(getattr(expected, part), abs=5e-5)
    assert found["problems"] == sum(
        a != b for pair in zip(source, target, strict=True) for a, b in zip(*pair, strict=True)
    )
    assert found["edits"] == len(numbers)
    rare = [word for text in learned for word in original_words(text) if change(word) not in numbers]
    assert found["words without label"] == len(rare)
    assert result.notes.get("texts cut", 0) == (12 if max_length == 100 else 0)


def test_marks_and_capitals_are_learned_and_the_encoder_still_looks_both_ways(backbone, tmp_path):
    texts = articles(48, (78,))
    before, after = (
        Trainer(
            lesson_recipe(epochs=epochs, batch=4, attention="bidirectional"),
            plain_data(texts),
            backbone("tiny-llama", "bidirectional"),
        ).run(0)
        for epochs in (0, 3)
    )
    start, found = (result.notes["restoration"] for result in (before, after))
    assert start["f1"] < 0.2 and found["f1"] > 0.5
    history = after.notes["training"]
    assert [history["start"], *history["scores"]] == sorted([history["start"], *history["scores"]])
    assert after.own_score == history["scores"][-1] > 0.4 * history["start"]
    after.encoder.save(tmp_path / "encoder")
    loaded = Encoder.load(tmp_path / "encoder", device="cpu", dtype="float32")
    assert loaded.spec.attention == loaded.backbone.attention == "bidirectional"
    assert not attention_fault(loaded.backbone.model, "bidirectional")
    assert (loaded.encode(texts[:3]) == after.encoder.encode(texts[:3])).all()
    assert not np.allclose(loaded.encode(texts[:3]), before.encoder.encode(texts[:3]), atol=1e-3)


# --- texts ----------------------------------------------------------------------------------------------------------


def test_short_sentences_are_read_together_up_to_150_words_at_a_time(prepared):
    """Nine excerpts, of which every fourth is set aside."""
    sentences = tuple(" ".join(article(number, 12)) for number in range(100))
    assert prepared(texts=sentences)[1].count == 6


def test_words_of_which_the_tokenizer_keeps_nothing_are_left_alone(backbone, prepared, ended):
    """All else is as it would be without them."""
    tokenizer = tiny_tokenizer(pad=True, bos=True)
    tokenizer.backend_tokenizer.normalizer = normalizers.Replace(" \u200b", "")
    model = replace(backbone("tiny-llama"), tokenizer=tokenizer)
    more = tuple(text.replace(" the ", " the \u200b ") for text in TEXTS)
    assert min(text.count("\u200b") for text in more) > 5
    found, expected = (
        gradients_of(*prepared(texts=texts, model=model)[:2], np.arange(5))[0] for texts in (more, TEXTS)
    )
    assert found == pytest.approx(expected, rel=1e-5)
    found, expected = (ended(texts=texts, model=model)[0].notes["restoration"] for texts in (more, TEXTS))
    assert found == expected


@pytest.mark.filterwarnings("ignore:mkldnn_matmul")
@pytest.mark.parametrize("name", ["lora", "full"])
def test_a_model_in_half_precision_learns_too(name, own_cache):
    model = Backbone.load("tiny-llama", attention="bidirectional", device="cpu", dtype="bfloat16")
    recipe = lesson_recipe(name, attention="bidirectional", read=ReadSettings(max_length=12))
    result = Trainer(recipe, plain_data(TEXTS), model).run(0)
    assert result.own_score > result.notes["training"]["start"]


# --- runs -----------------------------------------------------------------------------------------------------------


class Killed(Exception):
    pass


def test_a_killed_run_goes_on_and_ends_as_if_it_had_not_been(backbone, tmp_path, monkeypatch):
    """Also the layer that tells, which is no part of the encoder."""
    monkeypatch.setattr(checkpoint, "_SAVE_EVERY", 0.0)

    def begin():
        recipe = lesson_recipe(batch=5, every=2, attention="bidirectional")
        return Trainer(recipe, plain_data(TEXTS), backbone("tiny-llama", "bidirectional"))

    def kill(note):
        if note.step == 3:  # in the middle between two looks
            raise Killed

    with pytest.raises(Killed):
        begin().run(0, work=tmp_path, on_progress=kill)
    steps = []
    resumed, whole = begin().run(0, work=tmp_path, on_progress=lambda note: steps.append(note.step)), begin().run(0)
    assert steps[0] == 4, "it did not begin anew"
    assert resumed.notes == whole.notes
    assert resumed.encoder.fingerprint == whole.encoder.fingerprint
    assert (resumed.encoder.encode(TEXTS[:2]) == whole.encoder.encode(TEXTS[:2])).all()


def test_seeds_that_are_trained_one_after_another_do_not_disturb_each_other(backbone):
    recipe, model = lesson_recipe(epochs=1), backbone("tiny-gpt2")
    both = Trainer(recipe, plain_data(TEXTS), model)
    first, second = both.run(0), both.run(1)
    assert first.notes != second.notes == Trainer(recipe, plain_data(TEXTS), model).run(1).notes


# --- what is refused ------------------------------------------------------------------------------------------------

PLAIN = tuple(" ".join(cleared_words(text)) for text in TEXTS)
REFUSED = {
    "a prompt": ("soft_prompt", {}, TEXTS, "use lora, kv_prefix or full"),
    "a prompt before": ("soft_prompt", {"place": "prepend", "output": "text"}, TEXTS, "use lora, kv_prefix or full"),
    "a prompt both ways": ("soft_prompt", {"attention": "bidirectional"}, TEXTS, "use lora, kv_prefix or full"),
    "a prompt that runs": ("soft_prompt", {"checkpoint_blocks": True}, TEXTS, "use lora, kv_prefix or full"),
    "a lower layer": ("lora", {"read": ReadSettings(layer=2)}, TEXTS, "from the top layer; leave the layer at -1"),
    "a template": ("lora", {"read": ReadSettings("echo")}, TEXTS, "from plain texts; leave the template at plain"),
    "neither marks nor capitals": ("lora", {}, PLAIN, "No change of a word occurs 5 times"),
    "nothing but rare ones": ("lora", {}, (RARE, *PLAIN), "No change of a word occurs 5 times"),
    "no texts": ("lora", {}, (), "punctuation learns from 4 excerpts or more"),
    "nothing but marks": ("lora", {}, ("...", "?", " ", "! !", "'"), "these texts make 0; give more text"),
}


@pytest.mark.parametrize(("name", "changes", "texts", "said"), REFUSED.values(), ids=REFUSED)
def test_what_no_change_can_be_told_from_is_refused_in_one_sentence(name, changes, texts, said, backbone):
    attention = changes.get("attention", "causal")
    with pytest.raises(InputError, match=said) as refused:
        Trainer(lesson_recipe(name, **changes), plain_data(texts), backbone("tiny-gpt2", attention)).run(0)
    assert re.fullmatch(r"[^.\n]+\.", str(refused.value))
