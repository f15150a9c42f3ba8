"""The rows of a sweep against single encoders and plain transformers; every text runs through the model once."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import astuple

import numpy as np
import pytest
import torch
from scipy.stats import spearmanr
from threadpoolctl import threadpool_info, threadpool_limits
from transformers import AutoModel, AutoTokenizer

from decoder2vec.activations.capture import Capture
from decoder2vec.activations.extract import Extractor
from decoder2vec.activations.store import delete_space, iter_spaces
from decoder2vec.analysis import sweep as sweep_module
from decoder2vec.analysis.selection import measure_selection
from decoder2vec.analysis.sweep import SweepPlan, SweepRow, best_by, layer_curve, reroutings_to_try, run_sweep
from decoder2vec.backbone.backbone import Backbone
from decoder2vec.backbone.tiny import tiny_folder
from decoder2vec.encoder import Encoder
from decoder2vec.errors import InputError, UnsupportedError
from decoder2vec.progress import Progress
from decoder2vec.text.files import ScoredPairs
from toys.progress import Recorder
from toys.sweeps import MANY, PAIRS, SMALL, demo_pairs, scipy_correlations, unique_texts


@pytest.fixture
def fresh_store(tmp_path, monkeypatch):
    """An empty latents store; tiny models are shared by all tests."""
    monkeypatch.setattr("decoder2vec.activations.store.cache_root", lambda: tmp_path / "cache")
    return tmp_path / "cache" / "latents"


@pytest.fixture
def passes(monkeypatch):
    """The number of texts that have run through the model, as passes["texts"]."""
    counter = Counter()
    real_call = Capture.__call__

    def count(self, batch):
        counter["texts"] += len(batch.ids)
        return real_call(self, batch)

    monkeypatch.setattr(Capture, "__call__", count)
    return counter


@pytest.fixture(scope="module")
def model():
    """A backbone that is not shared, since a sweep switches its attention."""
    return Backbone.load("tiny-llama", device="cpu", dtype="float32")


@pytest.fixture(scope="module")
def full(model, tmp_path_factory):
    """A sweep of the default plan, with an empty store."""
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("full")
        patch.setattr("decoder2vec.activations.store.cache_root", lambda: folder)
        return run_sweep("tiny-llama", MANY, backbone=model)


def standardised(vectors):
    """{text: vector} with mean 0 and standard deviation 1 in every dimension."""
    table = np.stack(list(vectors.values())).astype(np.float64)
    return dict(zip(vectors, (table - table.mean(axis=0)) / table.std(axis=0), strict=True))


# the rows


def is_constant(row):
    """Whether this reading is the same token after the same tokens in every text: BOS, or the end of a template."""
    first = row.pooling == "cls" and row.template == "plain" and (row.attention == "causal" or row.layer == 0)
    return first or (row.pooling == "lasttoken" and row.template.startswith("prompteol") and row.layer == 0)


def sample(rows):
    """One row for each pooling and head, of a random layer, template and attention.

    First tokens are compared only if they have seen the text; otherwise many are equal, and rounding ranks them.
    """
    rng = random.Random(5)
    blind = [row for row in rows if row.pooling == "cls" and (row.attention == "causal" or row.layer == 0)]
    candidates = [row for row in rows if not is_constant(row) and row not in blind]
    kinds = sorted({(row.pooling, row.head) for row in candidates})
    return [rng.choice([row for row in candidates if (row.pooling, row.head) == kind]) for kind in kinds]


def test_rows_equal_the_scores_of_single_encoders(full):
    chosen = sample(full.rows) + [row for row in full.rows if row.normed][:2]
    assert len({row.attention for row in chosen}) == 2 and len({row.template for row in chosen}) == 4
    texts = unique_texts(MANY)
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
        expected = scipy_correlations(standardised(vectors) if row.head == "standardise" else vectors, MANY)
        assert (row.spearman, row.pearson) == pytest.approx(expected, abs=0.3), row


def test_rows_equal_the_scores_of_plain_transformers(full):
    """The same scores with none of our code: one text at a time, no batch, no hook, no store."""
    transformer = AutoModel.from_pretrained(tiny_folder("tiny-llama"), dtype=torch.float32).eval()
    tokenizer = AutoTokenizer.from_pretrained(tiny_folder("tiny-llama"))

    def states(prompt):
        with torch.inference_mode():
            return transformer(**tokenizer(prompt, return_tensors="pt"), output_hidden_states=True).hidden_states

    plain = {text: states(text) for text in unique_texts(MANY)}
    prompted = {text: states(f'This sentence : "{text}" means in one word: "') for text in unique_texts(MANY)}
    expected = {
        ("plain", 0, False, "mean"): {text: all_[0][0].mean(0).numpy() for text, all_ in plain.items()},
        ("plain", 2, False, "max"): {text: all_[2][0].amax(0).numpy() for text, all_ in plain.items()},
        ("prompteol", 3, False, "lasttoken"): {text: all_[3][0, -1].numpy() for text, all_ in prompted.items()},
        ("prompteol", 4, True, "lasttoken"): {text: all_[4][0, -1].numpy() for text, all_ in prompted.items()},
    }
    for (template, layer, normed, pooling), vectors in expected.items():
        for head, compared in (("none", vectors), ("standardise", standardised(vectors))):
            row = next(
                row for row in full.rows if astuple(row)[:6] == (template, "causal", layer, normed, pooling, head)
            )
            assert (row.spearman, row.pearson) == pytest.approx(scipy_correlations(compared, MANY), abs=0.3), row


def test_constant_reading_scores_0_with_every_head(model, fresh_store):
    plan = SweepPlan(("plain", "prompteol"), ("lasttoken", "cls"), heads=("none", "standardise", "whiten"))
    rows = run_sweep("tiny-llama", PAIRS, plan, backbone=model).rows
    constant = [row for row in rows if is_constant(row)]
    assert len(constant) == (6 + 1 + 1 + 1) * 3  # BOS: all six states if causal, else the embeddings; '"': embeddings
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


def test_rows_are_sorted_best_first(full):
    scores = [row.spearman for row in full.rows]
    assert scores == sorted(scores, reverse=True)
    assert full.winner.spearman == max(scores)
    assert full.skipped == []


def test_layers_can_be_chosen_and_counted_from_the_top(model, fresh_store):
    plan = SweepPlan(("plain",), ("mean",), ("causal",), ("none",), layers=(1, -1))
    rows = run_sweep("tiny-llama", PAIRS, plan, backbone=model).rows
    assert sorted((row.layer, row.normed) for row in rows) == [(1, False), (4, False), (4, True)]


def test_model_is_loaded_if_no_backbone_is_given(fresh_store):
    plan = SweepPlan(("plain",), ("mean",), ("causal",), ("none",), layers=(2,))
    result = run_sweep("tiny-gpt2", PAIRS, plan)
    assert result.backbone.family == "gpt2"
    assert len(result.rows) == 1


# one pass over the texts for each template and attention


def test_texts_run_once_for_each_template_and_attention(model, fresh_store, passes):
    texts = len(unique_texts(PAIRS))
    first = run_sweep("tiny-llama", PAIRS, SMALL, backbone=model)
    assert passes["texts"] == texts * 2 * 2
    assert first.stats.texts == texts * 2 * 2

    second = run_sweep("tiny-llama", PAIRS, SMALL, backbone=model)
    assert passes["texts"] == texts * 2 * 2
    assert second.rows == first.rows
    assert second.stats.tokens == 0


def test_only_new_texts_run_through_the_model(model, fresh_store, passes):
    run_sweep("tiny-llama", PAIRS, SMALL, backbone=model)
    passes.clear()
    more = demo_pairs(0, 50, "more")
    run_sweep("tiny-llama", more, SMALL, backbone=model)
    assert passes["texts"] == (len(unique_texts(more)) - len(unique_texts(PAIRS))) * 2 * 2


def test_progress_counts_every_text_of_every_pass(model, fresh_store):
    passes = [f"{template}, {attention}" for attention in SMALL.attentions for template in SMALL.templates]
    phases = [f"{name}: {phase}" for name in passes for phase in ("encoding", "scoring")]
    for n_texts in (len(unique_texts(PAIRS)), 0):  # the second time, all states are found in the store
        recorder = Recorder()
        with Progress(recorder) as progress:
            run_sweep("tiny-llama", PAIRS, SMALL, backbone=model)
        assert recorder.labels == [*phases, "comparing the best readings"]
        encoding = [phase for phase in progress.phases if phase.name == "encoding"]
        assert [phase.done for phase in encoding] == 4 * [n_texts]
        assert recorder.fractions == sorted(recorder.fractions)
        assert recorder.totals[0] == max(recorder.totals)  # all work is announced before the first text


def test_interrupted_sweep_keeps_finished_windows(model, fresh_store, passes, monkeypatch):
    monkeypatch.setattr("decoder2vec.activations.extract._WINDOW_BYTES", 1)  # a window is then 256 texts
    count = 350
    rng = np.random.default_rng(0)
    pairs = ScoredPairs(
        "many", [f"l {i}" for i in range(count)], [f"r {i}" for i in range(count)], list(rng.random(count))
    )
    plan = SweepPlan(("plain",), ("mean",), ("causal", "bidirectional"), ("none",))
    real_run, runs = Extractor._compute, []

    def stop_at_the_fifth(self, *args):
        runs.append(self)
        if len(runs) == 5:
            raise KeyboardInterrupt
        return real_run(self, *args)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Extractor, "_compute", stop_at_the_fifth)
        run_sweep("tiny-llama", pairs, plan, backbone=model)
    stored = {report.space["attention"]: report.texts for report in iter_spaces(root=fresh_store)}
    assert stored == {"causal": 700, "bidirectional": 256}  # 256 + 256 + 188, then one window of the next pass
    files = {file: file.stat().st_mtime_ns for file in fresh_store.rglob("seg-*")}
    assert len(files) == 4

    passes.clear()
    resumed = run_sweep("tiny-llama", pairs, plan, backbone=model)
    assert passes["texts"] == 1400 - 700 - 256
    assert {file: file.stat().st_mtime_ns for file in files} == files

    monkeypatch.setattr("decoder2vec.activations.store.cache_root", lambda: fresh_store / "elsewhere")
    assert run_sweep("tiny-llama", pairs, plan, backbone=model).rows == resumed.rows


def test_readings_are_scored_on_all_cores_with_one_thread_each(model, fresh_store, monkeypatch):
    """Else each of the threads that score would start as many of BLAS as there are cores."""
    real_apply_head, counts = sweep_module._apply_head, set()

    def apply_head(*arguments):
        counts.update(library["num_threads"] for library in threadpool_info() if library["user_api"] == "blas")
        return real_apply_head(*arguments)

    monkeypatch.setattr(sweep_module, "_apply_head", apply_head)
    plan = SweepPlan(("plain",), ("mean",), ("causal",), ("none", "whiten"))
    with threadpool_limits(3):
        run_sweep("tiny-llama", PAIRS, plan, backbone=model)
    assert counts == {1}


# how much the choice can be trusted


def test_selection_is_of_the_cosines_of_every_row(model, fresh_store, monkeypatch):
    """Cosines against numpy, the interval and the tied rows against loops with scipy."""
    measured = []
    monkeypatch.setattr(
        sweep_module, "measure_selection", lambda *values: measured.append(values) or measure_selection(*values)
    )
    plan = SweepPlan(("plain",), ("mean", "lasttoken"), ("causal",), ("none",))
    result = run_sweep("tiny-llama", MANY, plan, backbone=model)
    ((similarities, gold, best),) = measured
    texts, cosines = unique_texts(MANY), []
    for reading in plan.readings(model):
        settings = {"layer": reading.layer, "pooling": reading.pooling, "normed": reading.normed, "template": "plain"}
        encoder = Encoder.from_pretrained("tiny-llama", **settings, device="cpu")
        vectors = dict(zip(texts, encoder.encode(texts).astype(np.float64), strict=True))
        pairs = [(vectors[a], vectors[b]) for a, b in zip(MANY.left, MANY.right, strict=True)]
        cosines.append([x @ y / np.sqrt((x @ x) * (y @ y)) for x, y in pairs])
    assert np.allclose(similarities, cosines, atol=5e-3), "latents are kept in 16 bits"

    gold = np.array(gold)
    scores = [100 * spearmanr(row, gold).statistic for row in similarities]
    order = sorted(range(12), key=lambda index: -round(scores[index], 2))
    assert best == order[0] and [row.spearman for row in result.rows] == pytest.approx(sorted(scores)[::-1], abs=0.01)
    rng = np.random.default_rng(3)
    draws = [rng.integers(0, 100, 100) for _ in range(400)]
    samples = np.array([[100 * spearmanr(row[draw], gold[draw]).statistic for draw in draws] for row in similarities])
    selection = result.selection
    assert selection.spearman_95 == pytest.approx(np.quantile(samples[best], (0.025, 0.975)), abs=3)
    lows = [np.quantile(samples[best] - samples[index], 0.025) for index in order]
    clear = {row for row, low in enumerate(lows) if abs(low) > 1.5}  # others depend on the drawn samples
    assert clear & set(selection.tied) == {row for row in clear if lows[row] <= 0}
    assert len(clear) > 6 and selection.tied[0] == 0 and (selection.n_pairs, selection.n_readings) == (100, 12)
    document = result.to_json()["selection"]
    assert document["few_pairs"] and document["tied"] == selection.tied


def test_quick_plan_takes_two_passes():
    quick, full = SweepPlan.quick(), SweepPlan()
    assert len(quick.templates) * len(quick.attentions) == 2
    for name in ("templates", "poolings", "attentions", "heads"):
        assert set(getattr(quick, name)) <= set(getattr(full, name))


# unsupported attentions and invalid plans


def test_unsupported_attention_is_skipped_with_a_reason(fresh_store, passes):
    result = run_sweep("tiny-gpt_neo", PAIRS, SMALL)
    assert len(result.skipped) == 1
    assert "gpt_neo" in result.skipped[0] and "bidirectional" in result.skipped[0] and "mask" in result.skipped[0]
    assert {row.attention for row in result.rows} == {"causal"}
    assert len(result.rows) == 6 * 2 * 2 * 2
    assert passes["texts"] == 2 * len(unique_texts(PAIRS))
    assert result.to_json()["skipped"] == result.skipped
    assert result.encoder().spec.attention == "causal"


def test_sweep_with_nothing_supported_is_refused(fresh_store):
    plan = SweepPlan(("plain",), ("mean",), ("bidirectional",), ("none",))
    with pytest.raises(UnsupportedError, match=r"No reading of the sweep can be scored.*left to right"):
        run_sweep("tiny-mamba", PAIRS, plan)


@pytest.mark.parametrize(
    ("plan", "hint"),
    [
        (SweepPlan(templates=("plane",)), "plain"),
        (SweepPlan(templates=("plain",), poolings=("lastoken",)), "lasttoken"),
        (SweepPlan(templates=("plain",), attentions=("causl",)), "causal"),
        (SweepPlan(templates=("plain",), heads=("standardize",)), "standardise"),
        (SweepPlan(templates=("plain",), layers=(9,)), "layers 0 .embeddings. to 4"),
        (SweepPlan(templates=("plain",), attentions=("causal", "causal+prepent:2-3")), "prepend"),
        (SweepPlan(templates=("plain",), attentions=("causal", "causal+kv:2-9")), "layers 1 to 4 to re-route in"),
    ],
)
def test_unknown_name_is_refused_with_the_nearest_name(model, fresh_store, plan, hint):
    with pytest.raises(InputError, match=hint):
        run_sweep("tiny-llama", PAIRS, plan, backbone=model)


# re-routing


def test_rerouted_rows_equal_the_scores_of_single_encoders(model, fresh_store):
    attentions = ("causal", "causal+prepend:2-3", "causal+kv:1-2")
    plan = SweepPlan(("prompteol",), ("mean",), attentions, ("none",), layers=(4,))
    rows = [row for row in run_sweep("tiny-llama", MANY, plan, backbone=model).rows if not row.normed]
    assert {row.attention for row in rows} == set(attentions) and len({row.spearman for row in rows}) == 3
    texts = unique_texts(MANY)
    for row in rows:
        settings = {"layer": 4, "pooling": "mean", "template": "prompteol", "attention": row.attention}
        encoder = Encoder.from_pretrained("tiny-llama", **settings, device="cpu")
        vectors = dict(zip(texts, encoder.encode(texts), strict=True))
        assert (row.spearman, row.pearson) == pytest.approx(scipy_correlations(vectors, MANY), abs=0.3), row


def test_rerouted_winner_becomes_an_encoder(model, fresh_store):
    plan = SweepPlan(("prompteol",), ("mean",), ("causal+kv:2-3",), ("none",), layers=(3,))
    encoder = run_sweep("tiny-llama", PAIRS, plan, backbone=model).encoder()
    assert (encoder.backbone.adapter.kind, encoder.spec.attention) == ("kv_rerouting", "causal")
    assert model.adapter is None, "the model of the sweep is not changed"


def test_rerouting_that_a_model_lacks_is_skipped_with_a_reason(fresh_store):
    plan = SweepPlan(("plain",), ("mean",), ("causal", "causal+kv:2-3"), ("none",))
    result = run_sweep("tiny-mamba", PAIRS, plan)
    assert {row.attention for row in result.rows} == {"causal"}
    assert "mamba has no keys and values" in result.skipped[0]


@pytest.mark.parametrize(
    ("names", "n_layers", "ranges"),
    [
        (["prepend"], 30, ["prepend:2-7", "prepend:2-15"]),
        (["kv"], 30, ["kv:1-10", "kv:11-20", "kv:21-30"]),
        (["kv:3-5", "prepend"], 4, ["kv:3-5", "prepend:2-2"]),
        (["prepend", "kv"], 1, ["prepend:1-1", "kv:1-1"]),
        ([], 30, []),
    ],
)
def test_a_way_of_rerouting_is_tried_in_a_few_ranges(names, n_layers, ranges):
    assert reroutings_to_try(names, n_layers) == [f"causal+{name}" for name in ranges]


# the winner


@pytest.mark.parametrize("head", ["none", "standardise"])
def test_winner_becomes_an_encoder_with_its_settings(model, fresh_store, head):
    plan = SweepPlan(("prompteol", "echo"), ("mean", "lasttoken"), heads=(head,), max_length=100)
    result = run_sweep("tiny-llama", PAIRS, plan, backbone=model)
    best, encoder = result.winner, result.encoder()
    templates = {
        "prompteol": 'This sentence : "{text}" means in one word: "',
        "echo": "Rewrite the sentence: {text}\nThe rewritten sentence: {text}",
    }
    reading = encoder.spec.readings[0]
    assert (reading.layer, reading.pooling, reading.normed) == (best.layer, best.pooling, best.normed)
    assert encoder.spec.template == templates[best.template]
    assert (encoder.spec.attention, encoder.backbone.attention) == (best.attention, best.attention)
    assert (encoder.spec.backbone, encoder.spec.max_length) == ("tiny-llama", 100)
    assert (encoder.head.kind if encoder.head else "none") == head
    vectors = dict(zip(unique_texts(PAIRS), encoder.encode(unique_texts(PAIRS)), strict=True))
    assert scipy_correlations(vectors, PAIRS) == pytest.approx((best.spearman, best.pearson), abs=0.3)


def test_head_of_the_winner_is_fitted_without_another_pass(model, fresh_store, passes):
    plan = SweepPlan(("prompteol",), ("mean",), ("causal",), ("standardise",))
    result = run_sweep("tiny-llama", PAIRS, plan, backbone=model)
    n_texts = passes["texts"]
    encoder = result.encoder()
    assert passes["texts"] == n_texts
    bare = Encoder(encoder.backbone, encoder.spec)
    vectors = bare.encode(unique_texts(PAIRS)).astype(np.float64)
    deviation = vectors.std(axis=0)
    assert np.allclose(encoder.head.map, 1 / deviation, rtol=1e-3)
    assert np.abs((encoder.head.mean - vectors.mean(axis=0)) / deviation).max() < 1e-3
    delete_space("all")
    assert result.encoder().fingerprint == encoder.fingerprint


# curves and best rows

ROWS = [
    SweepRow("plain", "causal", 2, False, "mean", "none", 40.0, 39.0),
    SweepRow("plain", "causal", 1, False, "mean", "none", 50.0, 49.0),
    SweepRow("plain", "causal", 2, True, "mean", "none", 60.0, 59.0),
    SweepRow("plain", "causal", 1, False, "max", "none", 55.0, 49.0),
    SweepRow("echo", "causal", 1, False, "mean", "whiten", 45.0, 44.0),
]


def test_layer_curve_leaves_normed_states_out():
    assert list(layer_curve(ROWS, pooling="mean", template="plain").items()) == [(1, 50.0), (2, 40.0)]
    assert layer_curve(ROWS, pooling="cls") == {}


def test_best_rows_are_sorted_best_first():
    assert best_by(ROWS, "pooling") == [ROWS[2], ROWS[3]]
    assert best_by(ROWS, "template", "pooling") == [ROWS[2], ROWS[3], ROWS[4]]
