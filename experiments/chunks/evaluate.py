"""Compare whole documents, chunks that are read alone (early) and chunks that are read together (late).

    python experiments/chunks/evaluate.py DATA OUT.json ENCODER [--sets scifact long] [--settings KEY=VALUE ...]

DATA holds `retrieval/scifact` and `pool`. The sets:

- scifact: abstracts with their titles in front; chunks are sentences. The first `--queries` test queries are asked
  among the abstracts that are judged for them and others, drawn at random, `--documents` in all.
- long: pages of textbooks and documentation from the pool: the title of a page, then the texts of its sections without
  their headings. Chunks have up to 128 tokens. A query is the heading of a section behind the title of its page;
  relevant are the page, and among chunks the one that holds most of the section.

A document's score is that of its best chunk. If the process stops, the same command goes on.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import json
import random
import time
from collections import defaultdict
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from decoder2vec import Chunking, Encoder
from decoder2vec.maths.bootstrap import difference, mean_scorer, resample
from decoder2vec.search.chunks import token_lengths
from decoder2vec.search.tuning import ndcg_at_10
from decoder2vec.storage import write_json
from decoder2vec.text.sentences import sentence_spans

SOURCES = ("openstax", "mdn", "debian-docs")
SECTIONS = range(9, 25)
"""Sections of a page of the long documents."""
QUERIES_PER_PAGE = 6
CHUNK_TOKENS = 128

Qrels = dict[str, dict[str, float]]


class Collection(NamedTuple):
    """Documents with their chunks, and queries with what is relevant to each."""

    documents: dict[str, str]
    spans: dict[str, list[tuple[int, int]]]
    queries: dict[str, str]
    qrels: Qrels
    chunk_qrels: Qrels
    """Relevant chunks, by the id of the document, # and the number of the chunk; may be empty."""


def main() -> None:
    """Evaluate, print and write one JSON file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("encoder")
    parser.add_argument("--sets", nargs="+", default=["scifact", "long"], choices=["scifact", "long"])
    parser.add_argument("--documents", type=int, default=250, help="abstracts of scifact")
    parser.add_argument("--queries", type=int, default=100, help="queries of scifact")
    parser.add_argument("--pages", type=int, default=10, help="long documents of each of three sources")
    parser.add_argument("--windows", nargs="+", type=int, default=[512], help="tokens that are read at once")
    parser.add_argument("--settings", nargs="*", default=[], help="of a model that is not a saved encoder")
    args = parser.parse_args()
    settings = dict(setting.split("=", 1) for setting in args.settings)
    encoder = Encoder.from_pretrained(args.encoder, **settings)
    output: dict[str, Any] = json.loads(args.out.read_text()) if args.out.exists() else {}
    output |= {"encoder": args.encoder, "description": repr(encoder), "fingerprint": encoder.fingerprint}
    for name in args.sets:
        if name == "scifact":
            collection = read_scifact(args.data / "retrieval" / "scifact", args.queries, args.documents)
        else:
            collection = read_pages(args.data / "pool", args.pages, encoder)
        results = output.setdefault(name, describe(collection))
        for way in ("whole", "early", *(f"late-{window}" for window in args.windows)):
            if way not in results:
                results[way] = evaluate(encoder, collection, way)
                write_json(args.out, output)
            scores = results[way]
            shown = "  ".join(f"{key} {scores[key]:.1f}" for key in SHOWN if key in scores)
            print(f"{name:8} {way:10} {shown}", flush=True)
        results["late - early"] = {
            way: {metric: compare(results, way, metric) for metric in ("ndcg", "chunk_ndcg") if metric in results[way]}
            for way in results
            if way.startswith("late-")
        }
        write_json(args.out, output)


SHOWN = ("ndcg@10", "chunk_ndcg@10", "seconds", "tokens")


def describe(collection: Collection) -> dict[str, Any]:
    """Return the size of a collection."""
    words = sum(len(text.split()) for text in collection.documents.values())
    n_chunks = sum(map(len, collection.spans.values()))
    counts = {"documents": len(collection.documents), "words": words, "chunks": n_chunks}
    return {"size": {**counts, "queries": len(collection.queries)}}


def evaluate(encoder: Encoder, collection: Collection, way: str) -> dict[str, Any]:
    """Return nDCG@10 in percent, that of every query, and what encoding the documents took."""
    ids, texts = list(collection.documents), list(collection.documents.values())
    spans = [[(0, len(text))] for text in texts] if way == "whole" else [collection.spans[id] for id in ids]
    queries = encoder.encode_query(list(collection.queries.values()))
    tokens_before, started = encoder.stats.tokens, time.perf_counter()
    if way.startswith("late-"):
        vectors = np.concatenate(encoder.encode_chunks(texts, spans, window=int(way.removeprefix("late-"))))
    else:
        vectors = encoder.encode_document([text[a:b] for text, each in zip(texts, spans, strict=True) for a, b in each])
    seconds = time.perf_counter() - started
    owners = [f"{id}#{number}" for id, each in zip(ids, spans, strict=True) for number in range(len(each))]
    similarities = encoder.similarity(queries, vectors).numpy()
    by_document = [rank_documents(row, owners) for row in similarities]
    result = {"seconds": seconds, "tokens": encoder.stats.tokens - tokens_before}
    result |= score(by_document, list(collection.qrels.values()), "ndcg")
    if collection.chunk_qrels and way != "whole":
        by_chunk = [[owners[place] for place in np.argsort(-row)[:10]] for row in similarities]
        result |= score(by_chunk, list(collection.chunk_qrels.values()), "chunk_ndcg")
    return result


def rank_documents(similarities: np.ndarray, owners: list[str]) -> list[str]:
    """Return the ten best documents, each by its best chunk."""
    order = (owners[place].rpartition("#")[0] for place in np.argsort(-similarities))
    return list(dict.fromkeys(order))[:10]


def score(rankings: list[list[str]], qrels: list[dict[str, float]], name: str) -> dict[str, Any]:
    """Return the mean nDCG@10 and that of every query, in percent."""
    values = [round(100 * ndcg_at_10(ids, judged), 2) for ids, judged in zip(rankings, qrels, strict=True)]
    return {f"{name}@10": float(np.mean(values)), name: values}


def compare(results: dict[str, Any], way: str, metric: str) -> dict[str, float]:
    """Return the difference to early chunking with its 95 % bootstrap interval over queries."""
    values = np.array([results[way][metric], results["early"][metric]])
    (late, early), samples = resample(mean_scorer(values), values.shape[1])
    return asdict(difference(late - early, samples[0] - samples[1]))


def read_scifact(folder: Path, n_queries: int, n_documents: int) -> Collection:
    """Return a part of SciFact."""
    qrels: Qrels = defaultdict(dict)
    with (folder / "qrels-test.tsv").open() as file:
        for row in csv.DictReader(file, delimiter="\t"):
            qrels[row["query-id"]][row["corpus-id"]] = float(row["score"])
    with gzip.open(folder / "queries.jsonl.gz", "rt") as file:
        texts = {row["_id"]: row["text"] for row in map(json.loads, file)}
    queries = {id: texts[id] for id in sorted(qrels, key=int)[:n_queries]}
    with gzip.open(folder / "corpus.jsonl.gz", "rt") as file:
        corpus = {row["_id"]: f"{row['title'].rstrip('.')}. {row['text']}" for row in map(json.loads, file)}
    judged = sorted({document for id in queries for document in qrels[id]})
    others = random.Random(0).sample(sorted(corpus.keys() - set(judged)), n_documents - len(judged))
    documents = {id: corpus[id] for id in [*judged, *others]}
    spans = {id: sentence_spans(text) for id, text in documents.items()}
    return Collection(documents, spans, queries, {id: qrels[id] for id in queries}, {})


def read_pages(folder: Path, n_pages: int, encoder: Encoder) -> Collection:
    """Return long documents that are joined from the sections of pages, and headings as queries."""
    pages: dict[tuple[str, str], dict[str, str]] = defaultdict(dict)
    for file in sorted(folder.glob("pairs-*.tsv.gz")):
        with gzip.open(file, "rt") as lines:
            for line in lines:
                source, heading, text = line.rstrip("\n").split("\t")
                title, colon, section = heading.partition(": ")
                if source in SOURCES and colon and section != title and len(text.split()) >= 20:
                    pages[source, title].setdefault(section, text)
    documents, spans, queries = {}, {}, {}
    qrels: Qrels = {}
    chunk_qrels: Qrels = {}
    chunking = Chunking(CHUNK_TOKENS, 0)
    chooser = random.Random(0)
    for source in SOURCES:
        long = sorted(page for page, sections in pages.items() if page[0] == source and len(sections) in SECTIONS)
        for page in chooser.sample(long, n_pages):
            id, sections = f"{source}/{page[1]}", pages[page]
            text = "\n\n".join([page[1], *sections.values()])
            documents[id], spans[id] = text, chunk_spans(text, chunking.split(text, token_lengths(encoder)))
            for section in chooser.sample(sorted(sections), QUERIES_PER_PAGE):
                query = f"{page[1]}: {section}"
                begin = text.index(sections[section])
                overlaps = [min(end, begin + len(sections[section])) - max(start, begin) for start, end in spans[id]]
                queries[query], qrels[query] = query, {id: 1.0}
                chunk_qrels[query] = {f"{id}#{int(np.argmax(overlaps))}": 1.0}
    return Collection(documents, spans, queries, qrels, chunk_qrels)


def chunk_spans(text: str, chunks: list[str]) -> list[tuple[int, int]]:
    """Return where consecutive chunks are in a text."""
    spans, position = [], 0
    for chunk in chunks:
        begin = text.index(chunk, position)
        position = begin + len(chunk)
        spans.append((begin, position))
    return spans


if __name__ == "__main__":
    main()
