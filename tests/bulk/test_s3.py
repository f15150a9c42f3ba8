"""Data sets in an object store that speaks the protocol of S3."""

from __future__ import annotations

import json

import pytest

import decoder2vec as d2v
from decoder2vec.errors import InputError, StorageError

s3fs = pytest.importorskip("s3fs", reason="needs s3fs: pip install s3fs")
moto = pytest.importorskip("moto.server", reason="needs moto: pip install 'moto[s3]' flask flask-cors")


@pytest.fixture(scope="module")
def address():
    """Address of a store on this machine."""
    server = moto.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture
def store(address, monkeypatch):
    """The store, with an empty bucket."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", address)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "name")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    s3fs.S3FileSystem.clear_instance_cache()
    files = s3fs.S3FileSystem()
    if files.exists("bucket"):
        files.rm("bucket", recursive=True)
    files.mkdir("bucket")
    yield files
    s3fs.S3FileSystem.clear_instance_cache()


@pytest.fixture(scope="module")
def encoder():
    return d2v.Encoder.from_pretrained("tiny-llama", device="cpu", dtype="float32")


def write_rows(store, path, count=25):
    with store.open(path, "w") as file:
        file.writelines(json.dumps({"id": f"r{n}", "text": f"row {n} of a file"}) + "\n" for n in range(count))


def contents(folder):
    return {file.name: file.read_bytes() for file in folder.iterdir()}


def test_run_is_resumed_and_verified(store, encoder, tmp_path):
    write_rows(store, "bucket/texts/a.jsonl")
    write_rows(store, "bucket/texts/b.jsonl", 7)
    run = {"sources": "s3://bucket/texts", "out": "s3://bucket/vectors", "rows_per_part": 10}
    assert d2v.embed_dataset(encoder, **run).n_parts == 4
    store.get("bucket/vectors", str(tmp_path / "first"), recursive=True)
    assert d2v.embed_dataset(encoder, **run).n_computed == 0
    store.rm("bucket/vectors/part-00000-000000000010.parquet")
    store.rm("bucket/vectors/manifest.json")
    assert d2v.embed_dataset(encoder, **run).n_computed == 1
    store.get("bucket/vectors", str(tmp_path / "again"), recursive=True)
    assert contents(tmp_path / "first") == contents(tmp_path / "again")
    assert not d2v.verify_dataset("s3://bucket/vectors", encoder).problems


def test_changed_input_is_refused(store, encoder):
    write_rows(store, "bucket/rows.jsonl")
    d2v.embed_dataset(encoder, "s3://bucket/rows.jsonl", "s3://bucket/vectors")
    write_rows(store, "bucket/rows.jsonl", 24)
    s3fs.S3FileSystem.clear_instance_cache()  # as in a new process
    with pytest.raises(StorageError, match="has changed"):
        d2v.embed_dataset(encoder, "s3://bucket/rows.jsonl", "s3://bucket/vectors")


@pytest.mark.parametrize("source", ["s3://nowhere/rows.jsonl", "s3://bucket/nothing/*.jsonl"])
def test_absent_input_is_one_sentence(store, encoder, source):
    with pytest.raises(InputError, match="names no file"):
        d2v.embed_dataset(encoder, source, "s3://bucket/vectors")


@pytest.fixture
def without_credentials(store, monkeypatch, tmp_path):
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("HOME", str(tmp_path))
    s3fs.S3FileSystem.clear_instance_cache()


@pytest.mark.usefixtures("without_credentials")
def test_missing_credentials_are_one_sentence(encoder):
    with pytest.raises(InputError, match=r"Cannot read s3://bucket/rows.jsonl: .*credentials"):
        d2v.embed_dataset(encoder, "s3://bucket/rows.jsonl", "s3://bucket/vectors")
    with pytest.raises(StorageError, match=r"Cannot use s3://bucket/vectors: .*credentials"):
        d2v.verify_dataset("s3://bucket/vectors", encoder)


def test_bucket_that_does_not_exist_is_one_sentence(store, encoder):
    write_rows(store, "bucket/rows.jsonl")
    with pytest.raises(StorageError, match=r"s3://nowhere/vectors: .*does not exist"):
        d2v.embed_dataset(encoder, "s3://bucket/rows.jsonl", "s3://nowhere/vectors")
