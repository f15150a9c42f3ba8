"""Contrastive examples: batches and masks equal plain loops, and files of every kind are read."""

from __future__ import annotations

import gzip
import json

import numpy as np
import pytest

from decoder2vec.errors import DataFileError, InputError
from decoder2vec.training.contrastive_examples import ContrastiveExamples, Example, read_contrastive_examples


def random_examples(seed, count=120, texts=60, groups=25):
    """Examples over few texts, so that many share a text; some share a group; 0 to 3 negatives each."""
    rng = np.random.default_rng(seed)
    examples = []
    for index in range(count):
        anchor, positive = rng.choice(texts, 2, replace=False)
        negatives = rng.choice(texts, rng.integers(0, 4), replace=False)
        group = f"g{rng.integers(groups)}" if rng.random() < 0.4 else index
        examples.append(Example(f"t{anchor}", f"t{positive}", tuple(f"t{text}" for text in negatives), group))
    return examples


def as_texts(examples):
    """(anchor, positive, negatives) of every example, as texts."""
    rows = zip(examples.anchors, examples.positives, examples.negatives, strict=True)
    texts = examples.texts
    return [(texts[a], texts[p], tuple(texts[n] for n in negatives if n >= 0)) for a, p, negatives in rows]


# --- indices --------------------------------------------------------------------------------------------------------


def test_indices_give_back_the_texts_of_the_examples():
    examples = random_examples(0)
    contrastive = ContrastiveExamples.of(examples)
    assert as_texts(contrastive) == [(example.anchor, example.positive, example.negatives) for example in examples]
    assert len(set(contrastive.texts)) == len(contrastive.texts) and len(contrastive) == len(examples)
    assert contrastive.negatives.shape == (120, 3) and contrastive.negatives.min() == -1
    assert {contrastive.anchors.dtype, contrastive.positives.dtype, contrastive.negatives.dtype} == {np.dtype(np.intp)}


def test_without_negatives_their_matrix_has_no_column():
    contrastive = ContrastiveExamples.of([Example("a", "b", (), 0), Example("c", "d", (), 1)])
    assert contrastive.negatives.shape == (2, 0)
    assert contrastive.known_positives([0, 1]).tolist() == [[False, False], [False, False]]


# --- dev split ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("with_negatives", [True, False])
def test_every_tenth_example_becomes_two_dev_pairs(with_negatives):
    examples = ContrastiveExamples.of(
        [Example(f"a{n}", f"p{n}", (f"n{n}",) if with_negatives else (), n) for n in range(25)]
    )
    train, dev = examples.split_dev("mine")
    assert dev.name == "mine-dev" and dev.scores == [1, 1, 1, 0, 0, 0]
    assert dev.left == ["a0", "a10", "a20"] * 2
    unrelated = ["n0", "n10", "n20"] if with_negatives else ["p20", "p0", "p10"]
    assert dev.right == ["p0", "p10", "p20", *unrelated]
    assert [anchor for anchor, *_ in as_texts(train)] == [f"a{n}" for n in range(25) if n % 10]


def test_dev_pairs_of_labelled_texts_have_no_false_negatives(tmp_path):
    """Examples come label by label, so that the neighbour of an example mostly has the same label."""
    labels = {f"text {n} of many": ("even", "odd", "third")[n % 3] for n in range(300)}
    lines = "".join(f"{text}\t{label}\n" for text, label in labels.items())
    (tmp_path / "labelled.tsv").write_text(f"text\tlabel\n{lines}", "utf-8")
    _, dev = read_contrastive_examples(tmp_path / "labelled.tsv").split_dev("mine")
    assert len(dev) == 60
    for left, right, score in zip(dev.left, dev.right, dev.scores, strict=True):
        assert (labels[left] == labels[right]) == (score == 1), (left, right)
    negatives = [right for right, score in zip(dev.right, dev.scores, strict=True) if score == 0]
    assert len(set(negatives)) > 15, "not the same text for a whole label"


def test_dev_examples_of_one_label_get_texts_of_others():
    """Every tenth example is of one label, so that there is no unrelated text among them."""
    examples = ContrastiveExamples.of([Example(f"a{n}", f"p{n}", (), "x" if n % 10 == 0 else "y") for n in range(30)])
    _, dev = examples.split_dev("mine")
    assert dev.left == ["a0", "a10", "a20"] * 2 and dev.right[:3] == ["p0", "p10", "p20"]
    assert not {"p0", "p10", "p20"} & set(dev.right[3:])


def test_dev_examples_that_everything_belongs_to_ask_for_dev_pairs():
    """The text "all" is in every group, and the anchor of every tenth example."""
    of_all = [Example("all", f"p{n}", (), n) for n in range(30)]
    others = iter([*of_all[6:], *(Example(f"a{n}", f"p{n}", (), n) for n in range(30))])
    examples = ContrastiveExamples.of([of_all[n // 10] if n % 10 == 0 else next(others) for n in range(60)])
    with pytest.raises(InputError, match="set aside all belong together; give dev pairs"):
        examples.split_dev("mine")


def test_at_most_a_thousand_examples_become_dev_pairs():
    examples = ContrastiveExamples.of([Example(f"a{n}", f"p{n}", (), n) for n in range(12_000)])
    train, dev = examples.split_dev("mine")
    assert (len(train), len(dev)) == (11_000, 2_000)


def test_too_few_examples_to_set_some_aside_raise():
    examples = ContrastiveExamples.of([Example(f"a{n}", f"p{n}", (), n) for n in range(19)])
    with pytest.raises(InputError, match="mine has 19 examples, too few to set some aside; give dev pairs"):
        examples.split_dev("mine")


# --- batches --------------------------------------------------------------------------------------------------------


def plain_batches(contrastive, order, size):
    """Search all batches for the first with room that comes after all that hold one of the two texts."""
    batches = []
    for example in order:
        texts = {contrastive.anchors[example], contrastive.positives[example]}
        first = 0
        for index, batch in enumerate(batches):
            if any({contrastive.anchors[other], contrastive.positives[other]} & texts for other in batch):
                first = index + 1
        for batch in batches[first:]:
            if len(batch) < size:
                batch.append(example)
                break
        else:
            batches.append([example])
    return batches


@pytest.mark.parametrize("size", [1, 2, 7, 16, 500])
@pytest.mark.parametrize("seed", range(4))
def test_batches_equal_those_of_a_plain_loop(seed, size):
    contrastive = ContrastiveExamples.of(random_examples(seed))
    order = np.random.default_rng(seed).permutation(len(contrastive))
    batches = list(contrastive.batches(order, size))
    assert [batch.tolist() for batch in batches] == plain_batches(contrastive, order, size)
    assert all(batch.dtype == np.intp for batch in batches)


@pytest.mark.parametrize("seed", range(4))
def test_no_text_is_twice_in_a_batch_and_no_example_is_lost(seed):
    contrastive = ContrastiveExamples.of(random_examples(seed, count=400, texts=200))
    order = np.random.default_rng(seed).permutation(len(contrastive))
    batches = list(contrastive.batches(order, 16))
    for batch in batches:
        texts = np.concatenate([contrastive.anchors[batch], contrastive.positives[batch]])
        assert 0 < len(batch) <= 16 and len(np.unique(texts)) == len(texts)
    assert sorted(np.concatenate(batches).tolist()) == list(range(len(contrastive)))
    assert len(batches[0]) == 16, "with enough examples to choose from, a batch is full"


def test_batches_keep_the_order_where_no_text_repeats():
    contrastive = ContrastiveExamples.of([Example(f"a{n}", f"b{n}", (), n) for n in range(10)])
    order = np.arange(10)[::-1]
    assert [batch.tolist() for batch in contrastive.batches(order, 4)] == [[9, 8, 7, 6], [5, 4, 3, 2], [1, 0]]
    assert [batch.tolist() for batch in contrastive.batches([3, 1], 4)] == [[3, 1]], "some of the examples"


def test_examples_of_one_anchor_go_into_different_batches():
    examples = [Example("a", f"b{n}", ("n",), n) for n in range(3)] + [Example("c", "d", (), 3)]
    assert [batch.tolist() for batch in ContrastiveExamples.of(examples).batches(range(4), 4)] == [[0, 3], [1], [2]]


def test_a_batch_size_of_zero_raises():
    contrastive = ContrastiveExamples.of(random_examples(0))
    with pytest.raises(InputError, match="give 1 or more"):
        next(contrastive.batches([0], 0))


# --- masks ----------------------------------------------------------------------------------------------------------


def plain_mask(contrastive, examples, rows):
    """Compare text by text, from the examples themselves."""
    groups = {}
    for example in examples:
        for text in (example.anchor, example.positive):
            groups.setdefault(text, set()).add(example.group)
    n_negatives = contrastive.negatives.shape[1]
    mask = []
    for row in rows:
        anchor, positive, *_ = examples[row]
        known = [
            examples[other].positive == positive or bool(groups[anchor] & groups[examples[other].positive])
            for other in rows
        ]
        for column in range(n_negatives):
            for other in rows:
                negatives = examples[other].negatives
                text = negatives[column] if column < len(negatives) else None
                known.append(text in (None, anchor, positive) or bool(groups[anchor] & groups.get(text, set())))
        mask.append(known)
    for index in range(len(rows)):
        mask[index][index] = False
    return np.array(mask)


@pytest.mark.parametrize("seed", range(6))
def test_masks_equal_those_of_a_plain_loop(seed):
    examples = random_examples(seed)
    contrastive = ContrastiveExamples.of(examples)
    batches = list(contrastive.batches(range(len(examples)), 12))
    with_repeated_texts = np.random.default_rng(seed).permutation(len(examples))[:30]
    for rows in (*batches[:5], batches[-1], with_repeated_texts):
        mask = contrastive.known_positives(rows)
        assert mask.dtype == np.bool_ and mask.shape == (len(rows), len(rows) * 4)
        assert (mask == plain_mask(contrastive, examples, rows)).all()
        assert not mask.diagonal().any(), "an example's own positive is never masked"


def test_known_positives_hold_in_both_directions():
    examples = [Example("a", "b", ("n",), 0), Example("c", "d", ("a",), 1), Example("d", "a", (), 2)]
    mask = ContrastiveExamples.of(examples).known_positives([0, 1])
    assert mask.tolist() == [[False, True, False, True], [False, False, False, False]], (
        "d is a positive of a, n of no text"
    )


def test_texts_that_share_256_groups_are_positives():
    examples = [Example("a", "b", ("b",), n) for n in range(256)] + [Example("c", "d", (), 256)]
    assert ContrastiveExamples.of(examples).known_positives([0, 256])[0].tolist() == [False, False, True, True]


# --- files ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def read(tmp_path):
    """read(file name, text or JSON rows) -> ContrastiveExamples"""

    def write_and_read(name, content, **options):
        data = (content if isinstance(content, str) else "".join(json.dumps(row) + "\n" for row in content)).encode()
        (tmp_path / name).write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
        return read_contrastive_examples(tmp_path / name, **options)

    return write_and_read


@pytest.mark.parametrize("name", ["p.tsv", "p.csv", "p.jsonl", "p.tsv.gz", "p.csv.gz", "p.jsonl.gz"])
def test_pairs_are_read_from_every_file_format(name, read):
    if ".jsonl" in name:
        content = [{"anchor": "a", "positive": "b"}, {"anchor": "a", "positive": "c"}, {"anchor": "d", "positive": "e"}]
    else:
        content = "anchor,positive\na,b\na,c\nd,e\n".replace(",", "\t" if ".tsv" in name else ",")
    contrastive = read(name, content)
    assert as_texts(contrastive) == [("a", "b", ()), ("a", "c", ()), ("d", "e", ())]
    assert contrastive.notes == (f"{name} holds pairs: 3 examples from 3 rows",)
    assert contrastive.known_positives([0, 2]).tolist() == [[False, False], [False, False]]
    assert contrastive.known_positives([0, 1]).tolist() == [[False, True], [True, False]]


def test_triplets_may_have_any_number_of_negatives(read):
    contrastive = read("t.tsv", "anchor\tpositive\tnegative_1\tnegative_2\na\tb\tc\td\ne\tf\tg\ng\th\n")
    assert as_texts(contrastive) == [("a", "b", ("c", "d")), ("e", "f", ("g",)), ("g", "h", ())]
    assert contrastive.notes == (
        "t.tsv holds triplets: 3 examples from 3 rows",
        "examples without a hard negative: 1",
    )


def test_rows_and_texts_that_are_dropped_are_counted(read):
    rows = ["a\tb\tc", "a\tb\tc", "a\tb\td", " \tb\tc", "a\t\tc", "e\te\tc", "f\tg\tf", "h\ti\ti"]
    contrastive = read("t.tsv", "anchor\tpositive\tnegative\n" + "\n".join(rows) + "\n")
    assert as_texts(contrastive) == [("a", "b", ("c",)), ("a", "b", ("d",)), ("f", "g", ()), ("h", "i", ("i",))]
    assert contrastive.notes == (
        "t.tsv holds triplets: 4 examples from 8 rows",
        "duplicate rows dropped: 1",
        "examples without a hard negative: 1",
        "negatives removed that equal their anchor: 1",
        "positives dropped that equal their anchor: 1",
        "rows skipped without a text: 2",
    )
    assert contrastive.known_positives([0, 3])[1].tolist() == [False, False, False, True], (
        "a negative that equals its own positive"
    )


LABELLED = "text\tlabel\n" + "".join(f"t{n}\t{'xyz'[n % 3]}\n" for n in range(12)) + "lone\tw\nt0\tx\n \tx\nt20\t\n"


def test_labelled_texts_are_paired_within_their_label(read):
    contrastive = read("l.tsv", LABELLED)
    label = {f"t{n}": "xyz"[n % 3] for n in range(12)}
    assert sorted(anchor for anchor, _, _ in as_texts(contrastive)) == sorted(label), "each is an anchor once"
    assert sorted(positive for _, positive, _ in as_texts(contrastive)) == sorted(label), "and a positive once"
    assert all(a != b and label[a] == label[b] for a, b, _ in as_texts(contrastive))
    assert contrastive.notes == (
        "l.tsv holds labelled texts: 12 examples from 16 rows",
        "duplicate rows dropped: 1",
        "labels skipped that have one text only: 1",
        "rows skipped without a text or label: 2",
    )
    rows = np.arange(12)
    same = np.array([[label[a] == label[p] for _, p, _ in as_texts(contrastive)] for a, _, _ in as_texts(contrastive)])
    assert (contrastive.known_positives(rows) == (same & ~np.eye(12, dtype=bool))).all()


def test_the_seed_determines_the_pairs_of_labelled_texts(read):
    assert as_texts(read("l.tsv", LABELLED)) == as_texts(read("l.tsv", LABELLED, seed=0))
    assert as_texts(read("l.tsv", LABELLED)) != as_texts(read("l.tsv", LABELLED, seed=1))


def test_records_give_one_example_per_positive(read):
    contrastive = read(
        "r.jsonl",
        [
            {"label": "x", "description": "dx", "pos": ["x1", "x2", "dx", "x1", ""], "neg": ["n1", "dx", "n2"]},
            {"label": "x", "description": "ex", "pos": ["x3"], "neg": []},
            {"description": "du", "pos": ["u1", "u2"], "neg": ["x1"]},
            {"description": "dv", "pos": []},
        ],
    )
    assert as_texts(contrastive) == [
        ("dx", "x1", ("n1", "n2")),
        ("dx", "x2", ("n1", "n2")),
        ("ex", "x3", ()),
        ("du", "u1", ("x1",)),
        ("du", "u2", ("x1",)),
    ]
    assert contrastive.notes == (
        "r.jsonl holds records: 5 examples from 4 rows",
        "examples without a hard negative: 1",
        "negatives removed that equal their anchor: 1",
        "positives dropped that equal their anchor: 1",
        "rows skipped without a text: 1",
    )
    known = contrastive.known_positives([1, 2, 3])
    assert known[0, :3].tolist() == [False, True, False], "texts of one label are positives of each other"
    assert known[0, 3:].tolist() == [False, True, True, False, True, True], (
        "x1 has the same label, the others are padding"
    )
    assert known[2].tolist() == [False, False, False, False, True, False, False, True, True]


# --- errors ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("d.tsv", "", "holds no usable row"),
        ("d.tsv", "anchor\tpositive\n", "holds no usable row"),
        ("d.tsv", "anchor\tpositive\na\ta\nb\tb\n", r"no usable example \(positives dropped .* anchor: 2\)"),
        ("d.tsv", "text\tlabel\na\tx\na\tx\n", r"dropped: 1; labels skipped that have one text only: 1\)"),
        ("d.txt", "a\nb\n", "holds plain texts, which do not say what belongs together; give columns anchor"),
        ("d.tsv", "sentence1\tsentence2\tscore\na\tb\t1\n", "holds scored pairs, which do not say"),
        ("d.tsv", "label\tpremise\thypothesis\nneutral\tb\tc\n", "holds inferences, which do not say"),
    ],
)
def test_files_without_a_usable_example_raise(name, content, message, read):
    with pytest.raises(DataFileError, match=message):
        read(name, content)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("d.tsv", "anchor\tpositive\na\tb\n", r"d\.tsv has 1 usable example; .* at least 2"),
        ("d.tsv", "anchor\tpositive\tnegative\na\tb\tc\n", "has 1 usable example; .* at least 2"),
        ("d.tsv", "anchor\tpositive\na\tb\nb\ta\n", r"d\.tsv has nothing to contrast with"),
        ("d.tsv", "anchor\tpositive\tnegative\na\tb\tb\na\tc\tb\n", "nothing to contrast with"),
        ("d.tsv", "text\tlabel\na\tx\nb\tx\nc\tx\n", "nothing to contrast with"),
    ],
)
def test_data_that_cannot_be_contrasted_raises(name, content, message, read):
    with pytest.raises(InputError, match=message):
        read(name, content)
