"""Damage to an index is found: every changed byte by `verify`, and what cannot be read is one sentence everywhere."""

from __future__ import annotations

import json
import random
import shutil
from types import SimpleNamespace

import pytest

from decoder2vec.encoder import Encoder
from decoder2vec.errors import Decoder2VecError, InputError, StorageError
from decoder2vec.search import index as index_module
from decoder2vec.search import lance_store
from decoder2vec.search.documents import Document
from decoder2vec.search.hybrid import Fusion
from decoder2vec.search.index import Index
from decoder2vec.search.lance_store import LanceStore
from decoder2vec.text.files import ScoredPairs
from toys.encoder import WordEncoder

DOCUMENTS = [Document(f"d{number}", f"word{number} and word{number + 1}", {"n": number}) for number in range(40)]
PAIRS = ScoredPairs("pairs", ["a", "b", "c"] * 4, ["a", "c", "d"] * 4, [5.0, 1.0, 3.0] * 4)


@pytest.fixture(scope="module")
def whole(tmp_path_factory, own_cache):
    """The folder of an index with everything that can be in one: documents changed and deleted, a reranker, sources."""
    folder = tmp_path_factory.mktemp("whole")
    documents = folder / "documents"
    documents.mkdir()
    (documents / "a.txt").write_text("A file of the folder.")
    encoder = Encoder.from_pretrained("tiny-llama", device="cpu", dtype="float32").with_head(
        "standardise", [document.text for document in DOCUMENTS]
    )
    index = Index.create(folder / "index", encoder)
    index.add(DOCUMENTS[:30])
    index.add([*DOCUMENTS[20:], Document("d0", "changed")])
    index.add(documents)
    index.delete(["d5"])
    index.learn_reranker(PAIRS)
    index.set_fusion(Fusion("rrf", 0.5))
    index.verify()
    return folder / "index"


def files_of(folder):
    return sorted(path for path in folder.rglob("*") if path.is_file() and path.name != ".writing")


def flip(path, position):
    content = bytearray(path.read_bytes())
    content[position] ^= 0xFF
    path.write_bytes(content)


def test_every_changed_byte_is_found(whole, tmp_path):
    folder = tmp_path / "index"
    shutil.copytree(whole, folder)
    rng, missed = random.Random(0), []
    encoder = Encoder.load(folder / "encoder", device="cpu", dtype="float32")
    for path in files_of(folder):
        content = path.read_bytes()
        for position in {0, len(content) // 2, len(content) - 1, *(rng.randrange(len(content)) for _ in range(5))}:
            flip(path, position)
            try:
                Index.open(folder, encoder).verify()
                missed.append((path.relative_to(folder).as_posix(), position))
            except Decoder2VecError:
                pass
            path.write_bytes(content)
    assert missed == []
    Index.open(folder, encoder).verify()


@pytest.mark.parametrize("part", ["data", "_versions"])
def test_truncated_table_is_one_sentence(whole, tmp_path, part):
    folder = tmp_path / "index"
    shutil.copytree(whole, folder)
    for path in files_of(folder / "chunks.lance" / part):
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with pytest.raises(StorageError, match="damaged"):
        Index.open(folder).verify()
    shutil.rmtree(folder / "lexical")
    with pytest.raises(StorageError, match=r"is damaged \(.*\); create it again"):
        Index.open(folder).search("word1")
    with pytest.raises(StorageError, match="damaged"):
        Index.open(folder).add(DOCUMENTS)


HEADERS = {
    "list": "[]",
    "text": '"index"',
    "no fields": '{"format": 1}',
    "wrong type": '{"format": 1, "id": 3, "dim": "x"}',
    "unknown field": '{"format": 1, "colour": "red"}',
    "too deep": "[" * 100_000,
}


@pytest.mark.parametrize("content", HEADERS.values(), ids=HEADERS)
def test_damaged_header_is_one_sentence(whole, tmp_path, content):
    shutil.copytree(whole, tmp_path / "index")
    (tmp_path / "index" / "index.json").write_text(content)
    with pytest.raises(StorageError, match=r"damaged|cannot be read"):
        Index.open(tmp_path / "index")


def test_table_of_another_index_is_found_in_search(tmp_path):
    """Its vectors have the same width, and are of another encoder."""
    for name in ("mine", "other"):
        Index.create(tmp_path / name, WordEncoder()).add(DOCUMENTS)
    shutil.rmtree(tmp_path / "mine" / "chunks.lance")
    shutil.copytree(tmp_path / "other" / "chunks.lance", tmp_path / "mine" / "chunks.lance")
    for use in (lambda index: index.verify(), lambda index: index.search("word1"), lambda index: index.add(DOCUMENTS)):
        with pytest.raises(StorageError, match=r"is of another index|is damaged"):
            use(Index.open(tmp_path / "mine", WordEncoder()))


def test_index_without_checksums_is_verified_as_before(whole, tmp_path):
    shutil.copytree(whole, tmp_path / "index")
    (tmp_path / "index" / "checksums.json").unlink()
    Index.open(tmp_path / "index").verify()


def test_file_written_by_a_killed_process_is_not_called_damaged(whole, tmp_path):
    folder = tmp_path / "index"
    shutil.copytree(whole, folder)
    index = Index.open(folder)
    with pytest.raises(KeyboardInterrupt), index.store.write_lock():
        index.store.write_header({**index.store.header(), "tuned": False})
        raise KeyboardInterrupt
    Index.open(folder).verify()
    index.add(DOCUMENTS)
    index.verify()
    assert "index.json" in json.loads((folder / "checksums.json").read_text())["files"]


def test_index_created_meanwhile_is_kept(location, closing, monkeypatch):
    def create_another(encoder, **_):
        monkeypatch.undo()
        closing(Index.create(location, WordEncoder())).add(DOCUMENTS)
        return encoder

    monkeypatch.setattr(index_module, "resolve_encoder", create_another)
    with pytest.raises(InputError, match="already an index"):
        Index.create(location, WordEncoder())
    assert closing(Index.open(location, WordEncoder())).count() == (40, 40)


@pytest.mark.parametrize("part", ["index.json", "chunks.lance/_versions", "chunks.lance"])
def test_creation_killed_at_any_point_can_be_repeated(tmp_path, part):
    folder = tmp_path / "index"
    Index.create(folder, WordEncoder())
    (folder / "index.json").unlink()
    shutil.rmtree(folder / part, ignore_errors=True)
    Index.create(folder, WordEncoder()).add(DOCUMENTS)
    index = Index.open(folder, WordEncoder())
    index.verify()
    assert index.count() == (40, 40)


def test_index_that_lost_its_header_is_kept(tmp_path):
    Index.create(tmp_path / "index", WordEncoder()).add(DOCUMENTS)
    (tmp_path / "index" / "index.json").rename(tmp_path / "index.json")
    with pytest.raises(Decoder2VecError):
        Index.create(tmp_path / "index", WordEncoder())
    (tmp_path / "index.json").rename(tmp_path / "index" / "index.json")
    assert Index.open(tmp_path / "index", WordEncoder()).count() == (40, 40)


@pytest.mark.parametrize("name", ["encoder/encoder.json", "chunks.lance/data.lance", "lexical/keys.json", ".writing2"])
def test_folder_with_names_of_an_index_is_left_alone(tmp_path, name):
    mine = tmp_path / "index" / name
    mine.parent.mkdir(parents=True)
    mine.write_text("mine")
    with pytest.raises(InputError, match=f"is not empty: it holds {name}; choose another folder"):
        Index.create(tmp_path / "index", WordEncoder())
    assert [path.read_text() for path in files_of(tmp_path)] == ["mine"]


def test_commit_that_cannot_be_read_is_undone(tmp_path):
    """As if LanceDB had overlooked that the list of deleted rows could not be written."""
    index = Index.create(tmp_path / "index", WordEncoder())
    index.add(DOCUMENTS[:10])
    with pytest.raises(StorageError, match="cannot be read and was undone"), index.store._undone_if_unreadable():
        index.store._table.delete("document = 'd3'")
        for file in (tmp_path / "index" / "chunks.lance" / "_deletions").iterdir():
            file.write_bytes(b"")
    assert Index.open(tmp_path / "index", WordEncoder()).count()[0] == 10
    assert index.delete(["d3"]) == ["d3"]
    index.verify()


@pytest.mark.parametrize("base", [BaseException, Exception])
def test_panic_of_native_code_is_one_sentence(whole, tmp_path, monkeypatch, base):
    """A torn manifest lets LanceDB panic, at times; its binding has two classes for that."""
    panic = type({BaseException: "PanicException", Exception: "RustPanic"}[base], (base,), {})
    store = LanceStore(shutil.copytree(whole, tmp_path / "index"))

    def open_table(_):
        raise panic("rust future panicked:\nunknown error")

    monkeypatch.setattr(lance_store, "_connect", lambda folder: SimpleNamespace(open_table=open_table))
    with pytest.raises(StorageError, match=r"is damaged \(rust future panicked: unknown error\); create it again"):
        store.count_chunks()
