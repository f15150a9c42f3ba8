"""Input files that are missing or unreadable are refused before a model is loaded."""

from __future__ import annotations

import shutil

import numpy as np
import pytest

from decoder2vec.backbone.backbone import Backbone
from decoder2vec.errors import Decoder2VecError
from decoder2vec.quick_encoder import QuickEncoder
from decoder2vec.search.index import Index
from decoder2vec.training.bridge import BridgeConfig, train_bridge
from decoder2vec.training.loop import Schedule
from toys.bridge import toy_items
from toys.command import SCORED_ROWS, d2v, tiny_encoder, write_rows

ITEMS = toy_items(30)
COMMANDS = {
    "embed": "embed absent.txt --out v.npy -e tiny-llama",
    "embed to a folder": "embed absent.jsonl --out v -e tiny-llama",
    "embed one of two": "embed texts.txt absent.txt --out v -e tiny-llama",
    "embed --dry-run": "embed absent.jsonl --out v -e tiny-llama --dry-run",
    "embed --verify": "embed --verify absent -e tiny-llama",
    "index": "index absent --out new -e tiny-llama",
    "index more": "index absent --out index",
    "index --tune queries": "index --out index --tune --queries absent.jsonl --qrels qrels.tsv",
    "index --tune qrels": "index --out index --tune --queries queries.jsonl --qrels absent.tsv",
    "index --tune pairs": "index --out index --tune --pairs absent.tsv",
    "match left": "match --left absent --right texts.jsonl -e tiny-llama",
    "match right": "match --left texts.jsonl --right absent -e tiny-llama",
    "eval": "eval tiny-llama --data absent.tsv",
    "eval second": "eval tiny-llama --data pairs.tsv --data absent.tsv",
    "sweep": "sweep tiny-llama --data absent.tsv --out s",
    "sweep --test": "sweep tiny-llama --data pairs.tsv --test absent.tsv --out s",
    "relate": "relate absent.jsonl --labels labels.tsv -e tiny-llama",
    "relate tails": "relate texts.jsonl absent.jsonl --labels labels.tsv -e tiny-llama",
    "relate labels": "relate texts.jsonl --labels absent.tsv -e tiny-llama",
    "relate matcher": "relate texts.jsonl --matcher absent",
    "rerank documents": "rerank tiny-llama --query rain --documents absent.txt",
    "rerank run": "rerank tiny-llama --run absent.trec --data task --out new.trec",
    "rerank data": "rerank tiny-llama --run run.trec --data absent --out new.trec",
    "rerank qrels": "rerank tiny-llama --run run.trec --data task --qrels absent.tsv",
    "bridge": "bridge absent.npy --captions items.txt --out b -m tiny-llama",
    "bridge captions": "bridge items.npy --captions absent.txt --out b -m tiny-llama",
    "bridge test": "bridge items.npy --test absent.npy --out b -m tiny-llama",
    "bridge through": "bridge items.npy --through absent --index index",
    "bridge through vectors": "bridge absent.npy --through trained --index index",
    "bridge through captions": "bridge items.npy --captions absent.txt --through trained --index index",
    "describe": "describe absent items.npy",
    "describe vectors": "describe trained absent.npy",
    "describe captions": "describe trained items.npy --captions absent.txt",
    "calibrate": "calibrate tiny-llama --data absent.tsv",
    "choose": "choose tiny-llama --data absent.tsv",
    "choose valid": "choose tiny-llama --data pairs.tsv --valid absent.tsv",
    "choose test": "choose tiny-llama --data pairs.tsv --test absent.tsv",
    "migrate": "migrate absent --to tiny-llama",
    "migrate queries": "migrate index --to tiny-llama --queries absent.jsonl",
    "migrate qrels": "migrate index --to tiny-llama --queries queries.jsonl --qrels absent.tsv",
    "prune": "prune tiny-llama --out p --triplets absent.tsv",
    "prune vocabulary": "prune tiny-llama --out p --vocabulary absent.txt",
    "prune held out": "prune tiny-llama --out p --vocabulary texts.txt --held-out absent.txt",
    "data mine": "data mine absent.tsv --out m.jsonl --encoder tiny-llama",
    "data mine corpus": "data mine examples.tsv --corpus absent.txt --out m.jsonl --encoder tiny-llama",
    "train": "train --recipe lora --backbone tiny-llama --train absent.tsv --out t",
    "train dev": "train --recipe lora --backbone tiny-llama --train pairs.tsv --dev absent.tsv --out t",
    "search": "search absent rain",
    "analyze geometry": "analyze geometry tiny-llama --texts absent.txt --out a.json",
    "analyze id": "analyze id tiny-llama --texts absent.txt --out a.json",
}
"""Commands by name; each names one file or folder that is absent, and files of the fixture."""


@pytest.fixture(scope="module")
def inputs(tmp_path_factory, own_cache):
    """A folder with files of every kind, an index and a bridge that describes."""
    folder = tmp_path_factory.mktemp("inputs")
    texts = [row[0] for row in SCORED_ROWS]
    write_rows(folder / "pairs.tsv", SCORED_ROWS)
    (folder / "texts.txt").write_text("".join(f"{text}\n" for text in texts))
    rows = "".join(f'{{"_id": "d{n}", "id": "d{n}", "text": "{text}"}}\n' for n, text in enumerate(texts))
    (folder / "task").mkdir()
    for name in ("texts.jsonl", "queries.jsonl", "task/corpus.jsonl", "task/queries.jsonl"):
        (folder / name).write_text(rows)
    (folder / "examples.tsv").write_text("anchor\tpositive\nIt rains.\tIt is raining.\nA dog.\tA hound.\n")
    (folder / "qrels.tsv").write_text("query-id\tcorpus-id\tscore\nd0\td1\t1\n")
    (folder / "labels.tsv").write_text("head\ttail\tlabel\nd0\td1\tsame\nd2\td3\tsame\n")
    (folder / "run.trec").write_text("d0 Q0 d1 1 9 bm25\n")
    np.save(folder / "items.npy", ITEMS.vectors)
    (folder / "items.txt").write_text("".join(f"{caption}\n" for caption in ITEMS.captions))
    config = BridgeConfig("lm", 2, training=Schedule(epochs=1, batch=16))
    train_bridge("tiny-llama", ITEMS, folder / "trained", config, device="cpu", dtype="float32")
    Index.create(folder / "index", tiny_encoder()).add(folder / "texts.txt")
    return folder


@pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS.keys())
def test_missing_input_is_refused_before_a_model_is_loaded(command, inputs, tmp_path, monkeypatch):
    def load(*_, **__):
        raise AssertionError("The model was loaded first.")

    folder = shutil.copytree(inputs, tmp_path / "inputs")
    monkeypatch.chdir(folder)
    monkeypatch.setattr(Backbone, "load", load)
    monkeypatch.setattr(QuickEncoder, "load", load)
    before = sorted(path.relative_to(folder) for path in folder.rglob("*"))
    with pytest.raises(Decoder2VecError, match=r"absent"):
        d2v(*command.split())
    assert sorted(path.relative_to(folder) for path in folder.rglob("*")) == before
