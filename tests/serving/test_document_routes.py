"""Files read over HTTP: the same documents as `d2v match` reads from the same files."""

from __future__ import annotations

import base64
import json
import threading
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from decoder2vec.matching.sides import read_side
from decoder2vec.serving import document_routes
from decoder2vec.serving.limits import Limits
from toys.files import pdf_file, word_file


def post(client, file, name=None):
    body = {"name": name or file.name, "content": base64.b64encode(file.read_bytes()).decode()}
    return client.post("/documents", json=body)


@pytest.mark.parametrize("write", [pdf_file, word_file])
def test_pdf_and_word_files_are_read_as_on_the_command_line(client, tmp_path, write):
    file = tmp_path / f"ann_de_wit.{'pdf' if write is pdf_file else 'docx'}"
    write(file, "AWS and GCP.")
    response = post(client, file).json()
    (expected,) = read_side(file).documents
    assert response["documents"] == [{"id": file.name, "text": expected.text, "label": "ann de wit"}]
    assert "AWS and GCP." in expected.text and response["skipped"] == []


def test_rows_of_a_table_are_documents_with_their_sections(client, tmp_path):
    file = tmp_path / "people.csv"
    file.write_text("id,title,text,skills,address\na,Baker,Bread.,Dough,12 Main Street\nb,,,,\n", "utf-8")
    response = post(client, file).json()
    assert response["documents"] == [{"id": "a", "text": "Baker\nBread.\n\nSkills\nDough", "label": "Baker"}]
    assert response["skipped"][0].startswith("people.csv, line 3: no text")


def test_broken_and_unknown_files_are_named_and_not_quoted(client, tmp_path):
    file = tmp_path / "broken.pdf"
    file.write_bytes(b"secret words")
    for name, reason in (
        ("broken.pdf", "cannot be read"),
        ("photo.png", "not supported"),
        ("../../x", "not supported"),
    ):
        response = post(client, file, name)
        assert response.status_code == 200 and response.json()["documents"] == []
        assert reason in response.json()["skipped"][0] and name in response.json()["skipped"][0]
        assert "secret" not in json.dumps(response.json())


def test_content_that_is_not_base64_is_a_400(client):
    for body in ({"name": "a.pdf", "content": "é"}, {"name": "a.pdf", "content": "a"}, {"name": "", "content": ""}):
        assert client.post("/documents", json=body).status_code == 400


def test_names_that_are_no_paths_are_answered(client, tmp_path):
    file = tmp_path / "a.txt"
    file.write_text("Bread.", "utf-8")
    for name in ("a.\x00", "a.\ud800x", "." * 500):
        response = client.post(
            "/documents",
            content=json.dumps({"name": name, "content": base64.b64encode(file.read_bytes()).decode()}),
            headers={"Content-Type": "application/json"},
        )
        assert response.status_code in (200, 400)


def test_small_file_with_very_much_text_is_a_413(client, tmp_path):
    file = tmp_path / "many.csv"
    file.write_text("text\n" + "Bread.\n" * 3000, "utf-8")
    assert post(client, file).status_code == 413


def test_searches_do_not_wait_for_files(client, tmp_path, monkeypatch):
    """As many files as there are threads for searches, and two more, which take until the end of the test."""
    file = tmp_path / "slow.txt"
    file.write_text("Bread.", "utf-8")
    release = threading.Event()

    def read_slowly(*_):
        release.wait(30)
        return {"documents": [], "skipped": []}

    monkeypatch.setattr("decoder2vec.serving.document_routes.read_documents", read_slowly)
    with ThreadPoolExecutor(10) as pool:
        uploads = [pool.submit(post, client, file) for _ in range(10)]
        try:
            assert client.post("/search", json={"query": "bread"}).status_code == 200
            assert not any(upload.done() for upload in uploads)
        finally:
            release.set()
        assert {upload.result().status_code for upload in uploads} == {200}


def test_file_that_takes_too_long_is_a_408(serving, tmp_path, monkeypatch):
    """It counts as running until it ends, which a thread cannot be forced to."""
    file, release = tmp_path / "slow.txt", threading.Event()
    file.write_text("Bread.", "utf-8")
    read_documents = document_routes.read_documents

    def read_slowly(name, *arguments):
        if name == "slow.txt":
            release.wait(60)
        return read_documents(name, *arguments)

    monkeypatch.setattr(document_routes, "read_documents", read_slowly)
    limits = Limits(file_timeout=1, max_jobs=1)
    with serving(limits=limits) as url, httpx.Client(base_url=url, timeout=60) as client:
        try:
            response = post(client, file)
            assert response.status_code == 408
            assert response.json()["error"]["message"] == "The file could not be read within 1 seconds; split it."
            assert post(client, file, "quick.txt").status_code == 429
        finally:
            release.set()
        for _ in range(1000):  # until the slow one has ended
            if (response := post(client, file, "quick.txt")).status_code == 200:
                break
        assert response.json()["documents"][0]["text"] == "Bread."
