"""Shuffled texts: input and target together are the text again, and nothing but words says what came first."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from scipy.stats import spearmanr

from decoder2vec.text.shuffled import Shuffling, random_spans

END, START = 1, 2


@dataclass(frozen=True)
class Ids:
    first_id: int = 1000
    count: int = 20
    n_sentinels: int = 100

    @property
    def end_id(self):
        return self.first_id + self.count


IDS = Ids()


def random_sentences(random, n_sentences=None, longest=12):
    """Words are numbers from 10 to 999."""
    n_sentences = n_sentences or int(random.integers(1, 21))
    return [random.integers(10, 1000, random.integers(1, longest)).tolist() for _ in range(n_sentences)]


def is_label(token):
    return IDS.first_id <= token < IDS.end_id


def blocks_of(tokens):
    """What stands between a sentence token and the end of the sentence, by the label, in order."""
    blocks, label = {}, None
    for token in tokens:
        if is_label(token):
            label, blocks[token] = token, []
        elif token == IDS.end_id:
            label = None
        elif label is not None:
            blocks[label].append(token)
    return blocks


def restored(text):
    """The sentences that source and target together give, in the order of the target."""
    source, target = blocks_of(text.source), blocks_of(text.target)
    sentences = []
    for label, spans in target.items():
        replaced, sentinel = {}, None
        for token in spans:
            if token > IDS.end_id:
                sentinel, replaced[token] = token, []
            else:
                replaced[sentinel].append(token)
        sentences.append([word for token in source[label] for word in replaced.get(token, [token])])
    return sentences


@pytest.mark.parametrize("shuffle", [False, True])
def test_source_and_target_are_the_text_again(shuffle):
    shuffling = Shuffling(IDS, END, (START,))
    for seed in range(1000):
        random = np.random.default_rng(seed)
        sentences = random_sentences(random)
        text = shuffling(sentences, random, shuffle=shuffle)
        assert restored(text) == sentences
        assert text.source[:2] == [START, IDS.end_id] and text.target[0] == IDS.end_id
        assert text.source[-2:] == text.target[-2:] == [IDS.end_id, END]
        in_order = [text.source[position] for position in text.order]
        assert in_order == [token for token in text.target if is_label(token)]
        assert len(set(in_order)) == len(sentences)
        if not shuffle:
            assert text.order == sorted(text.order)


def test_sentences_are_numbered_as_they_are_read():
    random = np.random.default_rng(3)
    text = Shuffling(IDS, END, (START,))(random_sentences(random, 6), random, shuffle=True)
    numbers, number = [], 0
    for token in text.source[2:]:
        number += is_label(token)
        numbers.append(number)
    assert text.sentences == [1, 1, *numbers]


def test_one_sentence_is_not_changed_by_shuffling():
    texts = [
        Shuffling(IDS, END)([[10, 11, 12, 13]], np.random.default_rng(0), shuffle=shuffle) for shuffle in (False, True)
    ]
    assert all(text.order == [1] and restored(text) == [[10, 11, 12, 13]] for text in texts)


def order_clues(shuffle=True, n_texts=3000):
    """For each sentence: its true place, its label, its first sentinel (or -1), masked share, masked first and last."""
    rows = []
    for seed in range(n_texts):
        random = np.random.default_rng(seed)
        sentences = [random.integers(10, 1000, 8).tolist() for _ in range(5)]
        text = Shuffling(IDS, END)(sentences, random, shuffle=shuffle)
        source = blocks_of(text.source)
        for place, position in enumerate(text.order):
            words = source[text.source[position]]
            sentinels = [word for word in words if word > IDS.end_id]
            first, last = sentences[place][0] != words[0], sentences[place][-1] != words[-1]
            masked = 8 - (len(words) - len(sentinels))
            rows.append(
                (place, text.source[position], sentinels[0] if sentinels else -1, masked, first, last, position)
            )
    return np.array(rows, float)


def test_nothing_but_words_says_which_sentence_was_first():
    """The bound is four standard errors; where a sentence is read says its place only if it is not shuffled."""
    clues = order_clues()
    for column in range(1, clues.shape[1]):
        used = clues[clues[:, 2] > 0] if column == 2 else clues
        assert abs(spearmanr(used[:, 0], used[:, column]).statistic) < 4 / np.sqrt(len(used)), column
    plain = order_clues(shuffle=False, n_texts=200)
    assert spearmanr(plain[:, 0], plain[:, -1]).statistic > 0.9


def test_sentinels_of_a_text_differ():
    for seed in range(100):
        random = np.random.default_rng(seed)
        text = Shuffling(IDS, END)(random_sentences(random, 20, 30), random, shuffle=True)
        sentinels = [token for token in text.source if token > IDS.end_id]
        assert len(set(sentinels)) == len(sentinels) > 20
        assert sorted(sentinels) == sorted(token for token in text.target if token > IDS.end_id)


def test_words_stay_where_no_sentinel_is_left():
    random = np.random.default_rng(0)
    sentences = random_sentences(random, 20, 200)
    text = Shuffling(Ids(n_sentinels=7), END)(sentences, random, shuffle=True)
    assert sum(token > IDS.end_id for token in text.source) == 7
    assert restored(text) == sentences


@pytest.mark.parametrize(("rate", "span"), [(0.3, 3), (0.15, 3), (0.5, 1)])
def test_spans_have_the_share_and_the_length_that_is_asked_for(rate, span):
    masks = np.stack([random_spans(200, rate, span, np.random.default_rng(seed)) for seed in range(500)])
    assert (masks.sum(axis=1) == round(200 * rate)).all()
    runs = ((np.diff(masks.astype(int), axis=1) == 1).sum(axis=1) + masks[:, 0]).mean()
    assert abs(runs - round(round(200 * rate) / span)) < 1.5, "the rotation may cut one span in two"
    by_position = masks.mean(axis=0)
    assert abs(by_position - rate).max() < 5 * np.sqrt(rate * (1 - rate) / 500), "every position alike"


@pytest.mark.parametrize("length", [2, 3, 4])
def test_the_shortest_texts_have_a_span_and_a_word(length):
    for seed in range(50):
        mask = random_spans(length, 0.3, 3, np.random.default_rng(seed))
        assert 0 < mask.sum() < length
