"""Compare dense, lexical and hybrid search without tuning, on the folders of `folders.py` and on parts of BEIR sets.

    python experiments/search/evaluate.py ENCODER OUT.json [--beir DIR:DOCUMENTS ...]

Of a BEIR folder, the first 120 dev queries (sha1(id) mod 10 < 3) are asked among the documents that answer them and as
many other documents, drawn at random, as `DOCUMENTS` says. Texts are cut to 500 characters.
"""

from __future__ import annotations

import argparse
import random
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from folders import FOLDERS

from decoder2vec import Encoder, Fusion, Index
from decoder2vec.evaluation.tasks.retrieval import is_dev_query
from decoder2vec.search.documents import Document
from decoder2vec.search.tuning import ndcg_at_10, read_qrels, read_queries
from decoder2vec.storage import write_json
from decoder2vec.text.files import read_rows

MAX_QUERIES = 120
MAX_CHARACTERS = 500
FUSIONS = (Fusion(), Fusion("minmax", 0.5), Fusion("rrf", 0.5))


class Collection(NamedTuple):
    """Documents, and queries with the relevance of documents."""

    documents: dict[str, str]
    queries: dict[str, str]
    qrels: dict[str, dict[str, float]]


def main() -> None:
    """Evaluate, print and write one JSON file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("encoder")
    parser.add_argument("out", type=Path)
    parser.add_argument("--beir", nargs="*", default=[])
    args = parser.parse_args()
    collections = {
        name: Collection(
            folder.documents,
            {question: question for question in folder.questions},
            {question: {answer: 1.0} for question, answer in folder.questions.items()},
        )
        for name, folder in FOLDERS.items()
    }
    for argument in args.beir:
        folder, _, count = argument.rpartition(":")
        collections[Path(folder).name] = read_beir_part(Path(folder), int(count))
    encoder = Encoder.from_pretrained(args.encoder)
    output: dict[str, Any] = {"encoder": args.encoder, "fingerprint": encoder.fingerprint, "ndcg@10": {}}
    for name, collection in collections.items():
        output["ndcg@10"][name] = scores = evaluate(encoder, collection)
        print(f"{name:12}", *(f"{key} {value:.1f}" for key, value in scores.items()), sep="  ", flush=True)
        write_json(args.out, output)


def evaluate(encoder: Encoder, collection: Collection) -> dict[str, float]:
    """Return nDCG@10 in percent by way to search."""
    texts = list(collection.queries.values())

    def score(index: Index, mode: str) -> float:
        rankings = [[document.id for document in ranked] for ranked in index.rank(texts, 10, mode)]
        qrels = (collection.qrels[id] for id in collection.queries)
        return 100 * float(np.mean([ndcg_at_10(ids, judged) for ids, judged in zip(rankings, qrels, strict=True)]))

    with tempfile.TemporaryDirectory() as folder:
        index = Index.create(Path(folder) / "index", encoder)
        index.add(Document(id, text) for id, text in collection.documents.items())
        scores = {mode: score(index, mode) for mode in ("dense", "lexical")}
        for fusion in FUSIONS:
            index.set_fusion(fusion)
            scores["{method} {weight}".format(**asdict(fusion))] = score(index, "hybrid")
    return scores


def read_beir_part(folder: Path, count: int) -> Collection:
    """Return dev queries, the documents that answer them, and `count` others."""
    queries, qrels = read_queries(folder / "queries.jsonl.gz"), read_qrels(folder / "qrels-test.tsv")
    judged = {id: {document: value for document, value in row.items() if value > 0} for id, row in qrels.items()}
    chosen = [id for id in queries if judged.get(id) and is_dev_query(id)][:MAX_QUERIES]
    corpus = {
        str(row["_id"]): f"{row.get('title', '')}\n{row['text']}".strip()[:MAX_CHARACTERS]
        for _, row in read_rows(folder / "corpus.jsonl.gz")
    }
    answers = dict.fromkeys(document for id in chosen for document in judged[id])
    others = random.Random(0).sample(sorted(corpus.keys() - answers.keys()), count)
    documents = {id: corpus[id] for id in (*answers, *others)}
    return Collection(documents, {id: queries[id] for id in chosen}, {id: judged[id] for id in chosen})


if __name__ == "__main__":
    main()
