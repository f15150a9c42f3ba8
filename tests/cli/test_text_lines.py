"""Errors about a text name the line of the file that it is from."""

from __future__ import annotations

import json

import pytest

from toys.command import SCORED_ROWS, tiny_encoder, write_rows

LONG = "a very long text " * 40
HALF = json.dumps({"text": "half a pair \ud83d here"})


@pytest.fixture(scope="module")
def strict(tmp_path_factory):
    """An encoder that refuses texts over its limit."""
    return tiny_encoder(max_length=64, on_overflow="error").save(tmp_path_factory.mktemp("strict") / "encoder")


def lines(count, last):
    """That many JSON lines with a blank line after each, then one more."""
    return "".join(f'{{"text": "text {index}"}}\n\n' for index in range(count)) + last + "\n"


@pytest.mark.parametrize(
    ("name", "content", "line"),
    [
        ("a.jsonl", lines(600, json.dumps({"text": LONG})), 1201),
        ("a.csv", f'text,n\n"two\nlines",1\n"three\n\nlines",2\n{LONG},3\n', 7),
        ("a.txt", f"one\n\nthree\n{LONG}\n", 4),
    ],
    ids=["blank lines", "fields of several lines", "plain lines"],
)
def test_embed_names_the_line_of_a_text_that_is_too_long(strict, mistake, tmp_path, name, content, line):
    (tmp_path / name).write_text(content, encoding="utf-8")
    message = mistake("embed", tmp_path / name, "--encoder", strict, "--out", tmp_path / "v.npy")
    assert f"{name}, line {line}: the text takes" in message


def test_eval_names_the_line(strict, mistake, tmp_path):
    file = write_rows(tmp_path / "pairs.tsv", [*SCORED_ROWS, ("short", LONG, 3.0)])
    assert f"pairs.tsv, line {len(SCORED_ROWS) + 2}: the text takes" in mistake("eval", strict, "--data", file)


def test_train_names_the_line(mistake, tmp_path):
    file = tmp_path / "texts.txt"
    file.write_text(f"one\n\nthree\n{LONG}\nfive\nsix\n", encoding="utf-8")
    settings = ("objective.name=simcse", "read.on_overflow=error", "read.max_length=64", "training.epochs=1")
    options = [part for setting in settings for part in ("--set", setting)]
    message = mistake(
        "train", "--recipe", "lora", "--backbone", "tiny-llama", "--data", file, "--out", tmp_path / "e", *options
    )
    assert "texts.txt, line 4: the text takes" in message


@pytest.mark.parametrize("command", ["embed", "eval", "train"])
def test_half_of_a_surrogate_pair_is_named_by_its_line(command, mistake, tmp_path):
    pair = '{"sentence1": "one", "sentence2": "two", "score": 1}\n'
    file = tmp_path / "data.jsonl"
    file.write_text(lines(3, HALF) if command == "embed" else pair * 6 + pair.replace("two", "\\udc00"), "utf-8")
    options = {
        "embed": (file, "--encoder", "tiny-llama", "--out", tmp_path / "v.npy"),
        "eval": ("tiny-llama", "--data", file),
        "train": ("--backbone", "tiny-llama", "--data", file, "--out", tmp_path / "e"),
    }
    assert "data.jsonl, line 7: " in (message := mistake(command, *options[command]))
    assert "half of a surrogate pair at character" in message


def test_match_replaces_half_of_a_pair_as_index_does(run_main, tmp_path):
    file = tmp_path / "side.jsonl"
    file.write_text('{"id": "\\ud800", "text": "bakes bread \\ud83d"}\n{"id": "b", "text": "drives a bus"}\n', "utf-8")
    sides = ("--left", file, "--right", file)
    code, _, _ = run_main("match", *sides, "--encoder", "tiny-llama", "--out", tmp_path / "m.json")
    assert code == 0
