"""`d2v data concepts`: from texts of a field to a list of its concepts, and from there to a model that learns them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from decoder2vec.encoder import Encoder
from decoder2vec.errors import Decoder2VecError, InputError
from decoder2vec.text.concepts import ConceptSet
from toys.command import d2v

DOMAIN = [
    "the heart attack of the heart",
    "a heart attack, and the naïve cell",
    "the naïve cell and the heart attack",
    "one naïve cell of the heart",
] * 2
GENERAL = ["the dog and the cat", "one of the dogs sleeps", "a cell of the prison", "and the sun shines on the sea"] * 3
EDGES = ["heart\theart_attack", "heart_attack\tnaïve_cell", "the\tof", "heart\tthe", "zebra\tcell"]


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")
    for name, lines in (("domain.txt", DOMAIN), ("general.txt", GENERAL), ("graph.tsv", EDGES), ("empty.txt", [])):
        (tmp_path / name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return tmp_path


def concepts(*words, general="general.txt", domain="domain.txt", out="found.txt"):
    done = d2v("data", "concepts", domain, "--general", general, "--out", out, *words)
    assert done.exit_code == 0, done.output
    return done.output, Path(out).read_text(encoding="utf-8").splitlines()


def test_without_a_graph_the_list_is_what_the_field_says_more_often():
    said, found = concepts("--top", "6", "--least", "6")
    assert found == sorted(found) and len(found) == 6
    assert set(found) == {"heart", "heart attack", "attack", "naïve", "naïve cell", "the heart"}, (
        "cell is known already"
    )
    assert "6 concepts: found.txt" in said and "log ratio" in said and "domain_words" in said
    assert ConceptSet.read("found.txt").concepts == set(found)


def test_only_as_many_as_asked_for_and_only_what_comes_often_enough():
    _, few = concepts("--top", "2", "--least", "6")
    _, many = concepts("--least", "6")
    _, rare = concepts("--least", "2")
    assert len(few) == 2 and set(few) < set(many) < set(rare)


def test_with_a_graph_seeds_and_what_is_near_them_but_not_what_is_known_already():
    said, found = concepts("--graph", "graph.tsv", "--frequency", "50000", "--seeds", "1", "--hops", "0")
    assert found == ["heart"], "the most neighbours of all that are frequent, and rare elsewhere"
    assert "graph" in said and "seeds" in said and "1 concepts: found.txt" in said
    _, near = concepts("--graph", "graph.tsv", "--frequency", "50000", "--seeds", "1", "--hops", "1")
    assert near == ["heart", "heart attack"], "the is near too, but known"
    _, far = concepts("--graph", "graph.tsv", "--frequency", "50000", "--hops", "5")
    assert far == ["cell", "heart", "heart attack", "naïve cell"], "of and the are known, zebra never comes"


def test_a_table_of_texts_is_read_by_its_column():
    rows = ["text\tlabel", *(f"{line}\tx" for line in DOMAIN)]
    Path("domain.tsv").write_text("\n".join(rows) + "\n", encoding="utf-8")
    assert concepts("--least", "6", domain="domain.tsv")[1] == concepts("--least", "6")[1]


def test_where_no_column_can_be_named_none_is_asked_for():
    Path("texts.tsv").write_text("body\tlabel\na heart\tx\n", encoding="utf-8")
    for command in (
        ("data", "concepts", "texts.tsv", "--general", "general.txt", "--out", "found.txt"),
        ("train", "--recipe", "bidirectional", "--data", "texts.tsv", "--backbone", "tiny-llama", "--out", "enc"),
    ):
        with pytest.raises(Decoder2VecError, match=r"it has: body, label\. Call the one that holds the texts `text`\."):
            d2v(*command)


def test_the_list_is_what_a_model_is_trained_on():
    concepts("--top", "6", "--least", "6")
    Path("texts.txt").write_text("".join(f"{n} {line}\n" for n, line in enumerate(DOMAIN)), encoding="utf-8")
    words = ["--recipe", "bidirectional", "--stages", "mntp", "--data", "texts.txt", "--backbone", "tiny-llama"]
    words += ["--set", "mntp.data.concepts=found.txt", "--set", "mntp.training.steps=1", "--device", "cpu"]
    done = d2v("train", *words, "--out", "enc")
    assert done.exit_code == 0, done.output
    config = json.loads(Path("enc/results.json").read_text())["config"]
    assert config["data"]["concepts"] == "found.txt"
    assert Encoder.load("enc", device="cpu").spec.attention == "bidirectional"
    Path("found.txt").write_text("zebra\n")
    with pytest.raises(InputError, match="No text has one of the concepts"):
        d2v("train", *words, "--out", "other")
    assert not Path("other").exists()


WRONG = {
    "no such domain": ({"domain": "nowhere.txt"}, [], "nowhere.txt"),
    "no such general texts": ({"general": "nowhere.txt"}, [], "nowhere.txt"),
    "no such graph": ({}, ["--graph", "nowhere.tsv"], "nowhere.tsv"),
    "an empty domain": ({"domain": "empty.txt"}, [], "empty|no word"),
    "empty general texts": ({"general": "empty.txt"}, ["--least", "2"], "empty|no word"),
    "too rare": ({}, ["--least", "999"], "No phrase occurs 999 times in the domain's .* words; lower the minimum"),
    "none asked for": ({}, ["--top", "0"], "top = 0 is too small; give 1 or more"),
    "nothing special": ({"general": "domain.txt"}, ["--least", "2"], "Nothing is more frequent in the domain"),
    "a graph of something else": ({}, ["--graph", "other.tsv"], "No concept of the graph occurs in the domain's"),
    "a graph that is none": ({}, ["--graph", "domain.txt"], "domain.txt, line 1: an edge is two names"),
    "no seed": ({}, ["--graph", "graph.tsv", "--frequency", "9e5"], "No concept occurs more than .* lower the freq"),
    "a frequency below zero": (
        {},
        ["--graph", "graph.tsv", "--frequency", "-1"],
        "is impossible; give a finite number, 0 or more",
    ),
    "no seeds": ({}, ["--graph", "graph.tsv", "--seeds", "0"], "seeds = 0 is too small; give 1 or more"),
    "hops backwards": ({}, ["--graph", "graph.tsv", "--hops", "-1"], "hops = -1 is too small; give 0 or more"),
}


@pytest.mark.parametrize(("files", "words", "said"), WRONG.values(), ids=WRONG)
def test_a_mistake_is_one_sentence_and_writes_nothing(files, words, said, place):
    (place / "other.tsv").write_text("zebra\tlion\n")
    with pytest.raises(Decoder2VecError, match=said) as error:
        concepts(*words, **files)
    assert len(str(error.value).splitlines()) == 1
    assert not (place / "found.txt").exists()
