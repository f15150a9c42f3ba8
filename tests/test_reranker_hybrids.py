"""Rerankers of recurrent models and hybrids: one score alone, in a batch and with a shared document; training."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from decoder2vec.backbone.backbone import Backbone
from decoder2vec.backbone.machine import quiet_transformers
from decoder2vec.reranker import Reranker, RerankerSpec
from decoder2vec.training.api import train
from decoder2vec.training.contrastive_examples import ContrastiveExamples
from decoder2vec.training.objectives.ranking import measure_ranking
from toys.hybrids import HYBRIDS, SETTINGS
from toys.texts import built
from toys.training import small_recipe, toy_data, toy_examples

RECURRENT = {"rwkv": {"attention_hidden_size": 32, "num_hidden_layers": 2}}
FAMILIES = {**RECURRENT, **{family: SETTINGS | HYBRIDS[family] for family in HYBRIDS}}
QUERIES = ["Why is the loaf dense?", "yeast", "the longest of all queries about bread, dough and crust"]
DOCUMENTS = [
    "If the loaf is dense and gummy, the yeast was probably too old, or the dough was too cold to rise. " * 2,
    "Bread",
    "Knead the flour and water.",
]


@pytest.fixture(scope="module", params=FAMILIES)
def folder(request, tmp_path_factory):
    path = tmp_path_factory.mktemp("model") / request.param
    built(request.param, path, **FAMILIES[request.param])
    return path


@pytest.fixture
def reranker(folder, one_thread):
    with quiet_transformers():
        backbone = Backbone.load(folder, device="cpu", dtype="float32")
    head = torch.randn(backbone.dim, generator=torch.Generator().manual_seed(1))
    return Reranker(backbone, RerankerSpec(str(folder), "linear", max_length=200), head)


@torch.inference_mode()
def plain_scores(folder, reranker, queries, documents):
    """One pass of transformers for each prompt, without padding."""
    with quiet_transformers():
        model = AutoModelForCausalLM.from_pretrained(folder).eval().base_model
        prompts, _ = reranker._tokeniser(queries, documents)
        states = [model(input_ids=torch.tensor([prompt.ids]), use_cache=False).last_hidden_state for prompt in prompts]
    return [float(state[0, -1] @ reranker.head) for state in states]


def test_a_score_is_the_same_alone_in_every_batch_and_with_a_shared_document(folder, reranker, gap, monkeypatch):
    queries = [query for query in QUERIES for _ in DOCUMENTS]
    documents = DOCUMENTS * len(QUERIES)
    expected = plain_scores(folder, reranker, queries, documents)
    assert len(set(np.round(expected, 6))) == len(expected)
    scale = max(1.0, float(np.abs(expected).max()))
    with quiet_transformers():
        alone = [float(reranker.score(q, [d])[0]) for q, d in zip(queries, documents, strict=True)]
        together = reranker.score_pairs(queries, documents)
        monkeypatch.setattr("decoder2vec.reranker.SharedBeginning.groups", lambda *_: [])
        monkeypatch.setattr(Backbone, "batch_overhead", 10**6)
        one_batch = reranker.score_pairs(queries, documents)
    for scores in (alone, together, one_batch):
        assert gap(scores, expected) < 1e-5 * scale


def test_a_trained_reranker_gives_the_reported_scores_beside_the_likelihood(folder, one_thread, tmp_path):
    data = toy_data(contrastive=ContrastiveExamples.of(toy_examples()[:7]))
    with quiet_transformers():
        result = train(small_recipe("rerank", epochs=1), data, folder, tmp_path / "out", device="cpu", dtype="float32")
        saved = Reranker.load(tmp_path / "out", device="cpu", dtype="float32")
        pairs = data.dev[0]
        scores = saved.score_pairs(pairs.left, pairs.right)
    ranking = result.results["seeds"][0]["notes"]["ranking"]
    assert ranking["trained"]["dev"] == measure_ranking(pairs, scores)
    assert 0 < ranking["likelihood"]["dev"]["mrr@10"] <= 100
