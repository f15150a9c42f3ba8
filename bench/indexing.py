"""Share of the indexing time that is spent on encoding; the rest is parsing, chunking, storing and BM25.

Run: python bench/indexing.py [model] [documents]
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from corpus import texts_of_mixed_lengths
from decoder2vec import Encoder, Index
from measure import report


class TimedEncoder:
    """An encoder that adds up the seconds spent on encoding."""

    def __init__(self, encoder: Encoder) -> None:
        self.encoder, self.seconds = encoder, 0.0

    def encode(self, texts: list[str]) -> np.ndarray:
        """Encode documents."""
        started = time.perf_counter()
        vectors = self.encoder.encode_document(texts)
        self.seconds += time.perf_counter() - started
        return vectors

    def __getattr__(self, name: str) -> object:
        if name.startswith("encode_"):  # hidden, so that all encoding goes through `encode`
            raise AttributeError(name)
        return getattr(self.encoder, name)


def main() -> None:
    model = sys.argv[1] if len(sys.argv) > 1 else "smollm2-135m"
    n_documents = int(sys.argv[2]) if len(sys.argv) > 2 else 40
    encoder = TimedEncoder(Encoder.from_pretrained(model))
    encoder.encode(["warm"])
    with tempfile.TemporaryDirectory() as folder:
        documents = Path(folder) / "texts"
        documents.mkdir()
        for i, text in enumerate(texts_of_mixed_lengths(n_documents)):
            (documents / f"{i}.txt").write_text(text, encoding="utf-8")
        index = Index.create(Path(folder) / "index", encoder)
        encoder.seconds, started = 0.0, time.perf_counter()
        changes = index.add(documents)
        total = time.perf_counter() - started
    share = 100 * encoder.seconds / total
    row = (changes.added, changes.encoded_chunks, f"{total:.2f}", f"{encoder.seconds:.2f}", f"{share:.1f} %")
    report("indexing", ("documents", "chunks", "seconds", "of it encoding", "share"), [row], model=model)


if __name__ == "__main__":
    main()
