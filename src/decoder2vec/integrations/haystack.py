"""Haystack: components that embed queries and documents, retrieve from an index, and rank documents.

Encoders, indexes and rerankers that are given by name or folder are loaded by `warm_up`, which a pipeline calls, and
are written to YAML. Those that are given as objects cannot be written.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from decoder2vec.config import DEFAULT_ENCODER
from decoder2vec.errors import MissingExtraError, UnsupportedError
from decoder2vec.integrations.arguments import best_first, embed, to_index, to_reranker
from decoder2vec.search.store import resolve_encoder

try:
    from haystack import Document, component, default_to_dict
except ImportError:
    raise MissingExtraError("haystack-ai", "haystack") from None


@component
class Decoder2VecTextEmbedder:
    """Embeds a query, with the prompt that the encoder has for queries.

    Args:
        encoder: An `Encoder`, anything with `encode`, a model name or the folder of a saved encoder.
        normalize: Give the vectors the length 1.
    """

    def __init__(self, encoder: Any = DEFAULT_ENCODER, normalize: bool = True) -> None:
        self.encoder, self.normalize = encoder, normalize
        self._encoder: Any = None

    def warm_up(self) -> None:
        """Load the encoder."""
        self._encoder = self._encoder or resolve_encoder(self.encoder)

    def to_dict(self) -> dict[str, Any]:
        """Return the settings for YAML."""
        return default_to_dict(self, encoder=_name(self.encoder), normalize=self.normalize)

    @component.output_types(embedding=list[float])
    def run(self, text: str) -> dict[str, Any]:
        """Return the vector of a query as `embedding`."""
        self.warm_up()
        return {"embedding": embed(self._encoder, [text], "query", normalize=self.normalize)[0]}


@component
class Decoder2VecDocumentEmbedder:
    """Embeds documents, with the prompt that the encoder has for documents.

    Args:
        encoder: An `Encoder`, anything with `encode`, a model name or the folder of a saved encoder.
        normalize: Give the vectors the length 1.
        meta_fields_to_embed: Fields of `meta` whose values are put before the content, such as a title.
        embedding_separator: What separates these values and the content.
    """

    def __init__(
        self,
        encoder: Any = DEFAULT_ENCODER,
        normalize: bool = True,
        meta_fields_to_embed: list[str] | None = None,
        embedding_separator: str = "\n",
    ) -> None:
        self.encoder, self.normalize = encoder, normalize
        self._encoder: Any = None
        self.meta_fields_to_embed, self.embedding_separator = meta_fields_to_embed or [], embedding_separator

    def warm_up(self) -> None:
        """Load the encoder."""
        self._encoder = self._encoder or resolve_encoder(self.encoder)

    def to_dict(self) -> dict[str, Any]:
        """Return the settings for YAML."""
        return default_to_dict(
            self,
            encoder=_name(self.encoder),
            normalize=self.normalize,
            meta_fields_to_embed=self.meta_fields_to_embed,
            embedding_separator=self.embedding_separator,
        )

    @component.output_types(documents=list[Document])
    def run(self, documents: list[Document]) -> dict[str, Any]:
        """Return the `documents` with their vectors."""
        self.warm_up()
        texts = [self._text(document) for document in documents]
        vectors = embed(self._encoder, texts, "document", normalize=self.normalize)
        return {
            "documents": [
                replace(document, embedding=vector) for document, vector in zip(documents, vectors, strict=True)
            ]
        }

    def _text(self, document: Document) -> str:
        values = [document.meta[name] for name in self.meta_fields_to_embed if document.meta.get(name) is not None]
        return self.embedding_separator.join([*map(str, values), document.content or ""])


@component
class Decoder2VecRetriever:
    """Retrieves documents from an index.

    Args:
        index: An `Index`, or its folder or address.
        top_k: Maximum number of documents.
        mode: dense, lexical or hybrid.
        filter: Metadata that documents must have.
    """

    def __init__(self, index: Any, top_k: int = 5, mode: str = "hybrid", filter: dict[str, Any] | None = None) -> None:
        self.index, self.top_k, self.mode, self.filter = index, top_k, mode, filter
        self._index: Any = None

    def warm_up(self) -> None:
        """Open the index."""
        self._index = self._index or to_index(self.index)

    def to_dict(self) -> dict[str, Any]:
        """Return the settings for YAML."""
        return default_to_dict(self, index=_name(self.index), top_k=self.top_k, mode=self.mode, filter=self.filter)

    @component.output_types(documents=list[Document])
    def run(self, query: str, top_k: int | None = None) -> dict[str, Any]:
        """Return the `documents` that answer a query, best first."""
        self.warm_up()
        hits = self._index.search(query, top_k or self.top_k, self.mode, self.filter)
        return {
            "documents": [Document(id=hit.id, content=hit.text, meta=hit.metadata, score=hit.score) for hit in hits]
        }


@component
class Decoder2VecRanker:
    """Ranks documents for a query.

    Args:
        reranker: Anything with `rerank`, or an encoder, which scores pairs of a query and a document.
        top_k: Maximum number of documents; None: all of them, in the new order.
    """

    def __init__(self, reranker: Any = DEFAULT_ENCODER, top_k: int | None = None) -> None:
        self.reranker, self.top_k = reranker, top_k
        self._reranker: Any = None

    def warm_up(self) -> None:
        """Load the reranker."""
        self._reranker = self._reranker or to_reranker(self.reranker)

    def to_dict(self) -> dict[str, Any]:
        """Return the settings for YAML."""
        return default_to_dict(self, reranker=_name(self.reranker), top_k=self.top_k)

    @component.output_types(documents=list[Document])
    def run(self, query: str, documents: list[Document], top_k: int | None = None) -> dict[str, Any]:
        """Return the `documents` that answer a query best, best first."""
        self.warm_up()
        best = best_first(
            self._reranker, query, [document.content or "" for document in documents], top_k or self.top_k
        )
        return {"documents": [replace(documents[position], score=score) for position, score in best]}


def _name(given: Any) -> str:
    """What is written to YAML for an encoder, an index or a reranker."""
    if not isinstance(given, str | Path):
        raise UnsupportedError(
            f"A {type(given).__name__} cannot be written to YAML; give the component a name or a folder instead."
        )
    return str(given)
