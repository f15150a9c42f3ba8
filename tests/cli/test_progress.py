"""Every command that takes long names its phases, knows its whole work early, and ends with the whole time."""

from __future__ import annotations

import re

import pytest

from decoder2vec.cli import output
from toys.command import SCORED_ROWS, d2v, write_rows
from toys.progress import ShownProgress

TEXTS = [text for row in SCORED_ROWS for text in row[:2]]
COMMANDS = {
    "embed texts.txt --out vectors.npy --encoder tiny-llama": "reading, loading the model, encoding, saving",
    "index folder --out index --encoder tiny-llama": (
        "loading the model, reading, tokenising, encoding, saving, verifying"
    ),
    "match --left folder --right folder --out match.html --encoder tiny-llama": (
        "reading, loading the model, encoding, explaining, saving"
    ),
    "relate records.tsv --labels labels.tsv --encoder tiny-llama --save matcher": (
        "reading, loading the model, encoding, training, saving"
    ),
    "sweep tiny-llama --data pairs.tsv --test pairs.tsv --out sweep --templates plain --attentions causal": (
        "loading the model, plain, causal: encoding, plain, causal: scoring, comparing the best readings, "
        "final checks, saving"
    ),
    "analyze geometry tiny-llama --texts texts.txt --pairs pairs.tsv --out geometry.json": (
        "loading the model, encoding, encoding pairs, measuring layers"
    ),
    "data mine triplets.tsv --encoder tiny-llama --out mined.jsonl": (
        "reading, loading the model, encoding, mining negatives, saving"
    ),
    "prune tiny-llama --triplets triplets.tsv --layers 2 --out cut": "loading the model, encoding, saving",
    "eval tiny-llama --data pairs.tsv": "loading the model, evaluating",
    "train --recipe lora --backbone tiny-llama --data triplets.tsv --dev pairs.tsv --out enc --set training.steps=3": (
        "reading, loading the model, tokenising, training, evaluating, final checks, "
        "scoring the untrained model, saving"
    ),
}
"""Commands, and the phases that each shows."""


@pytest.fixture
def shown(tmp_path, monkeypatch):
    """The progress that the next command shows, in a working directory with data for all commands."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    for number, text in enumerate(TEXTS):
        (tmp_path / "folder" / f"{number}.txt").write_text(text, encoding="utf-8")
    (tmp_path / "texts.txt").write_text("\n".join(TEXTS), encoding="utf-8")
    write_rows(tmp_path / "pairs.tsv", SCORED_ROWS)
    triplets = ["\t".join(TEXTS[start : start + 3]) for start in range(0, 15, 3)]
    (tmp_path / "triplets.tsv").write_text("\n".join(["anchor\tpositive\tnegative", *triplets]), encoding="utf-8")
    records = [f"{number}\t{text}" for number, text in enumerate(TEXTS)]
    (tmp_path / "records.tsv").write_text("\n".join(["id\ttext", *records]), encoding="utf-8")
    (tmp_path / "labels.tsv").write_text("head\ttail\n0\t1\n2\t3\n4\t5", encoding="utf-8")
    recorder = ShownProgress()
    monkeypatch.setattr(output, "_ProgressLines", lambda: recorder)
    return recorder


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.usefixtures("empty_store")
def test_command_shows_its_phases_and_its_whole_time(command, shown):
    result = d2v(*command.split())
    assert result.exit_code == 0, result.output
    assert ", ".join(shown.labels) == COMMANDS[command]
    assert shown.fractions == sorted(shown.fractions) and 0.5 < shown.fractions[-1] < 1
    assert re.search(r"^done in \d", result.stderr, re.MULTILINE) and "\r" not in result.stderr
    assert not re.search(r"done in|loading", result.stdout)


KEEP_WORK = (
    "embed texts.txt --out vectors.npy --encoder tiny-llama",
    "embed texts.txt --out vectors --encoder tiny-llama",
    "index folder --out index --encoder tiny-llama",
    "migrate index --to tiny-llama",
    "relate records.tsv --labels labels.tsv --encoder tiny-llama",
    "sweep tiny-llama --data pairs.tsv --out sweep",
    "choose tiny-llama --data labelled.tsv",
    "analyze id tiny-llama --texts texts.txt --out id.json",
    "analyze geometry tiny-llama --texts texts.txt --out geometry.json",
    "prune tiny-llama --triplets triplets.tsv --out cut",
    "eval tiny-llama --data folder",
    "eval tiny-llama --data folder --tasks sts",
    "report enc --data folder",
    "mteb tiny-llama --tasks STS12",
    "train --recipe lora --backbone tiny-llama --data triplets.tsv --out enc",
    "train --curve 16 --recipes lora --backbone tiny-llama --data triplets.tsv --out enc",
    "bridge vectors.npy --captions texts.txt --out bridge",
)
KEEP_NOTHING = (
    "rerank tiny-llama --run run.trec --data folder --out new.trec",
    "match --left folder --right folder",
    "data mine triplets.tsv --encoder tiny-llama --out mined.jsonl",
    "prune tiny-llama --layers 2 --out cut",
    "prune tiny-llama --vocabulary texts.txt --out cut",
    "eval tiny-llama --data pairs.tsv",
    "report enc",
    "embed texts.txt --out vectors --encoder tiny-llama --dry-run",
    "embed --verify vectors",
    "index --out index --verify",
    "migrate index --to tiny-llama --dry-run",
    "analyze vocabulary tiny-llama --texts texts.txt --out vocabulary.json",
    "calibrate tiny-llama --data pairs.tsv --out calibrated",
    "export enc --out exported",
)


class _Interrupted:
    """Progress that is interrupted at once."""

    def __call__(self, progress):
        raise KeyboardInterrupt

    def close(self):
        """There is nothing to close."""


@pytest.mark.parametrize(
    ("command", "keeps"), [*((each, True) for each in KEEP_WORK), *((each, False) for each in KEEP_NOTHING)]
)
@pytest.mark.usefixtures("shown")
def test_interrupted_command_says_whether_work_is_kept(command, keeps, monkeypatch, run_main):
    monkeypatch.setattr(output, "_ProgressLines", _Interrupted)
    code, _, err = run_main(*command.split())
    expected = "interrupted; finished work is kept and reused by the next run" if keeps else "interrupted"
    assert code == 130 and err.splitlines()[-1] == expected
