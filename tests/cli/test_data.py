"""`d2v data`: check files, mine hard negatives, and list the concepts of a domain to train on."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from decoder2vec.encoder import Encoder
from decoder2vec.errors import DataFileError, Decoder2VecError, InputError
from decoder2vec.text.concepts import ConceptSet
from toys.command import d2v
from toys.training import toy_examples


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """The working directory."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


# check

SCORED = "sentence1\tsentence2\tscore\nA dog.\tA cat.\t0.5\nRain.\tSnow.\t4.5\nRain.\tSnow.\t4.5\n"


def check(*args):
    """The table that `d2v data check ARGS` prints, as property: value."""
    result = d2v("data", "check", *args)
    assert result.exit_code == 0
    rows = [line.strip().split("  ", 1) for line in result.stdout.splitlines()]
    return {row[0]: row[1].strip() for row in rows if len(row) == 2}


@pytest.fixture
def scored(folder):
    (folder / "dev.tsv").write_text(SCORED)
    return folder / "dev.tsv"


def test_check_of_scored_pairs(scored):
    assert check(scored) == {
        "property": "value",
        "kind": "scored pairs",
        "columns": "sentence1, sentence2, score",
        "rows": "3",
        "texts": "6, 4 different",
        "characters": "min 5, median 5, 95 % 6, max 6",
        "empty rows": "0",
        "duplicate rows": "1",
        "scale": "0 to 5, scores from 0.5 to 4.5",
    }


def test_check_shows_the_largest_classes(folder):
    rows = [f"text {label} {n}\tl{label:02}\n" for label in range(12) for n in range(20 - label)]
    (folder / "t.tsv").write_text("text\tlabel\n" + "".join(rows))
    properties = check(folder / "t.tsv")
    assert properties["classes"].startswith("12: l00 20, l01 19, ")
    assert properties["classes"].endswith("l09 11, 2 more down to 9")


def test_check_shows_overlaps_with_evaluation_files(scored, folder):
    (folder / "t.tsv").write_text("anchor\tpositive\nsnow.\train.\nA dog.\tA wolf.\n")
    (folder / "texts.txt").write_text("Rain.\nFog.\n")
    properties = check(folder / "t.tsv", "--against", scored, "--against", folder / "texts.txt")
    assert properties["kind"] == "pairs"
    assert properties["also in dev.tsv"] == "1 of its 2 pairs, 3 of its 4 texts"
    assert properties["also in texts.txt"] == "1 of its 2 texts"


@pytest.mark.parametrize("role", ["file", "against"])
def test_damaged_file_is_named_with_its_line(role, scored, folder):
    (folder / "bad.jsonl").write_text('{"text": "a"}\n{"text": \n')
    args = [folder / "bad.jsonl"] if role == "file" else [scored, "--against", folder / "bad.jsonl"]
    with pytest.raises(DataFileError, match=r"bad\.jsonl, line 2: not JSON"):
        check(*args)


def test_error_is_one_line_without_traceback(folder):
    (folder / "bad.tsv").write_text("a\tb\n1\t2\n")
    code = "from decoder2vec.cli import main; main()"
    process = subprocess.run(
        [sys.executable, "-c", code, "data", "check", folder / "bad.tsv"], capture_output=True, text=True
    )
    assert process.returncode == 1 and process.stdout == ""
    assert process.stderr.startswith("error: ") and process.stderr.count("\n") == 1
    assert "has the columns a, b" in process.stderr


# mine


def test_mined_negatives_can_be_trained_on(folder):
    rows = [(example.anchor, example.positive, example.negatives[0]) for example in toy_examples()]
    lines = [",".join(row) for row in [("anchor", "positive", "negative"), *rows]]
    (folder / "mine.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    options = ["--encoder", "tiny-llama", "--out", "hard.jsonl", "--count", "2", "--margin", "1"]
    mined = d2v("data", "mine", "mine.csv", *options)
    assert mined.exit_code == 0, mined.output
    assert "negatives for 24 examples" in mined.output
    rows = [json.loads(line) for line in Path("hard.jsonl").read_text().splitlines()]
    assert len(rows) == 24 and all(len(row["negative"]) <= 2 for row in rows)
    options = ["--set", "training.epochs=1", "--set", "training.batch=8", "--backbone", "tiny-llama", "--device", "cpu"]
    trained = d2v("train", "--recipe", "lora", "--data", "hard.jsonl", "--out", "enc", *options)
    assert trained.exit_code == 0, trained.output


@pytest.mark.parametrize(
    ("options", "ignored"),
    [
        (["--encoder", "tiny-llama", "--seed", "1"], "--seed"),
        (["--encoder", "tiny-llama", "--top", "5", "--margin", "0.9"], "--margin"),
        (["--encoder", "bm25", "--skip", "2"], "--skip"),
        (["--index", "idx", "--corpus", "mine.csv"], "--corpus"),
        (["--encoder", "bm25", "--split", "dev"], "--split"),
    ],
)
def test_options_that_would_be_ignored_are_refused(folder, options, ignored):
    """Above all the margin, without which negatives that are positives in truth are kept."""
    (folder / "mine.csv").write_text("anchor,positive\na,b\nc,d\n", encoding="utf-8")
    with pytest.raises(InputError, match=f"{ignored} belongs to "):
        d2v("data", "mine", "mine.csv", "--out", "hard.jsonl", *options)
    assert not Path("hard.jsonl").exists()


# concepts

DOMAIN = [
    "the heart attack of the heart",
    "a heart attack, and the naïve cell",
    "the naïve cell and the heart attack",
    "one naïve cell of the heart",
] * 2
GENERAL = ["the dog and the cat", "one of the dogs sleeps", "a cell of the prison", "and the sun shines on the sea"] * 3
EDGES = ["heart\theart_attack", "heart_attack\tnaïve_cell", "the\tof", "heart\tthe", "zebra\tcell"]


@pytest.fixture
def texts(folder):
    """Texts of a domain, general texts, a graph of concepts and an empty file in the working directory."""
    for name, lines in (("domain.txt", DOMAIN), ("general.txt", GENERAL), ("graph.tsv", EDGES), ("empty.txt", [])):
        (folder / name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def concepts(*options, general="general.txt", domain="domain.txt", out="concepts.txt"):
    """What `d2v data concepts` prints, and the concepts in its output file."""
    result = d2v("data", "concepts", domain, "--general", general, "--out", out, *options)
    assert result.exit_code == 0, result.output
    return result.output, Path(out).read_text(encoding="utf-8").splitlines()


def test_concepts_are_more_frequent_in_the_domain(texts):
    output, names = concepts("--top", "6", "--least", "6")
    assert names == sorted(names) and len(names) == 6
    expected = {"heart", "heart attack", "attack", "naïve", "naïve cell", "the heart"}
    assert set(names) == expected, "cell also occurs in the general texts"
    assert "6 concepts: concepts.txt" in output and "log ratio" in output and "domain_words" in output
    assert ConceptSet.read("concepts.txt").concepts == set(names)


def test_top_and_least_limit_the_concepts(texts):
    _, top = concepts("--top", "2", "--least", "6")
    _, frequent = concepts("--least", "6")
    _, rare = concepts("--least", "2")
    assert len(top) == 2 and set(top) < set(frequent) < set(rare)


def test_graph_gives_seeds_and_neighbours_rare_elsewhere(texts):
    options = ["--graph", "graph.tsv", "--frequency", "50000"]
    output, seeds = concepts(*options, "--seeds", "1", "--hops", "0")
    assert seeds == ["heart"], "it has the most neighbours of all that are frequent here and rare elsewhere"
    assert "graph" in output and "seeds" in output and "1 concepts: concepts.txt" in output
    _, one_hop = concepts(*options, "--seeds", "1", "--hops", "1")
    assert one_hop == ["heart", "heart attack"], "'the' is a neighbour too, but frequent in general texts"
    _, five_hops = concepts(*options, "--hops", "5")
    expected = ["cell", "heart", "heart attack", "naïve cell"]
    assert five_hops == expected, "'of' and 'the' are frequent in general texts, 'zebra' never occurs"


def test_column_text_of_a_table_is_read(texts):
    rows = ["text\tlabel", *(f"{line}\tx" for line in DOMAIN)]
    Path("domain.tsv").write_text("\n".join(rows) + "\n", encoding="utf-8")
    assert concepts("--least", "6", domain="domain.tsv")[1] == concepts("--least", "6")[1]


def test_table_without_column_text_says_to_rename_one(texts):
    """These commands have no option for the column, so that the message must not name one."""
    Path("texts.tsv").write_text("body\tlabel\na heart\tx\n", encoding="utf-8")
    for command in (
        ("data", "concepts", "texts.tsv", "--general", "general.txt", "--out", "concepts.txt"),
        ("train", "--recipe", "bidirectional", "--data", "texts.tsv", "--backbone", "tiny-llama", "--out", "enc"),
    ):
        with pytest.raises(Decoder2VecError, match=r"it has: body, label\. Call the one that holds the texts `text`\."):
            d2v(*command)


def test_concepts_can_be_masked_in_training(texts):
    concepts("--top", "6", "--least", "6")
    Path("texts.txt").write_text("".join(f"{n} {line}\n" for n, line in enumerate(DOMAIN)), encoding="utf-8")
    options = ["--recipe", "bidirectional", "--stages", "mntp", "--data", "texts.txt", "--backbone", "tiny-llama"]
    options += ["--set", "mntp.data.concepts=concepts.txt", "--set", "mntp.training.steps=1", "--device", "cpu"]
    result = d2v("train", *options, "--out", "enc")
    assert result.exit_code == 0, result.output
    config = json.loads(Path("enc/results.json").read_text())["config"]
    assert config["data"]["concepts"] == "concepts.txt"
    assert Encoder.load("enc", device="cpu").spec.attention == "bidirectional"
    Path("concepts.txt").write_text("zebra\n")
    with pytest.raises(InputError, match="No text has one of the concepts"):
        d2v("train", *options, "--out", "other")
    assert not Path("other").exists()


MISTAKES = {
    "missing domain": ({"domain": "nowhere.txt"}, [], "nowhere.txt"),
    "missing general texts": ({"general": "nowhere.txt"}, [], "nowhere.txt"),
    "missing graph": ({}, ["--graph", "nowhere.tsv"], "nowhere.tsv"),
    "empty domain": ({"domain": "empty.txt"}, [], "empty|no word"),
    "empty general texts": ({"general": "empty.txt"}, ["--least", "2"], "empty|no word"),
    "too rare": ({}, ["--least", "999"], "No phrase occurs 999 times in the domain's .* words; lower the minimum"),
    "none requested": ({}, ["--top", "0"], "top = 0 is too small; give 1 or more"),
    "same texts": ({"general": "domain.txt"}, ["--least", "2"], "Nothing is more frequent in the domain"),
    "unrelated graph": ({}, ["--graph", "other.tsv"], "No concept of the graph occurs in the domain's"),
    "not a graph": ({}, ["--graph", "domain.txt"], "domain.txt, line 1: an edge is two names"),
    "no seed": ({}, ["--graph", "graph.tsv", "--frequency", "9e5"], "No concept occurs more than .* lower the freq"),
    "negative frequency": (
        {},
        ["--graph", "graph.tsv", "--frequency", "-1"],
        "is impossible; give a finite number, 0 or more",
    ),
    "zero seeds": ({}, ["--graph", "graph.tsv", "--seeds", "0"], "seeds = 0 is too small; give 1 or more"),
    "negative hops": ({}, ["--graph", "graph.tsv", "--hops", "-1"], "hops = -1 is too small; give 0 or more"),
}


@pytest.mark.parametrize(("files", "options", "message"), MISTAKES.values(), ids=MISTAKES)
def test_mistake_is_one_sentence_and_writes_nothing(files, options, message, texts, folder):
    (folder / "other.tsv").write_text("zebra\tlion\n")
    with pytest.raises(Decoder2VecError, match=message) as error:
        concepts(*options, **files)
    assert len(str(error.value).splitlines()) == 1
    assert not (folder / "concepts.txt").exists()
