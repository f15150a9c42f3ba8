"""Sides are read from files and lists; what cannot be read is named, and no message quotes a document."""

import json

import pytest

from decoder2vec.errors import DataFileError, Decoder2VecError, InputError
from decoder2vec.matching.sides import Side, SideDocument, read_side, to_side
from toys.files import cells, pdf_file, sheets_file, word_file

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


def test_csv_file_equals_jsonl_file(tmp_path):
    (tmp_path / "side.csv").write_text('id,title,text\n1,Baker,"Bakes bread, and\nrolls."\n', "utf-8")
    assert (
        read_side(tmp_path / "side.csv").documents
        == read_side(jsonl(tmp_path, {"id": "1", "title": "Baker", "text": "Bakes bread, and\nrolls."})).documents
    )


def test_folder_has_one_document_per_readable_file(tmp_path):
    folder = tmp_path / "resumes"
    (folder / "more").mkdir(parents=True)
    (folder / "ann.txt").write_text("\ufeffBakes bread.", "utf-8")
    (folder / "more" / "bob.md").write_text("# Skills\nSoup", "utf-8")
    (folder / "empty.txt").write_text(" \n", "utf-8")
    (folder / "binary.txt").write_bytes(f"{SECRET}\x00\x01\x02".encode())
    (folder / "latin.txt").write_bytes("Serves caf\xe9.".encode("latin1"))
    (folder / "scan.xyz").write_bytes(b"%")
    (folder / ".hidden.txt").write_text(SECRET, "utf-8")
    side = read_side(folder)
    assert [document.id for document in side.documents] == ["ann.txt", "latin.txt", "more/bob.md"]
    assert [document.text for document in side.documents] == ["Bakes bread.", "Serves café.", "# Skills\nSoup"]
    assert [reason.split(":")[0] for reason in side.skipped] == ["binary.txt", "empty.txt", "scan.xyz"]
    assert SECRET not in " ".join(side.skipped)


def test_link_out_of_the_folder_is_not_followed(tmp_path):
    (tmp_path / "outside.txt").write_text(SECRET, "utf-8")
    folder = tmp_path / "resumes"
    folder.mkdir()
    (folder / "ann.txt").write_text("Bakes bread.", "utf-8")
    (folder / "link.txt").symlink_to(tmp_path / "outside.txt")
    side = read_side(folder)
    assert [document.id for document in side.documents] == ["ann.txt"]
    assert side.skipped == ["link.txt: a link that leads out of the folder."]


def test_links_in_a_circle_are_left_out(tmp_path):
    (tmp_path / "ann.txt").write_text("Bakes bread.", "utf-8")
    (tmp_path / "one.txt").symlink_to("two.txt")
    (tmp_path / "two.txt").symlink_to("one.txt")
    (tmp_path / "self").symlink_to(".")
    side = read_side(tmp_path)
    assert [document.id for document in side.documents] == ["ann.txt"]
    assert side.skipped == ["one.txt: cannot be read.", "two.txt: cannot be read."]


def test_bad_rows_are_named_and_others_are_kept(tmp_path):
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
    assert [document.id for document in side.documents] == ["4"]
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
def test_unusable_side_is_an_error_that_quotes_no_text(tmp_path, name, content):
    (tmp_path / name).write_text(content, "utf-8")
    with pytest.raises(DataFileError) as caught:
        read_side(tmp_path / name)
    assert name in str(caught.value)
    assert SECRET not in str(caught.value)


def test_file_that_is_not_utf8_is_named_as_such(tmp_path):
    lines = [
        json.dumps({"id": 1, "text": "Bakes."}),
        json.dumps({"id": 2, "text": f"{SECRET}\x81"}, ensure_ascii=False),
    ]
    (tmp_path / "side.jsonl").write_bytes("\n".join(lines).encode("latin1"))
    with pytest.raises(DataFileError) as caught:
        read_side(tmp_path / "side.jsonl")
    assert "UTF-8" in str(caught.value) and SECRET not in str(caught.value)


def test_missing_and_empty_folders_are_refused(tmp_path):
    with pytest.raises(Decoder2VecError, match="does not exist"):
        read_side(tmp_path / "nothing")
    (tmp_path / "folder").mkdir()
    with pytest.raises(Decoder2VecError, match="no text"):
        read_side(tmp_path / "folder")


def test_pdf_and_word_files_are_read(tmp_path):
    pdf_file(tmp_path / "ann.pdf", "Bakes bread")
    word_file(tmp_path / "bob.docx", "Repairs pumps")
    (tmp_path / "eve.pdf").write_bytes(f"%PDF-1.4 {SECRET}".encode())
    side = read_side(tmp_path)
    first_words = {document.id: document.text.split()[0] for document in side.documents}
    assert first_words == {"ann.pdf": "Bakes", "bob.docx": "Repairs"}
    assert side.skipped == ["eve.pdf: cannot be read."]


def test_rows_of_a_spreadsheet_become_documents(tmp_path):
    rows = cells(1, "id", "title", "text") + cells(2, "7", "Baker", "Bakes bread.") + cells(3, "8", "Cook", "")
    sheets_file(tmp_path / "jobs.xlsx", Jobs=rows)
    side = read_side(tmp_path / "jobs.xlsx")
    assert side.documents == [SideDocument("7", "Bakes bread.", "Baker")]
    assert len(side.skipped) == 1 and side.skipped[0].startswith("jobs.xlsx, sheet Jobs, line 3: no text")


def test_row_with_a_stray_quote_costs_only_itself(tmp_path):
    (tmp_path / "side.csv").write_text(f'id,text\n1,"{SECRET}"x\n2,Bakes.\n', "utf-8")
    side = read_side(tmp_path / "side.csv")
    assert [document.id for document in side.documents] == ["2"]
    assert side.skipped[0].startswith("side.csv, line 2:") and SECRET not in side.skipped[0]


def test_lists_of_texts_dicts_and_documents_become_sides(tmp_path):
    given = SideDocument("given", "Repairs pumps.")
    side = to_side(["Bakes.", {"id": 7, "title": "Cook", "description": "Soup", "skills": "Fish"}, given], "left")
    assert side == Side(
        "left",
        [
            SideDocument("0", "Bakes.", fields={"name": "Bakes."}),
            SideDocument("7", "Soup", "Cook", {"skills": "Fish"}),
            given,
        ],
    )
    assert to_side(side, "other") is side
    file = jsonl(tmp_path, {"id": 1, "text": "Bakes."})
    assert to_side(str(file), "left") == to_side(file, "left") == read_side(file)


@pytest.mark.parametrize("items", [[" "], [{"note": SECRET}], [{"id": [1], "text": SECRET}], [5]])
def test_unusable_items_are_refused_without_quoting_them(items):
    with pytest.raises(InputError, match="left, document 1") as caught:
        to_side(["Bakes.", *items], "left")
    assert SECRET not in str(caught.value)


def test_repeated_ids_in_a_list_are_refused():
    with pytest.raises(InputError, match="'1' occurs twice"):
        to_side(["Bakes.", "Cooks.", {"id": 1, "text": SECRET}], "left")


def test_document_without_a_name_is_shown_by_its_first_words(tmp_path):
    rows = [
        {"text": "Baker of bread " * 9 + "\nGhent"},
        {"id": 5, "text": "Welder\nLyon"},
        {"id": "ann", "text": "Cook"},
    ]
    names = [document.display_name for document in read_side(jsonl(tmp_path, *rows)).documents]
    assert names[0].startswith("Baker of bread") and names[0].endswith(" …") and len(names[0]) <= 60
    assert names[1:] == ["Welder", "ann"]
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "ann_de_wit.txt").write_text("Cook", "utf-8")
    assert read_side(tmp_path / "folder").documents[0].display_name == "ann de wit"
