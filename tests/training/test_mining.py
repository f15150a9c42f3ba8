"""Mined hard negatives equal those of a plain loop over all candidates."""

from __future__ import annotations

import json
import zlib
from collections import Counter

import numpy as np
import pytest

from decoder2vec.errors import InputError
from decoder2vec.training.contrastive_examples import ContrastiveExamples, Example, read_contrastive_examples
from decoder2vec.training.mining import bm25_ranker, draw_negatives, encoder_ranker, mine_hard_negatives, to_jsonl


class HashEncoder:
    """Random vectors, the same for the same text."""

    def encode(self, texts, show_progress_bar=False):
        return np.stack([np.random.default_rng(zlib.crc32(text.encode())).normal(size=4) for text in texts])


def toy_examples(seed, count=60):
    """Random examples over few texts and groups."""
    rng = np.random.default_rng(seed)
    return ContrastiveExamples.of(
        [
            Example(f"a{rng.integers(15)}", f"p{rng.integers(30)}", (f"n{rng.integers(9)}",), int(rng.integers(12)))
            for _ in range(count)
        ]
    )


def mine_plainly(examples, vectors, example, count, margin, skip):
    """The negatives of one example, by comparing its anchor with every candidate."""
    groups = examples.groups.toarray() > 0
    anchor, positive = examples.anchors[example], examples.positives[example]

    def cosine(a, b):
        return float(vectors[a] @ vectors[b] / np.linalg.norm(vectors[a]) / np.linalg.norm(vectors[b]))

    candidates = sorted({*examples.positives.tolist(), *examples.negatives.ravel().tolist()} - {-1})
    allowed = [
        (cosine(anchor, other), other)
        for other in candidates
        if other != anchor
        and not (groups[anchor] & groups[other]).any()
        and cosine(anchor, other) < margin * cosine(anchor, positive)
    ]
    nearest_first = sorted(allowed, key=lambda candidate: -candidate[0])
    return [examples.texts[other] for _, other in nearest_first[skip : skip + count]]


@pytest.mark.parametrize(("count", "margin", "skip"), [(1, 1.0, 0), (3, 0.95, 0), (2, 0.9, 2), (40, 1.0, 0)])
def test_negatives_are_the_nearest_that_are_no_known_positives(count, margin, skip):
    examples = toy_examples(count)
    vectors = np.asarray(HashEncoder().encode(examples.texts), np.float32)
    mined = mine_hard_negatives(HashEncoder(), examples, count=count, margin=margin, skip=skip)
    assert len(mined) == len(examples)
    for example, (anchor, positive, *negatives) in enumerate(mined):
        assert anchor == examples.texts[examples.anchors[example]]
        assert positive == examples.texts[examples.positives[example]]
        assert negatives == mine_plainly(examples, vectors, example, count, margin, skip)


def test_mined_examples_can_be_read_for_training(tmp_path):
    file = tmp_path / "mined.jsonl"
    rows = [["a", "b", "c\td", 'e "f"'], ["g", "h"]]
    file.write_text(to_jsonl(rows), encoding="utf-8")
    assert json.loads(file.read_text(encoding="utf-8").splitlines()[0])["negative"] == ["c\td", 'e "f"']
    examples = read_contrastive_examples(file)
    assert [examples.texts[text] for text in examples.negatives[0]] == ["c\td", 'e "f"']
    assert (examples.negatives[1] == -1).all()


@pytest.mark.parametrize("wrong", [{"count": 0}, {"margin": 0.0}, {"margin": 1.5}, {"skip": -1}])
def test_impossible_settings_raise(wrong):
    with pytest.raises(InputError, match="Give 1 negative"):
        mine_hard_negatives(HashEncoder(), toy_examples(0), **wrong)


# --- drawn from a ranking -------------------------------------------------------------------------------------------

CORPUS = [f"document {number}" for number in range(40)]
JUDGED = ContrastiveExamples.of(
    [
        Example("query a", "document 0", (), "a"),
        Example("query a", "document 3", (), "a"),
        Example("query b", "document 5", (), "b"),
    ]
)


def in_order(queries, top):
    """The same ranking for every query, deeper than asked for, with the query itself and a duplicate in it."""
    return [[query, "document 1", *CORPUS] for query in queries]


def test_negatives_are_drawn_from_the_top_without_any_judged_positive():
    rows = draw_negatives(in_order, JUDGED, count=50, top=8)
    first = ["document 1", "document 2", "document 4", "document 5"]
    assert rows[0] == ["query a", "document 0", *first] and rows[1] == ["query a", "document 3", *first]
    assert rows[2] == ["query b", "document 5", "document 1", "document 0", "document 2", "document 3", "document 4"]


def test_a_chunk_of_a_judged_positive_is_no_negative():
    """An index ranks chunks, and joins titles by line breaks."""
    positive = "Bread. Yeast makes the dough rise. Salt slows it down."
    judged = [Example("why does dough rise", positive, (), "a"), Example("cats", "Cats sleep.", (), "b")]
    chunks = ["Bread.\nYeast makes the dough rise.", "Salt slows it down.", "Salt is a mineral."]
    rows = draw_negatives(lambda queries, _: [chunks for _ in queries], ContrastiveExamples.of(judged))
    assert rows[0] == ["why does dough rise", positive, "Salt is a mineral."]
    assert rows[1] == ["cats", "Cats sleep.", *chunks]


def test_draws_are_uniform_and_seeded():
    draws = [draw_negatives(in_order, JUDGED, count=2, top=12, seed=seed)[2][2:] for seed in range(400)]
    counts = Counter(negative for draw in draws for negative in draw)
    assert set(counts) == {f"document {number}" for number in (1, 0, 2, 3, 4, 6, 7, 8, 9)}
    assert all(abs(count - 800 / 9) < 40 for count in counts.values()), "of 400 draws of 2 from 9"
    assert draw_negatives(in_order, JUDGED, seed=3) == draw_negatives(in_order, JUDGED, seed=3)
    only_b = ContrastiveExamples.of([Example("query b", "document 5", (), "b"), Example("c", "document 6", (), "c")])
    assert draw_negatives(in_order, only_b, count=2)[0] == draw_negatives(in_order, JUDGED, count=2)[2], "of each alone"


def test_rankers_rank_as_plain_loops():
    documents = ["cats sleep", "dogs run", "cats run", "boats"]
    assert bm25_ranker(documents)(["cats", "dogs run"], 3) == [["cats sleep", "cats run"], ["dogs run", "cats run"]]
    vectors = HashEncoder().encode([*documents, "query"])
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    order = np.argsort(-(unit[:4] @ unit[4]))[:3]
    assert encoder_ranker(HashEncoder(), documents)(["query"], 3) == [[documents[row] for row in order]]


@pytest.mark.parametrize("options", [{"count": 0}, {"top": 0}])
def test_nothing_to_draw_is_refused(options):
    with pytest.raises(InputError, match="1 negative or more"):
        draw_negatives(in_order, JUDGED, **options)
