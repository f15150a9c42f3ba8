"""`d2v index` and `d2v search`."""

from __future__ import annotations

import json
import sys

import pytest

from decoder2vec.errors import DataFileError, InputError
from decoder2vec.search.index import Index
from toys.command import d2v


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("library")
    (folder / "cats.txt").write_text("The moon is full. A kitten naps on the red sofa.", encoding="utf-8")
    (folder / "broken.pdf").write_bytes(b"no pdf")
    rows = [{"id": f"n{year}", "text": f"Stocks fell sharply in {year}.", "year": year} for year in (2023, 2024, 2025)]
    (folder / "news.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def index(folder, own_cache):
    location = folder.parent / "index"
    result = d2v("index", folder, "--encoder", "tiny-llama", "--layer", "2", "--out", location)
    assert result.exit_code == 0
    assert "left out broken.pdf: it is damaged" in result.output
    assert "added 4, updated 0, unchanged 0, left out 1" in result.output
    assert "4 documents in 4 chunks, verified" in result.output
    return location


def search_json(*args):
    return [json.loads(line) for line in d2v("search", *args, "--json").output.splitlines() if line.startswith("{")]


def test_search_prints_documents_with_the_best_sentence_marked(index):
    output = d2v("search", index, "kitten on a sofa", "--mode", "lexical").output
    assert "cats.txt" in output and "«A kitten naps on the red sofa.»" in output and "stocks" not in output.lower()


def test_blank_query_is_refused(index):
    with pytest.raises(InputError, match="query is empty"):
        d2v("search", index, "  ")


def test_filter_mode_and_top_are_used(index):
    assert [hit["id"] for hit in search_json(index, "stocks", "--filter", "year=2024")] == ["n2024"]
    hits = search_json(index, "stocks", "--filter", "year=2024", "--filter", "year=2025")
    assert {hit["id"] for hit in hits} == {"n2024", "n2025"}
    assert len(search_json(index, "anything", "--mode", "dense", "--top", "2")) == 2
    hit = search_json(index, "kitten", "--mode", "lexical")[0]
    assert hit["metadata"] == {"path": "cats.txt"}
    assert hit["snippet"]["text"][hit["snippet"]["start"] : hit["snippet"]["end"]] == "A kitten naps on the red sofa."


def test_approximate_index_is_built_shown_and_removed(index, tmp_path):
    result = d2v("index", "--out", index, "--ann", "hnsw", "--stats", "--json", tmp_path / "stats.json")
    assert "4 documents in 4 chunks, verified" in result.output and "approximate index  hnsw" in result.output
    stats = json.loads((tmp_path / "stats.json").read_text(encoding="utf-8"))["stats"]
    assert (stats["documents"], stats["chunks"], stats["ann"], stats["encoder"]) == (4, 4, "hnsw", "tiny-llama")
    for options in ((), ("--exact",)):
        hits = search_json(index, "stocks", "--mode", "dense", "--where", "year=2024", *options)
        assert [hit["id"] for hit in hits] == ["n2024"]
    with pytest.raises(InputError, match="Did you mean hnsw"):
        d2v("index", "--out", index, "--ann", "hsnw")
    output = d2v("index", "--out", index, "--ann", "auto", "--stats").output
    assert "approximate index  none; search is exact" in output


@pytest.mark.parametrize(
    ("options", "for_queries"), [(["--stats"], True), (["--delete", "nothing"], True), (["--tune", "--reset"], False)]
)
def test_encoder_starts_at_once_where_nothing_is_encoded(index, monkeypatch, options, for_queries):
    original, opened = Index.open, []
    monkeypatch.setattr(Index, "open", lambda *args, **how: opened.append(how["for_queries"]) or original(*args, **how))
    assert d2v("index", "--out", index, *options).exit_code == 0
    assert opened == [for_queries]


def test_folder_of_other_files_is_refused_before_the_model_is_loaded(folder, monkeypatch):
    command = sys.modules["decoder2vec.cli.index"]  # `decoder2vec.cli.index` is the function
    monkeypatch.setattr(command, "open_on_engine", lambda *args, **options: pytest.fail("it is loaded"))
    with pytest.raises(InputError, match="is not empty"):
        d2v("index", folder, "--out", folder)


def test_reranker_orders_the_documents(index):
    scores = [hit["score"] for hit in search_json(index, "stocks", "--rerank", "tiny-llama")]
    assert len(scores) == 4 and scores == sorted(scores, reverse=True) and max(scores) <= 1


def test_index_is_updated_by_the_same_command(index, folder):
    assert "added 0, updated 0, unchanged 4" in d2v("index", folder, "--out", index).output
    (folder / "more.md").write_text("A new page.", encoding="utf-8")
    assert "added 1, updated 0, unchanged 4" in d2v("index", folder, "--out", index).output
    result = d2v("index", "--out", index, "--delete", "more.md", "--delete", "nobody")
    assert "deleted 1 documents; not in the index: nobody" in result.output
    assert "4 documents in 4 chunks, verified" in result.output
    assert "added 1, updated 0, unchanged 4, left out 1" in d2v("index", folder, "--out", index).output
    (folder / "more.md").rename(folder / "again.md")
    assert "unchanged 4, moved 1, left out 1" in d2v("index", folder, "--out", index).output
    (folder / "again.md").unlink()
    assert "added 0, updated 0, unchanged 4, removed 1, left out 1" in d2v("index", folder, "--out", index).output
    assert "4 documents in 4 chunks, verified" in d2v("index", "--out", index, "--verify").output


def test_tune_prints_before_and_after_and_can_be_undone(index, tmp_path):
    def files(count):
        rows = [{"_id": f"q{number}", "text": f"Stocks in {2023 + number % 3}"} for number in range(count)]
        (tmp_path / "queries.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        qrels = "".join(f"q{number}\tn{2023 + number % 3}\t1\n" for number in range(count))
        (tmp_path / "qrels.tsv").write_text(f"query-id\tcorpus-id\tscore\n{qrels}", encoding="utf-8")
        return ("--queries", tmp_path / "queries.jsonl", "--qrels", tmp_path / "qrels.tsv")

    def stored():
        return json.loads((index / "index.json").read_text(encoding="utf-8"))["fusion"]

    new = stored()
    with pytest.raises(InputError, match="there are 12"):
        d2v("index", "--out", index, "--tune", *files(12))
    assert stored() == new
    result = d2v("index", "--out", index, "--tune", *files(24), "--json", tmp_path / "t.json")
    assert result.exit_code == 0 and "lexical" in result.output and "verified" not in result.output
    assert "nDCG@10 before" in result.output and "95 % interval" in result.output
    data = json.loads((tmp_path / "t.json").read_text(encoding="utf-8"))
    assert stored() == data["best"] and data["queries"] == 24
    ways = ["dense", "lexical", "calibrated", "rrf", "weighted", "minmax", "zscore"]
    assert [score["way"] for score in data["scores"]] == ways
    assert "as in a new index" in d2v("index", "--out", index, "--tune", "--reset").output
    assert stored() == new


def test_hybrid_scores_are_means_of_their_parts(index):
    hits = search_json(index, "stocks fell in 2024")
    assert hits[0]["id"] == "n2024" and hits[0]["lexical"] > 0.9
    for hit in hits:
        assert 0 <= hit["score"] <= 1
        assert hit["score"] == pytest.approx(0.6 * hit["dense"] + 0.4 * hit["lexical"])
    assert "dense" not in search_json(index, "stocks", "--mode", "lexical")[0]


@pytest.mark.parametrize("columns", ["sentence1,sentence2,score", "a,b,gold"])
def test_reranker_is_learned_from_pairs_and_kept(index, tmp_path, columns):
    lines = "".join(f"Stocks fell {n}.\tStocks {('sea', 'fell')[n % 2]}.\t{n % 2}\n" for n in range(8))
    (tmp_path / "pairs.tsv").write_text(columns.replace(",", "\t") + f"\n{lines}", encoding="utf-8")
    named = ("--pair-columns", columns) if columns == "a,b,gold" else ()
    result = d2v("index", "--out", index, "--tune", "--pairs", tmp_path / "pairs.tsv", *named)
    assert "learned a reranker from 8 pairs" in result.output
    scores = [hit["score"] for hit in search_json(index, "stocks", "--rerank", "learned")]
    assert scores == [hit["score"] for hit in search_json(index, "stocks", "--rerank", "own")], "its earlier name"
    assert len(scores) == 4 and scores == sorted(scores, reverse=True) and 0 <= min(scores) <= max(scores) <= 1


def test_mistakes_are_one_sentence_and_write_nothing(index, folder, tmp_path):
    empty = tmp_path / "empty"
    empty.mkdir()
    scores = tmp_path / "scores.tsv"
    scores.write_text("a\tb\tc\nx\ty\t1\n", encoding="utf-8")
    new, queries = tmp_path / "x", ("--queries", folder / "news.jsonl")
    for args, error, message in (
        (("index", empty, "--encoder", "tiny-llama", "--out", new), DataFileError, "holds no file"),
        (("index", tmp_path / "missing", "--out", new), DataFileError, "does not exist"),
        (("index", "--out", index, "--tune", "--pairs", scores), DataFileError, "Name yours with --pair-columns"),
        (("index", "--out", index), InputError, "Give a folder .* --delete, --ann, --tune, --verify or --stats"),
        (("index", "--out", new), InputError, "Give a folder or file"),
        (("index", "--out", new, "--verify"), InputError, "no index"),
        (("index", folder, "--out", index, "--encoder", "tiny-gpt2"), InputError, "another embedding space"),
        (("index", folder, "--out", index, "--chunk", "64"), InputError, "set when it is created"),
        (("index", folder, "--encoder", "tiny-llama", "--out", new, "--chunk", "0"), InputError, "8 tokens or more"),
        (("index", "--out", index, "--tune"), InputError, "--queries and --qrels"),
        (("index", "--out", index, "--tune", *queries), InputError, "--queries and --qrels"),
        (("index", folder, "--out", index, *queries), InputError, "belong to --tune"),
        (("index", "--out", index, "--verify", "--json", tmp_path / "x.json"), InputError, "nothing to write"),
        (("index", folder, "--out", index, "--reset"), InputError, "belong to --tune"),
        (("index", "--out", index, "--tune", "--reset", *queries), InputError, "undoes tuning"),
        (("search", new, "q"), InputError, "no index"),
        (("search", index, "q", "--filter", "year"), InputError, "key=value"),
        (("search", "s3://bucket", "q"), InputError, "cannot hold an index"),
    ):
        with pytest.raises(error, match=message):
            d2v(*args)
    assert not new.exists()
    with pytest.raises(DataFileError, match="No document of"):
        d2v("index", folder / "broken.pdf", "--encoder", "tiny-llama", "--out", tmp_path / "y")


def test_folder_of_real_files_is_indexed_and_reported(tmp_path):
    folder = tmp_path / "real"
    folder.mkdir()
    page = "# All about **lamps**\n\nSee [the shop](http://a.b). A lamp is `bright` at night."
    (folder / "lamps.md").write_text(page, encoding="utf-8")
    (folder / "goods.csv").write_bytes("nr;title;remark\n1;Sofa;Naïve café sofa\n2;Bed;A bed".encode("cp1252"))
    for number in range(12):
        (folder / f"{number:02}.png").write_bytes(b"")
    options = ("--encoder", "tiny-llama", "--out", tmp_path / "index", "--json", tmp_path / "index.json")
    output = d2v("index", folder, *options).output
    assert "goods.csv has no column text; its texts are joined from title, remark" in " ".join(output.split())
    assert "left out 09.png: files of the kind .png are not read" in output and "10.png" not in output
    assert "... and 2 more" in output and "added 3, updated 0, unchanged 0, left out 12" in output
    data = json.loads((tmp_path / "index.json").read_text(encoding="utf-8"))
    assert data["added"] == 3 and data["skipped"][11]["name"] == "11.png"
    output = d2v("search", tmp_path / "index", "bright lamp at night", "--mode", "lexical").output
    assert "All about lamps · lamps.md\n          See the shop. «A lamp is bright at night.»\n" in output


def test_control_characters_are_not_printed(tmp_path):
    (tmp_path / "a.txt").write_text("Evil \x1b[2J text.", encoding="utf-8")
    d2v("index", tmp_path / "a.txt", "--encoder", "tiny-llama", "--out", tmp_path / "index")
    assert "\x1b[2J" not in d2v("search", tmp_path / "index", "evil").output


def test_all_that_was_left_out_is_written_even_if_nothing_is_left(tmp_path):
    (tmp_path / "papers").mkdir()
    (tmp_path / "papers" / "picture.bin").write_bytes(b"\x00\x01")
    with pytest.raises(DataFileError, match=r"No document of .* could be indexed"):
        d2v("index", tmp_path / "papers", "-e", "tiny-llama", "--out", tmp_path / "i", "--json", tmp_path / "out.json")
    assert [entry["name"] for entry in json.loads((tmp_path / "out.json").read_text())["skipped"]] == ["picture.bin"]


EMPTY_FILES = {
    "empty.txt": "",
    "blank.txt": " \n",
    "blank.jsonl": '{"id": "a", "text": ""}\n',
    "header.csv": "id,text\n",
}


@pytest.mark.parametrize("name", EMPTY_FILES)
def test_empty_text_is_a_warning_as_of_embed(tmp_path, name):
    """Both commands end with 0 and the same warning; an index leaves out what a row of vectors stands for."""
    (tmp_path / name).write_text(EMPTY_FILES[name], encoding="utf-8")
    embedded = d2v("embed", tmp_path / name, "--encoder", "tiny-llama", "--out", tmp_path / "v.npy")
    options = ("--encoder", "tiny-llama", "--out", tmp_path / "index", "--json", tmp_path / "index.json")
    indexed = d2v("index", tmp_path / name, *options)
    assert (embedded.exit_code, indexed.exit_code) == (0, 0)
    assert "warning: " in embedded.stderr and f"warning: {tmp_path / name} holds no text" in indexed.stderr
    assert "0 documents in 0 chunks, verified" in indexed.stderr
    assert len(json.loads((tmp_path / "index.json").read_text(encoding="utf-8"))["skipped"]) == 1
    assert d2v("search", tmp_path / "index", "bread").exit_code == 0


def test_rows_without_text_are_named_and_the_others_indexed(tmp_path):
    (tmp_path / "rows.csv").write_text('text\nA lamp.\n" "\nA sofa.\n', encoding="utf-8")
    result = d2v("index", tmp_path / "rows.csv", "--encoder", "tiny-llama", "--out", tmp_path / "index")
    assert "left out rows.csv:3: it holds no text" in result.stderr
    assert "added 2, updated 0, unchanged 0, left out 1" in result.stderr


def test_only_a_whole_title_is_cut_off(tmp_path):
    rows = [{"id": "a", "title": "Rain", "text": "Rainfall is rare. Cats sleep a lot."}]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    d2v("index", tmp_path / "rows.jsonl", "-e", "tiny-llama", "--out", tmp_path / "i")
    assert "Rainfall is rare." in d2v("search", tmp_path / "i", "cats sleep", "--mode", "lexical").output
