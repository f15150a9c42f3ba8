"""Texts and pairs from files as people have them: other endings, other quotes, other faults."""

from __future__ import annotations

import csv
import gzip
import io
import json
import sys

import pytest

from decoder2vec.errors import DataFileError, InputError
from decoder2vec.text.files import ScoredPairs, read_pairs, read_texts

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
    written = io.StringIO()
    table = csv.writer(written)
    table.writerow(["sentence1", "sentence2", "score"])
    table.writerows(rows)
    return written.getvalue()


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
    """stdin(bytes): what is piped in, decoded as an interpreter in a UTF-8 locale does it."""

    def pipe(data):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data), encoding="utf-8"))

    return pipe


@pytest.mark.parametrize("packed", ["", ".gz"])
@pytest.mark.parametrize(("name", "write"), [("p.tsv", as_tsv), ("p.csv", as_csv), ("p.jsonl", as_jsonl)])
def test_pairs_come_back_as_they_were_written(tmp_path, name, write, packed):
    pairs = read_pairs(save(tmp_path, name + packed, write(ROWS)))
    assert rows_of(pairs) == ROWS
    assert (pairs.name, pairs.skipped, len(pairs)) == ("p", 0, 4)


@pytest.mark.parametrize("name", ["p.ndjson", "p.JSONL", "p.ndjson.gz"])
def test_other_spellings_of_a_suffix_are_understood(tmp_path, name):
    assert rows_of(read_pairs(save(tmp_path, name, as_jsonl(ROWS)))) == ROWS


def test_columns_are_found_by_name_wherever_they_stand(tmp_path):
    file = save(tmp_path, "p.tsv", "id\tgold\tb\ta\n7\t3.5\tright\tleft\n")
    assert rows_of(read_pairs(file, ("a", "b", "gold"))) == [("left", "right", 3.5)]


@pytest.mark.parametrize(("name", "write"), [("p.tsv", as_tsv), ("p.csv", as_csv), ("p.jsonl", as_jsonl)])
def test_a_byte_order_mark_belongs_to_no_column(tmp_path, name, write):
    assert rows_of(read_pairs(save(tmp_path, name, b"\xef\xbb\xbf" + write(ROWS).encode()))) == ROWS


@pytest.mark.parametrize(("name", "write"), [("p.tsv", as_tsv), ("p.csv", as_csv), ("p.jsonl", as_jsonl)])
def test_windows_line_ends_belong_to_no_field(tmp_path, name, write):
    content = write(ROWS).replace("\r\n", "\n").replace("\n", "\r\n")
    assert rows_of(read_pairs(save(tmp_path, name, content))) == ROWS


def test_quotes_in_a_tsv_are_text_even_where_they_do_not_close(tmp_path):
    rows = [('"Quoted" he said', 'an inch is 1"', 1.0), ('"', '""', 2.0), ('"open', "next", 3.0)]
    assert rows_of(read_pairs(save(tmp_path, "p.tsv", as_tsv(rows)))) == rows


def test_commas_quotes_and_line_breaks_inside_csv_quotes_are_text(tmp_path):
    content = 'sentence1,sentence2,score\n"a, b","say ""c""",1\n"two\nlines",d,2\n'
    expected = [("a, b", 'say "c"', 1.0), ("two\nlines", "d", 2.0)]
    assert rows_of(read_pairs(save(tmp_path, "p.csv", content))) == expected


def test_lines_of_a_txt_file_are_texts_and_empty_ones_keep_their_place(tmp_path):
    file = save(tmp_path, "t.txt", "first\n\n  spaced  \r\nlast\twith a tab")
    assert list(read_texts(file)) == ["first", "", "  spaced  ", "last\twith a tab"]


@pytest.mark.parametrize("name", ["t.txt", "t.txt.gz", "t", "t.md"])
def test_a_file_with_no_table_suffix_is_read_line_by_line(tmp_path, name):
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
def test_texts_of_a_table_are_in_its_text_or_sentence_column(tmp_path, name, content):
    assert list(read_texts(save(tmp_path, name, content))) == ['say "a"', "b"]


def test_texts_of_a_named_column(tmp_path):
    assert list(read_texts(save(tmp_path, "t.csv", "text,body\nno,yes\n"), "body")) == ["yes"]


def test_texts_from_standard_input_line_by_line(stdin):
    stdin("naïve\r\n\r\nthird".encode())
    assert list(read_texts("-")) == ["naïve", "", "third"]


def test_texts_from_standard_input_by_column(stdin):
    stdin(b'{"body": "a\\nb"}\n{"body": "c"}\n')
    assert list(read_texts("-", "body")) == ["a\nb", "c"]


def test_a_byte_order_mark_on_standard_input_belongs_to_no_text(stdin):
    stdin(b"\xef\xbb\xbffirst\nsecond\n")
    assert list(read_texts("-")) == ["first", "second"]


def test_standard_input_that_is_not_utf8_is_refused(stdin):
    stdin("café\n".encode("latin-1"))
    with pytest.raises(DataFileError, match="UTF-8"):
        list(read_texts("-"))


def test_texts_are_read_one_by_one(tmp_path):
    """The first text is there although the file is broken further on: nothing is read ahead of need."""
    file = save(tmp_path, "t.jsonl", '{"text": "fine"}\nbroken\n')
    stream = read_texts(file)
    assert next(stream) == "fine"
    with pytest.raises(DataFileError, match="line 2"):
        next(stream)


def test_unique_texts_keep_the_order_of_appearance():
    assert ScoredPairs("x", ["b", "a", "b"], ["c", "a", "d"], [0.0, 1.0, 2.0]).texts() == ["b", "a", "c", "d"]


# what cannot be read, and what the user is told


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("p.tsv", "text_a\ttext_b\tscore\na\tb\t1\n"),
        ("p.csv", "text_a,text_b,score\na,b,1\n"),
        ("p.jsonl", '{"text_a": "a", "text_b": "b", "score": 1}\n'),
    ],
)
def test_a_missing_column_is_named_with_those_that_are_there(tmp_path, name, content):
    file = save(tmp_path, name, content)
    with pytest.raises(DataFileError) as refused:
        read_pairs(file)
    assert str(file) in str(refused.value)
    assert "'sentence1'" in str(refused.value)
    assert "text_a, text_b, score" in str(refused.value)


def test_a_missing_text_column_is_named_with_those_that_are_there(tmp_path):
    file = save(tmp_path, "t.tsv", "id\tbody\n1\tx\n")
    with pytest.raises(DataFileError, match=r"'text'.*id, body"):
        list(read_texts(file))


@pytest.mark.parametrize("bad", ["high", "", "4,5", "nan", "inf", "-Infinity"])
@pytest.mark.parametrize("name", ["p.tsv", "p.csv"])
def test_a_score_that_is_no_finite_number_is_refused_with_its_line(tmp_path, name, bad):
    rows = [("a", "b", "1"), ("c", "d", bad), ("e", "f", "3")]
    file = save(tmp_path, name, (as_tsv if name == "p.tsv" else as_csv)(rows))
    with pytest.raises(DataFileError) as refused:
        read_pairs(file)
    assert f"{file}, line 3" in str(refused.value)
    assert repr(bad) in str(refused.value)

    kept = read_pairs(file, skip_bad=True)
    assert rows_of(kept) == [("a", "b", 1.0), ("e", "f", 3.0)]
    assert kept.skipped == 1


@pytest.mark.parametrize("bad", ["NaN", "Infinity", "null", "[1]", "1e999", "1" + 400 * "0"])
def test_a_json_score_that_is_no_finite_number_is_refused_with_its_line(tmp_path, bad):
    lines = [f'{{"sentence1": "a", "sentence2": "b", "score": {score}}}\n' for score in ("1", bad, "2")]
    file = save(tmp_path, "p.jsonl", "".join(lines))
    with pytest.raises(DataFileError, match="line 2"):
        read_pairs(file)
    kept = read_pairs(file, skip_bad=True)
    assert (kept.scores, kept.skipped) == ([1.0, 2.0], 1)


def test_the_line_of_a_bad_score_counts_empty_and_broken_lines(tmp_path):
    tsv = save(tmp_path, "p.tsv", as_tsv(ROWS) + "\n\na\tb\tbad\n")
    with pytest.raises(DataFileError, match="line 8"):
        read_pairs(tsv)
    table = save(tmp_path, "p.csv", 'sentence1,sentence2,score\n"two\nlines",b,1\na,b,bad\n')
    with pytest.raises(DataFileError, match="line 4"):
        read_pairs(table)


@pytest.mark.parametrize(("name", "line"), [("p.tsv", "only one"), ("p.csv", "only one"), ("p.jsonl", "only one")])
def test_a_line_that_ends_too_early_is_bad(tmp_path, name, line):
    if name == "p.jsonl":
        content = as_jsonl(ROWS[:1]) + json.dumps({"sentence1": line, "sentence2": None, "score": None}) + "\n"
    else:
        content = (as_tsv if name == "p.tsv" else as_csv)(ROWS[:1]) + line + "\n"
    file = save(tmp_path, name, content)
    with pytest.raises(DataFileError, match=r"line \d.*sentence2 is missing"):
        read_pairs(file)
    assert read_pairs(file, skip_bad=True).skipped == 1


def test_a_text_that_is_a_number_in_json_is_refused(tmp_path):
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
def test_more_fields_than_the_header_are_refused_with_the_line(tmp_path, name, content):
    """A comma or tab too many moves every text behind it by one column: the pair would be another."""
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
def test_a_line_that_cannot_be_parsed_is_left_out_too_when_asked(tmp_path, name, content):
    kept = read_pairs(save(tmp_path, name, content), skip_bad=True)
    assert rows_of(kept) == [("a", "b", 5.0), ("c", "d", 3.0)]
    assert kept.skipped == 1


def test_broken_json_is_refused_with_its_line(tmp_path):
    file = save(tmp_path, "p.jsonl", as_jsonl(ROWS[:2]) + '{"sentence1": "a", \n')
    with pytest.raises(DataFileError, match=r"line 3: not JSON"):
        read_pairs(file)


def test_json_that_is_no_object_is_refused_with_its_line(tmp_path):
    with pytest.raises(DataFileError, match=r"line 1.*object.*list"):
        read_pairs(save(tmp_path, "p.jsonl", '["a", "b", 1]\n'))


def test_a_csv_quote_that_never_closes_is_refused(tmp_path):
    with pytest.raises(DataFileError, match="line"):
        read_pairs(save(tmp_path, "p.csv", 'sentence1,sentence2,score\n"a,b,1\nc,d,2\n'))


@pytest.mark.parametrize("name", ["p.tsv", "p.csv", "p.tsv.gz"])
def test_a_file_that_is_not_utf8_is_refused_with_a_way_out(tmp_path, name):
    content = as_tsv if "tsv" in name else as_csv
    file = save(tmp_path, name, content([("café", "b", 1.0)]).encode("latin-1"))
    with pytest.raises(DataFileError, match=r"not UTF-8.*0xe9.*iconv"):
        read_pairs(file)


@pytest.mark.parametrize("read", [read_pairs, lambda file: list(read_texts(file))], ids=["pairs", "texts"])
def test_a_folder_or_a_missing_file_is_refused(tmp_path, read):
    (tmp_path / "folder.tsv").mkdir()
    with pytest.raises(DataFileError, match="is a folder"):
        read(tmp_path / "folder.tsv")
    with pytest.raises(DataFileError, match=r"Cannot read .*absent\.tsv: No such file"):
        read(tmp_path / "absent.tsv")


@pytest.mark.parametrize("name", ["p.tsv", "p.csv", "p.jsonl", "p.tsv.gz"])
@pytest.mark.parametrize("content", ["", "sentence1\tsentence2\tscore\n"], ids=["empty", "header only"])
def test_a_file_without_pairs_is_refused(tmp_path, name, content):
    content = content.replace("\t", ",") if name == "p.csv" else "" if name == "p.jsonl" else content
    with pytest.raises(DataFileError, match="no usable pair"):
        read_pairs(save(tmp_path, name, content))


def test_a_file_of_bad_lines_only_is_refused_even_when_they_may_be_skipped(tmp_path):
    with pytest.raises(DataFileError, match="no usable pair"):
        read_pairs(save(tmp_path, "p.tsv", as_tsv([("a", "b", "x"), ("c", "d", "y")])), skip_bad=True)


@pytest.mark.parametrize("name", ["t.txt", "t.tsv", "t.csv", "t.jsonl"])
def test_an_empty_file_holds_no_texts(tmp_path, name):
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
def test_a_damaged_gz_file_is_refused(tmp_path, kind):
    file = tmp_path / "p.tsv.gz"
    file.write_bytes(damaged(kind))
    with pytest.raises(DataFileError, match="Cannot read"):
        read_pairs(file)


def test_pairs_are_not_read_from_plain_lines(tmp_path):
    with pytest.raises(DataFileError, match=r"\.tsv, \.csv or \.jsonl"):
        read_pairs(save(tmp_path, "p.txt", "a\n"))


def test_three_column_names_are_wanted(tmp_path):
    with pytest.raises(InputError, match="three column names"):
        read_pairs(save(tmp_path, "p.tsv", as_tsv(ROWS)), ("a", "b"))


# a limit


@pytest.fixture
def hundred(tmp_path):
    return save(tmp_path, "p.tsv", as_tsv([(f"l{i}", f"r{i}", float(i)) for i in range(101)]))


@pytest.mark.parametrize("limit", [2, 3, 5, 11, 26, 51])
def test_a_limit_takes_pairs_evenly_from_first_to_last(hundred, limit):
    step = 100 // (limit - 1)
    assert read_pairs(hundred, limit=limit).scores == [float(i) for i in range(0, 101, step)]


@pytest.mark.parametrize("limit", [7, 30, 99, 100])
def test_a_limit_that_does_not_divide_takes_different_pairs_with_gaps_alike(hundred, limit):
    pairs = read_pairs(hundred, limit=limit)
    assert len(pairs) == limit
    assert (pairs.scores[0], pairs.scores[-1]) == (0.0, 100.0)
    gaps = {b - a for a, b in zip(pairs.scores, pairs.scores[1:], strict=False)}
    assert min(gaps) >= 1 and max(gaps) - min(gaps) <= 1
    assert all(row == (f"l{int(row[2])}", f"r{int(row[2])}", row[2]) for row in rows_of(pairs))


@pytest.mark.parametrize("limit", [101, 102, 10_000, None])
def test_a_limit_over_the_size_changes_nothing(hundred, limit):
    assert read_pairs(hundred, limit=limit).scores == [float(i) for i in range(101)]


def test_a_limit_of_one_takes_one_pair(hundred):
    assert len(read_pairs(hundred, limit=1)) == 1


@pytest.mark.parametrize("limit", [0, -3])
def test_a_limit_that_leaves_nothing_is_refused(hundred, limit):
    with pytest.raises(InputError):
        read_pairs(hundred, limit=limit)
