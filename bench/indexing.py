"""How much of the time of indexing is encoding? The rest is reading, cutting, storing and counting words.

Run: python bench/indexing.py [model] [documents]
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

from corpus import mixed
from decoder2vec import Encoder
from decoder2vec.search.index import Index
from measure import report


class Timed:
    """The encoder, with a clock."""

    def __init__(self, encoder: Encoder) -> None:
        self.encoder, self.seconds = encoder, 0.0

    def encode(self, texts: list[str]) -> object:
        """As the encoder does."""
        started = time.perf_counter()
        vectors = self.encoder.encode_document(texts)
        self.seconds += time.perf_counter() - started
        return vectors

    def __getattr__(self, name: str) -> object:
        if name.startswith("encode_"):
            raise AttributeError(name)
        return getattr(self.encoder, name)


def main() -> None:
    model = sys.argv[1] if len(sys.argv) > 1 else "smollm2-135m"
    count = int(sys.argv[2]) if len(sys.argv) > 2 else 40
    encoder = Timed(Encoder.from_pretrained(model))
    encoder.encode(["warm"])
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "texts"
        source.mkdir()
        for number, text in enumerate(mixed(count)):
            (source / f"{number}.txt").write_text(text, encoding="utf-8")
        index = Index.create(Path(folder) / "index", encoder)
        encoder.seconds, started = 0.0, time.perf_counter()
        changes = index.add(source)
        total = time.perf_counter() - started
    share = 100 * encoder.seconds / total
    row = (changes.added, changes.encoded_chunks, f"{total:.2f}", f"{encoder.seconds:.2f}", f"{share:.1f} %")
    report("indexing", ("documents", "chunks", "seconds", "of it encoding", "share"), [row], model=model)


if __name__ == "__main__":
    main()
