"""Words that an encoder reads for a matching, and the seconds spent on everything else: sections, terms, reasons.

Run: python bench/matching.py [documents]

Jobs and long resumes are put together from the labelled set that comes with the package. Most of the time of a real
matching goes into the encoder, so its words a second give the time of the whole.
"""

from __future__ import annotations

import re
import sys
import time

import numpy as np

from decoder2vec.matching.evaluation import read_labelled_set
from decoder2vec.matching.match import match_sides
from decoder2vec.matching.sides import Side, SideDocument
from measure import report

_SHORT_RESUMES = 10
"""Resumes of the labelled set that make a long one, of about 450 words."""


class CountingEncoder:
    """Counts words, and makes vectors of them that cost nothing."""

    def __init__(self) -> None:
        self.n_words, self.seconds = 0, 0.0

    def encode(self, texts: list[str], **_: object) -> np.ndarray:
        """Return hashed bags of words."""
        started = time.perf_counter()
        vectors = np.zeros((len(texts), 64), np.float32)
        for row, text in enumerate(texts):
            words = text.lower().split()
            self.n_words += len(words)
            np.add.at(vectors[row], [sum(map(ord, word)) % 64 for word in words], 1.0)
        self.seconds += time.perf_counter() - started
        return vectors + 0.01


def _numbered(text: str, number: int) -> str:
    """Put a number into every sentence: equal ones would be encoded once."""
    return re.sub(r"([.;])(?=\s|$)", rf" {number}\1", text)


def main() -> None:
    size = int(sys.argv[1]) if len(sys.argv) > 1 else 100
    labelled = read_labelled_set()
    texts = [document.text for document in labelled.resumes.documents]
    parts = [
        [_numbered(texts[(index + 7 * part) % len(texts)], index) for part in range(_SHORT_RESUMES)]
        for index in range(size)
    ]
    jobs = Side("jobs", labelled.jobs.documents[:size])
    resumes = Side("resumes", [SideDocument(str(n), "\n\nExperience\n".join(part)) for n, part in enumerate(parts)])
    n_words = sum(len(document.text.split()) for side in (jobs, resumes) for document in side.documents)
    encoder, started = CountingEncoder(), time.perf_counter()
    match_sides(jobs, resumes, encoder)
    other_seconds = time.perf_counter() - started - encoder.seconds
    row = (len(jobs), len(resumes), n_words, encoder.n_words, f"{other_seconds:.1f}")
    report("matching", ("jobs", "resumes", "words", "words encoded", "seconds without encoding"), [row])


if __name__ == "__main__":
    main()
