"""Output files of all commands: inputs are never overwritten, and bad paths are refused before the work begins."""

from __future__ import annotations

import pytest

from decoder2vec.errors import InputError, StorageError
from decoder2vec.storage import check_output_file

ROWS = "sentence1\tsentence2\tscore\nA dog runs.\tA dog is running.\t4\nA cat.\tA boat.\t1\nOne.\tTwo.\t2\n"
FILES = {
    "texts.txt": "A dog runs.\nA cat sleeps.\n",
    "pairs.tsv": ROWS,
    "triplets.jsonl": "",
    "in.jsonl": '{"text": "a"}\n',
}
COMMANDS = {
    "id": "analyze id tiny-llama --texts texts.txt --out texts.txt",
    "geometry": "analyze geometry tiny-llama --texts texts.txt --out texts.txt",
    "alignment": "analyze geometry tiny-llama --texts texts.txt --pairs pairs.tsv --out pairs.tsv",
    "concepts": "data concepts texts.txt --general pairs.tsv --out texts.txt",
    "general": "data concepts texts.txt --general pairs.tsv --out pairs.tsv",
    "mine": "data mine triplets.jsonl --encoder tiny-llama --out triplets.jsonl",
    "eval": "eval tiny-llama --data pairs.tsv --json pairs.tsv",
    "embed": "embed in.jsonl --encoder tiny-llama --out in.jsonl",
    "train": "train --recipe lora --backbone tiny-llama --data texts.txt --set objective.name=mntp --results texts.txt",
}


@pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS)
def test_input_file_is_not_overwritten(command, mistake, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, content in FILES.items():
        (tmp_path / name).write_text(content)
    assert "is an input file and would be overwritten; choose another file" in mistake(*command.split())
    assert {name: (tmp_path / name).read_text() for name in FILES} == FILES


def test_link_to_an_input_file_is_refused(tmp_path):
    (tmp_path / "a.json").write_text("{}")
    (tmp_path / "b.json").symlink_to(tmp_path / "a.json")
    with pytest.raises(InputError, match="is an input file"):
        check_output_file(tmp_path / "b.json", sources=[tmp_path / "a.json"])
    check_output_file(tmp_path / "b.json", ".json", sources=[None, tmp_path, "tiny-llama"])


def test_folder_or_wrong_suffix_is_refused(tmp_path):
    with pytest.raises(InputError, match="is a folder; name a file"):
        check_output_file(tmp_path)
    with pytest.raises(InputError, match=r"must end in \.json: that is what is written"):
        check_output_file(tmp_path / "scores.tsv", ".json")
    check_output_file(None, ".json")


@pytest.mark.parametrize("path", ["notes.txt/scores.json", "/proc/nope/scores.json"])
def test_unwritable_path_is_refused_before_the_work(path, tmp_path):
    (tmp_path / "notes.txt").write_text("")
    with pytest.raises(StorageError, match=r"Cannot write to .*; choose another place"):
        check_output_file(tmp_path / path, ".json")
    check_output_file(tmp_path / "new" / "folders" / "scores.json", ".json")
    assert [file.name for file in tmp_path.iterdir()] == ["notes.txt"]
