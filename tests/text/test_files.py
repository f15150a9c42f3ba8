"""Tests of `decoder2vec.text.files`: every format, every kind of data, and malformed files."""

from __future__ import annotations

import csv
import gzip
import io
import json
import sys

import pytest

from decoder2vec.errors import DataFileError, InputError
from decoder2vec.text.files import (
    DataRow,
    ScoredPairs,
    Triplets,
    read_columns,
    read_data_file,
    read_pairs,
    read_texts,
    read_triplets,
)

ROWS = [
    ("A man plays a guitar.", "Someone is playing music.", 4.2),
    ('He said "no" twice.', 'She said: "yes", once.', 1.0),
    ("naïve café 😀", "مرحبا", 0.0),
    ("One, two, three", "Three; two, one", 2.75),
]


def as_tsv(rows, end="\n"):
    lines = [("sentence1", "sentence2", "score"), *((a, b, str(score)) for a, b, score in rows)]
    return "".join("\t".join(line) + end for line in lines)


def as_csv(rows):
    buffer = io.StringIO()
    table = csv.writer(buffer)
    table.writerow(["sentence1", "sentence2", "score"])
    table.writerows(rows)
    return buffer.getvalue()


def as_jsonl(rows):
    return "".join(
        json.dumps({"sentence1": a, "sentence2": b, "score": score}, ensure_ascii=False) + "\n" for a, b, score in rows
    )


def save(folder, name, content):
    """Write a text or bytes; a name that ends in .gz is compressed."""
    file = folder / name
    data = content if isinstance(content, bytes) else content.encode("utf-8")
    file.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    return file


def rows_of(pairs):
    return list(zip(pairs.left, pairs.right, pairs.scores, strict=True))


@pytest.fixture
def stdin(monkeypatch):
    """stdin(data) sets standard input to these bytes, decoded as in a UTF-8 locale, or as a locale would otherwise."""

    def pipe(data, encoding="utf-8", errors="strict"):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data), encoding=encoding, errors=errors))

    return pipe


@pytest.mark.parametrize("compression", ["", ".gz"])
@pytest.mark.parametrize(("name", "write"), [("p.tsv", as_tsv), ("p.csv", as_csv), ("p.jsonl", as_jsonl)])
def test_pairs_are_read_from_every_format(tmp_path, name, write, compression):
    pairs = read_pairs(save(tmp_path, name + compression, write(ROWS)))
    assert rows_of(pairs) == ROWS
    assert (pairs.name, pairs.skipped, len(pairs)) == ("p", 0, 4)


@pytest.mark.parametrize("name", ["p.ndjson", "p.JSONL", "p.ndjson.gz"])
def test_suffix_variants_are_recognised(tmp_path, name):
    assert rows_of(read_pairs(save(tmp_path, name, as_jsonl(ROWS)))) == ROWS


def test_columns_are_found_by_name_in_any_order(tmp_path):
    file = save(tmp_path, "p.tsv", "id\tgold\tb\ta\n7\t3.5\tright\tleft\n")
    assert rows_of(read_pairs(file, ("a", "b", "gold"))) == [("left", "right", 3.5)]


@pytest.mark.parametrize(("name", "write"), [("p.tsv", as_tsv), ("p.csv", as_csv), ("p.jsonl", as_jsonl)])
def test_byte_order_mark_is_not_part_of_a_column(tmp_path, name, write):
    assert rows_of(read_pairs(save(tmp_path, name, b"\xef\xbb\xbf" + write(ROWS).encode()))) == ROWS


@pytest.mark.parametrize(("name", "write"), [("p.tsv", as_tsv), ("p.csv", as_csv), ("p.jsonl", as_jsonl)])
def test_windows_line_ends_are_not_part_of_a_field(tmp_path, name, write):
    content = write(ROWS).replace("\r\n", "\n").replace("\n", "\r\n")
    assert rows_of(read_pairs(save(tmp_path, name, content))) == ROWS


def test_quotes_in_tsv_are_text(tmp_path):
    rows = [('"Quoted" he said', 'an inch is 1"', 1.0), ('"', '""', 2.0), ('"open', "next", 3.0)]
    assert rows_of(read_pairs(save(tmp_path, "p.tsv", as_tsv(rows)))) == rows


def test_quoted_csv_fields_may_hold_commas_and_line_breaks(tmp_path):
    content = 'sentence1,sentence2,score\n"a, b","say ""c""",1\n"two\nlines",d,2\n'
    expected = [("a, b", 'say "c"', 1.0), ("two\nlines", "d", 2.0)]
    assert rows_of(read_pairs(save(tmp_path, "p.csv", content))) == expected


def test_every_line_of_a_txt_file_is_a_text(tmp_path):
    file = save(tmp_path, "t.txt", "first\n\n  spaced  \r\nlast\twith a tab")
    assert list(read_texts(file)) == ["first", "", "  spaced  ", "last\twith a tab"]


@pytest.mark.parametrize("name", ["t.txt", "t.txt.gz", "t", "t.md"])
def test_unknown_suffixes_are_read_line_by_line(tmp_path, name):
    assert list(read_texts(save(tmp_path, name, "\ufeffone\r\ntwo\r\n"))) == ["one", "two"]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("t.tsv", 'id\ttext\n1\tsay "a"\n2\tb\n'),
        ("t.csv", 'id,text\n1,"say ""a"""\n2,b\n'),
        ("t.jsonl", '{"id": 1, "text": "say \\"a\\""}\n\n{"id": 2, "text": "b"}\n'),
        ("t.jsonl.gz", '{"sentence": "say \\"a\\""}\n{"sentence": "b"}\n'),
    ],
)
def test_default_columns_are_text_and_sentence(tmp_path, name, content):
    assert list(read_texts(save(tmp_path, name, content))) == ['say "a"', "b"]


def test_texts_are_read_from_a_named_column(tmp_path):
    assert list(read_texts(save(tmp_path, "t.csv", "text,body\nno,yes\n"), "body")) == ["yes"]


def test_standard_input_is_read_line_by_line(stdin):
    stdin("naïve\r\n\r\nthird".encode())
    assert list(read_texts("-")) == ["naïve", "", "third"]


def test_standard_input_with_a_column_is_read_as_jsonl(stdin):
    stdin(b'{"body": "a\\nb"}\n{"body": "c"}\n')
    assert list(read_texts("-", "body")) == ["a\nb", "c"]


def test_byte_order_mark_on_standard_input_is_removed(stdin):
    stdin(b"\xef\xbb\xbffirst\nsecond\n")
    assert list(read_texts("-")) == ["first", "second"]

    stdin(b'\xef\xbb\xbf{"body": "a"}\n')
    assert list(read_texts("-", "body")) == ["a"]


@pytest.mark.parametrize("errors", ["strict", "surrogateescape"])  # the second is Python's without a locale
def test_standard_input_that_is_not_utf8_is_refused(stdin, errors):
    stdin("café\n".encode("latin-1"), errors=errors)
    with pytest.raises(DataFileError, match="UTF-8"):
        list(read_texts("-"))


def test_standard_input_is_utf8_in_every_locale(stdin):
    stdin("café\n".encode(), "latin-1")
    assert list(read_texts("-")) == ["café"]


def test_texts_are_read_lazily(tmp_path):
    """The first text is returned although the file is broken further on."""
    file = save(tmp_path, "t.jsonl", '{"text": "fine"}\nbroken\n')
    stream = read_texts(file)
    assert next(stream) == "fine"
    with pytest.raises(DataFileError, match="line 2"):
        next(stream)


def test_unique_texts_keep_the_order_of_appearance():
    assert ScoredPairs("x", ["b", "a", "b"], ["c", "a", "d"], [0.0, 1.0, 2.0]).texts() == ["b", "a", "c", "d"]


# --- errors ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("p.tsv", "text_a\ttext_b\tscore\na\tb\t1\n"),
        ("p.csv", "text_a,text_b,score\na,b,1\n"),
        ("p.jsonl", '{"text_a": "a", "text_b": "b", "score": 1}\n'),
    ],
)
def test_missing_pair_column_lists_existing_columns(tmp_path, name, content):
    file = save(tmp_path, name, content)
    with pytest.raises(DataFileError) as error:
        read_pairs(file)
    assert str(file) in str(error.value)
    assert "'sentence1'" in str(error.value)
    assert "text_a, text_b, score" in str(error.value)


def test_missing_text_column_lists_existing_columns(tmp_path):
    file = save(tmp_path, "t.tsv", "id\tbody\n1\tx\n")
    with pytest.raises(DataFileError, match=r"'text'.*id, body"):
        list(read_texts(file))


@pytest.mark.parametrize("bad", ["high", "", "4,5", "nan", "inf", "-Infinity"])
@pytest.mark.parametrize("name", ["p.tsv", "p.csv"])
def test_invalid_score_in_a_table_names_its_line(tmp_path, name, bad):
    rows = [("a", "b", "1"), ("c", "d", bad), ("e", "f", "3")]
    file = save(tmp_path, name, (as_tsv if name == "p.tsv" else as_csv)(rows))
    with pytest.raises(DataFileError) as error:
        read_pairs(file)
    assert f"{file}, line 3" in str(error.value)
    assert repr(bad) in str(error.value)

    pairs = read_pairs(file, skip_bad=True)
    assert rows_of(pairs) == [("a", "b", 1.0), ("e", "f", 3.0)]
    assert pairs.skipped == 1


@pytest.mark.parametrize("bad", ["NaN", "Infinity", "null", "[1]", "1e999", "1" + 400 * "0"])
def test_invalid_score_in_json_names_its_line(tmp_path, bad):
    lines = [f'{{"sentence1": "a", "sentence2": "b", "score": {score}}}\n' for score in ("1", bad, "2")]
    file = save(tmp_path, "p.jsonl", "".join(lines))
    with pytest.raises(DataFileError, match="line 2"):
        read_pairs(file)
    pairs = read_pairs(file, skip_bad=True)
    assert (pairs.scores, pairs.skipped) == ([1.0, 2.0], 1)


def test_line_numbers_count_empty_and_multiline_rows(tmp_path):
    tsv = save(tmp_path, "p.tsv", as_tsv(ROWS) + "\n\na\tb\tbad\n")
    with pytest.raises(DataFileError, match="line 8"):
        read_pairs(tsv)
    table = save(tmp_path, "p.csv", 'sentence1,sentence2,score\n"two\nlines",b,1\na,b,bad\n')
    with pytest.raises(DataFileError, match="line 4"):
        read_pairs(table)


@pytest.mark.parametrize(("name", "line"), [("p.tsv", "only one"), ("p.csv", "only one"), ("p.jsonl", "only one")])
def test_row_with_missing_fields_is_refused(tmp_path, name, line):
    if name == "p.jsonl":
        content = as_jsonl(ROWS[:1]) + json.dumps({"sentence1": line, "sentence2": None, "score": None}) + "\n"
    else:
        content = (as_tsv if name == "p.tsv" else as_csv)(ROWS[:1]) + line + "\n"
    file = save(tmp_path, name, content)
    with pytest.raises(DataFileError, match=r"line \d.*sentence2 is missing"):
        read_pairs(file)
    assert read_pairs(file, skip_bad=True).skipped == 1


def test_number_instead_of_a_text_in_json_is_refused(tmp_path):
    file = save(tmp_path, "p.jsonl", '{"sentence1": 5, "sentence2": "b", "score": 1}\n')
    with pytest.raises(DataFileError, match="line 1: sentence1 is int"):
        read_pairs(file)
    file = save(tmp_path, "t.jsonl", '{"text": "a"}\n{"text": 5}\n')
    with pytest.raises(DataFileError, match="line 2: text is int"):
        list(read_texts(file))


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("p.tsv", "score\tsentence1\tsentence2\n5\tone\ttwo\n4\tone\ttorn\ttwo\n"),
        ("p.csv", "score,sentence1,sentence2\n5,one,two\n4,one, torn,two\n"),
    ],
)
def test_more_fields_than_the_header_are_refused(tmp_path, name, content):
    """One comma or tab too many shifts all following texts by one column: it would be another pair."""
    file = save(tmp_path, name, content)
    with pytest.raises(DataFileError, match=r"line 3.*4 fields.*header has 3"):
        read_pairs(file)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("p.tsv", "score\tsentence1\tsentence2\n5\ta\tb\n4\tone\ttorn\ttwo\n3\tc\td\n"),
        ("p.csv", "score,sentence1,sentence2\n5,a,b\n4,one, torn,two\n3,c,d\n"),
        ("p.jsonl", as_jsonl([("a", "b", 5.0)]) + "{broken\n" + as_jsonl([("c", "d", 3.0)])),
        ("p.jsonl", as_jsonl([("a", "b", 5.0)]) + '["a", "b", 4]\n' + as_jsonl([("c", "d", 3.0)])),
    ],
    ids=["tsv", "csv", "broken json", "json list"],
)
def test_skip_bad_also_skips_lines_that_cannot_be_parsed(tmp_path, name, content):
    pairs = read_pairs(save(tmp_path, name, content), skip_bad=True)
    assert rows_of(pairs) == [("a", "b", 5.0), ("c", "d", 3.0)]
    assert pairs.skipped == 1


def test_broken_json_names_its_line(tmp_path):
    file = save(tmp_path, "p.jsonl", as_jsonl(ROWS[:2]) + '{"sentence1": "a", \n')
    with pytest.raises(DataFileError, match=r"line 3: not JSON"):
        read_pairs(file)


def test_json_line_that_is_not_an_object_is_refused(tmp_path):
    with pytest.raises(DataFileError, match=r"line 1.*object.*list"):
        read_pairs(save(tmp_path, "p.jsonl", '["a", "b", 1]\n'))


def test_unclosed_csv_quote_is_refused(tmp_path):
    with pytest.raises(DataFileError, match="line"):
        read_pairs(save(tmp_path, "p.csv", 'sentence1,sentence2,score\n"a,b,1\nc,d,2\n'))


@pytest.mark.parametrize("name", ["p.tsv", "p.csv", "p.tsv.gz"])
def test_file_that_is_not_utf8_suggests_iconv(tmp_path, name):
    content = as_tsv if "tsv" in name else as_csv
    file = save(tmp_path, name, content([("café", "b", 1.0)]).encode("latin-1"))
    with pytest.raises(DataFileError, match=r"not UTF-8.*0xe9.*iconv"):
        read_pairs(file)


@pytest.mark.parametrize("read", [read_pairs, lambda file: list(read_texts(file))], ids=["pairs", "texts"])
def test_folder_or_missing_file_is_refused(tmp_path, read):
    (tmp_path / "folder.tsv").mkdir()
    with pytest.raises(DataFileError, match="is a folder"):
        read(tmp_path / "folder.tsv")
    with pytest.raises(DataFileError, match=r"Cannot read .*absent\.tsv: No such file"):
        read(tmp_path / "absent.tsv")


@pytest.mark.parametrize("name", ["p.tsv", "p.csv", "p.jsonl", "p.tsv.gz"])
@pytest.mark.parametrize("content", ["", "sentence1\tsentence2\tscore\n"], ids=["empty", "header only"])
def test_file_without_pairs_is_refused(tmp_path, name, content):
    content = content.replace("\t", ",") if name == "p.csv" else "" if name == "p.jsonl" else content
    with pytest.raises(DataFileError, match="no usable pair"):
        read_pairs(save(tmp_path, name, content))


def test_skip_bad_needs_at_least_one_good_line(tmp_path):
    with pytest.raises(DataFileError, match="no usable pair"):
        read_pairs(save(tmp_path, "p.tsv", as_tsv([("a", "b", "x"), ("c", "d", "y")])), skip_bad=True)


@pytest.mark.parametrize("name", ["t.txt", "t.tsv", "t.csv", "t.jsonl"])
def test_empty_file_has_no_texts(tmp_path, name):
    assert list(read_texts(save(tmp_path, name, ""))) == []


def damaged(kind):
    whole = bytearray(gzip.compress(as_tsv(ROWS * 200).encode()))
    if kind == "cut off":
        return bytes(whole[: len(whole) // 2])
    if kind == "other bytes inside":
        whole[20:60] = bytes(255 - byte for byte in whole[20:60])
        return bytes(whole)
    return as_tsv(ROWS).encode()


@pytest.mark.parametrize("kind", ["cut off", "other bytes inside", "not compressed"])
def test_damaged_gz_file_is_refused(tmp_path, kind):
    file = tmp_path / "p.tsv.gz"
    file.write_bytes(damaged(kind))
    with pytest.raises(DataFileError, match="Cannot read"):
        read_pairs(file)


def test_pairs_are_not_read_from_txt(tmp_path):
    with pytest.raises(DataFileError, match=r"\.tsv, \.csv or \.jsonl"):
        read_pairs(save(tmp_path, "p.txt", "a\n"))


def test_three_column_names_are_required(tmp_path):
    with pytest.raises(InputError, match="three column names"):
        read_pairs(save(tmp_path, "p.tsv", as_tsv(ROWS)), ("a", "b"))


# --- limits ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def hundred(tmp_path):
    return save(tmp_path, "p.tsv", as_tsv([(f"l{i}", f"r{i}", float(i)) for i in range(101)]))


@pytest.mark.parametrize("limit", [2, 3, 5, 11, 26, 51])
def test_limit_takes_evenly_spaced_pairs(hundred, limit):
    step = 100 // (limit - 1)
    assert read_pairs(hundred, limit=limit).scores == [float(i) for i in range(0, 101, step)]


@pytest.mark.parametrize("limit", [7, 30, 99, 100])
def test_limit_that_does_not_divide_has_similar_gaps(hundred, limit):
    pairs = read_pairs(hundred, limit=limit)
    assert len(pairs) == limit
    assert (pairs.scores[0], pairs.scores[-1]) == (0.0, 100.0)
    gaps = {b - a for a, b in zip(pairs.scores, pairs.scores[1:], strict=False)}
    assert min(gaps) >= 1 and max(gaps) - min(gaps) <= 1
    assert all(row == (f"l{int(row[2])}", f"r{int(row[2])}", row[2]) for row in rows_of(pairs))


@pytest.mark.parametrize("limit", [101, 102, 10_000, None])
def test_limit_above_the_size_changes_nothing(hundred, limit):
    assert read_pairs(hundred, limit=limit).scores == [float(i) for i in range(101)]


def test_limit_of_one_takes_one_pair(hundred):
    assert len(read_pairs(hundred, limit=1)) == 1


@pytest.mark.parametrize("limit", [0, -3])
def test_limit_below_one_is_refused(hundred, limit):
    with pytest.raises(InputError):
        read_pairs(hundred, limit=limit)


# --- columns --------------------------------------------------------------------------------------------------------

NAMES = ("anchor", "positive", "negative")


def test_columns_come_in_the_requested_order(tmp_path):
    file = tmp_path / "t.tsv"
    file.write_text('negative\tanchor\tmore\tpositive\nn1\ta1\tx\tp1\nn2\ta "2\tx\tp2\n', encoding="utf-8")
    assert read_columns(file, NAMES) == [("a1", "p1", "n1"), ('a "2', "p2", "n2")]


@pytest.mark.parametrize("name", ["t.csv", "t.jsonl", "t.tsv.gz"])
def test_columns_are_read_from_every_format(name, tmp_path):
    text = {
        "t.csv": 'anchor,positive,negative\n"a, b",p,n\n',
        "t.jsonl": '{"anchor": "a, b", "positive": "p", "negative": "n"}\n\n',
        "t.tsv.gz": "anchor\tpositive\tnegative\na, b\tp\tn\n",
    }[name]
    content = text.encode()
    (tmp_path / name).write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    assert read_columns(tmp_path / name, NAMES) == [("a, b", "p", "n")]


def test_column_limit_reads_only_the_first_rows(tmp_path):
    file = tmp_path / "t.jsonl"
    file.write_text('{"text": "1"}\n{"text": "2"}\nthis is broken\n')
    assert read_columns(file, ["text"], limit=2) == [("1",), ("2",)]
    with pytest.raises(DataFileError, match=r"line 3: not JSON"):
        read_columns(file, ["text"])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("anchor\tpositive\nx\ty\n", r"no column 'negative'; it has: anchor, positive\. Name yours with columns"),
        ("anchor\tpositive\tnegative\na\tp\tn\na\tp\n", r"line 3: negative is missing, not a text"),
        ("anchor\tpositive\tnegative\na\tp\tn\tx\n", r"line 2: 4 fields, but the header has 3"),
        ("anchor\tpositive\tnegative\n", r"holds no usable row"),
        ("", r"holds no usable row"),
    ],
)
def test_invalid_column_files_name_the_line(content, message, tmp_path):
    file = tmp_path / "t.tsv"
    file.write_text(content)
    with pytest.raises(DataFileError, match=message):
        read_columns(file, NAMES)


def test_number_instead_of_a_column_text_is_refused(tmp_path):
    file = tmp_path / "t.jsonl"
    file.write_text('{"label": "neutral", "premise": 3, "hypothesis": "h"}\n')
    with pytest.raises(DataFileError, match="line 1"):
        read_columns(file, ("label", "premise", "hypothesis"))


def test_columns_of_a_missing_file_are_refused(tmp_path):
    with pytest.raises(DataFileError, match="Cannot read"):
        read_columns(tmp_path / "none.tsv", NAMES)


# --- data files -----------------------------------------------------------------------------------------------------


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
def test_columns_determine_the_kind_of_data(name, content, kind, row, tmp_path):
    data = read_data_file(save(tmp_path, name, content))
    assert data.kind == kind
    assert [data_row.content() for data_row in data.rows] == [row]


def test_negatives_may_be_missing(tmp_path):
    file = save(tmp_path, "d.tsv", "anchor\tpositive\tnegative_1\tnegative_2\na\tb\t\td\ne\tf\ng\th\ti\n")
    assert [row.negatives for row in read_data_file(file).rows] == [("d",), (), ("i",)]
    records = {"anchor": "a", "positive": "b"}, {"anchor": "c", "positive": "d", "negative": "n"}
    file = save(tmp_path, "d.jsonl", lines(*records))
    assert read_data_file(file).columns == ("anchor", "positive", "negative")
    assert read_data_file(file).rows == [DataRow(1, "a", ("b",)), DataRow(2, "c", ("d",), ("n",))]


def test_data_file_lists_its_texts_and_pairs(tmp_path):
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
def test_invalid_data_files_name_the_line(name, content, message, tmp_path):
    with pytest.raises(DataFileError, match=message):
        read_data_file(save(tmp_path, name, content))


def test_missing_data_file_is_refused(tmp_path):
    with pytest.raises(DataFileError, match="Cannot read"):
        read_data_file(tmp_path / "none.tsv")


# --- triplets -------------------------------------------------------------------------------------------------------


def test_rows_without_three_different_texts_are_skipped(tmp_path):
    file = tmp_path / "mine.tsv"
    file.write_text("anchor\tpositive\tnegative\na\tb\tc\na\t\tc\na\ta\tc\na\tb\t\nd\te\tf\n")
    triplets = read_triplets(file)
    assert triplets.rows == [("a", "b", "c"), ("d", "e", "f")]
    assert (triplets.name, triplets.skipped, len(triplets)) == ("mine", 3, 2)
    assert triplets.texts() == ["a", "b", "c", "d", "e", "f"]


def test_first_positive_and_negative_of_records_are_used(tmp_path):
    file = tmp_path / "mine.jsonl"
    rows = [{"description": "a", "pos": ["", "b", "x"], "neg": ["c", "y"]}, {"description": "d", "pos": ["e"]}]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert read_triplets(file).rows == [("a", "b", "c")]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("anchor\tpositive\na\tb\n", "holds pairs; give triplets"),
        ("sentence1\tsentence2\tscore\na\tb\t1\n", "holds scored pairs; give triplets"),
        ("anchor\tpositive\tnegative\na\ta\tb\n", "no row of three different texts"),
        ("anchor\tpositive\tnegative\n", "no usable row"),
    ],
)
def test_file_without_triplets_is_refused(content, message, tmp_path):
    file = tmp_path / "mine.tsv"
    file.write_text(content)
    with pytest.raises(DataFileError, match=message):
        read_triplets(file)


def test_sample_is_random_without_replacement():
    rows = [(f"a{n}", f"b{n}", f"c{n}") for n in range(50)]
    triplets = Triplets("toy", rows)
    sample = triplets.sample(20, 0).rows
    assert len(set(sample)) == 20 and set(sample) < set(rows)
    assert sample == triplets.sample(20, 0).rows != triplets.sample(20, 1).rows
    assert sorted(triplets.sample(99, 0).rows) == sorted(rows)
