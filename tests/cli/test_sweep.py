"""`d2v sweep`."""

from __future__ import annotations

import csv
import json
import re
from importlib import resources

import pytest
from scipy import stats

from decoder2vec.encoder import Encoder
from decoder2vec.errors import InputError
from toys.command import SCORED_ROWS, SMALL_SWEEP, cosine, d2v, one_line, tiny_encoder, write_rows


def test_sweep_writes_document_figure_and_best_encoder(pairs, tmp_path):
    test_rows = SCORED_ROWS[::-1][:5]
    test = write_rows(tmp_path / "held-out.tsv", test_rows)
    out = tmp_path / "out"
    result = d2v("sweep", "tiny-llama", "--data", pairs, "--out", out, "--test", test, *SMALL_SWEEP)
    assert result.exit_code == 0
    assert sorted(path.name for path in out.iterdir()) == ["encoder", "sweep.json", "sweep.png"]
    document = json.loads((out / "sweep.json").read_text(encoding="utf-8"))
    assert len(document["rows"]) == 6 * 2 * 2
    assert {row["attention"] for row in document["rows"]} == {"causal"}

    encoder = Encoder.from_pretrained(out / "encoder", device="cpu")
    for rows, scores in ((SCORED_ROWS, document["winner"]), (test_rows, document["test"])):
        cosines = [cosine(encoder.encode(a), encoder.encode(b)) for a, b, _ in rows]
        expected = 100 * stats.pearsonr(cosines, [score for *_, score in rows]).statistic
        assert scores["pearson"] == pytest.approx(expected, abs=0.3)
    assert re.search(rf"held-out, scored once: Spearman {document['test']['spearman']:.2f} \[", result.stdout)
    first = next(line for line in result.stdout.splitlines() if line.strip().startswith("plain"))
    assert f"{document['winner']['spearman']:.2f}" in first and document["winner"]["pooling"] in first
    assert "sweep.png" in result.stderr


def test_sweep_says_how_sure_the_choice_is(tmp_path):
    lines = (resources.files("decoder2vec") / "demo" / "pairs.tsv").read_text(encoding="utf-8").splitlines()[:61]
    (tmp_path / "dev.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    result = d2v("sweep", "tiny-llama", "--data", tmp_path / "dev.tsv", "--out", tmp_path / "out")
    document = json.loads((tmp_path / "out" / "sweep.json").read_text(encoding="utf-8"))
    selection, n_rows = document["selection"], len(document["rows"])
    assert document["plan"]["attentions"] == ["causal"] and n_rows == 6 * 2 * 2 * 2, "the quick set"
    low, high = selection["spearman_95"]
    assert low < document["winner"]["spearman"] < high and selection["cross_validated"] < document["winner"]["spearman"]
    assert result.stdout.splitlines()[-1] == (
        f"best score in [{low:.1f}, {high:.1f}] (95 %); cross-validated: "
        f"{selection['cross_validated']:.1f}; {len(selection['tied'])} of {n_rows} readings are tied with the best"
    )
    assert f"The best of {n_rows} readings on 60 pairs is largely luck" in result.stderr and "--full" in result.stderr
    d2v("report", tmp_path / "out", "--out", tmp_path / "page")
    page = (tmp_path / "page" / "index.html").read_text(encoding="utf-8")
    assert f"{len(selection['tied'])} of {n_rows} readings are tied with the best" in page
    assert "on 60 pairs is largely luck" in page


def test_sweep_takes_columns_limit_and_skips_bad_lines(tmp_path):
    data = tmp_path / "mine.csv"
    rows = [("a", "b", "gold"), *SCORED_ROWS[:3], ("x", "y", "unknown"), *SCORED_ROWS[3:]]
    with data.open("w", newline="", encoding="utf-8") as handle:
        csv.writer(handle).writerows(rows)
    args = ["--out", tmp_path / "out", *SMALL_SWEEP, "--columns", "a, b, gold", "--skip-bad", "--limit", 4]
    result = d2v("sweep", "tiny-llama", "--data", data, *args)
    assert result.exit_code == 0
    assert f"1 lines of {data} were left out" in result.stderr
    assert json.loads((tmp_path / "out" / "sweep.json").read_text())["data"]["pairs"] == 4


def test_sweep_reports_combinations_that_it_leaves_out(pairs, tmp_path):
    result = d2v("sweep", "tiny-gpt_neo", "--data", pairs, "--out", tmp_path / "out", "--templates", "plain")
    assert result.exit_code == 0
    assert "left out: gpt_neo cannot be read with bidirectional attention" in result.stderr


def test_sweep_tries_rerouting_and_saves_what_wins(pairs, tmp_path):
    args = ["--data", pairs, "--out", tmp_path / "out", *SMALL_SWEEP, "--reroute", "prepend,kv:2-3"]
    assert d2v("sweep", "tiny-llama", *args).exit_code == 0
    document = json.loads((tmp_path / "out" / "sweep.json").read_text())
    assert {row["attention"] for row in document["rows"]} == {"causal", "causal+prepend:2-2", "causal+kv:2-3"}
    rerouted = document["winner"]["attention"] != "causal"
    assert (tmp_path / "out" / "encoder" / "adapter" / "adapter.json").exists() == rerouted


def test_sweep_takes_one_template_with_commas_in_it(pairs, tmp_path):
    args = ["--data", pairs, "--out", tmp_path / "out", *SMALL_SWEEP, "--templates", "First, second: {text}, third"]
    assert d2v("sweep", "tiny-llama", *args).exit_code == 0
    document = json.loads((tmp_path / "out" / "sweep.json").read_text())
    assert document["plan"]["templates"] == ["First, second: {text}, third"]


def test_square_brackets_of_a_template_are_printed(pairs, tmp_path, empty_store):
    """Templates of instruction-tuned models have them; rich, which prints the tables, must not read them as markup."""
    template = "[INST] {text} [/INST]"
    args = ["--data", pairs, "--out", tmp_path / "out", *SMALL_SWEEP]
    result = d2v("sweep", "tiny-llama", *args, "--templates", template)
    assert result.exit_code == 0 and template in one_line(result.stdout)
    assert template in one_line(d2v("cache", "ls").stdout)
    assert template in one_line(d2v("eval", "tiny-llama", "--data", pairs, "--template", template).stdout)


def test_sweep_continues_if_latents_cannot_be_cached(pairs, tmp_path, monkeypatch, caplog):
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / "latents").write_text("a file instead of a folder")
    monkeypatch.setattr("decoder2vec.activations.store.cache_root", lambda: tmp_path / "cache")
    result = d2v("sweep", "tiny-llama", "--data", pairs, "--out", tmp_path / "out", *SMALL_SWEEP)
    assert result.exit_code == 0
    assert "going on without the cache" in caplog.text
    assert (tmp_path / "out" / "sweep.json").is_file()


def test_other_files_are_refused_before_the_work(pairs, tmp_path, monkeypatch):
    mine, file = tmp_path / "mine", tmp_path / "file"
    mine.mkdir()
    (mine / "notes.txt").write_text("mine", encoding="utf-8")
    file.write_text("x", encoding="utf-8")
    trained = tiny_encoder().save(tmp_path / "trained")
    monkeypatch.setattr("decoder2vec.report.sweep.load_pairs", lambda *_, **__: pytest.fail("read"))
    for out, reason in ((mine, "holds no sweep"), (trained, "holds no sweep"), (file, "is a file")):
        with pytest.raises(InputError, match=reason):
            d2v("sweep", "tiny-llama", "--data", pairs, "--out", out)
    (mine / "sweep.json").write_text("[]", encoding="utf-8")
    with pytest.raises(InputError, match="holds no sweep"):
        d2v("sweep", "tiny-llama", "--data", pairs, "--out", mine)
    (mine / "sweep.json").write_text('{"winner": {}, "rows": []}', encoding="utf-8")
    with pytest.raises(InputError, match=r"holds notes\.txt, which is no part of a sweep"):
        d2v("sweep", "tiny-llama", "--data", pairs, "--out", mine)
    assert sorted(path.name for path in mine.iterdir()) == ["notes.txt", "sweep.json"]


def test_sweep_is_replaced_by_the_next(pairs, tmp_path):
    for pooling in ("mean", "lasttoken"):
        options = ("--templates", "plain", "--poolings", pooling, "--attentions", "causal")
        assert d2v("sweep", "tiny-llama", "--data", pairs, "--out", tmp_path / "out", *options).exit_code == 0
        assert Encoder.load(tmp_path / "out" / "encoder").spec.readings[0].pooling == pooling


def test_quick_and_full_together_are_refused(pairs, tmp_path):
    with pytest.raises(InputError, match="give one of the two"):
        d2v("sweep", "tiny-llama", "--data", pairs, "--out", tmp_path / "out", "--quick", "--full")
