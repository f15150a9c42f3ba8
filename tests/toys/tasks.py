"""A folder of small tasks, one of each kind, and encoders whose scores are known from theory."""

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
    """Write a TSV file, gzipped if its name ends in .gz."""
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


def write_retrieval(folder, documents, queries, qrels):
    write_jsonl(folder / "corpus.jsonl.gz", [{"_id": k, "title": "", "text": v} for k, v in documents.items()])
    write_jsonl(folder / "queries.jsonl", [{"_id": k, "text": v} for k, v in queries.items()])
    write_table(folder / "qrels-test.tsv", ("query-id", "corpus-id", "score"), qrels)
    return folder


def write_toy_tasks(root):
    """Write sts/mine, pairs/same, classification/topics, clustering/groups, retrieval/mini and reranking/few."""
    texts = [text for _, text in LABELLED]
    pairs = [(a, b, texts[a], texts[b]) for a in range(0, 72, 3) for b in range(1, 72, 17)]
    scored = [(5 * (LABELLED[a][0] == LABELLED[b][0]) - (a + b) % 3, left, right) for a, b, left, right in pairs]
    labelled = [(int(LABELLED[a][0] == LABELLED[b][0]), left, right) for a, b, left, right in pairs]
    write_table(root / "sts" / "mine-test.tsv", ("score", "sentence1", "sentence2"), scored)
    write_table(root / "sts" / "mine-dev.tsv", ("score", "sentence1", "sentence2"), scored[::2])
    write_table(root / "pairs" / "same-test.tsv.gz", ("label", "sentence1", "sentence2"), labelled)
    write_table(root / "classification" / "topics-train.tsv", ("label", "text"), LABELLED[::2])
    write_table(root / "classification" / "topics-test.tsv.gz", ("label", "text"), LABELLED[1::2])
    write_table(root / "clustering" / "groups.tsv", ("label", "subject", "body"), [(a, b, "x") for a, b in LABELLED])
    documents = {f"d{i:02d}": text for i, text in enumerate(texts)}
    words = sum(TOPICS.values(), ())
    queries = {f"q{i}": f"What of {word}?" for i, word in enumerate(words)}
    qrels = [(f"q{i}", f"d{d:02d}", 1) for i, word in enumerate(words) for d in relevant_documents(word, texts)]
    write_retrieval(root / "retrieval" / "mini", documents, queries, qrels)
    candidates = [
        {"query": f"All on {topic}", "positive": sentences(topic)[:3], "negative": other_topics(topic)}
        for topic in TOPICS
    ]
    write_jsonl(root / "reranking" / "few.jsonl", candidates)
    return root


def relevant_documents(word, texts):
    return [index for index, text in enumerate(texts) if word in text][:3]


def other_topics(topic):
    return [text for label, text in LABELLED if label != topic][::6]


class CountingEncoder:
    """Records the texts and prompts that it encodes."""

    dim = 16
    fingerprint = None

    def __init__(self):
        self.encoded = []

    def encode(self, texts, **options):
        self.encoded += [(text, options.get("prompt", "")) for text in texts]
        return np.stack([self.vector(text) for text in texts])


class RandomEncoder(CountingEncoder):
    """A random vector for each text, seeded by its hash."""

    def vector(self, text):
        seed = int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little")
        return np.random.default_rng(seed).normal(size=self.dim).astype(np.float32)


class ConstantEncoder(CountingEncoder):
    """The same vector for every text."""

    def vector(self, text):
        return np.ones(self.dim, np.float32)


class TopicEncoder(CountingEncoder):
    """Vectors of topics and words: texts on one topic are near each other."""

    fingerprint = "topics"

    def vector(self, text):
        words = [word for topic in TOPICS.values() for word in topic]
        topic = [float(any(word in text for word in words)) * 3 for words in TOPICS.values()]
        named = [float(name in text) * 3 for name in TOPICS]
        return np.array([a + b for a, b in zip(topic, named, strict=True)] + [float(w in text) for w in words[:13]])
