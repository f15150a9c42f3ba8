"""Pruned tokenizers against whole ones: the same tokens where all are kept, and no text is lost elsewhere."""

from __future__ import annotations

import json
import random
from itertools import pairwise

import numpy as np
import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

from decoder2vec.backbone.tiny import tiny_tokenizer
from decoder2vec.errors import InputError, UnsupportedError
from decoder2vec.text.template import Template
from decoder2vec.text.vocabulary import Vocabulary, encode_texts
from toys.texts import sentences

PLAIN = [Template.of("plain")]
TEXTS = [*sentences(12), "A cat sleeps on the sofa.", "  two  spaces ", "line one\nline two", "over over over"]
UNSEEN = [
    "Quantum 中文 😀 naïve",
    "The sofa over the sea, where nobody sleeps",
    "zebras quickly jump!",
    "hillside",
    "x\ty",
]


def byte_level():
    """GPT-2's kind."""
    return tiny_tokenizer(pad=True, bos=True)


def whole_words():
    """Llama 3's kind: a word that is a token is looked up before any merge, and special tokens come after BPE's."""
    tokenizer = tiny_tokenizer(pad=False, bos=False)
    document = json.loads(tokenizer.backend_tokenizer.to_str())
    document["model"]["ignore_merges"] = True
    lost = [merge for merge in document["model"]["merges"] if "".join(merge) == "Ġthe"]
    assert lost
    document["model"]["merges"] = [merge for merge in document["model"]["merges"] if merge not in lost]
    backend = Tokenizer.from_str(json.dumps(document))
    backend.add_special_tokens(["<|begin|>", "<|reserved_special_token_1|>", "<|end|>"])
    backend.add_tokens([AddedToken("sofa", special=False)])
    backend.post_processor = processors.TemplateProcessing(
        single="<|begin|> $A", special_tokens=[("<|begin|>", backend.token_to_id("<|begin|>"))]
    )
    return PreTrainedTokenizerFast(tokenizer_object=backend, bos_token="<|begin|>", eos_token="<|end|>")


def sentencepiece():
    """Llama 2's and Gemma's kind: characters, bytes for those it lacks, and a merge for every way to make a token."""
    trained = Tokenizer(models.BPE(unk_token="<unk>"))
    trained.normalizer = normalizers.Replace(" ", "▁")
    special = ["<unk>", "<s>", "</s>"] + [f"<0x{byte:02X}>" for byte in range(256)]
    trainer = trainers.BpeTrainer(vocab_size=700, special_tokens=special, show_progress=False, max_token_length=12)
    trained.train_from_iterator(TEXTS, trainer)
    vocabulary = json.loads(trained.to_str())["model"]["vocab"]
    pairs = [
        (id, token[:cut], token[cut:])
        for token, id in vocabulary.items()
        for cut in range(1, len(token))
        if token not in special and token[:cut] in vocabulary and token[cut:] in vocabulary
    ]
    merges = [(left, right) for _, left, right in sorted(pairs)]
    model = models.BPE(vocab=vocabulary, merges=merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True)
    backend = Tokenizer(model)
    backend.normalizer = normalizers.Replace(" ", "▁")
    backend.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    backend.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, unk_token="<unk>", bos_token="<s>", eos_token="</s>", pad_token="</s>"
    )


KINDS = [byte_level, whole_words, sentencepiece]


def prune(tokenizer, texts, limit=None):
    vocabulary = Vocabulary(tokenizer)
    needed = vocabulary.rows_needed(vocabulary.count(texts, PLAIN))
    kept = vocabulary.select(needed, vocabulary.size, limit)
    return kept, vocabulary.pruned_tokenizer(kept)


def ids_of(tokenizer, texts):
    return [row for batch in encode_texts(tokenizer, texts, PLAIN[0]) for row in batch]


@pytest.mark.parametrize("kind", KINDS)
def test_texts_keep_their_tokens_special_ones_included(kind):
    tokenizer = kind()
    kept, pruned = prune(tokenizer, TEXTS[:6])
    assert len(kept) < len(tokenizer)
    for text in TEXTS[:6]:
        before, after = tokenizer(text)["input_ids"], pruned(text)["input_ids"]
        assert [kept[id] for id in after] == before
        assert pruned.convert_ids_to_tokens(after) == tokenizer.convert_ids_to_tokens(before)
    assert pruned.all_special_tokens == tokenizer.all_special_tokens
    assert [kept[id] for id in pruned.all_special_ids] == tokenizer.all_special_ids


@pytest.mark.parametrize("kind", KINDS)
def test_any_text_whose_tokens_are_kept_is_unchanged_and_no_other_text_is_lost(kind):
    tokenizer, random_words = kind(), random.Random(0)
    words = " ".join(TEXTS + UNSEEN).split(" ")
    others = [" ".join(random_words.choices(words, k=6)) for _ in range(300)]
    others += ["".join(random_words.choices("abcdehlnorst ", k=20)) for _ in range(300)]
    n_same = n_changed = 0
    for seed in range(4):
        kept, pruned = prune(tokenizer, random.Random(seed).sample(TEXTS, 5))
        for text, before, after in zip(others, ids_of(tokenizer, others), ids_of(pruned, others), strict=True):
            is_kept, is_same = set(before) <= set(kept), [kept[id] for id in after] == before
            assert is_kept == is_same, text
            assert pruned.backend_tokenizer.decode(after) == tokenizer.backend_tokenizer.decode(before), text
            n_same, n_changed = n_same + is_same, n_changed + (not is_same)
    assert n_same > 50 and n_changed > 50


def test_without_merge_paths_texts_change():
    """The trap: a vocabulary of used tokens alone cannot make them."""
    tokenizer = byte_level()
    vocabulary = Vocabulary(tokenizer)
    used = vocabulary.count(TEXTS, PLAIN).used.tolist()
    bytes_only = [vocabulary.ids[token] for token in vocabulary.always_kept()]
    pruned = vocabulary.pruned_tokenizer(sorted({*used, *bytes_only}))
    kept = sorted({*used, *bytes_only})
    assert [[kept[id] for id in row] for row in ids_of(pruned, TEXTS)] != ids_of(tokenizer, TEXTS)


@pytest.mark.parametrize("kind", KINDS)
def test_merge_path_is_how_transformers_makes_the_token(kind):
    """The reference: merges by hand, each applied everywhere before the next one is."""
    document = json.loads(kind().backend_tokenizer.to_str())["model"]
    vocabulary = Vocabulary(kind())
    for token in list(document["vocab"])[:200:3] + list(document["vocab"])[-60:]:
        symbols, path = list(token), set(token)
        while True:
            ranks = {tuple(merge): rank for rank, merge in enumerate(document["merges"])}
            pairs = [pair for pair in pairwise(symbols) if pair in ranks]
            if not pairs:
                break
            best, joined, index = min(pairs, key=ranks.get), [], 0
            while index < len(symbols):
                is_pair = tuple(symbols[index : index + 2]) == best
                joined.append("".join(best) if is_pair else symbols[index])
                index += 1 + is_pair
            symbols = joined
            path |= set(symbols)
        if symbols == [token]:
            assert vocabulary.merge_path(token) == path
        else:
            assert vocabulary.merge_path(token) == {token}


def test_unused_special_tokens_go_and_others_stay():
    kept, pruned = prune(whole_words(), ["A cat sleeps."])
    assert "<|reserved_special_token_1|>" not in pruned.get_vocab()
    assert {"<|begin|>", "<|end|>", "<eos>"} <= pruned.get_vocab().keys()
    assert "sofa" not in pruned.get_vocab(), "an added token that is not special is a word like any other"
    assert sorted(pruned.get_vocab().values()) == list(range(len(kept)))


def test_reserved_token_that_a_text_uses_is_kept():
    text = "a <|reserved_special_token_1|> sofa"
    kept, pruned = prune(whole_words(), [text])
    assert [kept[id] for id in pruned(text)["input_ids"]] == whole_words()(text)["input_ids"]


def test_limit_keeps_the_most_frequent_tokens():
    tokenizer = byte_level()
    vocabulary = Vocabulary(tokenizer)
    counts = vocabulary.count(TEXTS, PLAIN)
    needed = vocabulary.rows_needed(counts)
    everything = vocabulary.select(needed, vocabulary.size)
    for limit in (len(everything) - 40, len(everything) - 5, len(everything)):
        expected = vocabulary.always_kept()  # by a plain loop
        for id in sorted(range(vocabulary.size), key=lambda id: (-counts.counts[id], id)):
            larger = expected | vocabulary.merge_path(vocabulary.tokens[id])
            if not counts.counts[id] or len(larger) > limit:
                break
            expected = larger
        kept = vocabulary.select(needed, vocabulary.size, limit)
        assert {vocabulary.tokens[id] for id in kept} == expected and limit - 8 < len(kept) <= limit
    with pytest.raises(InputError, match="always kept"):
        vocabulary.select(needed, vocabulary.size, 100)


def test_counts_equal_a_plain_loop():
    tokenizer, templates = byte_level(), [Template.of("plain"), Template.of("echo")]
    counts = Vocabulary(tokenizer).count(TEXTS, templates)
    expected, first = np.zeros(len(tokenizer), int), np.full(len(tokenizer), len(TEXTS))
    for template in templates:
        for index, text in enumerate(TEXTS):
            for id in tokenizer(template.render(text)[0], add_special_tokens=False)["input_ids"]:
                expected[id] += 1
                first[id] = min(first[id], index)
    assert (counts.counts == expected).all() and (counts.first_texts == first).all()
    assert counts.used.tolist() == sorted(np.flatnonzero(expected), key=lambda id: (-expected[id], id))


def test_tokens_without_an_embedding_are_left_out():
    tokenizer = byte_level()
    vocabulary = Vocabulary(tokenizer)
    needed = vocabulary.rows_needed(vocabulary.count(TEXTS, PLAIN))
    assert max(vocabulary.select(needed, 400)) < 400 < max(vocabulary.select(needed, 512))


def test_tokenizer_keeps_its_ids_when_saved_and_loaded(tmp_path):
    for kind in KINDS:
        kept, pruned = prune(kind(), TEXTS)
        pruned.save_pretrained(tmp_path / kind.__name__)
        loaded = PreTrainedTokenizerFast.from_pretrained(tmp_path / kind.__name__)
        assert ids_of(loaded, TEXTS + UNSEEN) == ids_of(pruned, TEXTS + UNSEEN)
        assert loaded.get_vocab() == pruned.get_vocab() and len(kept) == len(loaded)


def test_other_tokenizers_are_refused():
    unigram = Tokenizer(models.Unigram([("a", -1.0), ("b", -2.0)], 0))
    unigram.pre_tokenizer = pre_tokenizers.Whitespace()
    with pytest.raises(UnsupportedError, match="Unigram"):
        Vocabulary(PreTrainedTokenizerFast(tokenizer_object=unigram))
    suffixed = Tokenizer(models.BPE(vocab={"a</w>": 0}, merges=[], end_of_word_suffix="</w>"))
    with pytest.raises(UnsupportedError, match="marks parts of words"):
        Vocabulary(PreTrainedTokenizerFast(tokenizer_object=suffixed))


def test_padding_and_truncation_of_the_file_are_ignored():
    tokenizer = byte_level()
    expected = ids_of(tokenizer, TEXTS)
    tokenizer.backend_tokenizer.enable_truncation(3)
    tokenizer.backend_tokenizer.enable_padding(length=40)
    assert ids_of(tokenizer, TEXTS) == expected
