"""Training data: score scales, checks, overlaps with dev and test, the dev split, and files by name or role."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from decoder2vec.errors import DataFileError, InputError
from decoder2vec.text.data_check import count_overlap
from decoder2vec.text.files import ScoredPairs
from decoder2vec.training.data import DataFiles, TrainingData, check_data, guess_scale, load_data

DEV = ScoredPairs("dev", ["d1", "d2"], ["e1", "e2"], [0.0, 1.0])


def pairs_with(scores, name="train"):
    """Different pairs with these scores."""
    rows = range(len(scores))
    return ScoredPairs(name, [f"a{row}" for row in rows], [f"b{row}" for row in rows], list(map(float, scores)))


@pytest.fixture
def folder(tmp_path, make_pairs, write_pairs):
    """A folder with one file for every role."""
    for seed, role in enumerate(("train", "dev", "test")):
        write_pairs(tmp_path / f"{role}.tsv", make_pairs(role, 30, seed))
    (tmp_path / "texts.txt").write_text("one\ntwo\none\nthree\n")
    (tmp_path / "triplets.tsv").write_text("anchor\tpositive\tnegative\na\tp\tn\n")
    (tmp_path / "nli.tsv").write_text("label\tpremise\thypothesis\nneutral\tp\th\n-\tq\ti\nentailment\tr\tj\n")
    return tmp_path


# --- scales ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("low", "high", "scale"),
    [
        (0.0, 1.0, (0, 1)),
        (0.2, 0.9, (0, 1)),
        (-0.5, 1.0, (-1, 1)),
        (1.0, 5.0, (1, 5)),
        (1.2, 4.0, (1, 5)),
        (0.0, 4.8, (0, 5)),
        (0.0, 9.0, (0, 10)),
        (3.0, 80.0, (0, 100)),
        (-3.0, 7.0, (-3, 7)),
        (0.0, 1000.0, (0, 1000)),
    ],
)
def test_the_narrowest_common_scale_is_guessed(low, high, scale):
    assert guess_scale(low, high) == scale


def test_the_guessed_scale_is_noted_and_maps_scores_to_0_1():
    data = check_data(TrainingData(pairs_with([1, 3, 5]), (DEV,)))
    assert data.scale == (1, 5)
    assert data.notes[0] == "scores of train are read on a scale of 1 to 5"
    assert data.notes[1] == "scores of dev are read on a scale of 0 to 1, unlike the training scores"
    assert data.unit_scores([1, 2, 5]).tolist() == [0, 0.25, 1]
    assert data.unit_scores([1]).dtype == np.float32


def test_an_explicit_scale_is_used():
    data = check_data(TrainingData(pairs_with([1, 3, 5]), (DEV,)), (0, 10))
    assert data.unit_scores([5]).tolist() == [0.5]


@pytest.mark.parametrize(
    ("scores", "scale", "message"),
    [
        ([3], (), "has 1 pair; at least 2"),
        ([2, 2, 2], (), r"All scores of train are 2: there is nothing to learn"),
        ([0, 3, 6], (0, 5), r"1 scores of train lie outside the scale 0 to 5 \(they go from 0 to 6\)"),
        ([-1, -2, 3], (0, 5), "2 scores of train lie outside"),
        ([0, 1], (5, 0), "lowest and the highest"),
        ([0, 1], (1, 1), "lowest and the highest"),
        ([0, 1], (0, 1, 2), "lowest and the highest"),
    ],
)
def test_training_scores_that_teach_nothing_raise(scores, scale, message):
    with pytest.raises(InputError, match=message):
        check_data(TrainingData(pairs_with(scores), (DEV,)), scale)


@pytest.mark.parametrize("scores", [[1], [2, 2, 2]])
@pytest.mark.parametrize("role", ["dev", "test"])
def test_dev_or_test_pairs_that_cannot_be_ranked_raise(scores, role):
    data = TrainingData(pairs_with([0, 1]), (DEV,))
    bad = pairs_with(scores, "mine")
    data = replace(data, dev=(bad,)) if role == "dev" else replace(data, test=(bad,))
    with pytest.raises(InputError, match="mine needs at least 2 pairs with different scores"):
        check_data(data)


# --- overlaps -------------------------------------------------------------------------------------------------------


def test_pairs_that_are_also_in_the_training_data_are_noted():
    train = pairs_with([0, 1, 2, 3])
    test = ScoredPairs("test", ["b1", "A2 ", "new"], ["a1", "b2", "b3"], [1, 2, 3])
    data = check_data(TrainingData(train, (DEV,), (test,)))
    assert "2 of 3 pairs of test are also in the training data" in data.notes
    assert not any("pairs of dev" in note for note in data.notes)


def test_triplets_and_nli_rows_count_as_training_pairs():
    data = TrainingData(None, (DEV,), triplets=(("a", "p", "n"),), nli=(("neutral", "x", "y"),))
    assert count_overlap(["a", "x", "a", "p"], ["p", "y", "n", "n"], data.hash_pairs()) == 2
    assert check_data(replace(data, test=(ScoredPairs("test", ["y", "q"], ["x", "r"], [0, 1]),))).notes


def test_all_texts_lists_every_text_once(data):
    texts = data.all_texts()
    assert len(texts) == len(set(texts))
    for text in (data.train.left[0], data.dev[0].right[-1], data.test[0].left[3], data.texts[5]):
        assert text in texts
    assert data.triplets[3][2] in texts and data.nli[2][1] in texts
    assert "neutral" not in texts


# --- files ----------------------------------------------------------------------------------------------------------


def test_files_are_found_by_name(folder, make_pairs, write_pairs):
    (folder / "sts").mkdir()
    write_pairs(folder / "sts" / "mine.tsv", make_pairs("mine", 25, 5))
    data = load_data(folder, DataFiles(train="sts/mine.tsv", dev=("dev.tsv",), test=("test.tsv",)), needs=["pairs"])
    assert (data.train.name, len(data.train)) == ("mine", 25)
    assert [pairs.name for pairs in (*data.dev, *data.test)] == ["dev", "test"]


def test_a_missing_file_is_replaced_by_the_one_of_its_role(folder):
    data = load_data(folder, DataFiles(train="sts/none.tsv", dev=("sts/none.tsv",)), needs=["pairs"])
    assert (data.train.name, data.dev[0].name, data.test[0].name) == ("train", "dev", "test")


def test_files_without_names_are_found_by_their_role(folder):
    data = load_data(folder, DataFiles(), needs=["pairs"])
    assert [pairs.name for pairs in (data.train, *data.dev, *data.test)] == ["train", "dev", "test"]


@pytest.mark.parametrize(
    ("scores", "scale"),
    [([0, 2.5, 5], (0, 5)), ([1, 5], (0, 5)), ([2, 3], (0, 5)), ([0, 0.4, 1], (0, 1)), ([0, 80], (0, 100))],
)
def test_a_file_has_the_training_scale_unless_it_does_not_fit(scores, scale):
    data = check_data(TrainingData(pairs_with([0, 3, 5]), (DEV,)))
    assert data.scale_of(pairs_with(scores, "mine")) == scale


@pytest.fixture
def train_only(tmp_path, make_pairs, write_pairs):
    """A folder with 30 training pairs and nothing else."""
    (tmp_path / "alone").mkdir()
    return write_pairs(tmp_path / "alone" / "train.tsv", make_pairs("train", 30, 0)).parent


def test_one_file_of_pairs_is_enough(train_only):
    data = load_data(train_only, DataFiles(), needs=["pairs", "texts"])
    assert (len(data.train), len(data.dev[0])) == (27, 3)
    assert set(data.texts) == set(data.train.texts())
    assert "no plain texts were given: autoencoders learn from the training sentences" in data.notes


def test_every_tenth_training_pair_becomes_a_dev_pair(train_only, make_pairs):
    data = load_data(train_only, DataFiles(), needs=["pairs"])
    whole = make_pairs("train", 30, 0)
    assert data.dev[0].name == "train-dev"
    assert data.dev[0].left == whole.left[::10] and data.dev[0].scores == pytest.approx(whole.scores[::10])
    assert data.train.right == [text for row, text in enumerate(whole.right) if row % 10]
    assert "no dev pairs were given: 3 of the training pairs were set aside to choose on" in data.notes


def test_too_few_pairs_to_set_some_aside_raise(tmp_path, make_pairs, write_pairs):
    write_pairs(tmp_path / "few.tsv", make_pairs(count=19))
    with pytest.raises(InputError, match="few has 19 pairs, too few to set some aside; give dev pairs"):
        load_data(tmp_path, DataFiles(train="few.tsv"), needs=["pairs"])


def test_pairs_set_aside_with_one_score_raise(tmp_path, make_pairs, write_pairs):
    pairs = make_pairs(count=40)
    scores = [row % 10 and score for row, score in enumerate(pairs.scores)]
    write_pairs(tmp_path / "flat.tsv", replace(pairs, scores=scores))
    with pytest.raises(InputError, match=r"Every tenth pair of flat, .* has the same score; give dev pairs"):
        load_data(tmp_path, DataFiles(train="flat.tsv"), needs=["pairs"])


def test_only_what_is_needed_is_read(folder):
    files = DataFiles(dev=("dev.tsv",))
    data = load_data(folder, files, needs=[])
    assert (data.train, data.texts, data.triplets, data.nli) == (None, (), (), ())
    data = load_data(folder, files, needs=["texts", "triplets", "nli"])
    assert data.texts == ("one", "two", "three")
    assert data.triplets == (("a", "p", "n"),)
    assert data.nli == (("neutral", "p", "h"), ("entailment", "r", "j")), "rows without a label are skipped"


def test_plain_texts_are_read_up_to_the_limit(folder):
    data = load_data(folder, DataFiles(dev=("dev.tsv",), texts_limit=2), needs=["texts"])
    assert data.texts == ("one", "two")


def test_columns_may_have_other_names(tmp_path, make_pairs, write_pairs):
    file = write_pairs(tmp_path / "train.tsv", make_pairs(count=25))
    file.write_text(file.read_text().replace("sentence1\tsentence2\tscore", "a\tb\tgrade"))
    assert len(load_data(tmp_path, DataFiles(columns=("a", "b", "grade")), needs=["pairs"]).train) == 22


@pytest.mark.parametrize("needs", [[], ["texts"]])
def test_missing_dev_pairs_raise(needs, folder):
    (folder / "dev.tsv").unlink()
    with pytest.raises(DataFileError, match="Give scored pairs to choose on"):
        load_data(folder, DataFiles(), needs=needs)


def test_missing_dev_and_test_files_are_skipped_and_noted(train_only):
    data = load_data(train_only, DataFiles(dev=("sts/dev.tsv",), test=("sts/a.tsv", "sts/b.tsv")), needs=["pairs"])
    assert (data.test, data.dev[0].name) == ((), "train-dev")
    assert sum("it is skipped" in note for note in data.notes) == 3


def test_one_file_replaces_several_missing_files_only_once(folder):
    data = load_data(folder, DataFiles(dev=("dev.tsv",), test=("sts/a.tsv", "sts/b.tsv")), needs=["pairs"])
    assert [pairs.name for pairs in data.test] == ["test"]


@pytest.mark.parametrize("role", ["train", "triplets", "nli", "texts"])
def test_a_missing_file_raises_with_the_names_that_would_do(role, folder):
    next(folder.glob(f"{role}.*")).unlink()
    files = DataFiles(dev=("dev.tsv",))
    with pytest.raises(
        DataFileError, match=rf"has no file '{role}\.tsv', nor one named {role} .*; name a file with --data"
    ):
        load_data(folder, files, needs=["pairs" if role == "train" else role])


def test_nli_rows_without_a_known_label_raise(folder):
    (folder / "nli.tsv").write_text("label\tpremise\thypothesis\n1\tp\th\n")
    with pytest.raises(DataFileError, match="none of the labels entailment, neutral, contradiction"):
        load_data(folder, DataFiles(dev=("dev.tsv",)), needs=["nli"])


def test_files_that_were_not_named_are_noted(folder):
    data = load_data(folder, DataFiles(train="mine.tsv"), needs=["pairs"])
    assert any(note.endswith("train.tsv is used instead") and "mine.tsv" in note for note in data.notes)
    assert "dev.tsv in the data folder is used as dev" in data.notes
    notes = load_data(folder, DataFiles(dev=("dev.tsv",), test=("test.tsv",)), needs=["pairs"]).notes
    assert not any("instead" in note or "is used as" in note for note in notes)


def test_concepts_are_read_from_the_named_file_only(folder):
    (folder / "concepts.txt").write_text("1 cell\n")
    with pytest.raises(DataFileError, match=r"There is no file .*nope\.txt"):
        load_data(folder, DataFiles(dev=("dev.tsv",), concepts="nope.txt"), needs=["corpus"])
    files = DataFiles(dev=("dev.tsv",), concepts="concepts.txt")
    assert len(load_data(folder, files, needs=["corpus"]).concepts) == 1
