"""Search, match, rerank and compare over HTTP, compared with the same done directly."""

from __future__ import annotations

import re
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import httpx
import numpy as np
import pytest
import torch

import decoder2vec
from decoder2vec.activations.extract import Extractor
from decoder2vec.config import Reading
from decoder2vec.encoder import Encoder
from decoder2vec.heads.calibration import Calibration
from decoder2vec.heads.codes import CodeNet, CodeSpec
from decoder2vec.heads.layerwise import LayerwiseHead
from decoder2vec.matching.match import MatchConfig, match_sides
from decoder2vec.matching.sides import Side, SideDocument
from decoder2vec.reranker import Reranker
from decoder2vec.search.index import Index
from decoder2vec.serving.limits import Limits
from decoder2vec.text.template import Template
from toys.documents import DOCUMENTS
from toys.encoder import WordEncoder

JOB = "Baker wanted.\n\nSkills\nBake fresh bread at night. Keep the oven hot."
PEOPLE = {"ann": "Skills\nI bake bread and cakes.\n\nEducation\nOven school.", "bob": "I sail boats.", "cat": "Skills"}


@pytest.mark.parametrize("mode", ["hybrid", "dense", "lexical"])
def test_search_returns_the_hits_of_the_index(client, index_folder, offline, mode):
    hits = client.post("/search", json={"query": "bread in the oven", "top": 2, "mode": mode}).json()["hits"]
    expected = Index.open(index_folder, offline).search("bread in the oven", 2, mode)
    assert [hit["id"] for hit in hits] == [hit.id for hit in expected]
    for hit, expected_hit in zip(hits, expected, strict=True):
        assert hit["score"] == pytest.approx(expected_hit.score, abs=1e-5)
        assert (hit["text"], hit["metadata"]) == (expected_hit.text, expected_hit.metadata)
        ((start, end),) = hit["snippet"]["highlights"]
        snippet = expected_hit.snippet
        assert hit["snippet"]["text"][start:end] == snippet.text[snippet.start : snippet.end]


def test_search_takes_a_filter_and_returns_ten_by_default(client):
    hits = client.post("/search", json={"query": "the", "mode": "dense"}).json()["hits"]
    assert {hit["id"] for hit in hits} == {document.id for document in DOCUMENTS}
    body = {"query": "the", "mode": "dense", "filter": {"kind": ["pet", "food"]}}
    assert {hit["id"] for hit in client.post("/search", json=body).json()["hits"]} == {"cat", "bread"}
    for value in (2025, [2025, 2026], True, 1.5):  # numbers may match, and are no error
        answer = client.post("/search", json={**body, "filter": {"year": value}})
        assert answer.status_code == 200, answer.text
    assert client.post("/search", json={"query": "  "}).json() == {"hits": []}


def test_search_without_an_index_is_a_404(serving):
    with serving() as url, httpx.Client(base_url=url) as client:
        response = client.post("/search", json={"query": "x"})
        assert response.status_code == 404 and "start it with --index" in response.json()["error"]["message"]


def test_match_gives_the_ranking_and_reasons_of_match_sides(client, offline):
    people = [{"id": name, "text": text} for name, text in PEOPLE.items()]
    body = {"left": [{"id": "job", "text": JOB}], "right": people, "top": 2}
    (ranking,) = client.post("/match", json=body).json()["rankings"]
    sides = Side("left", [SideDocument("job", JOB)]), Side("right", [SideDocument(*item) for item in PEOPLE.items()])
    expected = match_sides(*sides, offline, MatchConfig(top=2))
    assert ranking["left"] == "job" and len(ranking["matches"]) == 2
    for match, known in zip(ranking["matches"], expected.for_left[0], strict=True):
        reasons = expected.reasons[0, known.right]
        assert match["right"] == list(PEOPLE)[known.right]
        scores = [known.score, known.dense, known.lexical]
        assert [match[name] for name in ("score", "dense", "lexical")] == pytest.approx(scores, abs=1e-4)
        sections = [(pair.left, pair.right) for pair in reasons.sections]
        assert [(pair["left"], pair["right"]) for pair in match["sections"]] == sections
        assert (match["matched"], match["missing"]) == (list(reasons.terms.matched), list(reasons.terms.missing))
        pairs = [(pair.left, pair.right) for pair in reasons.pairs]
        assert [(pair["left"], pair["right"]) for pair in match["pairs"]] == pairs


@pytest.mark.parametrize(
    "right", [[{"id": "a", "text": " "}], [{"id": "a", "text": "x"}, {"id": "a", "text": "y"}], []]
)
def test_sides_that_cannot_be_matched_are_a_400(client, right):
    response = client.post("/match", json={"left": [{"id": "job", "text": JOB}], "right": right, "top": 2})
    assert response.status_code == 400 and "right" in response.json()["error"]["message"]


def test_rerank_sorts_by_the_scores_of_the_encoder(client, offline):
    documents = ["a dog", "bread", "the cat", "bread"]
    body = {"query": "bread", "documents": documents, "return_documents": True}
    results = client.post("/rerank", json=body).json()["results"]
    expected = offline.score(["bread"] * 4, documents)
    assert [result["index"] for result in results] == sorted(range(4), key=lambda index: -expected[index])
    assert [result["relevance_score"] for result in results] == pytest.approx(sorted(expected, reverse=True), abs=1e-5)
    assert all(result["document"]["text"] == documents[result["index"]] for result in results)
    short = client.post("/rerank", json={"query": "bread", "documents": documents, "top_n": 1}).json()["results"]
    assert [result["index"] for result in short] == [results[0]["index"]] and not short[0].get("document")


@pytest.fixture(scope="module")
def reranker(own_cache):
    """A reranker that needs no training."""
    return Reranker.from_pretrained("tiny-mamba", device="cpu", dtype="float32")


def test_search_reranks_and_says_the_rank_before(serving, index_folder, offline, reranker):
    found = Index.open(index_folder, offline).search("bread in the oven", 30)
    scores = np.exp(reranker.score("bread in the oven", [hit.text for hit in found]))
    order = np.argsort(-scores).tolist()
    with serving(reranker=reranker, index=index_folder) as url, httpx.Client(base_url=url, timeout=30) as client:
        assert client.get("/health").json()["reranker"] == "reranker"
        body = {"query": "bread in the oven", "top": 2, "rerank": True}
        hits = client.post("/search", json=body).json()["hits"]
        assert [hit["id"] for hit in hits] == [found[index].id for index in order[:2]]
        assert [hit["rank_before"] for hit in hits] == [index + 1 for index in order[:2]]
        assert [hit["score"] for hit in hits] == pytest.approx(scores[order[:2]], abs=1e-5)
        assert client.post("/search", json={"query": " ", "rerank": True}).json() == {"hits": []}


def test_search_without_a_reranker_says_how_to_get_one(client):
    response = client.post("/search", json={"query": "bread", "rerank": True})
    assert response.status_code == 400 and "--reranker" in response.json()["error"]["message"]
    assert "reranker" not in client.get("/health").json()


@pytest.mark.parametrize("route", ["/rerank", "/v1/rerank", "/v2/rerank"])
def test_a_reranker_is_served_in_the_shapes_of_cohere_and_tei(serving, offline, reranker, route):
    documents, query = ["a dog", "bread", "the cat sleeps"], "bread"
    raw = reranker.score(query, documents)
    order = np.argsort(-raw).tolist()
    with serving(reranker=reranker, reranker_name="rr") as url, httpx.Client(base_url=url) as client:

        def post(**body):
            return client.post(route, json={"query": query, **body}).json()

        answer = post(documents=documents, model="rr", top_n=2, return_documents=True)
        assert answer["model"] == "rr" and [hit["index"] for hit in answer["results"]] == order[:2]
        scores = [hit["relevance_score"] for hit in answer["results"]]
        assert scores == pytest.approx(np.exp(raw)[order[:2]], abs=1e-5)
        assert answer["results"][0]["document"] == {"text": documents[order[0]]}
        assert post(documents=[{"text": text} for text in documents])["results"][0]["index"] == order[0]
        hits = post(texts=documents, raw_scores=True, return_text=True)
        assert [hit["index"] for hit in hits] == order and hits[0]["text"] == documents[order[0]]
        assert [hit["score"] for hit in hits] == pytest.approx(raw[order], abs=1e-5)
        assert [hit["score"] for hit in post(texts=documents)] == pytest.approx(np.exp(raw)[order], abs=1e-5)
        by_encoder = post(documents=documents, model="tiny")
        expected = sorted(offline.score([query] * 3, documents), reverse=True)
        assert [hit["relevance_score"] for hit in by_encoder["results"]] == pytest.approx(expected, abs=1e-5)
        for wrong in ({}, {"documents": documents, "texts": documents}, {"texts": []}, {"documents": [{"body": "x"}]}):
            assert client.post(route, json={"query": query, **wrong}).status_code == 400
        assert client.post(route, json={"query": query, "documents": documents, "model": "none"}).status_code == 404
        long = client.post(route, json={"query": "why " * 2000, "documents": documents})
        assert long.status_code == 400 and "leaves no room" in long.json()["error"]["message"]


@contextmanager
def held_up(monkeypatch):
    """held_up -> the pairs of each batch of the reranker; the first batch ends with the block."""
    batches, release, score_pairs = [], threading.Event(), Reranker.score_pairs

    def score(self, queries, documents):
        batches.append(list(zip(queries, documents, strict=True)))
        if len(batches) == 1:
            release.wait(60)
        return score_pairs(self, queries, documents)

    with monkeypatch.context() as patch:
        patch.setattr(Reranker, "score_pairs", score)
        try:
            yield batches, release
        finally:
            release.set()


def wait_for_queue(client, tokens):
    """Wait until this many tokens or more are in the queue of the server."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        waiting = re.search(r"^d2v_queue_tokens (.*)$", client.get("/metrics").text, re.M)
        if float(waiting[1]) >= tokens:
            return
        time.sleep(0.01)
    raise AssertionError("the requests were not queued")


def test_concurrent_rerank_requests_share_batches_and_get_their_own_scores(serving, reranker, monkeypatch):
    documents = ["a dog", "fresh bread from the oven", "the cat sleeps in the sun", "boats"]
    queries = [f"{word} in the morning" for word in ("bread", "cats", "dogs", "boats", "sun", "rain")]
    expected = {query: reranker.score(query, documents) for query in queries}
    with (
        serving(reranker=reranker) as url,
        httpx.Client(base_url=url, timeout=60) as client,
        ThreadPoolExecutor(len(queries) + 2) as pool,
        held_up(monkeypatch) as (batches, release),
    ):

        def post(query):
            return client.post("/rerank", json={"query": query, "texts": documents, "raw_scores": True})

        first = pool.submit(post, queries[0])
        wait_for_batch(batches)
        others = [pool.submit(post, query) for query in queries[1:]]
        faulty = pool.submit(post, "why " * 2000)
        wait_for_queue(client, 20 * len(documents) * (len(queries) - 2))
        release.set()
        for query, future in zip(queries, [first, *others], strict=True):
            scores = {hit["index"]: hit["score"] for hit in future.result().json()}
            assert [scores[index] for index in range(4)] == pytest.approx(expected[query].tolist(), rel=1e-5)
        assert faulty.result().status_code == 400 and "leaves no room" in faulty.result().text
    assert any(len({query for query, _ in batch}) > 2 for batch in batches), "pairs of several requests in one batch"


def test_the_queue_bounds_rerank_requests_and_drops_those_of_disconnected_clients(serving, reranker, monkeypatch):
    body = {"query": "bread", "documents": ["a dog", "fresh bread"]}
    with (
        serving(reranker=reranker, limits=Limits(max_waiting_tokens=300, max_batch_tokens=200)) as url,
        httpx.Client(base_url=url, timeout=60) as client,
        ThreadPoolExecutor(2) as pool,
        held_up(monkeypatch) as (batches, release),
    ):
        first = pool.submit(client.post, "/rerank", json=body)
        wait_for_batch(batches)
        with pytest.raises(httpx.ReadTimeout):
            httpx.post(f"{url}/rerank", json={**body, "query": "gone"}, timeout=0.5)
        pool.submit(client.post, "/rerank", json={**body, "query": "waits"})
        wait_for_queue(client, 100)
        assert client.post("/rerank", json={**body, "documents": ["fresh bread"] * 9}).status_code == 429
        release.set()
        assert first.result().status_code == 200
        assert client.post("/rerank", json=body).status_code == 200
    assert "gone" not in {query for batch in batches for query, _ in batch}


def wait_for_batch(batches):
    deadline = time.monotonic() + 60
    while not batches and time.monotonic() < deadline:
        time.sleep(0.01)


def test_compare_gives_the_similarity_of_each_layer(client, offline):
    texts = ["A cat sleeps.", "The boat is fast."]
    response = client.post("/compare", json=dict(zip("ab", texts, strict=True))).json()
    assert response["similarity"] == pytest.approx(float(offline.similarity(*offline.encode(texts))), abs=1e-5)
    assert [entry["layer"] for entry in response["layers"]] == list(range(offline.backbone.n_layers + 1))
    for layer, entry in enumerate(response["layers"]):  # one layer at a time, and a cosine by hand
        extractor = Extractor(offline.backbone, [Reading(layer, "lasttoken")], Template(offline.spec.template))
        a, b = extractor(texts)[:, 0].astype(np.float64)
        assert entry["similarity"] == pytest.approx(a @ b / np.linalg.norm(a) / np.linalg.norm(b), abs=1e-5)
    assert client.post("/compare", json={"a": "same", "b": "same"}).json()["similarity"] == 1


def test_scale_is_measured_on_unrelated_pairs_and_paraphrases(client, offline):
    scale = client.post("/compare", json={"a": "x", "b": "y"}).json()["scale"]
    rows = (Path(decoder2vec.__file__).parent / "demo" / "pairs.tsv").read_text("utf-8").splitlines()[1:]
    pairs = [(float(score), a, b) for score, a, b in (row.split("\t") for row in rows)]
    for kind, chosen in (
        ("unrelated", [pair for pair in pairs if pair[0] <= 0.5]),
        ("paraphrases", [pair for pair in pairs if pair[0] >= 4.5]),
    ):
        shortest = sorted(chosen, key=lambda pair: len(pair[1]) + len(pair[2]))[:8]
        values = [float(offline.similarity(*offline.encode([a, b]))) for _, a, b in shortest]
        expected = np.quantile(values, (0.1, 0.5, 0.9))
        np.testing.assert_allclose([scale[kind][name] for name in ("low", "median", "high")], expected, atol=1e-5)


def test_anything_with_encode_can_be_served(serving):
    words = WordEncoder()
    with serving(encoder=words, name="words", normalize=False) as url, httpx.Client(base_url=url) as client:
        data = client.post("/v1/embeddings", json={"input": ["a cat", "a dog"]}).json()["data"]
        np.testing.assert_allclose([item["embedding"] for item in data], WordEncoder().encode(["a cat", "a dog"]))
        response = client.post("/compare", json={"a": "a cat", "b": "a cat"}).json()
        assert response["similarity"] == pytest.approx(1) and response["layers"] == []
        assert client.post("/rerank", json={"query": "a", "documents": ["b"]}).status_code == 400


def test_every_route_uses_the_trained_head(offline, encoder, serving):
    """Vectors, scores and reasons are those of the whole encoder: several readings, code network and pair head."""
    layers = (Reading(2, "mean"), Reading(4, "lasttoken"), Reading(3, "mean", template="Say: {text}"))
    torch.manual_seed(0)
    head = LayerwiseHead(CodeNet(CodeSpec(dim=offline.backbone.dim, widths=(4, 3, 4))), Calibration())
    spec = replace(offline.spec, readings=layers)
    expected = Encoder(offline.backbone, spec, head)
    texts = ["A cat sleeps.", "The boat is fast.", "Bread."]
    with (
        serving(encoder=Encoder(encoder.backbone, spec, head)) as url,
        httpx.Client(base_url=url) as client,
    ):
        data = client.post("/v1/embeddings", json={"input": texts}).json()["data"]
        np.testing.assert_allclose([item["embedding"] for item in data], expected.encode(texts), atol=1e-5)
        compared = client.post("/compare", json={"a": texts[0], "b": texts[1]}).json()
        assert compared["similarity"] == pytest.approx(expected.explain(*texts[:2]).similarity, abs=1e-5)
        assert len(compared["layers"]) == offline.backbone.n_layers + 1
        results = client.post("/rerank", json={"query": texts[0], "documents": texts}).json()["results"]
        scores = [result["relevance_score"] for result in sorted(results, key=lambda result: result["index"])]
        assert scores == pytest.approx(expected.score([texts[0]] * 3, texts), abs=1e-5)
        body = {"left": [{"id": "l", "text": JOB}], "right": [{"id": "r", "text": PEOPLE["ann"]}], "top": 1}
        assert client.post("/match", json=body).status_code == 200
        (info,) = client.get("/v1/models").json()["data"]
        assert info["layer"] == [2, 4, 3] and info["pooling"] == ["mean", "lasttoken", "mean"]
        assert info["fingerprint"] == expected.fingerprint
