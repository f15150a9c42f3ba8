"""`d2v cache`."""

from __future__ import annotations

import re

from toys.command import SMALL_SWEEP, d2v
from toys.training import toy_examples


def test_latents_are_listed_verified_and_removed(pairs, tmp_path, empty_store):
    assert d2v("cache", "verify").exit_code == 0
    options = ["--data", pairs, "--out", tmp_path / "out", *SMALL_SWEEP, "--attentions", "causal,bidirectional"]
    d2v("sweep", "tiny-llama", *options)
    names = sorted(folder.name for folder in empty_store.iterdir())
    assert len(names) == 2
    listed = d2v("cache", "ls")
    assert listed.exit_code == 0
    for name in names:
        line = next(line for line in listed.stdout.splitlines() if name in line)
        assert line.split()[1] == "16" and "'{text}', 12 readings" in line
    assert "tiny-llama, causal" in listed.stdout and "tiny-llama, bidirectional" in listed.stdout

    undamaged = d2v("cache", "verify")
    assert undamaged.exit_code == 0
    assert sorted(undamaged.stdout.splitlines()) == [f"{name}: 16 texts, 0 damaged segments" for name in names]

    segment = next((empty_store / names[0]).glob("seg-*"))
    data = bytearray(segment.read_bytes())
    data[-100] ^= 0xFF
    segment.write_bytes(data)
    damaged = d2v("cache", "verify")
    assert damaged.exit_code == 1
    assert f"{names[0]}: 16 texts, 1 damaged segments" in damaged.stdout
    assert not segment.exists() and len(list(empty_store.rglob("seg-*"))) == 1
    assert d2v("cache", "verify").exit_code == 0

    assert d2v("cache", "rm", names[0]).exit_code == 0
    assert [folder.name for folder in empty_store.iterdir()] == [names[1]]
    assert d2v("cache", "rm", "all").exit_code == 0
    assert list(empty_store.iterdir()) == []


def test_vectors_are_listed_and_removed(tmp_path, monkeypatch):
    monkeypatch.setenv("D2V_CACHE", str(tmp_path / "cache"))
    (tmp_path / "cache" / "vectors").mkdir(parents=True)
    (tmp_path / "cache" / "vectors" / "a.npy").write_bytes(b"0" * 2_000_000)
    assert re.search(r"vectors\s+2\.0\s+1 sets of vectors", d2v("cache", "ls").stdout)
    assert d2v("cache", "rm", "vectors").exit_code == 0
    assert not (tmp_path / "cache" / "vectors").exists()


def test_keys_and_values_are_listed_and_removed(tmp_path, monkeypatch):
    """Training of a soft prompt caches the keys and values of its texts."""
    monkeypatch.setenv("D2V_CACHE", str(tmp_path / "cache"))
    rows = [(example.anchor, example.positive, example.negatives[0]) for example in toy_examples()]
    lines = [",".join(row) for row in [("anchor", "positive", "negative"), *rows]]
    (tmp_path / "mine.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    options = ["--set", "training.epochs=1", "--set", "training.batch=8", "--backbone", "tiny-llama", "--device", "cpu"]
    trained = d2v(
        *("train", "--recipe", "soft_prompt", "--data", tmp_path / "mine.csv", "--out", tmp_path / "enc"), *options
    )
    assert trained.exit_code == 0, trained.output
    listed = d2v("cache", "ls")
    assert listed.exit_code == 0 and "1 sets of keys and values" in listed.output
    assert d2v("cache", "rm", "prefix_kv").exit_code == 0
    listed = d2v("cache", "ls")
    assert listed.exit_code == 0 and "keys and values" not in listed.output
