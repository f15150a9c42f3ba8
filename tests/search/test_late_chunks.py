"""An index whose chunks are encoded together: its vectors against `encode_chunks`, and what keeps both kinds apart."""

from __future__ import annotations

import json

import numpy as np
import pytest

from decoder2vec.encoder import Encoder
from decoder2vec.errors import InputError
from decoder2vec.search.chunks import Chunking
from decoder2vec.search.documents import Document
from decoder2vec.search.index import Index
from decoder2vec.search.migration import migrate
from toys.command import d2v
from toys.encoder import WordEncoder

LATE = Chunking(24, late=True)
LONG = "\n\n".join(f"Boat {n} left the harbour. It rained on day {n}, and the crew sang." for n in range(9))
DOCUMENTS = [
    Document("long", f"  {LONG} \n"),
    Document("short", "A kitten naps."),
    Document("more", LONG.replace("Boat", "Ship")),
]


@pytest.fixture(scope="module", autouse=True)
def small_models(one_thread):
    """Run on one thread: the models are too small for more."""


def tiny(name="tiny-llama", **settings):
    chosen = {"layer": 3, "pooling": "mean", "template": "plain", "device": "cpu", "dtype": "float32", **settings}
    return Encoder.from_pretrained(name, **chosen)


@pytest.fixture(scope="module")
def encoder():
    return tiny(attention="bidirectional", prompts={"document": "passage: "})


def vectors_of(index):
    """Chunk key -> vector."""
    return dict(zip(*index.store.read_vectors(), strict=True))


def chunk_texts(index, document):
    keys = [key for key in vectors_of(index) if key.startswith(f"{document}#")]
    chunks = sorted(index.store.read_chunks(keys).values(), key=lambda chunk: chunk.number)
    return [chunk.text for chunk in chunks]


def expected_vectors(encoder, texts, window=None):
    """The vectors of the chunks of one document: spans by searching each chunk's words in the text."""
    text, spans = "".join(texts), []
    for part in texts:
        begin = text.index(part.strip(), spans[-1][1] if spans else 0)
        spans.append((begin, begin + len(part.strip())))
    return encoder.encode_chunks(text, spans, prompt_name="document", window=window)


def close(actual, expected):
    assert actual.shape == expected.shape
    assert np.abs(actual - expected).max() <= 2e-5 * np.abs(expected).max()


def test_vectors_are_those_of_chunks_in_their_documents(location, encoder, closing):
    index = closing(Index.create(location, encoder, LATE))
    assert index.add(DOCUMENTS).added == 3
    stored = vectors_of(index)
    for document in DOCUMENTS:
        texts = chunk_texts(index, document.id)
        assert "".join(texts) == document.text.strip()
        assert len(texts) == 1 if document.id == "short" else len(texts) > 8
        close(np.stack([stored[f"{document.id}#{n}"] for n in range(len(texts))]), expected_vectors(encoder, texts))
    close(stored["short#0"], encoder.encode_document("A kitten naps."))
    alone = encoder.encode_document(chunk_texts(index, "long")[4].strip())
    assert np.abs(stored["long#4"] - alone).max() > 1e-2 * np.abs(alone).max()
    index.verify()
    hit = index.search("crew on day 4", top=1, mode="lexical")[0]
    assert hit.text == hit.text.strip()


def test_window_decides_how_much_is_read(tmp_path, encoder):
    narrow = Index.create(tmp_path / "narrow", encoder, Chunking(24, late=True, window=64))
    wide = Index.create(tmp_path / "wide", encoder, LATE)
    for index in (narrow, wide):
        index.add(DOCUMENTS)
    assert (narrow.header.chunking.window, wide.header.chunking.window) == (64, 256)
    texts = chunk_texts(narrow, "long")
    close(np.stack([vectors_of(narrow)[f"long#{n}"] for n in range(len(texts))]), expected_vectors(encoder, texts, 64))
    assert narrow.header.fingerprint != wide.header.fingerprint
    with pytest.raises(InputError, match="A window of 300 tokens is over the model's context of 256 tokens"):
        Index.create(tmp_path / "long", encoder, Chunking(late=True, window=300))


def test_changed_documents_are_encoded_again_and_a_reopened_index_goes_on(tmp_path, encoder):
    Index.create(tmp_path / "index", encoder, LATE).add(DOCUMENTS)
    index = Index.open(tmp_path / "index", encoder)
    assert index.header.chunking.late
    changed = Document("long", LONG.replace("sang", "slept"))
    changes = index.add([changed, *DOCUMENTS[1:]])
    assert (changes.updated, changes.unchanged, changes.added) == (1, 2, 0)
    fresh = Index.create(tmp_path / "fresh", encoder, LATE)
    fresh.add([changed, *DOCUMENTS[1:]])
    old, new = vectors_of(index), vectors_of(fresh)
    assert old.keys() == new.keys()
    for key, vector in new.items():
        close(old[key], vector)


def test_add_continues_after_a_stop(tmp_path, encoder):
    documents = [Document(str(number), LONG.replace("Boat", f"Raft {number}")) for number in range(12)]
    index = Index.create(tmp_path / "index", encoder, LATE)

    def stop(changes):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        index.add(documents, progress=stop)
    stored = index.count()[0]
    assert 0 < stored < 12
    changes = Index.open(tmp_path / "index", encoder).add(documents)
    assert (changes.unchanged, changes.added) == (stored, 12 - stored)
    close(vectors_of(index)["11#3"], expected_vectors(encoder, chunk_texts(index, "11"))[3])


# --- both kinds of vectors do not mix -------------------------------------------------------------------------------


def test_fingerprint_tells_how_chunks_were_encoded(tmp_path, encoder):
    early, late = Index.create(tmp_path / "a", encoder), Index.create(tmp_path / "b", encoder, LATE)
    assert early.stats().fingerprint == encoder.fingerprint
    assert late.stats().fingerprint not in ("", encoder.fingerprint)
    assert "late chunks" in repr(late)
    assert "late" not in repr(early)


def test_headers_of_earlier_versions_are_early(tmp_path, encoder):
    Index.create(tmp_path / "index", encoder)
    file = tmp_path / "index" / "index.json"
    header = json.loads(file.read_text())
    del header["chunking"]["late"], header["chunking"]["window"]
    file.write_text(json.dumps(header))
    assert Index.open(tmp_path / "index", encoder).header.chunking == Chunking().limited_to(encoder)


def test_vectors_that_documents_come_with_are_refused(tmp_path, encoder):
    index = Index.create(tmp_path / "index", encoder, LATE)
    document = Document("own", "A kitten naps.", vector=encoder.encode("A kitten naps."))
    with pytest.raises(InputError, match="comes with a vector, but the chunks of this index are encoded together"):
        index.add([document])


def test_encoders_without_token_states_are_refused(tmp_path):
    with pytest.raises(InputError, match="A WordEncoder cannot encode chunks together; use an Encoder of this package"):
        Index.create(tmp_path / "index", WordEncoder(), LATE)


@pytest.mark.parametrize("settings", [{"window": 64}, {"late": True, "window": -1}])
def test_a_window_needs_late(settings):
    with pytest.raises(InputError, match="A window is for chunks that are encoded together"):
        Chunking(**settings)


def test_command(tmp_path):
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "long.txt").write_text(LONG)
    options = ("--encoder", "tiny-llama", "--layer", "3", "--pooling", "mean", "--template", "plain", "--device", "cpu")
    late = ("index", tmp_path / "docs", "--out", tmp_path / "late")
    created = d2v(*late, "--late", "--chunk", "24", *options).stderr
    assert "added 1" in created
    assert "warning" not in created
    index = Index.open(tmp_path / "late", device="cpu", dtype="float32")
    assert index.header.chunking == Chunking(24, 0, True, 256)
    expected = expected_vectors(tiny(prompts={"document": ""}), chunk_texts(index, "long.txt"))
    close(vectors_of(index)["long.txt#0"], expected[0])
    assert "unchanged 1" in d2v(*late, "--late", *options).stderr  # the same command continues
    shown = d2v("index", "--out", tmp_path / "late", "--stats", "--json", tmp_path / "stats.json").output
    assert "up to 24 tokens, encoded together in windows of 256 (--late)" in shown
    stats = json.loads((tmp_path / "stats.json").read_text())["stats"]
    assert stats["chunking"] == {"size": 24, "overlap": 0, "late": True, "window": 256}
    with pytest.raises(
        InputError, match=r"were encoded together \(--late, --window 256\), and vectors of both kinds do"
    ):
        d2v(*late, "--early")
    with pytest.raises(InputError, match="With --late chunks do not overlap"):
        d2v("index", tmp_path / "docs", "--out", tmp_path / "new", "--late", "--overlap", "8", *options)
    last_token = (*options[:5], "lasttoken", *options[6:])
    created = d2v("index", tmp_path / "docs", "--out", tmp_path / "last", "--late", *last_token).stderr
    assert "warning: with causal attention and last token pooling, --early finds chunks better" in created
    early = ("index", tmp_path / "docs", "--out", tmp_path / "early")
    d2v(*early, *options)
    assert "tokens, each encoded alone (--early)" in d2v("index", "--out", tmp_path / "early", "--stats").output
    with pytest.raises(InputError, match=r"were encoded each alone \(--early\)"):
        d2v(*early, "--late")


# --- migration ------------------------------------------------------------------------------------------------------


def test_migration_encodes_the_documents_together_again(tmp_path, encoder):
    new = tiny("tiny-gpt2", max_length=128, prompts={"document": "text: "})
    Index.create(tmp_path / "index", encoder, LATE).add(DOCUMENTS)
    assert migrate(tmp_path / "index", new).is_switched
    index = Index.open(tmp_path / "index", new)
    assert index.header.chunking == Chunking(24, 0, True, 128)
    stored = vectors_of(index)
    for document in DOCUMENTS:
        texts = chunk_texts(index, document.id)
        close(np.stack([stored[f"{document.id}#{n}"] for n in range(len(texts))]), expected_vectors(new, texts))


def test_a_map_is_learned_from_chunks_in_their_documents(tmp_path, encoder):
    """From an encoder to the same weights with a head that reverses signs, a rotation keeps everything."""
    from decoder2vec.heads.standardise import AffineHead

    documents = [Document(str(number), LONG.replace("Boat", f"Raft {number}")) for number in range(30)]
    Index.create(tmp_path / "index", encoder, LATE).add(documents)
    sample = np.random.default_rng(0).normal(size=(100, 32)).astype(np.float32)
    head = AffineHead.fit("whiten", sample)
    new = Encoder(encoder.backbone, encoder.spec, head)
    result = migrate(tmp_path / "index", new, map="affine", sample=250, min_recall=0.8)
    assert result.is_switched
    index = Index.open(tmp_path / "index", new)
    true = expected_vectors(new, chunk_texts(index, "7"))
    mapped = np.stack([vectors_of(index)[f"7#{n}"] for n in range(len(true))])
    cosines = (true * mapped).sum(axis=1) / np.linalg.norm(true, axis=1) / np.linalg.norm(mapped, axis=1)
    assert cosines.min() > 0.9


def test_migration_to_an_encoder_without_token_states_is_refused(tmp_path, encoder):
    Index.create(tmp_path / "index", encoder, LATE).add(DOCUMENTS)
    with pytest.raises(InputError, match="cannot encode chunks together"):
        migrate(tmp_path / "index", WordEncoder())
