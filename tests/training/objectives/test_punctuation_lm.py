"""Generating the original text behind the cleared one equals plain loops over the stock language model."""

from __future__ import annotations

from contextlib import nullcontext

import numpy as np
import pytest
import torch
from scipy.special import logsumexp
from transformers import AutoTokenizer

from decoder2vec.backbone import attention as attention_module
from decoder2vec.backbone.tiny import tiny_folder
from decoder2vec.errors import InputError, UnsupportedError
from decoder2vec.text.punctuation import score_restoration
from decoder2vec.training.loop import History
from decoder2vec.training.objectives import punctuation_lm
from decoder2vec.training.objectives.punctuation_lm import Draft, PunctuationLMConfig, RestorationExample, TextRestorer
from decoder2vec.training.recipes import recipe as recipe_module
from decoder2vec.training.recipes.adapter import ReadSettings
from decoder2vec.training.recipes.recipe import Trainer
from toys.texts import merge_into_stock, plain_data, split_twelve, stock_model
from toys.training import gradients_of, module_and_task, perturbed, small_recipe

TEXTS = tuple(
    f"{name} {verb}, and the {noun} is {adjective}{mark} Nobody knows{' why' * (index % 3)}."
    for index, (name, verb, noun, adjective, mark) in enumerate(
        (name, verb, noun, adjective, mark)
        for name, verb in (("Anna", "sleeps"), ("Ben", "runs"), ("Ida", "sings"))
        for noun, adjective in (("sea", "green"), ("house", "old"))
        for mark in ".?"
    )
)
"""Twelve texts of three lengths, of at most 12 words; any two have more, so that none are packed into one excerpt."""
MORE_TEXTS = tuple(f"{text[:-1]} {end}." for text in TEXTS for end in ("now", "here", "today", "at all"))
HELD_OUT = list(MORE_TEXTS[::20])
CASES = [("lora", "tiny-llama"), ("lora", "tiny-gpt2"), ("full", "tiny-gpt2")]


def lm_recipe(name="lora", **changes):
    settings = {"attention": "bidirectional", "read": ReadSettings(max_length=48), **changes}
    return small_recipe(name, objective=PunctuationLMConfig(), **settings)


@pytest.fixture
def prepared(backbone):
    """prepared(name, family, ...) -> module and task of a training, with perturbed parameters."""

    def prepare(name="lora", family="tiny-llama", texts=TEXTS, **changes):
        model = backbone(family, "bidirectional")
        module, task = module_and_task(lm_recipe(name, **changes), plain_data(texts), model)
        return perturbed(module), task

    return prepare


@pytest.fixture
def run(backbone):
    """run(recipe, texts, family) -> result of a training."""

    def train(recipe, texts, family="tiny-llama"):
        return Trainer(recipe, plain_data(texts), backbone(family, "bidirectional")).run(0)

    return train


@pytest.fixture
def scored_words(monkeypatch):
    """The words that the report scores, one list for each text."""
    words = []

    def record(source, output, target):
        words.extend(output)
        return score_restoration(source, output, target)

    monkeypatch.setattr(punctuation_lm, "score_restoration", record)
    return words


# --- by hand --------------------------------------------------------------------------------------------------------


def cleared(text):
    return " ".join(text.lower().translate(str.maketrans("", "", ",.!?'\"")).split())


def aligned_words(text):
    """Punctuation that stands alone belongs to the word before it, or to the next one if there is none."""
    words, waiting = [], ""
    for word in text.split():
        if cleared(word):
            words.append(f"{waiting}{word}")
            waiting = ""
        elif words:
            words[-1] += f" {word}"
        else:
            waiting += f"{word} "
    return words


class StockModel:
    """The language model of transformers with the trained adapter, and an explicit attention mask."""

    def __init__(self, name, adapter, family):
        self.model = merge_into_stock(stock_model(family, causal=False), name, adapter, family)
        self.tokenizer = AutoTokenizer.from_pretrained(tiny_folder(family))
        self.eos = self.tokenizer.eos_token_id

    def ids(self, text):
        return self.tokenizer(text, add_special_tokens=False)["input_ids"]

    def source(self, text):
        """The cleared text with special tokens as for any text, and the separator behind it."""
        return [*self.tokenizer(cleared(text))["input_ids"], self.eos]

    @torch.no_grad()
    def logits(self, source, target):
        """[tokens, vocabulary] of one text; the source is read in both directions, the target from left to right."""
        n_tokens = len(source) + len(target)
        mask = torch.zeros(1, 1, n_tokens, n_tokens)
        for token in range(n_tokens):
            mask[0, 0, token, max(len(source), token + 1) :] = torch.finfo(torch.float32).min
        return self.model(torch.tensor([[*source, *target]]), attention_mask=mask).logits[0].double().numpy()

    def loss(self, texts):
        """Mean cross-entropy of all target tokens."""
        losses = []
        for text in texts:
            source, target = self.source(text), [*(token for token in self.ids(text) if token != self.eos), self.eos]
            rows = self.logits(source, target)
            for index, token in enumerate(target):
                row = rows[len(source) - 1 + index]
                losses.append(logsumexp(row) - row[token])
        return np.mean(losses)

    def generate(self, text):
        """The likeliest tokens one by one, until the separator or 16 tokens more than the true text has."""
        source, target = self.source(text), []
        while len(target) < len(self.ids(text)) + 17:
            token = int(self.logits(source, target)[-1].argmax())
            if token == self.eos:
                break
            target.append(token)
        return self.tokenizer.decode(target, skip_special_tokens=True)


# --- loss -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "family"), CASES, ids=map("-".join, CASES))
def test_loss_is_mean_cross_entropy_of_original_tokens(name, family, prepared, monkeypatch):
    # one padded batch
    monkeypatch.setattr("decoder2vec.training.batch_encoder.training_batch_overhead", lambda *_: 10**6)
    module, task = prepared(name, family)
    train, dev = split_twelve(TEXTS)
    stock = StockModel(name, module, family)
    with torch.no_grad(), task.step_context():
        loss = task.loss(np.arange(6)).item()
    assert loss == pytest.approx(stock.loss(train[:6]), rel=1e-5)
    assert task.dev_metric() == pytest.approx(-stock.loss(dev), rel=1e-5)


@pytest.mark.parametrize("name", ["lora", "kv_prefix", "full"])
def test_chunked_batch_has_same_loss_and_gradients(name, prepared):
    chunked, whole = (gradients_of(*prepared(name, chunk=chunk), np.arange(6)) for chunk in (100, 0))
    assert chunked[0] == pytest.approx(whole[0], rel=1e-5)
    for key, gradient in whole[1].items():
        assert gradient.any(), key
        torch.testing.assert_close(chunked[1][key], gradient, rtol=1e-3, atol=2e-5 * float(gradient.abs().max()))


@pytest.mark.parametrize("setting", ["compile_blocks", "checkpoint_blocks"])
def test_block_modes_keep_the_attention_mask(setting, prepared, monkeypatch):
    compile_graphs = torch.compile  # without C++ code, which takes a minute; test_batch_encoder.py has it
    monkeypatch.setattr(torch, "compile", lambda f, **options: compile_graphs(f, **options | {"backend": "aot_eager"}))
    rows = np.arange(4)  # of three, one would be a batch of its own, which torch compiles apart
    changed, plain = (gradients_of(*prepared(**settings), rows) for settings in ({setting: True}, {}))
    assert changed[0] == pytest.approx(plain[0], rel=1e-4)
    for key, gradient in plain[1].items():
        torch.testing.assert_close(changed[1][key], gradient, rtol=1e-2, atol=1e-4 * float(gradient.abs().max()))


def test_separator_inside_a_text_is_not_generated(prepared):
    """A tokenizer reads the written name of EOS as the token itself, which would end the text."""
    texts = tuple(text.replace(",", " <eos>,") for text in TEXTS)
    module, task = prepared("full", "tiny-gpt2", texts=texts)
    stock = StockModel("full", module, "tiny-gpt2")
    assert stock.eos in stock.ids(texts[1])
    with torch.no_grad(), task.step_context():
        loss = task.loss(np.arange(4)).item()
    assert loss == pytest.approx(stock.loss(split_twelve(texts)[0][:4]), rel=1e-5)


# --- report ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "family"), CASES, ids=map("-".join, CASES))
def test_report_scores_greedy_generations(name, family, run, scored_words):
    """With all weights trained, some generations are right and some wrong; the other recipes soon go wrong."""
    result = run(lm_recipe(name, epochs=45 if name == "full" else 3, batch=5), MORE_TEXTS, family)
    stock = StockModel(name, result.model.module, family)
    generated = [aligned_words(stock.generate(text)) for text in HELD_OUT]
    assert scored_words == generated
    expected = score_restoration(
        [cleared(text).split() for text in HELD_OUT], generated, [aligned_words(text) for text in HELD_OUT]
    )
    restoration = result.notes["restoration"]
    assert restoration["problems"] == expected.problems > 0
    assert restoration["texts of another length"] == expected.mismatched
    for rate in ("precision", "recall", "f1"):
        assert restoration[rate] == pytest.approx(getattr(expected, rate), abs=5e-5)
    assert name != "full" or 0.3 < restoration["f1"] < 1, "the model should have learned something"


def test_generation_without_end_is_stopped(run, monkeypatch, scored_words):
    """Random parameters generate no separator, or only late."""
    modules = []

    def fit(module, *_, **__):
        modules.append(perturbed(module))
        return History(start=0.0)

    monkeypatch.setattr(recipe_module, "fit", fit)
    run(lm_recipe(), TEXTS)
    stock = StockModel("lora", modules[0], "tiny-llama")
    _, dev = split_twelve(TEXTS)
    assert scored_words == [aligned_words(stock.generate(text)) for text in dev]
    lengths = [(len(stock.ids(stock.generate(text))), len(stock.ids(text))) for text in dev]
    assert any(generated > truth for generated, truth in lengths), "some should be stopped"


@pytest.mark.parametrize(
    ("draft", "max_passes"),
    [([5, 6, 7, 8, 9], 1), ([5, 6, 1, 8, 9], 2), ([5, 6, 7, 2, 8, 9], 2), ([5, 7, 8, 9], 3), ([1, 1, 1], 8)],
    ids=["right", "one wrong", "one too many", "one missing", "all wrong"],
)
def test_draft_saves_passes_and_never_changes_the_result(draft, max_passes):
    """A toy model generates 5 6 7 8 9 and then the separator, 0; token 6 is punctuation."""
    text, n_passes = [5, 6, 7, 8, 9, 0], 0
    decoding = Draft(RestorationExample([3], [*draft, 0]), 20)
    while not decoding.is_finished(0):
        target = decoding.example.target
        predicted = [text[n] if n < 6 and target[:n] == text[:n] else 4 for n in range(len(target))]
        decoding.verify(predicted, lambda token: token == 6, 0)
        n_passes += 1
    assert decoding.verified_tokens(0) == [5, 6, 7, 8, 9] and n_passes <= max_passes


def test_generation_stops_after_too_many_tokens_read(run, monkeypatch, scored_words):
    """A model that rejects every draft is run once per token, which would take hours."""
    monkeypatch.setattr(punctuation_lm, "_GENERATE_TOGETHER", 2)
    whole = run(lm_recipe(epochs=0), MORE_TEXTS).notes["restoration"]
    all_words, scored_words[:] = list(scored_words), []
    assert whole["texts"] == len(all_words) == len(HELD_OUT) > 2
    monkeypatch.setattr(punctuation_lm, "_MAX_TOKENS_READ", 1)
    assert run(lm_recipe(epochs=0), MORE_TEXTS).notes["restoration"]["texts"] == 2
    assert scored_words == all_words[:2]


def test_generation_of_only_punctuation_scores_zero(run, monkeypatch):
    def punctuation_only(restorer, examples):
        return [restorer.encode("?!", add_special_tokens=False).ids] * len(examples)

    monkeypatch.setattr(TextRestorer, "generate", punctuation_only)
    restoration = run(lm_recipe(epochs=0), TEXTS).notes["restoration"]
    assert restoration["f1"] == 0 and restoration["texts of another length"] == 2


def test_texts_that_do_not_fit_are_skipped_and_counted(prepared, run):
    """Longer than max_length, or, twice, than the model's context of 256 tokens."""
    long, longer = (" ".join(f"Word{n}xyz" for n in range(size)) for size in (11, 12))
    texts = (TEXTS[0], long, longer, *TEXTS[3:])
    module, task = prepared(family="tiny-gpt2", texts=texts)
    train, _ = split_twelve(texts)
    with torch.no_grad(), task.step_context():
        loss = task.loss(np.arange(6)).item()
        assert task.loss(np.arange(2)).item() == pytest.approx(task.loss(np.array([2])).item()), "another text is used"
    assert loss == pytest.approx(StockModel("lora", module, "tiny-gpt2").loss(train[2:6]), rel=1e-5)
    assert run(lm_recipe(epochs=0), texts, "tiny-gpt2").notes["restoration"]["texts too long"] == 2
    with pytest.raises(InputError, match="No text fits twice"):
        prepared(texts=tuple(f"{text} {'x' * 400}" for text in TEXTS))


# --- what cannot be trained -----------------------------------------------------------------------------------------


def test_unfit_settings_models_and_texts_fail(prepared, monkeypatch):
    with pytest.raises(InputError, match="set attention to bidirectional"):
        prepared(attention="causal")
    message = "in both directions and .* from left to right"
    with monkeypatch.context() as patch, pytest.raises(UnsupportedError, match=message):
        patch.setattr(attention_module, "prefix_lm_attention", lambda *_: nullcontext())  # a mask without effect
        prepared()
    with pytest.raises(InputError, match="leave the template at plain"):
        prepared(read=ReadSettings(template="prompteol"))
    with pytest.raises(InputError, match="use lora, kv_prefix or full"):
        prepared("soft_prompt")
    with pytest.raises(InputError, match="No punctuation and no capital occurs"):
        prepared(texts=tuple(map(cleared, TEXTS)))


def test_bidirectional_from_layer_0_is_accepted():
    recipe = lm_recipe(attention="bidirectional:0")
    assert len(recipe._objective(plain_data(TEXTS))) > 0
