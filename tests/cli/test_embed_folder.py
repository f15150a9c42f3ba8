"""`d2v embed` into a folder of parts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from decoder2vec.cli import app


def d2v(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rows = ({"id": number, "text": f"sentence {number}"} for number in range(10))
    Path("rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path


TINY = ("--encoder", "tiny-llama", "--device", "cpu")


def test_folder_is_written_resumed_and_verified(folder):
    command = ("embed", "rows.jsonl", "--out", "out", "--rows-per-part", 4, "--precision", "float16", *TINY)
    first = d2v(*command)
    assert first.exit_code == 0, first.output
    assert "10 vectors of 10 rows in 3 parts, 3 computed now" in first.output
    Path("out", "part-00000-000000000004.parquet").unlink()
    incomplete = d2v("embed", "--verify", "out", *TINY)
    assert incomplete.exit_code == 1 and "part-00000-000000000004.parquet is missing" in incomplete.output
    assert "3 parts, 1 computed now" in d2v(*command).output
    verified = d2v("embed", "--verify", "out", *TINY)
    assert verified.exit_code == 0 and "10 vectors of 10 rows, each once" in verified.output


def test_cut_and_empty_texts_are_warned_of(folder):
    Path("rows.jsonl").write_text("\n".join(json.dumps({"text": text}) for text in ("a", "", "word " * 5000)))
    result = d2v("embed", "rows.jsonl", "--out", "out", *TINY)
    assert result.exit_code == 0, result.output
    assert "1 texts are empty" in result.output and "1 texts are longer than the encoder reads" in result.output


def test_dry_run_writes_nothing(folder):
    command = ("embed", "rows.jsonl", "--out", "out", "--dry-run", "--workers", 3, "--price-per-hour", 2, *TINY)
    result = d2v(*command)
    assert result.exit_code == 0, result.output
    assert "10 rows, about" in result.output and "3 workers" in result.output and "cost 0.00" in result.output
    assert not Path("out").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("rows.jsonl", "--out", "x.npy", "--engine", "ray"), "--engine needs a folder"),
        (("rows.jsonl", "--out", "x.npy", "--dry-run"), "--dry-run needs a folder"),
        (("rows.jsonl", "rows.jsonl", "--out", "x.npy"), "more than one file needs a folder"),
        (("rows.jsonl", "--out", "out", "--layer", "2"), "--layer is for single files"),
        (("rows.jsonl", "--out", "out", "--layer", "0"), "--layer is for single files"),
        (("rows.jsonl", "--out", "out", "--workers", "4"), "need the engine ray"),
        (("rows.jsonl", "--out", "out", "--engine", "ray", "--workers", "0"), "0 workers compute nothing"),
        (("rows.jsonl", "--out", "out", "--dry-run", "--workers", "0"), "1 worker or more"),
        (("rows.jsonl", "--out", "out", "--dry-run", "--price-per-hour", "-1"), "a price of 0 or more"),
        (("rows.parquet", "--out", "x.npy"), "give --out a folder"),
        (("rows.jsonl",), "--out for the result"),
        (("--out", "out"), "files to embed"),
        (("--verify", "absent"), "has no plan.json"),
        (("rows.jsonl", "--verify", "absent"), "FILE... belongs to a run that embeds"),
        (("--out", "out", "--verify", "absent"), "--out belongs to a run that embeds"),
        (("--precision", "int8", "--verify", "absent"), "--precision belongs to a run that embeds"),
    ],
)
def test_mistake_is_one_sentence(folder, options, message):
    result = d2v("embed", *options, *TINY)
    assert result.exit_code != 0 and message in str(result.exception)
    assert sorted(path.name for path in folder.iterdir()) == ["rows.jsonl"]
