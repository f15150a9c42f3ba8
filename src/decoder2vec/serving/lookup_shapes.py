"""What rerank, search, match and compare are asked, and what they answer."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from decoder2vec.serving.embeddings import ModelName


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
