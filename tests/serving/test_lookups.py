"""Search, match, rerank and compare over HTTP against the same asked offline; the page and what stands around it."""

from __future__ import annotations

from dataclasses import replace

import httpx
import numpy as np
import pytest
import torch

from decoder2vec.activations.extract import Extractor
from decoder2vec.config import Reading
from decoder2vec.encoder import Encoder
from decoder2vec.heads.calibration import Calibration
from decoder2vec.heads.codes import CodeNet, CodeSpec
from decoder2vec.heads.layerwise import LayerwiseHead
from decoder2vec.matching.match import MatchConfig, match_sides
from decoder2vec.matching.sides import Side, SideDocument
from decoder2vec.search.index import Index
from decoder2vec.serving import pages
from decoder2vec.text.template import Template
from toys.documents import DOCUMENTS
from toys.encoder import WordEncoder

JOB = "Baker wanted.\n\nSkills\nBake fresh bread at night. Keep the oven hot."
PEOPLE = {"ann": "Skills\nI bake bread and cakes.\n\nEducation\nOven school.", "bob": "I sail boats.", "cat": "Skills"}


@pytest.mark.parametrize("mode", ["hybrid", "dense", "lexical"])
def test_search_finds_what_the_index_finds(client, index_folder, offline, mode):
    answer = client.post("/search", json={"query": "bread in the oven", "top": 2, "mode": mode}).json()
    expected = Index.open(index_folder, offline).search("bread in the oven", 2, mode)
    assert [hit["id"] for hit in answer["hits"]] == [hit.id for hit in expected]
    for hit, known in zip(answer["hits"], expected, strict=True):
        assert hit["score"] == pytest.approx(known.score, abs=1e-5)
        assert (hit["text"], hit["metadata"]) == (known.text, known.metadata)
        ((begin, end),) = hit["snippet"]["highlights"]
        assert hit["snippet"]["text"][begin:end] == known.snippet.text[known.snippet.start : known.snippet.end]


def test_search_takes_a_filter_and_gives_ten_unless_told(client):
    found = client.post("/search", json={"query": "the", "mode": "dense"}).json()["hits"]
    assert {hit["id"] for hit in found} == {document.id for document in DOCUMENTS}
    body = {"query": "the", "mode": "dense", "filter": {"kind": ["pet", "food"]}}
    assert {hit["id"] for hit in client.post("/search", json=body).json()["hits"]} == {"cat", "bread"}
    assert client.post("/search", json={"query": "  "}).json() == {"hits": []}


def test_without_an_index_or_a_sweep_that_is_said(serving):
    with serving() as url, httpx.Client(base_url=url) as client:
        for answer in (client.post("/search", json={"query": "x"}), client.get("/sweep")):
            assert answer.status_code == 404 and "start it with --" in answer.json()["error"]["message"]


def test_match_ranks_as_offline_with_the_same_reasons(client, offline):
    people = [{"id": name, "text": text} for name, text in PEOPLE.items()]
    answer = client.post("/match", json={"left": [{"id": "job", "text": JOB}], "right": people, "top": 2}).json()
    (ranking,) = answer["rankings"]
    sides = Side("left", [SideDocument("job", JOB)]), Side("right", [SideDocument(*one) for one in PEOPLE.items()])
    expected = match_sides(*sides, offline, MatchConfig(top=2))
    assert ranking["left"] == "job" and len(ranking["matches"]) == 2
    for found, known in zip(ranking["matches"], expected.for_left[0], strict=True):
        why = expected.reasons[0, known.right]
        assert found["right"] == list(PEOPLE)[known.right]
        numbers = [known.score, known.dense, known.lexical]
        assert [found[name] for name in ("score", "dense", "lexical")] == pytest.approx(numbers, abs=1e-4)
        assert [(one["left"], one["right"]) for one in found["sections"]] == [(s.left, s.right) for s in why.sections]
        assert (found["matched"], found["missing"]) == (list(why.terms.matched), list(why.terms.missing))
        assert [(one["left"], one["right"]) for one in found["pairs"]] == [(p.left, p.right) for p in why.pairs]


@pytest.mark.parametrize(
    "right", [[{"id": "a", "text": " "}], [{"id": "a", "text": "x"}, {"id": "a", "text": "y"}], []]
)
def test_sides_that_cannot_be_matched_are_refused(client, right):
    answer = client.post("/match", json={"left": [{"id": "job", "text": JOB}], "right": right, "top": 2})
    assert answer.status_code == 400 and "right" in answer.json()["error"]["message"]


def test_rerank_scores_as_offline_and_puts_the_best_first(client, offline):
    documents = ["a dog", "bread", "the cat", "bread"]
    body = {"query": "bread", "documents": documents, "return_documents": True}
    results = client.post("/rerank", json=body).json()["results"]
    expected = offline.score(["bread"] * 4, documents)
    assert [one["index"] for one in results] == sorted(range(4), key=lambda row: -expected[row])
    assert [one["relevance_score"] for one in results] == pytest.approx(sorted(expected, reverse=True), abs=1e-5)
    assert all(one["document"]["text"] == documents[one["index"]] for one in results)
    short = client.post("/rerank", json={"query": "bread", "documents": documents, "top_n": 1}).json()["results"]
    assert [one["index"] for one in short] == [results[0]["index"]] and not short[0].get("document")


def test_compare_says_how_alike_two_texts_are_to_each_layer(client, offline):
    texts = ["A cat sleeps.", "The boat is fast."]
    answer = client.post("/compare", json=dict(zip("ab", texts, strict=True))).json()
    assert answer["similarity"] == pytest.approx(float(offline.similarity(*offline.encode(texts))), abs=1e-5)
    assert [one["layer"] for one in answer["layers"]] == list(range(offline.backbone.n_layers + 1))
    for layer, found in enumerate(answer["layers"]):  # one layer at a time, and a cosine by hand
        read = Extractor(offline.backbone, [Reading(layer, "lasttoken")], Template(offline.spec.template))
        a, b = read(texts)[:, 0].astype(np.float64)
        assert found["similarity"] == pytest.approx(a @ b / np.linalg.norm(a) / np.linalg.norm(b), abs=1e-5)
    assert client.post("/compare", json={"a": "same", "b": "same"}).json()["similarity"] == 1


def test_the_sweep_is_shown_as_it_was_written(client):
    assert client.get("/sweep").json() == {"rows": [1, 2]}


def test_the_page_is_served_under_a_strict_policy(client):
    for path in ("/", "/page/index.html"):
        answer = client.get(path)
        assert answer.status_code == 200 and answer.headers["content-type"] == "text/html; charset=utf-8"
        assert answer.headers["content-security-policy"].startswith("default-src 'self';")
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.content == (pages.PAGE / "index.html").read_bytes()


@pytest.mark.parametrize("path", ["/page/..%2fapp.py", "/page/%2e%2e/app.py", "/page//etc/passwd", "/page/", "/docs"])
def test_no_other_file_is_served(client, path):
    answer = client.get(path)
    assert answer.status_code == 404 and set(answer.json()["error"]) == {"message", "type", "param", "code"}


def test_metrics_count_requests_by_route_and_never_by_address(client):
    client.get("/v1/models/no-such-model")
    client.get("/some/secret/address")
    text = client.get("/metrics").text
    assert 'd2v_requests_total{route="/v1/models/{name}",status="404"}' in text.replace("{name:path}", "{name}")
    assert "secret" not in text and "no-such-model" not in text
    for name in ("d2v_queue_tokens", "d2v_texts_total", "d2v_cache_hits_total", "d2v_request_seconds_bucket"):
        assert name in text


def test_anything_with_encode_can_be_served(serving):
    words = WordEncoder()
    with serving(encoder=words, name="words") as url, httpx.Client(base_url=url) as client:
        found = client.post("/v1/embeddings", json={"input": ["a cat", "a dog"]}).json()["data"]
        np.testing.assert_allclose([one["embedding"] for one in found], WordEncoder().encode(["a cat", "a dog"]))
        answer = client.post("/compare", json={"a": "a cat", "b": "a cat"}).json()
        assert answer["similarity"] == pytest.approx(1) and answer["layers"] == []
        assert client.post("/rerank", json={"query": "a", "documents": ["b"]}).status_code == 400


def test_a_trained_head_is_not_forgotten(offline, encoder, serving):
    """Vectors, scores and reasons are those of the whole encoder: layers under several prompts, codes, pair head."""
    layers = (Reading(2, "mean"), Reading(4, "lasttoken"), Reading(3, "mean", template="Say: {text}"))
    torch.manual_seed(0)
    head = LayerwiseHead(CodeNet(CodeSpec(dim=offline.backbone.dim, widths=(4, 3, 4))), Calibration())
    spec = replace(offline.spec, readings=layers)
    whole = Encoder(offline.backbone, spec, head)
    texts = ["A cat sleeps.", "The boat is fast.", "Bread."]
    with (
        serving(encoder=Encoder(encoder.backbone, spec, head)) as url,
        httpx.Client(base_url=url) as client,
    ):
        found = [one["embedding"] for one in client.post("/v1/embeddings", json={"input": texts}).json()["data"]]
        np.testing.assert_allclose(found, whole.encode(texts), atol=1e-5)
        compared = client.post("/compare", json={"a": texts[0], "b": texts[1]}).json()
        assert compared["similarity"] == pytest.approx(whole.explain(*texts[:2]).similarity, abs=1e-5)
        assert len(compared["layers"]) == offline.backbone.n_layers + 1
        scores = client.post("/rerank", json={"query": texts[0], "documents": texts}).json()["results"]
        by_place = [one["relevance_score"] for one in sorted(scores, key=lambda one: one["index"])]
        assert by_place == pytest.approx(whole.score([texts[0]] * 3, texts), abs=1e-5)
        body = {"left": [{"id": "l", "text": JOB}], "right": [{"id": "r", "text": PEOPLE["ann"]}], "top": 1}
        assert client.post("/match", json=body).status_code == 200
        (said,) = client.get("/v1/models").json()["data"]
        assert said["layer"] == [2, 4, 3] and said["pooling"] == ["mean", "lasttoken", "mean"]
        assert said["fingerprint"] == whole.fingerprint
