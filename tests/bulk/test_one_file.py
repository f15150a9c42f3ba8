"""Tests of `decoder2vec.bulk.one_file`: every format equals `encode`, also after interruptions."""

from __future__ import annotations

import builtins
import errno
import json
import resource
import sys

import numpy as np
import pytest

from decoder2vec.backbone.backbone import Backbone
from decoder2vec.bulk import one_file as bulk
from decoder2vec.bulk.one_file import embed_texts
from decoder2vec.config import EncoderSpec, Reading
from decoder2vec.encoder import Encoder
from decoder2vec.errors import InputError, MissingExtraError, StorageError
from decoder2vec.progress import Progress
from decoder2vec.storage import atomic_file

TEXTS = [
    "A man plays a guitar.",
    "",
    "Two dogs",
    "naïve café 😀 مرحبا",
    'a "quoted"\ttext\nwith a second line',
    "Two dogs",
    "The committee will meet again on Thursday to decide about the budget.",
]
SUFFIXES = [".npy", ".jsonl", ".parquet"]


def make_encoder(backbone, layer=2):
    return Encoder(backbone("tiny-llama"), EncoderSpec("tiny-llama", (Reading(layer, "mean"),)))


def read(file):
    """(texts or None, vectors) of a file, read with the usual reader of its format."""
    if file.suffix == ".npy":
        return None, np.load(file, allow_pickle=False)
    if file.suffix == ".jsonl":
        rows = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
        return [row["text"] for row in rows], np.array([row["embedding"] for row in rows])
    import pyarrow.parquet

    table = pyarrow.parquet.read_table(file)
    return table["text"].to_pylist(), np.array(table["embedding"].to_pylist())


@pytest.fixture
def small_shards(monkeypatch):
    monkeypatch.setattr(bulk, "_SHARD_SIZE", 3)


class RecordingEncoder:
    """An encoder that records the texts of each call, and raises KeyboardInterrupt at one of them."""

    def __init__(self, encoder, stop_at=None):
        self.encoder, self.stop_at, self.calls = encoder, stop_at, []
        self.fingerprint, self.dim, self.backbone = encoder.fingerprint, encoder.dim, encoder.backbone
        self.exact, self.stats, self.spec = encoder.exact, encoder.stats, encoder.spec

    def encode(self, texts, **kwargs):
        if len(self.calls) + 1 == self.stop_at:
            raise KeyboardInterrupt
        self.calls.append(list(texts))
        return self.encoder.encode(texts, **kwargs)


@pytest.mark.parametrize("shard", [1024, 7, 3, 1])
@pytest.mark.parametrize("suffix", SUFFIXES)
def test_file_contains_the_vectors_of_encode(backbone, tmp_path, monkeypatch, suffix, shard):
    monkeypatch.setattr(bulk, "_SHARD_SIZE", shard)
    encoder, out = make_encoder(backbone), tmp_path / f"out{suffix}"
    assert embed_texts(encoder, TEXTS, out) == 7
    texts, vectors = read(out)
    assert texts in (None, TEXTS)
    assert vectors.shape == (7, 32)
    assert np.allclose(vectors, np.stack([encoder.encode(text) for text in TEXTS]), atol=1e-5, rtol=1e-5)
    assert [path.name for path in tmp_path.iterdir()] == [out.name]


def test_binary_formats_are_float32(backbone, tmp_path):
    import pyarrow
    import pyarrow.parquet

    encoder = make_encoder(backbone)
    for suffix in (".npy", ".parquet"):
        embed_texts(encoder, TEXTS, tmp_path / f"out{suffix}")
    assert np.load(tmp_path / "out.npy").dtype == np.float32
    assert np.array_equal(np.load(tmp_path / "out.npy"), encoder.encode(TEXTS))
    column = pyarrow.parquet.read_table(tmp_path / "out.parquet").schema.field("embedding").type
    assert column == pyarrow.list_(pyarrow.float32(), 32)


def test_jsonl_keeps_every_bit(backbone, tmp_path):
    encoder = make_encoder(backbone)
    embed_texts(encoder, TEXTS, tmp_path / "out.jsonl")
    assert np.array_equal(read(tmp_path / "out.jsonl")[1].astype(np.float32), encoder.encode(TEXTS))


def test_texts_that_were_cut_are_counted_once(backbone, tmp_path, small_shards, caplog):
    spec = EncoderSpec("tiny-llama", (Reading(2, "mean"),), max_length=8)
    long = ["many words " * number for number in range(5, 9)]
    embed_texts(Encoder(backbone("tiny-llama"), spec), [*TEXTS[1:3], *long], tmp_path / "out.npy")
    (message,) = caplog.messages
    assert message == "4 of 6 texts are longer than 8 tokens; they were cut."


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_vectors_are_normalised_on_request(backbone, tmp_path, small_shards, suffix):
    encoder = make_encoder(backbone)
    embed_texts(encoder, TEXTS, tmp_path / f"out{suffix}", normalize=True)
    plain = encoder.encode(TEXTS)
    expected = [row / np.sqrt((row.astype(np.float64) ** 2).sum()) for row in plain]
    assert np.allclose(read(tmp_path / f"out{suffix}")[1], expected, atol=1e-6)


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_no_texts_give_an_empty_file_of_the_right_dim(backbone, tmp_path, suffix):
    assert embed_texts(make_encoder(backbone), [], tmp_path / f"out{suffix}") == 0
    texts, vectors = read(tmp_path / f"out{suffix}")
    assert not texts and len(vectors) == 0
    if suffix == ".npy":
        assert vectors.shape == (0, 32) and vectors.dtype == np.float32
    assert [path.name for path in tmp_path.iterdir()] == [f"out{suffix}"]


def test_stream_is_read_shard_by_shard(backbone, tmp_path, small_shards):
    consumed, encoder = [], RecordingEncoder(make_encoder(backbone))

    def stream():
        for text in TEXTS:
            consumed.append(text)
            assert len(consumed) <= 3 * (len(encoder.calls) + 1)  # never more than one shard ahead
            yield text

    with Progress() as progress:
        assert embed_texts(encoder, stream(), tmp_path / "out.npy", n_texts=7) == 7
    assert encoder.calls == [TEXTS[:3], TEXTS[3:6], TEXTS[6:]]
    assert [(phase.name, phase.done) for phase in progress.phases] == [("encoding", 7)]


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_interrupted_run_is_resumed(backbone, tmp_path, small_shards, suffix):
    out = tmp_path / "new" / f"out{suffix}"
    first = RecordingEncoder(make_encoder(backbone), stop_at=3)
    with pytest.raises(KeyboardInterrupt):
        embed_texts(first, TEXTS, out)
    assert first.calls == [TEXTS[:3], TEXTS[3:6]]
    assert not out.exists()

    second = RecordingEncoder(make_encoder(backbone))
    with Progress() as progress:
        assert embed_texts(second, TEXTS, out, n_texts=7) == 7
    assert second.calls == [TEXTS[6:]]
    assert [(phase.name, phase.done) for phase in progress.phases] == [("encoding", 1)]  # only these took time
    assert np.allclose(read(out)[1], make_encoder(backbone).encode(TEXTS), atol=1e-5)
    assert [path.name for path in out.parent.iterdir()] == [out.name]


def interrupt(encoder, texts, out, at=3, **kwargs):
    recorder = RecordingEncoder(encoder, stop_at=at)
    with pytest.raises(KeyboardInterrupt):
        embed_texts(recorder, texts, out, **kwargs)
    return recorder


@pytest.mark.parametrize("change", ["another encoder", "another dtype", "exact", "normalised", "another format"])
def test_shards_of_other_settings_are_not_reused(backbone, tmp_path, small_shards, change):
    out = tmp_path / "out.npy"
    interrupt(make_encoder(backbone), TEXTS, out)
    encoder = RecordingEncoder(make_encoder(backbone, layer=3 if change == "another encoder" else 2))
    if change == "another dtype":
        encoder = RecordingEncoder(Encoder(Backbone.load("tiny-llama", dtype="float64"), encoder.encoder.spec))
    encoder.exact = change == "exact"
    out = tmp_path / "out.jsonl" if change == "another format" else out
    embed_texts(encoder, TEXTS, out, normalize=change == "normalised")
    assert encoder.calls == [TEXTS[:3], TEXTS[3:6], TEXTS[6:]]
    expected = encoder.encoder.encode(TEXTS)
    if change == "normalised":
        expected = expected / np.linalg.norm(expected, axis=1, keepdims=True)
    assert np.allclose(read(out)[1], expected, atol=1e-5)


def test_only_shards_with_changed_texts_are_recomputed(backbone, tmp_path, small_shards):
    out = tmp_path / "out.jsonl"
    interrupt(make_encoder(backbone), TEXTS, out)
    changed = [*TEXTS[:4], "another text", *TEXTS[5:]]
    encoder = RecordingEncoder(make_encoder(backbone))
    embed_texts(encoder, changed, out)
    assert encoder.calls == [changed[3:6], changed[6:]]
    texts, vectors = read(out)
    assert texts == changed
    assert np.allclose(vectors, make_encoder(backbone).encode(changed), atol=1e-5)


def test_fewer_texts_drop_old_shards(backbone, tmp_path, small_shards):
    out = tmp_path / "out.jsonl"
    interrupt(make_encoder(backbone), TEXTS, out)
    encoder = RecordingEncoder(make_encoder(backbone))
    assert embed_texts(encoder, TEXTS[:2], out) == 2
    assert read(out)[0] == TEXTS[:2]
    assert encoder.calls == [TEXTS[:2]]


def test_interruption_never_mixes_texts_and_vectors(backbone, tmp_path, small_shards, monkeypatch):
    """First texts A, then texts B interrupted at the worst moment, then A again: A must not get the vectors of B."""
    out, a, b = tmp_path / "out.jsonl", TEXTS[:4], ["one", "two", "three", "four"]
    interrupt(make_encoder(backbone), a, out, at=2)

    def stop_before_texts(target):
        if target.name == "00000000.json":
            raise KeyboardInterrupt
        return atomic_file(target)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(bulk, "atomic_file", stop_before_texts)
        embed_texts(make_encoder(backbone), b, out)
    embed_texts(make_encoder(backbone), a, out)
    assert np.allclose(read(out)[1], make_encoder(backbone).encode(a), atol=1e-5)


def test_old_file_is_kept_until_the_new_one_is_complete(backbone, tmp_path, small_shards):
    out = tmp_path / "out.npy"
    embed_texts(make_encoder(backbone), TEXTS, out)
    previous = out.read_bytes()
    interrupt(make_encoder(backbone, layer=3), TEXTS, out)
    assert out.read_bytes() == previous
    embed_texts(make_encoder(backbone, layer=3), TEXTS, out)
    assert np.allclose(np.load(out), make_encoder(backbone, layer=3).encode(TEXTS), atol=1e-5)


def test_second_run_to_the_same_file_is_refused(backbone, tmp_path, small_shards):
    out, encoder = tmp_path / "out.npy", make_encoder(backbone)

    def stream():
        for text in TEXTS:
            with pytest.raises(StorageError, match=r"Another process is writing to .*out\.npy; wait"):
                embed_texts(encoder, ["another text"], out)
            yield text

    assert embed_texts(encoder, stream(), out) == 7
    assert np.allclose(np.load(out), encoder.encode(TEXTS), atol=1e-5)
    assert [path.name for path in tmp_path.iterdir()] == ["out.npy"]


def test_folder_of_the_user_is_not_taken_for_shards(backbone, tmp_path):
    mine = tmp_path / "out.npy.parts" / "thesis.txt"
    mine.parent.mkdir()
    mine.write_text("years of work")
    with pytest.raises(InputError, match=r"out\.npy\.parts is not empty: it holds thesis\.txt"):
        embed_texts(make_encoder(backbone), TEXTS, tmp_path / "out.npy")
    assert mine.read_text() == "years of work"
    assert [path.name for path in tmp_path.rglob("*")] == ["out.npy.parts", "thesis.txt"]


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_full_disk_at_the_end_is_an_error_with_the_file(backbone, tmp_path, small_shards, suffix):
    """A limit on the size of files stands for a full disk; each shard is below it, and the whole file is not."""
    out, encoder, texts = tmp_path / f"out{suffix}", make_encoder(backbone), [str(n) for n in range(60)]
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2_000, hard))
    try:
        with pytest.raises(OSError) as caught:
            embed_texts(encoder, texts, out)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert (caught.value.errno, caught.value.filename) == (errno.EFBIG, str(out))
    assert [path.name for path in tmp_path.iterdir()] == [f"{out.name}.parts"], "the shards are kept"
    recorder = RecordingEncoder(encoder)
    assert embed_texts(recorder, texts, out) == 60 and recorder.calls == []


def test_vectors_are_written_not_mapped(backbone, tmp_path, monkeypatch):
    """A full disk kills a process that writes to a mapped file."""
    monkeypatch.setattr(np.lib.format, "open_memmap", lambda *_, mode="r+", **__: pytest.fail("the file is mapped"))
    monkeypatch.setattr(np, "memmap", lambda *_, **__: pytest.fail("the file is mapped"))
    file = tmp_path / "out.npy"
    bulk._write_npy(file, iter([([], np.ones((2, 3), np.float32)), ([], np.zeros((1, 3), np.float32))]), 3, 3)
    monkeypatch.undo()
    assert np.load(file).tolist() == [[1, 1, 1], [1, 1, 1], [0, 0, 0]]


@pytest.mark.parametrize("name", ["out.txt", "out", "out.npz", "out.json"])
def test_unknown_suffix_is_refused_first(backbone, tmp_path, name):
    encoder = RecordingEncoder(make_encoder(backbone))

    def stream():
        raise AssertionError("the texts were read")
        yield

    with pytest.raises(InputError, match=r"\.npy, \.jsonl, \.parquet"):
        embed_texts(encoder, stream(), tmp_path / name)
    assert encoder.calls == []
    assert list(tmp_path.iterdir()) == []


def test_missing_pyarrow_is_reported_first(backbone, tmp_path, monkeypatch):
    real = builtins.__import__

    def refuse(name, *args, **kwargs):
        if name.split(".")[0] == "pyarrow":
            raise ModuleNotFoundError("No module named 'pyarrow'", name="pyarrow")
        return real(name, *args, **kwargs)

    encoder = RecordingEncoder(make_encoder(backbone))
    for module in [name for name in sys.modules if name.split(".")[0] == "pyarrow"]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setattr(builtins, "__import__", refuse)
    with pytest.raises(MissingExtraError, match=r"decoder2vec\[parquet\]"):
        embed_texts(encoder, TEXTS, tmp_path / "out.parquet")
    assert encoder.calls == []
    assert list(tmp_path.iterdir()) == []
