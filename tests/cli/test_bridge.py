"""`d2v bridge` and `d2v describe`: files in, a bridge, descriptions and an index out; the control is always printed."""

from __future__ import annotations

import json

import numpy as np
import pytest

from decoder2vec.encoder import Encoder, spec_from_kwargs
from decoder2vec.errors import StorageError
from decoder2vec.search.chunks import Chunking
from decoder2vec.search.index import Index
from decoder2vec.training import bridge as bridge_training
from decoder2vec.training.bridge import BridgeConfig, train_bridge
from decoder2vec.training.loop import Schedule
from toys.bridge import toy_items

ITEMS = toy_items(60)
SMALL = ("--tokens", "2", "--epochs", "1", "--device", "cpu", "--dtype", "float32")


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """items.npy with items.txt."""
    folder = tmp_path_factory.mktemp("items")
    np.save(folder / "items.npy", ITEMS.vectors)
    (folder / "items.txt").write_text("".join(f"{caption}\n" for caption in ITEMS.captions))
    return folder


@pytest.fixture(scope="module")
def describing(files, own_cache):
    """A bridge that describes."""
    config = BridgeConfig("lm", 2, training=Schedule(epochs=1, batch=32))
    train_bridge("tiny-llama", ITEMS, files / "lm", config, device="cpu", dtype="float32")
    return files / "lm"


def test_a_bridge_for_search(files, run_main, tmp_path):
    command = ["bridge", files / "items.npy", "--out", tmp_path / "b", "-m", "tiny-llama", "--lora", "2", *SMALL]
    code, out, err = run_main(*command, "--index", tmp_path / "idx", "--json", tmp_path / "results.json")
    assert code == 0, err
    assert all(word in out for word in ("real", "zeroed", "shuffled", "recall@10", "reciprocal rank"))
    assert "added 60" in err and "lora: " in err
    results = json.loads((tmp_path / "results.json").read_text())
    assert results["command"].startswith("d2v bridge") and results["control"]["items"] >= 6
    code, again, err = run_main(*command)
    assert code == 0 and "Nothing to do" in err and again == out
    code, out, _ = run_main("search", tmp_path / "idx", "cats sleep", "--mode", "dense", "--json")
    assert code == 0 and "items.npy:" in out
    code, _, err = run_main(
        "bridge", files / "items.npy", "--through", tmp_path / "b", "--index", tmp_path / "idx", *SMALL[4:]
    )
    assert code == 0 and "unchanged 60" in err
    np.save(tmp_path / "more.npy", ITEMS.vectors[:3] + 0.1)
    code, _, err = run_main(
        "bridge", tmp_path / "more.npy", "--through", tmp_path / "b", "--index", tmp_path / "idx", *SMALL[4:]
    )
    assert code == 0 and "added 3," in err


def test_the_control_is_printed_even_if_the_index_takes_no_items(files, run_main, tmp_path, monkeypatch):
    def fail(*_, **__):
        raise StorageError("The disk is full.")

    monkeypatch.setattr(Index, "add", fail)
    command = ["bridge", files / "items.npy", "--out", tmp_path / "b", "-m", "tiny-llama", *SMALL]
    code, out, err = run_main(*command, "--index", tmp_path / "idx", "--json", tmp_path / "results.json")
    assert code == 1 and "The disk is full" in err
    assert all(word in out for word in ("real", "zeroed", "shuffled")) and (tmp_path / "results.json").is_file()


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("of another encoder", "another embedding space"),
        ("late chunks", "encoded together (--late)"),
        ("other files", "holds notes.txt"),
    ],
)
def test_an_index_that_takes_no_items_is_found_before_training(
    kind, message, files, backbone, run_main, tmp_path, monkeypatch
):
    if kind == "of another encoder":
        Index.create(tmp_path / "idx", Encoder(backbone("tiny-gpt2"), spec_from_kwargs("tiny-gpt2", {})))
    elif kind == "late chunks":
        encoder = Encoder(backbone("tiny-llama"), spec_from_kwargs("tiny-llama", {}))
        Index.create(tmp_path / "idx", encoder, Chunking(late=True))
    else:
        (tmp_path / "idx").mkdir()
        (tmp_path / "idx" / "notes.txt").write_text("mine")
    monkeypatch.setattr(bridge_training, "fit", lambda *_, **__: pytest.fail("a bridge is trained"))
    command = ["bridge", files / "items.npy", "--out", tmp_path / "b", "-m", "tiny-llama", *SMALL]
    code, out, err = run_main(*command, "--index", tmp_path / "idx")
    assert (code, out) == (1, "") and message in err
    assert not (tmp_path / "b").exists()


def test_a_bridge_for_descriptions(files, run_main, tmp_path):
    code, out, err = run_main(
        "bridge", files / "items.npy", "--out", tmp_path / "b", "--loss", "lm", "-m", "tiny-llama", *SMALL
    )
    assert code == 0, err
    assert all(word in out for word in ("real", "zeroed", "shuffled", "BLEU", "ROUGE-L", "token F1", "likelihood"))


def test_descriptions(files, describing, run_main):
    code, out, err = run_main(
        "describe", describing, files / "items.npy", "--row", "3", "--row", "0", "--max-tokens", "5"
    )
    assert code == 0, err
    assert "without any vector the bridge says:" in err
    assert all(word in out for word in ("real", "zeroed", "shuffled", "likelihood"))
    options = ("--row", "3", "--json", "--max-tokens", "5")
    row = json.loads(run_main("describe", describing, files / "items.npy", *options)[1])
    assert row["row"] == 3 and row["caption"] == ITEMS.captions[3] and row["text"] in out


def test_a_row_that_is_named_twice_is_described_once(files, describing, run_main):
    code, out, _ = run_main(
        "describe", describing, files / "items.npy", "--row", 3, "--row", 3, "--max-tokens", 4, "--json"
    )
    assert code == 0 and json.loads(out)["row"] == 3


def test_vectors_without_captions_are_described(describing, run_main, tmp_path):
    np.save(tmp_path / "alone.npy", ITEMS.vectors[:2])
    code, out, err = run_main("describe", describing, tmp_path / "alone.npy", "--max-tokens", "4")
    assert code == 0 and "without any vector" in err and "zeroed" not in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["bridge", "items.npy"], "Give --out to train a bridge, or --through with --index"),
        (["bridge", "items.npy", "--out", "b", "--loss", "mlm", "-m", "tiny-llama"], "Unknown objective 'mlm'"),
        (["bridge", "absent.npy", "--out", "b"], "There is no file absent.npy"),
        (["bridge", "absent.npy", "--out", "b", "--loss", "lm", "--index", "i"], "--index needs --loss contrastive"),
        (
            ["bridge", "items.npy", "--through", "lm", "--index", "i", "--json", "r.json"],
            "--json belongs to the training",
        ),
        (["bridge", "items.npy", "--through", "lm", "--index", "i", "--lora", "4"], "--lora belongs to the training"),
        (
            ["bridge", "items.npy", "--through", "lm", "--index", "i", "--loss", "contrastive"],
            "--loss belongs to the training",
        ),
        (["bridge", "items.npy", "--through", "lm", "--index", "i", "--seed", "0"], "--seed belongs to the training"),
        (["bridge", "lm", "--out", "b"], "lm is a folder; give a file of vectors, .npy or .parquet."),
        (["bridge", "items.npy", "--captions", "lm", "--out", "b"], "lm is a folder; give a file of captions, .txt,"),
        (["describe", "lm", "."], ". is a folder; give a file of vectors, .npy or .parquet."),
        (["describe", ".", "items.npy"], "is not the folder of a bridge"),
        (["describe", "lm", "items.npy", "--row", "99"], "has rows 0 to 59; there is no row 99"),
    ],
)
def test_errors_are_one_sentence(arguments, message, files, describing, run_main, monkeypatch):
    monkeypatch.chdir(files)
    code, out, err = run_main(*arguments)
    assert (code, out) == (1, "") and err.startswith("error: ") and message in err and err.count("\n") == 1
