"""Measure what happens when documents with true vectors join those with mapped vectors.

    python experiments/migration/mixed.py DATA OUT.json OLD NEW

A share of the documents has the new encoder's own vectors, as documents that are added after a migration have; the
others are mapped. If true vectors were preferred, queries would find less of what is mapped, and the reverse.
"""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import numpy as np
from texts import Vectors, read_quora

from decoder2vec.evaluation.tasks.retrieval import is_dev_query
from decoder2vec.maths.similarity import normalise
from decoder2vec.maths.space_map import Paired, fit_map, nearest
from decoder2vec.storage import write_json

SHARES = (0.0, 0.1, 0.5, 0.9, 1.0)
SAMPLE, VALIDATION = 4000, 500


def main() -> None:
    """Measure, print and write one JSON file."""
    data, out, old_name, new_name = sys.argv[1:]
    collection = read_quora(Path(data))
    old, new = Vectors(old_name), Vectors(new_name)
    ids, texts = list(collection.documents), list(collection.documents.values())
    old_vectors, new_vectors = old.of("document", texts), new.of("document", texts)
    judged = {document for documents in collection.relevant.values() for document in documents}
    tested = [id for id in collection.queries if not is_dev_query(id)]
    queries = new.of("query", [collection.queries[id] for id in tested])
    rng = np.random.default_rng(0)
    free = rng.permutation([row for row, id in enumerate(ids) if id not in judged])
    paired = Paired(old_vectors, new_vectors)
    learned = fit_map("affine", paired[free[VALIDATION:SAMPLE]], paired[free[:VALIDATION]])
    mapped = learned(old_vectors)
    true = normalise(new_vectors)
    row_of = {id: row for row, id in enumerate(ids)}
    order, rows = rng.random(len(ids)), []
    for share in SHARES:
        is_true = order < share
        ranked = nearest(queries, np.where(is_true[:, None], true, mapped), "cosine")
        found: dict[bool, list[bool]] = {True: [], False: []}
        for id, top in zip(tested, ranked, strict=True):
            for document in collection.relevant[id]:
                found[bool(is_true[row_of[document]])].append(row_of[document] in top)
        rows.append(
            {
                "true_documents": share,
                "true_among_the_first_ten": round(float(is_true[ranked].mean()), 4),
                "recall_of_true_documents": round(100 * float(np.mean(found[True])), 2) if found[True] else None,
                "recall_of_mapped_documents": round(100 * float(np.mean(found[False])), 2) if found[False] else None,
            }
        )
        print(rows[-1], flush=True)
    command = shlex.join(["python", "experiments/migration/mixed.py", "DATA", *sys.argv[2:]])
    write_json(Path(out), {"command": command, "map": f"affine ({learned.detail})", "rows": rows})


if __name__ == "__main__":
    main()
