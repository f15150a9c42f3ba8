"""`d2v index`, `d2v search` and `d2v tune`, as a user types them."""

from __future__ import annotations

import json

import pytest

from decoder2vec.errors import InputError
from toys.command import d2v


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    home = tmp_path_factory.mktemp("library")
    (home / "cats.txt").write_text("The moon is full. A kitten naps on the red sofa.", encoding="utf-8")
    (home / "broken.pdf").write_bytes(b"no pdf")
    rows = [{"id": f"n{year}", "text": f"Stocks fell sharply in {year}.", "year": year} for year in (2023, 2024, 2025)]
    (home / "news.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return home


@pytest.fixture(scope="module")
def index(folder, own_cache):
    place = folder.parent / "made"
    done = d2v("index", folder, "--encoder", "tiny-llama", "--layer", "2", "--out", place)
    assert done.exit_code == 0
    assert "left out broken.pdf: it is damaged" in done.output
    assert "added 4, updated 0, unchanged 0, left out 1" in done.output
    assert "4 documents in 4 chunks, verified" in done.output
    return place


def found(*args):
    return [json.loads(line) for line in d2v("search", *args, "--json").output.splitlines() if line.startswith("{")]


def test_a_search_prints_the_document_with_its_best_sentence_marked(index):
    shown = d2v("search", index, "kitten on a sofa", "--mode", "lexical").output
    assert "cats.txt" in shown and "«A kitten naps on the red sofa.»" in shown and "stocks" not in shown.lower()


def test_a_query_of_nothing_is_refused(index):
    with pytest.raises(InputError, match="the query is empty"):
        d2v("search", index, "  ")


def test_filters_modes_and_top_are_heeded(index):
    assert [hit["id"] for hit in found(index, "stocks", "--filter", "year=2024")] == ["n2024"]
    both = found(index, "stocks", "--filter", "year=2024", "--filter", "year=2025")
    assert {hit["id"] for hit in both} == {"n2024", "n2025"}
    assert len(found(index, "anything", "--mode", "dense", "--top", "2")) == 2
    hit = found(index, "kitten", "--mode", "lexical")[0]
    assert hit["metadata"] == {"path": "cats.txt"}
    assert hit["snippet"]["text"][hit["snippet"]["start"] : hit["snippet"]["end"]] == "A kitten naps on the red sofa."


def test_a_reranker_may_have_the_last_word(index):
    scores = [hit["score"] for hit in found(index, "stocks", "--rerank", "tiny-llama")]
    assert len(scores) == 4 and scores == sorted(scores, reverse=True) and max(scores) <= 1


def test_running_it_again_costs_nothing_and_a_change_is_taken_over(index, folder):
    assert "added 0, updated 0, unchanged 4" in d2v("index", folder, "--out", index).output
    (folder / "more.md").write_text("A new page.", encoding="utf-8")
    assert "added 1, updated 0, unchanged 4" in d2v("index", folder, "--out", index).output
    assert (
        "deleted 1 documents; not there: nobody"
        in d2v("index", "--out", index, "--delete", "more.md", "--delete", "nobody").output
    )
    (folder / "more.md").unlink()
    assert "4 documents in 4 chunks, verified" in d2v("index", "--out", index).output


def test_tuning_prints_a_table_and_keeps_the_choice(index, tmp_path):
    rows = [{"_id": f"q{number}", "text": f"Stocks in {2023 + number % 3}"} for number in range(12)]
    (tmp_path / "queries.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    answers = "".join(f"q{number}\tn{2023 + number % 3}\t1\n" for number in range(12))
    (tmp_path / "qrels.tsv").write_text(f"query-id\tcorpus-id\tscore\n{answers}", encoding="utf-8")
    files = ("--queries", tmp_path / "queries.jsonl", "--qrels", tmp_path / "qrels.tsv", "--json", tmp_path / "t.json")
    done = d2v("tune", index, *files)
    assert done.exit_code == 0 and "lexical" in done.output and "now fuses by" in done.output
    best = json.loads((tmp_path / "t.json").read_text(encoding="utf-8"))["best"]
    kept = json.loads((index / "index.json").read_text(encoding="utf-8"))["fusion"]
    assert kept == best


def test_a_reranker_is_learned_from_pairs_and_kept_in_the_index(index, tmp_path):
    lines = "".join(f"Stocks fell {n}.\tStocks {('sea', 'fell')[n % 2]}.\t{n % 2}\n" for n in range(8))
    (tmp_path / "pairs.tsv").write_text(f"sentence1\tsentence2\tscore\n{lines}", encoding="utf-8")
    assert "learned a reranker from 8 pairs" in d2v("tune", index, "--pairs", tmp_path / "pairs.tsv").output
    scores = [hit["score"] for hit in found(index, "stocks", "--rerank", "own")]
    assert len(scores) == 4 and scores == sorted(scores, reverse=True) and 0 <= min(scores) <= max(scores) <= 1


def test_what_cannot_be_is_one_sentence(index, folder, tmp_path):
    empty = tmp_path / "empty"
    empty.mkdir()
    for args, message in (
        (("index", empty, "--encoder", "tiny-llama", "--out", tmp_path / "x"), "holds no file"),
        (("index", tmp_path / "missing", "--out", tmp_path / "x"), "does not exist"),
        (("index", "--out", tmp_path / "x"), "no index"),
        (("index", folder, "--out", index, "--encoder", "tiny-gpt2"), "another embedding space"),
        (("index", folder, "--out", index, "--chunk", "64"), "settled when it was made"),
        (("index", folder / "broken.pdf", "--encoder", "tiny-llama", "--out", tmp_path / "y"), "Nothing of"),
        (("search", tmp_path / "x", "q"), "no index"),
        (("search", index, "q", "--filter", "year"), "key=value"),
        (("tune", index), "--queries and --qrels"),
        (("search", "s3://bucket", "q"), "no place for an index"),
    ):
        with pytest.raises(InputError, match=message):
            d2v(*args)
    assert not (tmp_path / "x").exists()


def test_signs_a_terminal_would_obey_are_not_printed(tmp_path):
    (tmp_path / "a.txt").write_text("Evil \x1b[2J text.", encoding="utf-8")
    d2v("index", tmp_path / "a.txt", "--encoder", "tiny-llama", "--out", tmp_path / "index")
    assert "\x1b[2J" not in d2v("search", tmp_path / "index", "evil").output
