"""MNTP against a plain loop over the stock language model; parts, processes, and what it refuses."""

from __future__ import annotations

import os
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import numpy as np
import pytest
import torch
from decoder2vec.recipes.objective import Masking, Objective
from decoder2vec.training.lessons import parts
from scipy.special import logsumexp
from torch import distributed as dist
from torch.utils.checkpoint import checkpoint
from transformers import AutoModelForCausalLM, DynamicCache

from decoder2vec.backbone.backbone import Backbone
from decoder2vec.backbone.lm_head import LMHead
from decoder2vec.backbone.machine import quiet_transformers
from decoder2vec.backbone.tiny import tiny_folder
from decoder2vec.errors import InputError
from decoder2vec.text.template import Template
from decoder2vec.text.tokens import Tokeniser
from decoder2vec.training import adapting, processes
from decoder2vec.training.objectives.masking import Hidden, RandomMasking
from decoder2vec.training.recipes.adapter import ReadSettings
from decoder2vec.training.recipes.recipe import Trainer
from toys.texts import plain_data, sentences
from toys.training import gradients_of, module_and_task, small_recipe

CASES = [
    ("lora", "tiny-llama", "causal"),
    ("lora", "tiny-llama", "bidirectional"),
    ("lora", "tiny-gpt2", "bidirectional"),
    ("lora", "tiny-gemma2", "bidirectional"),
    ("lora", "tiny-mamba", "causal"),
    ("kv_prefix", "tiny-llama", "causal"),
    ("kv_prefix", "tiny-llama", "bidirectional"),
    ("full", "tiny-llama", "bidirectional"),
    ("full", "tiny-gpt2", "causal"),
]
SEED = 5
TEXTS = sentences()


def masking_recipe(name, *, rate=0.3, style="mask", **changes):
    return small_recipe(name, objective=Objective("mntp", masking=Masking(rate, style)), **changes)


@pytest.fixture
def prepared(backbone):
    """prepared(name, family, attention, ...) -> module, task and backbone of a training, every number moved a little.

    LoRA begins with zeros, which would hide what it does.
    """

    def make(name, family="tiny-llama", attention="causal", texts=TEXTS, **changes):
        model = backbone(family, attention)
        module, task = module_and_task(masking_recipe(name, attention=attention, **changes), plain_data(texts), model)
        numbers = torch.Generator().manual_seed(1)
        with torch.no_grad():
            for parameter in module.parameters():
                parameter += 0.1 * torch.randn(parameter.shape, generator=numbers)
        return module, task, model

    return make


def tokens_of(model, texts):
    return [prompt.ids for prompt in Tokeniser(model, Template.of("plain"), 256)(list(texts)).prompts]


def learned_and_apart(texts):
    """By hand: of a dozen texts every sixth is set aside."""
    return [text for number, text in enumerate(texts) if number % 6], list(texts[::6])


def stock_model(family, attention):
    with quiet_transformers():
        model = AutoModelForCausalLM.from_pretrained(tiny_folder(family), dtype=torch.float32).eval()
    model.config.is_causal = attention == "causal"
    return model


@torch.no_grad()
def adapted_by_hand(name, module, family, attention):
    """ids of one text -> the stock model's logits, with what is trained put in by hand."""
    model = stock_model(family, attention)
    if name == "full":
        model.base_model.load_state_dict(module.state_dict())
    if name == "lora":
        state = module.public_state()
        for key in [key for key in state if "lora_A" in key]:
            place = key.removeprefix("base_model.model.").removesuffix(".lora_A.weight")
            change = 2.0 * state[key.replace("lora_A", "lora_B")] @ state[key]  # alpha 8, rank 4
            weight = model.base_model.get_submodule(place).weight
            weight += change.T if family == "tiny-gpt2" else change

    def logits(ids):
        more = {}
        if name == "kv_prefix":
            cache = DynamicCache()
            for number, (keys, values) in enumerate(module.layers):
                cache.update(keys[None], values[None], number)
            more = {"past_key_values": cache, "position_ids": torch.arange(len(ids))[None]}
            more["attention_mask"] = torch.ones(1, 4 + len(ids), dtype=torch.long)
        with torch.no_grad():
            return model(input_ids=torch.tensor([ids]), **more).logits[0].double().numpy()

    return logits


def by_hand(logits, texts, shown, places, shift=1):
    """Token by token: how surprising each hidden one is to the state before it."""
    losses = []
    for ids, seen, hidden in zip(texts, shown, places, strict=True):
        found = logits(seen)
        losses += [logsumexp(found[place - shift]) - found[place - shift, ids[place]] for place in hidden]
    return np.mean(losses)


def changed_places(texts, shown):
    return [
        [place for place, (a, b) in enumerate(zip(*pair, strict=True)) if a != b]
        for pair in zip(texts, shown, strict=True)
    ]


# --- the loss -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "family", "attention"), CASES, ids=map("-".join, CASES))
def test_the_loss_is_the_shifted_cross_entropy_of_the_stock_language_model(name, family, attention, prepared):
    module, task, model = prepared(name, family, attention)
    texts = tokens_of(model, learned_and_apart(TEXTS)[0])[:8]
    assert len({len(ids) for ids in texts}) > 3, "they were meant to be padded"
    torch.manual_seed(SEED)
    shown = [one.ids for one in RandomMasking(Masking(0.3), model)(texts)]
    places = changed_places(texts, shown)
    logits = adapted_by_hand(name, module, family, attention)
    torch.manual_seed(SEED)
    with torch.no_grad(), task.step_context():
        found = task.loss(np.arange(8)).item()
    assert found == pytest.approx(by_hand(logits, texts, shown, places), rel=1e-5)
    assert abs(found - by_hand(logits, texts, shown, places, shift=0)) > 0.01, "and not of the masked place itself"


def test_as_bert_tokens_that_stayed_are_told_too(prepared):
    module, task, model = prepared("lora", style="bert")
    texts = tokens_of(model, learned_and_apart(TEXTS)[0])
    torch.manual_seed(SEED)
    hidden = RandomMasking(Masking(0.3, "bert"), model)(texts)
    shown, places = [one.ids for one in hidden], [one.places for one in hidden]
    assert changed_places(texts, shown) != places
    torch.manual_seed(SEED)
    with torch.no_grad(), task.step_context():
        found = task.loss(np.arange(10)).item()
    logits = adapted_by_hand("lora", module, "tiny-llama", "causal")
    assert found == pytest.approx(by_hand(logits, texts, shown, places), rel=1e-5)


def test_only_states_before_hidden_tokens_are_told_from_and_texts_share_a_padded_batch(prepared, monkeypatch):
    rows, shapes, told = 8, [], []
    plain = LMHead.__call__
    monkeypatch.setattr(LMHead, "__call__", lambda head, states: told.append(len(states)) or plain(head, states))
    monkeypatch.setattr("decoder2vec.training.batch_encoder.batch_overhead", lambda *_: 10**6)
    module, task, model = prepared("lora")
    texts = tokens_of(model, learned_and_apart(TEXTS)[0])[:rows]
    torch.manual_seed(SEED)
    count = sum(len(one.places) for one in RandomMasking(Masking(0.3), model)(texts))
    handle = model.model.register_forward_pre_hook(
        lambda *given: shapes.append(tuple(given[2]["input_ids"].shape)), with_kwargs=True
    )
    gradients_of(module, task, np.arange(rows), seed=SEED)
    handle.remove()
    assert shapes == [(rows, max(map(len, texts)))]
    assert told == [count] and count < 0.6 * sum(map(len, texts))


@pytest.mark.parametrize("family", ["tiny-gpt2", "tiny-llama"])
def test_the_gradients_of_all_weights_are_those_of_the_stock_language_model(family, prepared):
    """GPT-2's embeddings are also its head, and learn as both; Llama's head is its own and does not."""
    module, task, model = prepared("full", family)
    texts = tokens_of(model, learned_and_apart(TEXTS)[0])[:4]
    torch.manual_seed(SEED)
    hidden = RandomMasking(Masking(0.3), model)(texts)
    stock = stock_model(family, "causal")
    stock.base_model.load_state_dict(module.state_dict())
    for ids, one in zip(texts, hidden, strict=True):
        labels = [token if place in one.places else -100 for place, token in enumerate(ids)]
        output = stock(input_ids=torch.tensor([one.ids]), labels=torch.tensor([labels]))
        (output.loss * len(one.places)).backward()
    count = sum(len(one.places) for one in hidden)
    torch.manual_seed(SEED)
    with task.step_context():
        task.loss(np.arange(4)).backward()
    for name, parameter in stock.base_model.named_parameters():
        torch.testing.assert_close(module.get_parameter(name).grad, parameter.grad / count, rtol=1e-3, atol=1e-5)


def test_seeds_that_are_trained_one_after_another_do_not_disturb_each_other(backbone):
    """Also where the head is a part of what is trained."""
    recipe, model = masking_recipe("full", epochs=1), backbone("tiny-gpt2")
    both = Trainer(recipe, plain_data(), model)
    both.run(0)
    assert both.run(1).notes == Trainer(recipe, plain_data(), model).run(1).notes


def test_tokens_are_chosen_anew_each_time(prepared):
    _, task, _ = prepared("lora")
    with torch.no_grad(), task.step_context():
        assert len({task.loss(np.arange(8)).item() for _ in range(3)}) == 3


# --- parts and steps ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "attention"), [("lora", "bidirectional"), ("kv_prefix", "causal"), ("full", "bidirectional")]
)
def test_a_batch_in_parts_has_the_loss_and_gradient_of_the_whole(name, attention, prepared, monkeypatch):
    calls = []
    monkeypatch.setattr(parts, "checkpoint", lambda *args, **kwargs: calls.append(1) or checkpoint(*args, **kwargs))
    found, expected = (
        gradients_of(*prepared(name, attention=attention, chunk=chunk)[:2], np.arange(10)) for chunk in (40, 0)
    )
    assert len(calls) > 2, "the batch was meant to be cut"
    assert found[0] == pytest.approx(expected[0], rel=1e-5)
    assert found[1].keys() == expected[1].keys()
    for name, gradient in expected[1].items():
        torch.testing.assert_close(found[1][name], gradient, rtol=1e-3, atol=2e-5 * float(gradient.abs().max()))


@pytest.mark.parametrize(
    ("name", "family", "attention"),
    [("lora", "tiny-llama", "causal"), ("lora", "tiny-gpt2", "bidirectional"), ("kv_prefix", "tiny-llama", "causal")],
)
def test_all_that_is_trained_moves_in_two_steps_and_nothing_else(name, family, attention, backbone):
    model = backbone(family, attention)
    weights = {key: tensor.clone() for key, tensor in model.model.state_dict().items()}
    module, task = module_and_task(masking_recipe(name, attention=attention), plain_data(), model)
    start = {key: tensor.detach().clone() for key, tensor in module.named_parameters()}
    optimizer = torch.optim.SGD(module.parameters(), 0.1)
    for _ in range(2):  # in the first, half of LoRA is multiplied by zeros
        gradients_of(module, task, np.arange(10))
        optimizer.step()
    assert [key for key, tensor in module.named_parameters() if torch.equal(tensor, start[key])] == []
    assert all(torch.equal(tensor, weights[key]) for key, tensor in model.model.state_dict().items())
    assert not any(tensor.requires_grad or tensor.grad is not None for tensor in model.model.parameters())


@pytest.mark.parametrize("name", ["lora", "full"])
def test_hidden_tokens_are_learned_to_be_told(name, backbone):
    """Of texts that were set aside, and always the same ones: the loss of other tokens each time goes up and down."""
    recipe = masking_recipe(name, rate=0.5, epochs=4, attention="bidirectional")
    found = Trainer(recipe, plain_data(sentences(20)), backbone("tiny-llama", "bidirectional")).run(0)
    history = found.notes["training"]
    assert [history["start"], *history["scores"]] == sorted([history["start"], *history["scores"]])
    assert found.own_score == history["scores"][-1] > 0.95 * history["start"]


# --- the score ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("style", ["mask", "bert"])
def test_the_score_is_the_loss_of_the_texts_set_aside_and_the_same_each_time(style, prepared):
    module, task, model = prepared("lora", style=style)
    texts = tokens_of(model, learned_and_apart(TEXTS)[1])
    hidden = RandomMasking(Masking(0.3, style), model)(texts, torch.Generator().manual_seed(0))
    torch.manual_seed(3)
    before = torch.get_rng_state()
    scores = {task.score() for _ in range(3)}
    assert torch.equal(torch.get_rng_state(), before), "training draws what it would have drawn"
    logits = adapted_by_hand("lora", module, "tiny-llama", "causal")
    expected = by_hand(logits, texts, [one.ids for one in hidden], [one.places for one in hidden])
    assert len(scores) == 1 and scores.pop() == pytest.approx(-expected, rel=1e-5)


def test_the_score_is_the_same_in_parts_and_needs_no_gradients(prepared):
    whole, parts = (prepared("lora", chunk=chunk)[1].score() for chunk in (0, 20))
    assert parts == pytest.approx(whole, rel=1e-5)


# --- what is passed over and refused --------------------------------------------------------------------------------


def test_texts_of_one_token_are_passed_over(prepared):
    """GPT-2 puts nothing before a text."""
    texts = ("The dog runs", "a", "The cat sleeps near the sea", "b", "c", "The sun shines", "The car waits", "d")
    _, task, _ = prepared("lora", "tiny-gpt2", texts=texts)
    assert task.count == 6, "every fourth is set aside"  # a, the cat, b, the sun, the car, d

    def loss(rows):
        torch.manual_seed(SEED)
        with torch.no_grad(), task.step_context():
            return task.loss(np.array(rows)).item()

    assert loss([0, 1, 2, 3, 4, 5]) == loss([1, 3, 4]) != loss([1, 3])
    assert np.isfinite(loss([0, 2])), "a batch of nothing else"


@pytest.mark.parametrize("family", ["tiny-llama", "tiny-gpt2", "tiny-mamba"])
def test_texts_of_which_nothing_is_hidden_count_for_nothing(family, prepared, monkeypatch):
    """A choice may fall on a few texts of a batch, or on none."""
    module, task, model = prepared("lora", family)
    texts = tokens_of(model, learned_and_apart(TEXTS)[0])[:8]
    hidden = [Hidden(list(ids), []) for ids in texts]
    monkeypatch.setattr(RandomMasking, "__call__", lambda *_: hidden)
    loss, gradients = gradients_of(module, task, np.arange(8))
    assert loss == 0 and not any(gradient.any() for gradient in gradients.values())
    for row in (2, 5):
        hidden[row] = Hidden([*texts[row][:3], 95, *texts[row][4:]], [3])
    loss, gradients = gradients_of(module, task, np.arange(8))
    logits = adapted_by_hand("lora", module, family, "causal")
    expected = by_hand(logits, texts, [one.ids for one in hidden], [one.places for one in hidden])
    assert loss == pytest.approx(expected, rel=1e-5)
    assert all(gradient.any() for gradient in gradients.values())


REFUSED = {
    "nothing but single tokens": ("lora", {}, ("a", "b", "c", "d", "e"), "No text has two tokens"),
    "single tokens set aside": (
        "lora",
        {},
        ("a", "The dog", "b", "The cat"),
        "texts that were set aside: No text has two tokens",
    ),
    "no texts": ("lora", {}, (), "mntp learns from plain texts, 4 or more; there are 0"),
    "white space": ("lora", {}, (" ", "\n", "", "The dog", "The cat"), "there are 2"),
    "a lower layer": ("lora", {"read": ReadSettings(layer=2)}, TEXTS, "from the top layer; leave the layer at -1"),
    "the text said twice": (
        "lora",
        {"read": ReadSettings("echo")},
        TEXTS,
        "hidden in plain texts; leave the template at plain",
    ),
    "a prompt": ("soft_prompt", {}, TEXTS, "mntp is told from the tokens of a text, not of a prompt"),
    "a prompt before": (
        "soft_prompt",
        {"place": "prepend", "output": "text"},
        TEXTS,
        "mntp is told from the tokens of a text, not of a prompt",
    ),
    "a prompt that runs": (
        "soft_prompt",
        {"checkpoint_blocks": True},
        TEXTS,
        "mntp is told from the tokens of a text, not of a prompt",
    ),
}


@pytest.mark.parametrize(("name", "changes", "texts", "said"), REFUSED.values(), ids=REFUSED)
def test_what_no_token_can_be_told_from_is_refused(name, changes, texts, said, backbone):
    with pytest.raises(InputError, match=said):
        Trainer(masking_recipe(name, **changes), plain_data(texts), backbone("tiny-gpt2")).run(0)


# --- several processes ----------------------------------------------------------------------------------------------


def three_steps():
    """Train on 18 texts in batches of 7, as one of two processes or alone; the history, and the last state."""
    seen = {}
    plain = adapting.fit

    def fit(module, *args, **options):
        seen["module"] = module
        return plain(module, *args, **options)

    def look(_):
        seen["state"] = {name: tensor.detach().clone() for name, tensor in seen["module"].named_parameters()}

    recipe = masking_recipe("lora", epochs=1, batch=7, every=1, attention="bidirectional")
    backbone = Backbone.load("tiny-llama", attention="bidirectional", device="cpu", dtype="float32")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(adapting, "fit", fit)
        result = Trainer(recipe, plain_data(sentences(20)), backbone).run(0, on_progress=look)
    return result.notes["training"], seen["state"]


def in_company(folder, rank):
    """Meet the other process, and make the steps together with it."""
    torch.set_num_threads(1)
    meeting = f"file://{folder}/meeting"
    dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=2, timeout=timedelta(seconds=120))
    try:
        return three_steps()
    finally:
        dist.destroy_process_group()


def test_two_processes_make_the_steps_that_one_would_make(own_cache, tmp_path):
    """This process and another."""
    known = {"PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1", "D2V_CACHE": own_cache}
    tiny_folder("tiny-llama")  # or both would make it
    other = subprocess.Popen(
        [sys.executable, __file__, str(tmp_path)], env=os.environ | known, stderr=subprocess.PIPE, text=True
    )
    try:
        expected = three_steps()  # while the other wakes up
        found = [in_company(tmp_path, 0)]
        said = other.communicate(timeout=120)[1]
    finally:
        other.kill()
    assert other.returncode == 0, said
    found.append(torch.load(tmp_path / "other.pt", weights_only=True))
    for history, state in found:
        assert len(history["losses"]) == 3
        assert history["losses"] == pytest.approx(expected[0]["losses"], rel=1e-5)
        assert history["scores"] == pytest.approx(expected[0]["scores"], rel=1e-5)
        assert state.keys() == expected[1].keys()
        for name, tensor in expected[1].items():
            torch.testing.assert_close(state[name], tensor, rtol=1e-5, atol=1e-5)


def test_parts_of_several_processes_add_up_also_where_one_has_nothing_to_read(prepared, monkeypatch):
    """Three texts for four processes: the gradients of all together are those of one."""
    module, task, _ = prepared("lora")
    whole, expected = gradients_of(module, task, np.arange(3))
    expected = {name: gradient.clone() for name, gradient in expected.items()}
    monkeypatch.setattr(processes, "count", lambda: 4)
    parts, sums = [], {name: torch.zeros_like(gradient) for name, gradient in expected.items()}
    for rank in range(4):
        monkeypatch.setattr(processes, "rank", lambda rank=rank: rank)
        monkeypatch.setattr(processes, "gather", lambda own, length: own)  # the others' are not heard
        part, gradients = gradients_of(module, task, np.arange(3))
        parts.append(part)
        for name, gradient in gradients.items():
            sums[name] += gradient
    assert parts[3] == 0 and sum(parts) == pytest.approx(whole, rel=1e-5)
    for name, gradient in expected.items():
        torch.testing.assert_close(sums[name], gradient, rtol=1e-3, atol=2e-5 * float(gradient.abs().max()))


if __name__ == "__main__":
    torch.save(in_company(sys.argv[1], 1), Path(sys.argv[1]) / "other.pt")
