"""Tests of `decoder2vec.text.data_check`: counts of a file, and overlap of training and evaluation data."""

from __future__ import annotations

import json

import numpy as np
import pytest

from decoder2vec.errors import DataFileError
from decoder2vec.text.data_check import (
    Overlap,
    check_file,
    count_overlap,
    count_shared_texts,
    hash_pairs,
    hash_texts,
    measure_overlap,
)
from decoder2vec.text.files import read_data_file


@pytest.fixture
def read(tmp_path):
    def write_and_read(name, content):
        (tmp_path / name).write_text(content, encoding="utf-8")
        return read_data_file(tmp_path / name)

    return write_and_read


# --- counts of a file -----------------------------------------------------------------------------------------------


def test_scored_pairs_are_counted(read):
    check = check_file(read("d.tsv", "sentence1\tsentence2\tscore\na\tbbb\t1\na\tbbb\t1\na\tbbb\t4.5\n \tcc\t2\n"))
    assert (check.kind, check.columns, check.rows) == ("scored pairs", ("sentence1", "sentence2", "score"), 4)
    assert (check.texts, check.unique_texts) == (8, 4)
    assert (check.empty, check.duplicates) == (1, 1), "a pair with another score is not a duplicate"
    assert check.scores == (1.0, 4.5) and check.classes == {}


def test_score_that_is_not_a_number_names_its_line(read):
    file = read("d.tsv", "sentence1\tsentence2\tscore\na\tb\t1\nc\td\tmuch\n")
    with pytest.raises(DataFileError, match=r"line 3: the score 'much' is not a number"):
        check_file(file)


def test_length_percentiles_are_those_of_unique_texts(read):
    texts = [letter * length for length in range(1, 51) for letter in "ab"] + ["a"] * 500
    assert check_file(read("d.txt", "\n".join(texts) + "\n")).characters == (1, 25, 48, 50)


def test_classes_are_counted_largest_first(read):
    check = check_file(read("d.csv", "text,label\na,x\nb,y\nc,y\nc,y\n"))
    assert check.classes == {"y": 3, "x": 1} and list(check.classes) == ["y", "x"]
    assert (check.kind, check.duplicates, check.scores) == ("labelled texts", 1, None)


def test_records_without_a_positive_count_as_empty(read):
    records = [
        {"description": "a", "pos": ["b", "c"], "neg": ["d", ""]},
        {"description": "e", "pos": []},
        {"description": "f", "pos": ["g", ""], "label": "x"},
        {"description": "f", "pos": ["g", ""], "label": "x"},
    ]
    check = check_file(read("d.jsonl", "".join(json.dumps(record) + "\n" for record in records)))
    assert (check.rows, check.empty, check.duplicates, check.classes) == (4, 3, 1, {"x": 2})


def test_triplets_without_a_negative_are_not_empty(read):
    check = check_file(read("d.tsv", "anchor\tpositive\tnegative\na\tb\tc\na\tb\t\n"))
    assert (check.kind, check.texts, check.unique_texts, check.empty) == ("triplets", 5, 3, 0)


# --- overlap of two files -------------------------------------------------------------------------------------------

EVALUATION = "sentence1\tsentence2\tscore\nA dog.\tA cat.\t1\nA cat.\tA dog.\t1\nRain.\tSnow.\t2\nSun.\tMoon.\t3\n"


def test_overlap_ignores_order_white_space_and_case(read):
    train = read("train.tsv", "anchor\tpositive\tnegative\na  CAT.\ta dog.\tRain.\nsun.\tA dog.\tMOON.\n")
    overlap = measure_overlap(train, read("eval.tsv", EVALUATION))
    assert overlap == Overlap(2, 3, 5, 6), "a negative forms a pair with its anchor too"


def test_single_texts_share_texts_but_no_pairs(read):
    train, evaluation = read("train.txt", "Rain.\nrain.\nFog.\n"), read("eval.tsv", EVALUATION)
    assert measure_overlap(train, evaluation) == Overlap(0, 3, 1, 6)
    assert measure_overlap(evaluation, train) == Overlap(0, 0, 1, 2)


def test_file_overlaps_completely_with_itself(read):
    evaluation = read("eval.tsv", EVALUATION)
    assert measure_overlap(evaluation, evaluation) == Overlap(3, 3, 6, 6)


# --- hashes of pairs ------------------------------------------------------------------------------------------------

LEFT = ["A dog runs.", "It rains.", "The sun shines."]
RIGHT = ["A cat sleeps.", "It snows.", "The moon is up."]


def test_different_pairs_have_different_hashes():
    hashes = hash_pairs(LEFT, RIGHT)
    assert hashes.dtype == np.uint64 and len(set(hashes.tolist())) == 3
    assert (hashes == hash_pairs(LEFT, RIGHT)).all()


def test_hash_ignores_the_order_of_the_texts():
    assert (hash_pairs(LEFT, RIGHT) == hash_pairs(RIGHT, LEFT)).all()


@pytest.mark.parametrize("change", [str.upper, str.title, lambda text: f"  {text.replace(' ', '  ')}\n"])
def test_hash_ignores_white_space_and_case(change):
    assert (hash_pairs([change(text) for text in LEFT], RIGHT) == hash_pairs(LEFT, RIGHT)).all()


def test_hash_depends_on_punctuation_and_on_both_texts():
    assert hash_pairs(["a dog runs"], RIGHT[:1]) != hash_pairs(LEFT[:1], RIGHT[:1]), "a full stop matters"
    assert hash_pairs(["a b"], ["c"]) != hash_pairs(["a"], ["b c"])


def test_seen_pairs_are_counted():
    seen = hash_pairs(LEFT[:2], RIGHT[:2])
    assert count_overlap([RIGHT[1], LEFT[2], LEFT[0]], [LEFT[1], RIGHT[2], RIGHT[0].lower()], seen) == 2
    assert count_overlap(LEFT[:2], RIGHT[:2][::-1], seen) == 0, "the same texts in other pairs"
    assert count_overlap(LEFT[:1] * 3, RIGHT[:1] * 3, seen) == 3


def test_empty_lists_have_no_overlap():
    empty = hash_pairs([], [])
    assert empty.dtype == np.uint64 and len(empty) == 0
    assert count_overlap(LEFT, RIGHT, empty) == count_overlap([], [], empty) == 0


def test_lists_of_different_length_are_refused():
    with pytest.raises(ValueError):
        hash_pairs(LEFT, RIGHT[:2])


# --- hashes of texts ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("change", [str.upper, lambda text: f" {text}!", lambda text: text.replace(".", " ;\n")])
def test_hash_of_a_text_ignores_case_punctuation_and_space(change):
    assert (hash_texts(map(change, LEFT)) == hash_texts(LEFT)).all()
    assert len(hash_texts(LEFT)) == 3 and not np.isin(hash_texts(LEFT), hash_texts(RIGHT)).any()


def test_texts_without_a_word_are_different():
    assert len(hash_texts(["!!", "?", "\U0001f600", "\U0001f680", "!!"])) == 4


def test_shared_texts_are_counted_once():
    seen = hash_texts([*LEFT, "Something else."])
    assert count_shared_texts(["a dog runs", "A dog runs!", "It rains", "It hails."], seen) == (2, 3)
    assert count_shared_texts([], seen) == (0, 0) and count_shared_texts(LEFT, hash_texts([])) == (0, 3)
