"""`PairMatcher`: direction, markers, documents, what it learns from, folders, and one sentence for bad input."""

from __future__ import annotations

import json
import logging
import re
from zlib import crc32

import numpy as np
import pytest

import decoder2vec as d2v
from decoder2vec.errors import EncoderError, InputError
from decoder2vec.relations.candidates import Candidates
from decoder2vec.relations.classifier import PairClassifier
from decoder2vec.relations.mentions import NONE, MentionSet
from decoder2vec.relations.metrics import score_labels
from decoder2vec.relations.training import MatcherTraining, best_threshold, split_folds

pytestmark = pytest.mark.usefixtures("one_thread", "three_folds")


@pytest.fixture
def three_folds(monkeypatch):
    """Three folds instead of five, which is enough for toys and takes less time."""
    monkeypatch.setattr("decoder2vec.relations.training.N_FOLDS", 3)


class BagOfWords:
    """An encoder whose vectors are sums of random vectors of words and of pairs of neighbouring words."""

    def __init__(self):
        self.encoded = []

    def encode(self, texts):
        self.encoded += texts
        return np.stack(
            [sum(map(self._vector, [*text.split(), *re.findall(r"(?=(\S+ \S+))", text)])) for text in texts]
        )

    def _vector(self, word):
        return np.random.default_rng(crc32(word.encode())).normal(size=16)


def causes(n_documents=15):
    """Documents of a cause, its effect and two other events, with the relation in both directions."""
    words = ("rain cause", "flood effect", "music other", "market other")
    mentions = [
        d2v.Mention(f"{document}-{n}", f"{word} at place{document}", document=str(document))
        for document in range(n_documents)
        for n, word in enumerate(words)
    ]
    relations = [
        d2v.Relation(f"{document}-{head}", f"{document}-{tail}", label)
        for document in range(n_documents)
        for head, tail, label in ((0, 1, "causes"), (1, 0, "caused by"))
    ]
    return mentions, relations


def labels_of(result):
    return {(each.head.id, each.tail.id): each.label for each in result.relations}


def test_swapped_pairs_get_another_label():
    mentions, relations = causes()
    matcher = d2v.PairMatcher(BagOfWords(), k=3)
    result = matcher.fit(mentions[:-4], relations[:-2])
    assert result.scores.overall.f1 == 1.0  # by cross-validation
    assert labels_of(matcher.predict(mentions[-4:])) == {("14-0", "14-1"): "causes", ("14-1", "14-0"): "caused by"}


def test_features_of_a_swapped_pair_differ_unless_it_has_no_direction():
    import torch

    vectors = torch.randn(2, 8)
    for directed in (True, False):
        classifier = PairClassifier(["x"], 8, directed)
        forward, backward = (classifier.features(vectors, np.array([pair])) for pair in ((0, 1), (1, 0)))
        assert torch.equal(forward, backward) is not directed


def test_every_text_is_encoded_once():
    mentions, relations = causes()
    encoder = BagOfWords()
    matcher = d2v.PairMatcher(encoder, k=2, tune=False)
    matcher.fit(mentions, relations)
    matcher.predict(mentions)
    assert sorted(encoder.encoded) == sorted(mention.marked for mention in mentions)


def test_only_candidates_are_classified(monkeypatch):
    mentions, relations = causes()
    matcher = d2v.PairMatcher(BagOfWords(), k=2, tune=False)
    matcher.fit(mentions, relations)
    classified, call = [], PairClassifier.__call__
    monkeypatch.setattr(
        PairClassifier, "__call__", lambda self, v, pairs: (classified.append(pairs), call(self, v, pairs))[1]
    )
    result = matcher.predict(mentions, known=relations)
    assert len(np.concatenate(classified)) == result.scores.n_classified == len(result.candidates) == 2 * len(mentions)
    assert result.scores.n_pairs == 3 * len(mentions) and result.scores.reduction_ratio == pytest.approx(1 / 3)


def test_large_k_equals_classifying_all_pairs():
    mentions, relations = causes()
    exact, larger = (d2v.PairMatcher(BagOfWords(), k=k, tune=False) for k in (3, 99))
    results = [matcher.fit(mentions, relations) for matcher in (exact, larger)]
    assert results[0].candidates == results[1].candidates
    assert results[0].scores.recall_at_k == 1.0 and results[0].scores.n_classified == results[0].scores.n_pairs


def test_pairs_that_are_not_retrieved_count_against_recall():
    """The related pair is the one that is least similar, and the retriever is not tuned."""
    mentions, _ = causes()
    encoder = BagOfWords()
    vectors = encoder.encode([mention.marked for mention in mentions])
    relations = []
    for begin in range(0, len(mentions), 4):
        cosines = [np.corrcoef(vectors[begin], vectors[begin + n])[0, 1] for n in (1, 2, 3)]
        relations.append(d2v.Relation(mentions[begin].id, mentions[begin + 1 + int(np.argmin(cosines))].id))
    result = d2v.PairMatcher(encoder, k=1, tune=False).fit(mentions, relations)
    assert result.scores.recall_at_k < 0.5 and result.scores.overall.recall <= result.scores.recall_at_k
    assert len(result.not_retrieved) == round((1 - result.scores.recall_at_k) * len(relations))


def test_classifier_learns_from_all_related_pairs_and_from_mistakes_of_the_retriever(monkeypatch):
    mentions, relations = causes()
    data = MentionSet.of(mentions)
    gold, learned, fit = data.gold(relations), {}, PairClassifier.fit

    def spy(self, vectors, pairs, targets, seed):
        learned.update({(int(head), int(tail)): target for (head, tail), target in zip(pairs, targets, strict=True)})
        return fit(self, vectors, pairs, targets, seed)

    monkeypatch.setattr(PairClassifier, "fit", spy)
    vectors = BagOfWords().encode([mention.marked for mention in mentions]).astype(np.float32)
    used = np.arange(len(mentions)) >= 8
    _, _, candidates = MatcherTraining(data, gold, vectors, 1, tune=False).fit(used)
    positives = {pair: label for pair, label in gold.items() if used[pair[0]]}
    assert positives.keys() - set(candidates.tuples())  # some were not retrieved
    retrieved = {pair: gold.get(pair, NONE) for pair in candidates.tuples() if used[pair[0]]}
    assert learned == {**retrieved, **positives}


def test_rule_that_needs_the_marker_is_learned_from_marked_sentences_only():
    """The same word twice in a sentence: the first mention is related to the second, and not the other way around."""
    marked, bare, relations = [], [], []
    for n in range(20):
        text = f"Ann{n} met and Bob{n} met"
        for name, start in (("a", text.index("met")), ("b", text.rindex("met"))):
            marked.append(d2v.Mention(f"{n}{name}", text, (start, start + 3), str(n)))
            bare.append(d2v.Mention(f"{n}{name}", "met", None, str(n)))
        relations.append(d2v.Relation(f"{n}a", f"{n}b", "before"))

    def f1(mentions):
        return d2v.PairMatcher(BagOfWords(), k=1, tune=False).fit(mentions, relations).scores.overall.f1

    assert f1(marked) == 1.0 and f1(bare) < 0.7


def test_direction_can_be_left_out():
    mentions, relations = causes()
    relations = [d2v.Relation(each.tail, each.head, "same") for each in relations if each.label == "causes"]
    matcher = d2v.PairMatcher(BagOfWords(), k=3, directed=False, tune=False)
    assert matcher.fit(mentions, relations).scores.overall.f1 == 1.0
    (found,) = matcher.predict([mentions[5], mentions[4]]).relations
    assert found.label == "same"


def test_two_tables():
    mentions, relations = causes()
    heads, tails = mentions[::4], [mention for n, mention in enumerate(mentions) if n % 4]
    matcher = d2v.PairMatcher(BagOfWords(), k=3, tune=False)
    result = matcher.fit(heads, [each for each in relations if each.label == "causes"], tails)
    assert result.scores.overall.f1 == 1.0 and result.scores.n_classified == 3 * len(heads)


def test_rare_labels_are_kept():
    mentions, relations = causes(30)
    relations = [each for n, each in enumerate(relations) if each.label == "causes" or n < 20]
    result = d2v.PairMatcher(BagOfWords(), k=3, tune=False).fit(mentions, relations)
    assert set(result.scores.labels) == {"causes", "caused by"} and result.scores.labels["causes"].f1 > 0.9


def test_threshold_gives_the_best_f1():
    rng = np.random.default_rng(0)
    pairs = [(n, n + 1) for n in range(200)]
    gold = {pair: str(rng.choice(["x", "y"])) for pair in pairs if rng.random() < 0.3}
    probabilities = np.round(rng.dirichlet([2, 1, 1], len(pairs)), 2).astype(np.float32)  # with ties
    candidates = Candidates(np.array(pairs), np.zeros(200), np.ones(200, int))

    def f1(threshold):
        chosen = {
            pair: "xy"[row[1:].argmax()]
            for pair, row in zip(pairs, probabilities, strict=True)
            if 1 - np.float64(row[0]) >= threshold
        }
        return score_labels(gold, chosen)[0].f1

    none = candidates.select(np.zeros(len(candidates), bool))
    assert best_threshold(none, probabilities[:0], (NONE, "x", "y"), gold) == 0.5
    best = best_threshold(candidates, probabilities, (NONE, "x", "y"), gold)
    assert f1(best) == pytest.approx(max(f1(threshold) for threshold in np.linspace(0, 1, 401)))


def test_folds_keep_documents_together():
    mentions, _ = causes()
    folds = split_folds(MentionSet.of(mentions)).reshape(-1, 4)
    assert (folds == folds[:, :1]).all() and set(folds[:, 0]) == set(range(3))


def test_saved_matcher_predicts_the_same(tmp_path):
    mentions, relations = causes()
    matcher = d2v.PairMatcher("tiny-llama", k=2, layer=1, pooling="mean")
    matcher.fit(mentions, relations)
    expected = matcher.predict(mentions)
    matcher.save(tmp_path / "m")
    assert d2v.PairMatcher.from_pretrained(tmp_path / "m").predict(mentions) == expected
    matcher.save(tmp_path / "m")  # replaced
    own = d2v.PairMatcher(d2v.Encoder.from_pretrained("tiny-llama"), k=2, tune=False)
    own.fit(mentions, relations)
    own.save(tmp_path / "own")
    assert (tmp_path / "own" / "encoder" / "encoder.json").is_file()
    loaded = d2v.PairMatcher.from_pretrained(tmp_path / "own")
    assert loaded.predict(mentions) == own.predict(mentions)
    loaded.save(tmp_path / "own")  # with its encoder, which is in the folder that is replaced
    assert d2v.PairMatcher.from_pretrained(tmp_path / "own").predict(mentions) == own.predict(mentions)


def test_saved_matcher_finds_its_encoder_from_another_folder(tmp_path, monkeypatch):
    """The encoder was named by a path of the working directory."""
    mentions, relations = causes()
    d2v.Encoder.from_pretrained("tiny-llama", layer=1, pooling="mean").save(tmp_path / "enc")
    monkeypatch.chdir(tmp_path)
    matcher = d2v.PairMatcher("enc", k=2, tune=False)
    matcher.fit(mentions, relations)
    matcher.save("m")
    monkeypatch.chdir("/")
    assert d2v.PairMatcher.from_pretrained(tmp_path / "m").predict(mentions) == matcher.predict(mentions)


def test_an_undirected_matcher_of_two_tables_is_saved(tmp_path):
    mentions, relations = causes()
    heads = [mention for mention in mentions if mention.id.endswith("-0")]
    tails = [mention for mention in mentions if not mention.id.endswith("-0")]
    matcher = d2v.PairMatcher("tiny-llama", k=2, tune=False, directed=False)
    matcher.fit(heads, [relation for relation in relations if relation.label == "causes"], tails)
    matcher.save(tmp_path / "m")
    loaded = d2v.PairMatcher.from_pretrained(tmp_path / "m")
    assert loaded.predict(heads, tails) == matcher.predict(heads, tails) and not loaded.directed


def test_training_is_deterministic():
    mentions, relations = causes()
    first, second = (d2v.PairMatcher(BagOfWords(), k=2, tune=False).fit(mentions, relations) for _ in range(2))
    assert first == second


def test_second_run_encodes_nothing_again(tmp_path, monkeypatch):
    monkeypatch.setenv("D2V_CACHE", str(tmp_path))
    mentions, relations = causes()

    def fit():
        encoder = BagOfWords()
        encoder.fingerprint = "bag of words"
        d2v.PairMatcher(encoder, k=2, tune=False).fit(mentions, relations)
        return len(encoder.encoded)

    assert (fit(), fit()) == (len(mentions), 0)


def test_bad_folders_get_a_sentence(tmp_path):
    with pytest.raises(InputError, match="not the folder of a saved matcher"):
        d2v.PairMatcher.from_pretrained(tmp_path)
    mentions, relations = causes()
    matcher = d2v.PairMatcher("tiny-llama", k=2, tune=False)
    matcher.fit(mentions, relations)
    file = matcher.save(tmp_path / "m") / "matcher.json"
    description = json.loads(file.read_text("utf-8"))
    file.write_text(json.dumps({**description, "encoder_fingerprint": "other"}), "utf-8")
    with pytest.raises(EncoderError, match="is not the one that the matcher"):
        d2v.PairMatcher.from_pretrained(tmp_path / "m")
    for damage in ({**description, "format": 9}, {**description, "labels": ["one"]}, {}):
        file.write_text(json.dumps(damage), "utf-8")
        with pytest.raises(EncoderError, match="not a saved matcher, or damaged"):
            d2v.PairMatcher.from_pretrained(tmp_path / "m")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("keep", "utf-8")
    with pytest.raises(InputError, match="holds notes"):
        matcher.save(tmp_path / "mine")


def test_bad_input_gets_a_sentence(caplog):
    mentions, relations = causes()
    matcher = d2v.PairMatcher(BagOfWords(), k=2, tune=False)
    with pytest.raises(InputError, match="not trained"):
        matcher.predict(mentions)
    with pytest.raises(InputError, match="not trained"):
        matcher.save("m")
    for few in ([], relations[:1], [d2v.Relation("0-0", "0-1", NONE)]):
        with pytest.raises(InputError, match="relations to learn from"):
            matcher.fit(mentions, few)
    with pytest.raises(InputError, match="relations are in one document"):
        matcher.fit(mentions, relations[:2])
    with pytest.raises(InputError, match="k is 0"):
        d2v.PairMatcher(BagOfWords(), k=0, tune=False)
    with pytest.raises(InputError, match="has no `encode`"):
        d2v.PairMatcher(object())
    with pytest.raises(InputError, match="dimensions are too long"):
        d2v.PairMatcher("random:9000").fit(mentions, relations)
    matcher.fit(mentions, relations)
    with pytest.raises(InputError, match=r"not seen the label 'prevents'.*it knows caused by, causes"):
        matcher.predict(mentions, known=[d2v.Relation("0-0", "0-1", "prevents")])
    one_document = [d2v.Mention(each.id, each.text) for each in mentions]
    with caplog.at_level(logging.WARNING):
        matcher.fit(one_document, relations)
    assert "All mentions are of one document" in caplog.text


def test_markers_that_the_encoder_does_not_see_get_a_sentence(caplog):
    text = "Ann met and Bob met"
    mentions = [d2v.Mention(str(start), text, (start, start + 3)) for start in (4, 16)]

    class WithoutMarkers(BagOfWords):
        def encode(self, texts):
            return super().encode([re.sub("</?m>", "", text) for text in texts])

    for encoder, warned in ((BagOfWords(), False), (WithoutMarkers(), True)):
        d2v.PairMatcher(encoder).encode(MentionSet.of(mentions))
        assert ("mentions '4' and '16' of one sentence the same vector" in caplog.text) is warned
