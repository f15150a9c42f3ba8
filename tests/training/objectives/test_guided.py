"""Contrastive learning with a teacher: mined negatives, rejected negatives and margins equal plain computations."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.special import log_softmax, logsumexp

from decoder2vec.encoder import Encoder
from decoder2vec.errors import InputError
from decoder2vec.evaluation.baselines import load_encoder
from decoder2vec.training import teachers
from decoder2vec.training.context import InputSpec, Reads
from decoder2vec.training.contrastive_examples import ContrastiveExamples, Example
from decoder2vec.training.objectives.guided import GuidedConfig, GuidedObjective
from decoder2vec.training.recipes.recipe import Trainer
from decoder2vec.training.teachers import Teacher
from toys.training import attached, small_recipe, toy_data, toy_examples

ONE, OTHER = Teacher("static:tiny-gpt2"), Teacher("random:8", weight=0.5)
PAIRS = [example._replace(negatives=(), group=number) for number, example in enumerate(toy_examples())]


@pytest.fixture(autouse=True)
def empty_store(tmp_path, monkeypatch):
    monkeypatch.setattr("decoder2vec.activations.store.store_root", lambda: tmp_path / "store")


def guided(examples=PAIRS, **settings):
    config = GuidedConfig(**{"teachers": (ONE,), "mined": 2, **settings})
    return GuidedObjective(config, toy_data(contrastive=ContrastiveExamples.of(examples)), InputSpec(Reads.TOKENS))


def unit(vectors):
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def teacher_cosines(texts, teachers):
    """[texts, texts] cosines, averaged over teachers by weight."""
    vectors = [unit(np.asarray(load_encoder(teacher.name).encode(texts), np.float64)) for teacher in teachers]
    weights = np.array([teacher.weight for teacher in teachers])
    return sum(weight * v @ v.T for weight, v in zip(weights / weights.sum(), vectors, strict=True))


@pytest.mark.parametrize("teachers", [(ONE,), (ONE, OTHER)], ids=["one teacher", "two teachers"])
def test_negatives_are_the_nearest_below_the_margin(teachers):
    objective = guided(teachers=teachers, margin=0.9)
    examples = objective.mined_examples
    cosines = teacher_cosines(examples.texts, teachers)
    rejected = 0
    for anchor, positive, mined in zip(examples.anchors, examples.positives, examples.negatives, strict=True):
        others = [text for text in np.unique(examples.positives) if text != positive]
        allowed = [text for text in others if cosines[anchor, text] < 0.9 * cosines[anchor, positive]]
        rejected += len(others) - len(allowed)
        nearest = sorted(allowed, key=lambda text: -cosines[anchor, text])[:2]
        found = [text for text in mined if text >= 0]
        assert np.allclose(cosines[anchor, found], cosines[anchor, nearest], atol=2e-3), "vectors are kept in 16 bits"
        assert len(found) == len(nearest) and (cosines[anchor, found] < 0.9 * cosines[anchor, positive] + 2e-3).all()
    assert rejected, "some texts are too similar"


def test_one_load_gives_queries_and_documents(monkeypatch, tmp_path):
    """Both are encoded with their own prompts by an encoder that is loaded once."""
    prompts = {"query": "query: ", "document": "passage: "}
    teacher = Encoder.from_pretrained("tiny-gpt2", device="cpu", template="plain", prompts=prompts)
    name = str(teacher.save(tmp_path / "teacher"))
    loaded = []
    monkeypatch.setattr(teachers, "load_encoder", lambda name, **kw: loaded.append(name) or load_encoder(name, **kw))
    objective = guided(teachers=(Teacher(name), OTHER))
    examples, (queries, documents) = objective.mined_examples, objective.guides
    assert loaded == [name, OTHER.name]
    anchors, positives = ([examples.texts[row] for row in rows] for rows in (examples.anchors, examples.positives))
    prompted = (["query: " + text for text in anchors], ["passage: " + text for text in positives])
    plain = [teacher.encode(texts, prompt="") for texts in prompted]
    other = [load_encoder(OTHER.name).encode(texts) for texts in (anchors, positives)]
    expected = sum(
        weight * unit(left) @ unit(right).T for weight, (left, right) in ((1 / 1.5, plain), (0.5 / 1.5, other))
    )
    cpu = torch.device("cpu")
    similarities = queries(examples.anchors, cpu) @ documents(examples.positives, cpu).T
    assert np.allclose(similarities, expected, atol=2e-3), "vectors are kept in 16 bits"


def test_mined_negatives_stand_behind_those_of_the_file():
    examples = [example._replace(negatives=("rain falls",)) for example in PAIRS]
    objective = guided(examples)
    assert (objective.mined_examples.negatives[:, :1] == objective.examples.negatives).all()
    assert objective.mined_examples.negatives.shape[1] == 3


@pytest.mark.parametrize("settings", [{}, {"distill": 0.0}, {"dims": (32, 8)}, {"mined": 0}])
def test_loss_equals_a_plain_computation(settings, backbone):
    """InfoNCE over candidates below the margin, plus the KL divergence over all candidates."""
    config = GuidedConfig(**{"teachers": (ONE,), "temperature": 0.2, "mined": 2, "margin": 0.9, **settings})
    recipe = small_recipe("lora", objective=config)
    data, rows = toy_data(contrastive=ContrastiveExamples.of(PAIRS)), np.arange(0, 24, 3)
    context, _, task = attached(recipe, data, backbone("tiny-llama"))
    with torch.no_grad():
        loss = task.loss(rows).item()
    examples = guided(mined=config.mined, margin=0.9).mined_examples
    teacher = teacher_cosines(examples.texts, (ONE,))
    vectors = Encoder(context.backbone, recipe._encoder_spec(Trainer(recipe, data, backbone("tiny-llama")).corpus))
    student = vectors.encode(examples.texts).astype(np.float64)
    candidates = [*examples.positives[rows], *(text for column in examples.negatives[rows].T for text in column)]
    expected = 0.0
    for dim in config.dims or (32,):
        cosines = unit(student[:, :dim]) @ unit(student[:, :dim]).T / 0.2
        for anchor, positive in zip(examples.anchors[rows], examples.positives[rows], strict=True):
            limit = 0.9 * teacher[anchor, positive]
            negatives = [text for text in candidates if text >= 0 and teacher[anchor, text] < limit]
            expected += logsumexp(cosines[anchor, [positive, *negatives]]) - cosines[anchor, positive]
            present = [text for text in candidates if text >= 0]
            p, q = log_softmax(teacher[anchor, present] / 0.2), log_softmax(cosines[anchor, present])
            expected += config.distill * (np.exp(p) * (p - q)).sum()
    assert loss == pytest.approx(expected / len(rows), rel=5e-3)


def test_the_report_counts_what_was_mined(backbone):
    recipe = small_recipe("lora", objective=GuidedConfig(teachers=(ONE,), mined=2))
    result = Trainer(recipe, toy_data(contrastive=ContrastiveExamples.of(PAIRS)), backbone("tiny-llama")).run(0)
    negatives = guided().mined_examples.negatives
    assert result.notes["teachers"][0]["name"] == ONE.name
    assert result.notes["mined"] == {
        "negatives": int((negatives >= 0).sum()),
        "examples without": int((negatives < 0).all(axis=1).sum()),
    }


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"teachers": ()}, "guided_info_nce needs a teacher; give --teacher NAME"),
        ({"mined": -1}, "mined and distill must be numbers of 0 or more"),
        ({"margin": 1.5}, "a margin above 0 and up to 1"),
    ],
)
def test_unfit_settings_fail(settings, message):
    with pytest.raises(InputError, match=message):
        guided(**settings)


# --- sources --------------------------------------------------------------------------------------------------------


def sourced(sizes):
    return [
        Example(f"{source} a{n}", f"{source} p{n}", (), (source, n), source)
        for source, size in sizes.items()
        for n in range(size)
    ]


def test_a_batch_has_examples_of_one_source():
    objective = guided(sourced({"big": 160, "small": 40, "tiny": 3}))
    order = np.random.default_rng(1).permutation(203)
    batches = list(objective.batches(order, 8))
    assert sorted(np.concatenate(batches).tolist()) == list(range(203)), "also those of a source smaller than a batch"
    sources = [set(objective.examples.sources[rows].tolist()) for rows in batches]
    assert all(len(source) == 1 for source in sources)
    assert [rows.tolist() for rows in objective.batches(order, 8)] == [rows.tolist() for rows in batches]
    half = [objective.examples.source_names[source.pop()] for source in sources][: len(batches) // 2]
    assert abs(half.count("big") - 10) <= 2 and abs(half.count("small") - 2.5) <= 2, "in proportion at any time"


@pytest.mark.parametrize(
    ("sources", "batches"),
    [({"big": 20, "one": 1}, [20]), ({"small": 3, "one": 1, "other": 1}, [2, 3]), (dict.fromkeys("abcde", 1), [5])],
)
def test_no_batch_has_a_single_example(sources, batches):
    """Examples without others of their source share a batch; one that is left is dropped."""
    objective = guided(sourced(sources))
    order = np.random.default_rng(2).permutation(len(objective))
    assert sorted(len(np.unique(rows)) for rows in objective.batches(order, 32)) == batches


def test_small_rests_are_dropped_beside_larger_batches():
    """Four examples with one anchor are in four batches."""
    examples = [*sourced({"mine": 10}), *(Example("anchor", f"p{n}", (), "same", "mine") for n in range(4))]
    batches = list(guided(examples).batches(np.arange(14), 16))
    assert [len(rows) for rows in batches] == [11]


def test_negatives_are_mined_within_a_source():
    objective = guided(sourced({"one": 12, "two": 9}), teachers=(Teacher("random:8"),), margin=1.0)
    examples = objective.mined_examples
    for source, negatives in zip(examples.sources, examples.negatives, strict=True):
        texts = [examples.texts[text] for text in negatives if text >= 0]
        assert all(text.startswith(examples.source_names[source]) for text in texts)
