"""Each kind of task against scikit-learn, scipy, plain loops, and what theory says of encoders that know nothing."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import sparse, stats
from sklearn.cluster import MiniBatchKMeans
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import average_precision_score, ndcg_score, v_measure_score

from decoder2vec.evaluation.tasks.classification import Classification
from decoder2vec.evaluation.tasks.clustering import Clustering
from decoder2vec.evaluation.tasks.layout import KINDS, find_tasks
from decoder2vec.evaluation.tasks.pair_classification import PairClassification
from decoder2vec.evaluation.tasks.reranking import Reranking
from decoder2vec.evaluation.tasks.retrieval import Retrieval
from decoder2vec.evaluation.tasks.task import Vectors
from toys.tasks import LABELLED, Constant, Knowing, Random, write_all

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def tasks(tmp_path_factory):
    return {task.name: task for task in find_tasks(write_all(tmp_path_factory.mktemp("data")))}


def vectors_of(task, encoder, own=None):
    return Vectors({role: (texts, encoder.encode(texts)) for role, texts in task.texts().items()}, own)


def score(task, encoder, own=None):
    return task.score(vectors_of(task, encoder, own))


def cosine(a, b):
    return float(a @ b / np.linalg.norm(a) / np.linalg.norm(b))


def test_there_is_a_task_of_every_kind(tasks):
    assert {task.kind for task in tasks.values()} == set(KINDS)
    assert sorted(tasks) == ["few", "groups", "mine", "mini", "mini-reranking", "same", "topics"]


@pytest.mark.parametrize("name", ["few", "groups", "mine", "mini", "mini-reranking", "same", "topics"])
def test_who_knows_beats_who_guesses_and_the_interval_holds_the_score(tasks, name):
    knowing, guessing = score(tasks[name], Knowing()), score(tasks[name], Random())
    assert 100 >= knowing.score > guessing.score + 15
    for found in (knowing, guessing):
        assert found.interval[0] <= found.score <= found.interval[1]
        if "values" in found.items:
            assert np.mean(found.items["values"]) == pytest.approx(found.score, abs=1e-4)


def test_similarity_is_scipys(tasks):
    task, encoder = tasks["mine"], Random()
    found = score(task, encoder)
    cosines = [cosine(encoder.vector(a), encoder.vector(b)) for a, b in zip(task.left, task.right, strict=True)]
    assert found.scores["spearman"] == pytest.approx(100 * stats.spearmanr(cosines, task.gold).statistic, abs=1e-4)
    assert found.scores["pearson"] == pytest.approx(100 * stats.pearsonr(cosines, task.gold).statistic, abs=1e-4)
    assert found.items["predicted"] == pytest.approx(cosines, abs=1e-6) and found.items["gold"] == task.gold


def test_a_similarity_of_its_own_counts_and_the_cosine_stands_beside_it(tasks):
    class Dot:
        def similarity_pairwise(self, a, b):
            return (a * b).sum(axis=1)

    task, encoder = tasks["mine"], Random()
    found = score(task, encoder, Dot())
    dots = [float(encoder.vector(a) @ encoder.vector(b)) for a, b in zip(task.left, task.right, strict=True)]
    assert found.score == pytest.approx(100 * stats.spearmanr(dots, task.gold).statistic, abs=1e-4)
    assert found.scores["cosine_spearman"] == score(task, encoder).score != found.score


def test_pairs_are_judged_as_scikit_learn_does(tasks):
    task, encoder = tasks["same"], Random()
    cosines = [cosine(encoder.vector(a), encoder.vector(b)) for a, b in zip(task.left, task.right, strict=True)]
    assert score(task, encoder).score == pytest.approx(100 * average_precision_score(task.gold, cosines), abs=1e-4)


def test_a_constant_encoder_finds_the_share_of_positives(tasks):
    found = score(tasks["same"], Constant())
    share = 100 * np.mean(tasks["same"].gold)
    assert found.score == pytest.approx(share, abs=1e-3)
    assert found.scores["accuracy"] == pytest.approx(max(share, 100 - share), abs=1e-3)


def test_a_random_encoder_finds_the_share_of_positives_too():
    texts = [f"text {i}" for i in range(4000)]
    gold = np.random.default_rng(0).integers(0, 2, 2000).tolist()
    task = PairClassification(name="many", left=texts[::2], right=texts[1::2], gold=gold)
    found = score(task, Random())
    assert found.score == pytest.approx(100 * np.mean(gold), abs=3)
    assert found.interval[0] < 100 * np.mean(gold) < found.interval[1]


def test_clusters_are_scikit_learns_on_the_same_ten_subsets(tasks):
    task, encoder = tasks["groups"], Random()
    matrix = encoder.encode(task.inputs)
    values = []
    for rows in task.subsets():
        labels = [task.labels[row] for row in rows]
        means = MiniBatchKMeans(n_clusters=3, batch_size=500, n_init="auto", random_state=42).fit(matrix[rows])
        values.append(100 * v_measure_score(labels, means.labels_))
    assert score(task, encoder).items["values"] == pytest.approx(values)


def test_every_subset_holds_half_of_every_label_and_is_the_same_every_time(tasks):
    subsets = tasks["groups"].subsets()
    assert len(subsets) == 10 and len({tuple(sorted(rows)) for rows in subsets}) == 10
    for rows in subsets:
        assert len(set(rows)) == 36
        assert sorted(tasks["groups"].labels[row] for row in rows) == sorted(list(["weather", "kitchen", "sea"]) * 12)
    assert subsets == tasks["groups"].subsets()


def test_a_constant_encoder_has_one_cluster_and_a_random_one_finds_next_to_nothing():
    labels = [f"label {i % 4}" for i in range(1000)]
    task = Clustering(name="many", inputs=[f"text {i}" for i in range(1000)], labels=labels)
    assert score(task, Constant()).score == pytest.approx(0, abs=1e-9)
    assert 0 <= score(task, Random()).score < 3


def test_draws_are_mtebs():
    """Its code, in plain words: one list of rows, shuffled again and again by the same seed."""
    labels = [LABELLED[i][0] for i in range(0, 72, 2)]
    task = Classification(
        name="x", train=[str(i) for i in range(36)], train_labels=labels, test=["a"], test_labels=["b"]
    )
    rows = list(range(36))
    for drawn in task.draws():
        np.random.RandomState(42).shuffle(rows)
        expected, counts = [], {}
        for row in rows:
            counts[labels[row]] = counts.get(labels[row], 0) + 1
            if counts[labels[row]] <= 8:
                expected.append(row)
        assert drawn == expected
        assert {label: [labels[row] for row in drawn].count(label) for label in set(labels)} == dict.fromkeys(labels, 8)
    assert len({tuple(drawn) for drawn in task.draws()}) == 10


def test_classes_are_those_of_scikit_learns_regression(tasks):
    task, encoder = tasks["topics"], Random()
    test, values = encoder.encode(task.test), []
    for rows in task.draws():
        train = encoder.encode([task.train[row] for row in rows])
        model = LogisticRegression(max_iter=100, random_state=42).fit(train, [task.train_labels[row] for row in rows])
        values.append(100 * model.score(test, task.test_labels))
    assert score(task, encoder).items["values"] == pytest.approx(values)


def test_only_training_texts_that_are_drawn_are_embedded():
    train = [f"train {i}" for i in range(1000)]
    labels = ["a", "b"] * 500
    task = Classification(name="x", train=train, train_labels=labels, test=["one", "two"], test_labels=["a", "b"])
    needed = set(task.texts()["plain"])
    assert needed == {"one", "two"} | {train[row] for rows in task.draws() for row in rows}
    assert len(needed) <= 2 + 160


def test_who_knows_nothing_is_right_by_chance():
    names = [f"text {i}" for i in range(3000)]
    labels = [f"label {i % 4}" for i in range(3000)]
    task = Classification(
        name="many", train=names[:1000], train_labels=labels[:1000], test=names[1000:], test_labels=labels[1000:]
    )
    assert score(task, Random()).score == pytest.approx(25, abs=2)
    assert score(task, Constant()).score == pytest.approx(25, abs=1e-6)  # one label for all


def test_retrieval_ranks_the_whole_corpus(tasks):
    task, encoder = tasks["mini"], Random()
    found = score(task, encoder)
    documents = [encoder.vector(text) for text in task.documents]
    values = []
    for query, gains in zip(task.queries, task.relevant, strict=True):
        truth = [gains.get(place, 0) for place in range(len(documents))]
        values.append(100 * ndcg_score([truth], [[cosine(encoder.vector(query), each) for each in documents]], k=10))
    assert found.items["values"] == pytest.approx(values, abs=1e-6)


def test_it_does_not_matter_how_much_is_compared_at_once(tasks, monkeypatch):
    expected = score(tasks["mini"], Random())
    monkeypatch.setattr("decoder2vec.evaluation.similarity._CELLS", 150)
    monkeypatch.setattr("decoder2vec.evaluation.similarity._DOCUMENTS", 7)
    assert score(tasks["mini"], Random()) == expected


def test_a_constant_encoder_ranks_from_the_last_name_to_the_first():
    """All tie, and trec_eval breaks ties so: document number 0, the last by name, ranks first."""
    task = Retrieval(
        name="x",
        documents=["z", "y", "x"],
        queries=["one", "two", "three"],
        relevant=[{0: 1}, {1: 1}, {2: 1}],
        own=[-1, -1, -1],
    )
    found = score(task, Constant())
    assert found.items["values"] == pytest.approx([100.0, 100 / np.log2(3), 50.0])
    assert found.scores["map"] == pytest.approx(100 * (1 + 1 / 2 + 1 / 3) / 3, abs=1e-4)


def test_a_querys_own_document_is_not_ranked():
    task = Retrieval(name="x", documents=["same", "other"], queries=["same"], relevant=[{1: 1}], own=[0])
    assert score(task, Random()).score == 100.0


def test_a_random_encoder_finds_a_relevant_document_at_every_rank_alike():
    """The mean reciprocal rank of one among n is the n-th harmonic number over n; nDCG@10 likewise."""
    documents = [f"document {i}" for i in range(50)]
    queries = [f"query {i}" for i in range(1500)]
    relevant = [{i % 50: 1} for i in range(1500)]
    task = Retrieval(name="x", documents=documents, queries=queries, relevant=relevant, own=[-1] * 1500)
    found = score(task, Random())
    assert found.scores["mrr"] == pytest.approx(100 * sum(1 / rank for rank in range(1, 51)) / 50, abs=1.5)
    assert found.score == pytest.approx(100 * sum(1 / np.log2(rank + 1) for rank in range(1, 11)) / 50, abs=2)
    assert found.scores["recall@10"] == pytest.approx(20, abs=3)


def test_reranking_is_scikit_learns_average_precision(tasks):
    task, encoder = tasks["few"], Random()
    values = []
    for query, positives, negatives in zip(task.queries, task.positives, task.negatives, strict=True):
        cosines = [cosine(encoder.vector(query), encoder.vector(text)) for text in [*positives, *negatives]]
        truth = [1] * len(positives) + [0] * len(negatives)
        values.append(100 * average_precision_score(truth, cosines))
    assert score(task, encoder).items["values"] == pytest.approx(values)


def test_a_constant_encoder_does_not_rerank_the_positives_first():
    """Ties fall in an order that knows no label: the mean precision is near the share of positives."""
    texts = [[f"candidate {i} {j}" for j in range(10)] for i in range(400)]
    task = Reranking(
        name="x",
        queries=[f"query {i}" for i in range(400)],
        positives=[row[:1] for row in texts],
        negatives=[row[1:] for row in texts],
    )
    assert score(task, Constant()).score == pytest.approx(100 * sum(1 / rank for rank in range(1, 11)) / 10, abs=4)


@pytest.mark.parametrize("name", ["few", "groups", "mine", "mini", "same", "topics"])
def test_sparse_vectors_score_what_dense_ones_do(tasks, name):
    class Sparse(Knowing):
        def encode(self, texts, **options):
            return sparse.csr_array(super().encode(texts, **options))

    assert score(tasks[name], Sparse()).score == pytest.approx(score(tasks[name], Knowing()).score, abs=0.01)
