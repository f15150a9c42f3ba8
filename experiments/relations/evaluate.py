"""Measure relation extraction on the Event StoryLine Corpus: k, negatives, marked sentences, tuning, calls saved.

    python experiments/relations/evaluate.py esc.jsonl.gz smollm2-135m-general results/relations/esc.json --seeds 3

The corpus has a document per line: id, topic, tokens, the sentence of each token, events and relations. Relations are
its plot links with a type; direction matters. Documents are split by topic. The threshold of each arm is chosen by F1
on the dev topics, and the test topics are scored once. Arms that are in the output file are not measured again.
"""

from __future__ import annotations

import argparse
import gzip
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from decoder2vec.evaluation.baselines import load_encoder
from decoder2vec.relations.candidates import Candidates
from decoder2vec.relations.classifier import RerankerClassifier
from decoder2vec.relations.matcher import PairMatcher
from decoder2vec.relations.mentions import NONE, Mention, MentionSet, Relation
from decoder2vec.relations.metrics import RelationScores, accuracy, score_labels
from decoder2vec.relations.retriever import Retriever
from decoder2vec.relations.training import MatcherTraining, best_threshold
from decoder2vec.storage import versions, write_json
from decoder2vec.training.relation_classifier import RerankerTraining

DEV_TOPICS = {"37", "41"}
TEST_TOPICS = {"23", "24", "30", "32", "33", "35"}
ALL_PAIRS = 1000
"""As k: more than any document has events."""


class RandomNegatives(MatcherTraining):
    """Learns from as many unrelated pairs as were retrieved, but drawn at random from all pairs of the documents."""

    def examples(
        self, used: NDArray[np.bool_] | None = None
    ) -> tuple[Retriever, Candidates, NDArray[np.intp], list[str]]:
        """The same examples with random unrelated pairs in the place of the retrieved ones."""
        used = np.ones(len(self.data.mentions), bool) if used is None else used
        retriever, candidates, pairs, targets = super().examples(used)
        unrelated = [
            (head, tail)
            for heads, tails in self.data.by_document()
            for head in heads
            for tail in tails
            if head != tail and used[head] and (head, tail) not in self.gold
        ]
        rows = np.random.default_rng(self.seed).permutation(len(unrelated))[: targets.count(NONE)]
        related = [(head, tail) for head, tail in pairs.tolist() if (head, tail) in self.gold]
        chosen = sorted({*related, *(unrelated[row] for row in rows)})
        return retriever, candidates, np.array(chosen, np.intp), [self.gold.get(pair, NONE) for pair in chosen]


class ReadTogether(MatcherTraining):
    """Trains a reranker, which reads both sentences, instead of the small network on two vectors."""

    def __init__(self, *args: Any, reranker: RerankerTraining, **options: Any) -> None:
        super().__init__(*args, **options)
        self.reranker = reranker

    def fit(self, used: NDArray[np.bool_] | None = None) -> Any:
        """The retriever, the classifier and the candidates of all heads."""
        retriever, candidates, pairs, targets = self.examples(used)
        texts = [mention.marked for mention in self.data.mentions]
        classifier = RerankerClassifier.fit(self.reranker, texts, pairs, targets, directed=True)
        return retriever, _OfTexts(classifier, texts), candidates


class _OfTexts:
    """A classifier of texts that is called with vectors."""

    def __init__(self, classifier: RerankerClassifier, texts: list[str]) -> None:
        self.classifier, self.texts, self.labels = classifier, texts, classifier.labels

    def __call__(self, vectors: NDArray[np.float32], pairs: NDArray[np.intp]) -> NDArray[np.float32]:
        return self.classifier(self.texts, pairs)


ARMS: dict[str, tuple[type[MatcherTraining], str, int, bool]] = {
    "k = 5": (MatcherTraining, "marked", 5, True),
    "all pairs": (MatcherTraining, "marked", ALL_PAIRS, False),
    "k = 3": (MatcherTraining, "marked", 3, True),
    "k = 7": (MatcherTraining, "marked", 7, True),
    "k = 10": (MatcherTraining, "marked", 10, True),
    "k = 5, random negatives": (RandomNegatives, "marked", 5, True),
    "k = 5, trigger only": (MatcherTraining, "trigger", 5, True),
    "k = 5, retriever not tuned": (MatcherTraining, "marked", 5, False),
    "k = 5, reranker": (ReadTogether, "marked", 5, True),
    "k = 3, reranker": (ReadTogether, "marked", 3, True),
    "all pairs, reranker": (ReadTogether, "marked", ALL_PAIRS, False),
}
"""Training, text that is encoded, k, and whether the retriever is tuned."""


def main() -> None:
    """Measure all arms, print them and write one JSON file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", type=Path)
    parser.add_argument("encoder")
    parser.add_argument("out", type=Path)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--arms", nargs="+", choices=ARMS, default=list(ARMS))
    parser.add_argument("--reranker", default="smollm2-135m", help="the model that reads pairs")
    parser.add_argument("--set", nargs="*", default=[], help="key=value over the training of the reranker")
    args = parser.parse_args()
    mentions, relations, topics = read_corpus(args.corpus)
    data = MentionSet.of(mentions)
    gold = data.gold(relations)
    parts = {
        "dev": np.isin(topics, list(DEV_TOPICS)),
        "test": np.isin(topics, list(TEST_TOPICS)),
    }
    parts["train"] = ~(parts["dev"] | parts["test"])
    vectors = encode(args.encoder, mentions)
    output: dict[str, Any] = json.loads(args.out.read_text(encoding="utf-8")) if args.out.is_file() else {"arms": {}}
    output |= {
        "encoder": args.encoder,
        "documents": len(data.by_document()),
        "events": len(mentions),
        "relations": {part: sum(bool(rows[head]) for head, _ in gold) for part, rows in parts.items()},
        "versions": versions(),
    }
    for name in args.arms:
        training, form, k, tune = ARMS[name]
        for seed in range(args.seeds):
            key = name if args.seeds == 1 else f"{name}, seed {seed}"
            if key not in output["arms"]:
                reranker = RerankerTraining(args.reranker, tuple(args.set), seed=seed)
                options = {"reranker": reranker} if training is ReadTogether else {}
                run = training(data, gold, vectors[form], k, tune=tune, seed=seed, **options)
                output["arms"][key] = measure(run, parts)
                args.out.parent.mkdir(parents=True, exist_ok=True)
                write_json(args.out, output)
            print(key, json.dumps({part: output["arms"][key][part]["overall"] for part in ("dev", "test")}), flush=True)


def read_corpus(file: Path) -> tuple[list[Mention], list[Relation], NDArray[np.str_]]:
    """The events with their sentences, the typed plot links between them, and the topic of each event."""
    mentions, relations, topics = [], [], []
    with gzip.open(file, "rt", encoding="utf-8") as lines:
        for document in map(json.loads, lines):
            id, tokens, sentences = document["id"], document["tokens"], document["sentence"]
            for event in document["events"]:
                begin, end = event["tokens"][0], event["tokens"][-1] + 1
                rows = [row for row, sentence in enumerate(sentences) if sentence == sentences[begin]]
                before = "".join(f"{tokens[row]} " for row in rows if row < begin)
                trigger = " ".join(tokens[begin:end])
                after = "".join(f" {tokens[row]}" for row in rows if row >= end)
                span = (len(before), len(before) + len(trigger))
                mentions.append(Mention(f"{id}/{event['id']}", before + trigger + after, span, id))
                topics.append(document["topic"])
            links = {
                (link["source"], link["target"]): link["type"]
                for link in document["relations"]
                if link["kind"] == "PLOT_LINK" and link["type"]
            }
            relations += [Relation(f"{id}/{head}", f"{id}/{tail}", label) for (head, tail), label in links.items()]
    return mentions, relations, np.array(topics)


def encode(encoder: str, mentions: list[Mention]) -> dict[str, NDArray[np.float32]]:
    """[mentions, dim] vectors of the marked sentences and of the triggers alone; the cache keeps them."""
    matcher = PairMatcher(load_encoder(encoder))
    forms: dict[str, Callable[[Mention], Mention]] = {
        "marked": lambda mention: mention,
        "trigger": lambda mention: Mention(mention.id, mention.trigger, None, mention.document),
    }
    return {name: matcher.encode(MentionSet.of(map(form, mentions))) for name, form in forms.items()}


def measure(training: MatcherTraining, parts: dict[str, NDArray[np.bool_]]) -> dict[str, Any]:
    """Train on the train topics, choose the threshold on dev, and score dev and test."""
    started = time.perf_counter()
    _, classifier, candidates = training.fit(parts["train"])
    threshold, result = 0.5, {}
    for part in ("dev", "test"):
        chosen = candidates.select(parts[part][candidates.pairs[:, 0]])
        gold = {pair: label for pair, label in training.gold.items() if parts[part][pair[0]]}
        probabilities = classifier(training.vectors, chosen.pairs)
        if part == "dev":
            threshold = best_threshold(chosen, probabilities, classifier.labels, gold)
        labels = np.where(1 - probabilities[:, 0] >= threshold, 1 + probabilities[:, 1:].argmax(axis=1), 0)
        predicted = {
            pair: classifier.labels[label] for pair, label in zip(chosen.tuples(), labels, strict=True) if label
        }
        assert NONE not in predicted.values()
        n_pairs = sum(
            len(heads) * (len(heads) - 1) for heads, _ in training.data.by_document() if parts[part][heads[0]]
        )
        overall, by_label = score_labels(gold, predicted)
        share = accuracy(gold, predicted, n_pairs)
        scores = RelationScores(overall, by_label, share, training.k, chosen.recall(gold), len(chosen), n_pairs)
        result[part] = scores.to_json()
    return {**result, "threshold": threshold, "seconds": round(time.perf_counter() - started, 1)}


if __name__ == "__main__":
    main()
