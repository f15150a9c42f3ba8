"""What is done with vectors on the server: rerank, search, match, compare."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import JSONResponse

from decoder2vec.errors import InputError
from decoder2vec.maths.similarity import row_by_row
from decoder2vec.search.index import Hit
from decoder2vec.search.matching.match import Match, MatchChoices, Matching, Reasons, match_sides
from decoder2vec.search.matching.sides import Document, Side
from decoder2vec.search.rerank import PairReranker
from decoder2vec.serving.lookup_shapes import (
    CompareRequest,
    Comparison,
    Hits,
    MatchRequest,
    Person,
    Rankings,
    Reranked,
    RerankRequest,
    SearchRequest,
)
from decoder2vec.serving.models import LAYERS, Served
from decoder2vec.serving.problems import PROBLEMS
from decoder2vec.serving.service import Service, service_of
from decoder2vec.serving.vectors import Key

router = APIRouter(responses=PROBLEMS)


@router.post("/rerank", response_model=Reranked)
async def rerank(asked: RerankRequest, request: Request) -> JSONResponse:
    """Documents scored beside a query, best first."""
    service = service_of(request)
    served = service.models[asked.model]
    job = PairReranker(service.queued(served))
    texts = [asked.query, *asked.documents]
    scores = await service.in_thread(request, served, texts, lambda: job.rerank(asked.query, asked.documents))
    order = sorted(range(len(scores)), key=lambda row: -scores[row])[: asked.top_n]
    results = [
        {"index": row, "relevance_score": float(scores[row])}
        | ({"document": {"text": asked.documents[row]}} if asked.return_documents else {})
        for row in order
    ]
    return JSONResponse({"model": served.id, "results": results})


@router.post("/search", response_model=Hits)
async def search(asked: SearchRequest, request: Request) -> JSONResponse:
    """The documents of the index that answer a query."""
    service = service_of(request)
    index = service.index
    hits = await service.in_thread(
        request,
        service.models[None],
        [asked.query],
        lambda: index.search(asked.query, asked.top, asked.mode, asked.filter or None),
    )
    return JSONResponse({"hits": [_hit(hit) for hit in hits]})


@router.post("/match", response_model=Rankings)
async def match(asked: MatchRequest, request: Request) -> JSONResponse:
    """For every document of the left side those of the right one that fit, and why."""
    service = service_of(request)
    served = service.models[asked.model]
    left, right = _side("left", asked.left), _side("right", asked.right)
    texts = [one.text for one in (*asked.left, *asked.right)]
    choices = MatchChoices(top=asked.top)
    found = await service.in_thread(
        request, served, texts, lambda: match_sides(left, right, service.queued(served), choices)
    )
    rankings = [
        {"left": document.id, "matches": [_match(found, row) for row in rows]}
        for document, rows in zip(left.documents, found.for_left, strict=True)
    ]
    return JSONResponse({"rankings": rankings})


@router.post("/compare", response_model=Comparison)
async def compare(asked: CompareRequest, request: Request) -> JSONResponse:
    """How alike two texts are to the encoder, and layer by layer."""
    service = service_of(request)
    served = service.models[asked.model]
    texts = [asked.a, asked.b]
    return JSONResponse(await service.in_thread(request, served, texts, lambda: _comparison(service, served, texts)))


def _comparison(service: Service, served: Served, texts: list[str]) -> dict[str, Any]:
    encoder = service.queued(served)
    vectors = encoder.encode(texts)
    own = getattr(encoder, "similarity_pairwise", None)
    whole = own(vectors[:1], vectors[1:]) if own else row_by_row("cosine", vectors[:1], vectors[1:])
    layers = []
    if served.layers:
        sizes = served.count.read(served.count(texts))
        states = service.vectors.wait_for(Key(served.id, LAYERS), texts, sizes).reshape(2, served.layers, -1)
        similarities = row_by_row(served.encoder.similarity_fn_name, *states)
        layers = [{"layer": layer, "similarity": one} for layer, one in enumerate(similarities.tolist())]
    return {"similarity": float(whole[0]), "layers": layers}


def _hit(hit: Hit) -> dict[str, Any]:
    snippet = {"text": hit.snippet.text, "highlights": [[hit.snippet.start, hit.snippet.end]]}
    return {"id": hit.id, "score": hit.score, "text": hit.text, "metadata": hit.metadata, "snippet": snippet}


def _side(name: str, people: list[Person]) -> Side:
    ids = [one.id for one in people]
    if len(set(ids)) < len(ids):
        raise InputError(f"{name}: two documents have the same id; give every one an id of its own.")
    blank = [place for place, one in enumerate(people) if not one.text.strip()]
    if blank:
        raise InputError(f"{name}.{blank[0]}.text: there is nothing in it.")
    return Side(name, [Document(one.id, one.text) for one in people])


def _match(found: Matching, row: Match) -> dict[str, Any]:
    why: Reasons = found.reasons[row.left, row.right]
    return {
        "right": found.right.documents[row.right].id,
        "score": row.score,
        "dense": row.dense,
        "lexical": row.lexical,
        "sections": [{"left": one.left, "right": one.right, "score": one.score} for one in why.sections],
        "matched": list(why.terms.matched),
        "missing": list(why.terms.missing),
        "pairs": [{"left": one.left, "right": one.right, "score": one.similarity} for one in why.pairs],
    }
