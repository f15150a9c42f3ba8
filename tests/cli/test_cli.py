"""The program `d2v`: one-line errors of all commands, help, Ctrl-C, and `python -m decoder2vec`."""

from __future__ import annotations

import gc
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest
import torch
import typer
from rich.markup import render
from safetensors import safe_open

from decoder2vec.backbone.tiny import tiny_folder
from decoder2vec.cli import app, skip_last_collection
from decoder2vec.cli.options import open_encoder
from decoder2vec.errors import BackboneError
from decoder2vec.package import garbage_collection_paused
from toys.command import SCORED_ROWS, SMALL_SWEEP, d2v, tiny_encoder, write_rows

PROGRAM = "from decoder2vec.cli import main; main()"


# errors


@pytest.fixture(scope="module")
def bad_inputs(tmp_path_factory):
    """A folder with good pairs and every kind of broken input."""
    folder = tmp_path_factory.mktemp("mistakes")
    write_rows(folder / "good.tsv", SCORED_ROWS)
    (folder / "other.tsv").write_text("left\tright\tgold\na\tb\t1\n")
    write_rows(folder / "bad.tsv", [*SCORED_ROWS[:3], ("a", "b", "high")])
    (folder / "latin.tsv").write_bytes("sentence1\tsentence2\tscore\ncafé\tb\t1\n".encode("latin-1"))
    (folder / "empty.tsv").write_text("")
    (folder / "broken.jsonl").write_text('{"text": "a"}\n{"text": \n')
    (folder / "folder.tsv").mkdir()
    (folder / "no-model").mkdir()
    (folder / "no-model" / "readme.txt").write_text("hello")
    unknown_family = shutil.copytree(tiny_folder("tiny-llama"), folder / "unknown-family")
    config = json.loads((unknown_family / "config.json").read_text())
    (unknown_family / "config.json").write_text(json.dumps({**config, "model_type": "no_such_family"}))
    truncated = shutil.copytree(tiny_folder("tiny-llama"), folder / "truncated")
    weights = (truncated / "model.safetensors").read_bytes()
    (truncated / "model.safetensors").write_bytes(weights[: len(weights) // 2])
    no_tokenizer = shutil.copytree(tiny_folder("tiny-llama"), folder / "no-token-files")
    for file in no_tokenizer.glob("token*"):
        file.unlink()
    (folder / "incomplete-encoder").mkdir()
    (folder / "incomplete-encoder" / "encoder.json").write_text("{}")
    (folder / "truncated-encoder").mkdir()
    (folder / "truncated-encoder" / "encoder.json").write_text('{"spec": ')
    tiny_encoder(layer=2).save(folder / "encoder")
    return folder


SIMILARITY = ["similarity", "a", "b", "-e"]
SWEEP = ["sweep", "tiny-llama", "--out", "out", "--data"]
EVAL = ["eval", "tiny-llama", "--data"]
EMBED = ["embed", "-e", "tiny-llama", "--out"]

MISTAKES = {
    "model": ([*SIMILARITY, "tiny-lama"], "Unknown model 'tiny-lama'.*tiny-llama"),
    "model unlike any other": ([*SIMILARITY, "some/where else"], "Unknown model.*folder"),
    "model of doctor": (["doctor", "tiny-gtp2"], "tiny-gpt2"),
    "model of sweep": (["sweep", "smolm2-135m", "--out", "out", "--data", "good.tsv"], "smollm2-135m"),
    "built-in": (["pull", "smolm2-135m"], "Unknown built-in model.*smollm2-135m"),
    "licence": (["pull", "gemma3-270m"], "--accept-license"),
    "gguf file": ([*SIMILARITY, "absent.gguf"], "no GGUF file absent.gguf"),
    "folder without a model": ([*SIMILARITY, "no-model"], "no-model has no config.json"),
    "file as a model": ([*SIMILARITY, "good.tsv"], "good.tsv is a file"),
    "unknown family": ([*SIMILARITY, "unknown-family"], "no_such_family"),
    "truncated weights": ([*SIMILARITY, "truncated"], "truncated"),
    "no tokenizer": ([*SIMILARITY, "no-token-files"], "tokenizer"),
    "incomplete encoder": ([*SIMILARITY, "incomplete-encoder"], "incomplete-encoder"),
    "truncated encoder": ([*SIMILARITY, "truncated-encoder"], "truncated-encoder is not a saved encoder"),
    "layer of a saved encoder": ([*SIMILARITY, "encoder", "--layer", "1"], "leave out.* layer|leave out --layer"),
    "layer": ([*SIMILARITY, "tiny-llama", "--layer", "9"], r"layers 0 \(embeddings\) to 4.*9"),
    "negative layer": ([*SIMILARITY, "tiny-llama", "--layer=-6"], r"layers 0 \(embeddings\) to 4.*-6"),
    "pooling": ([*SIMILARITY, "tiny-llama", "--pooling", "lastoken"], "Unknown pooling 'lastoken'.*lasttoken"),
    "pooling unlike any other": ([*SIMILARITY, "tiny-llama", "--pooling", "xyz"], "cls, lasttoken, max, mean"),
    "template": ([*SIMILARITY, "tiny-llama", "--template", "promteol"], r"Unknown template.*prompteol.*\{text\}"),
    "attention": ([*SIMILARITY, "tiny-llama", "--attention", "bidirectonal"], "Unknown attention.*bidirectional"),
    "unsupported attention": ([*SIMILARITY, "tiny-mamba", "--attention", "bidirectional"], "mamba.*left to right"),
    "device": ([*SIMILARITY, "tiny-llama", "--device", "gpu"], "device.*gpu"),
    "missing device": ([*SIMILARITY, "tiny-llama", "--device", "cuda:7"], "cuda"),
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
    "empty file": ([*SWEEP, "empty.tsv"], "empty.tsv holds no usable pair"),
    "folder": ([*SWEEP, "folder.tsv"], "folder.tsv is a folder"),
    "limit of zero": ([*SWEEP, "good.tsv", "--limit", "0"], "limit|usable pair"),
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


@pytest.mark.parametrize("name", MISTAKES)
def test_mistake_is_one_line_with_a_remedy(name, bad_inputs, monkeypatch, run_main):
    if name == "missing device" and torch.cuda.device_count() > 7:
        pytest.skip("the device exists")
    args, expected = MISTAKES[name]
    monkeypatch.chdir(bad_inputs)
    code, _, err = run_main(*args)
    messages = [line for line in err.splitlines() if line.strip() and "━" not in line]  # a progress bar is no message
    assert code == 1
    assert re.search(expected, messages[-1])
    assert messages[-1].startswith("error: ")
    assert len(messages) == 1


def test_unknown_head_is_refused_before_texts_are_read(bad_inputs, monkeypatch, run_main, empty_store):
    monkeypatch.chdir(bad_inputs)
    code, _, err = run_main(*SWEEP, "good.tsv", "--heads", "none,standardize")
    assert code == 1
    assert re.search("error: Unknown head 'standardize'.*standardise", err.splitlines()[-1])
    assert not empty_store.exists()


@pytest.mark.parametrize(
    ("option", "value", "suggestion"),
    [("--templates", "plain,echoo", "echo"), ("--attentions", "causal,bidirectonal", "bidirectional")],
)
def test_unknown_second_name_is_refused_before_reading(
    option, value, suggestion, bad_inputs, monkeypatch, run_main, empty_store
):
    monkeypatch.chdir(bad_inputs)
    code, _, err = run_main(*SWEEP, "good.tsv", option, value)
    assert code == 1
    assert suggestion in err.splitlines()[-1]
    assert not empty_store.exists()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_read_only_cache_is_a_one_line_error(tmp_path, monkeypatch, run_main):
    (tmp_path / "cache").mkdir(mode=0o555)
    monkeypatch.setenv("D2V_CACHE", str(tmp_path / "cache"))
    code, _, err = run_main(*SIMILARITY, "tiny-llama")
    assert code == 1
    assert re.fullmatch(r"error: .*Permission denied.*cache.*\n", err)


def test_cache_below_a_file_is_a_one_line_error(tmp_path, monkeypatch, run_main):
    (tmp_path / "file").write_text("a file instead of a folder")
    monkeypatch.setenv("D2V_CACHE", str(tmp_path / "file" / "cache"))
    code, _, err = run_main(*SIMILARITY, "tiny-llama")
    assert code == 1
    assert re.fullmatch(r"error: .*[Nn]ot a directory.*\n", err)


def test_unknown_option_is_a_usage_error():
    result = d2v("similarity", "a", "b", "--layers", "3")
    assert result.exit_code == 2
    assert "--layer" in result.stderr


# help


def commands(group, name="d2v"):
    """(name, command) of a command and of all commands below it."""
    yield name, group
    for child, command in getattr(group, "commands", {}).items():
        yield from commands(command, f"{name} {child}")


def test_help_texts_have_no_markup():
    """Rich would read a word in square brackets as markup and leave it out."""
    for name, command in commands(typer.main.get_command(app)):
        texts = [command.help, *(getattr(parameter, "help", None) for parameter in command.params)]
        for text in filter(None, texts):
            assert render(text).plain == text, name


def start(code, *args, **env):
    """Start Python code in a process."""
    return subprocess.Popen(
        [sys.executable, "-c", code, *map(str, args)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", **env},
    )


def cpu_seconds_of_children():
    """CPU time, not wall-clock time: other programs may run at the same time."""
    return sum(os.times()[2:4])


def start_and_list_heavy_imports(option):
    """Start `d2v` with an option; its last line is the exit code and the heavy packages that it imported."""
    code = (
        "import sys\n"
        "from decoder2vec.cli import main\n"
        "try:\n    main()\nexcept SystemExit as left:\n"
        "    print(left.code, sorted({'torch', 'transformers', 'numpy', 'scipy', 'matplotlib'} & set(sys.modules)))"
    )
    return start(code, option)


def test_help_is_fast_and_imports_nothing_heavy():
    times = []
    for _ in range(3):
        before = cpu_seconds_of_children()
        out, _ = start_and_list_heavy_imports("--help").communicate(timeout=60)
        times.append(cpu_seconds_of_children() - before)
    assert out.splitlines()[-1] == "0 []"
    for command in ("pull", "doctor", "sweep", "similarity", "embed", "demo", "eval", "cache"):
        assert re.search(rf"\b{command}\b", out)
    assert min(times) < 1.5


def test_version_imports_nothing_heavy():
    out, _ = start_and_list_heavy_imports("--version").communicate(timeout=60)
    assert out.splitlines()[-1] == "0 []"


@pytest.mark.parametrize("encoder", ["tiny-llama", "no-such-model"])
def test_garbage_is_collected_again_once_a_model_is_loaded(encoder):
    with garbage_collection_paused():
        with suppress(BackboneError):
            open_encoder(encoder)
        assert not gc.isenabled()
    assert gc.isenabled()


# as a process


@pytest.mark.parametrize("name", ["missing column", "model"])
def test_program_prints_no_traceback(name, bad_inputs, quick_python, monkeypatch):
    args, expected = MISTAKES[name]
    monkeypatch.chdir(bad_inputs)
    done = quick_python.run(PROGRAM, *args)
    assert done.returncode == 1
    assert done.stdout == ""
    assert re.fullmatch(rf"error: .*{expected}.*\n", done.stderr)


@pytest.mark.skipif(os.name == "nt", reason="signals")
def test_finished_work_is_reused_after_ctrl_c(tmp_path, own_cache, monkeypatch, run_main, quick_python):
    rows = [(f"left {i}", f"right {i}", (i * 37 % 100) / 20) for i in range(350)]
    data = write_rows(tmp_path / "pairs.tsv", rows)
    cache = tmp_path / "cache"
    folder = tiny_folder("tiny-llama")
    shutil.copytree(folder, cache / "models" / folder.name)
    # windows of 256 texts, and a pause after each for the signal to arrive in
    slow_store = (
        "import signal, time\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "import decoder2vec.activations.extract as extract\n"
        "extract._WINDOW_BYTES, add = 1, extract.Store.add\n"
        "extract.Store.add = lambda *args: (add(*args), time.sleep(5))\n"
    )
    args = ["sweep", "tiny-llama", "--data", data, "--out", tmp_path / "out", *SMALL_SWEEP, "--device", "cpu"]
    process = quick_python.start(slow_store + PROGRAM, *args, env={**os.environ, "D2V_CACHE": str(cache)})
    deadline = time.monotonic() + 60
    segments = []
    while not segments and time.monotonic() < deadline:
        time.sleep(0.05)
        segments = list(cache.glob("latents/*/seg-*"))
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert len(segments) == 1
    assert not (tmp_path / "out").exists()
    assert "Traceback" not in err

    before = {file: file.stat().st_mtime_ns for file in segments}
    monkeypatch.setenv("D2V_CACHE", str(cache))
    code, out, _ = run_main(*args)
    assert code == 0 and "best first" in out
    assert {file: file.stat().st_mtime_ns for file in segments} == before
    sizes = sorted(count_keys(file) for file in cache.glob("latents/*/seg-*"))
    assert sizes == [256, 700 - 256]  # no text was read twice
    assert err.splitlines()[-1] == "interrupted; finished work is kept and reused by the next run"


def count_keys(file: Path) -> int:
    """The number of texts in a segment, all different."""
    with safe_open(file, "numpy") as segment:
        keys = segment.get_tensor("keys")
    assert len({key.tobytes() for key in keys}) == len(keys)
    return len(keys)


def test_package_can_be_run_as_a_module(quick_python):
    as_module = "import runpy; runpy.run_module('decoder2vec', run_name='__main__', alter_sys=True)"
    process = quick_python.run(as_module, "train", "nowhere.toml")
    assert (process.returncode, process.stdout) == (1, "")
    assert process.stderr.startswith("error: Cannot read the plan nowhere") and process.stderr.count("\n") == 1


@pytest.mark.parametrize("has_triton", [False, True])
def test_objects_are_left_at_exit_unless_triton_would_list_them(has_triton, monkeypatch):
    calls = []
    monkeypatch.setattr(gc, "freeze", lambda: calls.append("freeze"))
    monkeypatch.delitem(sys.modules, "triton", raising=False)
    if has_triton:
        monkeypatch.setitem(sys.modules, "triton", object())
    skip_last_collection()
    assert calls == ([] if has_triton else ["freeze"])
