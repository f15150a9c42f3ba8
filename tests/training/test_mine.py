"""Hard negatives against a plain loop over all candidates."""

from __future__ import annotations

import json
import zlib

import numpy as np
import pytest

from decoder2vec.errors import InputError
from decoder2vec.training.contrast import Contrast, Example, read_contrast
from decoder2vec.training.mine import as_jsonl, mine


class Numbered:
    """Vectors by chance, the same for the same text."""

    def encode(self, texts, show_progress_bar=False):
        return np.stack([np.random.default_rng(zlib.crc32(text.encode())).normal(size=4) for text in texts])


def made_up(seed, count=60):
    rng = np.random.default_rng(seed)
    return Contrast.of(
        [
            Example(f"a{rng.integers(15)}", f"p{rng.integers(30)}", (f"n{rng.integers(9)}",), int(rng.integers(12)))
            for _ in range(count)
        ]
    )


def by_hand(contrast, vectors, example, count, margin, skip):
    """Every candidate for itself."""
    groups = contrast.groups.toarray() > 0
    anchor, positive = contrast.anchors[example], contrast.positives[example]

    def cosine(a, b):
        return float(vectors[a] @ vectors[b] / np.linalg.norm(vectors[a]) / np.linalg.norm(vectors[b]))

    candidates = sorted({*contrast.positives.tolist(), *contrast.negatives.ravel().tolist()} - {-1})
    free = [
        (cosine(anchor, other), other)
        for other in candidates
        if other != anchor
        and not (groups[anchor] & groups[other]).any()
        and cosine(anchor, other) < margin * cosine(anchor, positive)
    ]
    return [contrast.texts[other] for _, other in sorted(free, key=lambda one: -one[0])[skip : skip + count]]


@pytest.mark.parametrize(("count", "margin", "skip"), [(1, 1.0, 0), (3, 0.95, 0), (2, 0.9, 2), (40, 1.0, 0)])
def test_negatives_are_the_nearest_that_are_not_known_to_belong(count, margin, skip):
    contrast = made_up(count)
    vectors = np.asarray(Numbered().encode(contrast.texts), np.float32)
    found = mine(Numbered(), contrast, count=count, margin=margin, skip=skip)
    assert len(found) == len(contrast)
    for example, (anchor, positive, *negatives) in enumerate(found):
        assert anchor == contrast.texts[contrast.anchors[example]]
        assert positive == contrast.texts[contrast.positives[example]]
        assert negatives == by_hand(contrast, vectors, example, count, margin, skip)


def test_what_is_mined_can_be_trained_on(tmp_path):
    file = tmp_path / "mined.jsonl"
    rows = [["a", "b", "c\td", 'e "f"'], ["g", "h"]]
    file.write_text(as_jsonl(rows), encoding="utf-8")
    assert json.loads(file.read_text(encoding="utf-8").splitlines()[0])["negative"] == ["c\td", 'e "f"']
    contrast = read_contrast(file)
    assert [contrast.texts[number] for number in contrast.negatives[0]] == ["c\td", 'e "f"']
    assert (contrast.negatives[1] == -1).all()


@pytest.mark.parametrize("wrong", [{"count": 0}, {"margin": 0.0}, {"margin": 1.5}, {"skip": -1}])
def test_senseless_wishes_are_refused(wrong):
    with pytest.raises(InputError, match="Give 1 negative"):
        mine(Numbered(), made_up(0), **wrong)
