"""An index returns what was added: exactly, after changes, from both stores, and never for another encoder."""

from __future__ import annotations

import doctest
import json
import random

import bm25s
import numpy as np
import pytest
import Stemmer

from decoder2vec.config import EncoderSpec, Reading
from decoder2vec.encoder import Encoder
from decoder2vec.errors import EncoderError, InputError, StorageError, UnsupportedError
from decoder2vec.progress import Progress
from decoder2vec.search import index as index_module
from decoder2vec.search import ranking
from decoder2vec.search.chunks import Chunking
from decoder2vec.search.documents import Document, Skipped
from decoder2vec.search.index import Index
from decoder2vec.search.store import Chunk
from decoder2vec.text.files import ScoredPairs
from toys.command import with_lora
from toys.encoder import WordEncoder
from toys.progress import Recorder

WORDS = [f"{a}{b}" for a in ("ka", "lo", "mi", "nu", "re") for b in ("tar", "ben", "sol", "dim", "fex", "gul")]
QUERIES = ["katar loben", "misol", "refex nudim kagul", "lotar"]


def toy_documents(count=60, length=12, seed=0):
    rng = random.Random(seed)
    return [
        Document(
            f"d{n}", " ".join(rng.choices(WORDS, k=length)), {"kind": "even" if n % 2 == 0 else "odd", "year": n % 5}
        )
        for n in range(count)
    ]


@pytest.fixture
def index(location, closing):
    index = closing(Index.create(location, WordEncoder()))
    index.add(toy_documents())
    return index


def scores_of(documents):
    return [document.score for document in documents]


def cosines(query, documents):
    vectors = WordEncoder().encode([document.text for document in documents]).astype(np.float64)
    query_vector = WordEncoder().encode([query])[0].astype(np.float64)
    return vectors @ query_vector / np.linalg.norm(vectors, axis=1) / np.linalg.norm(query_vector)


@pytest.mark.parametrize("similarity", ["cosine", "dot", "euclidean", "manhattan"])
def test_dense_search_equals_numpy(tmp_path, similarity):
    encoder = WordEncoder()
    encoder.similarity_fn_name = similarity
    index = Index.create(tmp_path / "index", encoder)
    documents = toy_documents()
    index.add(documents)
    vectors = encoder.encode([document.text for document in documents]).astype(np.float64)
    for query in QUERIES:
        query_vector = encoder.encode([query])[0].astype(np.float64)
        expected = {
            "cosine": cosines(query, documents),
            "dot": vectors @ query_vector,
            "euclidean": -np.linalg.norm(vectors - query_vector, axis=1),
            "manhattan": -np.abs(vectors - query_vector).sum(axis=1),
        }[similarity]
        hits = index.search(query, 10, "dense")
        assert scores_of(hits) == pytest.approx(np.sort(expected)[::-1][:10], rel=1e-5)
        by_id = dict(zip((document.id for document in documents), expected, strict=True))
        assert all(by_id[hit.id] == pytest.approx(hit.score, rel=1e-5) for hit in hits)


def test_both_stores_find_the_exact_nearest(index):
    expected = np.sort(cosines(QUERIES[0], toy_documents()))[::-1][:10]
    assert scores_of(index.search(QUERIES[0], 10, "dense")) == pytest.approx(expected, rel=1e-5)


def test_queries_ranked_together_equal_each_alone(index):
    for mode in ("dense", "lexical"):  # hybrid ranks may differ: scores equal up to rounding can swap
        together = index.rank(QUERIES, 7, mode)
        for query, ranked in zip(QUERIES, together, strict=True):
            alone = index.rank([query], 7, mode)[0]
            assert scores_of(ranked) == pytest.approx(scores_of(alone), rel=1e-5)


def test_lexical_search_equals_bm25s(index):
    texts = [document.text for document in toy_documents()]
    settings = {"stopwords": "en", "stemmer": Stemmer.Stemmer("english"), "show_progress": False}
    direct = bm25s.BM25()
    direct.index(bm25s.tokenize(texts, **settings), show_progress=False)
    for query in QUERIES:
        words = bm25s.tokenize([query], return_ids=False, **settings)
        _, scores = direct.retrieve(words, k=10, show_progress=False)
        by_id = dict(zip((document.id for document in toy_documents()), direct.get_scores(words[0]), strict=True))
        hits = index.search(query, 10, "lexical")
        assert scores_of(hits) == pytest.approx([score for score in scores[0] if score > 0], rel=1e-5)
        assert all(by_id[hit.id] == pytest.approx(hit.score, rel=1e-5) for hit in hits)


def test_lexical_search_finds_inflected_words(index):
    index.add([Document("welder", "He welds hulls of ships, and has done so for years.")])
    assert [hit.id for hit in index.search("welding a hull", 5, "lexical")] == ["welder"]


def test_bm25_index_with_other_settings_is_rebuilt(index, closing):
    scores = scores_of(index.search(QUERIES[0], 5, "lexical"))
    file = index.store.local_folder / "lexical" / "keys.json"
    note = json.loads(file.read_text())
    file.write_text(json.dumps(note | {"bm25": {"stemmer": None}}))
    reopened = closing(Index.open(index.location, index.encoder))
    assert scores_of(reopened.search(QUERIES[0], 5, "lexical")) == pytest.approx(scores)
    assert json.loads(file.read_text()) == note


@pytest.mark.parametrize("mode", ["dense", "lexical", "hybrid"])
def test_filter_returns_the_best_matching_documents(index, mode):
    for filter, matches in (
        ({"kind": "odd"}, lambda metadata: metadata["kind"] == "odd"),
        ({"kind": "odd", "year": "3"}, lambda metadata: metadata["kind"] == "odd" and metadata["year"] == 3),
        ({"year": ["1", "2"]}, lambda metadata: metadata["year"] in (1, 2)),
        ({"kind": "odd", "year": 3}, lambda metadata: metadata["kind"] == "odd" and metadata["year"] == 3),
        ({"year": [1, 2]}, lambda metadata: metadata["year"] in (1, 2)),
    ):
        expected = [hit for hit in index.search(QUERIES[0], 60, mode) if matches(hit.metadata)]
        hits = index.search(QUERIES[0], 5, mode, filter)
        assert all(matches(hit.metadata) for hit in hits)
        if mode != "hybrid":  # ranks among fewer documents are other ranks
            assert scores_of(hits) == pytest.approx(scores_of(expected[:5]), rel=1e-5)
        assert len(hits) == min(5, len(expected))
    assert index.search(QUERIES[0], 5, mode, {"kind": "' OR 1=1 --"}) == []
    assert index.search(QUERIES[0], 5, mode, {"no such key": "x"}) == []


def test_filter_matches_members_of_lists(location, closing):
    index = closing(Index.create(location, WordEncoder()))
    index.add([Document("a", "one", {"tags": ["x", "it's"], "good": True}), Document("b", "two", {"tags": ["y"]})])
    assert [hit.id for hit in index.search("one", 5, "dense", {"tags": "it's"})] == ["a"]
    assert [hit.id for hit in index.search("one", 5, "dense", {"good": "true"})] == ["a"]
    assert [hit.id for hit in index.search("one", 5, "dense", {"good": True})] == ["a"]
    assert index.search("one", 5, "dense", {"good": False}) == index.search("one", 5, "dense", {"good": None}) == []


def test_documents_are_added_updated_and_deleted_by_id(index):
    assert index.add(toy_documents()).unchanged == 60
    changes = index.add([Document("d3", "entirely new words"), Document("fresh", "something fresh")])
    assert (changes.added, changes.updated) == (1, 1)
    assert index.count() == (61, 61)
    assert index.search("entirely", 1, "lexical")[0].id == "d3"
    assert index.delete(["d3", "never there"]) == ["d3"] and index.delete(7) == []
    assert index.search("entirely", 1, "lexical") == [] and index.count() == (60, 60)
    index.verify()


def test_arguments_that_look_alike_are_not_confused(index):
    assert index.delete("d3") == ["d3"]  # not "d" and "3"
    index.add([{"id": 3, "text": "a document that is called as a character of others"}])
    assert index.delete("d3") == [] and index.count() == (60, 60)
    assert index.delete([3]) == ["3"] and index.count() == (59, 59)
    for wrong in ({"id": "a", "text": "not two texts, the keys"}, Document("a", "one document")):
        with pytest.raises(InputError, match="put it into a list"):
            index.add(wrong)
    with pytest.raises(InputError, match="put it into a list"):
        index.rank("katar")
    with pytest.raises(InputError, match="rank"):
        index.search(["katar", "loben"])
    for no_reranker in ("tiny-llama", lambda query, texts: [0.0] * len(texts)):
        with pytest.raises(InputError, match="has no `rerank`"):
            index.search("katar", rerank=no_reranker)
    assert index.count() == (59, 59)


def test_add_accepts_paths_texts_and_dicts(location, closing, tmp_path):
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "a.txt").write_text("katar", encoding="utf-8")
    (tmp_path / "table.jsonl").write_text('{"id": "row", "title": "loben", "text": "misol"}\n', encoding="utf-8")
    index = closing(Index.create(location, WordEncoder()))
    assert index.add(tmp_path / "source").added == 1
    assert index.add(str(tmp_path / "table.jsonl"), columns=("title", "text")).added == 1
    assert index.add(str(tmp_path / "table.jsonl"), columns="title").updated == 1  # not t, i, t, l and e
    assert index.add(str(tmp_path / "table.jsonl"), columns=("title", "text")).updated == 1
    seen = []
    changes = index.add(
        ["a text", {"id": "dict", "text": "nudim", "year": 2025}],
        progress=lambda changes: seen.append(changes.processed),
    )
    assert (changes.added, changes.encoded_chunks) == (2, 2) and seen[-1] == 2
    assert index.add(["a text"]).unchanged == 1
    assert [hit.id for hit in index.search("loben", 1, "lexical")] == ["row"]
    assert [hit.text for hit in index.search("text", 1, "lexical")] == ["a text"]
    assert [hit.id for hit in index.search("nudim", 1, "lexical", {"year": "2025"})] == ["dict"]
    assert index.count() == (4, 4)


@pytest.mark.parametrize(
    ("at_once", "phases"), [(2**20, ["reading", "tokenising", "encoding", "saving"]), (0, ["encoding", "saving"])]
)
def test_large_sources_are_read_as_they_are_encoded(at_once, phases, tmp_path, monkeypatch):
    monkeypatch.setattr(index_module, "_READ_AT_ONCE", at_once)
    rows = "".join(json.dumps({"id": document.id, "text": document.text}) + "\n" for document in toy_documents())
    (tmp_path / "table.jsonl").write_text(rows, encoding="utf-8")
    index, recorder = Index.create(tmp_path / "idx", WordEncoder()), Recorder()
    with Progress(recorder):
        assert index.add(tmp_path / "table.jsonl").added == 60
    assert recorder.labels == phases


def test_shortened_document_leaves_no_old_chunk(location, closing):
    index = closing(Index.create(location, WordEncoder(), Chunking(16, 0)))
    long_text = ". ".join(["Ten words that are in every sentence of this text"] * 30)
    index.add([Document("a", long_text), Document("b", "b")])
    chunks = index.count()[1]
    index.add([Document("a", "Short now.")])
    index.verify()
    assert chunks > 5 and index.count() == (2, 2)


def test_unchanged_documents_are_not_encoded_again(index):
    index.encoder.encoded_texts.clear()
    index.add([*toy_documents(), Document("one more", "katar")])
    assert index.encoder.encoded_texts == ["katar"]


def test_each_document_is_found_once(location, closing):
    index = closing(Index.create(location, WordEncoder(), Chunking(8, 0)))
    many_chunks = "Katar loben stands here. " * 40
    index.add([Document("many", many_chunks), *(Document(f"d{n}", "Bread and butter.") for n in range(6))])
    for mode in ("dense", "lexical", "hybrid"):
        ids = [hit.id for hit in index.search("katar loben butter", 5, mode)]
        assert len(ids) == len(set(ids)) == 5


def test_encoder_of_another_space_is_refused(location, closing):
    closing(Index.create(location, WordEncoder()))
    for other in (WordEncoder(seed=1), WordEncoder(dim=16)):
        with pytest.raises(InputError, match="another embedding space"):
            Index.open(location, other)
    closing(Index.open(location, WordEncoder()))


def test_encoder_without_fingerprint_is_known_by_its_vectors(tmp_path):
    Index.create(tmp_path / "index", WordEncoder(fingerprint=""))
    Index.open(tmp_path / "index", WordEncoder(fingerprint=""))
    with pytest.raises(InputError, match="another embedding space"):
        Index.open(tmp_path / "index", WordEncoder(seed=1, fingerprint=""))


def test_unusable_encoders_are_refused(tmp_path):
    with pytest.raises(InputError, match="has no `encode`"):
        Index.create(tmp_path / "index", object())
    strange = WordEncoder()
    strange.similarity_fn_name = "tanimoto"
    with pytest.raises(UnsupportedError, match="'tanimoto'"):
        Index.create(tmp_path / "index", strange)
    broken = WordEncoder()
    broken.encode = lambda texts: np.full((len(texts), 32), np.nan)
    with pytest.raises(EncoderError, match="not finite"):
        Index.create(tmp_path / "index", broken).add(["text"])


def test_index_keeps_its_encoder(location, closing, backbone):
    encoder = Encoder(backbone("tiny-llama"), EncoderSpec("tiny-llama", (Reading(2, "mean"),)))
    closing(Index.create(location, encoder)).add([Document("a", "A cat sleeps."), Document("b", "Stocks fell.")])
    reopened = closing(Index.open(location))
    assert reopened.encoder.fingerprint == encoder.fingerprint
    hit = reopened.search("A cat sleeps.", 1, "dense")[0]
    assert (hit.id, hit.text) == ("a", "A cat sleeps.") and hit.score == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize("dtype", ["int8", "bfloat16", "float32"])
def test_lora_takes_no_more_space_than_in_the_folder_of_its_encoder(tmp_path, dtype, one_thread):
    """An encoder that ships in int8 took four times as much in every index."""
    plain = Encoder.from_pretrained("tiny-llama", device="cpu", dtype="float32")
    folder = with_lora(plain).save(tmp_path / "encoder", lora_dtype=dtype)
    encoder = Encoder.load(folder, device="cpu", dtype="float32")
    Index.create(tmp_path / "index", encoder).add(["a red boat", "a green tree"])
    files, copies = (
        {file.name: file.stat().st_size for file in (path / "adapter").iterdir()}
        for path in (folder, tmp_path / "index" / "encoder")
    )
    assert copies == files
    opened = Index.open(tmp_path / "index", device="cpu", dtype="float32")
    assert opened.encoder.fingerprint == encoder.fingerprint
    np.testing.assert_array_equal(opened.encoder.encode(["a red boat"]), encoder.encode(["a red boat"]))


def test_index_keeps_its_learned_reranker(index, closing):
    with pytest.raises(InputError, match="no reranker"):
        index.load_reranker()
    pairs = ScoredPairs("toy", ["katar", "loben"] * 4, ["katar", "misol"] * 4, [1.0, 0.0] * 4)
    learned = index.learn_reranker(pairs)
    reopened = closing(Index.open(index.location, WordEncoder()))
    hits = reopened.search(QUERIES[0], 5, rerank=reopened.load_reranker())
    assert scores_of(hits) == pytest.approx(learned.rerank(QUERIES[0], [hit.text for hit in hits]))


def test_ids_that_look_like_paths_or_sql_are_only_names(location, closing, tmp_path):
    before = sorted(path.name for path in tmp_path.iterdir())
    ids = ["../../etc/passwd", "/etc/passwd", "a'; DROP TABLE chunks; --", "#", "a#1", "a#1#0", "C:\\x", "%s", "id\nid"]
    index = closing(Index.create(location, WordEncoder()))
    index.add([Document(id, f"text {number}") for number, id in enumerate(ids)])
    index.verify()
    assert {hit.id for hit in index.search("text", 20, "lexical")} == set(ids)
    assert index.delete(["../../etc/passwd", "a'; DROP TABLE chunks; --"]) == ids[0::2][:2]
    assert index.count()[0] == len(ids) - 2
    assert {path.name for path in tmp_path.iterdir()} - set(before) <= {"index"}


def test_unusable_documents_are_skipped_with_their_names(location, closing):
    index = closing(Index.create(location, WordEncoder()))
    documents = [
        Document("a", "first"),
        Document("a", "second"),
        Document("b", " \n"),
        Document("", "x"),
        Skipped("c", "why"),
    ]
    changes = index.add(documents)
    assert changes.added == 1 and [skipped.name for skipped in changes.skipped] == ["a", "b", "", "c"]
    assert index.search("first", 1)[0].text == "first"


def test_empty_index_and_blank_query_find_nothing(location, closing):
    index = closing(Index.create(location, WordEncoder()))
    index.verify()
    for mode in ("dense", "lexical", "hybrid"):
        assert index.search("anything", 5, mode) == []
    index.add([Document("stop", "the of and")])
    assert index.search("  ", 5) == [] and index.search("the", 5, "lexical") == []
    assert [hit.id for hit in index.search("the", 5)] == ["stop"]
    index.add([Document("word", "a real word")])
    for mode in ("dense", "lexical", "hybrid"):
        assert index.search("  ", 5, mode) == []


def test_invalid_arguments_are_refused(index, tmp_path):
    with pytest.raises(InputError, match="Did you mean hybrid"):
        index.search("x", mode="hybird")
    with pytest.raises(InputError, match="1 or more"):
        index.search("x", top=0)
    with pytest.raises(InputError, match="no index"):
        Index.open(tmp_path / "nothing")
    with pytest.raises(InputError, match="already"):
        Index.create(index.location, WordEncoder())


def test_folder_with_other_files_is_left_alone(tmp_path):
    (tmp_path / "precious.txt").write_text("mine", encoding="utf-8")
    with pytest.raises(InputError, match=r"is not empty: it holds precious\.txt; choose"):
        Index.create(tmp_path, WordEncoder())
    assert (tmp_path / "precious.txt").read_text(encoding="utf-8") == "mine"


def test_second_writer_is_refused(location, closing):
    first = closing(Index.create(location, WordEncoder()))
    second = closing(Index.open(location, WordEncoder()))
    with first.store.write_lock(), pytest.raises(StorageError, match="Another process"):
        second.add([Document("a", "text")])
    assert second.add([Document("a", "text")]).added == 1
    assert [hit.id for hit in first.search("text", 1)] == ["a"]  # the first sees what the second wrote


def test_verify_finds_an_incomplete_document(location, closing):
    index = closing(Index.create(location, WordEncoder()))
    chunk = Chunk("a", 0, 2, "half a document", {}, "x")
    with index.store.write_lock():
        index.store.write_chunks([chunk], WordEncoder().encode(["x"]), replace=False)
    with pytest.raises(StorageError, match="only in part"):
        index.verify()


def test_approximate_search_finds_nearly_the_same(location, closing, monkeypatch):
    index = closing(Index.create(location, WordEncoder(dim=64)))
    index.add(toy_documents(1500, 6))
    exact = {query: scores_of(index.search(query, 10, "dense")) for query in QUERIES}
    monkeypatch.setattr(ranking, "MAX_EXACT_BYTES", 0)
    index.add([Document("last", "katar loben")])  # builds the approximate index
    for query, scores in exact.items():
        hits = index.search(query, 10, "dense", {"year": ["0", "1", "2", "3", "4"]})
        assert len({hit.id for hit in hits}) == 10
        assert np.mean(scores_of(hits)) >= 0.98 * np.mean(scores)
    assert index.search("katar loben", 1, "dense")[0].score == pytest.approx(1, abs=1e-3)


def test_damaged_header_is_a_storage_error(tmp_path):
    Index.create(tmp_path / "index", WordEncoder())
    (tmp_path / "index" / "index.json").write_text("{", encoding="utf-8")
    with pytest.raises(StorageError, match="create the index again"):
        Index.open(tmp_path / "index", WordEncoder())


def test_docstring_examples_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    results = doctest.testmod(index_module)
    assert results.attempted > 5 and results.failed == 0
