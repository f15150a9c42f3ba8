"""Every number of a sweep against an encoder made for it alone, and nothing computed twice."""

from __future__ import annotations

import csv
import json
import random
import struct
from collections import Counter
from dataclasses import astuple
from importlib import resources

import numpy as np
import pytest
import torch
from scipy import stats
from transformers import AutoModel, AutoTokenizer

from decoder2vec.activations.capture import Capture
from decoder2vec.activations.extract import Extractor
from decoder2vec.activations.store import spaces
from decoder2vec.analysis.sweep import SweepPlan, SweepRow, best_by, curve, run_sweep
from decoder2vec.backbone.backbone import Backbone
from decoder2vec.backbone.tiny import tiny_folder
from decoder2vec.cli.sweep import write_sweep
from decoder2vec.encoder import Encoder
from decoder2vec.errors import InputError, UnsupportedError
from decoder2vec.report.figures import COLOURS
from decoder2vec.report.sweep_figures import describe_sweep_row, draw_sweep
from decoder2vec.text.files import ScoredPairs

SMALL = SweepPlan(templates=("plain", "prompteol"), poolings=("lasttoken", "mean"))


def demo_pairs(begin, end, name):
    text = (resources.files("decoder2vec") / "demo" / "pairs.tsv").read_text(encoding="utf-8")
    rows = list(csv.DictReader(text.splitlines(), delimiter="\t", quoting=csv.QUOTE_NONE))[begin:end]
    sides = ([row[key] for row in rows] for key in ("sentence1", "sentence2"))
    return ScoredPairs(name, *sides, [float(row["score"]) for row in rows])


PAIRS = demo_pairs(0, 40, "chosen-on")
TEST = demo_pairs(40, 60, "kept-apart")
MANY = demo_pairs(0, 100, "many")
"""Enough that two pairs which change places, because the store keeps 16 bits, hardly move a rank correlation."""


@pytest.fixture
def fresh_store(tmp_path, monkeypatch):
    """A latents store that no other test has filled; the tiny models stay where they are."""
    monkeypatch.setattr("decoder2vec.activations.store.cache_root", lambda: tmp_path / "cache")
    return tmp_path / "cache" / "latents"


@pytest.fixture
def passes(monkeypatch):
    """How many texts went through the model so far, as passes["texts"]."""
    counted = Counter()
    real = Capture.__call__

    def count(self, batch):
        counted["texts"] += len(batch.ids)
        return real(self, batch)

    monkeypatch.setattr(Capture, "__call__", count)
    return counted


@pytest.fixture(scope="module")
def own():
    """A backbone of one's own: a sweep switches its direction."""
    return Backbone.load("tiny-llama", device="cpu", dtype="float32")


@pytest.fixture(scope="module")
def full(own, tmp_path_factory):
    """The default plan, on an empty store."""
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("full")
        patch.setattr("decoder2vec.activations.store.cache_root", lambda: folder)
        return run_sweep("tiny-llama", MANY, backbone=own)


def by_scipy(vectors, pairs):
    """Spearman and Pearson in points, from {text: vector}, one pair at a time."""
    cosines = []
    for a, b in zip(pairs.left, pairs.right, strict=True):
        x, y = vectors[a].astype(np.float64), vectors[b].astype(np.float64)
        cosines.append(x @ y / np.sqrt((x @ x) * (y @ y)))
    scores = pairs.scores
    return 100 * stats.spearmanr(cosines, scores).statistic, 100 * stats.pearsonr(cosines, scores).statistic


def standardised(vectors):
    """Every dimension of {text: vector} with mean 0 and deviation 1."""
    table = np.stack(list(vectors.values())).astype(np.float64)
    return dict(zip(vectors, (table - table.mean(axis=0)) / table.std(axis=0), strict=True))


def unique(pairs):
    return sorted({*pairs.left, *pairs.right})


# the numbers


def always_the_same(row):
    """Does this reading see the same token after the same tokens in every text? BOS, or the end of a prompt."""
    first = row.pooling == "cls" and row.template == "plain" and (row.attention == "causal" or row.layer == 0)
    return first or (row.pooling == "lasttoken" and row.template.startswith("prompteol") and row.layer == 0)


def sample(rows):
    """One row for each pooling and head, of any layer, prompt and direction.

    First tokens are compared where they have seen the whole text; else many are alike, and rounding ranks them.
    """
    chance = random.Random(5)
    alike = [row for row in rows if row.pooling == "cls" and (row.attention == "causal" or row.layer == 0)]
    telling = [row for row in rows if not always_the_same(row) and row not in alike]
    kinds = sorted({(row.pooling, row.head) for row in telling})
    return [chance.choice([row for row in telling if (row.pooling, row.head) == kind]) for kind in kinds]


def test_rows_are_what_an_encoder_made_for_each_alone_scores(full):
    chosen = sample(full.rows) + [row for row in full.rows if row.normed][:2]
    assert len({row.attention for row in chosen}) == 2 and len({row.template for row in chosen}) == 4
    texts = unique(MANY)
    for row in chosen:
        encoder = Encoder.from_pretrained(
            "tiny-llama",
            layer=row.layer,
            pooling=row.pooling,
            normed=row.normed,
            template=row.template,
            attention=row.attention,
            device="cpu",
        )
        vectors = dict(zip(texts, encoder.encode(texts), strict=True))
        expected = by_scipy(standardised(vectors) if row.head == "standardise" else vectors, MANY)
        assert (row.spearman, row.pearson) == pytest.approx(expected, abs=0.3), row


def test_rows_are_what_plain_transformers_scores(full):
    """The same numbers with none of our code: one text at a time, no batch, no hook, no store."""
    model = AutoModel.from_pretrained(tiny_folder("tiny-llama"), dtype=torch.float32).eval()
    tokenizer = AutoTokenizer.from_pretrained(tiny_folder("tiny-llama"))

    def states(prompt):
        with torch.inference_mode():
            return model(**tokenizer(prompt, return_tensors="pt"), output_hidden_states=True).hidden_states

    plain = {text: states(text) for text in unique(MANY)}
    asked = {text: states(f'This sentence : "{text}" means in one word: "') for text in unique(MANY)}
    expected = {
        ("plain", 0, False, "mean"): {text: all_[0][0].mean(0).numpy() for text, all_ in plain.items()},
        ("plain", 2, False, "max"): {text: all_[2][0].amax(0).numpy() for text, all_ in plain.items()},
        ("prompteol", 3, False, "lasttoken"): {text: all_[3][0, -1].numpy() for text, all_ in asked.items()},
        ("prompteol", 4, True, "lasttoken"): {text: all_[4][0, -1].numpy() for text, all_ in asked.items()},
    }
    for (template, layer, normed, pooling), vectors in expected.items():
        for head, seen in (("none", vectors), ("standardise", standardised(vectors))):
            row = next(
                row for row in full.rows if astuple(row)[:6] == (template, "causal", layer, normed, pooling, head)
            )
            assert (row.spearman, row.pearson) == pytest.approx(by_scipy(seen, MANY), abs=0.3), row


def test_a_reading_that_is_the_same_for_every_text_scores_0_whatever_the_head(own, fresh_store):
    plan = SweepPlan(("plain", "prompteol"), ("lasttoken", "cls"), heads=("none", "standardise", "whiten"))
    rows = run_sweep("tiny-llama", PAIRS, plan, backbone=own).rows
    constant = [row for row in rows if always_the_same(row)]
    assert len(constant) == (6 + 1 + 1 + 1) * 3  # BOS: all six places if causal, else the embeddings; '"': embeddings
    assert {(row.spearman, row.pearson) for row in constant} == {(0.0, 0.0)}


def test_there_is_one_row_for_every_combination(full):
    expected = Counter(
        (template, attention, layer, normed, pooling, head)
        for template in ("plain", "prompteol", "prompteol_tight", "echo")
        for attention in ("causal", "bidirectional")
        for layer, normed in ((0, False), (1, False), (2, False), (3, False), (4, False), (4, True))
        for pooling in ("lasttoken", "mean", "weightedmean", "max", "cls", "sum")
        for head in ("none", "standardise")
    )
    assert Counter(astuple(row)[:6] for row in full.rows) == expected
    assert len(full.rows) == 6 * 6 * 4 * 2 * 2


def test_rows_stand_best_first(full):
    scores = [row.spearman for row in full.rows]
    assert scores == sorted(scores, reverse=True)
    assert full.winner.spearman == max(scores)
    assert full.skipped == []


def test_layers_may_be_chosen_and_count_from_the_top(own, fresh_store):
    plan = SweepPlan(("plain",), ("mean",), ("causal",), ("none",), layers=(1, -1))
    rows = run_sweep("tiny-llama", PAIRS, plan, backbone=own).rows
    assert sorted((row.layer, row.normed) for row in rows) == [(1, False), (4, False), (4, True)]


def test_a_sweep_loads_the_model_itself_when_given_none(fresh_store):
    plan = SweepPlan(("plain",), ("mean",), ("causal",), ("none",), layers=(2,))
    result = run_sweep("tiny-gpt2", PAIRS, plan)
    assert result.backbone.family == "gpt2"
    assert len(result.rows) == 1


# one pass over the texts per prompt and direction


def test_texts_are_read_once_for_each_prompt_and_direction_and_never_again(own, fresh_store, passes):
    texts = len(unique(PAIRS))
    first = run_sweep("tiny-llama", PAIRS, SMALL, backbone=own)
    assert passes["texts"] == texts * 2 * 2
    assert first.stats.texts == texts * 2 * 2

    second = run_sweep("tiny-llama", PAIRS, SMALL, backbone=own)
    assert passes["texts"] == texts * 2 * 2
    assert second.rows == first.rows
    assert second.stats.tokens == 0


def test_only_texts_that_are_new_are_read(own, fresh_store, passes):
    run_sweep("tiny-llama", PAIRS, SMALL, backbone=own)
    passes.clear()
    more = demo_pairs(0, 50, "more")
    run_sweep("tiny-llama", more, SMALL, backbone=own)
    assert passes["texts"] == (len(unique(more)) - len(unique(PAIRS))) * 2 * 2


def test_progress_comes_to_every_text_of_every_pass_computed_or_not(own, fresh_store):
    wanted = {f"{t}, {a}": len(unique(PAIRS)) for t in SMALL.templates for a in SMALL.attentions}
    for _ in range(2):
        seen = Counter()
        run_sweep(
            "tiny-llama", PAIRS, SMALL, backbone=own, on_progress=lambda what, n, seen=seen: seen.update({what: n})
        )
        assert seen == wanted


def test_an_interrupted_sweep_keeps_its_finished_windows(own, fresh_store, passes, monkeypatch):
    monkeypatch.setattr("decoder2vec.activations.extract._WINDOW_BYTES", 1)  # then a window is 256 texts
    count = 350
    rng = np.random.default_rng(0)
    pairs = ScoredPairs(
        "many", [f"l {i}" for i in range(count)], [f"r {i}" for i in range(count)], list(rng.random(count))
    )
    plan = SweepPlan(("plain",), ("mean",), ("causal", "bidirectional"), ("none",))
    real, runs = Extractor._run, []

    def stop_at_the_fifth(self, *args):
        runs.append(self)
        if len(runs) == 5:
            raise KeyboardInterrupt
        return real(self, *args)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Extractor, "_run", stop_at_the_fifth)
        run_sweep("tiny-llama", pairs, plan, backbone=own)
    kept = {report.space["attention"]: report.texts for report in spaces(root=fresh_store)}
    assert kept == {"causal": 700, "bidirectional": 256}  # 256 + 256 + 188, then one window of the next pass
    files = {file: file.stat().st_mtime_ns for file in fresh_store.rglob("seg-*")}
    assert len(files) == 4

    passes.clear()
    again = run_sweep("tiny-llama", pairs, plan, backbone=own)
    assert passes["texts"] == 1400 - 700 - 256
    assert {file: file.stat().st_mtime_ns for file in files} == files

    monkeypatch.setattr("decoder2vec.activations.store.cache_root", lambda: fresh_store / "elsewhere")
    assert run_sweep("tiny-llama", pairs, plan, backbone=own).rows == again.rows


# what a family cannot do


def test_a_direction_the_family_lacks_is_left_out_with_the_reason(fresh_store, passes):
    result = run_sweep("tiny-gpt_neo", PAIRS, SMALL)
    assert len(result.skipped) == 1
    assert "gpt_neo" in result.skipped[0] and "bidirectional" in result.skipped[0] and "mask" in result.skipped[0]
    assert {row.attention for row in result.rows} == {"causal"}
    assert len(result.rows) == 6 * 2 * 2 * 2
    assert passes["texts"] == 2 * len(unique(PAIRS))
    assert result.to_json()["skipped"] == result.skipped
    assert result.encoder().spec.attention == "causal"


def test_a_sweep_with_nothing_left_to_try_is_refused(fresh_store):
    plan = SweepPlan(("plain",), ("mean",), ("bidirectional",), ("none",))
    with pytest.raises(UnsupportedError, match=r"Nothing could be read.*left to right"):
        run_sweep("tiny-mamba", PAIRS, plan)


@pytest.mark.parametrize(
    ("plan", "hint"),
    [
        (SweepPlan(templates=("plane",)), "plain"),
        (SweepPlan(templates=("plain",), poolings=("lastoken",)), "lasttoken"),
        (SweepPlan(templates=("plain",), attentions=("causl",)), "causal"),
        (SweepPlan(templates=("plain",), heads=("standardize",)), "standardise"),
        (SweepPlan(templates=("plain",), layers=(9,)), "layers 0 .embeddings. to 4"),
    ],
)
def test_a_name_that_does_not_exist_is_refused_with_the_nearest(own, fresh_store, plan, hint):
    with pytest.raises(InputError, match=hint):
        run_sweep("tiny-llama", PAIRS, plan, backbone=own)


# the winner


@pytest.mark.parametrize("head", ["none", "standardise"])
def test_the_winner_becomes_an_encoder_with_its_choices(own, fresh_store, head):
    plan = SweepPlan(("prompteol", "echo"), ("mean", "lasttoken"), heads=(head,), max_length=100)
    result = run_sweep("tiny-llama", PAIRS, plan, backbone=own)
    best, encoder = result.winner, result.encoder()
    prompts = {
        "prompteol": 'This sentence : "{text}" means in one word: "',
        "echo": "Rewrite the sentence: {text}\nThe rewritten sentence: {text}",
    }
    reading = encoder.spec.readings[0]
    assert (reading.layer, reading.pooling, reading.normed) == (best.layer, best.pooling, best.normed)
    assert encoder.spec.template == prompts[best.template]
    assert (encoder.spec.attention, encoder.backbone.attention) == (best.attention, best.attention)
    assert (encoder.spec.backbone, encoder.spec.max_length) == ("tiny-llama", 100)
    assert (encoder.head.kind if encoder.head else "none") == head
    vectors = dict(zip(unique(PAIRS), encoder.encode(unique(PAIRS)), strict=True))
    assert by_scipy(vectors, PAIRS) == pytest.approx((best.spearman, best.pearson), abs=0.3)


def test_the_head_is_fitted_on_the_sentences_of_the_data_alone(own, fresh_store, tmp_path):
    plan = SweepPlan(("plain",), ("mean",), ("causal",), ("standardise",))
    result = run_sweep("tiny-llama", PAIRS, plan, backbone=own)
    write_sweep(result, tmp_path / "out", TEST)
    best = result.winner
    bare = Encoder.from_pretrained(
        "tiny-llama", layer=best.layer, pooling="mean", normed=best.normed, template="plain", device="cpu"
    )
    fitted_on = bare.encode(unique(PAIRS)).astype(np.float64)
    with_test = bare.encode(unique(PAIRS) + unique(TEST)).astype(np.float64)
    for encoder in (result.encoder(), Encoder.load(tmp_path / "out" / "encoder", device="cpu")):
        assert np.allclose(encoder.head.map, 1 / fitted_on.std(axis=0), rtol=1e-3)
        assert np.abs((encoder.head.mean - fitted_on.mean(axis=0)) / fitted_on.std(axis=0)).max() < 1e-3
        assert np.abs((encoder.head.mean - with_test.mean(axis=0)) / fitted_on.std(axis=0)).max() > 0.05


def test_the_saved_encoder_gives_the_winners_vectors(own, fresh_store, tmp_path):
    result = run_sweep("tiny-llama", PAIRS, SMALL, backbone=own)
    document = write_sweep(result, tmp_path / "out")
    again = Encoder.load(tmp_path / "out" / "encoder", device="cpu")
    assert again.fingerprint == result.encoder().fingerprint == document["encoder"]
    assert np.array_equal(again.encode(TEST.left), result.encoder().encode(TEST.left))
    vectors = dict(zip(unique(PAIRS), again.encode(unique(PAIRS)), strict=True))
    assert by_scipy(vectors, PAIRS)[0] == pytest.approx(result.winner.spearman, abs=0.3)


def test_test_pairs_are_scored_once_and_for_the_winner_only(own, fresh_store, tmp_path, monkeypatch):
    from decoder2vec.evaluation import similarity as sts

    calls, asked = [], Counter()
    real_score, real_encode = sts.evaluate_sts, Encoder.encode

    def count_scores(encoder, pairs, **kwargs):
        calls.append((encoder.fingerprint, pairs))
        return real_score(encoder, pairs, **kwargs)

    def count_texts(self, inputs, *args, **kwargs):
        asked.update(inputs)
        return real_encode(self, inputs, *args, **kwargs)

    monkeypatch.setattr(sts, "evaluate_sts", count_scores)
    monkeypatch.setattr(Encoder, "encode", count_texts)
    result = run_sweep("tiny-llama", PAIRS, SMALL, backbone=own)
    assert calls == [] and not asked
    write_sweep(result, tmp_path / "out", TEST)
    assert calls == [(result.encoder().fingerprint, TEST)]
    assert {text: asked[text] for text in set(unique(TEST)) - set(unique(PAIRS))} == dict.fromkeys(
        set(unique(TEST)) - set(unique(PAIRS)), 1
    )


# what is written


def test_the_document_holds_winner_test_and_every_row(own, fresh_store, tmp_path):
    result = run_sweep("tiny-llama", PAIRS, SMALL, backbone=own)
    write_sweep(result, tmp_path / "out", TEST)
    document = json.loads((tmp_path / "out" / "sweep.json").read_text(encoding="utf-8"))
    assert [SweepRow(**row) for row in document["rows"]] == result.rows
    assert document["winner"] == document["rows"][0]
    assert document["data"] == {"name": "chosen-on", "pairs": 40, "texts": len(unique(PAIRS))}
    assert document["plan"]["templates"] == ["plain", "prompteol"]
    assert document["model"] == "tiny-llama" and document["dtype"] == "float32"
    assert document["versions"]["torch"] == torch.__version__

    encoder = Encoder.load(tmp_path / "out" / "encoder", device="cpu")
    vectors = dict(zip(unique(TEST), encoder.encode(unique(TEST)), strict=True))
    expected = by_scipy(vectors, TEST)
    assert (document["test"]["spearman"], document["test"]["pearson"]) == pytest.approx(expected, abs=0.02)
    assert (document["test"]["task"], document["test"]["pairs"]) == ("kept-apart", 20)


def test_without_test_pairs_the_document_says_so(own, fresh_store, tmp_path):
    write_sweep(run_sweep("tiny-llama", PAIRS, SMALL, backbone=own), tmp_path / "new" / "out")
    assert json.loads((tmp_path / "new" / "out" / "sweep.json").read_text(encoding="utf-8"))["test"] is None


def png_size(file):
    """Width and height from the header, by the PNG specification."""
    head = file.read_bytes()[:24]
    assert head[:8] == b"\x89PNG\r\n\x1a\n" and head[12:16] == b"IHDR"
    return struct.unpack(">II", head[16:24])


def test_the_picture_is_a_png_that_shows_something(full, tmp_path):
    from matplotlib.colors import to_rgb
    from matplotlib.image import imread

    draw_sweep(full, tmp_path / "sweep.png", {"task": "kept-apart", "spearman": 12.3})
    width, height = png_size(tmp_path / "sweep.png")
    assert 1200 <= width <= 2400 and 600 <= height <= 1400  # four prompts wide, two directions high
    assert 20_000 < (tmp_path / "sweep.png").stat().st_size < 1_000_000
    seen = imread(tmp_path / "sweep.png")
    drawn = (seen[..., :3] < 0.9).any(axis=-1)
    assert 0.01 < drawn.mean() < 0.5
    for colour in (COLOURS[1], COLOURS[0], COLOURS[4]):  # the curves of last token, mean and weighted mean
        assert (np.abs(seen[..., :3] - to_rgb(colour)).max(axis=-1) < 0.05).sum() > 200


@pytest.mark.parametrize("heads", [("none",), ("none", "whiten", "remove_top")])
def test_a_small_sweep_has_a_picture_too(own, fresh_store, tmp_path, heads):
    plan = SweepPlan(("say {text} again",), ("sum",), ("causal",), heads, layers=(1, 2))
    result = run_sweep("tiny-llama", PAIRS, plan, backbone=own)
    draw_sweep(result, tmp_path / "small.png")
    width, height = png_size(tmp_path / "small.png")
    assert width > 300 and height > 300


# helpers for tables and pictures

ROWS = [
    SweepRow("plain", "causal", 2, False, "mean", "none", 40.0, 39.0),
    SweepRow("plain", "causal", 1, False, "mean", "none", 50.0, 49.0),
    SweepRow("plain", "causal", 2, True, "mean", "none", 60.0, 59.0),
    SweepRow("plain", "causal", 1, False, "max", "none", 55.0, 49.0),
    SweepRow("echo", "causal", 1, False, "mean", "whiten", 45.0, 44.0),
]


def test_a_curve_is_by_layer_and_leaves_normed_states_out():
    assert list(curve(ROWS, pooling="mean", template="plain").items()) == [(1, 50.0), (2, 40.0)]
    assert curve(ROWS, pooling="cls") == {}


def test_the_best_of_each_kind_comes_best_first():
    assert best_by(ROWS, "pooling") == [ROWS[2], ROWS[3]]
    assert best_by(ROWS, "template", "pooling") == [ROWS[2], ROWS[3], ROWS[4]]


@pytest.mark.parametrize(
    ("head", "words"),
    [("none", "max"), ("standardise", "max, standardised"), ("whiten", "max, whitened")],
)
def test_a_row_is_described_in_english(head, words):
    row = SweepRow("plain", "causal", 3, True, "max", head, 1.0, 1.0)
    assert describe_sweep_row(row) == f"plain, causal, layer 3 normed, {words}"
