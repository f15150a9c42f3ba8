"""Concepts are hidden whole or not at all, up to a share of the batch, and stand where the text says they stand."""

from __future__ import annotations

import json
import math
import random
import re
import shutil
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch
from decoder2vec.recipes.objective import Masking, Objective
from scipy.special import logsumexp
from transformers import AutoModelForCausalLM

from decoder2vec.backbone.backbone import Backbone
from decoder2vec.backbone.machine import quiet_transformers
from decoder2vec.backbone.tiny import tiny_folder, tiny_tokenizer
from decoder2vec.errors import InputError
from decoder2vec.text.concepts import ConceptSet
from decoder2vec.text.template import Template
from decoder2vec.text.tokens import Tokeniser
from decoder2vec.training.objectives.masking import ConceptMasking
from decoder2vec.training.recipes.adapter import ReadSettings
from decoder2vec.training.recipes.recipe import Trainer
from toys.texts import plain_data
from toys.training import module_and_task, small_recipe

FIELD = ["heart attack", "heart", "naïve cell", "dose response curve", "gene", "東京", "tau"]
CONCEPTS = ConceptSet(frozenset(FIELD))
OTHERS = ["the", "of", "genes", "attack", "cell", "a", "rises", "hearty", "quickly", "and", "falls", "one"]
MODELS = ["tiny-llama", "tiny-gpt2", "forgotten bos", "adds eos"]
SPECIAL = {0, 1, 2}


def some_texts(seed, count, longest=12):
    """Texts with concepts in all manners of writing, beside words that only look like them."""
    rng = random.Random(seed)
    texts = []
    for _ in range(count):
        words = [rng.choice(FIELD if rng.random() < 0.3 else OTHERS) for _ in range(rng.randint(1, longest))]
        words = [rng.choice((str, str.upper, str.title))(word).replace(" ", rng.choice((" ", "-"))) for word in words]
        texts.append("".join(word + rng.choice((" ", " ", ", ", " (", ". ")) for word in words).strip())
    return list(dict.fromkeys(texts))


def spans_by_hand(text):
    """Where concepts stand, by one regular expression that tries the longest first."""
    longest_first = sorted(FIELD, key=lambda name: -len(name.split()))
    names = "|".join(name.replace(" ", r"[\s-]") for name in longest_first)
    return [match.span() for match in re.finditer(rf"(?<!\w)(?:{names})(?!\w)", text, re.IGNORECASE)]


@pytest.fixture(scope="module")
def model(backbone, tmp_path_factory):
    """model(name): a tiny one, or one whose tokenizer forgets BOS or adds EOS."""
    made = {}

    def odd(family, processor):
        folder = tmp_path_factory.mktemp("odd") / "model"
        shutil.copytree(tiny_folder(family), folder)
        file = folder / "tokenizer.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | {"post_processor": processor}))
        return Backbone.load(folder, device="cpu", dtype="float32")

    def load(name):
        if name.startswith("tiny-"):
            return backbone(name)
        if name not in made:
            made[name] = odd("tiny-gemma2", None) if name == "forgotten bos" else odd("tiny-qwen2", WITH_EOS)
        return made[name]

    return load


WITH_EOS = {
    "type": "TemplateProcessing",
    "single": [{"Sequence": {"id": "A", "type_id": 0}}, {"SpecialToken": {"id": "<eos>", "type_id": 0}}],
    "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
    "special_tokens": {"<eos>": {"id": "<eos>", "ids": [0], "tokens": ["<eos>"]}},
}


def prompts_of(backbone, texts, longest=256):
    return Tokeniser(backbone, Template.of("plain"), longest)(texts).prompts


def masking_of(backbone, texts, longest=256, concepts=CONCEPTS, **settings):
    prompts = prompts_of(backbone, texts, longest)
    masking = ConceptMasking(Masking(**settings), backbone, concepts, texts, prompts)
    return masking, [prompt.ids for prompt in prompts]


def hideable(ids):
    """By hand: not the first, and part of the text."""
    return [place for place, token in enumerate(ids) if place and token not in SPECIAL]


# --- where they stand -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("longest", [256, 17, 6])
@pytest.mark.parametrize("name", MODELS)
def test_the_tokens_of_a_concept_spell_it(name, longest, model):
    """Each concept that stands whole in what is left of a text, and nothing else."""
    backbone, texts = model(name), some_texts(1, 120)
    different = {
        tuple(prompt.ids): text for prompt, text in zip(prompts_of(backbone, texts, longest), texts, strict=True)
    }
    texts = list(different.values())  # after the cut
    masking, tokens = masking_of(backbone, texts, longest)
    decode = backbone.tokenizer.decode
    cut = 0
    for text, ids in zip(texts, tokens, strict=True):
        assert len(ids) <= longest
        kept = decode([token for token in ids if token not in SPECIAL])
        assert text.startswith(kept)
        cut += kept != text
        first = 0 if ids[0] in SPECIAL else 1  # without BOS the first token has none before it
        expected = [text[begin:end] for begin, end in spans_by_hand(text) if first <= begin and end <= len(kept)]
        found = masking.found[tuple(ids)]
        assert [decode([ids[place] for place in places]).strip() for places in found] == expected
        assert all(places == list(range(places[0], places[-1] + 1)) for places in found)
    assert (cut > 30) == (longest < 256)


def test_of_a_letter_that_was_cut_in_two_the_concept_is_not_taken_for_whole(model):
    """The last sign of 東京 takes three tokens, of which none, one, two or all are left."""
    backbone, text = model("tiny-gpt2"), "one gene of 東京 falls"
    whole = prompts_of(backbone, [text])[0].ids
    counts = []
    for length in range(1, len(whole) + 1):
        prompt = replace(prompts_of(backbone, [text])[0], ids=whole[:length])
        found = ConceptMasking(Masking(), backbone, CONCEPTS, [text], [prompt]).found[tuple(prompt.ids)]
        kept = backbone.tokenizer.decode(prompt.ids)
        assert len(found) == sum(one in kept for one in ("gene", "東京"))
        counts.append(len(found))
    assert counts == sorted(counts) and set(counts) == {0, 1, 2}


def test_concepts_that_share_a_token_are_hidden_together(model):
    """Some tokenizers have tokens that reach over the end of a word."""
    tokenizer = tiny_tokenizer(pad=True, bos=False)
    tokenizer.add_tokens(["t-t"])
    backbone = replace(model("tiny-gpt2"), tokenizer=tokenizer)
    masking, (ids,) = masking_of(backbone, ["of heart-tau and gene"], rate=0.9)
    found = [tokenizer.decode([ids[place] for place in places]) for places in masking.found[tuple(ids)]]
    assert found == [" heart-tau", " gene"]
    (hidden,) = masking([ids])
    assert len(hidden.places) == len(set(hidden.places))


# --- which are hidden -----------------------------------------------------------------------------------------------


def chosen_units(masking, batch, hidden):
    """(row, places) of the concepts that are hidden; one that is hidden in part, or a stray token, is an error."""
    units, stray = [], 0
    for row, (ids, one) in enumerate(zip(batch, hidden, strict=True)):
        places = set(one.places)
        assert one.places == sorted(places) and places <= set(hideable(ids))
        assert all(one.ids[place] == token for place, token in enumerate(ids) if place not in places)
        for unit in masking.found[tuple(ids)]:
            assert places.issuperset(unit) or places.isdisjoint(unit), "a concept in part"
            if places.issuperset(unit):
                units.append((row, unit))
                places -= set(unit)
        stray += len(places)
    return units, stray


def spoken_for(backbone, texts, ids_of):
    """By hand: tokens of a text that belong to a concept, also to one at its very beginning."""
    found = {}
    for text, ids in zip(texts, ids_of, strict=True):
        ends, length = [], 0
        for token in ids:
            piece = "" if token in SPECIAL else backbone.tokenizer.convert_ids_to_tokens(token)
            length += len(piece)  # one sign for each byte
            ends.append(length)
        begins = [0, *ends[:-1]]
        raw = text.encode()
        spans = [(len(text[:a].encode()), len(text[:b].encode())) for a, b in spans_by_hand(text)]
        assert ends[-1] == len(raw)
        found[tuple(ids)] = {
            place
            for place, (begin, end) in enumerate(zip(begins, ends, strict=True))
            if any(begin < last and end > first for first, last in spans)
        }
    return found


@pytest.mark.parametrize("fill", ["none", "random"])
@pytest.mark.parametrize("name", MODELS)
def test_promises_that_hold_in_every_batch(name, fill, model):
    backbone, texts = model(name), some_texts(2, 200)
    rng = random.Random(3)
    sizes = Counter()
    maskings = {rate: masking_of(backbone, texts, rate=rate, fill=fill) for rate in (0.05, 0.2, 0.5)}
    tokens = maskings[0.2][1]
    taken = spoken_for(backbone, texts, tokens)
    for number in range(300):
        rate = rng.choice(list(maskings))
        masking = maskings[rate][0]
        batch = rng.choices(tokens, k=rng.randint(1, 12))  # a text may come twice
        hidden = masking(batch, torch.Generator().manual_seed(number))
        units, stray = chosen_units(masking, batch, hidden)
        lengths = [len(unit) for _, unit in units]
        budget = math.floor(rate * sum(len(hideable(ids)) for ids in batch))
        every = [(row, unit) for row, ids in enumerate(batch) for unit in masking.found[tuple(ids)]]
        left = budget - sum(lengths)
        assert left >= 0 or len(units) == 1, "over the cap, and not by a single concept"
        assert all(len(unit) > left for row, unit in every if (row, unit) not in units), "one more would have fitted"
        assert bool(units) == bool(every), "the smallest choice is one concept"
        if fill == "none":
            assert stray == 0
        else:
            free = sum(len(set(hideable(ids)) - taken[tuple(ids)]) for ids in batch)
            assert stray == min(max(left, 0 if units else 1), free)
        sizes["over" if left < 0 else "capped" if len(units) < len(every) else "all"] += 1
    assert min(sizes["over"], sizes["capped"], sizes["all"]) > 10, sizes


def test_the_share_is_that_of_the_batch_not_of_each_text(model):
    backbone = model("tiny-llama")
    texts = ["gene gene gene gene", *(f"the {word} of one and one and one" for word in OTHERS)]
    masking, tokens = masking_of(backbone, texts, rate=0.2)
    hidden = masking(tokens)
    assert hidden[0].places == hideable(tokens[0]) and not any(one.places for one in hidden[1:])


def test_every_concept_has_the_same_chance(model):
    """Of twenty equal ones two fit, so each is hidden in a tenth of all drawings."""
    backbone = model("tiny-llama")
    texts = [f"the {word} of gene and {other}" for word in OTHERS[:5] for other in OTHERS[5:9]]
    masking, tokens = masking_of(backbone, texts)
    length = len(masking.found[tuple(tokens[0])][0])
    masking.settings = Masking(rate=(2 * length + 0.5) / sum(len(hideable(ids)) for ids in tokens))
    counts, generator = Counter(), torch.Generator().manual_seed(0)
    for _ in range(600):
        rows = [row for row, one in enumerate(masking(tokens, generator)) if one.places]
        assert len(rows) == 2
        counts.update(rows)
    assert len(counts) == 20
    assert all(abs(count - 60) < 4 * math.sqrt(600 * 0.1 * 0.9) for count in counts.values()), counts


@pytest.mark.parametrize("fill", ["none", "random"])
def test_as_bert_the_fate_of_a_concept_is_that_of_all_its_tokens(fill, model):
    backbone, texts = model("tiny-llama"), some_texts(4, 300)
    masking, tokens = masking_of(backbone, texts, rate=0.4, style="bert", fill=fill)
    masking.words = 3  # other tokens are special ones, which no text has: what was done can be seen
    fates, generator = Counter(), torch.Generator().manual_seed(0)
    for begin in range(0, 10 * len(tokens), 20):
        batch = [tokens[place % len(tokens)] for place in range(begin, begin + 20)]
        hidden = masking(batch, generator)
        for row, unit in chosen_units(masking, batch, hidden)[0]:
            shown = [hidden[row].ids[place] for place in unit]
            kinds = {
                "hidden" if token == masking.mask_id else "other" if token in SPECIAL else "kept" for token in shown
            }
            assert len(kinds) == 1, "all tokens of a concept share its fate"
            assert kinds != {"kept"} or shown == [batch[row][place] for place in unit]
            fates[kinds.pop()] += 1
    total = fates.total()
    assert total > 1000
    for kind, share in (("hidden", 0.8), ("other", 0.1), ("kept", 0.1)):
        assert abs(fates[kind] - share * total) < 4 * math.sqrt(share * (1 - share) * total), fates


def test_as_mask_all_that_is_chosen_is_hidden(model):
    masking, tokens = masking_of(model("tiny-llama"), some_texts(5, 100), style="mask", fill="random")
    for one in masking(tokens):
        assert {one.ids[place] for place in one.places} <= {masking.mask_id}


@pytest.mark.parametrize("fill", ["none", "random"])
def test_equal_seeds_hide_equal_tokens(fill, model):
    masking, tokens = masking_of(model("tiny-llama"), some_texts(6, 60), style="bert", fill=fill)

    def drawn(seed):
        torch.manual_seed(seed)
        return masking(tokens)

    assert drawn(1) == drawn(1) != drawn(2)
    assert masking(tokens, torch.Generator().manual_seed(1)) == drawn(1)


def test_where_chance_fills_up_short_texts_without_a_concept_give_one_token(model):
    """Else there would be nothing to learn from, and a mean over nothing."""
    masking, tokens = masking_of(model("tiny-gpt2"), ["one of", "gene and gene and gene"], fill="random")
    for seed in range(20):
        (hidden,) = masking(tokens[:1], torch.Generator().manual_seed(seed))
        assert len(hidden.places) == 1


def test_a_text_that_is_one_concept_from_its_first_token_on_is_passed_over(model):
    """It cannot be hidden as a whole, so no part of it is, not even by chance."""
    masking, (alone, other) = masking_of(model("tiny-gpt2"), ["heart attack", "heart attack of gene"], fill="random")
    assert len(alone) > 2 and masking.can_hide(alone) == []
    assert set(masking.can_hide(other)) == set(hideable(other)) - set(hideable(alone))


# --- what is learned ------------------------------------------------------------------------------------------------

TEXTS = (*some_texts(7, 40, longest=8)[:21], "the one of a cell", "and the genes", "hearty and quickly")


def recipe(name="lora", **masking):
    settings = {key: masking.pop(key) for key in ("read", "attention") if key in masking}
    return small_recipe(name, objective=Objective("mntp", masking=Masking(**masking)), **settings)


def by_hand(family, shown, texts):
    """The mean cross-entropy of the stock language model, token by token and text by text."""
    with quiet_transformers():
        stock = AutoModelForCausalLM.from_pretrained(tiny_folder(family), dtype=torch.float32).eval()
    losses = []
    for one, ids in zip(shown, texts, strict=True):
        with torch.no_grad():
            logits = stock(input_ids=torch.tensor([one.ids])).logits[0].double().numpy()
        losses += [logsumexp(logits[place - 1]) - logits[place - 1][ids[place]] for place in one.places]
    assert losses
    return np.mean(losses)


@pytest.mark.parametrize("fill", ["none", "random"])
@pytest.mark.parametrize("family", ["tiny-llama", "tiny-gpt2"])
def test_the_loss_is_that_of_a_plain_loop(family, fill, backbone):
    model = backbone(family)
    settings = {"rate": 0.3, "style": "bert", "fill": fill}
    _, task = module_and_task(recipe(**settings), plain_data(TEXTS, concepts=CONCEPTS), model)
    masking, tokens = masking_of(model, list(TEXTS), **settings)
    learned, apart = ([ids for number, ids in enumerate(tokens) if (number % 12 == 0) == out] for out in (False, True))
    assert len(apart) == 2 and task.count == len(learned) == 22
    rows = np.array([3, 0, 7, 21, 4, 19])
    batch = [learned[row] for row in rows if masking.can_hide(learned[row])]
    assert (len(batch) < 6) == (fill == "none"), "texts without a concept are passed over, unless chance fills up"
    torch.manual_seed(5)
    expected = by_hand(family, masking(batch), batch)
    torch.manual_seed(5)
    with torch.no_grad(), task.step_context():
        assert task.loss(rows).item() == pytest.approx(expected, rel=1e-5)
    scores = [task.score() for _ in range(2)]
    shown = [ids for ids in apart if masking.can_hide(ids)]
    assert -scores[0] == pytest.approx(
        by_hand(family, masking(shown, torch.Generator().manual_seed(0)), shown), rel=1e-5
    )
    assert scores[0] == scores[1]


def test_a_batch_without_a_concept_learns_from_another_text(backbone):
    texts = ("the gene of one", "and the", "of a", "the gene falls", "one gene", "a cell rises")
    _, task = module_and_task(recipe(), plain_data(texts, concepts=CONCEPTS), backbone("tiny-llama"))
    rows = np.arange(task.count)
    assert task.count == 4
    with torch.no_grad(), task.step_context():
        losses = [task.loss(rows[[row]]).item() for row in rows]
    assert np.isfinite(losses).all() and len(set(losses)) == 1, "the one text that has a concept"


def test_concepts_are_learned_to_be_told(backbone):
    made = recipe(rate=0.5)
    made = replace(made, training=replace(made.training, epochs=4))
    data = plain_data(TEXTS, concepts=CONCEPTS)
    history = Trainer(made, data, backbone("tiny-llama")).run(0).notes["training"]
    assert history["losses"][-1] < history["losses"][0] and max(history["scores"]) > history["start"]


def test_other_concepts_are_another_run(backbone):
    keys = {
        Trainer(recipe(), plain_data(TEXTS, concepts=concepts), backbone("tiny-llama"))._key(0)
        for concepts in (None, CONCEPTS, ConceptSet(frozenset({"gene"})), ConceptSet(frozenset({"heart"})))
    }
    assert len(keys) == 4


BEGINS = ("gene the one", "gene of", "gene and a", "gene falls", "gene rises", "gene quickly")
NOTHING = {
    "none of them": ("tiny-llama", TEXTS, {"zebra", "heart gene"}, {}, "No text has one of the concepts"),
    "none of them, chance fills up": (
        "tiny-llama",
        TEXTS,
        {"zebra"},
        {"fill": "random"},
        "No text has one of the concepts",
    ),
    "only at the beginning": (
        "tiny-gpt2",
        BEGINS,
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
    "only in what was cut off": (
        "tiny-llama",
        tuple(f"{word} the one of the one and a gene" for word in OTHERS),
        {"gene"},
        {"read": ReadSettings(max_length=5)},
        "No text has one of the concepts",
    ),
    "only in texts that are learned from": (
        "tiny-llama",
        ("of the", "one gene", "a gene", "and the", "the gene", "hearty gene"),
        {"gene"},
        {},
        "Of the texts that were set aside: No text has one of the concepts .* Give more of them",
    ),
    "a template": (
        "tiny-llama",
        TEXTS,
        {"gene"},
        {"read": ReadSettings(template="prompteol")},
        "leave the template at plain",
    ),
}


@pytest.mark.parametrize(("family", "texts", "names", "changes", "said"), NOTHING.values(), ids=NOTHING)
def test_concepts_that_select_nothing_are_refused_in_words(family, texts, names, changes, said, backbone):
    data = plain_data(texts, concepts=ConceptSet(frozenset(names)))
    with pytest.raises(InputError, match=said):
        Trainer(recipe(**changes), data, backbone(family)).run(0)


def test_at_the_beginning_behind_bos_a_concept_can_be_told(backbone):
    data = plain_data(BEGINS, concepts=ConceptSet(frozenset({"gene"})))
    made = recipe()
    made = replace(made, training=replace(made.training, epochs=1))
    assert Trainer(made, data, backbone("tiny-llama")).run(0).notes["training"]["losses"]
