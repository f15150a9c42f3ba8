"""Writing a text with its marks and capitals behind the cleared one, against plain loops over the stock model."""

from __future__ import annotations

from contextlib import nullcontext

import numpy as np
import pytest
import torch
from decoder2vec.recipes.objective import Objective
from decoder2vec.training.lessons import punctuation_lm
from scipy.special import logsumexp
from transformers import AutoModelForCausalLM, AutoTokenizer

from decoder2vec.backbone import attention as direction
from decoder2vec.backbone.machine import quiet_transformers
from decoder2vec.backbone.tiny import tiny_folder
from decoder2vec.errors import InputError, UnsupportedError
from decoder2vec.text.punctuation import score
from decoder2vec.training import adapting
from decoder2vec.training.loop import History
from decoder2vec.training.recipes.adapter import ReadSettings
from decoder2vec.training.recipes.recipe import Trainer
from toys.texts import plain_data
from toys.training import gradients_of, module_and_task, perturbed, small_recipe

TEXTS = tuple(
    f"{name} {verb}, and the {noun} is {what}{mark} Nobody knows{' why' * (number % 3)}."
    for number, (name, verb, noun, what, mark) in enumerate(
        (name, verb, noun, what, mark)
        for name, verb in (("Anna", "sleeps"), ("Ben", "runs"), ("Ida", "sings"))
        for noun, what in (("sea", "green"), ("house", "old"))
        for mark in ".?"
    )
)
"""Twelve of three lengths, of at most 12 words; two in a row have more, so that each stays alone."""
MANY = tuple(f"{text[:-1]} {how}." for text in TEXTS for how in ("now", "here", "today", "at all"))
CASES = [("lora", "tiny-llama"), ("lora", "tiny-gpt2"), ("full", "tiny-gpt2")]
BOTH = "bidirectional"


def lesson_recipe(name="lora", **changes):
    given = {"attention": BOTH, "read": ReadSettings(max_length=48), **changes}
    return small_recipe(name, objective=Objective("punctuation_lm"), **given)


@pytest.fixture
def prepared(backbone):
    """prepared(name, family, ...) -> module and task of a training, all numbers moved."""

    def make(name="lora", family="tiny-llama", texts=TEXTS, **changes):
        module, task = module_and_task(lesson_recipe(name, **changes), plain_data(texts), backbone(family, BOTH))
        return perturbed(module), task

    return make


# --- by hand --------------------------------------------------------------------------------------------------------


def learned_and_apart(texts):
    """By hand: of a dozen texts every sixth is set aside; none is long enough to be joined with another."""
    assert len(texts) == 12
    return [text for number, text in enumerate(texts) if number % 6], list(texts[::6])


def cleared(text):
    return " ".join(text.lower().translate(str.maketrans("", "", ",.!?'\"")).split())


class StockModel:
    """transformers' own language model, adapted by hand, under a mask that is written out."""

    def __init__(self, name, adapter, family):
        with quiet_transformers():
            self.model = AutoModelForCausalLM.from_pretrained(tiny_folder(family), dtype=torch.float32).eval()
        self.model.config.is_causal = False
        body = self.model.base_model
        if name == "full":
            body.load_state_dict(adapter.state_dict())
        else:
            state = adapter.public_state()
            for key in [key for key in state if "lora_A" in key]:
                place = key.removeprefix("base_model.model.").removesuffix(".lora_A.weight")
                added = 2.0 * state[key.replace("lora_A", "lora_B")] @ state[key]  # alpha 8, rank 4
                with torch.no_grad():
                    body.get_submodule(place).weight += added.T if family == "tiny-gpt2" else added
        self.tokenizer = AutoTokenizer.from_pretrained(tiny_folder(family))
        self.end = self.tokenizer.eos_token_id

    def ids(self, text):
        return self.tokenizer(text, add_special_tokens=False)["input_ids"]

    def read(self, text):
        """As the model reads any text, and a token at which writing begins."""
        return [*self.tokenizer(cleared(text))["input_ids"], self.end]

    @torch.no_grad()
    def logits(self, read, written):
        """[token, word] at every token, of a text alone."""
        tokens = len(read) + len(written)
        mask = torch.zeros(1, 1, tokens, tokens)
        for token in range(tokens):
            mask[0, 0, token, max(len(read), token + 1) :] = torch.finfo(torch.float32).min
        return self.model(torch.tensor([[*read, *written]]), attention_mask=mask).logits[0].double().numpy()

    def loss(self, texts):
        """Token by token: how surprising it is, on average over all."""
        losses = []
        for text in texts:
            read, written = self.read(text), [*(token for token in self.ids(text) if token != self.end), self.end]
            rows = self.logits(read, written)
            for place, token in enumerate(written):
                row = rows[len(read) - 1 + place]
                losses.append(logsumexp(row) - row[token])
        return np.mean(losses)

    def write(self, text):
        """One token after the other, the likeliest, up to the last or 16 more than the truth has."""
        read, written = self.read(text), []
        while len(written) < len(self.ids(text)) + 17:
            token = int(self.logits(read, written)[-1].argmax())
            if token == self.end:
                break
            written.append(token)
        return self.tokenizer.decode(written, skip_special_tokens=True)


def words_of(text):
    """A mark that stands alone belongs to the word before it, or to the next."""
    found, waiting = [], ""
    for word in text.split():
        if cleared(word):
            found.append(f"{waiting}{word}")
            waiting = ""
        elif found:
            found[-1] += f" {word}"
        else:
            waiting += f"{word} "
    return found


# --- the loss -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "family"), CASES, ids=map("-".join, CASES))
def test_the_loss_is_the_mean_cross_entropy_of_the_tokens_of_the_text_as_it_was(name, family, prepared, monkeypatch):
    monkeypatch.setattr("decoder2vec.training.batch_encoder.batch_overhead", lambda *_: 10**6)  # all in one padded batch
    module, task = prepared(name, family)
    learned, apart = learned_and_apart(TEXTS)
    stock = StockModel(name, module, family)
    with torch.no_grad(), task.step_context():
        found = task.loss(np.arange(6)).item()
    assert found == pytest.approx(stock.loss(learned[:6]), rel=1e-5)
    assert task.score() == pytest.approx(-stock.loss(apart), rel=1e-5)


@pytest.mark.parametrize("name", ["lora", "kv_prefix", "full"])
def test_a_batch_in_parts_has_the_loss_and_gradients_of_the_whole(name, prepared):
    found, expected = (gradients_of(*prepared(name, chunk=chunk), np.arange(6)) for chunk in (100, 0))
    assert found[0] == pytest.approx(expected[0], rel=1e-5)
    for key, gradient in expected[1].items():
        assert gradient.any(), key
        close = 2e-5 * float(gradient.abs().max())
        torch.testing.assert_close(found[1][key], gradient, rtol=1e-3, atol=close)


@pytest.mark.parametrize("setting", ["compile_blocks", "checkpoint_blocks"])
def test_blocks_that_are_compiled_or_run_twice_see_no_more(setting, prepared):
    found, expected = (gradients_of(*prepared(**more), np.arange(3)) for more in ({setting: True}, {}))
    assert found[0] == pytest.approx(expected[0], rel=1e-4)
    for key, gradient in expected[1].items():
        torch.testing.assert_close(found[1][key], gradient, rtol=1e-2, atol=1e-4 * float(gradient.abs().max()))


# --- the report -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "family"), CASES, ids=map("-".join, CASES))
def test_the_report_scores_what_is_written_token_by_token(name, family, backbone, told):
    """Of a model that learns all weights some of it is right and some is not; of the others it is soon wrong."""
    recipe = lesson_recipe(name, epochs=45 if name == "full" else 3, batch=5)
    result = Trainer(recipe, plain_data(MANY), backbone(family, BOTH)).run(0)
    adapter = result.encoder.backbone.model if name == "full" else result.encoder.backbone.adapter
    stock = StockModel(name, adapter, family)
    apart = list(MANY[::20])
    written = [words_of(stock.write(text)) for text in apart]
    assert told == written, "word for word"
    expected = score([cleared(text).split() for text in apart], written, [words_of(text) for text in apart])
    found = result.notes["restoration"]
    assert found["problems"] == expected.problems > 0 and found["texts of another length"] == expected.mismatched
    for part in ("precision", "recall", "f1"):
        assert found[part] == pytest.approx(getattr(expected, part), abs=5e-5)
    assert name != "full" or 0.3 < found["f1"] < 1, "the model was meant to learn something"


def test_a_model_that_never_ends_is_stopped(backbone, monkeypatch, told):
    """Numbers at random: what it writes has no end, or none in time."""
    trained = []

    def fit(module, *_, **__):
        trained.append(perturbed(module))
        return History(start=0.0)

    monkeypatch.setattr(adapting, "fit", fit)
    Trainer(lesson_recipe(), plain_data(TEXTS), backbone("tiny-llama", BOTH)).run(0)
    stock = StockModel("lora", trained[0], "tiny-llama")
    _, apart = learned_and_apart(TEXTS)
    assert told == [words_of(stock.write(text)) for text in apart]
    sizes = [(len(stock.ids(stock.write(text))), len(stock.ids(text))) for text in apart]
    assert any(written > truth for written, truth in sizes), "some were meant to be stopped"


@pytest.fixture
def told(monkeypatch):
    """The words that the report scores, one list for each text."""
    found = []

    def heard(source, output, target):
        found.extend(output)
        return score(source, output, target)

    monkeypatch.setattr(punctuation_lm, "score", heard)
    return found


@pytest.mark.parametrize(
    ("draft", "passes"),
    [([5, 6, 7, 8, 9], 1), ([5, 6, 1, 8, 9], 2), ([5, 6, 7, 2, 8, 9], 2), ([5, 7, 8, 9], 3), ([1, 1, 1], 8)],
    ids=["right", "another", "one too many", "one missing", "all wrong"],
)
def test_what_is_written_does_not_depend_on_the_draft_and_a_good_one_saves_passes(draft, passes):
    """A made-up model that writes 5 6 7 8 9 and then the end, 0; 6 is a mark."""
    text, count = [5, 6, 7, 8, 9, 0], 0
    kept = punctuation_lm._Draft(punctuation_lm._Sheet([3], [*draft, 0]), 20)
    while not kept.finished(0):
        written = kept.sheet.written
        told = [text[n] if n < 6 and written[:n] == text[:n] else 4 for n in range(len(written))]
        kept.put_right(told, lambda token: token == 6, 0)
        count += 1
    assert kept.agreed_text(0) == [5, 6, 7, 8, 9] and count <= passes


def test_no_further_texts_are_begun_where_that_takes_too_long(backbone, monkeypatch, told):
    """Seldom, but then for hours: a model that agrees with no draft is read anew for every token."""
    monkeypatch.setattr(punctuation_lm, "_TOGETHER", 2)
    run = lambda: Trainer(lesson_recipe(epochs=0), plain_data(MANY), backbone("tiny-llama", BOTH)).run(0)  # noqa: E731
    whole = run().notes["restoration"]
    everything, told[:] = list(told), []
    assert whole["texts"] == len(everything) == len(MANY[::20]) > 2
    monkeypatch.setattr(punctuation_lm, "_READ_AT_MOST", 1)
    assert run().notes["restoration"]["texts"] == 2 and told == everything[:2]


def test_nothing_but_marks_may_be_written(backbone, monkeypatch):
    marks = lambda self, sheets: [self.encode("?!", add_special_tokens=False).ids] * len(sheets)  # noqa: E731
    monkeypatch.setattr(punctuation_lm._Writing, "written", marks)
    recipe = lesson_recipe(epochs=0)
    found = Trainer(recipe, plain_data(TEXTS), backbone("tiny-llama", BOTH)).run(0).notes["restoration"]
    assert found["f1"] == 0 and found["texts of another length"] == 2


def test_texts_that_do_not_fit_are_left_out_and_counted(prepared, backbone):
    """Too long for what is read at a time, or, twice, for the model, which takes 256 tokens."""
    long, longer = (" ".join(f"Word{n}xyz" for n in range(size)) for size in (11, 12))
    texts = (TEXTS[0], long, longer, *TEXTS[3:])
    module, task = prepared(family="tiny-gpt2", texts=texts)
    learned, _ = learned_and_apart(texts)
    with torch.no_grad(), task.step_context():
        found = task.loss(np.arange(6)).item()
        assert task.loss(np.arange(2)).item() == pytest.approx(task.loss(np.array([2])).item()), "another is read"
    expected = StockModel("lora", module, "tiny-gpt2").loss(learned[2:6])
    assert found == pytest.approx(expected, rel=1e-5)
    recipe = lesson_recipe(epochs=0)
    notes = Trainer(recipe, plain_data(texts), backbone("tiny-gpt2", BOTH)).run(0).notes
    assert notes["restoration"]["texts too long"] == 2
    with pytest.raises(InputError, match="No text fits twice"):
        prepared(texts=tuple(f"{text} {'x' * 400}" for text in TEXTS))


def test_the_end_of_a_text_inside_a_text_is_not_written(prepared):
    """Where its name stands, a tokenizer sees a token that means that nothing more comes."""
    texts = tuple(text.replace(",", " <eos>,") for text in TEXTS)
    module, task = prepared("full", "tiny-gpt2", texts=texts)
    stock = StockModel("full", module, "tiny-gpt2")
    assert stock.end in stock.ids(texts[1])
    with torch.no_grad(), task.step_context():
        found = task.loss(np.arange(4)).item()
    assert found == pytest.approx(stock.loss(learned_and_apart(texts)[0][:4]), rel=1e-5)


# --- what is refused ------------------------------------------------------------------------------------------------


def test_what_cannot_be_is_refused(prepared, monkeypatch):
    with pytest.raises(InputError, match="set attention to bidirectional"):
        prepared(attention="causal")
    with monkeypatch.context() as patch, pytest.raises(UnsupportedError, match="go on from left to right"):
        patch.setattr(direction, "prefix_attention", lambda *_: nullcontext())  # a mask that does not take
        prepared()
    with pytest.raises(InputError, match="leave the template at plain"):
        prepared(read=ReadSettings(template="prompteol"))
    with pytest.raises(InputError, match="use lora, kv_prefix or full"):
        prepared("soft_prompt")
    with pytest.raises(InputError, match="No mark and no capital occurs"):
        prepared(texts=tuple(map(cleared, TEXTS)))


def test_both_directions_from_layer_0_are_both_directions():
    recipe = lesson_recipe(attention="bidirectional:0")
    assert len(punctuation_lm.PunctuationWritingLesson(recipe, plain_data(TEXTS))) > 0
