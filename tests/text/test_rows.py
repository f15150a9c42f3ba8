"""Every kind of data file comes out in one form, and what cannot be used is said with its line."""

from __future__ import annotations

import gzip
import json

import pytest

from decoder2vec.errors import DataFileError
from decoder2vec.text.files import DataRow, read_data_file


def save(folder, name, content):
    file = folder / name
    file.write_bytes(gzip.compress(content.encode()) if name.endswith(".gz") else content.encode())
    return file


def lines(*records):
    return "".join(json.dumps(record) + "\n" for record in records)


@pytest.mark.parametrize(
    ("name", "content", "kind", "row"),
    [
        ("d.tsv", "sentence1\tsentence2\tscore\na\tb\t4.50\n", "scored pairs", ("a", ("b",), (), "4.50")),
        ("d.tsv", "label\tpremise\thypothesis\nneutral\ta\tb\n", "inferences", ("a", ("b",), (), "neutral")),
        ("d.csv", 'positive,anchor\n"b, c",a\n', "pairs", ("a", ("b, c",), (), "")),
        ("d.tsv.gz", "anchor\tpositive\tnegative\na\tb\tc\n", "triplets", ("a", ("b",), ("c",), "")),
        ("d.tsv", "anchor\tpositive\tnegative_1\tnegative_2\na\tb\tc\td\n", "triplets", ("a", ("b",), ("c", "d"), "")),
        ("d.jsonl.gz", lines({"text": "a", "label": 3}), "labelled texts", ("a", (), (), "3")),
        ("d.csv.gz", "sentence,label\na,x\n", "labelled texts", ("a", (), (), "x")),
        ("d.txt", "a\n", "plain texts", ("a", (), (), "")),
        ("d.csv", "id,sentence\n7,a\n", "plain texts", ("a", (), (), "")),
        ("d.jsonl", lines({"description": "a", "pos": ["b"], "neg": ["c"]}), "records", ("a", ("b",), ("c",), "")),
        ("d.jsonl", lines({"label": 0, "description": "a", "pos": ["b", "c"]}), "records", ("a", ("b", "c"), (), "0")),
        ("d.jsonl", lines({"anchor": "a", "positive": ["b", "c"]}), "pairs", ("a", ("b", "c"), (), "")),
    ],
)
def test_the_columns_say_the_kind(name, content, kind, row, tmp_path):
    found = read_data_file(save(tmp_path, name, content))
    assert found.kind == kind
    assert [one[1:] for one in found.rows] == [row]


def test_a_negative_may_be_missing(tmp_path):
    file = save(tmp_path, "d.tsv", "anchor\tpositive\tnegative_1\tnegative_2\na\tb\t\td\ne\tf\ng\th\ti\n")
    assert [row.negatives for row in read_data_file(file).rows] == [("d",), (), ("i",)]
    records = {"anchor": "a", "positive": "b"}, {"anchor": "c", "positive": "d", "negative": "n"}
    file = save(tmp_path, "d.jsonl", lines(*records))
    assert read_data_file(file).columns == ("anchor", "positive", "negative")
    assert read_data_file(file).rows == [DataRow(1, "a", ("b",)), DataRow(2, "c", ("d",), ("n",))]


def test_texts_and_pairs_of_a_file(tmp_path):
    file = read_data_file(save(tmp_path, "d.jsonl", lines({"description": "a", "pos": ["b", "c"], "neg": ["d"]})))
    assert list(file.texts()) == ["a", "b", "c", "d"]
    assert file.pairs() == (["a", "a", "a"], ["b", "c", "d"])


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("d.tsv", "", "holds no usable row"),
        ("d.tsv", "anchor\tpositive\n", "holds no usable row"),
        ("d.tsv", "one\ttwo\na\tb\n", r"has the columns one, two; rename them to one of: description, pos; sentence1,"),
        ("d.tsv", "anchor\tpositive\na\tb\nc\n", "line 3: positive is missing, not a text"),
        ("d.tsv", "anchor\tpositive\na\tb\tc\n", "line 2: 3 fields, but the header has 2"),
        ("d.tsv", "text\tlabel\na\n", "line 2: label is missing, not a word or number"),
        ("d.jsonl", lines({"anchor": 1, "positive": "b"}), "line 1: anchor is int, not a text"),
        ("d.jsonl", lines({"anchor": ["a"], "positive": "b"}), "line 1: anchor is list, not a text"),
        ("d.jsonl", lines({"description": "a", "pos": ["b", 2]}), "line 1: pos is int, not a text"),
        ("d.jsonl", lines({"description": "a", "pos": ["b"], "neg": {"c": 1}}), "line 1: neg is dict, not a text"),
        ("d.jsonl", lines({"text": "a", "label": ["x"]}), "line 1: label is list, not a word or number"),
        ("d.jsonl", lines({"text": "a", "label": "x"}) + "oops\n", "line 2: not JSON"),
    ],
)
def test_what_cannot_be_used_is_said_with_its_line(name, content, message, tmp_path):
    with pytest.raises(DataFileError, match=message):
        read_data_file(save(tmp_path, name, content))


def test_a_missing_file_is_one_sentence(tmp_path):
    with pytest.raises(DataFileError, match="Cannot read"):
        read_data_file(tmp_path / "none.tsv")
