"""Which tokens are masked, how often and by what: random tokens, and concepts that are masked as a whole."""

from __future__ import annotations

import json
import math
import random
import shutil
from collections import Counter
from dataclasses import replace

import pytest
import torch

from decoder2vec.backbone.backbone import Backbone
from decoder2vec.backbone.tiny import tiny_folder, tiny_tokenizer
from decoder2vec.errors import InputError, UnknownNameError
from decoder2vec.text.template import Template
from decoder2vec.text.tokens import Tokeniser
from decoder2vec.training.objectives.masking import ConceptMasking, MaskingConfig, RandomMasking, mask_token_id
from toys.concepts import CONCEPTS, OTHER_WORDS, concept_spans, concept_texts

EOS, BOS, PAD = 0, 1, 2
SPECIAL = {EOS, BOS, PAD}
RANDOM_IDS = [[3 + (7 * row + 11 * position) % 500 for position in range(51)] for row in range(200)]
"""200 texts of 51 tokens, none of them special."""


def is_plausible(count, share, total):
    """Whether a count is within four standard deviations of a binomial."""
    return abs(count - share * total) < 4 * math.sqrt(share * (1 - share) * total)


def maskable_by_hand(ids):
    """Every position but the first and those of special tokens."""
    return [position for position, token in enumerate(ids) if position and token not in SPECIAL]


# --- random tokens --------------------------------------------------------------------------------------------------


@pytest.fixture
def mask(backbone):
    """mask(texts, seed, **settings) -> masked texts."""

    def apply(texts, seed=0, **settings):
        masking = RandomMasking(MaskingConfig(**settings), backbone("tiny-qwen2"))
        return masking(texts, torch.Generator().manual_seed(seed))

    return apply


@pytest.mark.parametrize("rate", [0.15, 0.2, 0.8])
def test_rate_is_the_share_of_chosen_tokens(rate, mask):
    n_chosen = sum(len(masked.positions) for masked in mask(RANDOM_IDS, rate=rate))
    assert is_plausible(n_chosen, rate, 200 * 50), n_chosen


@pytest.mark.parametrize("style", ["mask", "bert"])
def test_all_tokens_but_the_first_are_equally_likely(style, mask):
    """The first has no token before it to be predicted from."""
    counts = torch.zeros(51)
    for masked in mask(RANDOM_IDS, rate=0.5, style=style):
        assert masked.positions == sorted(set(masked.positions))
        counts[masked.positions] += 1
    assert counts[0] == 0
    assert all(is_plausible(count, 0.5, 200) for count in counts[1:].tolist())


def test_special_tokens_are_never_chosen(mask):
    texts = [[BOS, *ids[:20], EOS, *ids[20:], EOS, PAD] for ids in RANDOM_IDS]
    masked_texts = mask(texts, rate=0.9)
    chosen = {ids[position] for ids, masked in zip(texts, masked_texts, strict=True) for position in masked.positions}
    assert not chosen & SPECIAL
    assert any(1 in masked.positions for masked in masked_texts), "the first token behind BOS is predicted from BOS"


@pytest.mark.parametrize("rate", [1e-6, 0.2])
@pytest.mark.parametrize("length", [2, 3, 51])
def test_every_text_has_at_least_one_masked_token(rate, length, mask):
    masked_texts = mask([ids[:length] for ids in RANDOM_IDS], rate=rate)
    assert all(masked.positions for masked in masked_texts)
    if rate < 0.1:
        assert all(len(masked.positions) == 1 for masked in masked_texts)
        positions = {masked.positions[0] for masked in masked_texts}
        assert len(positions) > 0.8 * (length - 1), "not always the same position"


@pytest.mark.parametrize("ids", [[], [7], [BOS], [BOS, EOS], [7, EOS, PAD]])
def test_text_without_maskable_tokens_is_unchanged(ids, mask, backbone):
    (masked,) = mask([ids])
    assert (masked.ids, masked.positions) == (ids, [])
    assert RandomMasking(MaskingConfig(), backbone("tiny-qwen2")).maskable(ids) == []


@pytest.mark.parametrize("style", ["mask", "bert"])
def test_tokens_not_chosen_and_input_lists_are_unchanged(style, mask):
    texts = [list(ids) for ids in RANDOM_IDS]
    for ids, masked in zip(texts, mask(texts, rate=0.3, style=style), strict=True):
        changed = [position for position, (a, b) in enumerate(zip(ids, masked.ids, strict=True)) if a != b]
        assert set(changed) <= set(masked.positions)
    assert texts == RANDOM_IDS


def count_replacements(masked_texts, mask_id):
    """How many chosen tokens are masked, replaced by another token, or unchanged; and their number."""
    replaced = [
        (ids[position], masked.ids[position])
        for ids, masked in zip(RANDOM_IDS, masked_texts, strict=True)
        for position in masked.positions
        if ids[position] != mask_id
    ]
    kinds = ["masked" if new == mask_id else "unchanged" if new == old else "other" for old, new in replaced]
    return [kinds.count(kind) for kind in ("masked", "other", "unchanged")], len(kinds)


def test_style_mask_masks_every_chosen_token(mask, backbone):
    counts, total = count_replacements(mask(RANDOM_IDS), mask_token_id("", backbone("tiny-qwen2").tokenizer))
    assert counts == [total, 0, 0] and total > 1000


def test_style_bert_masks_80_replaces_10_keeps_10_percent(mask, backbone):
    masked_texts = mask(RANDOM_IDS, style="bert", rate=0.5)
    counts, total = count_replacements(masked_texts, mask_token_id("", backbone("tiny-qwen2").tokenizer))
    assert all(is_plausible(count, share, total) for count, share in zip(counts, (0.8, 0.1, 0.1), strict=True)), counts
    replacements = {masked.ids[position] for masked in masked_texts for position in masked.positions}
    assert len(replacements) > 300, "any token may be the replacement"


def test_same_seed_masks_same_tokens(mask):
    settings = {"style": "bert", "rate": 0.3}
    assert mask(RANDOM_IDS, 4, **settings) == mask(RANDOM_IDS, 4, **settings) != mask(RANDOM_IDS, 5, **settings)


def test_global_random_state_is_used_only_without_generator(backbone):
    masking = RandomMasking(MaskingConfig(style="bert"), backbone("tiny-qwen2"))
    torch.manual_seed(3)
    first, state = masking(RANDOM_IDS), torch.get_rng_state()
    second = masking(RANDOM_IDS)
    torch.manual_seed(3)
    assert masking(RANDOM_IDS) == first != second
    masking(RANDOM_IDS, torch.Generator().manual_seed(9))
    assert torch.equal(torch.get_rng_state(), state)


# --- settings -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rate", [0.0, 1.0, -0.1, 1.5, math.nan])
def test_rate_must_be_between_0_and_1(rate):
    with pytest.raises(InputError, match="The share of masked tokens lies between 0 and 1, not at"):
        MaskingConfig(rate=rate)


def test_unknown_style_fails():
    with pytest.raises(UnknownNameError, match="Unknown style of masking 'roberta'"):
        MaskingConfig(style="roberta")


@pytest.fixture
def tokenizer():
    return tiny_tokenizer(pad=True, bos=False)


def test_underscore_is_the_mask_where_tokenizer_has_none(tokenizer):
    assert tokenizer.mask_token_id is None
    assert tokenizer.decode([mask_token_id("", tokenizer)]) == "_"


def test_requested_mask_comes_before_that_of_tokenizer(tokenizer):
    tokenizer.mask_token = "<pad>"
    assert mask_token_id("", tokenizer) == PAD
    assert tokenizer.decode([mask_token_id("#", tokenizer)]) == "#"
    assert mask_token_id("<eos>", tokenizer) == EOS


@pytest.mark.parametrize("requested", ["two words", "[MASK]", "🐈"])
def test_mask_of_several_tokens_fails(requested, tokenizer):
    with pytest.raises(InputError, match=r"is \d+ tokens here; name a mask token that is a single one"):
        mask_token_id(requested, tokenizer)


def test_tokens_without_embedding_are_never_used(tokenizer, backbone):
    """Some tokenizers have more tokens than their model has embeddings."""
    tokenizer.add_tokens([f"<new {index}>" for index in range(500)])
    model = replace(backbone("tiny-qwen2"), tokenizer=tokenizer)
    masking = RandomMasking(MaskingConfig(rate=0.5, style="bert"), model)
    masked_texts = masking(RANDOM_IDS, torch.Generator().manual_seed(0))
    assert max(token for masked in masked_texts for token in masked.ids) < 512
    tokenizer.mask_token = "<new 3>"
    with pytest.raises(InputError, match="does not know the mask token '<new 3>' of its tokenizer; name another"):
        RandomMasking(MaskingConfig(), model)
    assert RandomMasking(MaskingConfig(token="_"), model).mask_id < 512


# --- where concepts are ---------------------------------------------------------------------------------------------

MODELS = ["tiny-llama", "tiny-gpt2", "missing bos", "added eos"]
WITH_EOS = {
    "type": "TemplateProcessing",
    "single": [{"Sequence": {"id": "A", "type_id": 0}}, {"SpecialToken": {"id": "<eos>", "type_id": 0}}],
    "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
    "special_tokens": {"<eos>": {"id": "<eos>", "ids": [0], "tokens": ["<eos>"]}},
}


@pytest.fixture(scope="module")
def model(backbone, tmp_path_factory):
    """model(name) -> a tiny model, or one whose tokenizer does not add the BOS it should, or adds EOS."""
    special = {}

    def with_post_processor(family, processor):
        folder = tmp_path_factory.mktemp("tokenizer") / "model"
        shutil.copytree(tiny_folder(family), folder)
        file = folder / "tokenizer.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | {"post_processor": processor}))
        return Backbone.load(folder, device="cpu", dtype="float32")

    def load(name):
        if name.startswith("tiny-"):
            return backbone(name)
        if name not in special:
            family, processor = ("tiny-gemma2", None) if name == "missing bos" else ("tiny-qwen2", WITH_EOS)
            special[name] = with_post_processor(family, processor)
        return special[name]

    return load


def tokenised(backbone, texts, max_length=256):
    return Tokeniser(backbone, Template.of("plain"), max_length)(texts).prompts


def concept_masking(backbone, texts, max_length=256, **settings):
    """(masking, token ids of the texts)."""
    prompts = tokenised(backbone, texts, max_length)
    masking = ConceptMasking(MaskingConfig(**settings), backbone, CONCEPTS, texts, prompts)
    return masking, [prompt.ids for prompt in prompts]


@pytest.mark.parametrize("max_length", [256, 17, 6])
@pytest.mark.parametrize("name", MODELS)
def test_tokens_of_an_occurrence_spell_the_concept(name, max_length, model):
    """Each concept that is whole in what truncation leaves of a text, and nothing else."""
    backbone, texts = model(name), concept_texts(1, 120)
    prompts = tokenised(backbone, texts, max_length)
    different = {tuple(prompt.ids): text for prompt, text in zip(prompts, texts, strict=True)}
    texts = list(different.values())  # those that still differ when truncated
    masking, tokens = concept_masking(backbone, texts, max_length)
    decode = backbone.tokenizer.decode
    n_truncated = 0
    for text, ids in zip(texts, tokens, strict=True):
        assert len(ids) <= max_length
        kept = decode([token for token in ids if token not in SPECIAL])
        assert text.startswith(kept)
        n_truncated += kept != text
        first = 0 if ids[0] in SPECIAL else 1  # without BOS the first token cannot be predicted
        expected = [text[start:end] for start, end in concept_spans(text) if first <= start and end <= len(kept)]
        occurrences = masking.occurrences[tuple(ids)]
        assert [decode([ids[position] for position in positions]).strip() for positions in occurrences] == expected
        assert all(positions == list(range(positions[0], positions[-1] + 1)) for positions in occurrences)
    assert (n_truncated > 30) == (max_length < 256)


def test_concept_truncated_within_a_character_is_not_whole(model):
    """The last character of 東京 takes three tokens, of which none, one, two or all are left."""
    backbone, text = model("tiny-gpt2"), "one gene of 東京 falls"
    whole = tokenised(backbone, [text])[0].ids
    counts = []
    for length in range(1, len(whole) + 1):
        prompt = replace(tokenised(backbone, [text])[0], ids=whole[:length])
        masking = ConceptMasking(MaskingConfig(), backbone, CONCEPTS, [text], [prompt])
        occurrences = masking.occurrences[tuple(prompt.ids)]
        kept = backbone.tokenizer.decode(prompt.ids)
        assert len(occurrences) == sum(concept in kept for concept in ("gene", "東京"))
        counts.append(len(occurrences))
    assert counts == sorted(counts) and set(counts) == {0, 1, 2}


def test_concepts_that_share_a_token_are_joined(model):
    """Some tokenizers have tokens that extend over the end of a word."""
    tokenizer = tiny_tokenizer(pad=True, bos=False)
    tokenizer.add_tokens(["t-t"])
    backbone = replace(model("tiny-gpt2"), tokenizer=tokenizer)
    backbone.vocabulary_size = len(tokenizer)  # only its tokens are read here
    masking, (ids,) = concept_masking(backbone, ["of heart-tau and gene"], rate=0.9)
    occurrences = masking.occurrences[tuple(ids)]
    assert [tokenizer.decode([ids[position] for position in positions]) for positions in occurrences] == [
        " heart-tau",
        " gene",
    ]
    (masked,) = masking([ids])
    assert len(masked.positions) == len(set(masked.positions))


# --- which concepts are masked --------------------------------------------------------------------------------------


def chosen_occurrences(masking, batch, masked_texts):
    """(row, positions) of the masked concepts, and the number of other masked tokens.

    Fails if a concept is masked in part, or a token that was not chosen has changed.
    """
    chosen, n_others = [], 0
    for row, (ids, masked) in enumerate(zip(batch, masked_texts, strict=True)):
        positions = set(masked.positions)
        assert masked.positions == sorted(positions) and positions <= set(maskable_by_hand(ids))
        assert all(masked.ids[position] == token for position, token in enumerate(ids) if position not in positions)
        for occurrence in masking.occurrences[tuple(ids)]:
            assert positions.issuperset(occurrence) or positions.isdisjoint(occurrence), "a concept is masked in part"
            if positions.issuperset(occurrence):
                chosen.append((row, occurrence))
                positions -= set(occurrence)
        n_others += len(positions)
    return chosen, n_others


def concept_positions_by_hand(backbone, texts, tokens):
    """By token ids of a text: the positions that belong to a concept, also to one at its start, by counting bytes."""
    by_text = {}
    for text, ids in zip(texts, tokens, strict=True):
        ends, length = [], 0
        for token in ids:
            piece = "" if token in SPECIAL else backbone.tokenizer.convert_ids_to_tokens(token)
            length += len(piece)  # one character for each byte
            ends.append(length)
        starts = [0, *ends[:-1]]
        assert ends[-1] == len(text.encode())
        spans = [(len(text[:a].encode()), len(text[:b].encode())) for a, b in concept_spans(text)]
        by_text[tuple(ids)] = {
            position
            for position, (start, end) in enumerate(zip(starts, ends, strict=True))
            if any(start < last and end > first for first, last in spans)
        }
    return by_text


@pytest.mark.parametrize("fill", ["none", "random"])
@pytest.mark.parametrize("name", MODELS)
def test_concepts_of_a_batch_fill_the_budget(name, fill, model):
    """Whole concepts up to the share of the batch, at least one, and no more that would fit; random tokens fill up."""
    backbone, texts = model(name), concept_texts(2, 200)
    rng = random.Random(3)
    cases = Counter()
    maskings = {rate: concept_masking(backbone, texts, rate=rate, fill=fill) for rate in (0.05, 0.2, 0.5)}
    tokens = maskings[0.2][1]
    concept_positions = concept_positions_by_hand(backbone, texts, tokens)
    for seed in range(300):
        rate = rng.choice(list(maskings))
        masking = maskings[rate][0]
        batch = rng.choices(tokens, k=rng.randint(1, 12))  # a text may occur twice
        masked_texts = masking(batch, torch.Generator().manual_seed(seed))
        chosen, n_others = chosen_occurrences(masking, batch, masked_texts)
        budget = math.floor(rate * sum(len(maskable_by_hand(ids)) for ids in batch))
        every = [(row, positions) for row, ids in enumerate(batch) for positions in masking.occurrences[tuple(ids)]]
        remaining = budget - sum(len(positions) for _, positions in chosen)
        assert remaining >= 0 or len(chosen) == 1, "only a single concept may exceed the budget"
        left_out = [occurrence for occurrence in every if occurrence not in chosen]
        assert all(len(positions) > remaining for _, positions in left_out), "another concept would have fitted"
        assert bool(chosen) == bool(every), "at least one concept is masked"
        if fill == "none":
            assert n_others == 0
        else:
            n_free = sum(len(set(maskable_by_hand(ids)) - concept_positions[tuple(ids)]) for ids in batch)
            assert n_others == min(max(remaining, 0 if chosen else 1), n_free)
        cases["over" if remaining < 0 else "capped" if len(chosen) < len(every) else "all"] += 1
    assert min(cases["over"], cases["capped"], cases["all"]) > 10, cases


def test_rate_is_a_share_of_the_batch_not_of_each_text(model):
    backbone = model("tiny-llama")
    texts = ["gene gene gene gene", *(f"the {word} of one and one and one" for word in OTHER_WORDS)]
    masking, tokens = concept_masking(backbone, texts, rate=0.2)
    first, *others = masking(tokens)
    assert first.positions == maskable_by_hand(tokens[0]) and not any(masked.positions for masked in others)


def test_all_concepts_are_equally_likely(model):
    """Of twenty equal ones two fit, so each is masked in a tenth of all batches."""
    backbone = model("tiny-llama")
    texts = [f"the {word} of gene and {other}" for word in OTHER_WORDS[:5] for other in OTHER_WORDS[5:9]]
    masking, tokens = concept_masking(backbone, texts)
    length = len(masking.occurrences[tuple(tokens[0])][0])
    masking.config = MaskingConfig(rate=(2 * length + 0.5) / sum(len(maskable_by_hand(ids)) for ids in tokens))
    counts, generator = Counter(), torch.Generator().manual_seed(0)
    for _ in range(600):
        rows = [row for row, masked in enumerate(masking(tokens, generator)) if masked.positions]
        assert len(rows) == 2
        counts.update(rows)
    assert len(counts) == 20
    assert all(is_plausible(count, 0.1, 600) for count in counts.values()), counts


@pytest.mark.parametrize("fill", ["none", "random"])
def test_style_bert_replaces_all_tokens_of_a_concept_alike(fill, model):
    backbone, texts = model("tiny-llama"), concept_texts(4, 300)
    masking, tokens = concept_masking(backbone, texts, rate=0.4, style="bert", fill=fill)
    masking.vocabulary = 3  # random tokens are special ones, which no text has, so that they can be recognised
    counts, generator = Counter(), torch.Generator().manual_seed(0)
    for start in range(0, 10 * len(tokens), 20):
        batch = [tokens[index % len(tokens)] for index in range(start, start + 20)]
        masked_texts = masking(batch, generator)
        for row, positions in chosen_occurrences(masking, batch, masked_texts)[0]:
            replaced = [masked_texts[row].ids[position] for position in positions]
            kinds = {
                "masked" if token == masking.mask_id else "other" if token in SPECIAL else "unchanged"
                for token in replaced
            }
            assert len(kinds) == 1, "all tokens of a concept are replaced alike"
            assert kinds != {"unchanged"} or replaced == [batch[row][position] for position in positions]
            counts[kinds.pop()] += 1
    total = counts.total()
    assert total > 1000
    for kind, share in (("masked", 0.8), ("other", 0.1), ("unchanged", 0.1)):
        assert is_plausible(counts[kind], share, total), counts


def test_style_mask_masks_all_chosen_concepts(model):
    masking, tokens = concept_masking(model("tiny-llama"), concept_texts(5, 100), style="mask", fill="random")
    for masked in masking(tokens):
        assert {masked.ids[position] for position in masked.positions} <= {masking.mask_id}


@pytest.mark.parametrize("fill", ["none", "random"])
def test_same_seed_masks_same_concepts(fill, model):
    masking, tokens = concept_masking(model("tiny-llama"), concept_texts(6, 60), style="bert", fill=fill)

    def masked_with_global_seed(seed):
        torch.manual_seed(seed)
        return masking(tokens)

    assert masked_with_global_seed(1) == masked_with_global_seed(1) != masked_with_global_seed(2)
    assert masking(tokens, torch.Generator().manual_seed(1)) == masked_with_global_seed(1)


def test_random_fill_masks_one_token_of_a_short_text(model):
    """Else there would be nothing to predict, and a mean over nothing."""
    masking, tokens = concept_masking(model("tiny-gpt2"), ["one of", "gene and gene and gene"], fill="random")
    for seed in range(20):
        (masked,) = masking(tokens[:1], torch.Generator().manual_seed(seed))
        assert len(masked.positions) == 1


def test_concept_at_the_first_token_is_never_masked_in_part(model):
    """It cannot be masked as a whole, so none of its tokens is, not even by random fill."""
    texts = ["heart attack", "heart attack of gene"]
    masking, (concept_only, longer) = concept_masking(model("tiny-gpt2"), texts, fill="random")
    assert len(concept_only) > 2 and masking.maskable(concept_only) == []
    assert set(masking.maskable(longer)) == set(maskable_by_hand(longer)) - set(maskable_by_hand(concept_only))
