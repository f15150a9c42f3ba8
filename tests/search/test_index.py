"""An index gives back what went in: exactly, after changes, and never to another encoder."""

from __future__ import annotations

import json
import random

import bm25s
import numpy as np
import pytest
import Stemmer

from decoder2vec.config import EncoderSpec, Reading
from decoder2vec.encoder import Encoder
from decoder2vec.errors import InputError, StorageError
from decoder2vec.search import ranking
from decoder2vec.search.chunks import Chunking
from decoder2vec.search.documents import Document, Skipped
from decoder2vec.search.index import Index
from decoder2vec.search.store import Chunk
from toys.encoder import WordEncoder

WORDS = [f"{a}{b}" for a in ("ka", "lo", "mi", "nu", "re") for b in ("tar", "ben", "sol", "dim", "fex", "gul")]
QUERIES = ["katar loben", "misol", "refex nudim kagul", "lotar"]


def made_up(count=60, length=12, seed=0):
    rng = random.Random(seed)
    return [
        Document(
            f"d{n}", " ".join(rng.choices(WORDS, k=length)), {"kind": "even" if n % 2 == 0 else "odd", "year": n % 5}
        )
        for n in range(count)
    ]


@pytest.fixture
def index(place, opened):
    made = opened(Index.create(place, WordEncoder()))
    made.add(made_up())
    return made


def cosines(query, documents):
    vectors = WordEncoder().encode([one.text for one in documents]).astype(np.float64)
    asked = WordEncoder().encode([query])[0].astype(np.float64)
    return vectors @ asked / np.linalg.norm(vectors, axis=1) / np.linalg.norm(asked)


@pytest.mark.parametrize("similarity", ["cosine", "dot", "euclidean", "manhattan"])
def test_dense_search_equals_numpy(tmp_path, similarity):
    encoder = WordEncoder()
    encoder.similarity_fn_name = similarity
    made = Index.create(tmp_path / "index", encoder)
    documents = made_up()
    made.add(documents)
    vectors = encoder.encode([one.text for one in documents]).astype(np.float64)
    for query in QUERIES:
        asked = encoder.encode([query])[0].astype(np.float64)
        expected = {
            "cosine": cosines(query, documents),
            "dot": vectors @ asked,
            "euclidean": -np.linalg.norm(vectors - asked, axis=1),
            "manhattan": -np.abs(vectors - asked).sum(axis=1),
        }[similarity]
        hits = made.search(query, 10, "dense")
        assert [hit.score for hit in hits] == pytest.approx(np.sort(expected)[::-1][:10], rel=1e-5)
        by_id = dict(zip((one.id for one in documents), expected, strict=True))
        assert all(by_id[hit.id] == pytest.approx(hit.score, rel=1e-5) for hit in hits)


def test_both_stores_give_the_exact_nearest(index):
    expected = np.sort(cosines(QUERIES[0], made_up()))[::-1][:10]
    assert [hit.score for hit in index.search(QUERIES[0], 10, "dense")] == pytest.approx(expected, rel=1e-5)


def test_many_queries_at_once_find_the_same_as_one_by_one(index):
    for mode in ("dense", "lexical"):  # scores that are equal but for rounding may change places, and so ranks
        together = index.rank(QUERIES, 7, mode)
        for query, found in zip(QUERIES, together, strict=True):
            alone = index.rank([query], 7, mode)[0]
            assert [one.score for one in found] == pytest.approx([one.score for one in alone], rel=1e-5)


def test_lexical_search_equals_bm25s_used_directly(index):
    texts = [one.text for one in made_up()]
    settings = {"stopwords": "en", "stemmer": Stemmer.Stemmer("english"), "show_progress": False}
    direct = bm25s.BM25()
    direct.index(bm25s.tokenize(texts, **settings), show_progress=False)
    for query in QUERIES:
        asked = bm25s.tokenize([query], return_ids=False, **settings)
        _, scores = direct.retrieve(asked, k=10, show_progress=False)
        every = dict(zip((one.id for one in made_up()), direct.get_scores(asked[0]), strict=True))
        hits = index.search(query, 10, "lexical")
        assert [hit.score for hit in hits] == pytest.approx([score for score in scores[0] if score > 0], rel=1e-5)
        assert all(every[hit.id] == pytest.approx(hit.score, rel=1e-5) for hit in hits)


def test_a_word_is_found_in_its_other_forms(index):
    index.add([Document("welder", "He welds hulls of ships, and has done so for years.")])
    assert [hit.id for hit in index.search("welding a hull", 5, "lexical")] == ["welder"]


def test_words_that_were_counted_in_another_way_are_counted_anew(index, opened):
    found = [hit.score for hit in index.search(QUERIES[0], 5, "lexical")]
    note = index.store.beside / "lexical" / "keys.json"
    said = json.loads(note.read_text())
    note.write_text(json.dumps(said | {"bm25": {"stemmer": None}}))
    again = opened(Index.open(index.place, index.encoder))
    assert [hit.score for hit in again.search(QUERIES[0], 5, "lexical")] == pytest.approx(found)
    assert json.loads(note.read_text()) == said


@pytest.mark.parametrize("mode", ["dense", "lexical", "hybrid"])
def test_a_filter_finds_the_best_of_those_it_lets_through(index, mode):
    for where, keeps in (
        ({"kind": "odd"}, lambda said: said["kind"] == "odd"),
        ({"kind": "odd", "year": "3"}, lambda said: said["kind"] == "odd" and said["year"] == 3),
        ({"year": ["1", "2"]}, lambda said: said["year"] in (1, 2)),
    ):
        every = [hit for hit in index.search(QUERIES[0], 60, mode) if keeps(hit.metadata)]
        found = index.search(QUERIES[0], 5, mode, where)
        assert all(keeps(hit.metadata) for hit in found)
        if mode != "hybrid":  # ranks among fewer documents are other ranks
            assert [hit.score for hit in found] == pytest.approx([hit.score for hit in every[:5]], rel=1e-5)
        assert len(found) == min(5, len(every))
    assert index.search(QUERIES[0], 5, mode, {"kind": "' OR 1=1 --"}) == []
    assert index.search(QUERIES[0], 5, mode, {"no such key": "x"}) == []


def test_members_of_a_list_are_found_each(place, opened):
    made = opened(Index.create(place, WordEncoder()))
    made.add([Document("a", "one", {"tags": ["x", "it's"], "good": True}), Document("b", "two", {"tags": ["y"]})])
    assert [hit.id for hit in made.search("one", 5, "dense", {"tags": "it's"})] == ["a"]
    assert [hit.id for hit in made.search("one", 5, "dense", {"good": "true"})] == ["a"]


def test_documents_are_added_updated_and_deleted_by_id(index):
    assert index.add(made_up()).unchanged == 60
    changes = index.add([Document("d3", "entirely new words"), Document("fresh", "something fresh")])
    assert (changes.added, changes.updated) == (1, 1)
    assert index.count() == (61, 61)
    assert index.search("entirely", 1, "lexical")[0].id == "d3"
    assert index.delete(["d3", "never there"]) == ["d3"]
    assert index.search("entirely", 1, "lexical") == [] and index.count() == (60, 60)
    index.verify()


def test_a_document_that_becomes_shorter_leaves_no_chunk_behind(place, opened):
    encoder = WordEncoder()
    made = opened(Index.create(place, encoder, Chunking(16, 0)))
    made.add([Document("a", ". ".join(["Ten words that are in every sentence of this text"] * 30)), Document("b", "b")])
    chunks = made.count()[1]
    made.add([Document("a", "Short now.")])
    made.verify()
    assert chunks > 5 and made.count() == (2, 2)


def test_what_has_not_changed_is_not_encoded_again(index):
    index.encoder.asked.clear()
    index.add([*made_up(), Document("one more", "katar")])
    assert index.encoder.asked == ["katar"]


def test_each_document_is_found_once_by_its_best_chunk(place, opened):
    made = opened(Index.create(place, WordEncoder(), Chunking(8, 0)))
    many = "Katar loben stands here. " * 40
    made.add([Document("many", many), *(Document(f"d{n}", "Something else.") for n in range(6))])
    for mode in ("dense", "lexical", "hybrid"):
        ids = [hit.id for hit in made.search("katar loben something", 5, mode)]
        assert len(ids) == len(set(ids)) == 5


def test_another_encoder_is_refused(place, opened):
    opened(Index.create(place, WordEncoder()))
    for other in (WordEncoder(seed=1), WordEncoder(dim=16)):
        with pytest.raises(InputError, match="another embedding space"):
            Index.open(place, other)
    opened(Index.open(place, WordEncoder()))


def test_an_encoder_without_a_fingerprint_is_known_by_what_it_gives(tmp_path):
    Index.create(tmp_path / "index", WordEncoder(fingerprint=""))
    Index.open(tmp_path / "index", WordEncoder(fingerprint=""))
    with pytest.raises(InputError, match="another embedding space"):
        Index.open(tmp_path / "index", WordEncoder(seed=1, fingerprint=""))


def test_an_index_brings_its_encoder_along(place, opened, backbone):
    encoder = Encoder(backbone("tiny-llama"), EncoderSpec("tiny-llama", (Reading(2, "mean"),)))
    opened(Index.create(place, encoder)).add([Document("a", "A cat sleeps."), Document("b", "Stocks fell.")])
    again = opened(Index.open(place))
    assert again.encoder.fingerprint == encoder.fingerprint
    hit = again.search("A cat sleeps.", 1, "dense")[0]
    assert (hit.id, hit.text) == ("a", "A cat sleeps.") and hit.score == pytest.approx(1, abs=1e-5)


def test_ids_that_look_like_paths_or_commands_are_only_names(place, opened, tmp_path):
    before = sorted(path.name for path in tmp_path.iterdir())
    ids = ["../../etc/passwd", "/etc/passwd", "a'; DROP TABLE chunks; --", "#", "a#1", "a#1#0", "C:\\x", "%s", "id\nid"]
    made = opened(Index.create(place, WordEncoder()))
    made.add([Document(id, f"text {number}") for number, id in enumerate(ids)])
    made.verify()
    assert {hit.id for hit in made.search("text", 20, "lexical")} == set(ids)
    assert made.delete(["../../etc/passwd", "a'; DROP TABLE chunks; --"]) == ids[0::2][:2]
    assert made.count()[0] == len(ids) - 2
    assert {path.name for path in tmp_path.iterdir()} - set(before) <= {"index"}


def test_documents_that_cannot_be_indexed_are_named(place, opened):
    made = opened(Index.create(place, WordEncoder()))
    given = [
        Document("a", "first"),
        Document("a", "second"),
        Document("b", " \n"),
        Document("", "x"),
        Skipped("c", "why"),
    ]
    changes = made.add(given)
    assert changes.added == 1 and [one.name for one in changes.skipped] == ["a", "b", "", "c"]
    assert made.search("first", 1)[0].text == "first"


def test_an_empty_index_and_an_empty_query_find_nothing(place, opened):
    made = opened(Index.create(place, WordEncoder()))
    made.verify()
    for mode in ("dense", "lexical", "hybrid"):
        assert made.search("anything", 5, mode) == []
    made.add([Document("stop", "the of and")])
    assert made.search("  ", 5) == [] and made.search("the", 5, "lexical") == []
    assert [hit.id for hit in made.search("the", 5)] == ["stop"]
    made.add([Document("word", "a real word")])
    for mode in ("dense", "lexical", "hybrid"):
        assert made.search("  ", 5, mode) == []


def test_wrong_choices_are_refused(index, tmp_path):
    with pytest.raises(InputError, match="Did you mean hybrid"):
        index.search("x", mode="hybird")
    with pytest.raises(InputError, match="1 or more"):
        index.search("x", top=0)
    with pytest.raises(InputError, match="no index"):
        Index.open(tmp_path / "nothing")
    with pytest.raises(InputError, match="already"):
        Index.create(index.place, WordEncoder())


def test_a_folder_with_other_files_is_left_alone(tmp_path):
    (tmp_path / "precious.txt").write_text("mine", encoding="utf-8")
    with pytest.raises(InputError, match="not an index"):
        Index.create(tmp_path, WordEncoder())
    assert (tmp_path / "precious.txt").read_text(encoding="utf-8") == "mine"


def test_two_writers_at_once_are_refused(place, opened):
    first = opened(Index.create(place, WordEncoder()))
    second = opened(Index.open(place, WordEncoder()))
    with first.store.writing(), pytest.raises(StorageError, match="Another process"):
        second.add([Document("a", "text")])
    assert second.add([Document("a", "text")]).added == 1
    assert [hit.id for hit in first.search("text", 1)] == ["a"]  # and the first sees it


def test_verify_finds_what_is_wrong(place, opened):
    made = opened(Index.create(place, WordEncoder()))
    made.store.put([Chunk("a", 0, 2, "half a document", {}, "x")], WordEncoder().encode(["x"]), replace=False)
    with pytest.raises(StorageError, match="in part only"):
        made.verify()


def test_approximate_search_finds_nearly_the_same(place, opened, monkeypatch):
    made = opened(Index.create(place, WordEncoder(dim=64)))
    made.add(made_up(1500, 6))
    exact = {query: [hit.score for hit in made.search(query, 10, "dense")] for query in QUERIES}
    monkeypatch.setattr(ranking, "EXACT_BYTES", 0)
    made.add([Document("last", "katar loben")])  # puts the index of vectors in order
    for query, scores in exact.items():
        found = made.search(query, 10, "dense", {"year": ["0", "1", "2", "3", "4"]})
        assert len({hit.id for hit in found}) == 10
        assert np.mean([hit.score for hit in found]) >= 0.98 * np.mean(scores)
    assert made.search("katar loben", 1, "dense")[0].score == pytest.approx(1, abs=1e-3)


def test_a_damaged_header_or_table_is_one_sentence(tmp_path):
    Index.create(tmp_path / "index", WordEncoder())
    (tmp_path / "index" / "index.json").write_text("{", encoding="utf-8")
    with pytest.raises(StorageError, match="make the index again"):
        Index.open(tmp_path / "index", WordEncoder())
