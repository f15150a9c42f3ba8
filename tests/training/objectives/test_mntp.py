"""MNTP equals a plain loop over the stock language model: in chunks, over processes, and with masked concepts."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.special import logsumexp
from torch.utils.checkpoint import checkpoint

from decoder2vec.backbone.lm_head import LMHead
from decoder2vec.errors import InputError
from decoder2vec.text.concepts import ConceptSet
from decoder2vec.text.template import Template
from decoder2vec.text.tokens import Tokeniser
from decoder2vec.training import distributed
from decoder2vec.training.objectives import token_states
from decoder2vec.training.objectives.masking import ConceptMasking, MaskedText, MaskingConfig, RandomMasking
from decoder2vec.training.objectives.mntp import MNTPConfig
from decoder2vec.training.recipes.adapter import ReadSettings
from decoder2vec.training.recipes.recipe import Trainer
from toys.concepts import CONCEPTS, OTHER_WORDS, concept_texts
from toys.texts import merge_into_stock, plain_data, sentences, split_twelve, stock_model, stock_prefix
from toys.training import gradients_of, module_and_task, perturbed, small_recipe

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


def mntp_recipe(name, *, rate=0.3, style="mask", **changes):
    return small_recipe(name, objective=MNTPConfig(masking=MaskingConfig(rate, style)), **changes)


@pytest.fixture
def prepared(backbone):
    """prepared(name, family, attention, ...) -> module, task and backbone of a training, with perturbed parameters."""

    def prepare(name, family="tiny-llama", attention="causal", texts=TEXTS, **changes):
        model = backbone(family, attention)
        module, task = module_and_task(mntp_recipe(name, attention=attention, **changes), plain_data(texts), model)
        return perturbed(module), task, model

    return prepare


def token_ids(model, texts):
    return [prompt.ids for prompt in Tokeniser(model, Template.of("plain"), 256)(list(texts)).prompts]


def stock_logits(name, module, family, attention):
    """A function from the token ids of one text to the logits of the stock model with the trained adapter."""
    model = merge_into_stock(stock_model(family, causal=attention == "causal"), name, module, family)

    @torch.no_grad()
    def logits(ids):
        prefix = stock_prefix(module, 1, torch.ones(1, len(ids), dtype=torch.long)) if name == "kv_prefix" else {}
        return model(input_ids=torch.tensor([ids]), **prefix).logits[0].double().numpy()

    return logits


def loss_by_hand(logits, texts, masked_texts, shift=1):
    """Mean cross-entropy of each masked token, given the logits `shift` tokens before it."""
    losses = []
    for ids, masked in zip(texts, masked_texts, strict=True):
        rows = logits(masked.ids)
        losses += [
            logsumexp(rows[position - shift]) - rows[position - shift, ids[position]] for position in masked.positions
        ]
    assert losses
    return np.mean(losses)


def changed_positions(ids, masked_ids):
    return [position for position, (a, b) in enumerate(zip(ids, masked_ids, strict=True)) if a != b]


def step_loss(task, rows):
    with torch.no_grad(), task.step_context():
        return task.loss(np.asarray(rows)).item()


# --- loss -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "family", "attention"), CASES, ids=map("-".join, CASES))
def test_loss_is_shifted_cross_entropy_of_stock_model(name, family, attention, prepared):
    module, task, model = prepared(name, family, attention)
    texts = token_ids(model, split_twelve(TEXTS)[0])[:8]
    assert len({len(ids) for ids in texts}) > 3, "the batch should be padded"
    torch.manual_seed(SEED)
    masked = RandomMasking(MaskingConfig(0.3), model)(texts)
    masked = [MaskedText(text.ids, changed_positions(ids, text.ids)) for ids, text in zip(texts, masked, strict=True)]
    logits = stock_logits(name, module, family, attention)
    torch.manual_seed(SEED)
    loss = step_loss(task, np.arange(8))
    assert loss == pytest.approx(loss_by_hand(logits, texts, masked), rel=1e-5)
    assert abs(loss - loss_by_hand(logits, texts, masked, shift=0)) > 0.01, "not predicted at the masked position"


def test_bert_style_also_predicts_unchanged_tokens(prepared):
    module, task, model = prepared("lora", style="bert")
    texts = token_ids(model, split_twelve(TEXTS)[0])
    torch.manual_seed(SEED)
    masked = RandomMasking(MaskingConfig(0.3, "bert"), model)(texts)
    changed = [changed_positions(ids, text.ids) for ids, text in zip(texts, masked, strict=True)]
    assert changed != [text.positions for text in masked]
    torch.manual_seed(SEED)
    loss = step_loss(task, np.arange(10))
    logits = stock_logits("lora", module, "tiny-llama", "causal")
    assert loss == pytest.approx(loss_by_hand(logits, texts, masked), rel=1e-5)


def test_lm_head_sees_only_states_before_masked_tokens(prepared, monkeypatch):
    """All texts run in one padded batch."""
    n_texts, shapes, head_sizes = 8, [], []
    head_call = LMHead.__call__
    monkeypatch.setattr(
        LMHead, "__call__", lambda head, states: head_sizes.append(len(states)) or head_call(head, states)
    )
    monkeypatch.setattr("decoder2vec.training.batch_encoder.training_batch_overhead", lambda *_: 10**6)
    module, task, model = prepared("lora")
    texts = token_ids(model, split_twelve(TEXTS)[0])[:n_texts]
    torch.manual_seed(SEED)
    n_masked = sum(len(text.positions) for text in RandomMasking(MaskingConfig(0.3), model)(texts))
    handle = model.model.register_forward_pre_hook(
        lambda *call: shapes.append(tuple(call[2]["input_ids"].shape)), with_kwargs=True
    )
    gradients_of(module, task, np.arange(n_texts), seed=SEED)
    handle.remove()
    assert shapes == [(n_texts, max(map(len, texts)))]
    assert head_sizes == [n_masked] and n_masked < 0.6 * sum(map(len, texts))


@pytest.mark.parametrize("family", ["tiny-gpt2", "tiny-llama"])
def test_gradients_of_all_weights_equal_those_of_stock_model(family, prepared):
    """GPT-2's embeddings are also its LM head and get both gradients; Llama's head is separate and not trained."""
    module, task, model = prepared("full", family)
    texts = token_ids(model, split_twelve(TEXTS)[0])[:4]
    torch.manual_seed(SEED)
    masked_texts = RandomMasking(MaskingConfig(0.3), model)(texts)
    stock = merge_into_stock(stock_model(family, causal=True), "full", module, family)
    for ids, masked in zip(texts, masked_texts, strict=True):
        labels = [token if position in masked.positions else -100 for position, token in enumerate(ids)]
        output = stock(input_ids=torch.tensor([masked.ids]), labels=torch.tensor([labels]))
        (output.loss * len(masked.positions)).backward()
    n_masked = sum(len(masked.positions) for masked in masked_texts)
    torch.manual_seed(SEED)
    with task.step_context():
        task.loss(np.arange(4)).backward()
    for name, parameter in stock.base_model.named_parameters():
        torch.testing.assert_close(module.get_parameter(name).grad, parameter.grad / n_masked, rtol=1e-3, atol=1e-5)


def test_seeds_run_one_after_another_are_independent(backbone):
    """Also where the LM head is part of what is trained."""
    recipe, model = mntp_recipe("full", epochs=1), backbone("tiny-gpt2")
    trainer = Trainer(recipe, plain_data(), model)
    trainer.run(0)
    assert trainer.run(1).notes == Trainer(recipe, plain_data(), model).run(1).notes


def test_masked_tokens_change_from_step_to_step(prepared):
    _, task, _ = prepared("lora")
    assert len({step_loss(task, np.arange(8)) for _ in range(3)}) == 3


# --- chunks and steps -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "attention"), [("lora", "bidirectional"), ("kv_prefix", "causal"), ("full", "bidirectional")]
)
def test_chunked_batch_has_same_loss_and_gradients(name, attention, prepared, monkeypatch):
    calls = []
    monkeypatch.setattr(
        token_states, "checkpoint", lambda *args, **kwargs: calls.append(1) or checkpoint(*args, **kwargs)
    )
    chunked, whole = (
        gradients_of(*prepared(name, attention=attention, chunk=chunk)[:2], np.arange(10)) for chunk in (40, 0)
    )
    assert len(calls) > 2, "the batch should be split"
    assert chunked[0] == pytest.approx(whole[0], rel=1e-5)
    assert chunked[1].keys() == whole[1].keys()
    for name, gradient in whole[1].items():
        torch.testing.assert_close(chunked[1][name], gradient, rtol=1e-3, atol=2e-5 * float(gradient.abs().max()))


@pytest.mark.parametrize(
    ("name", "family", "attention"),
    [("lora", "tiny-llama", "causal"), ("lora", "tiny-gpt2", "bidirectional"), ("kv_prefix", "tiny-llama", "causal")],
)
def test_two_steps_change_every_trained_parameter_and_no_other(name, family, attention, backbone):
    model = backbone(family, attention)
    weights = {key: tensor.clone() for key, tensor in model.model.state_dict().items()}
    module, task = module_and_task(mntp_recipe(name, attention=attention), plain_data(), model)
    start = {key: tensor.detach().clone() for key, tensor in module.named_parameters()}
    optimizer = torch.optim.SGD(module.parameters(), 0.1)
    for _ in range(2):  # in the first step, half of LoRA is multiplied by zeros
        gradients_of(module, task, np.arange(10))
        optimizer.step()
    assert [key for key, tensor in module.named_parameters() if torch.equal(tensor, start[key])] == []
    assert all(torch.equal(tensor, weights[key]) for key, tensor in model.model.state_dict().items())
    assert not any(tensor.requires_grad or tensor.grad is not None for tensor in model.model.parameters())


@pytest.mark.parametrize("name", ["lora", "full"])
def test_dev_metric_rises_in_training(name, backbone):
    """On held-out texts with fixed masked tokens: the training loss, with other tokens each time, goes up and down."""
    recipe = mntp_recipe(name, rate=0.5, epochs=4, attention="bidirectional")
    result = Trainer(recipe, plain_data(sentences(20)), backbone("tiny-llama", "bidirectional")).run(0)
    history = result.notes["training"]
    assert [history["start"], *history["scores"]] == sorted([history["start"], *history["scores"]])
    assert result.dev_metric == history["scores"][-1] > 0.95 * history["start"]


# --- dev metric -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("style", ["mask", "bert"])
def test_dev_metric_is_loss_of_held_out_texts_and_fixed(style, prepared):
    module, task, model = prepared("lora", style=style)
    texts = token_ids(model, split_twelve(TEXTS)[1])
    masked = RandomMasking(MaskingConfig(0.3, style), model)(texts, torch.Generator().manual_seed(0))
    torch.manual_seed(3)
    before = torch.get_rng_state()
    scores = {task.dev_metric() for _ in range(3)}
    assert torch.equal(torch.get_rng_state(), before), "evaluation uses none of the random numbers of training"
    expected = loss_by_hand(stock_logits("lora", module, "tiny-llama", "causal"), texts, masked)
    assert len(scores) == 1 and scores.pop() == pytest.approx(-expected, rel=1e-5)


def test_dev_metric_is_same_in_chunks(prepared):
    whole, chunked = (prepared("lora", chunk=chunk)[1].dev_metric() for chunk in (0, 20))
    assert chunked == pytest.approx(whole, rel=1e-5)


# --- texts without a masked token -----------------------------------------------------------------------------------


def test_texts_of_one_token_are_skipped(prepared):
    """GPT-2's tokenizer adds no BOS, so nothing stands before the token."""
    texts = ("The dog runs", "a", "The cat sleeps near the sea", "b", "c", "The sun shines", "The car waits", "d")
    _, task, _ = prepared("lora", "tiny-gpt2", texts=texts)
    assert task.n_examples == 6, "every fourth is held out"  # a, the cat, b, the sun, the car, d

    def seeded_loss(rows):
        torch.manual_seed(SEED)
        return step_loss(task, rows)

    assert seeded_loss([0, 1, 2, 3, 4, 5]) == seeded_loss([1, 3, 4]) != seeded_loss([1, 3])
    assert np.isfinite(seeded_loss([0, 2])), "a batch of nothing else"


@pytest.mark.parametrize("family", ["tiny-llama", "tiny-gpt2", "tiny-mamba"])
def test_texts_without_masked_tokens_add_nothing_to_loss(family, prepared, monkeypatch):
    """The masked tokens may all be in a few texts of a batch, or there may be none."""
    module, task, model = prepared("lora", family)
    texts = token_ids(model, split_twelve(TEXTS)[0])[:8]
    masked = [MaskedText(list(ids), []) for ids in texts]
    monkeypatch.setattr(RandomMasking, "__call__", lambda *_: masked)
    loss, gradients = gradients_of(module, task, np.arange(8))
    assert loss == 0 and not any(gradient.any() for gradient in gradients.values())
    for row in (2, 5):
        masked[row] = MaskedText([*texts[row][:3], 95, *texts[row][4:]], [3])
    loss, gradients = gradients_of(module, task, np.arange(8))
    assert loss == pytest.approx(loss_by_hand(stock_logits("lora", module, family, "causal"), texts, masked), rel=1e-5)
    assert all(gradient.any() for gradient in gradients.values())


REFUSED = {
    "only texts of one token": ("lora", {}, ("a", "b", "c", "d", "e"), "No text has two tokens"),
    "held-out texts of one token": (
        "lora",
        {},
        ("a", "The dog", "b", "The cat"),
        "Of the held-out texts: No text has two tokens",
    ),
    "no texts": ("lora", {}, (), "mntp learns from plain texts, 4 or more; there are 0"),
    "blank texts": ("lora", {}, (" ", "\n", "", "The dog", "The cat"), "there are 2"),
    "a lower layer": ("lora", {"read": ReadSettings(layer=2)}, TEXTS, "from the top layer; leave the layer at -1"),
    "a template that repeats the text": (
        "lora",
        {"read": ReadSettings("echo")},
        TEXTS,
        "from plain texts; leave the template at plain",
    ),
    "a soft prompt": ("soft_prompt", {}, TEXTS, "mntp predicts from the tokens of a text, not of a prompt"),
    "a soft prompt before the text": (
        "soft_prompt",
        {"place": "prepend", "output": "text"},
        TEXTS,
        "mntp predicts from the tokens of a text, not of a prompt",
    ),
    "a soft prompt that encodes every token": (
        "soft_prompt",
        {"checkpoint_blocks": True},
        TEXTS,
        "mntp predicts from the tokens of a text, not of a prompt",
    ),
}


@pytest.mark.parametrize(("name", "changes", "texts", "message"), REFUSED.values(), ids=REFUSED)
def test_settings_and_texts_without_anything_to_predict_fail(name, changes, texts, message, backbone):
    with pytest.raises(InputError, match=message):
        Trainer(mntp_recipe(name, **changes), plain_data(texts), backbone("tiny-gpt2")).run(0)


# --- concepts -------------------------------------------------------------------------------------------------------

CONCEPT_TEXTS = (
    *concept_texts(7, 40, max_words=8)[:21],
    "the one of a cell",
    "and the genes",
    "hearty and quickly",
)


def concept_recipe(*, epochs=2, read=None, **masking):
    read = {"read": read} if read else {}
    return small_recipe("lora", epochs=epochs, objective=MNTPConfig(masking=MaskingConfig(**masking)), **read)


@pytest.mark.parametrize("fill", ["none", "random"])
@pytest.mark.parametrize("family", ["tiny-llama", "tiny-gpt2"])
def test_loss_of_masked_concepts_equals_plain_loop(family, fill, backbone):
    model = backbone(family)
    settings = {"rate": 0.3, "style": "bert", "fill": fill}
    module, task = module_and_task(concept_recipe(**settings), plain_data(CONCEPT_TEXTS, concepts=CONCEPTS), model)
    prompts = Tokeniser(model, Template.of("plain"), 256)(list(CONCEPT_TEXTS)).prompts
    masking = ConceptMasking(MaskingConfig(**settings), model, CONCEPTS, list(CONCEPT_TEXTS), prompts)
    train, dev = (
        [prompt.ids for index, prompt in enumerate(prompts) if (index % 12 == 0) == held_out]
        for held_out in (False, True)
    )
    assert len(dev) == 2 and task.n_examples == len(train) == 22
    logits = stock_logits("lora", module, family, "causal")
    rows = np.array([3, 0, 7, 21, 4, 19])
    batch = [train[row] for row in rows if masking.maskable(train[row])]
    assert (len(batch) < 6) == (fill == "none"), "texts without a concept are skipped, unless random tokens fill up"
    torch.manual_seed(5)
    expected = loss_by_hand(logits, batch, masking(batch))
    torch.manual_seed(5)
    assert step_loss(task, rows) == pytest.approx(expected, rel=1e-5)
    scores = [task.dev_metric() for _ in range(2)]
    usable = [ids for ids in dev if masking.maskable(ids)]
    expected = loss_by_hand(logits, usable, masking(usable, torch.Generator().manual_seed(0)))
    assert -scores[0] == pytest.approx(expected, rel=1e-5)
    assert scores[0] == scores[1]


def test_batch_without_a_concept_uses_another_text(backbone):
    texts = ("the gene of one", "and the", "of a", "the gene falls", "one gene", "a cell rises")
    _, task = module_and_task(concept_recipe(), plain_data(texts, concepts=CONCEPTS), backbone("tiny-llama"))
    assert task.n_examples == 4
    losses = [step_loss(task, [row]) for row in range(task.n_examples)]
    assert np.isfinite(losses).all() and len(set(losses)) == 1, "only one text has a concept"


def test_masked_concepts_are_learned(backbone):
    data = plain_data(CONCEPT_TEXTS, concepts=CONCEPTS)
    recipe = concept_recipe(rate=0.5, epochs=4)
    history = Trainer(recipe, data, backbone("tiny-llama")).run(0).notes["training"]
    assert history["losses"][-1] < history["losses"][0] and max(history["scores"]) > history["start"]


def test_resume_key_depends_on_concepts(backbone):
    recipe, keys = concept_recipe(), set()
    for concepts in (None, CONCEPTS, ConceptSet(frozenset({"gene"})), ConceptSet(frozenset({"heart"}))):
        trainer = Trainer(recipe, plain_data(CONCEPT_TEXTS, concepts=concepts), backbone("tiny-llama"))
        keys.add(recipe._resume_key(trainer.corpus, 0))
    assert len(keys) == 4


CONCEPT_FIRST = ("gene the one", "gene of", "gene and a", "gene falls", "gene rises", "gene quickly")
WITHOUT_CONCEPTS = {
    "no concept in any text": (
        "tiny-llama",
        CONCEPT_TEXTS,
        {"zebra", "heart gene"},
        {},
        "No text has one of the concepts",
    ),
    "no concept in any text, random fill": (
        "tiny-llama",
        CONCEPT_TEXTS,
        {"zebra"},
        {"fill": "random"},
        "No text has one of the concepts",
    ),
    "only as first word": (
        "tiny-gpt2",
        CONCEPT_FIRST,
        {"gene"},
        {},
        "behind its first token: other concepts may fit these texts. Give other texts",
    ),
    "only inside other words": (
        "tiny-llama",
        ("the genes", "of genes", "a genes", "genes"),
        {"gene"},
        {},
        "No text has",
    ),
    "only in what is truncated": (
        "tiny-llama",
        tuple(f"{word} the one of the one and a gene" for word in OTHER_WORDS),
        {"gene"},
        {"read": ReadSettings(max_length=5)},
        "No text has one of the concepts",
    ),
    "only in training texts": (
        "tiny-llama",
        ("of the", "one gene", "a gene", "and the", "the gene", "hearty gene"),
        {"gene"},
        {},
        "Of the held-out texts: No text has one of the concepts .* Give more of them",
    ),
    "a template": (
        "tiny-llama",
        CONCEPT_TEXTS,
        {"gene"},
        {"read": ReadSettings(template="prompteol")},
        "leave the template at plain",
    ),
}


@pytest.mark.parametrize(
    ("family", "texts", "names", "changes", "message"), WITHOUT_CONCEPTS.values(), ids=WITHOUT_CONCEPTS
)
def test_concepts_that_no_text_contains_fail(family, texts, names, changes, message, backbone):
    data = plain_data(texts, concepts=ConceptSet(frozenset(names)))
    with pytest.raises(InputError, match=message):
        Trainer(concept_recipe(**changes), data, backbone(family)).run(0)


def test_concept_as_first_word_is_maskable_behind_bos(backbone):
    data = plain_data(CONCEPT_FIRST, concepts=ConceptSet(frozenset({"gene"})))
    assert Trainer(concept_recipe(epochs=1), data, backbone("tiny-llama")).run(0).notes["training"]["losses"]


# --- several processes ----------------------------------------------------------------------------------------------


def test_shares_of_processes_sum_to_the_whole(prepared, monkeypatch):
    """Three texts on four processes, one of which has none: the gradients sum to those of a single process."""
    module, task, _ = prepared("lora")
    whole, expected = gradients_of(module, task, np.arange(3))
    expected = {name: gradient.clone() for name, gradient in expected.items()}
    monkeypatch.setattr(distributed, "world_size", lambda: 4)
    losses, sums = [], {name: torch.zeros_like(gradient) for name, gradient in expected.items()}
    for rank in range(4):
        monkeypatch.setattr(distributed, "rank", lambda rank=rank: rank)
        monkeypatch.setattr(distributed, "gather_rows", lambda local, length: local)  # nothing from the others
        loss, gradients = gradients_of(module, task, np.arange(3))
        losses.append(loss)
        for name, gradient in gradients.items():
            sums[name] += gradient
    assert losses[3] == 0 and sum(losses) == pytest.approx(whole, rel=1e-5)
    for name, gradient in expected.items():
        torch.testing.assert_close(sums[name], gradient, rtol=1e-3, atol=2e-5 * float(gradient.abs().max()))
