"""Groups to train rerankers on: a query, the text it belongs to, and negatives by BM25 and by chance.

The file has every text once, and groups are indices into it, so that it is small enough to be carried elsewhere.
"""

from __future__ import annotations

import gzip
import json
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from decoder2vec.storage import atomic_file
from decoder2vec.text.bm25 import BM25
from decoder2vec.text.files import read_rows

TOP = 100
"""Hard negatives are drawn from this many of BM25's best documents, as in the paper."""


@dataclass(frozen=True)
class Groups:
    """Queries with a positive and negatives each."""

    texts: list[str]
    rows: NDArray[np.intp]
    """[groups, 2 + negatives] indices of texts: the query, the positive, the negatives."""

    def first(self, count: int) -> Groups:
        """The first groups."""
        return Groups(self.texts, self.rows[:count])

    def save(self, file: Path) -> None:
        """Write a .json.gz file."""
        content = json.dumps({"texts": self.texts, "groups": self.rows.tolist()}, ensure_ascii=False)
        with atomic_file(file) as temporary:
            temporary.write_bytes(gzip.compress(content.encode(), mtime=0))

    @classmethod
    def load(cls, file: Path) -> Groups:
        """Read what `save` wrote."""
        content = json.loads(gzip.decompress(file.read_bytes()))
        return cls(content["texts"], np.array(content["groups"], np.intp))


def read_pairs(pool: Path, count: int, seed: int = 0) -> dict[str, list[tuple[str, str]]]:
    """Draw `count` pairs (query, document) of a pool, by source; pairs of equal texts are left out."""
    pairs = []
    for file in sorted(pool.glob("pairs-*.tsv.gz")):
        for _, row in read_rows(file):
            source, query, document = (str(row[column]).strip() for column in ("source", "text1", "text2"))
            if query and document and query != document:
                pairs.append((source, query, document))
    drawn: dict[str, list[tuple[str, str]]] = defaultdict(list)
    for index in np.random.default_rng(seed).permutation(len(pairs))[:count]:
        source, query, document = pairs[index]
        drawn[source].append((query, document))
    return dict(drawn)


def make_groups(pairs: dict[str, list[tuple[str, str]]], hard: int = 4, random: int = 3, seed: int = 0) -> Groups:
    """Draw negatives from the documents of the same source.

    Args:
        pairs: Queries and documents by source.
        hard: Negatives from BM25's best; fewer are found where few documents share a word with the query.
        random: Further negatives by chance, and in place of missing hard ones.
        seed: Of all draws, and of the order of the groups.
    """
    rng = np.random.default_rng(seed)
    index: dict[str, int] = {}
    rows = []
    for source, members in sorted(pairs.items()):
        documents = list(dict.fromkeys(document for _, document in members))
        positives: dict[str, set[str]] = defaultdict(set)
        for query, document in members:
            positives[query].add(document)
        if len(documents) <= hard + random + max(map(len, positives.values())):
            continue
        search = BM25(documents).search
        for query, document in tqdm(members, desc=source, disable=None):
            excluded = {*positives[query], query}
            best = [documents[at] for at, _ in search(query, TOP) if documents[at] not in excluded]
            negatives = [best[at] for at in rng.permutation(len(best))[:hard]]
            while len(negatives) < hard + random:
                other = documents[rng.integers(len(documents))]
                if other not in excluded and other not in negatives:
                    negatives.append(other)
            rows.append([index.setdefault(text, len(index)) for text in (query, document, *negatives)])
    return Groups(list(index), rng.permutation(np.array(rows, np.intp)))
