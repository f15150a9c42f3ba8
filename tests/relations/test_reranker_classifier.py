"""A reranker as the classifier of `PairMatcher`: what it learns from, direction, held-out documents, saving."""

from __future__ import annotations

import json

import numpy as np
import pytest

import decoder2vec as d2v
from decoder2vec.errors import EncoderError, InputError
from decoder2vec.relations.classifier import RerankerClassifier
from decoder2vec.relations.mentions import NONE, MentionSet
from decoder2vec.training import relation_classifier
from decoder2vec.training.api import train
from toys.command import d2v as command

SETTINGS = ("training.steps=3", "training.batch=4", "rank=2")

pytestmark = pytest.mark.usefixtures("one_thread")


def causes(n_documents=10):
    """Documents of a cause, its effect and another event, with the relation in both directions."""
    words = ("rain", "flood", "music")
    mentions = [
        d2v.Mention(f"{document}-{n}", f"The {word} of {document}.", (4, 4 + len(word)), str(document))
        for document in range(n_documents)
        for n, word in enumerate(words)
    ]
    relations = [
        d2v.Relation(f"{document}-{head}", f"{document}-{tail}", label)
        for document in range(n_documents)
        for head, tail, label in ((0, 1, "causes"), (1, 0, "caused by"))
    ]
    return mentions, relations


class RuleReranker:
    """Knows the rule: rain causes floods."""

    labels = (NONE, "caused by", "causes")

    def __init__(self):
        self.classified = []

    def classify_pairs(self, first, second):
        self.classified += zip(first, second, strict=True)
        rows = {("rain", "flood"): 2, ("flood", "rain"): 1}
        words = [
            tuple(text.split("<m>")[1].split("</m>")[0] for text in pair) for pair in zip(first, second, strict=True)
        ]
        return np.eye(3, dtype=np.float32)[[rows.get(pair, 0) for pair in words]].reshape(-1, 3)


class Training:
    """Remembers what it was called with."""

    def __init__(self):
        self.reranker = RuleReranker()

    def __call__(self, first, second, labels):
        self.rows = list(zip(first, second, labels, strict=True))
        return self.reranker


def encoder():
    return d2v.Encoder.from_pretrained("tiny-llama", device="cpu")


def test_direction_counts_and_held_out_documents_are_measured():
    mentions, relations = causes()
    training = Training()
    result = d2v.PairMatcher(encoder(), k=2, tune=False, train_classifier=training).fit(mentions, relations)
    assert result.scores.overall.f1 == 1.0 and set(result.scores.labels) == {"causes", "caused by"}
    held_out = {each.head.document for each in result.candidates}
    learned = {row[0].split(" of ")[1] for row in training.rows}
    assert len(held_out) == 2 and not learned & {f"{document}." for document in held_out}
    assert result.scores.overall.support == 4 and result.scores.n_pairs == 2 * 6
    assert len(training.reranker.classified) == result.scores.n_classified == 2 * 3 * 2


def test_it_learns_from_all_related_pairs_and_from_mistakes_of_the_retriever():
    mentions, relations = causes()
    training = Training()
    matcher = d2v.PairMatcher(encoder(), k=1, tune=False, train_classifier=training)
    matcher.fit(mentions, relations)
    by_text = {mention.marked: mention for mention in mentions}
    gold = {(each.head, each.tail): each.label for each in relations}
    learned = {(by_text[first].id, by_text[second].id): label for first, second, label in training.rows}
    used = {mention.document for mention in mentions} & {by_text[first].document for first, *_ in training.rows}
    positives = {pair: label for pair, label in gold.items() if pair[0].split("-")[0] in used}
    assert {pair: label for pair, label in learned.items() if label != NONE} == positives and len(used) == 8
    candidates = matcher.predict(mentions).candidates
    retrieved = {(each.head.id, each.tail.id) for each in candidates if each.head.document in used}
    assert {pair for pair, label in learned.items() if label == NONE} == retrieved - gold.keys()


def test_without_direction_both_orders_are_read():
    mentions, relations = causes()
    same = [d2v.Relation(each.tail, each.head, "same") for each in relations if each.label == "causes"]

    class Symmetric(RuleReranker):
        labels = (NONE, "same")

        def classify_pairs(self, first, second):
            rows = super().classify_pairs(first, second)
            return np.stack([1 - rows[:, 2], rows[:, 2]], axis=1)  # knows one direction only

    training = Training()
    training.reranker = Symmetric()
    matcher = d2v.PairMatcher(encoder(), k=2, directed=False, tune=False, train_classifier=training)
    result = matcher.fit(mentions, same)
    assert {(b, a, label) for a, b, label in training.rows} == set(training.rows)
    assert result.scores.overall.f1 == 1.0 and result.scores.n_pairs == 2 * 3
    assert {each.probability for each in result.relations} == {0.5}


def test_a_reranker_without_none_gives_it_no_probability():
    class Two(RuleReranker):
        labels = ("caused by", "causes")

        def classify_pairs(self, first, second):
            return np.full((len(first), 2), 0.5, np.float32)

    classifier = RerankerClassifier(Two())
    assert classifier.labels == (NONE, "caused by", "causes")
    assert classifier(["a", "b"], np.array([[0, 1]])).tolist() == [[0, 0.5, 0.5]]


def test_pairs_of_some_heads_are_counted():
    """Against a plain loop, with and without direction, one table and two."""
    mentions, _ = causes(3)
    for data in (
        MentionSet.of(mentions),
        MentionSet.of(mentions, directed=False),
        MentionSet.of(mentions[:4], mentions[4:]),
    ):
        chosen = [0, 3, 4] if data.n_heads is None else [0, 3]
        pairs = {
            data.pair(head, tail)
            for head in data.heads
            for tail in data.tails
            if head != tail and data.mentions[head].document == data.mentions[tail].document
        }
        assert data.n_pairs == len(pairs)
        assert data.count_pairs(chosen) == len([pair for pair in pairs if pair[0] in chosen])


def test_a_trained_matcher_is_saved_and_a_second_run_trains_nothing(tmp_path, monkeypatch):
    monkeypatch.setenv("D2V_CACHE", str(tmp_path / "cache"))
    mentions, relations = causes()
    trained = []

    def spy(*args, **options):
        result = train(*args, **options)
        trained.append(result.trained)
        return result

    monkeypatch.setattr(relation_classifier, "train", spy)
    results = []
    for _ in range(2):
        training = d2v.RerankerTraining("tiny-gpt2", SETTINGS, "cpu")
        matcher = d2v.PairMatcher("tiny-llama", k=2, tune=False, train_classifier=training, device="cpu")
        results.append(matcher.fit(mentions, relations))
    assert trained == [True, False] and results[0] == results[1]
    assert matcher.classifier.reranker.spec.template.startswith("First: ")
    matcher.save(tmp_path / "m")
    (tmp_path / "cache" / "relations").rename(tmp_path / "gone")
    loaded = d2v.PairMatcher.from_pretrained(tmp_path / "m", device="cpu")
    assert loaded.predict(mentions) == matcher.predict(mentions) and loaded.labels == ("caused by", "causes")
    loaded.save(tmp_path / "m")  # replaced
    file = tmp_path / "m" / "classifier" / "reranker.json"
    file.write_text(json.dumps({**json.loads(file.read_text("utf-8")), "format": 9}), "utf-8")
    with pytest.raises(EncoderError, match="not a saved reranker"):
        d2v.PairMatcher.from_pretrained(tmp_path / "m", device="cpu")


def test_all_weights_are_saved_with_the_matcher(tmp_path, monkeypatch):
    monkeypatch.setenv("D2V_CACHE", str(tmp_path / "cache"))
    mentions, relations = causes()
    training = d2v.RerankerTraining("tiny-gpt2", (*SETTINGS[:2], "weights=full", "training.rate=1e-4"), "cpu")
    matcher = d2v.PairMatcher("tiny-llama", k=2, tune=False, train_classifier=training, device="cpu")
    matcher.fit(mentions, relations)
    expected = matcher.predict(mentions)
    matcher.save(tmp_path / "m")
    assert (tmp_path / "m" / "classifier" / "backbone").is_dir(), "the cache may be emptied"
    for _ in range(2):
        loaded = d2v.PairMatcher.from_pretrained(tmp_path / "m", device="cpu")
        assert loaded.predict(mentions) == expected
        loaded.save(tmp_path / "m")  # with its weights, which are in the folder that is replaced


def test_bad_input_gets_a_sentence():
    mentions, relations = causes()
    few = d2v.PairMatcher(encoder(), k=1, tune=False, train_classifier=d2v.RerankerTraining("tiny-gpt2"))
    with pytest.raises(InputError, match=r"pairs to train a reranker on, and 20 are the least"):
        few.fit(mentions[:9], relations[:6])
    matcher = d2v.PairMatcher(encoder(), k=2, tune=False, train_classifier=Training())
    with pytest.raises(InputError, match="relations are in one document"):
        matcher.fit(mentions, relations[:2])


def test_from_the_command_line_with_documents_per_line(tmp_path, monkeypatch):
    monkeypatch.setenv("D2V_CACHE", str(tmp_path / "cache"))
    rows = []
    for number in range(14):
        text = f"It was day {number}. The rain came, and the flood."
        mentions = [
            {"id": word, "start": text.index(word), "end": text.index(word) + len(word)} for word in ("rain", "flood")
        ]
        relations = [{"head": "rain", "tail": "flood", "label": "causes"}]
        rows.append({"id": f"d{number}", "text": text, "mentions": mentions, "relations": relations})
    file = tmp_path / "documents.jsonl"
    file.write_text("\n".join(map(json.dumps, rows)), "utf-8")
    options = ["--encoder", "tiny-llama", "--k", 1, "--device", "cpu", "--no-tune"]
    settings = [part for setting in SETTINGS for part in ("--set", setting)]
    out = tmp_path / "report.html"
    trained = command(
        "relate", file, *options, "--classifier", "tiny-gpt2", *settings, "--save", tmp_path / "m", "--out", out
    )
    assert trained.exit_code == 0, trained.output
    assert "on documents that were held out" in trained.stdout and "recall@1" in trained.stdout
    assert "<mark>rain</mark>" in out.read_text("utf-8") or "flood" in out.read_text("utf-8")
    assert command("relate", file, "--matcher", tmp_path / "m", "--device", "cpu").exit_code == 0
    with pytest.raises(InputError, match="--classifier belongs to the training"):
        command("relate", file, "--matcher", tmp_path / "m", "--classifier", "tiny-gpt2")
    with pytest.raises(InputError, match="settings of the training of --classifier"):
        command("relate", file, "--set", "rank=2")
