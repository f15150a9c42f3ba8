"""Unshuffling equals plain loops over the stock language model with longer embeddings."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest
import torch
from scipy.special import log_softmax, logsumexp
from torch.nn import functional

from decoder2vec.backbone.backbone import Backbone
from decoder2vec.encoder import Encoder
from decoder2vec.errors import InputError, UnsupportedError
from decoder2vec.maths.losses import remaining_choices
from decoder2vec.training.context import InputSpec, Reads
from decoder2vec.training.objectives.unshuffle import UnshuffleConfig, UnshuffleObjective
from decoder2vec.training.recipes.adapter import ReadSettings
from decoder2vec.training.recipes.recipe import Trainer
from toys.texts import merge_into_stock, plain_data, stock_model
from toys.training import attached, perturbed, small_recipe

TEXTS = tuple(
    f"{name} {verb}. The {noun} is near the old house. Nobody knows{' why' * (index % 3)}. It rains."
    for index, (name, verb, noun) in enumerate(
        (name, verb, noun)
        for name, verb in (("Anna", "sleeps"), ("Ben", "runs"), ("Ida", "sings"))
        for noun in ("sea", "dog", "boat", "road")
    )
)
"""Twelve texts of four sentences."""
CASES = [("lora", "tiny-llama"), ("lora", "tiny-gpt2"), ("full", "tiny-gpt2")]


def recipe(name="lora", max_length=128, attention="bidirectional", **settings):
    read = ReadSettings(pooling="mean", max_length=max_length)
    return small_recipe(name, batch=4, attention=attention, read=read, objective=UnshuffleConfig(**settings))


@pytest.fixture
def prepared(backbone):
    """prepared(name, family, ...) -> context, unshuffler and task of a training, with perturbed parameters."""

    def prepare(name="lora", family="tiny-llama", texts=TEXTS, **settings):
        trained = recipe(name, **settings)
        context, module, task = attached(trained, plain_data(texts), backbone(family, "bidirectional"))
        perturbed(module)
        return context, module[1], task

    return prepare


# --- by hand --------------------------------------------------------------------------------------------------------


class StockModel:
    """The language model of transformers with what was trained, and a mask that is built pair by pair."""

    def __init__(self, name, family, context, unshuffler):
        self.tokens = unshuffler.tokens
        self.model = merge_into_stock(stock_model(family, causal=False), name, context.module, family)
        outputs = self.tokens.vectors if unshuffler.outputs is None else unshuffler.outputs
        self.outputs = outputs.detach()

    def is_token(self, id, *, ends=False):
        return self.tokens.first_id <= id < self.tokens.first_id + self.tokens.count + ends

    @torch.no_grad()
    def states(self, text, end, *, ends=False):
        """[token, width] states of a text with its target, shifted by one, behind it."""
        ids = [*text.source, end, *text.target[:-1]]
        n_source = len(text.source)
        mask = torch.full((1, 1, len(ids), len(ids)), torch.finfo(torch.float32).min)
        for row, id in enumerate(ids):
            for column, other in enumerate(ids):
                restricted = self.is_token(id, ends=ends)
                if row < n_source:
                    same = column < n_source and text.sentences[row] == text.sentences[column]
                    seen = column < n_source and (same or not restricted)
                else:
                    seen = (column < n_source or column <= row) and (self.is_token(other, ends=ends) or not restricted)
                if seen:
                    mask[0, 0, row, column] = 0
        embed = self.model.get_input_embeddings()
        known = [id if id < self.tokens.first_id else 0 for id in ids]
        embeds = embed(torch.tensor([known]))
        for position, id in enumerate(ids):
            if id >= self.tokens.first_id:
                embeds[0, position] = self.tokens.vectors[id - self.tokens.first_id]
        return self.model.base_model(inputs_embeds=embeds, attention_mask=mask, use_cache=False).last_hidden_state[0]

    @torch.no_grad()
    def logits(self, states):
        """Over the vocabulary and the new tokens."""
        return torch.cat([self.model.get_output_embeddings()(states), states @ self.outputs.T], dim=1).double().numpy()


def losses_by_hand(stock, unshuffler, texts, **options):
    """(sum over labels, sum over other tokens, number of target tokens) of some texts."""
    order, words, count = 0.0, 0.0, 0
    for text in texts:
        states = stock.states(text, unshuffler.end, **options)
        rows = states[len(text.source) :]
        left = list(range(len(text.order)))
        for row, logits, token in zip(rows, stock.logits(rows), text.target, strict=True):
            count += 1
            if not stock.is_token(token):
                words += logsumexp(logits) - logits[token]
            elif unshuffler.pointer is None:
                order += logsumexp(logits) - logits[token]
            else:
                query = row / row.norm()
                keys = [states[text.order[index]] / states[text.order[index]].norm() for index in left]
                scores = [float(query @ unshuffler.pointer.weight.detach() @ key) for key in keys]
                order += logsumexp(scores) - scores[0]
                left.pop(0)
    return order, words, count


def shuffled_texts(objective_texts, unshuffler, context, seed=0):
    random = np.random.default_rng(seed)
    tokenise = context.backbone.tokenizer
    texts = [[tokenise(f"{s}.", add_special_tokens=False)["input_ids"] for s in t.split(". ")] for t in objective_texts]
    return [unshuffler.shuffling(text, random, shuffle=True) for text in texts]


# --- loss -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("head", ["pointer", "lm"])
@pytest.mark.parametrize(("name", "family"), CASES)
def test_loss_equals_loops_over_the_stock_model(name, family, head, prepared):
    context, unshuffler, _ = prepared(name, family, head=head)
    texts = shuffled_texts(TEXTS[:3], unshuffler, context)
    order, words, count = losses_by_hand(StockModel(name, family, context, unshuffler), unshuffler, texts)
    with torch.no_grad(), context.forward_context():
        loss = float(unshuffler.mean_loss(texts))
    assert loss == pytest.approx((order + words) / count, rel=1e-4)
    assert count == sum(len(text.target) for text in texts), "padding is not in the loss"


def test_end_of_a_sentence_may_see_sentence_tokens_only(prepared):
    context, unshuffler, _ = prepared(head="lm", eosen_is_sentence_token=True)
    texts = shuffled_texts(TEXTS[:3], unshuffler, context)
    stock = StockModel("lora", "tiny-llama", context, unshuffler)
    order, words, count = losses_by_hand(stock, unshuffler, texts, ends=True)
    with torch.no_grad(), context.forward_context():
        assert float(unshuffler.mean_loss(texts)) == pytest.approx((order + words) / count, rel=1e-4)
    assert sum(losses_by_hand(stock, unshuffler, texts)[:2]) != pytest.approx(order + words, rel=1e-4)


def test_generated_labels_are_plain_cross_entropy(prepared):
    """Both parts of the loss, over the same number of tokens, are what torch gives for all labels."""
    context, unshuffler, _ = prepared(head="lm")
    text = shuffled_texts(TEXTS[:1], unshuffler, context)[0]
    stock = StockModel("lora", "tiny-llama", context, unshuffler)
    logits = torch.from_numpy(stock.logits(stock.states(text, unshuffler.end)[len(text.source) :]))
    with torch.no_grad(), context.forward_context():
        expected = functional.cross_entropy(logits, torch.tensor(text.target))
        assert float(unshuffler.mean_loss([text])) == pytest.approx(float(expected), rel=1e-4)


def test_texts_of_a_batch_do_not_change_each_other(prepared):
    context, unshuffler, _ = prepared(texts=(*TEXTS[:11], "Short. One."))
    texts = shuffled_texts((*TEXTS[:2], "Short. One."), unshuffler, context)
    with torch.no_grad(), context.forward_context():
        alone = [float(unshuffler.mean_loss([text])) * len(text.target) for text in texts]
        together = float(unshuffler.mean_loss(texts)) * sum(len(text.target) for text in texts)
    assert together == pytest.approx(sum(alone), rel=1e-5)


def test_order_probability_is_that_of_all_orders():
    """Brute force over the 3! orders: their probabilities sum to 1, and the true one is the pointer's."""
    scores = torch.randn(3, 3, generator=torch.Generator().manual_seed(0))
    by_order = {}
    for order in permutations(range(3)):
        left, total = [0, 1, 2], 0.0
        for step, item in enumerate(order):
            total += float(log_softmax(scores[step, left].numpy())[left.index(item)])
            left.remove(item)
        by_order[order] = total
    assert np.exp(list(by_order.values())).sum() == pytest.approx(1)
    padded = functional.pad(scores, (0, 2, 0, 2), value=9.0)[None]
    choices = remaining_choices(padded, torch.tensor([3]))[0]
    assert float(choices.diagonal().sum()) == pytest.approx(by_order[0, 1, 2], rel=1e-5)
    assert (choices[:3, 3:] == -torch.inf).all() and (choices[3:] == 0).all()


def test_accuracy_counts_choices_by_hand(prepared):
    for head in ("pointer", "lm"):
        context, unshuffler, _ = prepared(head=head)
        texts = shuffled_texts(TEXTS[:4], unshuffler, context)
        stock = StockModel("lora", "tiny-llama", context, unshuffler)
        found = generated = 0
        for text in texts:
            states = stock.states(text, unshuffler.end)
            rows = states[len(text.source) :]
            steps = [index for index, token in enumerate(text.target) if stock.is_token(token)]
            for step, position in enumerate(steps[:-1]):
                logits = stock.logits(rows[position : position + 1])[0]
                generated += int(logits.argmax() == text.target[position])
                if head == "lm":
                    scores = [logits[text.target[other]] for other in steps[step:]]
                else:
                    keys = functional.normalize(states[text.order[step:]], dim=1)
                    query = functional.normalize(rows[position], dim=0)
                    scores = (query @ unshuffler.pointer.weight.detach() @ keys.T).tolist()
                found += int(np.argmax(scores) == 0)
        with torch.no_grad(), context.forward_context():
            report = unshuffler.order_accuracy(texts)
        assert report["texts"] == 4 and report["steps"] == 12
        assert report["accuracy"] == round(100 * found / 12, 2)
        assert report["chance"] == round(100 * (1 / 4 + 1 / 3 + 1 / 2) / 3, 2)
        assert report.get("generated") == (round(100 * generated / 12, 2) if head == "lm" else None)


# --- training -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("family", "tied"), [("tiny-llama", False), ("tiny-gemma3_text", True)])
def test_new_embeddings_start_from_the_mean(family, tied, backbone):
    model = backbone(family, "bidirectional")
    _, module, _ = attached(recipe(), plain_data(TEXTS), model)
    embed = model.model.get_input_embeddings()
    mean = embed(torch.arange(model.vocabulary_size)).mean(dim=0)
    assert len(module[1].tokens.vectors) == 20 + 1 + 100
    assert torch.allclose(module[1].tokens.vectors, mean.expand(121, -1), atol=1e-6)
    outputs = stock_model(family, causal=False).get_output_embeddings().weight
    assert torch.allclose(module[1].outputs, outputs.mean(dim=0).expand(121, -1), atol=1e-6)


@pytest.mark.parametrize("shuffle_p", [0.0, 0.5, 1.0])
def test_one_coin_is_thrown_for_each_batch(shuffle_p, prepared, monkeypatch):
    _, unshuffler, task = prepared(shuffle_p=shuffle_p)
    batches = []
    monkeypatch.setattr(
        type(unshuffler), "mean_loss", lambda _, texts: batches.append([t.order == sorted(t.order) for t in texts])
    )
    torch.manual_seed(0)
    for _ in range(40):
        task.loss(np.arange(8))
    in_order = [all(batch) for batch in batches]
    assert all(sum(batch) < 6 for batch in batches if not all(batch)), "nearly all texts of a batch are shuffled"
    assert {0.0: sum(in_order) == 40, 0.5: 10 < sum(in_order) < 30, 1.0: sum(in_order) == 0}[shuffle_p]


def test_texts_are_cut_where_a_row_ends(prepared):
    """A text fits twice into the context of the model, and its last sentence is closed again."""
    long = tuple(f"{text} {'The sea is green. ' * 60}" for text in TEXTS)
    _, unshuffler, task = prepared(texts=long, max_length=48)
    seen = []
    original = unshuffler.shuffling
    unshuffler.shuffling = lambda text, *args, **options: seen.append(text) or original(text, *args, **options)
    with task.step_context():
        task.loss(np.arange(8))
    for sentences in seen:
        assert len(sentences) <= 20
        n_tokens = sum(len(sentence) + 2 for sentence in sentences) + unshuffler.n_outer_tokens
        assert 40 < n_tokens <= 48


def make(texts=TEXTS, attention="bidirectional", **settings):
    spec = InputSpec(Reads.TOKENS, attention=attention)
    return UnshuffleObjective(UnshuffleConfig(**settings), plain_data(texts), spec)


def test_what_cannot_be_learned_is_refused():
    with pytest.raises(InputError, match=r"in both directions; set attention to bidirectional\.$"):
        make(attention="causal")
    with pytest.raises(InputError, match=r"no text has two; give longer texts\.$"):
        make(tuple(f"One sentence, number {n}" for n in range(12)))
    for settings, message in (
        ({"head": "pointr"}, "pointr"),
        ({"mask_rate": 0.6}, "at most at 0.5, not at 0.6"),
        ({"mask_rate": 0.0}, "above 0"),
        ({"span": 0.5}, "1 token or more"),
        ({"shuffle_p": 1.5}, "probability from 0 to 1"),
        ({"sentence_tokens": 1}, "2 sentence tokens or more"),
    ):
        with pytest.raises(InputError, match=message):
            UnshuffleConfig(**settings)


# --- the encoder ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=["lora", "full"])
def trained(request, own_cache, tmp_path_factory):
    """A trained encoder, and the same encoder loaded from its folder."""
    trainer = Trainer(
        recipe(request.param), plain_data(TEXTS), Backbone.load("tiny-llama", device="cpu", dtype="float32")
    )
    folder = tmp_path_factory.mktemp("unshuffle")
    encoder, has_own_weights = trainer.export(trainer.run(0), folder)
    encoder.save(folder / "encoder", copy_backbone=has_own_weights)
    return encoder, Encoder.load(folder / "encoder", device="cpu", dtype="float32")


def test_a_saved_encoder_reads_its_sentence_tokens(trained):
    encoder, loaded = trained
    assert loaded.fingerprint == encoder.fingerprint
    (vectors, spans), other = loaded.encode_sentences([TEXTS[0], TEXTS[1]])
    sentences = [TEXTS[0][begin:end] for begin, end in spans]
    assert sentences == ["Anna sleeps.", "The sea is near the old house.", "Nobody knows.", "It rains."]
    assert vectors.shape == other.vectors.shape == (4, encoder.dim)
    assert np.array_equal(vectors, encoder.encode_sentences([TEXTS[0], TEXTS[1]])[0].vectors)
    assert np.allclose(loaded.encode_sentences(TEXTS[0]).vectors, vectors, atol=1e-5)
    late = loaded.encode_sentences(TEXTS[0], sentence_tokens=False).vectors
    assert np.allclose(late, loaded.encode_chunks(TEXTS[0], spans), atol=1e-6) and not np.allclose(late, vectors)
    assert loaded.encode([TEXTS[0]]).shape == (1, encoder.dim)


@torch.no_grad()
def test_sentence_vectors_are_the_states_of_their_tokens(trained):
    """In the model itself, with a mask built by hand."""
    encoder = trained[1]
    backbone, tokens = encoder.backbone, encoder.backbone.sentence_tokens
    sentences = [
        backbone.tokenizer(text, add_special_tokens=False)["input_ids"] for text in ("Anna runs.", "It rains.")
    ]
    ids, numbers = [tokens.end_id], [1]
    for label, sentence in enumerate(sentences):
        ids += [tokens.first_id + label, *sentence, tokens.end_id]
        numbers += [label + 1] * (len(sentence) + 2)
    ids, numbers = [*ids, backbone.tokenizer.eos_token_id], [*numbers, 2]
    start = backbone.tokenizer("a")["input_ids"][0]
    if start == backbone.tokenizer.bos_token_id:
        ids, numbers = [start, *ids], [1, *numbers]
    mask = torch.zeros(1, 1, len(ids), len(ids))
    for row, id in enumerate(ids):
        for column in range(len(ids)):
            if tokens.first_id <= id < tokens.end_id and numbers[row] != numbers[column]:
                mask[0, 0, row, column] = torch.finfo(torch.float32).min
    embeds = torch.stack(
        [
            tokens.vectors[id - tokens.first_id]
            if id >= tokens.first_id
            else backbone.model.get_input_embeddings().weight[id]
            for id in ids
        ]
    )
    with backbone.adapter_enabled():
        states = backbone.model(inputs_embeds=embeds[None], attention_mask=mask, use_cache=False).last_hidden_state[0]
    positions = [position for position, id in enumerate(ids) if tokens.first_id <= id < tokens.end_id]
    vectors = encoder.encode_sentences("Anna runs. It rains.").vectors
    assert np.allclose(vectors, states[positions].numpy(), atol=1e-5)


def test_more_sentences_than_tokens_are_read_in_windows(trained):
    sentences = [f"Go {number}." for number in range(47)]
    whole, *windows = (
        trained[1].encode_sentences(" ".join(part), window=256).vectors
        for part in (sentences, sentences[:20], sentences[20:40], sentences[40:])
    )
    assert whole.shape == (47, trained[1].dim)
    assert np.allclose(whole, np.concatenate(windows), atol=1e-4)


def test_sentence_tokens_that_are_missing_are_named(trained, backbone):
    plain = Encoder(backbone("tiny-llama", "bidirectional"), trained[1].spec)
    with pytest.raises(UnsupportedError, match="no sentence tokens; train one with the objective unshuffle"):
        plain.encode_chunks("One. Two.", [(0, 4)], sentence_tokens=True)
    with pytest.raises(InputError, match="without a prompt; leave it out"):
        trained[1].encode_sentences("One. Two.", prompt="query: ")
    with pytest.raises(InputError, match="no room for a sentence"):
        trained[1].encode_sentences("One. Two.", window=4)
    with pytest.raises(InputError, match="over the model's context"):
        trained[1].encode_sentences("One. Two.", window=10**6)
    assert plain.encode_sentences("One. Two.").vectors.shape == (2, plain.dim)
