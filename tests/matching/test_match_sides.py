"""Reading a side: what is there is read, what is not is named, and no word of a document gets into a message."""

import json

import pytest

from decoder2vec.errors import DataFileError, Decoder2VecError
from decoder2vec.matching.sides import read_side
from toys.files import pdf_file, word_file

SECRET = "Zweitausendschoen"


def jsonl(folder, *rows):
    file = folder / "side.jsonl"
    file.write_text("\n".join(row if isinstance(row, str) else json.dumps(row) for row in rows) + "\n", "utf-8")
    return file


def test_rows_become_documents(tmp_path):
    side = read_side(
        jsonl(
            tmp_path,
            {"id": 7, "title": "Baker", "text": "Bakes bread.", "name": "Ann"},
            {"label": "Cook", "description": "Cooks.", "skills": "Soup"},
        )
    )
    first, second = side.documents
    assert (first.id, first.title, first.text, first.fields) == ("7", "Baker", "Bakes bread.", {"name": "Ann"})
    assert (second.id, second.title, second.text) == ("side.jsonl, line 2", "Cook", "Cooks.")
    assert second.fields == {"skills": "Soup"}


def test_a_csv_file_reads_like_a_jsonl_file(tmp_path):
    (tmp_path / "side.csv").write_text('id,title,text\n1,Baker,"Bakes bread, and\nrolls."\n', "utf-8")
    assert (
        read_side(tmp_path / "side.csv").documents
        == read_side(jsonl(tmp_path, {"id": "1", "title": "Baker", "text": "Bakes bread, and\nrolls."})).documents
    )


def test_a_folder_is_one_document_a_file_and_names_what_it_cannot_read(tmp_path):
    inside = tmp_path / "resumes"
    (inside / "more").mkdir(parents=True)
    (inside / "ann.txt").write_text("\ufeffBakes bread.", "utf-8")
    (inside / "more" / "bob.md").write_text("# Skills\nSoup", "utf-8")
    (inside / "empty.txt").write_text(" \n", "utf-8")
    (inside / "latin.txt").write_bytes(f"{SECRET} caf\xe9".encode("latin1"))
    (inside / "scan.xyz").write_bytes(b"%")
    (inside / ".hidden.txt").write_text(SECRET, "utf-8")
    side = read_side(inside)
    assert [one.id for one in side.documents] == ["ann.txt", "more/bob.md"]
    assert side.documents[0].text == "Bakes bread."
    assert [reason.split(":")[0] for reason in side.skipped] == ["empty.txt", "latin.txt", "scan.xyz"]
    assert SECRET not in " ".join(side.skipped)


def test_a_link_out_of_the_folder_is_not_followed(tmp_path):
    (tmp_path / "outside.txt").write_text(SECRET, "utf-8")
    inside = tmp_path / "resumes"
    inside.mkdir()
    (inside / "ann.txt").write_text("Bakes bread.", "utf-8")
    (inside / "link.txt").symlink_to(tmp_path / "outside.txt")
    side = read_side(inside)
    assert [one.id for one in side.documents] == ["ann.txt"]
    assert side.skipped == ["link.txt: a link that leads out of the folder."]


def test_bad_rows_are_named_and_the_others_are_kept(tmp_path):
    side = read_side(
        jsonl(
            tmp_path,
            f'{{"id": 1, "text": "{SECRET}',
            {"id": 2, "text": "  ", "note": SECRET},
            [SECRET],
            {"id": [1], "text": SECRET},
            {"id": 3, "text": 5},
            {"id": 4, "text": "Bakes."},
        )
    )
    assert [one.id for one in side.documents] == ["4"]
    assert [reason.split(":")[0] for reason in side.skipped] == [f"side.jsonl, line {n}" for n in (1, 2, 3, 4, 5)]
    assert SECRET not in " ".join(side.skipped)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("empty.jsonl", ""),
        ("blank.jsonl", f'{{"id": 1, "note": "{SECRET}"}}\n'),
        ("twins.jsonl", f'{{"id": 1, "text": "{SECRET}"}}\n{{"id": 1, "text": "b"}}\n'),
        ("no_header.csv", f"1,{SECRET}\n2,{SECRET} again\n"),
        ("quote.csv", f'id,text\n1,"{SECRET}\n'),
        ("broken.jsonl", f'{{"text": "{SECRET}"\n'),
        ("kind.exe", SECRET),
    ],
)
def test_a_side_without_a_usable_document_is_one_sentence_that_holds_no_text(tmp_path, name, content):
    (tmp_path / name).write_text(content, "utf-8")
    with pytest.raises(DataFileError) as caught:
        read_side(tmp_path / name)
    assert name in str(caught.value)
    assert SECRET not in str(caught.value)


def test_a_file_that_is_not_utf_8_is_said_to_be_so(tmp_path):
    lines = [json.dumps({"id": 1, "text": "Bakes."}), json.dumps({"id": 2, "text": SECRET + "é"}, ensure_ascii=False)]
    (tmp_path / "side.jsonl").write_bytes("\n".join(lines).encode("latin1"))
    with pytest.raises(DataFileError) as caught:  # one block of bytes is decoded at a time: nothing before it is known
        read_side(tmp_path / "side.jsonl")
    assert "UTF-8" in str(caught.value) and SECRET not in str(caught.value)


def test_what_does_not_exist_is_said(tmp_path):
    with pytest.raises(Decoder2VecError, match="does not exist"):
        read_side(tmp_path / "nothing")
    (tmp_path / "folder").mkdir()
    with pytest.raises(Decoder2VecError, match="no text"):
        read_side(tmp_path / "folder")


def test_resumes_may_be_pdf_and_word_files(tmp_path):
    pdf_file(tmp_path / "ann.pdf", "Bakes bread")
    word_file(tmp_path / "bob.docx", "Repairs pumps")
    (tmp_path / "eve.pdf").write_bytes(f"%PDF-1.4 {SECRET}".encode())
    side = read_side(tmp_path)
    assert {one.id: one.text.split()[0] for one in side.documents} == {"ann.pdf": "Bakes", "bob.docx": "Repairs"}
    assert side.skipped == ["eve.pdf: cannot be read."]
