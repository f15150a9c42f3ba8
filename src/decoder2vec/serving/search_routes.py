"""The routes /rerank, /search, /match and /compare, with the schemas of their requests and responses."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Request
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator
from starlette.responses import JSONResponse

from decoder2vec.errors import InputError
from decoder2vec.matching.match import Match, MatchConfig, Matching, match_sides
from decoder2vec.matching.reasons import Reasons
from decoder2vec.matching.sides import Side, SideDocument
from decoder2vec.maths.probability import Probability
from decoder2vec.maths.similarity import pairwise_similarity
from decoder2vec.search.index import Hit
from decoder2vec.search.rerank import PairReranker
from decoder2vec.serving.api_errors import ERROR_RESPONSES, APIError
from decoder2vec.serving.openai_routes import ModelName, Usage
from decoder2vec.serving.service import LAYERS, ServedModel, Service, get_service
from decoder2vec.serving.similarity_scale import pair_similarities
from decoder2vec.serving.vector_cache import BatchKey

router = APIRouter(responses=ERROR_RESPONSES)


def _check_storable(text: str) -> str:
    """Reject characters that a store cannot hold: NUL and lone surrogates."""
    if "\0" in text or (not text.isascii() and text != text.encode("utf-8", "replace").decode()):
        raise ValueError("contains an invalid character")
    return text


FilterText = Annotated[str, AfterValidator(_check_storable)]
FilterValue = FilterText | bool | int | float


class _StrictRequest(BaseModel):
    model_config = ConfigDict(strict=True)


class DocumentText(BaseModel):
    """The text of a document."""

    text: str


class RerankRequest(_StrictRequest):
    """A query, and documents to sort by relevance to it: as `documents` (Cohere, Jina) or `texts` (TEI)."""

    query: str
    documents: Annotated[list[str | DocumentText] | None, Field(min_length=1)] = None
    texts: Annotated[list[str] | None, Field(min_length=1, description="Instead of documents, as TEI has it.")] = None
    top_n: Annotated[int | None, Field(ge=1)] = None
    return_documents: bool = False
    return_text: bool = False
    raw_scores: Annotated[bool, Field(description="With texts: the scores of the model as they are.")] = False
    model: ModelName = None

    @model_validator(mode="after")
    def _check_one_list(self) -> RerankRequest:
        if (self.documents is None) == (self.texts is None):
            raise ValueError("give documents or texts")
        return self

    def to_list(self) -> list[str]:
        """The texts of the documents."""
        if self.texts is not None:
            return self.texts
        return [document if isinstance(document, str) else document.text for document in self.documents or []]


class RerankResult(BaseModel):
    """A document by its index in the request, and its relevance to the query."""

    index: int
    relevance_score: float
    document: DocumentText | None = None


class RerankResponse(BaseModel):
    """Documents, best first."""

    model: str
    results: list[RerankResult]
    usage: Usage


class RerankedText(BaseModel):
    """A text by its index in the request, and its score, as TEI returns it."""

    index: int
    score: float
    text: str | None = None


class SearchRequest(_StrictRequest):
    """A query for the index."""

    query: str
    top: Annotated[int, Field(ge=1, le=1000)] = 10
    mode: Literal["hybrid", "dense", "lexical"] = "hybrid"
    filter: Annotated[
        dict[FilterText, FilterValue | list[FilterValue]] | None,
        Field(description="Required metadata: a value, or a list of allowed values, for each key."),
    ] = None
    rerank: Annotated[
        bool, Field(description="Sort the best 30 documents (or as tuned; `top` if more) by the server's reranker.")
    ] = False


class SearchSnippet(BaseModel):
    """An excerpt of a document; `text[start:end]` of each highlight is the best passage."""

    text: str
    highlights: list[tuple[int, int]]


class ProbabilityInterval(BaseModel):
    """A probability with its 95 % interval, if the encoder is calibrated."""

    value: float
    low: float
    high: float


class SearchHit(BaseModel):
    """A document that answers the query."""

    id: str
    score: float
    text: str
    metadata: dict[str, Any]
    snippet: SearchSnippet
    probability: ProbabilityInterval | None = None
    rank_before: Annotated[int | None, Field(description="Its rank before it was reranked, from 1.")] = None


class SearchResponse(BaseModel):
    """Documents, best first."""

    hits: list[SearchHit]


class MatchDocument(_StrictRequest):
    """A document to match, such as a job or a resume."""

    id: Annotated[str, Field(max_length=1000)]
    text: Annotated[str, Field(min_length=1)]


class MatchRequest(_StrictRequest):
    """Two sides of documents to match."""

    left: Annotated[list[MatchDocument], Field(min_length=1)]
    right: Annotated[list[MatchDocument], Field(min_length=1)]
    top: Annotated[int, Field(ge=1, le=1000)] = 5
    model: ModelName = None


class ScoredPair(BaseModel):
    """A section name or sentence of each side, and their similarity."""

    left: str
    right: str
    score: float


class MatchResult(BaseModel):
    """A document of the right side, its scores, and the reasons."""

    right: str
    score: float
    above: Annotated[float, Field(description="Share of all pairs of documents with a lower score.")]
    dense: float
    lexical: Annotated[float, Field(description="Share of terms in common.")]
    sections: list[ScoredPair]
    matched: list[str]
    missing: list[str]
    pairs: list[ScoredPair]
    probability: ProbabilityInterval | None = None


class MatchRanking(BaseModel):
    """A document of the left side, and its best matches."""

    left: str
    matches: list[MatchResult]


class MatchResponse(BaseModel):
    """One ranking for each document of the left side, and what the scores mean."""

    score_meaning: str
    rankings: list[MatchRanking]


class CompareRequest(_StrictRequest):
    """Two texts to compare."""

    a: str
    b: str
    model: ModelName = None


class LayerSimilarity(BaseModel):
    """The similarity in one layer: 0 is the embeddings, i the output of block i."""

    layer: int
    similarity: float


class SimilarityRange(BaseModel):
    """The similarities of reference pairs: 10 % are below `low` and 10 % above `high`."""

    low: float
    median: float
    high: float


class SimilarityScale(BaseModel):
    """What a similarity means with this encoder: what it gives to unrelated sentences and to paraphrases."""

    unrelated: SimilarityRange
    paraphrases: SimilarityRange


class CompareResponse(BaseModel):
    """The similarity of two texts by the encoder, its scale, and the similarity in each layer of the model."""

    similarity: float
    probability: ProbabilityInterval | None = None
    scale: SimilarityScale
    layers: Annotated[list[LayerSimilarity], Field(description="Of the plain states: without the encoder's head.")]


@router.post("/rerank", response_model=RerankResponse | list[RerankedText])
@router.post("/v1/rerank", response_model=RerankResponse | list[RerankedText])
@router.post("/v2/rerank", response_model=RerankResponse | list[RerankedText])
async def rerank(body: RerankRequest, request: Request) -> JSONResponse:
    """Score documents against a query and return them best first."""
    service = get_service(request)
    documents = body.to_list()
    if service.reranker is not None and body.model in (None, service.reranker_name):
        name = service.reranker_name
        raw, n_tokens = await service.rerank(request, body.query, documents)
        scores = (raw if body.raw_scores else service.reranker.unit_scores(raw)).tolist()
    else:
        model = service.models[body.model]
        name, reranker = model.id, PairReranker(service.queued_encoder(model))
        texts = [body.query, *documents]
        scores, n_tokens = await service.run_job(
            request,
            model,
            texts,
            lambda: (reranker.rerank(body.query, documents), sum(model.token_counter.count(texts))),
        )
    order = sorted(range(len(scores)), key=lambda index: -scores[index])[: body.top_n]
    if body.texts is not None:
        with_text = body.return_text or body.return_documents
        return JSONResponse(
            [
                {"index": index, "score": float(scores[index])} | ({"text": documents[index]} if with_text else {})
                for index in order
            ]
        )
    results = [
        {"index": index, "relevance_score": float(scores[index])}
        | ({"document": {"text": documents[index]}} if body.return_documents else {})
        for index in order
    ]
    return JSONResponse(
        {"model": name, "results": results, "usage": {"prompt_tokens": n_tokens, "total_tokens": n_tokens}}
    )


@router.post("/search", response_model=SearchResponse)
async def search(body: SearchRequest, request: Request) -> JSONResponse:
    """Return the documents of the index that answer a query best."""
    service = get_service(request)
    index = service.index
    if body.rerank and service.reranker is None:
        raise APIError(400, "This server has no reranker; start it with --reranker.", code="no_reranker")
    count = max(body.top, index.rerank_depth) if body.rerank else body.top
    found = await service.run_job(
        request,
        index.model,
        [body.query],
        lambda: index.search(body.query, count, body.mode, body.filter or None),
    )
    hits = [_hit_json(hit) for hit in found]
    if body.rerank and hits:
        assert service.reranker is not None
        raw, _ = await service.rerank(request, body.query, [hit.text for hit in found])
        scores = service.reranker.unit_scores(raw).tolist()
        reranked = [hit | {"score": scores[rank], "rank_before": rank + 1} for rank, hit in enumerate(hits)]
        hits = sorted(reranked, key=lambda hit: -hit["score"])[: body.top]
    return JSONResponse({"hits": hits})


@router.post("/match", response_model=MatchResponse)
async def match(body: MatchRequest, request: Request) -> JSONResponse:
    """Return the best documents of the right side for each document of the left side, with reasons."""
    service = get_service(request)
    model = service.models[body.model]
    left, right = _side("left", body.left), _side("right", body.right)
    texts = [document.text for document in (*body.left, *body.right)]
    choices = MatchConfig(top=body.top)
    matching = await service.run_job(
        request, model, texts, lambda: match_sides(left, right, service.queued_encoder(model), choices), in_parts=True
    )
    rankings = [
        {"left": document.id, "matches": [_match_json(matching, match) for match in matches]}
        for document, matches in zip(left.documents, matching.for_left, strict=True)
    ]
    return JSONResponse({"score_meaning": matching.score_meaning, "rankings": rankings})


@router.post("/compare", response_model=CompareResponse)
async def compare(body: CompareRequest, request: Request) -> JSONResponse:
    """Return the similarity of two texts by the encoder, and in each layer."""
    service = get_service(request)
    model = service.models[body.model]
    texts = [body.a, body.b]
    return JSONResponse(await service.run_job(request, model, texts, lambda: _compare(service, model, texts)))


def _compare(service: Service, model: ServedModel, texts: list[str]) -> dict[str, Any]:
    (similarity,) = pair_similarities(service.queued_encoder(model), texts[:1], texts[1:])
    layers = []
    if model.n_layers:
        token_counts = model.token_counter.count(texts)
        states = service.cached_batcher.encode(BatchKey(model.id, LAYERS), texts, token_counts)
        by_layer = pairwise_similarity(model.encoder.similarity_fn_name, *states.reshape(2, model.n_layers, -1))
        layers = [{"layer": layer, "similarity": value} for layer, value in enumerate(by_layer.tolist())]
    curve = getattr(model.encoder, "probabilities", {}).get("similarity")
    probability = _probability_json(curve(similarity) if curve else None)
    return {"similarity": similarity, **probability, "scale": service.similarity_scale(model), "layers": layers}


def _hit_json(hit: Hit) -> dict[str, Any]:
    snippet = {"text": hit.snippet.text, "highlights": [[hit.snippet.start, hit.snippet.end]]}
    fields = {"id": hit.id, "score": hit.score, "text": hit.text, "metadata": hit.metadata, "snippet": snippet}
    return {**fields, **_probability_json(hit.probability)}


def _probability_json(probability: Probability | None) -> dict[str, Any]:
    return {} if probability is None else {"probability": probability._asdict()}


def _side(name: str, documents: list[MatchDocument]) -> Side:
    ids = [document.id for document in documents]
    if len(set(ids)) < len(ids):
        raise InputError(f"{name}: two documents have the same id; give each its own.")
    blank = [row for row, document in enumerate(documents) if not document.text.strip()]
    if blank:
        raise InputError(f"{name}.{blank[0]}.text: the text is blank.")
    return Side(name, [SideDocument(document.id, document.text) for document in documents])


def _match_json(matching: Matching, match: Match) -> dict[str, Any]:
    reasons: Reasons = matching.reasons[match.left, match.right]
    return {
        "right": matching.right.documents[match.right].id,
        "score": match.score,
        "above": match.share_below,
        **_probability_json(match.probability),
        "dense": match.dense,
        "lexical": match.lexical,
        "sections": [{"left": pair.left, "right": pair.right, "score": pair.score} for pair in reasons.sections],
        "matched": list(reasons.terms.matched),
        "missing": list(reasons.terms.missing),
        "pairs": [{"left": pair.left, "right": pair.right, "score": pair.similarity} for pair in reasons.pairs],
    }
