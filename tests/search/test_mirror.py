"""Indexing a folder again mirrors it: what is gone is removed, what was renamed is moved, nothing else is touched."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from decoder2vec.errors import DataFileError
from decoder2vec.search.chunks import Chunking
from decoder2vec.search.index import Index
from toys.encoder import WordEncoder
from toys.files import cells, sheets_file


@pytest.fixture
def folder(tmp_path):
    folder = tmp_path / "papers"
    (folder / "sub").mkdir(parents=True)
    for name in ("a.txt", "b.md", "sub/c.txt"):
        (folder / name).write_text(f"The text of {name}, as it is. " * 12, encoding="utf-8")
    write_rows(folder / "rows.jsonl", [{"id": "n1", "text": "one"}, {"id": "n2", "text": "two"}, {"text": "three"}])
    return folder


@pytest.fixture
def index(location, closing, folder):
    index = closing(Index.create(location, WordEncoder(), Chunking(16, 0)))
    index.add(folder)
    index.encoder.encoded_texts.clear()
    return index


def write_rows(file, rows):
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def ids_of(index):
    index.verify()
    return set(index.store.document_digests())


def content_of(index, id):
    """Texts and vectors of the chunks of a document, in order."""
    keys, vectors = index.store.read_vectors([id])
    chunks = index.store.read_chunks(keys)
    rows = sorted(zip(keys, vectors.tolist(), strict=True), key=lambda row: chunks[row[0]].number)
    return [(chunks[key].text, vector) for key, vector in rows]


ALL = {"a.txt", "b.md", "sub/c.txt", "n1", "n2", "rows.jsonl:3"}


def test_files_and_rows_that_are_gone_are_removed(index, folder):
    assert ids_of(index) == ALL
    (folder / "a.txt").unlink()
    write_rows(folder / "rows.jsonl", [{"id": "n1", "text": "one"}])
    changes = index.add(str(folder))
    assert (changes.removed, changes.unchanged, changes.added, changes.moved) == (3, 3, 0, 0)
    assert ids_of(index) == {"b.md", "sub/c.txt", "n1"}
    assert index.add(folder).removed == 0


def test_renamed_files_are_moved_and_not_encoded(index, folder):
    before = content_of(index, "a.txt")
    assert len(before) > 1
    (folder / "a.txt").rename(folder / "new.txt")
    (folder / "sub").rename(folder / "other")
    (folder / "rows.jsonl").rename(folder / "table.jsonl")
    changes = index.add(folder)
    assert (changes.moved, changes.removed, changes.added, changes.updated, changes.unchanged) == (5, 0, 0, 0, 1)
    assert index.encoder.encoded_texts == [] and changes.processed == 6
    assert ids_of(index) == {"new.txt", "b.md", "other/c.txt", "n1", "n2", "table.jsonl:3"}
    assert content_of(index, "new.txt") == before
    assert {hit.id for hit in index.search("text", 9, filter={"path": "table.jsonl"})} == {"n1", "n2", "table.jsonl:3"}
    assert index.add(folder).unchanged == 6


def test_a_renamed_and_changed_file_is_encoded(index, folder):
    (folder / "a.txt").unlink()
    (folder / "new.txt").write_text("Other words.", encoding="utf-8")
    changes = index.add(folder)
    assert (changes.added, changes.removed, changes.moved) == (1, 1, 0)
    assert index.encoder.encoded_texts == ["Other words."]


def replaced_and_interrupted(monkeypatch):
    """Documents that replace two of the folder; the run ends before it records where they are from."""
    monkeypatch.setattr("decoder2vec.search.indexing._MIN_BATCH_CHUNKS", 1)

    def documents():
        yield {"id": "a.txt", "text": "Other words."}
        yield {"id": "n1", "text": "Another row."}
        raise KeyboardInterrupt

    return documents()


def test_files_replaced_by_an_interrupted_run_are_encoded(index, folder, monkeypatch):
    before = {id: content_of(index, id) for id in ALL}
    with pytest.raises(KeyboardInterrupt):
        index.add(replaced_and_interrupted(monkeypatch))
    assert content_of(index, "a.txt") != before["a.txt"] and content_of(index, "n1") != before["n1"]
    changes = index.add(folder)
    assert (changes.updated, changes.moved, changes.unchanged) == (2, 0, 4)
    assert {id: content_of(index, id) for id in ids_of(index)} == before


def test_renamed_files_replaced_by_a_run_are_encoded(index, folder, monkeypatch):
    before = content_of(index, "a.txt")
    with pytest.raises(KeyboardInterrupt):
        index.add(replaced_and_interrupted(monkeypatch))
    (folder / "a.txt").rename(folder / "new.txt")
    changes = index.add(folder)
    assert (changes.added, changes.moved) == (1, 0)
    assert content_of(index, "new.txt") == before


def test_record_without_digests_moves_nothing(index, folder):
    record = index.store.local_folder / "sources.json"
    folders = json.loads(record.read_text(encoding="utf-8"))
    old = {key: {id: origin[:2] for id, origin in origins.items()} for key, origins in folders.items()}
    record.write_text(json.dumps(old), encoding="utf-8")
    (folder / "a.txt").rename(folder / "new.txt")
    changes = index.add(folder)
    assert (changes.added, changes.moved, changes.removed, changes.unchanged) == (1, 0, 1, 5)


def test_a_copy_is_encoded_and_its_model_stays(index, folder):
    (folder / "copy.txt").write_bytes((folder / "a.txt").read_bytes())
    changes = index.add(folder)
    assert (changes.added, changes.moved, changes.removed) == (1, 0, 0)
    assert ids_of(index) == ALL | {"copy.txt"}


def test_documents_from_elsewhere_are_never_removed(index, folder, tmp_path):
    other = tmp_path / "other"
    other.mkdir()
    (other / "o.txt").write_text("From another folder.", encoding="utf-8")
    index.add(other)
    index.add([{"id": "mine", "text": "Added by hand."}, {"id": "a.txt", "text": "Replaced by hand."}])
    single = tmp_path / "single.txt"
    single.write_text("A single file.", encoding="utf-8")
    index.add(single)
    for name in ("a.txt", "b.md"):
        (folder / name).unlink()
    single.unlink()
    assert index.add(folder).removed == 1
    assert ids_of(index) == (ALL - {"b.md"}) | {"o.txt", "mine", "single.txt"}


def test_files_that_cannot_be_read_now_are_kept(index, folder):
    (folder / "a.txt").write_bytes(b"\x00\x01\x02\x03")
    (folder / "rows.jsonl").write_text('{"id": "n1", "text": "one"}\nbroken\n', encoding="utf-8")
    changes = index.add(folder)
    assert changes.removed == 0 and len(changes.skipped) == 2
    assert ids_of(index) == ALL
    (folder / "a.txt").unlink()
    assert index.add(folder).removed == 1  # it was still known to be from the folder


@pytest.fixture
def close_folder(monkeypatch):
    """Take away the permission to read and enter a folder, which root would have in any case."""
    scandir, stat = os.scandir, os.stat
    closed = set()

    def closed_scandir(path):
        if isinstance(path, str | Path) and Path(path) in closed:
            raise PermissionError(13, "Permission denied", str(path))
        return scandir(path)

    def closed_stat(path, **kwargs):
        if isinstance(path, str | Path) and closed & set(Path(path).parents):
            raise PermissionError(13, "Permission denied", str(path))
        return stat(path, **kwargs)

    monkeypatch.setattr(os, "scandir", closed_scandir)
    monkeypatch.setattr(os, "stat", closed_stat)
    return closed.add


def test_documents_of_an_unreadable_folder_are_kept(index, folder, close_folder):
    (folder / "sub.txt").write_text("Not in the folder sub.", encoding="utf-8")
    index.add(folder)
    (folder / "sub.txt").unlink()
    close_folder(folder / "sub")
    changes = index.add(folder)
    assert [(skipped.name, skipped.reason) for skipped in changes.skipped] == [("sub/", "permission denied")]
    assert changes.removed == 1
    assert ids_of(index) == ALL


def test_copy_of_an_unreadable_file_is_encoded(index, folder, close_folder):
    (folder / "copy.txt").write_bytes((folder / "sub" / "c.txt").read_bytes())
    close_folder(folder / "sub")
    changes = index.add(folder)
    assert (changes.added, changes.moved, changes.removed) == (1, 0, 0)


def test_unreadable_folder_is_an_error(index, folder, close_folder):
    close_folder(folder)
    with pytest.raises(DataFileError, match=r"Cannot read .*papers: permission denied"):
        index.add(folder)
    assert ids_of(index) == ALL


def test_file_named_like_a_sheet_is_kept(index, folder):
    """The name of a skipped sheet is "FILE, sheet NAME"; a file may have such a name, too."""
    file = folder / "songs, sheet music.txt"
    file.write_text("A song about rain.", encoding="utf-8")
    index.add(folder)
    file.write_bytes(b"\x00\x01\x02\x03")
    assert index.add(folder).removed == 0
    assert file.name in ids_of(index)


@pytest.mark.parametrize(
    "other", ["", cells(1, "text"), cells(1, "price") + cells(2, "7")], ids=["empty", "header", "numbers"]
)
def test_rows_gone_from_a_workbook_are_removed(index, folder, other):
    """Also if another sheet holds no row or no text: it was read completely."""
    book, rows = folder / "book.xlsx", cells(1, "id", "text") + cells(2, "s1", "one")
    sheets_file(book, A=rows + cells(3, "s2", "two"), B=other)
    index.add(folder)
    assert ids_of(index) == ALL | {"s1", "s2"}
    sheets_file(book, A=rows, B=other)
    changes = index.add(folder)
    assert changes.removed == 1 and [skipped.name for skipped in changes.skipped] == ["book.xlsx, sheet B"]
    assert ids_of(index) == ALL | {"s1"}


def test_document_of_an_emptied_file_is_removed(index, folder):
    (folder / "a.txt").write_text("", encoding="utf-8")
    assert index.add(folder).removed == 1
    assert ids_of(index) == ALL - {"a.txt"}


def test_index_without_a_record_removes_nothing(index, folder):
    (index.store.local_folder / "sources.json").unlink()  # as in an index of an older version
    (folder / "a.txt").unlink()
    assert index.add(folder).removed == 0
    (folder / "b.md").unlink()
    assert index.add(folder).removed == 1
    (index.store.local_folder / "sources.json").write_text("{", encoding="utf-8")
    (folder / "sub" / "c.txt").unlink()
    assert index.add(folder).removed == 0


def test_deleted_documents_come_back_with_their_file(index, folder):
    index.delete(["a.txt"])
    assert index.add(folder).added == 1
    assert ids_of(index) == ALL
