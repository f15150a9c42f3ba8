"""Hard negatives against a plain loop over all candidates."""

from __future__ import annotations

import json
import zlib

import numpy as np
import pytest

from decoder2vec.errors import InputError
from decoder2vec.training.contrastive_examples import ContrastiveExamples, Example, read_contrastive_examples
from decoder2vec.training.mining import mine, to_jsonl


class Numbered:
    """Vectors by chance, the same for the same text."""

    def encode(self, texts, show_progress_bar=False):
        return np.stack([np.random.default_rng(zlib.crc32(text.encode())).normal(size=4) for text in texts])


def made_up(seed, count=60):
    rng = np.random.default_rng(seed)
    return ContrastiveExamples.of(
        [
            Example(f"a{rng.integers(15)}", f"p{rng.integers(30)}", (f"n{rng.integers(9)}",), int(rng.integers(12)))
            for _ in range(count)
        ]
    )


def by_hand(contrastive, vectors, example, count, margin, skip):
    """Every candidate for itself."""
    groups = contrastive.groups.toarray() > 0
    anchor, positive = contrastive.anchors[example], contrastive.positives[example]

    def cosine(a, b):
        return float(vectors[a] @ vectors[b] / np.linalg.norm(vectors[a]) / np.linalg.norm(vectors[b]))

    candidates = sorted({*contrastive.positives.tolist(), *contrastive.negatives.ravel().tolist()} - {-1})
    free = [
        (cosine(anchor, other), other)
        for other in candidates
        if other != anchor
        and not (groups[anchor] & groups[other]).any()
        and cosine(anchor, other) < margin * cosine(anchor, positive)
    ]
    return [contrastive.texts[other] for _, other in sorted(free, key=lambda one: -one[0])[skip : skip + count]]


@pytest.mark.parametrize(("count", "margin", "skip"), [(1, 1.0, 0), (3, 0.95, 0), (2, 0.9, 2), (40, 1.0, 0)])
def test_negatives_are_the_nearest_that_are_not_known_to_belong(count, margin, skip):
    contrastive = made_up(count)
    vectors = np.asarray(Numbered().encode(contrastive.texts), np.float32)
    found = mine(Numbered(), contrastive, count=count, margin=margin, skip=skip)
    assert len(found) == len(contrastive)
    for example, (anchor, positive, *negatives) in enumerate(found):
        assert anchor == contrastive.texts[contrastive.anchors[example]]
        assert positive == contrastive.texts[contrastive.positives[example]]
        assert negatives == by_hand(contrastive, vectors, example, count, margin, skip)


def test_what_is_mined_can_be_trained_on(tmp_path):
    file = tmp_path / "mined.jsonl"
    rows = [["a", "b", "c\td", 'e "f"'], ["g", "h"]]
    file.write_text(to_jsonl(rows), encoding="utf-8")
    assert json.loads(file.read_text(encoding="utf-8").splitlines()[0])["negative"] == ["c\td", 'e "f"']
    contrastive = read_contrastive_examples(file)
    assert [contrastive.texts[number] for number in contrastive.negatives[0]] == ["c\td", 'e "f"']
    assert (contrastive.negatives[1] == -1).all()


@pytest.mark.parametrize("wrong", [{"count": 0}, {"margin": 0.0}, {"margin": 1.5}, {"skip": -1}])
def test_senseless_wishes_are_refused(wrong):
    with pytest.raises(InputError, match="Give 1 negative"):
        mine(Numbered(), made_up(0), **wrong)
