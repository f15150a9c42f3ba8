"""What the recipe rerank promises of labels: what test_rerank.py tests of one score, for a classifier of pairs."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.metrics import f1_score
from sklearn.utils.class_weight import compute_class_weight

from decoder2vec.analysis.doctor import doctor
from decoder2vec.backbone.backbone import Backbone
from decoder2vec.errors import DataFileError, InputError, UnsupportedError
from decoder2vec.export.cross_encoder import export_cross_encoder
from decoder2vec.reranker import Reranker, RerankerSpec
from decoder2vec.search.rerank import open_reranker
from decoder2vec.training.api import train
from decoder2vec.training.objectives.labels import LabelsConfig
from decoder2vec.training.recipes.recipe import Trainer
from toys.contract import TOY_LABELS, labelled_data
from toys.regression import equal_states, state_of
from toys.training import attached, gradients_of, small_recipe

FIRST = ("cats sleep", "the dogs run over the long road in the rain and sing of boats that sail", "a", "")
SECOND = ("cats sleep here", "dogs", "rain falls on the long road and on the boats today", "b")


class Killed(Exception):
    """Ends a run as a crash would."""


@pytest.fixture(scope="module", params=("tiny-llama", "tiny-gpt2", "tiny-mamba", "tiny-mamba2"))
def family(request):
    return request.param


@pytest.fixture(scope="module")
def run(family, trained_run):
    return trained_run("labels", family)


def test_exactly_what_is_declared_is_trained_and_changes(family, run):
    if family != "tiny-mamba2":  # its matrices have other names
        assert {name: tuple(tensor.shape) for name, tensor in run.start.items()} == TOY_LABELS.declared(run.backbone)
        assert run.result.record["parameters"]["trained"] == TOY_LABELS.n_trained(run.backbone)
    assert run.others_with_gradient == set()
    for name, start in run.start.items():
        assert run.gradients[-1][name].abs().max() > 0, name
        assert not torch.equal(run.after_three[name], start), name
    assert equal_states(state_of(run.backbone.model), run.weights)
    assert run.history["losses"][-1] < run.history["losses"][0]


def test_a_saved_classifier_gives_identical_probabilities(run):
    loaded, trained = Reranker.load(run.folder, device="cpu", dtype="float32"), run.result.reranker
    assert loaded.labels == trained.labels == ("NONE", "after", "before")
    assert loaded.fingerprint == trained.fingerprint
    probabilities = loaded.classify_pairs(FIRST, SECOND)
    assert (probabilities == trained.classify_pairs(FIRST, SECOND)).all()
    assert probabilities.shape == (4, 3) and probabilities.sum(axis=1) == pytest.approx(np.ones(4), abs=1e-6)
    card = (run.folder / "README.md").read_text("utf-8")
    assert "classify_pairs" in card and "macro F1" in card and "| labels | NONE, after, before |" in card


def test_batch_order_and_padding_do_not_change_a_probability(run, gap, monkeypatch):
    reranker = run.result.reranker
    alone = [reranker.classify_pairs([a], [b])[0] for a, b in zip(FIRST, SECOND, strict=True)]
    assert gap(reranker.classify_pairs(FIRST[::-1], SECOND[::-1])[::-1], alone) < 1e-5
    monkeypatch.setattr(Backbone, "batch_overhead", 10**6)
    assert gap(reranker.classify_pairs(FIRST, SECOND), alone) < 1e-5
    many = [FIRST[1]] * 4, list(SECOND)  # the first text is read once for all
    each = [reranker.classify_pairs([a], [b])[0] for a, b in zip(*many, strict=True)]
    assert gap(reranker.classify_pairs(*many), each) < 1e-5


def test_reported_scores_are_those_of_scikit_learn(run):
    dev, reranker = labelled_data().labelled_dev, run.result.reranker
    predicted = np.array(reranker.labels)[reranker.classify_pairs(dev.first, dev.second).argmax(axis=1)]
    seed = run.result.results["seeds"][0]
    measured = seed["notes"]["labels"]["dev"]
    assert measured["macro f1"] == pytest.approx(100 * f1_score(dev.labels, predicted, average="macro"), abs=0.006)
    assert measured["macro f1"] == max(run.history["start"], *run.history["scores"]) == seed["dev_metric"]
    by_label = dict(zip(sorted(set(dev.labels)), f1_score(dev.labels, predicted, average=None), strict=True))
    assert measured["f1"] == {label: pytest.approx(100 * f1, abs=0.006) for label, f1 in by_label.items()}
    assert "macro F1" in run.result.results["headline"]


def test_a_killed_run_resumes_with_the_same_numbers(family, run, new_run):
    again, steps = new_run(family), []

    def kill(state):
        if state.step == 3:
            raise Killed

    with pytest.raises(Killed):
        again.train("labels", kill)
    again.train("labels", lambda state: steps.append(state.step))
    assert steps[0] == 4, "it resumes"
    assert again.history == run.history
    assert again.result.reranker.fingerprint == run.result.reranker.fingerprint
    result = train(TOY_LABELS.recipe, TOY_LABELS.data, again.backbone, again.folder, overwrite=True)
    assert not result.trained, "it is up to date"


def test_it_ranks_nothing_and_says_so(run, tmp_path):
    reranker = run.result.reranker
    for call in (
        lambda: reranker.score("a", ["b"]),
        lambda: reranker.rank("a", ["b"]),
        lambda: open_reranker(run.folder, device="cpu"),
    ):
        with pytest.raises(InputError, match=r"sorts nothing: it gives pairs the labels NONE, after, before"):
            call()
    with pytest.raises(UnsupportedError, match="has labels"):
        export_cross_encoder(reranker, tmp_path / "ce")


# --- one family is enough -------------------------------------------------------------------------------------------


def test_direction_is_learned(backbone, tmp_path):
    pairs = labelled_data().labelled
    recipe = small_recipe("rerank", epochs=40, batch=16, objective=LabelsConfig())
    trainer = Trainer(recipe, labelled_data(labelled_dev=pairs), backbone("tiny-llama"))
    reranker, _ = trainer.export(trainer.run(0), tmp_path)
    predicted = np.array(reranker.labels)[reranker.classify_pairs(pairs.first, pairs.second).argmax(axis=1)]
    assert np.mean(predicted == pairs.labels) > 0.95
    rows = [row for row, label in enumerate(pairs.labels) if label == "before"]
    turned = reranker.classify_pairs([pairs.second[row] for row in rows], [pairs.first[row] for row in rows])
    assert np.mean(np.array(reranker.labels)[turned.argmax(axis=1)] == "after") > 0.9


@pytest.mark.parametrize("balance", [0.0, 1.0])
def test_the_loss_is_weighted_as_by_scikit_learn(balance, backbone):
    data = labelled_data()
    rare = [row for row, label in enumerate(data.labelled.labels) if label != "after" or row < 20]
    data = labelled_data(labelled=data.labelled.select(rare), labelled_dev=data.labelled.select(rare[:9]))
    recipe = small_recipe("rerank", objective=LabelsConfig(balance=balance))
    context, module, task = attached(recipe, data, backbone("tiny-llama"))
    pairs, labels = data.labelled, ("NONE", "after", "before")
    weights = compute_class_weight("balanced", classes=np.array(labels), y=np.array(pairs.labels))
    weights = dict(zip(labels, weights if balance else np.ones(3), strict=True))
    expected = []
    with torch.no_grad(), context.forward_context():
        for first, second, label in zip(pairs.first, pairs.second, pairs.labels, strict=True):
            logits = context.logits(context.pair_rows([second], [first]).tolist())[0]
            expected.append(-weights[label] * logits.log_softmax(0)[labels.index(label)].item())
    loss, gradients = gradients_of(module, task, np.arange(len(pairs)))
    assert loss == pytest.approx(np.mean(expected), rel=1e-4)
    assert (gradients["head.weight"].abs().amax(dim=1) > 0).all()


def test_it_is_trained_from_files_with_or_without_dev(tmp_path):
    pairs = labelled_data().labelled
    rows = list(zip(pairs.first, pairs.second, pairs.labels, strict=True))
    for name, columns in (("a.jsonl", ("text1", "text2")), ("b.jsonl", ("premise", "hypothesis"))):
        lines = [json.dumps({columns[0]: a, columns[1]: b, "label": label}) for a, b, label in rows]
        (tmp_path / name).write_text("\n".join(lines), encoding="utf-8")
    settings = ["objective.name=labels", "objective.balance=0.5", "rank=2", "training.steps=2", "training.batch=4"]
    options = {"backbone": "tiny-llama", "settings": settings, "device": "cpu"}
    result = train("rerank", tmp_path / "a.jsonl", out=tmp_path / "one", **options)
    assert any("of the labelled pairs were set aside" in note for note in result.results["notes"])
    assert result.results["data"]["chosen on"] == "9 labelled pairs (NONE 3, after 3, before 3)"
    result = train("rerank", tmp_path / "a.jsonl", out=tmp_path / "two", dev=[tmp_path / "b.jsonl"], **options)
    assert result.results["data"]["labelled pairs"].startswith("72 labelled pairs")
    assert all(check.passed for check in doctor(tmp_path / "two", device="cpu"))


def test_bad_labels_raise_one_sentence(backbone, tmp_path):
    pairs = labelled_data().labelled
    same = labelled_data(labelled=pairs.select(range(0, 9, 3)))
    unseen = labelled_data(labelled=pairs.select([0, 1, 3, 4]))
    for data, message in ((same, "All labels are 'before'"), (unseen, "'NONE' is not in the training data")):
        with pytest.raises(InputError, match=message):
            attached(small_recipe("rerank", objective=LabelsConfig()), data, backbone("tiny-llama"))
    for text, message in (
        ('{"text1": "a", "label": "x"}', "labelled pairs have text1, text2 and label"),
        ('{"text1": "a", "text2": 3, "label": "x"}', "line 1: text2 is int"),
        ('{"text1": "a", "text2": "b", "label": null}', "line 1: the label is None"),
        ('{"text1": "a", "text2": "b", "label": "x"}', "1 labelled pairs, too few"),
    ):
        file = Path(tmp_path / "bad.jsonl")
        file.write_text(text, encoding="utf-8")
        with pytest.raises((InputError, DataFileError), match=message):
            train("rerank", file, "tiny-llama", tmp_path / "never", settings=["objective.name=labels"])
    with pytest.raises(InputError, match="Two different labels"):
        RerankerSpec("m", "linear", labels=("x", "x"))
    with pytest.raises(InputError, match="gives one score"):
        Reranker.from_pretrained("tiny-llama", device="cpu").classify_pairs(["a"], ["b"])


def test_two_long_texts_are_both_cut(backbone):
    """Neither text is a question that must be read to its end."""
    model = backbone("tiny-gpt2")
    head = torch.randn(2, model.dim, generator=torch.Generator().manual_seed(0))
    reranker = Reranker(model, RerankerSpec("m", "linear", "pair", max_length=64, labels=("x", "y")), head)
    long = " ".join(f"word{number}" for number in range(300))
    (prompt,), cut = reranker._tokeniser([long], [f"other {long}"])
    text = model.tokenizer.decode(prompt.ids)
    assert len(prompt.ids) <= 64 and cut == [0]
    assert text.startswith("First: other word0") and "\n\nSecond: word0" in text and text.endswith("<eos>")
    assert np.isfinite(reranker.classify_pairs([long], [long])).all()
