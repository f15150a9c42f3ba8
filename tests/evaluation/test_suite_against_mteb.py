"""The suite gives the scores of mteb on the same texts, training samples and subsets."""

from __future__ import annotations

import pytest

from decoder2vec.config import EncoderSpec, Reading
from decoder2vec.encoder import Encoder
from decoder2vec.evaluation.mteb import as_mteb_model
from decoder2vec.evaluation.suite import Suite
from decoder2vec.evaluation.tasks.classification import N_EXPERIMENTS, Classification
from decoder2vec.evaluation.tasks.clustering import Clustering
from decoder2vec.evaluation.tasks.pair_classification import PairClassification
from decoder2vec.evaluation.tasks.sts import STS
from toys.mteb_tasks import LABELS, LEFT, RIGHT, SAME_NOUN, SCORES, SENTENCES, task_of

pytestmark = pytest.mark.usefixtures("offline", "one_thread", "mteb")

NAMES = [str(label) for label in LABELS]


def sts():
    from datasets import Dataset
    from mteb.abstasks import AbsTaskSTS

    data = {"test": Dataset.from_dict({"sentence1": LEFT, "sentence2": RIGHT, "score": SCORES})}
    ours = STS(name="local", left=LEFT, right=RIGHT, gold=SCORES)
    return ours, task_of("STS", AbsTaskSTS, "cosine_spearman", data), "cosine_spearman"


def pair_classification():
    from datasets import Dataset
    from mteb.abstasks import AbsTaskPairClassification

    data = {"test": Dataset.from_dict({"sentence1": LEFT, "sentence2": RIGHT, "labels": SAME_NOUN})}
    ours = PairClassification(name="local", left=LEFT, right=RIGHT, gold=SAME_NOUN)
    return ours, task_of("PairClassification", AbsTaskPairClassification, "max_ap", data), "cosine_ap"


def classification():
    from datasets import Dataset, DatasetDict
    from mteb.abstasks import AbsTaskClassification

    texts = Dataset.from_dict({"text": SENTENCES, "label": LABELS})
    ours = Classification(
        name="local", train=SENTENCES, train_labels=NAMES, test=SENTENCES, test_labels=NAMES, per_label=2
    )
    data = DatasetDict({"train": texts, "test": texts})
    settings = {"samples_per_label": 2, "n_experiments": N_EXPERIMENTS}
    return ours, task_of("Classification", AbsTaskClassification, "accuracy", data, **settings), "accuracy"


def clustering():
    from datasets import Dataset
    from mteb.abstasks.clustering_legacy import AbsTaskClusteringLegacy

    ours = Clustering(name="local", inputs=SENTENCES, labels=NAMES)
    subsets = [
        {"sentences": [SENTENCES[row] for row in rows], "labels": [NAMES[row] for row in rows]}
        for rows in ours.subsets()
    ]
    return (
        ours,
        task_of("Clustering", AbsTaskClusteringLegacy, "v_measure", {"test": Dataset.from_list(subsets)}),
        "v_measure",
    )


@pytest.mark.parametrize(
    "make_tasks", [sts, pair_classification, classification, clustering], ids=lambda make_tasks: make_tasks.__name__
)
def test_suite_and_mteb_give_the_same_score(make_tasks, backbone, mteb, tmp_path, monkeypatch):
    monkeypatch.setenv("D2V_CACHE", str(tmp_path))
    encoder = Encoder(backbone("tiny-llama"), EncoderSpec("tiny-llama", (Reading(2, "mean"),)))
    our_task, mteb_task, metric = make_tasks()
    expected = mteb.evaluate(
        as_mteb_model(encoder, "me/it"), mteb_task, cache=None, co2_tracker=False, show_progress_bar=False
    ).task_results[0]
    result = Suite(encoder, [our_task]).run()["tasks"]["local"]
    assert result["score"] == pytest.approx(100 * expected.scores["test"][0][metric], abs=1e-4)  # 4 digits are kept
