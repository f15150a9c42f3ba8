"""Every kind of task against scikit-learn, scipy and plain loops, and theory for random and constant vectors."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy import sparse, stats
from sklearn.cluster import MiniBatchKMeans
from sklearn.dummy import DummyClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import average_precision_score, ndcg_score, v_measure_score

from decoder2vec.errors import DataFileError
from decoder2vec.evaluation.tasks import classification, clustering
from decoder2vec.evaluation.tasks.classification import Classification
from decoder2vec.evaluation.tasks.clustering import Clustering
from decoder2vec.evaluation.tasks.layout import KINDS, find_tasks
from decoder2vec.evaluation.tasks.pair_classification import PairClassification
from decoder2vec.evaluation.tasks.reranking import Reranking
from decoder2vec.evaluation.tasks.retrieval import Retrieval
from decoder2vec.evaluation.tasks.task import TaskVectors
from toys.tasks import LABELLED, ConstantEncoder, RandomEncoder, TopicEncoder, write_table, write_toy_tasks

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def tasks(tmp_path_factory):
    return {task.name: task for task in find_tasks(write_toy_tasks(tmp_path_factory.mktemp("data")))}


def score(task, encoder, similarity=None):
    vectors = {role: (texts, encoder.encode(texts)) for role, texts in task.texts().items()}
    return task.score(TaskVectors(vectors, similarity))


def cosine(a, b):
    return float(a @ b / np.linalg.norm(a) / np.linalg.norm(b))


def test_toy_tasks_cover_every_kind(tasks):
    assert {task.kind for task in tasks.values()} == set(KINDS)
    assert sorted(tasks) == ["few", "groups", "mine", "mini", "mini-reranking", "same", "topics"]


@pytest.mark.parametrize("name", ["few", "groups", "mine", "mini", "mini-reranking", "same", "topics"])
def test_good_encoder_beats_random_and_interval_has_score(tasks, name):
    topics, chance = score(tasks[name], TopicEncoder()), score(tasks[name], RandomEncoder())
    assert 100 >= topics.score > chance.score + 15
    for result in (topics, chance):
        assert result.interval[0] <= result.score <= result.interval[1]
        if "values" in result.items:
            assert np.mean(result.items["values"]) == pytest.approx(result.score, abs=1e-4)


def test_sts_correlations_equal_scipy(tasks):
    task, encoder = tasks["mine"], RandomEncoder()
    result = score(task, encoder)
    cosines = [cosine(encoder.vector(a), encoder.vector(b)) for a, b in zip(task.left, task.right, strict=True)]
    assert result.scores["spearman"] == pytest.approx(100 * stats.spearmanr(cosines, task.gold).statistic, abs=1e-4)
    assert result.scores["pearson"] == pytest.approx(100 * stats.pearsonr(cosines, task.gold).statistic, abs=1e-4)
    assert result.items["predicted"] == pytest.approx(cosines, abs=1e-6) and result.items["gold"] == task.gold


def test_sts_uses_own_similarity_and_reports_cosine(tasks):
    class Dot:
        def similarity_pairwise(self, a, b):
            return (a * b).sum(axis=1)

    task, encoder = tasks["mine"], RandomEncoder()
    result = score(task, encoder, Dot())
    dots = [float(encoder.vector(a) @ encoder.vector(b)) for a, b in zip(task.left, task.right, strict=True)]
    assert result.score == pytest.approx(100 * stats.spearmanr(dots, task.gold).statistic, abs=1e-4)
    assert result.scores["cosine_spearman"] == score(task, encoder).score != result.score


def test_pair_classification_equals_scikit_learn(tasks):
    task, encoder = tasks["same"], RandomEncoder()
    cosines = [cosine(encoder.vector(a), encoder.vector(b)) for a, b in zip(task.left, task.right, strict=True)]
    assert score(task, encoder).score == pytest.approx(100 * average_precision_score(task.gold, cosines), abs=1e-4)


def test_constant_vectors_score_the_share_of_positives(tasks):
    result = score(tasks["same"], ConstantEncoder())
    share = 100 * np.mean(tasks["same"].gold)
    assert result.score == pytest.approx(share, abs=1e-3)
    assert result.scores["accuracy"] == pytest.approx(max(share, 100 - share), abs=1e-3)


def test_random_vectors_score_the_share_of_positives():
    texts = [f"text {i}" for i in range(4000)]
    gold = np.random.default_rng(0).integers(0, 2, 2000).tolist()
    task = PairClassification(name="many", left=texts[::2], right=texts[1::2], gold=gold)
    result = score(task, RandomEncoder())
    assert result.score == pytest.approx(100 * np.mean(gold), abs=3)
    assert result.interval[0] < 100 * np.mean(gold) < result.interval[1]


def test_clustering_equals_scikit_learn_on_the_subsets(tasks):
    task, encoder = tasks["groups"], RandomEncoder()
    matrix = encoder.encode(task.inputs)
    values = []
    for rows in task.subsets():
        labels = [task.labels[row] for row in rows]
        kmeans = MiniBatchKMeans(n_clusters=3, batch_size=500, n_init="auto", random_state=42).fit(matrix[rows])
        values.append(100 * v_measure_score(labels, kmeans.labels_))
    assert score(task, encoder).items["values"] == pytest.approx(values)


@pytest.mark.parametrize(("name", "module"), [("groups", clustering), ("topics", classification)])
def test_scores_on_many_cores_equal_a_plain_loop(tasks, name, module, monkeypatch):
    monkeypatch.setattr("decoder2vec.backbone.threads.available_cores", lambda: 4)
    parallel = score(tasks[name], RandomEncoder())
    monkeypatch.setattr(module, "map_on_cores", lambda function, items: [function(item) for item in items])
    assert parallel == score(tasks[name], RandomEncoder())


def test_subsets_have_half_of_every_label_and_are_fixed(tasks):
    subsets = tasks["groups"].subsets()
    assert len(subsets) == 10 and len({tuple(sorted(rows)) for rows in subsets}) == 10
    for rows in subsets:
        assert len(set(rows)) == 36
        assert sorted(tasks["groups"].labels[row] for row in rows) == sorted(list(["weather", "kitchen", "sea"]) * 12)
    assert subsets == tasks["groups"].subsets()


def test_constant_and_random_vectors_do_not_cluster():
    labels = [f"label {i % 4}" for i in range(1000)]
    task = Clustering(name="many", inputs=[f"text {i}" for i in range(1000)], labels=labels)
    assert score(task, ConstantEncoder()).score == pytest.approx(0, abs=1e-9)
    assert 0 <= score(task, RandomEncoder()).score < 3


def test_training_samples_are_those_of_mteb():
    """MTEB shuffles one list of rows for each experiment, always with the same seed."""
    labels = [LABELLED[i][0] for i in range(0, 72, 2)]
    task = Classification(
        name="x", train=[str(i) for i in range(36)], train_labels=labels, test=["a"], test_labels=["b"]
    )
    rows = list(range(36))
    for sample in task.training_samples():
        np.random.RandomState(42).shuffle(rows)
        expected, counts = [], {}
        for row in rows:
            counts[labels[row]] = counts.get(labels[row], 0) + 1
            if counts[labels[row]] <= 8:
                expected.append(row)
        assert sample == expected
        counts = {label: [labels[row] for row in sample].count(label) for label in set(labels)}
        assert counts == dict.fromkeys(labels, 8)
    assert len({tuple(sample) for sample in task.training_samples()}) == 10


def test_classification_equals_scikit_learn(tasks):
    task, encoder = tasks["topics"], RandomEncoder()
    test, values = encoder.encode(task.test), []
    for rows in task.training_samples():
        train = encoder.encode([task.train[row] for row in rows])
        model = LogisticRegression(max_iter=100, random_state=42).fit(train, [task.train_labels[row] for row in rows])
        values.append(100 * model.score(test, task.test_labels))
    assert score(task, encoder).items["values"] == pytest.approx(values)


def test_only_sampled_training_texts_are_encoded():
    train = [f"train {i}" for i in range(1000)]
    labels = ["a", "b"] * 500
    task = Classification(name="x", train=train, train_labels=labels, test=["one", "two"], test_labels=["a", "b"])
    texts = set(task.texts()["plain"])
    assert texts == {"one", "two"} | {train[row] for rows in task.training_samples() for row in rows}
    assert len(texts) <= 2 + 160


def test_random_and_constant_vectors_classify_by_chance():
    texts = [f"text {i}" for i in range(3000)]
    labels = [f"label {i % 4}" for i in range(3000)]
    task = Classification(
        name="many", train=texts[:1000], train_labels=labels[:1000], test=texts[1000:], test_labels=labels[1000:]
    )
    assert score(task, RandomEncoder()).score == pytest.approx(25, abs=2)
    assert score(task, ConstantEncoder()).score == pytest.approx(25, abs=1e-6)  # one label for all


def test_retrieval_equals_scikit_learn_on_the_corpus(tasks):
    task, encoder = tasks["mini"], RandomEncoder()
    result = score(task, encoder)
    documents = [encoder.vector(text) for text in task.documents]
    values = []
    for query, gains in zip(task.queries, task.relevant, strict=True):
        truth = [gains.get(index, 0) for index in range(len(documents))]
        cosines = [cosine(encoder.vector(query), document) for document in documents]
        values.append(100 * ndcg_score([truth], [cosines], k=10))
    assert result.items["values"] == pytest.approx(values, abs=1e-6)


def test_batch_sizes_do_not_change_retrieval_scores(tasks, monkeypatch):
    expected = score(tasks["mini"], RandomEncoder())
    monkeypatch.setattr("decoder2vec.evaluation.similarity._MATRIX_CELLS", 150)
    monkeypatch.setattr("decoder2vec.evaluation.similarity._DOCUMENT_BATCH", 7)
    assert score(tasks["mini"], RandomEncoder()) == expected


def test_ties_are_ranked_by_descending_document_id():
    """As in trec_eval: document 0, which has the largest id, ranks first."""
    task = Retrieval(
        name="x",
        documents=["z", "y", "x"],
        queries=["one", "two", "three"],
        relevant=[{0: 1}, {1: 1}, {2: 1}],
        own_document=[-1, -1, -1],
    )
    result = score(task, ConstantEncoder())
    assert result.items["values"] == pytest.approx([100.0, 100 / np.log2(3), 50.0])
    assert result.scores["map"] == pytest.approx(100 * (1 + 1 / 2 + 1 / 3) / 3, abs=1e-4)


def test_retrieval_digest_is_that_of_version_0_1_0():
    """Otherwise finished results of that version would be computed again."""
    task = Retrieval(name="x", documents=["b", "a"], queries=["a"], relevant=[{0: 1}], own_document=[1])
    assert task.digest() == "821ddcfc3c65f0ed"


def test_own_document_of_a_query_is_not_ranked():
    task = Retrieval(name="x", documents=["same", "other"], queries=["same"], relevant=[{1: 1}], own_document=[0])
    assert score(task, RandomEncoder()).score == 100.0


def test_random_vectors_rank_uniformly():
    """The mean reciprocal rank of one among n is the n-th harmonic number over n; nDCG@10 likewise."""
    documents = [f"document {i}" for i in range(50)]
    queries = [f"query {i}" for i in range(1500)]
    relevant = [{i % 50: 1} for i in range(1500)]
    task = Retrieval(name="x", documents=documents, queries=queries, relevant=relevant, own_document=[-1] * 1500)
    result = score(task, RandomEncoder())
    assert result.scores["mrr"] == pytest.approx(100 * sum(1 / rank for rank in range(1, 51)) / 50, abs=1.5)
    assert result.score == pytest.approx(100 * sum(1 / np.log2(rank + 1) for rank in range(1, 11)) / 50, abs=2)
    assert result.scores["recall@10"] == pytest.approx(20, abs=3)


def test_reranking_equals_scikit_learn(tasks):
    task, encoder = tasks["few"], RandomEncoder()
    values = []
    for query, positives, negatives in zip(task.queries, task.positives, task.negatives, strict=True):
        cosines = [cosine(encoder.vector(query), encoder.vector(text)) for text in [*positives, *negatives]]
        truth = [1] * len(positives) + [0] * len(negatives)
        values.append(100 * average_precision_score(truth, cosines))
    assert score(task, encoder).items["values"] == pytest.approx(values)


def test_ties_in_reranking_do_not_favour_positives():
    """The order of ties does not depend on labels, so a positive is at every rank equally often."""
    texts = [[f"candidate {i} {j}" for j in range(10)] for i in range(400)]
    task = Reranking(
        name="x",
        queries=[f"query {i}" for i in range(400)],
        positives=[row[:1] for row in texts],
        negatives=[row[1:] for row in texts],
    )
    assert score(task, ConstantEncoder()).score == pytest.approx(
        100 * sum(1 / rank for rank in range(1, 11)) / 10, abs=4
    )


@pytest.mark.parametrize("name", ["few", "groups", "mine", "mini", "mini-reranking", "same"])
def test_constant_score_is_that_of_equal_vectors(tasks, name):
    assert tasks[name].constant_score() == pytest.approx(score(tasks[name], ConstantEncoder()).score, abs=1e-3)


def test_constant_score_of_classification_is_that_of_the_most_frequent_label(tasks):
    labels = ["a", "b", "b", "b", "c"]
    task = replace(tasks["topics"], test=[f"text {n}" for n in range(5)], test_labels=labels)
    dummy = DummyClassifier(strategy="most_frequent").fit(np.zeros((5, 1)), labels)
    assert task.constant_score() == pytest.approx(100 * dummy.score(np.zeros((5, 1)), labels)) == 60


@pytest.mark.parametrize("file", ["train", "test"])
def test_hidden_labels_of_classification_are_refused(tmp_path, file):
    for split in ("train", "test"):
        labels = ("-1", "-1") if split == file else ("a", "b")
        write_table(tmp_path / f"{split}.tsv", ("label", "text"), [(label, "x") for label in labels])
    with pytest.raises(DataFileError, match=rf"{file}\.tsv: every label is '-1', so the labels .* are hidden"):
        Classification.read(tmp_path / "train.tsv", tmp_path / "test.tsv", "x")


@pytest.mark.parametrize("name", ["few", "groups", "mine", "mini", "same", "topics"])
def test_sparse_vectors_score_like_dense_vectors(tasks, name):
    class Sparse(TopicEncoder):
        def encode(self, texts, **options):
            return sparse.csr_array(super().encode(texts, **options))

    assert score(tasks[name], Sparse()).score == pytest.approx(score(tasks[name], TopicEncoder()).score, abs=0.01)
