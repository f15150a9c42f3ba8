"""Documents of every kind are read; what cannot be read is named, and nothing else is lost."""

from __future__ import annotations

import builtins
import gzip
import json
import os
from datetime import date

import numpy as np
import pytest

from decoder2vec.errors import DataFileError, InputError
from decoder2vec.search.documents import Document, Skipped, read_documents, to_documents
from toys.files import cells, pdf_file, sheets_file, word_file


def read(source, *columns):
    """Return id -> document and name -> reason of what was skipped."""
    results = list(read_documents(source, columns))
    documents = {result.id: result for result in results if isinstance(result, Document)}
    return documents, {result.name: result.reason for result in results if isinstance(result, Skipped)}


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "below").mkdir()
    (tmp_path / "a.txt").write_text("\ufeffPlain text, naïve café.", encoding="utf-8")
    (tmp_path / "below" / "b.md").write_text("# Heading\n\nMarkdown.", encoding="utf-8")
    word_file(tmp_path / "c.docx", "First paragraph", "Second &amp; last")
    pdf_file(tmp_path / "d.pdf", "A line of a PDF")
    (tmp_path / "e.csv").write_text('id,text,year\nr1,"one, two",2024\nr2,three,2025\n', encoding="utf-8")
    with_id = {"_id": 7, "title": "T", "text": "body", "tags": ["x", "y"], "metadata": {"deep": {"a": 1}}}
    with gzip.open(tmp_path / "f.jsonl.gz", "wt", encoding="utf-8") as file:
        file.write("".join(json.dumps(row) + "\n" for row in (with_id, {"text": "no id"})))
    return tmp_path


def test_every_kind_of_file_gives_its_text(folder):
    documents, skipped = read(folder)
    assert skipped == {}
    assert {id: document.text for id, document in documents.items()} == {
        "a.txt": "Plain text, naïve café.",
        "below/b.md": "Heading\n\nMarkdown.",
        "c.docx": "First paragraph\tend\n\nSecond & last\tend",
        "d.pdf": "A line of a PDF",
        "r1": "one, two",
        "r2": "three",
        "7": "body",
        "f.jsonl.gz:2": "no id",
    }


def test_other_columns_of_a_row_are_its_metadata(folder):
    documents, _ = read(folder)
    assert documents["r1"].metadata == {"path": "e.csv", "year": "2024"}
    assert documents["7"].metadata == {"path": "f.jsonl.gz", "title": "T", "tags": ["x", "y"], "deep": '{"a": 1}'}


def test_several_columns_are_joined(folder):
    documents, skipped = read(folder / "f.jsonl.gz", "title", "text")
    assert documents["7"].text == "T\nbody"
    assert (
        list(skipped) == ["f.jsonl.gz, line 2"]
        and "it has no 'title'; the columns are" in skipped["f.jsonl.gz, line 2"]
    )


def test_unreadable_files_are_named_and_others_are_read(folder):
    (folder / "russian.txt").write_bytes("Привет".encode("cp1251"))
    (folder / "binary.txt").write_bytes(b"a\x00b")
    (folder / "broken.pdf").write_bytes(os.urandom(300))
    (folder / "broken.docx").write_bytes(b"PK\x03\x04 no zip")
    (folder / "empty.docx").write_bytes(b"")
    (folder / "picture.png").write_bytes(b"")
    (folder / "header.csv").write_text("id,text\n", encoding="utf-8")
    (folder / "bad.jsonl").write_text('{"text": "good"}\n{"text": \n[1]\n{"text": "also good"}\n', encoding="utf-8")
    documents, skipped = read(folder)
    assert set(skipped) == {
        "russian.txt",
        "binary.txt",
        "broken.pdf",
        "broken.docx",
        "empty.docx",
        "picture.png",
        "header.csv",
        "bad.jsonl, line 2",
        "bad.jsonl, line 3",
    }
    assert "iconv" in skipped["russian.txt"] and "damaged" in skipped["broken.pdf"]
    assert documents["bad.jsonl:1"].text == "good" and documents["bad.jsonl:4"].text == "also good"
    assert len(documents) == 10


def test_text_columns_are_joined_and_named_once(tmp_path):
    rows = "7;Lamp;A lamp for the desk;9,50;2024-01-02;http://a.b/c d;home\n8;Sofa;;99;;;home\n"
    content = f"id;Title;Description;Price;Date;Link;Group\n{rows}"
    (tmp_path / "goods.csv").write_text(content, encoding="utf-8")
    notes = []
    lamp, sofa = read_documents(tmp_path, notify=notes.append)
    assert (lamp.id, lamp.text) == ("7", "Lamp\nA lamp for the desk") and sofa.text == "Sofa"
    assert lamp.metadata["Price"] == "9,50" and lamp.metadata["Group"] == "home"
    assert notes == ["goods.csv has no column text; its texts are joined from Title, Description"]


def test_columns_of_single_words_are_text_where_nothing_else_is(tmp_path):
    (tmp_path / "words.csv").write_text("nr,word\n1,lamp\n2,sofa\n", encoding="utf-8")
    (tmp_path / "numbers.csv").write_text("a,b\n1,2\n", encoding="utf-8")
    documents, skipped = read(tmp_path)
    assert [document.text for document in documents.values()] == ["lamp", "sofa"]
    assert skipped == {"numbers.csv": "no column holds text; the columns are a, b"}


def test_hostile_address_is_read_in_linear_time(tmp_path):
    (tmp_path / "t.csv").write_text(f"nr,words\n1,{'@' * 200_000} two words\n", encoding="utf-8")  # else minutes
    (document,) = read_documents(tmp_path)
    assert document.text.endswith("@ two words")


@pytest.mark.parametrize("charset", ["cp1252", "utf-16", "utf-16-le", "utf-16-be", "utf-8-sig"])
@pytest.mark.parametrize("delimiter", [",", ";", "\t", "|"])
def test_tables_of_any_delimiter_and_charset_are_read(tmp_path, charset, delimiter):
    content = "id,text,year\r\na,naïve café,2024\r\n".replace(",", delimiter)
    (tmp_path / "t.csv").write_bytes(content.encode(charset))
    assert read(tmp_path) == ({"a": Document("a", "naïve café", {"path": "t.csv", "year": "2024"})}, {})


def test_malformed_rows_are_listed_and_later_rows_are_read(tmp_path):
    (tmp_path / "t.csv").write_text(f'id,text\n1,one\n2,"two"x\n3,{"x" * 140_000}\n4,four\n', encoding="utf-8")
    documents, skipped = read(tmp_path)
    assert list(documents) == ["1", "3", "4"] and list(skipped) == ["t.csv, line 3"]


def test_rows_of_all_sheets_are_documents(tmp_path):
    sheets_file(
        tmp_path / "book.xlsx",
        First=cells(1, "id", "text") + cells(3, "a", "Row of a sheet"),
        Second=cells(1, "topic", "remark") + cells(2, "x", "A longer remark"),
    )
    notes = []
    first, second = read_documents(tmp_path, notify=notes.append)
    assert first == Document("a", "Row of a sheet", {"path": "book.xlsx"})
    assert second == Document("book.xlsx:Second:2", "A longer remark", {"path": "book.xlsx", "topic": "x"})
    assert notes == ["book.xlsx, sheet Second has no column text; its texts are joined from remark"]


def test_row_of_a_sheet_may_have_empty_cells(tmp_path):
    rows = cells(1, "title", "text") + cells(2, "Lamp", "") + cells(3, "", "A sofa.") + cells(4, "", "", "x")
    sheets_file(tmp_path / "book.xlsx", A=rows)
    documents, skipped = read(tmp_path, "title", "text")
    assert [document.text for document in documents.values()] == ["Lamp", "A sofa.", ""] and skipped == {}
    assert documents["book.xlsx:A:4"].metadata == {"path": "book.xlsx", "C": "x"}
    _, skipped = read(tmp_path, "title", "body")
    assert skipped["book.xlsx, sheet A, line 2"] == "it has no 'body'; the columns are title, text"


def test_only_pdf_files_are_skipped_without_pypdf(folder, monkeypatch):
    real_import = builtins.__import__

    def import_without_pypdf(name, *args, **kwargs):
        if name == "pypdf":
            raise ImportError
        return real_import(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", import_without_pypdf)
    documents, skipped = read(folder)
    assert list(skipped) == ["d.pdf"] and "pip install 'decoder2vec[index]'" in skipped["d.pdf"]
    assert len(documents) == 7


def test_outward_links_and_hidden_files_are_not_read(tmp_path):
    (tmp_path / "secret.txt").write_text("secret", encoding="utf-8")
    inside = tmp_path / "inside"
    inside.mkdir()
    (inside / "out.txt").symlink_to(tmp_path / "secret.txt")
    (inside / "up").symlink_to(tmp_path, target_is_directory=True)
    (inside / ".hidden.txt").write_text("hidden", encoding="utf-8")
    documents, skipped = read(inside)
    assert documents == {} and list(skipped) == ["out.txt"]


def test_links_in_a_circle_are_left_out(tmp_path):
    (tmp_path / "ann.txt").write_text("Bakes bread.", "utf-8")
    (tmp_path / "one.txt").symlink_to("two.txt")
    (tmp_path / "two.txt").symlink_to("one.txt")
    (tmp_path / "self").symlink_to(".")
    documents, skipped = read(tmp_path)
    assert list(documents) == ["ann.txt"]
    assert set(skipped) == {"one.txt", "two.txt"} and "symbolic links" in skipped["one.txt"]


def test_empty_or_missing_folder_is_an_error(tmp_path):
    with pytest.raises(DataFileError, match="holds no file"):
        read(tmp_path)
    with pytest.raises(DataFileError, match="does not exist"):
        read(tmp_path / "missing")


def test_characters_that_no_store_keeps_are_removed(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"id": "a\\u0000b", "text": "x\\u0000y \\ud800", "n": NaN}', encoding="utf-8")
    documents, _ = read(tmp_path)
    assert documents["ab"].text == "xy ?" and documents["ab"].metadata["n"] == "nan"


def test_values_that_json_has_not_become_text_or_numbers():
    odd = {"day": date(2025, 2, 3), "year": np.int64(2025), "sizes": np.array([1, 2]), "pair": (1, date(2025, 1, 1))}
    plain = {"day": "2025-02-03", "year": 2025, "sizes": [1, 2], "pair": [1, "2025-01-01"]}
    row, nested, document = to_documents(
        [
            {"id": "a", "text": "x", **odd},
            {"id": "b", "text": "x", "nested": {"day": date(2025, 2, 3)}},
            Document("c", "half a pair: \ud800", odd | {"nested": {"a": 1}}, [1.0, 2.0]),
        ]
    )
    assert row.metadata == plain and row.digest()
    assert json.loads(nested.metadata["nested"]) == {"day": "2025-02-03"}
    assert document.metadata == plain | {"nested": {"a": 1}} and document.text == "half a pair: ?"
    assert document.vector.tolist() == [1, 2]


@pytest.mark.parametrize(("document", "what"), [(Document(5, "x"), "the id 5"), (Document("a", None), "the text None")])
def test_documents_with_other_ids_and_texts_than_strings_are_refused(document, what):
    with pytest.raises(InputError, match=what):
        list(to_documents([document]))


def test_digest_depends_on_text_and_metadata_only():
    document = Document("a", "text", {"x": 1, "y": 2})
    assert document.digest() == Document("b", "text", {"y": 2, "x": 1}).digest()
    others = Document("a", "text"), Document("a", "Text", {"x": 1, "y": 2})
    assert len({document.digest(), *(other.digest() for other in others)}) == 3


def test_paths_texts_and_dicts_become_documents(folder):
    assert list(to_documents(str(folder))) == list(to_documents(folder)) == list(read_documents(folder))
    given = Document("given", "unchanged")
    row = {"_id": 7, "title": "T", "text": "body", "year": 2025}
    same, text, other_text, with_id, without_id, bad = to_documents(
        [given, "one", "two", row, {"text": "one", "kind": "x"}, {"title": "T"}]
    )
    assert same == given
    assert (text.text, text.metadata) == ("one", {}) and text.id == next(to_documents(["one"])).id != other_text.id
    assert with_id == Document("7", "body", {"title": "T", "year": 2025})
    assert without_id == Document(text.id, "one", {"kind": "x"})
    assert isinstance(bad, Skipped) and bad.name == "document 6"
    assert next(to_documents([row], ("title", "text"))).text == "T\nbody"


def test_other_sources_of_documents_are_refused(tmp_path):
    for text in ("A text that is no path.", "A long text. " * 1000, "a\x00b"):
        with pytest.raises(DataFileError, match="does not exist; give a folder or file, or a list"):
            next(to_documents(text))
    with pytest.raises(DataFileError, match="does not exist"):
        next(to_documents(tmp_path / "missing"))
    with pytest.raises(InputError, match="Document 2 is a int"):
        list(to_documents(["a", 1]))


def test_names_that_are_not_utf8_are_escaped(tmp_path):
    folder = os.fsencode(tmp_path / "folder")
    os.mkdir(folder)
    for name in (b"\xff.txt", b"\xfe.txt", "ü.txt".encode()):
        try:
            with open(os.path.join(folder, name), "w", encoding="utf-8") as file:
                file.write("Cats sleep.")
        except OSError:
            pytest.skip("the file system takes names in UTF-8 only")
    ids = [document.id for document in read_documents(tmp_path / "folder")]
    assert sorted(ids) == ["\\xfe.txt", "\\xff.txt", "ü.txt"]
