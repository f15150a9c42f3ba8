"""BLEU, ROUGE-L and token F1 against sacrebleu and rouge-score."""

from __future__ import annotations

import numpy as np
import pytest
from rouge_score.rouge_scorer import RougeScorer
from sacrebleu.metrics import BLEU

from decoder2vec.maths.bootstrap import resample
from decoder2vec.maths.text_overlap import bleu, bleu_counts, bleu_scorer, bleu_tokens, rouge_l, token_f1

PAIRS = [
    ("The cat sat on the mat.", "The cat sat on the mat."),
    ("a slow piano piece, 120 bpm", "A slow piano piece at 120.5 bpm, in a rainy city"),
    ("", "something"),
    ("something", ""),
    ("", ""),
    ("the the the the", "the cat"),
    ("He said &quot;no&quot; & left - 3-4 times (twice) at 1,000.5!  ", 'He said "no" & left 3-4 times'),
    ("line one\nline two-\nthree", "line one line two three"),
    ("Ünïcode café ① naïve", "unicode cafe naïve"),
    ("short", "short"),
    ("a b c d e f g", "a c e g i k"),
    ("<skipped> a, b. c.d 5. .5", "a, b. c.d 5. .5"),
]
WORDS = ["the", "a", "cat", "dog", "sat", "on", "mat", ",", ".", "3.5", "rain-drop", "piano", "&", "(", ")", "slow"]


def random_pairs(count, seed=0):
    generator = np.random.default_rng(seed)
    return [tuple(" ".join(generator.choice(WORDS, generator.integers(0, 15))) for _ in range(2)) for _ in range(count)]


@pytest.mark.parametrize("text", [text for pair in PAIRS for text in pair])
def test_bleu_tokens_equal_those_of_sacrebleu(text):
    assert bleu_tokens(text) == BLEU()._preprocess_segment(text).split()


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("size", [1, 3, 50])
def test_bleu_equals_sacrebleu(seed, size):
    pairs = random_pairs(size, seed) + (PAIRS if seed % 2 else [])
    counts = sum(bleu_counts(*pair) for pair in pairs)
    expected = BLEU().corpus_score([text for text, _ in pairs], [[reference for _, reference in pairs]])
    assert bleu(counts) == pytest.approx(expected.score, abs=1e-9)


@pytest.mark.parametrize("pair", PAIRS)
def test_bleu_of_one_text_equals_sacrebleu(pair):
    assert bleu(bleu_counts(*pair)) == pytest.approx(BLEU().corpus_score([pair[0]], [[pair[1]]]).score, abs=1e-9)


def test_bleu_of_samples_equals_sacrebleu_on_the_drawn_texts():
    pairs = random_pairs(12, 3)
    scorer = bleu_scorer([np.stack([bleu_counts(*pair) for pair in pairs])])
    drawn = np.random.default_rng(0).integers(0, 12, (5, 12))
    counts = np.stack([np.bincount(row, minlength=12) for row in drawn]).astype(float)
    for row, score in zip(drawn, scorer(counts)[0], strict=True):
        chosen = [pairs[index] for index in row]
        expected = BLEU().corpus_score([text for text, _ in chosen], [[reference for _, reference in chosen]])
        assert score == pytest.approx(expected.score, abs=1e-9)
    assert resample(scorer, 12, samples=50)[1].shape == (1, 50)


@pytest.mark.parametrize("pair", PAIRS + random_pairs(100))
def test_rouge_l_equals_rouge_score(pair):
    expected = RougeScorer(["rougeL"]).score(target=pair[1], prediction=pair[0])["rougeL"].fmeasure
    assert rouge_l(*pair) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("pair", PAIRS + random_pairs(30))
def test_token_f1_equals_rouge_1_of_rouge_score(pair):
    rouge = RougeScorer(["rouge1"]).score(target=pair[1], prediction=pair[0])["rouge1"].fmeasure
    assert token_f1(*pair) == pytest.approx(rouge, abs=1e-12)


def test_token_f1_counts_repeated_words_once_for_each_time():
    assert token_f1("a a a", "a a b") == pytest.approx(2 * 2 / 6)
