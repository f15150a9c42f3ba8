"""Mentions: marked texts, spans, ids, files, and one sentence for everything that cannot be used."""

from __future__ import annotations

import json
import math

import pytest

from decoder2vec.errors import DataFileError, InputError
from decoder2vec.relations.files import read_documents, read_mentions, read_relations
from decoder2vec.relations.mentions import Mention, MentionSet, Relation

SENTENCE = "The trial began after the arrest."
TRIAL, ARREST = Mention("trial", SENTENCE, (4, 9), "d"), Mention("arrest", SENTENCE, (26, 32), "d")


def test_two_mentions_of_a_sentence_are_two_texts():
    assert TRIAL.marked == "The <m>trial</m> began after the arrest."
    assert ARREST.marked == "The trial began after the <m>arrest</m>."
    assert (TRIAL.trigger, ARREST.trigger) == ("trial", "arrest")


def test_without_a_span_the_whole_text_is_the_mention():
    record = Mention("r", "Blue kettle, 1.7 l")
    assert record.marked == record.trigger == "Blue kettle, 1.7 l"


@pytest.mark.parametrize("span", [(-1, 3), (4, 4), (9, 4), (30, 40)])
def test_span_outside_its_sentence_is_refused(span):
    with pytest.raises(InputError, match=r"'x': the span .* is not inside its text of 33 characters"):
        Mention("x", SENTENCE, span)


def test_text_is_required():
    with pytest.raises(InputError, match="has no text"):
        Mention("x", "  ")


def test_pairs_are_within_documents():
    mentions = [Mention(str(n), "text", document=document) for n, document in enumerate("aabbb")]
    data = MentionSet.of(mentions)
    assert data.by_document() == [([0, 1], [0, 1]), ([2, 3, 4], [2, 3, 4])]
    assert data.n_pairs == 2 + 6
    assert MentionSet.of(mentions, directed=False).n_pairs == 1 + 3


def test_two_tables_pair_the_first_with_the_second():
    heads, tails = [Mention("1", "claim", document=d) for d in "a"], [Mention(d, "fact", document=d) for d in "ab"]
    data = MentionSet.of(heads, tails)
    assert data.by_document() == [([0], [1]), ([], [2])] and data.n_pairs == 1
    assert data.gold([Relation("1", "a", "supports")]) == {(0, 1): "supports"}
    with pytest.raises(InputError, match="no mention '1' in the second table"):
        data.gold([Relation("1", "1")])


def test_order_matters_unless_told_otherwise():
    relations = [Relation("trial", "arrest", "after"), Relation("arrest", "trial", "before")]
    assert MentionSet.of([TRIAL, ARREST]).gold(relations) == {(0, 1): "after", (1, 0): "before"}
    with pytest.raises(InputError, match="two labels, after and before"):
        MentionSet.of([TRIAL, ARREST], directed=False).gold(relations)


def test_none_is_no_relation():
    assert MentionSet.of([TRIAL, ARREST]).gold([Relation("trial", "arrest", "NONE")]) == {}


@pytest.mark.parametrize(
    ("relation", "message"),
    [
        (Relation("trial", "verdict"), "there is no mention 'verdict'"),
        (Relation("trial", "trial"), "joins a mention with itself"),
        (Relation("trial", "other"), "joins two documents"),
    ],
)
def test_relations_that_cannot_be_are_refused(relation, message):
    with pytest.raises(InputError, match=message):
        MentionSet.of([TRIAL, ARREST, Mention("other", "x", document="e")]).gold([relation])


def test_ids_are_unique_and_there_is_a_pair():
    with pytest.raises(InputError, match="'trial' occurs twice"):
        MentionSet.of([TRIAL, TRIAL])
    for tables in (([TRIAL],), ([], [TRIAL]), ([TRIAL], [])):
        with pytest.raises(InputError, match="no two mentions"):
            MentionSet.of(*tables)


def test_files_are_read_from_jsonl_and_tsv(tmp_path):
    rows = [{"id": 1, "text": SENTENCE, "start": 4, "end": 9, "document": "d"}, {"text": "whole"}]
    (tmp_path / "m.jsonl").write_text("\n".join(map(json.dumps, rows)), "utf-8")
    (tmp_path / "m.tsv").write_text(f"id\ttext\tstart\tend\n1\t{SENTENCE}\t4\t9\n2\twhole\t\t\n", "utf-8")
    expected = Mention("1", SENTENCE, (4, 9), "d")
    assert read_mentions(tmp_path / "m.jsonl") == [expected, Mention("2", "whole")]  # without an id, the line
    assert read_mentions(tmp_path / "m.tsv") == [Mention("1", SENTENCE, (4, 9)), Mention("2", "whole")]
    (tmp_path / "r.tsv").write_text("head\ttail\tlabel\n1\t2\tcauses\n2\t1\tnan\n", "utf-8")
    assert read_relations(tmp_path / "r.tsv") == [Relation("1", "2", "causes"), Relation("2", "1", "nan")]
    (tmp_path / "r.tsv").write_text("head\ttail\tlabel\n1\t2\t\n2\t1\t\n", "utf-8")
    assert read_relations(tmp_path / "r.tsv") == [Relation("1", "2", "related"), Relation("2", "1", "related")]


@pytest.mark.parametrize(
    ("label", "message"),
    [
        (None, "line 2: label is null; write a word or number, or leave out the column"),
        (math.nan, "line 2: label is NaN; write a word or number, or leave out the column"),
        (" ", "line 2: the label is blank, and others are not; write it, or NONE"),
    ],
)
def test_missing_labels_are_refused(label, message, tmp_path):
    rows = [{"head": 1, "tail": 2, "label": "causes"}, {"head": 2, "tail": 1, "label": label}]
    (tmp_path / "r.jsonl").write_text("\n".join(map(json.dumps, rows)), "utf-8")
    with pytest.raises(DataFileError, match=message):
        read_relations(tmp_path / "r.jsonl")
    mentions = [{"id": 1, "start": 0, "end": 1}, {"id": 2, "start": 2, "end": 3}]
    documents = [{"text": "a b", "mentions": mentions, "relations": [row]} for row in rows]
    (tmp_path / "d.jsonl").write_text("\n".join(map(json.dumps, documents)), "utf-8")
    with pytest.raises(DataFileError, match=message):
        read_documents(tmp_path / "d.jsonl")


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"text": "short", "start": 2, "end": 99}, "line 1: Mention '1': the span 2-99 is not inside"),
        ({"text": "short", "start": 2}, "give both start and end"),
        ({"text": "short", "start": "two", "end": 3}, "start and end are numbers of characters"),
        ({"number": 3}, "there is no text in text; the columns are number"),
        ({"text": "short", "id": [1]}, "id is list, not a word or number"),
    ],
)
def test_bad_line_is_named(row, message, tmp_path):
    (tmp_path / "m.jsonl").write_text(json.dumps(row), "utf-8")
    with pytest.raises(DataFileError, match=message):
        read_mentions(tmp_path / "m.jsonl")


def test_bad_files_get_a_sentence(tmp_path):
    (tmp_path / "m.jsonl").write_text("", "utf-8")
    with pytest.raises(DataFileError, match="holds no mention"):
        read_mentions(tmp_path / "m.jsonl")
    (tmp_path / "r.jsonl").write_text('{"head": 1}', "utf-8")
    with pytest.raises(DataFileError, match="line 1: give the ids of two mentions"):
        read_relations(tmp_path / "r.jsonl")


def test_records_of_other_columns_are_joined(tmp_path):
    file = tmp_path / "r.csv"
    file.write_text("_id,name,about,price\n7,Red chair,made of solid oak,30\n8,Lamp,,9\n", "utf-8")
    assert read_mentions(file) == [Mention("7", "Red chair\nmade of solid oak"), Mention("8", "Lamp")]
    assert read_mentions(file, ["about", "name"])[0].text == "made of solid oak\nRed chair"
    (tmp_path / "lines.txt").write_text("first record\nsecond record\n", "utf-8")
    assert read_mentions(tmp_path / "lines.txt") == [Mention("1", "first record"), Mention("2", "second record")]


def test_a_document_per_line_has_its_mentions_and_relations(tmp_path):
    text = "It rained. The trial began after the arrest."
    mentions = [{"id": "t", "start": 15, "end": 20}, {"start": 37, "end": 43}]
    row = {"id": "d", "text": text, "mentions": mentions, "relations": [{"head": "t", "tail": 2, "label": "after"}]}
    file = tmp_path / "d.jsonl"
    file.write_text(json.dumps(row), "utf-8")
    sentence = "The trial began after the arrest."
    expected = [Mention("d:t", sentence, (4, 9), "d"), Mention("d:2", sentence, (26, 32), "d")]
    assert read_documents(file) == (expected, [Relation("d:t", "d:2", "after")])
    assert [mention.trigger for mention in expected] == ["trial", "arrest"]
    for change, message in (
        ({"text": None}, "give that of the document"),
        ({"mentions": [{"start": 1, "end": 99}]}, "the span 1-99 is not inside"),
        ({"mentions": [{"id": "x"}]}, "mention 1 has no start and end"),
        ({"mentions": ["trial"]}, "mention 1 is no object"),
        ({"relations": ["x"]}, "relations are a list of objects"),
    ):
        file.write_text(json.dumps(row | change), "utf-8")
        with pytest.raises(DataFileError, match=f"line 1: .*{message}"):
            read_documents(file)


def test_relations_of_other_columns_and_with_numbers_are_read(tmp_path):
    for columns in ("id1\tid2\tlabel", "query-id\tcorpus-id\tscore"):
        (tmp_path / "r.tsv").write_text(f"{columns}\n1\t2\t1\n2\t3\t0\n", "utf-8")
        assert read_relations(tmp_path / "r.tsv") == [Relation("1", "2", "related"), Relation("2", "3", "NONE")]
    (tmp_path / "r.tsv").write_text("head\ttail\tlabel\n1\t2\t1\n2\t3\t2\n", "utf-8")
    assert [each.label for each in read_relations(tmp_path / "r.tsv")] == ["1", "2"], "labels that are numbers"
