"""A malformed row costs only itself; delimiters and charsets are detected."""

from __future__ import annotations

import csv
import gzip

import pandas
import pytest

from decoder2vec.errors import DataFileError
from decoder2vec.text import tables
from decoder2vec.text.files import read_pairs, read_rows, read_rows_or_errors


def parse(tmp_path, content, name="t.csv"):
    """Return line -> fields of the good rows, and line -> reason of the malformed ones."""
    file = tmp_path / name
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    rows = list(read_rows_or_errors(file))
    good = {line: row for line, row in rows if isinstance(row, dict)}
    return good, {line: row for line, row in rows if isinstance(row, str)}


def test_rows_after_a_stray_quote_are_read(tmp_path):
    good, bad = parse(tmp_path, 'id,text\n1,one\n2,"two"x\n3,three\n')
    assert good == {2: {"id": "1", "text": "one"}, 4: {"id": "3", "text": "three"}}
    assert list(bad) == [3] and "expected after" in bad[3]


def test_long_field_is_read(tmp_path):
    good, bad = parse(tmp_path, f"id,text\n1,{'x' * 200_000}\n2,two\n")
    assert len(good[2]["text"]) == 200_000 and good[3]["text"] == "two" and bad == {}


def test_field_over_the_limit_costs_only_its_row(tmp_path, monkeypatch):
    monkeypatch.setattr(tables, "_MAX_ROW", 1000)
    limit = csv.field_size_limit(1000)
    try:
        good, bad = parse(tmp_path, f"id,text\n1,{'x' * 2000}\n2,two\n")
    finally:
        csv.field_size_limit(limit)
    assert list(good) == [3] and list(bad) == [2] and "limit" in bad[2]


def test_rows_after_an_open_quote_are_read(tmp_path):
    good, bad = parse(tmp_path, 'id,text\n1,"one\n2,two\n3,three\n')
    assert good == {3: {"id": "2", "text": "two"}, 4: {"id": "3", "text": "three"}}
    assert bad == {2: "a quote is opened and never closed."}


def test_pieces_of_a_malformed_row_are_not_rows(tmp_path):
    good, bad = parse(tmp_path, 'id,text\n1,"first\nsecond"x\nthird\n4,four\n')
    assert list(good) == [4, 5] and good[5]["text"] == "four" and good[4] == {"id": "third", "text": None}
    assert list(bad) == [2, 3] and "piece" in bad[3]


def test_row_is_numbered_by_its_first_line(tmp_path):
    good, bad = parse(tmp_path, 'id,text\n1,"two\nlines"\n2,"x"y\n3,"a\n\nb"\n4,four\n')
    assert list(good) == [2, 5, 8] and list(bad) == [4]


def test_hostile_quotes_cost_bounded_rereading(tmp_path, monkeypatch):
    monkeypatch.setattr(tables, "_MAX_ROW", 1000)
    monkeypatch.setattr(tables, "_MAX_REREAD", 5000)
    good, bad = parse(tmp_path, "id,text\n" + 'x","\n' * 2000 + "9,nine\n")
    assert len(bad) < 100 and "are lost" in bad[max(bad)] and len(good) <= 1


def test_well_formed_csv_is_read_as_pandas_reads_it(tmp_path):
    content = 'a;b;c\n1;"x; ""y""";\n2;"two\nlines";z, w\n'
    good, bad = parse(tmp_path, content)
    expected = pandas.read_csv(tmp_path / "t.csv", sep=";", dtype=str, keep_default_na=False)
    assert [list(row.values()) for row in good.values()] == expected.to_numpy().tolist() and bad == {}


@pytest.mark.parametrize("name", ["t.csv", "t.tsv"])
@pytest.mark.parametrize("delimiter", [",", ";", "\t", "|"])
def test_delimiter_is_detected(tmp_path, name, delimiter):
    content = (
        delimiter.join(["id", "text"]) + "\n" + delimiter.join(["1", "so; it, is"[: 2 if delimiter in ",;" else 9]])
    )
    assert list(parse(tmp_path, content, name)[0][2]) == ["id", "text"]


def test_single_column_has_no_delimiter(tmp_path):
    good, bad = parse(tmp_path, "text\none\ntwo; three\n")
    assert [row["text"] for row in good.values()] == ["one", "two; three"] and bad == {}


@pytest.mark.parametrize("charset", ["utf-8", "utf-8-sig", "cp1252", "utf-16", "utf-16-le", "utf-16-be"])
def test_charset_is_detected(tmp_path, charset):
    content = gzip.compress("id,text\n1,“naïve” café\n".encode(charset))
    assert parse(tmp_path, content, "t.csv.gz")[0][2] == {"id": "1", "text": "“naïve” café"}


def test_accent_after_the_first_block_is_found(tmp_path, monkeypatch):
    monkeypatch.setattr("decoder2vec.text.charset._BLOCK", 64)
    content = ("id,text\n" + "1,plain\n" * 20 + "2,café\n").encode("cp1252")
    assert parse(tmp_path, content)[0][22]["text"] == "café"


@pytest.mark.parametrize("block", [7, 2**20])
@pytest.mark.parametrize("broken", [b"\xff", b"\xe2\x82", b"\xc3"])
def test_utf8_with_few_broken_bytes_stays_utf8(tmp_path, monkeypatch, broken, block):
    monkeypatch.setattr("decoder2vec.text.charset._BLOCK", block)
    rows = "1,naïve café\n2,日本語\n".encode()
    good, bad = parse(tmp_path, b"id,text\n" + rows + b"3," + broken + b" end\n4,cut " + broken)
    assert [row["text"] for row in good.values()] == ["naïve café", "日本語", "\ufffd end", "cut \ufffd"] and bad == {}


def test_few_valid_sequences_do_not_make_utf8(tmp_path):
    content = "id,text\n1,Ã© été à l’école\n".encode("cp1252")  # the first two letters are é in UTF-8
    assert parse(tmp_path, content)[0][2]["text"] == "Ã© été à l’école"


@pytest.mark.parametrize(
    "content", ["Привет, мир".encode("cp1251"), "日本語のテキスト".encode("shift-jis"), bytes(range(256)) * 4]
)
def test_unknown_charset_is_refused(tmp_path, content):
    with pytest.raises(DataFileError, match=r"neither UTF-8|binary"):
        parse(tmp_path, b"text\n" + content)


def test_data_for_evaluation_is_not_guessed(tmp_path):
    (tmp_path / "t.csv").write_bytes("text\ncafé\n".encode("cp1252"))
    with pytest.raises(DataFileError, match="not UTF-8"):
        list(read_rows(tmp_path / "t.csv"))
    (tmp_path / "t.csv").write_bytes("text\ncafé\n".encode("utf-16"))  # a byte order mark is no guess
    assert list(read_rows(tmp_path / "t.csv")) == [(2, {"text": "café"})]


def test_skip_bad_keeps_the_pairs_after_a_stray_quote(tmp_path):
    (tmp_path / "p.csv").write_text('sentence1,sentence2,score\na,b,1\n"c"x,d,2\ne,f,3\n', encoding="utf-8")
    pairs = read_pairs(tmp_path / "p.csv", skip_bad=True)
    assert pairs.left == ["a", "e"] and pairs.skipped == 1
    with pytest.raises(DataFileError, match="line 3"):
        read_pairs(tmp_path / "p.csv")


@pytest.mark.parametrize(("name", "header"), [("a.csv", "text,other,text"), ("a.tsv", "text\tother\ttext")])
def test_two_columns_of_one_name_are_refused(tmp_path, name, header):
    file = tmp_path / name
    file.write_text(f"{header}\n" + header.replace("text", "hello") + "\n")
    with pytest.raises(DataFileError, match=rf"{name} has two columns 'text'; rename"):
        list(tables.parse_rows(file, file.suffix[1:]))


def test_columns_without_a_name_may_be_several(tmp_path):
    (tmp_path / "a.csv").write_text("text,,\nhello,1,2\n")
    assert [row["text"] for _, row in tables.parse_rows(tmp_path / "a.csv", "csv")] == ["hello"]
