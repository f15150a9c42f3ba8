"""What rerank, search, match and compare are asked, and what they answer."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Request
from pydantic import AfterValidator, BaseModel, ConfigDict, Field
from starlette.responses import JSONResponse

from decoder2vec.errors import InputError
from decoder2vec.matching.match import Match, MatchConfig, Matching, Reasons, match_sides
from decoder2vec.matching.sides import Side, SideDocument
from decoder2vec.maths.similarity import pairwise_similarity
from decoder2vec.search.index import Hit
from decoder2vec.search.rerank import PairReranker
from decoder2vec.serving.api_errors import PROBLEMS
from decoder2vec.serving.embeddings import ModelName
from decoder2vec.serving.service import LAYERS, Served, Service, service_of
from decoder2vec.serving.vectors import Key


def _plain(word: str) -> str:
    """A word that any store can look for."""
    if "\0" in word or (not word.isascii() and word != word.encode("utf-8", "replace").decode()):
        raise ValueError("holds a sign that is none")
    return word


Word = Annotated[str, AfterValidator(_plain)]


class _Asked(BaseModel):
    model_config = ConfigDict(strict=True)


class RerankRequest(_Asked):
    """A query, and documents to be put in order."""

    query: str
    documents: Annotated[list[str], Field(min_length=1)]
    top_n: Annotated[int | None, Field(ge=1)] = None
    return_documents: bool = False
    model: ModelName = None


class DocumentText(BaseModel):
    """A document that was sent."""

    text: str


class Relevance(BaseModel):
    """A document by its place in the request, and how well it answers."""

    index: int
    relevance_score: float
    document: DocumentText | None = None


class Reranked(BaseModel):
    """Documents, best first."""

    model: str
    results: list[Relevance]


class SearchRequest(_Asked):
    """What is looked for in the index."""

    query: str
    top: Annotated[int, Field(ge=1, le=1000)] = 10
    mode: Literal["hybrid", "dense", "lexical"] = "hybrid"
    filter: Annotated[
        dict[Word, Word | list[Word]] | None,
        Field(description="What the metadata must say: a value, or one of several."),
    ] = None


class Excerpt(BaseModel):
    """A part of a document; `text[start:end]` of each highlight is what answers best."""

    text: str
    highlights: list[tuple[int, int]]


class Found(BaseModel):
    """A document that was found."""

    id: str
    score: float
    text: str
    metadata: dict[str, Any]
    snippet: Excerpt


class Hits(BaseModel):
    """Documents, best first."""

    hits: list[Found]


class Person(_Asked):
    """A job, a resume, or whatever is matched."""

    id: Annotated[str, Field(max_length=1000)]
    text: Annotated[str, Field(min_length=1)]


class MatchRequest(_Asked):
    """Two sides."""

    left: Annotated[list[Person], Field(min_length=1)]
    right: Annotated[list[Person], Field(min_length=1)]
    top: Annotated[int, Field(ge=1, le=1000)] = 5
    model: ModelName = None


class Pair(BaseModel):
    """A part of each side and how alike they are: two sections by name, or two sentences."""

    left: str
    right: str
    score: float


class Matched(BaseModel):
    """A document of the right side, how well it fits, and why."""

    right: str
    score: float
    dense: float
    lexical: float
    sections: list[Pair]
    matched: list[str]
    missing: list[str]
    pairs: list[Pair]


class Ranking(BaseModel):
    """A document of the left side, and those that fit it best."""

    left: str
    matches: list[Matched]


class Rankings(BaseModel):
    """One ranking for each document of the left side."""

    rankings: list[Ranking]


class CompareRequest(_Asked):
    """Two texts."""

    a: str
    b: str
    model: ModelName = None


class LayerSimilarity(BaseModel):
    """0 is the embeddings, i the output of block i."""

    layer: int
    similarity: float


class Comparison(BaseModel):
    """How alike two texts are to the encoder, and to each layer of its model."""

    similarity: float
    layers: list[LayerSimilarity]


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
    choices = MatchConfig(top=asked.top)
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
    whole = own(vectors[:1], vectors[1:]) if own else pairwise_similarity("cosine", vectors[:1], vectors[1:])
    layers = []
    if served.layers:
        sizes = served.count.read(served.count(texts))
        states = service.vectors.wait_for(Key(served.id, LAYERS), texts, sizes).reshape(2, served.layers, -1)
        similarities = pairwise_similarity(served.encoder.similarity_fn_name, *states)
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
    return Side(name, [SideDocument(one.id, one.text) for one in people])


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
