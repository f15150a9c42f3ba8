"""Triples from files."""

from __future__ import annotations

import json

import pytest

from decoder2vec.errors import DataFileError
from decoder2vec.text.files import Triplets, read_triplets


def test_rows_without_three_different_texts_are_counted_and_left_out(tmp_path):
    file = tmp_path / "mine.tsv"
    file.write_text("anchor\tpositive\tnegative\na\tb\tc\na\t\tc\na\ta\tc\na\tb\t\nd\te\tf\n")
    found = read_triplets(file)
    assert found.rows == [("a", "b", "c"), ("d", "e", "f")]
    assert (found.name, found.skipped, len(found)) == ("mine", 3, 2)
    assert found.texts() == ["a", "b", "c", "d", "e", "f"]


def test_of_several_the_first_is_taken_and_records_do_too(tmp_path):
    file = tmp_path / "mine.jsonl"
    rows = [{"description": "a", "pos": ["", "b", "x"], "neg": ["c", "y"]}, {"description": "d", "pos": ["e"]}]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert read_triplets(file).rows == [("a", "b", "c")]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("anchor\tpositive\na\tb\n", "holds pairs; give triplets"),
        ("sentence1\tsentence2\tscore\na\tb\t1\n", "holds scored pairs; give triplets"),
        ("anchor\tpositive\tnegative\na\ta\tb\n", "no row of three different texts"),
        ("anchor\tpositive\tnegative\n", "no usable row"),
    ],
)
def test_a_file_without_triples_is_refused(content, said, tmp_path):
    file = tmp_path / "mine.tsv"
    file.write_text(content)
    with pytest.raises(DataFileError, match=said):
        read_triplets(file)


def test_a_draw_takes_none_twice_and_follows_its_seed():
    rows = [(f"a{n}", f"b{n}", f"c{n}") for n in range(50)]
    triples = Triplets("toy", rows)
    drawn = triples.sample(20, 0).rows
    assert len(set(drawn)) == 20 and set(drawn) < set(rows)
    assert drawn == triples.sample(20, 0).rows != triples.sample(20, 1).rows
    assert sorted(triples.sample(99, 0).rows) == sorted(rows)
