"""Documents of every kind are read, and what cannot be read is named and costs nothing else."""

from __future__ import annotations

import builtins
import gzip
import json
import os

import pytest

from decoder2vec.errors import DataFileError, InputError
from decoder2vec.search.documents import Document, Skipped, read_documents
from toys.files import pdf_file, word_file


def read(source, *columns):
    found = list(read_documents(source, columns or ("text",)))
    documents = {one.id: one for one in found if isinstance(one, Document)}
    return documents, {one.name: one.reason for one in found if isinstance(one, Skipped)}


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "below").mkdir()
    (tmp_path / "a.txt").write_text("\ufeffPlain text, naïve café.", encoding="utf-8")
    (tmp_path / "below" / "b.md").write_text("# Heading\n\nMarkdown.", encoding="utf-8")
    word_file(tmp_path / "c.docx", "First paragraph", "Second &amp; last")
    pdf_file(tmp_path / "d.pdf", "A line of a PDF")
    (tmp_path / "e.csv").write_text('id,text,year\nr1,"one, two",2024\nr2,three,2025\n', encoding="utf-8")
    named = {"_id": 7, "title": "T", "text": "body", "tags": ["x", "y"], "metadata": {"deep": {"a": 1}}}
    with gzip.open(tmp_path / "f.jsonl.gz", "wt", encoding="utf-8") as file:
        file.write("".join(json.dumps(row) + "\n" for row in (named, {"text": "no id"})))
    return tmp_path


def test_every_kind_of_file_gives_its_text(folder):
    documents, skipped = read(folder)
    assert skipped == {}
    assert {id: one.text for id, one in documents.items()} == {
        "a.txt": "Plain text, naïve café.",
        "below/b.md": "# Heading\n\nMarkdown.",
        "c.docx": "First paragraph\tend\n\nSecond & last\tend",
        "d.pdf": "A line of a PDF",
        "r1": "one, two",
        "r2": "three",
        "7": "body",
        "f.jsonl.gz:2": "no id",
    }


def test_what_else_a_row_says_is_its_metadata(folder):
    documents, _ = read(folder)
    assert documents["r1"].metadata == {"path": "e.csv", "year": "2024"}
    assert documents["7"].metadata == {"path": "f.jsonl.gz", "title": "T", "tags": ["x", "y"], "deep": '{"a": 1}'}


def test_several_columns_are_joined(folder):
    documents, skipped = read(folder / "f.jsonl.gz", "title", "text")
    assert documents["7"].text == "T\nbody"
    assert list(skipped) == ["f.jsonl.gz, line 2"] and "'title' is no text" in skipped["f.jsonl.gz, line 2"]


def test_files_that_cannot_be_read_are_named_and_the_others_are_there(folder):
    (folder / "latin.txt").write_bytes("café".encode("latin-1"))
    (folder / "binary.txt").write_bytes(b"a\x00b")
    (folder / "broken.pdf").write_bytes(os.urandom(300))
    (folder / "broken.docx").write_bytes(b"PK\x03\x04 no zip")
    (folder / "empty.docx").write_bytes(b"")
    (folder / "picture.png").write_bytes(b"")
    (folder / "bad.jsonl").write_text('{"text": "good"}\n{"text": \n[1]\n{"text": "also good"}\n', encoding="utf-8")
    documents, skipped = read(folder)
    assert set(skipped) == {
        "latin.txt",
        "binary.txt",
        "broken.pdf",
        "broken.docx",
        "empty.docx",
        "picture.png",
        "bad.jsonl, line 2",
        "bad.jsonl, line 3",
    }
    assert "iconv" in skipped["latin.txt"] and "damaged" in skipped["broken.pdf"]
    assert documents["bad.jsonl:1"].text == "good" and documents["bad.jsonl:4"].text == "also good"
    assert len(documents) == 10


def test_a_word_file_that_unpacks_to_entities_is_refused(tmp_path):
    word_file(tmp_path / "trap.docx", "&a;", head='<!DOCTYPE x [<!ENTITY a "aaaa">]>')
    assert "entities" in read(tmp_path)[1]["trap.docx"]


def test_without_pypdf_only_the_pdf_files_are_left_out(folder, monkeypatch):
    real = builtins.__import__

    def no_pypdf(name, *args, **kwargs):
        if name == "pypdf":
            raise ImportError
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", no_pypdf)
    documents, skipped = read(folder)
    assert list(skipped) == ["d.pdf"] and "pip install 'decoder2vec[index]'" in skipped["d.pdf"]
    assert len(documents) == 7


def test_links_that_lead_out_and_hidden_files_are_not_followed(tmp_path):
    (tmp_path / "secret.txt").write_text("secret", encoding="utf-8")
    inside = tmp_path / "inside"
    inside.mkdir()
    (inside / "out.txt").symlink_to(tmp_path / "secret.txt")
    (inside / "up").symlink_to(tmp_path, target_is_directory=True)
    (inside / ".hidden.txt").write_text("hidden", encoding="utf-8")
    documents, skipped = read(inside)
    assert documents == {} and list(skipped) == ["out.txt"]


def test_nothing_at_all_is_an_error(tmp_path):
    with pytest.raises(InputError, match="holds no file"):
        read(tmp_path)
    with pytest.raises(DataFileError, match="does not exist"):
        read(tmp_path / "missing")


def test_signs_that_no_store_can_keep_are_taken_out(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"id": "a\\u0000b", "text": "x\\u0000y \\ud800", "n": NaN}', encoding="utf-8")
    documents, _ = read(tmp_path)
    assert documents["ab"].text == "xy ?" and documents["ab"].metadata["n"] == "nan"


def test_a_digest_changes_with_text_and_metadata_only():
    one = Document("a", "text", {"x": 1, "y": 2})
    assert one.digest() == Document("b", "text", {"y": 2, "x": 1}).digest()
    assert len({one.digest(), Document("a", "text").digest(), Document("a", "Text", {"x": 1, "y": 2}).digest()}) == 3
