"""`d2v data check` as people use it."""

from __future__ import annotations

import subprocess
import sys

import pytest
from typer.testing import CliRunner

from decoder2vec.cli import app
from decoder2vec.errors import DataFileError

SCORED = "sentence1\tsentence2\tscore\nA dog.\tA cat.\t0.5\nRain.\tSnow.\t4.5\nRain.\tSnow.\t4.5\n"


def check(*args):
    result = CliRunner().invoke(app, ["data", "check", *map(str, args)])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0
    rows = [line.strip().split("  ", 1) for line in result.stdout.splitlines()]
    return {row[0]: row[1].strip() for row in rows if len(row) == 2}


@pytest.fixture
def scored(tmp_path):
    (tmp_path / "dev.tsv").write_text(SCORED)
    return tmp_path / "dev.tsv"


def test_scored_pairs(scored):
    assert check(scored) == {
        "what": "found",
        "kind": "scored pairs",
        "columns": "sentence1, sentence2, score",
        "rows": "3",
        "texts": "6, 4 different",
        "characters": "min 5, median 5, 95 % 6, max 6",
        "empty rows": "0",
        "duplicate rows": "1",
        "scale": "0 to 5, scores from 0.5 to 4.5",
    }


def test_the_largest_classes_are_shown(tmp_path):
    rows = [f"text {label} {n}\tl{label:02}\n" for label in range(12) for n in range(20 - label)]
    (tmp_path / "t.tsv").write_text("text\tlabel\n" + "".join(rows))
    found = check(tmp_path / "t.tsv")
    assert found["classes"].startswith("12: l00 20, l01 19, ")
    assert found["classes"].endswith("l09 11, 2 more down to 9")


def test_overlaps_with_evaluation_files(scored, tmp_path):
    (tmp_path / "t.tsv").write_text("anchor\tpositive\nsnow.\train.\nA dog.\tA wolf.\n")
    (tmp_path / "texts.txt").write_text("Rain.\nFog.\n")
    found = check(tmp_path / "t.tsv", "--against", scored, "--against", tmp_path / "texts.txt")
    assert found["kind"] == "pairs"
    assert found["also in dev.tsv"] == "1 of its 2 pairs, 3 of its 4 texts"
    assert found["also in texts.txt"] == "1 of its 2 texts"


@pytest.mark.parametrize("place", ["file", "against"])
def test_a_damaged_file_is_one_sentence(place, scored, tmp_path):
    (tmp_path / "bad.jsonl").write_text('{"text": "a"}\n{"text": \n')
    args = [tmp_path / "bad.jsonl"] if place == "file" else [scored, "--against", tmp_path / "bad.jsonl"]
    with pytest.raises(DataFileError, match=r"bad\.jsonl, line 2: not JSON"):
        check(*args)


def test_the_program_prints_the_sentence_and_no_traceback(tmp_path):
    (tmp_path / "bad.tsv").write_text("a\tb\n1\t2\n")
    code = "from decoder2vec.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", code, "data", "check", tmp_path / "bad.tsv"], capture_output=True, text=True
    )
    assert done.returncode == 1 and done.stdout == ""
    assert done.stderr.startswith("error: ") and done.stderr.count("\n") == 1
    assert "has the columns a, b" in done.stderr
