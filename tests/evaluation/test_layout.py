"""Which tasks are found in a folder, and the errors for files that cannot be used."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest

from decoder2vec.errors import DataFileError, InputError
from decoder2vec.evaluation.tasks.clustering import Clustering
from decoder2vec.evaluation.tasks.layout import find_tasks
from decoder2vec.evaluation.tasks.reranking import Reranking
from decoder2vec.evaluation.tasks.retrieval import Retrieval, is_dev_query, read_beir
from decoder2vec.evaluation.tasks.task import TaskVectors
from toys.tasks import LABELLED, RandomEncoder, write_jsonl, write_retrieval, write_table, write_toy_tasks


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_toy_tasks(tmp_path_factory.mktemp("data"))


def task_names(folder, *names, **options):
    return [task.name for task in find_tasks(folder, names or ("all",), **options)]


def test_all_finds_test_files_and_no_tuning_data(folder):
    assert sorted(task_names(folder)) == ["few", "groups", "mine", "mini", "mini-reranking", "same", "topics"]


def test_tasks_are_chosen_by_name_and_kind(folder):
    assert task_names(folder, "sts") == ["mine"]
    assert task_names(folder, "reranking", "mine") == ["mini-reranking", "few", "mine"]
    assert task_names(folder, "mine-dev", "mini-dev", "mini-all") == ["mine-dev", "mini-dev", "mini-all"]
    with pytest.raises(InputError, match="Did you mean mini"):
        task_names(folder, "minni")


def test_same_name_in_two_kinds_is_prefixed(tmp_path):
    rows = [(1, "a", "b"), (0, "c", "d")]
    write_table(tmp_path / "sts" / "mine.tsv", ("score", "sentence1", "sentence2"), rows)
    write_table(tmp_path / "pairs" / "mine.tsv", ("label", "sentence1", "sentence2"), rows)
    assert task_names(tmp_path) == ["mine", "pair_classification/mine"]


def test_clustering_reads_the_subject_column(folder):
    (task,) = find_tasks(folder, ["groups"])
    assert task.inputs == [text for _, text in LABELLED]


@pytest.mark.parametrize(("name", "per_label"), [("tweet-sentiment", 32), ("emotion", 16), ("banking77", 8), ("my", 8)])
def test_training_texts_per_label_are_those_of_mteb(tmp_path, name, per_label):
    for split in ("train", "test"):
        write_table(tmp_path / "classification" / f"{name}-{split}.tsv", ("label", "text"), LABELLED)
    (task,) = find_tasks(tmp_path)
    assert (task.name, task.per_label) == (name, per_label)


def test_dev_queries_are_chosen_by_the_hash_of_their_id(folder):
    def expected_dev(query):
        return int(hashlib.sha1(query.encode()).hexdigest(), 16) % 10 < 3

    queries = [f"q{i}" for i in range(18)]
    assert [is_dev_query(query) for query in queries] == [expected_dev(query) for query in queries]
    splits = {split: list(read_beir(folder / "retrieval" / "mini", split).queries) for split in ("dev", "test", "all")}
    assert splits["dev"] == [query for query in queries if expected_dev(query)] and splits["dev"]
    assert splits["test"] == [query for query in queries if not expected_dev(query)]
    assert splits["all"] == queries


def test_beir_qrels_folder_and_titles_are_read(tmp_path):
    write_jsonl(tmp_path / "corpus.jsonl", [{"_id": 7, "title": "A title", "text": "and a text"}])
    write_jsonl(tmp_path / "queries.jsonl", [{"_id": "q", "text": "?"}])
    write_table(tmp_path / "qrels" / "test.tsv", ("query-id", "corpus-id", "score"), [("q", 7, 2)])
    data = read_beir(tmp_path, "all")
    assert (data.documents, data.relevant) == ({"7": "A title and a text"}, {"q": {"7": 2}})


def test_own_document_has_the_id_and_text_of_the_query(tmp_path):
    documents = {"a": "first", "b": "second", "c": "third"}
    qrels = [("a", "b", 1), ("a", "a", 1), ("b", "c", 1)]
    folder = write_retrieval(tmp_path, documents, {"a": "first", "b": "not the second"}, qrels)
    task = Retrieval.read(folder, "own", "all")
    assert task.documents == ["third", "second", "first"]
    assert task.own_document == [2, -1]
    assert task.relevant == [{1: 1}, {0: 1}]
    assert task.flags == ("1 queries stand in the corpus themselves and are not ranked for themselves",)


def test_missing_relevant_documents_count_as_never_found(tmp_path):
    qrels = [("q", "d", 1), ("q", "gone", 1), ("q", "lost", 0), ("nobody", "d", 1), ("r", "gone", 1)]
    folder = write_retrieval(tmp_path, {"d": "text"}, {"q": "ask", "r": "again"}, qrels)
    task = Retrieval.read(folder, "x", "all")
    assert task.flags == (
        "3 judged documents are not in the corpus and count as never found",
        "1 judgements are of queries that do not exist",
    )
    encoder = RandomEncoder()
    result = task.score(TaskVectors({role: (texts, encoder.encode(texts)) for role, texts in task.texts().items()}))
    assert result.items["values"] == pytest.approx([100 / (1 + 1 / np.log2(3)), 0.0])
    assert result.scores["recall@10"] == pytest.approx((50 + 0) / 2)


def test_queries_without_relevant_document_are_left_out(tmp_path):
    folder = write_retrieval(
        tmp_path, {"d": "text"}, {"q": "ask", "r": "no", "s": "none"}, [("q", "d", 1), ("r", "d", 0)]
    )
    task = Retrieval.read(folder, "x", "all")
    assert task.queries == ["ask"] and task.flags == ("2 queries without a relevant document left out",)


def test_retrieval_without_any_relevant_document_is_refused(tmp_path):
    folder = write_retrieval(tmp_path, {"d": "text"}, {"q": "ask"}, [("q", "d", 0)])
    with pytest.raises(DataFileError, match="no query of the split 'all' has a relevant document"):
        Retrieval.read(folder, "x", "all")


@pytest.mark.parametrize("file", ["corpus.jsonl.gz", "queries.jsonl"])
def test_duplicate_id_is_refused_with_its_line(tmp_path, file):
    folder = write_retrieval(tmp_path, {"d": "text"}, {"q": "ask"}, [("q", "d", 1)])
    write_jsonl(folder / file, [{"_id": "q", "text": "one"}, {"_id": "q", "text": "two"}])
    with pytest.raises(DataFileError, match=rf"{file}, line 2: the id 'q' is a duplicate"):
        Retrieval.read(folder, "x", "all")


@pytest.mark.parametrize(
    ("qrels", "message"),
    [
        ([("q", "d", 1), ("q", "d", 2)], "line 3: q and d have another score in an earlier line"),
        ([("q", "d", "much")], "line 2: qrels have query-id, corpus-id and a whole number as score"),
    ],
)
def test_invalid_qrels_are_refused(tmp_path, qrels, message):
    folder = write_retrieval(tmp_path, {"d": "text"}, {"q": "ask"}, qrels)
    with pytest.raises(DataFileError, match=message):
        Retrieval.read(folder, "x", "all")


def test_missing_file_is_named(tmp_path):
    folder = write_retrieval(tmp_path, {"d": "text"}, {"q": "ask"}, [("q", "d", 1)])
    (folder / "qrels-test.tsv").unlink()
    with pytest.raises(DataFileError, match=r"has no qrels-test\.tsv"):
        Retrieval.read(folder, "x")


TABLES = [
    ("sts/x.tsv", "score\tsentence1\n1\ta\n", "has no column 'sentence2'"),
    ("sts/x.tsv", "score\tsentence1\tsentence2\n1\ta\tb\textra\n", "line 2: 4 fields, but the header has 3"),
    ("sts/x.tsv", "score\tsentence1\tsentence2\n2\ta\tb\n2\tc\td\n", "every score is 2"),
    ("sts/x.tsv", "score\tsentence1\tsentence2\n-1\ta\tb\n-1\tc\td\n", "every label is '-1', so .* are hidden"),
    ("pairs/x.tsv", "label\tsentence1\tsentence2\n-1\ta\tb\n-1\tc\td\n", "every label is '-1', so .* are hidden"),
    ("clustering/x.tsv", "label\ttext\n?\tb\n?\tc\n", "every label is '.', so .* are hidden .*; use a split that has"),
    ("pairs/x.tsv", "sentence1\tsentence2\na\tb\n", "has no column 'label'"),
    ("pairs/x.tsv", "label\tsentence1\tsentence2\n1\ta\tb\n0\tc\td\te\n", "line 3: 4 fields, but the header has 3"),
    ("pairs/x.tsv", "label\tsentence1\tsentence2\n1\ta\n", "line 2: one of .* is missing"),
    ("pairs/x.tsv", "label\tsentence1\tsentence2\nyes\ta\tb\n", "line 2: the label 'yes' is neither 0 nor 1"),
    ("pairs/x.tsv", "label\tsentence1\tsentence2\n1\ta\tb\n1\tc\td\n", "every pair has the label 1"),
    ("clustering/x.tsv", "topic\ttext\na\tb\n", "has no column 'label'"),
    ("clustering/x.tsv", "label\tbody\na\tb\n", "has no column 'text'"),
    ("clustering/x.tsv", "label\ttext\na\tb\na\tc\n", "every text has the label 'a'"),
    ("clustering/x.tsv", "label\ttext\na\tb\nc\td\ne\tf\n", "3 texts are too few for 3 clusters"),
    ("clustering/x.tsv", "label\ttext\n", "has no usable row"),
    ("classification/x-test.tsv", "label\ttext\na\tb\n", "has no x-train file next to x-test.tsv"),
    (
        "reranking/x.jsonl",
        '{"query": "a", "positive": "b", "negative": []}\n',
        "line 1: query must be a text, positive and negative",
    ),
    ("reranking/x.jsonl", '{"query": "a", "positive": [], "negative": ["b"]}\n', "no query has both"),
]


@pytest.mark.parametrize(("name", "content", "message"), TABLES)
def test_unusable_file_is_refused_with_the_reason(tmp_path, name, content, message):
    file = tmp_path / name
    file.parent.mkdir()
    file.write_text(content, encoding="utf-8")
    with pytest.raises(DataFileError, match=message):
        find_tasks(tmp_path)


@pytest.mark.parametrize("split", ["train", "test"])
def test_classification_needs_two_labels(tmp_path, split):
    for written in ("train", "test"):
        rows = [("one", f"text {i}") for i in range(9)] if written == split else LABELLED
        write_table(tmp_path / "classification" / f"x-{written}.tsv", ("label", "text"), rows)
    with pytest.raises(DataFileError, match=rf"x-{split}.tsv: every text has the label 'one'"):
        find_tasks(tmp_path)


def test_rare_and_unseen_labels_are_flagged(tmp_path):
    rows = [("rare", "once"), *LABELLED]
    write_table(tmp_path / "classification" / "x-train.tsv", ("label", "text"), rows)
    write_table(tmp_path / "classification" / "x-test.tsv", ("label", "text"), [*LABELLED[:30], ("unheard", "of")])
    (task,) = find_tasks(tmp_path)
    assert task.flags == (
        "1 labels have fewer than 8 texts to learn from",
        "1 test texts have labels that no training text has",
    )


def test_additional_columns_are_ignored(tmp_path):
    rows = [(label, "ignored", text) for label, text in LABELLED]
    task = Clustering.read(write_table(tmp_path / "x.tsv", ("label", "more", "text"), rows), "x")
    assert task.inputs == [text for _, text in LABELLED]


def test_negatives_that_are_positives_are_left_out(tmp_path):
    rows = [
        {"query": "q", "positive": ["a"], "negative": ["a", "b"]},
        {"query": "r", "positive": ["a"], "negative": ["a"]},
    ]
    task = Reranking.read(write_jsonl(tmp_path / "x.jsonl", rows), "x")
    assert (task.queries, task.negatives) == (["q"], [["b"]])
    assert task.flags == (
        "1 queries without a positive or without a negative left out",
        "2 negatives that are positives too left out",
    )


def test_retrieval_candidates_are_relevant_and_30_others(folder):
    (task,) = find_tasks(folder, ["mini-reranking"])
    retrieval = Retrieval.read(folder / "retrieval" / "mini", "mini")
    assert task.queries == retrieval.queries
    for positives, negatives, gains in zip(task.positives, task.negatives, retrieval.relevant, strict=True):
        assert set(positives) == {retrieval.documents[index] for index in gains}
        assert len(negatives) == 30 and not set(negatives) & set(positives)
    assert task == find_tasks(folder, ["mini-reranking"])[0]


def test_limit_makes_every_task_smaller_and_is_flagged(folder):
    full = {task.name: task for task in find_tasks(folder)}
    for task in find_tasks(folder, limit=2):
        assert any("only" in flag for flag in task.flags), task.name
        assert task.digest() != full[task.name].digest()
        count = sum(map(len, task.texts().values()))
        assert count <= sum(map(len, full[task.name].texts().values())), task.name
    assert len(find_tasks(folder, ["sts"], limit=5)[0].gold) == 5
    with pytest.raises(InputError, match="A limit of 0 leaves nothing"):
        find_tasks(folder, limit=0)


def test_folder_without_tasks_is_refused(tmp_path):
    with pytest.raises(DataFileError, match="has no tasks"):
        find_tasks(tmp_path)
    with pytest.raises(DataFileError, match="is not a folder"):
        find_tasks(tmp_path / "absent")
