"""A folder of small tasks, one of each kind, and encoders of which theory says how they must score."""

from __future__ import annotations

import gzip
import hashlib
import json

import numpy as np

TOPICS = {
    "weather": ("rain", "snow", "wind", "cloud", "storm", "frost"),
    "kitchen": ("bread", "soup", "salt", "oven", "knife", "plate"),
    "sea": ("boat", "wave", "fish", "sail", "reef", "tide"),
}
FORMS = ("The {0} is here.", "We spoke of {0} today.", "Nobody expected {0} at noon.", "A note on {0} and {1}.")


def sentences(topic, count=24):
    words = TOPICS[topic]
    return [FORMS[i % 4].format(words[i % 6], words[(i // 6 + 1) % 6]) + f" ({i})" for i in range(count)]


LABELLED = [(topic, text) for topic in TOPICS for text in sentences(topic)]


def write_table(file, columns, rows):
    """A TSV file, gzipped if its name says so."""
    file.parent.mkdir(parents=True, exist_ok=True)
    lines = ["\t".join(map(str, row)) for row in [columns, *rows]]
    opener = gzip.open if file.suffix == ".gz" else open
    with opener(file, "wt", encoding="utf-8") as handle:
        handle.write("\n".join(lines) + "\n")
    return file


def write_jsonl(file, rows):
    file.parent.mkdir(parents=True, exist_ok=True)
    opener = gzip.open if file.suffix == ".gz" else open
    with opener(file, "wt", encoding="utf-8") as handle:
        handle.writelines(json.dumps(row) + "\n" for row in rows)
    return file


def write_retrieval(folder, documents, queries, judgements):
    write_jsonl(folder / "corpus.jsonl.gz", [{"_id": k, "title": "", "text": v} for k, v in documents.items()])
    write_jsonl(folder / "queries.jsonl", [{"_id": k, "text": v} for k, v in queries.items()])
    write_table(folder / "qrels-test.tsv", ("query-id", "corpus-id", "score"), judgements)
    return folder


def write_all(home):
    """sts/mine, pairs/same, classification/topics, clustering/topics, retrieval/mini, reranking/few."""
    texts = [text for _, text in LABELLED]
    pairs = [(a, b, texts[a], texts[b]) for a in range(0, 72, 3) for b in range(1, 72, 17)]
    scored = [(5 * (LABELLED[a][0] == LABELLED[b][0]) - (a + b) % 3, left, right) for a, b, left, right in pairs]
    yes_or_no = [(int(LABELLED[a][0] == LABELLED[b][0]), left, right) for a, b, left, right in pairs]
    write_table(home / "sts" / "mine-test.tsv", ("score", "sentence1", "sentence2"), scored)
    write_table(home / "sts" / "mine-dev.tsv", ("score", "sentence1", "sentence2"), scored[::2])
    write_table(home / "pairs" / "same-test.tsv.gz", ("label", "sentence1", "sentence2"), yes_or_no)
    write_table(home / "classification" / "topics-train.tsv", ("label", "text"), LABELLED[::2])
    write_table(home / "classification" / "topics-test.tsv.gz", ("label", "text"), LABELLED[1::2])
    write_table(home / "clustering" / "groups.tsv", ("label", "subject", "body"), [(a, b, "x") for a, b in LABELLED])
    documents = {f"d{i:02d}": text for i, text in enumerate(texts)}
    queries = {f"q{i}": f"What of {word}?" for i, word in enumerate(sum(TOPICS.values(), ()))}
    judged = [(f"q{i}", f"d{d:02d}", 1) for i, word in enumerate(sum(TOPICS.values(), ())) for d in hits(word, texts)]
    write_retrieval(home / "retrieval" / "mini", documents, queries, judged)
    few = [
        {"query": f"All on {topic}", "positive": sentences(topic)[:3], "negative": others(topic)} for topic in TOPICS
    ]
    write_jsonl(home / "reranking" / "few.jsonl", few)
    return home


def hits(word, texts):
    return [place for place, text in enumerate(texts) if word in text][:3]


def others(topic):
    return [text for label, text in LABELLED if label != topic][::6]


class Counting:
    """Keeps count of what it was asked to encode."""

    dim = 16
    fingerprint = None

    def __init__(self):
        self.asked = []

    def encode(self, texts, **options):
        self.asked += [(text, options.get("prompt", "")) for text in texts]
        return np.stack([self.vector(text) for text in texts])


class Random(Counting):
    """A vector for each text that has nothing to do with it."""

    def vector(self, text):
        seed = int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little")
        return np.random.default_rng(seed).normal(size=self.dim).astype(np.float32)


class Constant(Counting):
    """The same vector for every text."""

    def vector(self, text):
        return np.ones(self.dim, np.float32)


class Knowing(Counting):
    """Knows the topics: texts on one of them are near each other."""

    fingerprint = "knowing"

    def vector(self, text):
        words = [word for topic in TOPICS.values() for word in topic]
        topic = [float(any(word in text for word in words)) * 3 for words in TOPICS.values()]
        named = [float(name in text) * 3 for name in TOPICS]
        return np.array([a + b for a, b in zip(topic, named, strict=True)] + [float(w in text) for w in words[:13]])
