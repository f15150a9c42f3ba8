"""Rows of several texts by column name: triplets, inferences."""

from __future__ import annotations

import gzip

import pytest

from decoder2vec.errors import DataFileError
from decoder2vec.text.files import read_columns

NAMES = ("anchor", "positive", "negative")


def test_rows_come_in_the_order_of_the_names_asked(tmp_path):
    file = tmp_path / "t.tsv"
    file.write_text('negative\tanchor\tmore\tpositive\nn1\ta1\tx\tp1\nn2\ta "2\tx\tp2\n', encoding="utf-8")
    assert read_columns(file, NAMES) == [("a1", "p1", "n1"), ('a "2', "p2", "n2")]


@pytest.mark.parametrize("name", ["t.csv", "t.jsonl", "t.tsv.gz"])
def test_every_kind_of_file_is_read(name, tmp_path):
    text = {
        "t.csv": 'anchor,positive,negative\n"a, b",p,n\n',
        "t.jsonl": '{"anchor": "a, b", "positive": "p", "negative": "n"}\n\n',
        "t.tsv.gz": "anchor\tpositive\tnegative\na, b\tp\tn\n",
    }[name]
    content = text.encode()
    (tmp_path / name).write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    assert read_columns(tmp_path / name, NAMES) == [("a, b", "p", "n")]


def test_a_limit_takes_the_first_rows_and_reads_no_further(tmp_path):
    file = tmp_path / "t.jsonl"
    file.write_text('{"text": "1"}\n{"text": "2"}\nthis is broken\n')
    assert read_columns(file, ["text"], limit=2) == [("1",), ("2",)]
    with pytest.raises(DataFileError, match=r"line 3: not JSON"):
        read_columns(file, ["text"])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("anchor\tpositive\nx\ty\n", r"no column 'negative'; it has: anchor, positive\. Name yours with columns"),
        ("anchor\tpositive\tnegative\na\tp\tn\na\tp\n", r"line 3: one of anchor, positive, negative is missing"),
        ("anchor\tpositive\tnegative\na\tp\tn\tx\n", r"line 2: 4 fields, but the header has 3"),
        ("anchor\tpositive\tnegative\n", r"holds no usable row"),
        ("", r"holds no usable row"),
    ],
)
def test_what_cannot_be_used_is_said_with_its_line(content, message, tmp_path):
    file = tmp_path / "t.tsv"
    file.write_text(content)
    with pytest.raises(DataFileError, match=message):
        read_columns(file, NAMES)


def test_a_number_where_a_text_is_wanted_is_refused(tmp_path):
    file = tmp_path / "t.jsonl"
    file.write_text('{"label": "neutral", "premise": 3, "hypothesis": "h"}\n')
    with pytest.raises(DataFileError, match="line 1"):
        read_columns(file, ("label", "premise", "hypothesis"))


def test_a_missing_file_is_one_sentence(tmp_path):
    with pytest.raises(DataFileError, match="Cannot read"):
        read_columns(tmp_path / "none.tsv", NAMES)
