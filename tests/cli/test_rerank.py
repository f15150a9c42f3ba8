"""`d2v rerank`, `d2v search --rerank` with a reranker, and negatives drawn by `d2v data mine`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from decoder2vec.errors import DataFileError, InputError
from decoder2vec.evaluation.trec_files import read_run
from decoder2vec.reranker import Reranker
from toys.command import d2v

DOCUMENTS = {f"d{index}": f"a text about {topic}" for index, topic in enumerate(["cats", "dogs", "rain", "boats"] * 6)}
QUERIES = {f"q{index}": f"what about {topic}" for index, topic in enumerate(["cats", "dogs", "rain", "boats"])}


@pytest.fixture
def folder(tmp_path, monkeypatch, one_thread):
    """A retrieval task in BEIR's layout, and a run."""
    monkeypatch.chdir(tmp_path)
    data = tmp_path / "data"
    data.mkdir()
    documents = {key: f"{text} {key}" for key, text in DOCUMENTS.items()}
    for name, texts in (("corpus", documents), ("queries", QUERIES)):
        rows = ({"_id": key, "text": text} for key, text in texts.items())
        (data / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    lines = ["query-id\tcorpus-id\tscore", *(f"q{index}\td{index + 4}\t1" for index in range(4))]
    (data / "qrels-test.tsv").write_text("\n".join(lines) + "\n")
    run = [f"q{q} Q0 d{d} {d + 1} {9 - d} bm25" for q in range(4) for d in range(8)]
    Path("bm25.trec").write_text("\n".join(run) + "\n")
    return tmp_path


def test_file_without_documents_is_refused(folder):
    Path("docs.txt").write_text("\n \n")
    with pytest.raises(DataFileError, match=r"docs\.txt holds no text"):
        d2v("rerank", "tiny-llama", "--query", "rain", "--documents", "docs.txt")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--query rain --documents docs.txt --top 0", "--top is 0; print 1 document or more"),
        ("--query rain --documents docs.txt --top -2", "--top is -2; print 1 document or more"),
        ("--query rain --documents docs.txt --out new.trec", "--out belongs to --run"),
        ("--query rain --documents docs.txt --qrels data/qrels-test.tsv", "--qrels belongs to --run"),
        ("--query rain --documents docs.txt --data data", "--data belongs to --run"),
        ("--query rain --documents docs.txt --depth 100", "--depth belongs to --run"),
        ("--run bm25.trec --data data --documents docs.txt", "--documents belongs to --query"),
        ("--run bm25.trec --data data --top 3", "--top belongs to --query"),
        ("--run bm25.trec --data data --json", "--json belongs to --query"),
        ("--run bm25.trec --data data", "give --out, a file for the reranked run, or --qrels"),
    ],
)
def test_options_that_would_be_ignored_are_refused(folder, options, message):
    Path("docs.txt").write_text("a text about rain\na text about cats\n")
    with pytest.raises(InputError, match=message):
        d2v("rerank", "tiny-llama", *options.split())


def test_documents_of_a_query_are_sorted(folder):
    texts = list(DOCUMENTS.values())[:5]
    Path("docs.txt").write_text("\n".join(texts) + "\n")
    options = ["--query", "what about rain", "--documents", "docs.txt", "--device", "cpu"]
    result = d2v("rerank", "tiny-llama", *options, "--json")
    assert result.exit_code == 0, result.output
    hits = [json.loads(line) for line in result.stdout.splitlines()]
    reranker = Reranker.from_pretrained("tiny-llama", device="cpu")
    expected = reranker.rank("what about rain", texts)
    assert [hit["index"] for hit in hits] == [hit["corpus_id"] for hit in expected]
    plain = d2v("rerank", "tiny-llama", *options, "--method", "yes_no", "--top", "2")
    assert plain.exit_code == 0 and len(plain.stdout.splitlines()) == 2


def test_empty_documents_are_left_out_and_keep_their_numbers(folder):
    Path("docs.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in ("about cats", " ", "rain")))
    result = d2v("rerank", "tiny-llama", "--query", "cats", "--documents", "docs.jsonl", "--device", "cpu", "--json")
    assert result.exit_code == 0, result.output
    assert sorted(json.loads(line)["index"] for line in result.stdout.splitlines()) == [0, 2]
    assert "1 of 3 documents are empty" in result.output


def test_a_run_is_reranked_and_measured(folder):
    options = ["--run", "bm25.trec", "--data", "data", "--qrels", "data/qrels-test.tsv", "--out", "out.trec"]
    result = d2v("rerank", "tiny-mamba", *options, "--depth", "6", "--device", "cpu")
    assert result.exit_code == 0, result.output
    assert "nDCG@10" in result.output and "reranked" in result.output
    before, after = read_run(Path("bm25.trec")), read_run(Path("out.trec"))
    assert {query: set(scores) for query, scores in after.items()} == {query: set(s) for query, s in before.items()}
    reranker = Reranker.from_pretrained("tiny-mamba", device="cpu")
    assert after["q1"]["d2"] == pytest.approx(reranker.score(QUERIES["q1"], [f"{DOCUMENTS['d2']} d2"])[0], abs=1e-5)
    assert min(after["q1"], key=after["q1"].get) == "d7", "below the depth"


@pytest.mark.parametrize(
    "options",
    [
        [],
        ["--query", "x"],
        ["--query", " ", "--documents", "bm25.trec"],
        ["--run", "bm25.trec"],
        ["--run", "bm25.trec", "--query", "x"],
        ["--run", "bm25.trec", "--data", "nowhere", "--out", "new.trec"],
    ],
)
def test_wrong_options_are_one_sentence(folder, options):
    with pytest.raises((InputError, DataFileError)) as error:
        d2v("rerank", "tiny-llama", *options, "--device", "cpu")
    assert len(str(error.value).splitlines()) == 1


@pytest.mark.parametrize("source", ["bm25", "tiny-llama", "index", "corpus"])
def test_negatives_are_drawn_from_a_first_stage(folder, source):
    """Seeded, never a judged positive; a reranker can be trained on them."""
    options = ["--encoder", source, "--top", "12"]
    if source == "index":
        assert d2v("index", "data/corpus.jsonl", "--out", "idx", "--encoder", "tiny-llama").exit_code == 0
        options = ["--index", "idx"]
    if source == "corpus":
        Path("more.txt").write_text("".join(f"another text about rain {number}\n" for number in range(30)))
        options = ["--encoder", "bm25", "--corpus", "more.txt"]
    for out, seed in (("a.jsonl", "0"), ("b.jsonl", "0"), ("c.jsonl", "1")):
        result = d2v("data", "mine", "data", *options, "--count", "3", "--seed", seed, "--out", out)
        assert result.exit_code == 0, result.output
    assert Path("a.jsonl").read_text() == Path("b.jsonl").read_text() != Path("c.jsonl").read_text()
    rows = [json.loads(line) for line in Path("a.jsonl").read_text().splitlines()]
    assert len(rows) == 4
    for row in rows:
        assert row["positive"] not in row["negative"] and len(set(row["negative"])) == len(row["negative"]) <= 3
    assert any(len(row["negative"]) == 3 for row in rows)


def test_mining_needs_one_source(folder):
    with pytest.raises(InputError, match="Give --encoder"):
        d2v("data", "mine", "data", "--out", "a.jsonl")


def test_a_reranker_is_trained_from_files_and_searched_with(folder):
    rows = [
        {"anchor": f"what about {a} {i}", "positive": f"text on {a} {i}", "negative": [f"text on {b} {i}"]}
        for i in range(6)
        for a, b in (("cats", "dogs"), ("rain", "boats"), ("dogs", "rain"), ("boats", "cats"))
    ]
    Path("groups.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    options = ["--backbone", "tiny-llama", "--device", "cpu", "--set", "training.epochs=1", "--set", "rank=2"]
    trained = d2v("train", "--recipe", "rerank", "--data", "groups.jsonl", "--out", "rr", *options)
    assert trained.exit_code == 0, trained.output
    assert "wrote the reranker rr" in trained.output and "nDCG@10" in trained.output
    assert d2v("index", "data/corpus.jsonl", "--out", "idx", "--encoder", "tiny-llama").exit_code == 0
    for name in ("rr", "likelihood:tiny-gpt2"):
        result = d2v("search", "idx", "what about rain", "--rerank", name, "--device", "cpu", "--json")
        assert result.exit_code == 0, result.output
        hits = [json.loads(line) for line in result.stdout.splitlines()]
        reranker = Reranker.from_pretrained(name, device="cpu")
        scores = reranker.score("what about rain", [hit["text"] for hit in hits])
        assert [hit["score"] for hit in hits] == pytest.approx(sorted(scores.tolist(), reverse=True), abs=1e-4)
