"""Relevance judgements: the forms in which they come, and what is refused."""

from __future__ import annotations

import gzip

import pytest

from decoder2vec.errors import DataFileError
from decoder2vec.text.qrels import read_qrels

EXPECTED = {"q1": {"a": 2, "b c": 0}, "q2": {"a": 1}}
ROWS = [("q1", "a", "2"), ("q1", "b c", "0"), ("q2", "a", "1")]
TABLE = "".join("\t".join(row) + "\n" for row in [("query-id", "corpus-id", "score"), *ROWS])
RECORDS = "".join(f'{{"query-id": "{q}", "corpus-id": "{d}", "score": {grade}}}\n' for q, d, grade in ROWS)


@pytest.mark.parametrize(
    ("name", "content"),
    [("qrels.tsv", TABLE), ("qrels", TABLE), ("qrels.csv", TABLE.replace("\t", ",")), ("qrels.jsonl", RECORDS)],
)
def test_tables_are_read_by_their_columns(name, content, tmp_path):
    (tmp_path / name).write_text(content, "utf-8")
    assert read_qrels(tmp_path / name) == EXPECTED


def test_compressed_tables_are_read(tmp_path):
    (tmp_path / "qrels.tsv.gz").write_bytes(gzip.compress(TABLE.encode()))
    assert read_qrels(tmp_path / "qrels.tsv.gz") == EXPECTED


@pytest.mark.parametrize("name", ["qrels", "qrels.txt", "qrels.tsv", "qrels.trec"])
def test_lines_of_trec_are_read(name, tmp_path):
    (tmp_path / name).write_text("q1 0 a 2\nq1 0 b 0\n\nq2\t0\ta\t1\n", "utf-8")
    assert read_qrels(tmp_path / name) == {"q1": {"a": 2, "b": 0}, "q2": {"a": 1}}


@pytest.mark.parametrize("grade", ["-1", "0.5", "+2", "1e0"])
@pytest.mark.parametrize("name", ["qrels.tsv", "qrels.trec"])
def test_first_line_of_trec_may_have_any_number(name, grade, tmp_path):
    """TREC grades spam below 0; such a line is no header."""
    (tmp_path / name).write_text(f"q1 0 a {grade}\nq1 0 b 2\n", "utf-8")
    assert read_qrels(tmp_path / name) == {"q1": {"a": float(grade), "b": 2}}


@pytest.mark.parametrize("charset", ["utf-8-sig", "utf-16"])
def test_tables_with_a_byte_order_mark_are_read(charset, tmp_path):
    """As Windows writes them; the mark stands before the first name of a column."""
    (tmp_path / "qrels.tsv").write_text(TABLE, charset)
    assert read_qrels(tmp_path / "qrels.tsv") == EXPECTED
    (tmp_path / "qrels.trec").write_text("q1 0 a 2\n", "utf-8-sig")
    assert read_qrels(tmp_path / "qrels.trec") == {"q1": {"a": 2}}


def test_ids_are_texts_and_grades_may_have_fractions(tmp_path):
    (tmp_path / "q.jsonl").write_text('{"query-id": 1, "corpus-id": 7, "score": 0.5}\n', "utf-8")
    assert read_qrels(tmp_path / "q.jsonl") == {"1": {"7": 0.5}}
    with pytest.raises(DataFileError, match="line 1: qrels have query-id, corpus-id and a whole number as score"):
        read_qrels(tmp_path / "q.jsonl", whole=True)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "holds no judgement"),
        ("q1 a\n", "line 1: qrels have query, 0, document and a number"),
        ("q1 0 a much\n", "line 1: qrels have query, 0, document and a number"),
        ("q1 0 a nan\n", "line 1: qrels have query, 0, document and a number"),
        ("q1 0 a 1\nq1 0 a 2\n", "line 2: q1 and a have another score in an earlier line"),
        ("query-id\tcorpus-id\tscore\nq1\ta\tmuch\n", "line 2: qrels have query-id, corpus-id and a number as score"),
        ("query-id\tcorpus-id\nq1\ta\n", "line 2: qrels have query-id, corpus-id and a number as score"),
    ],
)
def test_what_is_no_judgement_is_one_sentence(content, message, tmp_path):
    (tmp_path / "qrels").write_text(content, "utf-8")
    with pytest.raises(DataFileError, match=message) as error:
        read_qrels(tmp_path / "qrels")
    assert len(str(error.value).splitlines()) == 1


def test_files_that_cannot_be_read_are_one_sentence(tmp_path):
    (tmp_path / "latin").write_bytes(b"q1 0 \xff 1\n")
    for name, message in (("none", "cannot be read"), ("latin", "not a text file in UTF-8")):
        with pytest.raises(DataFileError, match=message):
            read_qrels(tmp_path / name)
