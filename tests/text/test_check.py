"""What is in a file is counted as a person would count it."""

from __future__ import annotations

import json

import pytest

from decoder2vec.errors import DataFileError
from decoder2vec.text.data_check import Overlap, check_file, measure_overlap
from decoder2vec.text.files import read_data_file


@pytest.fixture
def read(tmp_path):
    def write_and_read(name, content):
        (tmp_path / name).write_text(content, encoding="utf-8")
        return read_data_file(tmp_path / name)

    return write_and_read


def test_scored_pairs(read):
    found = check_file(read("d.tsv", "sentence1\tsentence2\tscore\na\tbbb\t1\na\tbbb\t1\na\tbbb\t4.5\n \tcc\t2\n"))
    assert (found.kind, found.columns, found.rows) == ("scored pairs", ("sentence1", "sentence2", "score"), 4)
    assert (found.texts, found.unique_texts) == (8, 4)
    assert (found.empty, found.duplicates) == (1, 1), "another score is another row"
    assert found.scores == (1.0, 4.5) and found.classes == {}


def test_a_score_that_is_no_number_is_said_with_its_line(read):
    file = read("d.tsv", "sentence1\tsentence2\tscore\na\tb\t1\nc\td\tmuch\n")
    with pytest.raises(DataFileError, match=r"line 3: the score 'much' is not a number"):
        check_file(file)


def test_characters_are_those_of_the_different_texts(read):
    texts = [letter * length for length in range(1, 51) for letter in "ab"] + ["a"] * 500
    assert check_file(read("d.txt", "\n".join(texts) + "\n")).characters == (1, 25, 48, 50)


def test_labels_and_their_sizes(read):
    found = check_file(read("d.csv", "text,label\na,x\nb,y\nc,y\nc,y\n"))
    assert found.classes == {"y": 3, "x": 1} and list(found.classes) == ["y", "x"]
    assert (found.kind, found.duplicates, found.scores) == ("labelled texts", 1, None)


def test_records_without_a_positive_lack_a_text(read):
    records = [
        {"description": "a", "pos": ["b", "c"], "neg": ["d", ""]},
        {"description": "e", "pos": []},
        {"description": "f", "pos": ["g", ""], "label": "x"},
        {"description": "f", "pos": ["g", ""], "label": "x"},
    ]
    found = check_file(read("d.jsonl", "".join(json.dumps(record) + "\n" for record in records)))
    assert (found.rows, found.empty, found.duplicates, found.classes) == (4, 3, 1, {"x": 2})


def test_triplets_may_lack_a_negative(read):
    found = check_file(read("d.tsv", "anchor\tpositive\tnegative\na\tb\tc\na\tb\t\n"))
    assert (found.kind, found.texts, found.unique_texts, found.empty) == ("triplets", 5, 3, 0)


EVALUATION = "sentence1\tsentence2\tscore\nA dog.\tA cat.\t1\nA cat.\tA dog.\t1\nRain.\tSnow.\t2\nSun.\tMoon.\t3\n"


def test_pairs_are_found_in_either_order_and_however_written(read):
    own = read("own.tsv", "anchor\tpositive\tnegative\na  CAT.\ta dog.\tRain.\nsun.\tA dog.\tMOON.\n")
    assert measure_overlap(own, read("eval.tsv", EVALUATION)) == Overlap(2, 3, 5, 6), "a negative makes a pair as well"


def test_single_texts_share_texts_but_no_pairs(read):
    own, evaluation = read("own.txt", "Rain.\nrain.\nFog.\n"), read("eval.tsv", EVALUATION)
    assert measure_overlap(own, evaluation) == Overlap(0, 3, 1, 6)
    assert measure_overlap(evaluation, own) == Overlap(0, 0, 1, 2)


def test_a_file_shares_all_with_itself(read):
    evaluation = read("eval.tsv", EVALUATION)
    assert measure_overlap(evaluation, evaluation) == Overlap(3, 3, 6, 6)
