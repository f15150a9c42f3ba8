"""Which tasks a folder holds, and what is said of files that cannot be used."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest

from decoder2vec.errors import DataFileError, InputError
from decoder2vec.evaluation.tasks.clustering import Clustering
from decoder2vec.evaluation.tasks.layout import find_tasks
from decoder2vec.evaluation.tasks.reranking import Reranking
from decoder2vec.evaluation.tasks.retrieval import Retrieval, is_dev, read_beir
from decoder2vec.evaluation.tasks.task import Vectors
from toys.tasks import LABELLED, Random, write_all, write_jsonl, write_retrieval, write_table


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    return write_all(tmp_path_factory.mktemp("data"))


def names(home, *wanted, **options):
    return [task.name for task in find_tasks(home, wanted or ("all",), **options)]


def test_all_means_every_test_file_and_nothing_to_tune_on(home):
    assert sorted(names(home)) == ["few", "groups", "mine", "mini", "mini-reranking", "same", "topics"]


def test_tasks_are_chosen_by_name_and_by_kind(home):
    assert names(home, "sts") == ["mine"]
    assert names(home, "reranking", "mine") == ["mini-reranking", "few", "mine"]
    assert names(home, "mine-dev", "mini-dev", "mini-all") == ["mine-dev", "mini-dev", "mini-all"]
    with pytest.raises(InputError, match="Did you mean mini"):
        names(home, "minni")


def test_a_name_that_two_kinds_have_is_told_apart(tmp_path):
    row = [(1, "a", "b"), (0, "c", "d")]
    write_table(tmp_path / "sts" / "mine.tsv", ("score", "sentence1", "sentence2"), row)
    write_table(tmp_path / "pairs" / "mine.tsv", ("label", "sentence1", "sentence2"), row)
    assert names(tmp_path) == ["mine", "pair_classification/mine"]


def test_of_20_newsgroups_only_the_subject_is_read(home):
    (task,) = find_tasks(home, ["groups"])
    assert task.inputs == [text for _, text in LABELLED]


@pytest.mark.parametrize(("name", "per_label"), [("tweet-sentiment", 32), ("emotion", 16), ("banking77", 8), ("my", 8)])
def test_texts_for_each_label_are_as_many_as_in_mteb(tmp_path, name, per_label):
    for split in ("train", "test"):
        write_table(tmp_path / "classification" / f"{name}-{split}.tsv", ("label", "text"), LABELLED)
    (task,) = find_tasks(tmp_path)
    assert (task.name, task.per_label) == (name, per_label)


def test_queries_to_tune_on_are_chosen_by_the_hash_of_their_name(home):
    def dev(name):
        return int(hashlib.sha1(name.encode()).hexdigest(), 16) % 10 < 3

    queries = [f"q{i}" for i in range(18)]
    assert [is_dev(name) for name in queries] == [dev(name) for name in queries]
    folder = home / "retrieval" / "mini"
    parts = {part: list(read_beir(folder, part).queries) for part in ("dev", "test", "all")}
    assert parts["dev"] == [name for name in queries if dev(name)] and parts["dev"]
    assert parts["test"] == [name for name in queries if not dev(name)]
    assert parts["all"] == queries


def test_beirs_own_folder_of_qrels_is_read_and_titles_stand_before_texts(tmp_path):
    write_jsonl(tmp_path / "corpus.jsonl", [{"_id": 7, "title": "A title", "text": "and a text"}])
    write_jsonl(tmp_path / "queries.jsonl", [{"_id": "q", "text": "?"}])
    write_table(tmp_path / "qrels" / "test.tsv", ("query-id", "corpus-id", "score"), [("q", 7, 2)])
    judged = read_beir(tmp_path, "all")
    assert (judged.documents, judged.relevant) == ({"7": "A title and a text"}, {"q": {"7": 2}})


def test_a_querys_own_document_has_its_name_and_its_text(tmp_path):
    documents = {"a": "first", "b": "second", "c": "third"}
    judgements = [("a", "b", 1), ("a", "a", 1), ("b", "c", 1)]
    folder = write_retrieval(tmp_path, documents, {"a": "first", "b": "not the second"}, judgements)
    task = Retrieval.read(folder, "own", "all")
    assert task.documents == ["third", "second", "first"]
    assert task.own == [2, -1]
    assert task.relevant == [{1: 1}, {0: 1}]
    assert task.flags == ("1 queries stand in the corpus themselves and are not ranked for themselves",)


def test_documents_that_are_not_there_are_counted_and_never_found(tmp_path):
    judgements = [("q", "d", 1), ("q", "gone", 1), ("q", "lost", 0), ("nobody", "d", 1), ("r", "gone", 1)]
    folder = write_retrieval(tmp_path, {"d": "text"}, {"q": "ask", "r": "again"}, judgements)
    task = Retrieval.read(folder, "x", "all")
    assert task.flags == (
        "3 judged documents are not in the corpus and count as never found",
        "1 judgements are of queries that do not exist",
    )
    encoder = Random()
    found = task.score(Vectors({role: (texts, encoder.encode(texts)) for role, texts in task.texts().items()}))
    assert found.items["values"] == pytest.approx([100 / (1 + 1 / np.log2(3)), 0.0])
    assert found.scores["recall@10"] == pytest.approx((50 + 0) / 2)


def test_queries_without_a_relevant_document_are_counted_and_left_out(tmp_path):
    folder = write_retrieval(
        tmp_path, {"d": "text"}, {"q": "ask", "r": "no", "s": "none"}, [("q", "d", 1), ("r", "d", 0)]
    )
    task = Retrieval.read(folder, "x", "all")
    assert task.queries == ["ask"] and task.flags == ("2 queries without a relevant document left out",)


def test_no_relevant_document_at_all_is_an_error(tmp_path):
    folder = write_retrieval(tmp_path, {"d": "text"}, {"q": "ask"}, [("q", "d", 0)])
    with pytest.raises(DataFileError, match="no query of the part 'all' has a relevant document"):
        Retrieval.read(folder, "x", "all")


@pytest.mark.parametrize("which", ["corpus.jsonl.gz", "queries.jsonl"])
def test_an_id_that_comes_twice_is_an_error_that_names_its_line(tmp_path, which):
    folder = write_retrieval(tmp_path, {"d": "text"}, {"q": "ask"}, [("q", "d", 1)])
    write_jsonl(folder / which, [{"_id": "q", "text": "one"}, {"_id": "q", "text": "two"}])
    with pytest.raises(DataFileError, match=rf"{which}, line 2: the id 'q' was there before"):
        Retrieval.read(folder, "x", "all")


@pytest.mark.parametrize(
    ("judgements", "message"),
    [
        ([("q", "d", 1), ("q", "d", 2)], "line 3: q and d were judged before, and differently"),
        ([("q", "d", "much")], "line 2: query-id, corpus-id and a whole score are needed"),
    ],
)
def test_judgements_that_make_no_sense_are_refused(tmp_path, judgements, message):
    folder = write_retrieval(tmp_path, {"d": "text"}, {"q": "ask"}, judgements)
    with pytest.raises(DataFileError, match=message):
        Retrieval.read(folder, "x", "all")


def test_a_file_that_is_missing_is_named(tmp_path):
    folder = write_retrieval(tmp_path, {"d": "text"}, {"q": "ask"}, [("q", "d", 1)])
    (folder / "qrels-test.tsv").unlink()
    with pytest.raises(DataFileError, match=r"has no qrels-test\.tsv"):
        Retrieval.read(folder, "x")


TABLES = [
    ("sts/x.tsv", "score\tsentence1\n1\ta\n", "has no column 'sentence2'"),
    ("sts/x.tsv", "score\tsentence1\tsentence2\n1\ta\tb\textra\n", "line 2: 4 fields, but the header has 3"),
    ("sts/x.tsv", "score\tsentence1\tsentence2\n2\ta\tb\n2\tc\td\n", "every score is 2"),
    ("pairs/x.tsv", "sentence1\tsentence2\na\tb\n", "has no column 'label'"),
    ("pairs/x.tsv", "label\tsentence1\tsentence2\n1\ta\tb\n0\tc\td\te\n", "line 3: 4 fields, but the header has 3"),
    ("pairs/x.tsv", "label\tsentence1\tsentence2\n1\ta\n", "line 2: one of .* is missing"),
    ("pairs/x.tsv", "label\tsentence1\tsentence2\nyes\ta\tb\n", "line 2: the label 'yes' is neither 0 nor 1"),
    ("pairs/x.tsv", "label\tsentence1\tsentence2\n1\ta\tb\n1\tc\td\n", "every pair has the label 1"),
    ("clustering/x.tsv", "topic\ttext\na\tb\n", "has no column 'label'"),
    ("clustering/x.tsv", "label\tbody\na\tb\n", "has no column 'text'"),
    ("clustering/x.tsv", "label\ttext\na\tb\na\tc\n", "every text has the label 'a'"),
    ("clustering/x.tsv", "label\ttext\na\tb\nc\td\ne\tf\n", "3 texts are too few for 3 clusters"),
    ("clustering/x.tsv", "label\ttext\n", "holds no usable row"),
    ("classification/x-test.tsv", "label\ttext\na\tb\n", "has no x-train file beside x-test.tsv"),
    (
        "reranking/x.jsonl",
        '{"query": "a", "positive": "b", "negative": []}\n',
        "line 1: query, positive and negative are",
    ),
    ("reranking/x.jsonl", '{"query": "a", "positive": [], "negative": ["b"]}\n', "no query has both"),
]


@pytest.mark.parametrize(("name", "content", "message"), TABLES)
def test_a_file_that_cannot_be_used_says_why(tmp_path, name, content, message):
    file = tmp_path / name
    file.parent.mkdir()
    file.write_text(content, encoding="utf-8")
    with pytest.raises(DataFileError, match=message):
        find_tasks(tmp_path)


@pytest.mark.parametrize("split", ["train", "test"])
def test_one_class_is_too_few_to_tell_apart(tmp_path, split):
    for each in ("train", "test"):
        rows = [("one", f"text {i}") for i in range(9)] if each == split else LABELLED
        write_table(tmp_path / "classification" / f"x-{each}.tsv", ("label", "text"), rows)
    with pytest.raises(DataFileError, match=rf"x-{split}.tsv: every text has the label 'one'"):
        find_tasks(tmp_path)


def test_labels_that_cannot_be_learnt_are_flagged(tmp_path):
    few = [("rare", "once"), *LABELLED]
    write_table(tmp_path / "classification" / "x-train.tsv", ("label", "text"), few)
    write_table(tmp_path / "classification" / "x-test.tsv", ("label", "text"), [*LABELLED[:30], ("unheard", "of")])
    (task,) = find_tasks(tmp_path)
    assert task.flags == (
        "1 labels have fewer than 8 texts to learn from",
        "1 test texts have labels that no training text has",
    )


def test_columns_that_nobody_needs_do_no_harm(tmp_path):
    rows = [(label, "ignored", text) for label, text in LABELLED]
    task = Clustering.read(write_table(tmp_path / "x.tsv", ("label", "more", "text"), rows), "x")
    assert task.inputs == [text for _, text in LABELLED]


def test_a_candidate_cannot_be_positive_and_negative(tmp_path):
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


def test_candidates_from_a_corpus_are_its_relevant_documents_and_thirty_others(home):
    (task,) = find_tasks(home, ["mini-reranking"])
    retrieval = Retrieval.read(home / "retrieval" / "mini", "mini")
    assert task.queries == retrieval.queries
    for positives, negatives, gains in zip(task.positives, task.negatives, retrieval.relevant, strict=True):
        assert set(positives) == {retrieval.documents[place] for place in gains}
        assert len(negatives) == 30 and not set(negatives) & set(positives)
    assert task == find_tasks(home, ["mini-reranking"])[0]


def test_a_limit_makes_every_task_smaller_and_says_so(home):
    whole = {task.name: task for task in find_tasks(home)}
    for task in find_tasks(home, limit=2):
        assert any("only" in flag for flag in task.flags), task.name
        assert task.digest() != whole[task.name].digest()
        count = sum(map(len, task.texts().values()))
        assert count <= sum(map(len, whole[task.name].texts().values())), task.name
    assert len(find_tasks(home, ["sts"], limit=5)[0].gold) == 5
    with pytest.raises(InputError, match="A limit of 0 leaves nothing"):
        find_tasks(home, limit=0)


def test_a_folder_without_tasks_is_refused(tmp_path):
    with pytest.raises(DataFileError, match="holds no tasks"):
        find_tasks(tmp_path)
    with pytest.raises(DataFileError, match="is not a folder"):
        find_tasks(tmp_path / "absent")
