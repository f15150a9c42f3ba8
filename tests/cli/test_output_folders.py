"""No command that writes a folder deletes or replaces what it did not write."""

from __future__ import annotations

import shutil

import pytest

from decoder2vec.encoder import Encoder
from toys.command import SCORED_ROWS, write_rows

MODEL = "tiny-gpt2"
TRAIN = f"train --recipe lora --backbone {MODEL} --data texts.txt --set objective.name=simcse --out out"
SWEEP = f"sweep {MODEL} --data pairs.tsv --templates plain --poolings mean --attentions causal --heads none --out out"
COMMANDS = {
    "train": (TRAIN, "out"),
    "train over an encoder": (f"{TRAIN} --overwrite", "out+encoder"),
    "train with checkpoints": (TRAIN, "out.unfinished"),
    "sweep": (SWEEP, "out/encoder"),
    "sweep over an encoder": (SWEEP, "out/encoder+encoder"),
    "index": (f"index texts.txt --encoder {MODEL} --out out", "out"),
    "index beside an encoder": (f"index texts.txt --encoder {MODEL} --out out", "out/encoder+encoder"),
    "sentence-transformers": ("export saved --format sentence-transformers --out out", "out"),
    "transformers": ("export saved --format transformers --out out", "out"),
    "peft": ("export saved --format peft --out out", "out"),
    "merge": ("merge saved saved --out out", "out"),
    "merge over an encoder": ("merge saved saved --out out", "out+encoder"),
    "prune": (f"prune {MODEL} --layers 1 --out out", "out"),
    "embed": (f"embed texts.txt --encoder {MODEL} --out out.npy", "out.npy.parts"),
}


@pytest.fixture(scope="module")
def saved(tmp_path_factory, own_cache):
    return Encoder.from_pretrained(MODEL, device="cpu", dtype="float32").save(
        tmp_path_factory.mktemp("saved") / "saved"
    )


@pytest.mark.parametrize(("command", "folder"), COMMANDS.values(), ids=COMMANDS)
def test_files_of_the_user_are_kept(command, folder, saved, mistake, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(saved, "saved")
    (tmp_path / "texts.txt").write_text("A dog runs.\nA cat sleeps.\nIt rains.\nStocks fell.\n")
    write_rows(tmp_path / "pairs.tsv", SCORED_ROWS)
    folder, _, encoder = folder.partition("+")
    if encoder:
        shutil.copytree(saved, folder)
    (tmp_path / folder).mkdir(parents=True, exist_ok=True)
    (tmp_path / folder / "thesis.txt").write_text("years of work")
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert "choose another folder" in mistake(*command.split())
    assert {path: path.read_bytes() for path in before} == before
