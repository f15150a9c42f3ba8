"""The probes of the unshuffle study: labels by hand, parts that share no text, training without probe sentences."""

from __future__ import annotations

import runpy
from pathlib import Path

import numpy as np
import pytest
import torch

STUDY = runpy.run_path(str(Path(__file__).parents[1] / "experiments" / "depth" / "study.py"))
Document = STUDY["Document"]


def sentences_of(source, number, count=6):
    return [f"{source} sentence {number} {place} is here." for place in range(count)]


@pytest.fixture(scope="module")
def pool():
    documents = []
    for source in ("wikipedia", "science", "openstax", "trials"):
        documents += [Document(source, "", sentences_of(source, number)) for number in range(60)]
    shorter = [document._replace(sentences=document.sentences[:3]) for document in documents[:10]]
    documents = [Document(each.source, " ".join(each.sentences), each.sentences) for each in documents + shorter]
    return documents


def number_and_place(sentence):
    return tuple(int(word) for word in sentence.split()[2:4])


def test_labels_are_those_of_the_texts(pool):
    probes, _ = STUDY["make_probes"](pool, 50)
    assert set(probes) == {f"{kind}/{text}" for kind in ("position", "coherence") for text in STUDY["PROBED"]}
    for name, probe in probes.items():
        assert len(probe.texts) == len(probe.labels) == 50 and probe.n_train == 40
        assert np.bincount(probe.labels, minlength=probe.n_classes).min() > 5 * 0.5
        for text, label in zip(probe.texts, probe.labels, strict=True):
            numbers, places = zip(*map(number_and_place, text), strict=True)
            if name.startswith("position"):
                assert places == (label, *(place for place in range(5) if place != label)) and len(set(numbers)) == 1
            else:
                assert len(set(numbers)) == 1 + label and numbers[0] == max(numbers, key=numbers.count)


def test_parts_share_no_text_and_training_sees_no_sentence_of_a_probe(pool):
    probes, used = STUDY["make_probes"](pool, 50)
    for probe in probes.values():
        parts = (probe.texts[: probe.n_train], probe.texts[probe.n_train :])
        train, test = ({number_and_place(s)[0] for text in part for s in text} for part in parts)
        assert not train & test
    texts = STUDY["training_texts"](pool, used, 1000)
    assert len(texts) == 3 * 10 + 60
    assert not any(sentence in text for sentence in used for text in texts)
    assert STUDY["training_texts"](pool, used, 7) == texts[:7]


def test_a_probe_finds_what_is_in_the_vectors_and_nothing_else():
    random = np.random.default_rng(0)
    labels = random.integers(0, 5, 600)
    probe = STUDY["Probe"]([[""]] * 600, labels, 480, 5)
    noise = random.normal(size=(600, 40)).astype(np.float32)
    informed = np.concatenate([noise, np.eye(5, dtype=np.float32)[labels]], axis=1)
    chance, found = (STUDY["classify"](features, probe, torch.device("cpu")).mean() for features in (noise, informed))
    assert found > 0.95 and 0.08 < chance < 0.34
    change = STUDY["mean_difference"](np.ones(100, np.float32), np.zeros(100, np.float32))
    assert (change.value, change.low, change.high) == (100, 100, 100)


def test_features_compare_the_first_sentence_with_the_others():
    vectors = np.arange(2 * 5 * 3, dtype=np.float32).reshape(2, 5, 3)
    features = STUDY["position_features"](vectors)
    assert features.shape == (2, 15)
    assert (features[:, :3] == vectors[:, 0]).all() and (features[:, 3:6] == vectors[:, 0] - vectors[:, 1]).all()
