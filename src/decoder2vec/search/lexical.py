"""Search by words: BM25 as everywhere in this package, kept on disk until the chunks change."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from decoder2vec.places import whole_folder
from decoder2vec.search.dense import KeyScores
from decoder2vec.text.bm25 import SETTINGS, counted, empty_index, words_of

_KEYS = "keys.json"


class Lexical:
    """The words of chunks. English stop words count for nothing; words of other languages all count."""

    def __init__(self, keys: Sequence[str], retriever: Any) -> None:
        self.keys, self._retriever = list(keys), retriever

    @classmethod
    def build(cls, keys: Sequence[str], texts: Sequence[str]) -> Lexical:
        """Count the words of all texts."""
        words = counted(texts)
        if not any(words.ids):
            return cls(keys, None)  # bm25s cannot index texts without a word
        made = empty_index()
        made.index(words, show_progress=False)
        return cls(keys, made)

    def save(self, folder: Path, state: str) -> None:
        """Write to a folder, in place of what was there; `state` says of which chunks it is."""
        new = folder.with_name(f".{folder.name}.new")
        shutil.rmtree(new, ignore_errors=True)
        with whole_folder(new) as temporary:
            note = {"state": state, "bm25": SETTINGS, "words": self._retriever is not None, "keys": self.keys}
            (temporary / _KEYS).write_text(json.dumps(note), encoding="utf-8")
            if self._retriever is not None:
                self._retriever.save(temporary, show_progress=False)
        shutil.rmtree(folder, ignore_errors=True)
        new.rename(folder)

    @classmethod
    def load(cls, folder: Path, state: str) -> Lexical | None:
        """What `save` wrote, if it is still true."""
        try:
            note = json.loads((folder / _KEYS).read_text(encoding="utf-8"))
            if (note["state"], note["bm25"]) != (state, SETTINGS):
                return None
            kept = empty_index().load(folder, mmap=True, show_progress=False) if note["words"] else None
            return cls(note["keys"], kept)
        except (OSError, ValueError, KeyError, TypeError):
            return None  # it can be made again

    def search(self, queries: Sequence[str], count: int, allowed: set[str] | None = None) -> list[KeyScores]:
        """For each query the chunks that share words with it, best first."""
        if self._retriever is None or not self.keys:
            return [[] for _ in queries]
        mask = None if allowed is None else np.array([key in allowed for key in self.keys], np.float32)
        places, scores = self._retriever.retrieve(
            words_of(queries), k=min(count, len(self.keys)), show_progress=False, weight_mask=mask
        )
        return [
            [(self.keys[place], score) for place, score in zip(at, row, strict=True) if score > 0]
            for at, row in zip(places.tolist(), scores.tolist(), strict=True)
        ]
