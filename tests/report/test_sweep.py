"""`sweep` and its files: the winning encoder, sweep.json, sweep.png, and the score on test pairs."""

from __future__ import annotations

import json
import struct
from collections import Counter
from dataclasses import replace
from importlib.metadata import version

import numpy as np
import pytest

from decoder2vec.analysis.sweep import SweepPlan, SweepRow, run_sweep
from decoder2vec.backbone.backbone import Backbone
from decoder2vec.encoder import Encoder
from decoder2vec.errors import InputError
from decoder2vec.progress import Progress
from decoder2vec.report import sweep as sweep_module
from decoder2vec.report.figures import COLOURS
from decoder2vec.report.sweep import sweep, write_sweep
from decoder2vec.report.sweep_figures import describe_sweep_row, draw_sweep
from decoder2vec.text.files import ScoredPairs
from toys.command import d2v
from toys.docstrings import run_examples
from toys.progress import Recorder
from toys.sweeps import MANY, PAIRS, SMALL, TEST, scipy_correlations, unique_texts

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def fresh_store(tmp_path, monkeypatch):
    """An empty latents store; tiny models are shared by all tests."""
    monkeypatch.setattr("decoder2vec.activations.store.cache_root", lambda: tmp_path / "cache")


@pytest.fixture(scope="module")
def model():
    """A backbone that is not shared, since a sweep switches its attention."""
    return Backbone.load("tiny-llama", device="cpu", dtype="float32")


def write_pairs(file, pairs):
    rows = zip(pairs.left, pairs.right, pairs.scores, strict=True)
    file.write_text("sentence1\tsentence2\tscore\n" + "".join(f"{a}\t{b}\t{score}\n" for a, b, score in rows))
    return file


# sweep


def test_example_in_docstring_runs(own_cache):
    run_examples(sweep)


def test_sweep_gives_the_files_of_the_command(tmp_path):
    data, test = write_pairs(tmp_path / "dev.tsv", PAIRS), write_pairs(tmp_path / "test.tsv", TEST)
    options = ("--templates", "plain", "--poolings", "mean,lasttoken", "--limit", 30)
    d2v("sweep", "tiny-llama", "--data", data, "--test", test, "--out", tmp_path / "cli", *options)
    settings = {"templates": ["plain"], "poolings": ["mean", "lasttoken"], "limit": 30}
    result = sweep("tiny-llama", data, test=test, out=tmp_path / "api", **settings)
    cli, api = (json.loads((tmp_path / name / "sweep.json").read_text()) for name in ("cli", "api"))
    for document in (cli, api):
        del document["seconds"], document["tokens"], document["tokens_per_second"], document["test"]["seconds"]
    assert api == cli and [SweepRow(**row) for row in cli["rows"]] == result.rows
    assert {**result.test, "seconds": 0} == {**cli["test"], "seconds": 0}
    assert (tmp_path / "api" / "sweep.png").read_bytes() == (tmp_path / "cli" / "sweep.png").read_bytes()
    encoders = [Encoder.load(tmp_path / name / "encoder") for name in ("cli", "api")]
    assert encoders[0].fingerprint == encoders[1].fingerprint == api["encoder"]


def test_sweep_without_out_writes_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    settings = {"templates": ["plain"], "poolings": ["mean"], "attentions": ["causal"], "heads": ["none"]}
    result = sweep("tiny-llama", PAIRS, test=TEST, layers=[1, -1], **settings)
    assert list(tmp_path.iterdir()) == []
    assert {(row.layer, row.normed) for row in result.rows} == {(1, False), (4, False), (4, True)}
    encoder = result.encoder()
    vectors = dict(zip(unique_texts(TEST), encoder.encode(unique_texts(TEST)), strict=True))
    assert (result.test["spearman"], result.test["pearson"]) == pytest.approx(
        scipy_correlations(vectors, TEST), abs=0.02
    )


def test_sweep_reports_progress_and_skipped_attentions(tmp_path):
    recorder, messages = Recorder(), []
    options = {"templates": ["plain"], "poolings": ["mean"]}
    with Progress(recorder):
        result = sweep("tiny-gpt_neo", PAIRS, out=tmp_path, test=TEST, **options, notify=messages.append)
    assert recorder.labels == [
        "loading the model",
        "plain, causal: encoding",
        "plain, causal: scoring",
        "comparing the best readings",
        "final checks",
        "saving",
    ]
    assert recorder.fractions == sorted(recorder.fractions)
    assert messages == [f"left out: {reason}" for reason in result.skipped] + [result.selection.warning()]
    assert len(messages) == 2 and "The best of 12 readings on 40 pairs is largely luck" in messages[1]


@pytest.mark.parametrize(
    ("named", "n_pairs", "is_quick"),
    [
        ({}, 40, True),
        ({"quick": False}, 40, False),
        ({"heads": ["none"]}, 40, False),
        ({"layers": [-1]}, 40, False),
        ({}, 200, False),
        ({"quick": True}, 200, True),
        ({"quick": True, "heads": ["none"]}, 200, True),
        ({"attentions": ["bidirectional"]}, 40, False),
        ({"attentions": []}, 40, False),
    ],
)
def test_few_pairs_are_swept_quickly(named, n_pairs, is_quick, monkeypatch):
    plans, messages = [], []

    def keep_plan(model, data, plan, **_):
        plans.append(plan)
        raise InterruptedError

    monkeypatch.setattr(sweep_module, "run_sweep", keep_plan)
    pairs = ScoredPairs("mine", ["a"] * n_pairs, ["b"] * n_pairs, [0.0, 1.0] * (n_pairs // 2))
    with pytest.raises(InterruptedError):
        sweep("tiny-llama", pairs, notify=messages.append, **named)
    defaults = SweepPlan.quick() if is_quick else SweepPlan()
    assert plans == [replace(defaults, **{name: tuple(value) for name, value in named.items() if name != "quick"})]
    assert bool(messages) == (is_quick and not named)


@pytest.mark.parametrize(
    ("options", "attentions"),
    [
        ({}, ["causal", "bidirectional", "causal+kv:2-3"]),
        ({"quick": True}, ["causal", "causal+kv:2-3"]),
        ({"attentions": ["causal"]}, ["causal", "causal+kv:2-3"]),
        ({"attentions": []}, ["causal+kv:2-3"]),
    ],
    ids=["by default", "quick", "named", "alone"],
)
def test_rerouting_is_tried_beside_the_attentions(options, attentions, fresh_store):
    named = {"templates": ["plain"], "poolings": ["mean"], "heads": ["none"], "layers": [3], "reroute": ["kv:2-3"]}
    result = sweep("tiny-llama", PAIRS, **named, **options)
    assert sorted(row.attention for row in result.rows) == sorted(attentions)


@pytest.mark.parametrize("kind", ["templates", "attentions", "poolings", "heads"])
def test_a_sweep_over_nothing_is_refused(kind):
    with pytest.raises(InputError, match=f"no {kind} to try; name one or more"):
        sweep("tiny-llama", PAIRS, **{kind: []})


def test_one_name_or_layer_needs_no_list():
    one = {"templates": "plain", "poolings": "mean", "attentions": "causal", "heads": "none", "layers": 2}
    lists = {name: [value] for name, value in one.items()}
    assert sweep("tiny-llama", PAIRS, **one).rows == sweep("tiny-llama", PAIRS, **lists).rows


def test_unknown_name_is_refused():
    with pytest.raises(InputError, match="lasttoken"):
        sweep("tiny-llama", PAIRS, poolings=["lastoken"])


# the winner


def test_head_is_fitted_on_the_data_alone(model, fresh_store, tmp_path):
    plan = SweepPlan(("plain",), ("mean",), ("causal",), ("standardise",))
    result = run_sweep("tiny-llama", PAIRS, plan, backbone=model)
    write_sweep(result, tmp_path / "out", TEST)
    best = result.winner
    without_head = Encoder.from_pretrained(
        "tiny-llama", layer=best.layer, pooling="mean", normed=best.normed, template="plain", device="cpu"
    )
    fitted_on = without_head.encode(unique_texts(PAIRS)).astype(np.float64)
    with_test = without_head.encode(unique_texts(PAIRS) + unique_texts(TEST)).astype(np.float64)
    for encoder in (result.encoder(), Encoder.load(tmp_path / "out" / "encoder", device="cpu")):
        assert np.allclose(encoder.head.map, 1 / fitted_on.std(axis=0), rtol=1e-3)
        assert np.abs((encoder.head.mean - fitted_on.mean(axis=0)) / fitted_on.std(axis=0)).max() < 1e-3
        assert np.abs((encoder.head.mean - with_test.mean(axis=0)) / fitted_on.std(axis=0)).max() > 0.05


def test_saved_encoder_gives_the_vectors_of_the_winner(model, fresh_store, tmp_path):
    result = run_sweep("tiny-llama", PAIRS, SMALL, backbone=model)
    document = write_sweep(result, tmp_path / "out")
    loaded = Encoder.load(tmp_path / "out" / "encoder", device="cpu")
    assert loaded.fingerprint == result.encoder().fingerprint == document["encoder"]
    assert np.array_equal(loaded.encode(TEST.left), result.encoder().encode(TEST.left))
    vectors = dict(zip(unique_texts(PAIRS), loaded.encode(unique_texts(PAIRS)), strict=True))
    assert scipy_correlations(vectors, PAIRS)[0] == pytest.approx(result.winner.spearman, abs=0.3)


def test_test_pairs_are_scored_once_for_the_winner(model, fresh_store, tmp_path, monkeypatch):
    calls, encoded = [], Counter()
    evaluate_sts, encode = sweep_module.evaluate_sts, Encoder.encode

    def count_scores(encoder, pairs, **kwargs):
        calls.append((encoder.fingerprint, pairs))
        return evaluate_sts(encoder, pairs, **kwargs)

    def count_texts(self, inputs, *args, **kwargs):
        encoded.update(inputs)
        return encode(self, inputs, *args, **kwargs)

    monkeypatch.setattr(sweep_module, "evaluate_sts", count_scores)
    monkeypatch.setattr(Encoder, "encode", count_texts)
    result = run_sweep("tiny-llama", PAIRS, SMALL, backbone=model)
    assert calls == [] and not encoded
    write_sweep(result, tmp_path / "out", TEST)
    assert calls == [(result.encoder().fingerprint, TEST)]
    test_only = set(unique_texts(TEST)) - set(unique_texts(PAIRS))
    assert {text: encoded[text] for text in test_only} == dict.fromkeys(test_only, 1)


# the files


def test_document_has_winner_test_and_every_row(model, fresh_store, tmp_path):
    result = run_sweep("tiny-llama", PAIRS, SMALL, backbone=model)
    write_sweep(result, tmp_path / "out", TEST)
    document = json.loads((tmp_path / "out" / "sweep.json").read_text(encoding="utf-8"))
    assert [SweepRow(**row) for row in document["rows"]] == result.rows
    assert document["winner"] == document["rows"][0]
    assert document["data"] == {"name": "dev", "pairs": 40, "texts": len(unique_texts(PAIRS))}
    assert document["plan"]["templates"] == ["plain", "prompteol"]
    assert document["model"] == "tiny-llama" and document["dtype"] == "float32"
    assert document["versions"]["torch"] == version("torch")

    encoder = Encoder.load(tmp_path / "out" / "encoder", device="cpu")
    vectors = dict(zip(unique_texts(TEST), encoder.encode(unique_texts(TEST)), strict=True))
    expected = scipy_correlations(vectors, TEST)
    assert (document["test"]["spearman"], document["test"]["pearson"]) == pytest.approx(expected, abs=0.02)
    assert (document["test"]["task"], document["test"]["pairs"]) == ("test", 20)


def test_document_without_test_pairs_has_no_test(model, fresh_store, tmp_path):
    write_sweep(run_sweep("tiny-llama", PAIRS, SMALL, backbone=model), tmp_path / "new" / "out")
    assert json.loads((tmp_path / "new" / "out" / "sweep.json").read_text(encoding="utf-8"))["test"] is None


def png_size(file):
    """Width and height from the header, by the PNG specification."""
    header = file.read_bytes()[:24]
    assert header[:8] == b"\x89PNG\r\n\x1a\n" and header[12:16] == b"IHDR"
    return struct.unpack(">II", header[16:24])


def test_figure_is_a_png_with_visible_curves(model, fresh_store, tmp_path):
    from matplotlib.colors import to_rgb
    from matplotlib.image import imread

    result = run_sweep("tiny-llama", MANY, backbone=model)
    draw_sweep(result, tmp_path / "sweep.png", {"task": "test", "spearman": 12.3})
    width, height = png_size(tmp_path / "sweep.png")
    assert 1200 <= width <= 2400 and 600 <= height <= 1400  # four templates wide, two attentions high
    assert 20_000 < (tmp_path / "sweep.png").stat().st_size < 1_000_000
    pixels = imread(tmp_path / "sweep.png")
    drawn = (pixels[..., :3] < 0.9).any(axis=-1)
    assert 0.01 < drawn.mean() < 0.5
    for colour in (COLOURS[1], COLOURS[0], COLOURS[4]):  # the curves of last token, mean and weighted mean
        assert (np.abs(pixels[..., :3] - to_rgb(colour)).max(axis=-1) < 0.05).sum() > 200


@pytest.mark.parametrize("heads", [("none",), ("none", "whiten", "remove_top")])
def test_small_sweep_has_a_figure(model, fresh_store, tmp_path, heads):
    plan = SweepPlan(("say {text} again",), ("sum",), ("causal",), heads, layers=(1, 2))
    result = run_sweep("tiny-llama", PAIRS, plan, backbone=model)
    draw_sweep(result, tmp_path / "small.png")
    width, height = png_size(tmp_path / "small.png")
    assert width > 300 and height > 300


@pytest.mark.parametrize(
    ("head", "words"),
    [("none", "max"), ("standardise", "max, standardised"), ("whiten", "max, whitened")],
)
def test_row_is_described_in_words(head, words):
    row = SweepRow("plain", "causal", 3, True, "max", head, 1.0, 1.0)
    assert describe_sweep_row(row) == f"plain, causal, layer 3 normed, {words}"
