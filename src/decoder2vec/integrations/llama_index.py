"""LlamaIndex: an embedding model, a retriever over an index, and a reranker of nodes."""

from __future__ import annotations

import asyncio
from typing import Any

from decoder2vec.config import DEFAULT_ENCODER
from decoder2vec.errors import InputError, MissingExtraError
from decoder2vec.integrations.arguments import best_first, embed, to_index, to_reranker
from decoder2vec.search.store import resolve_encoder

try:
    from llama_index.core.base.base_retriever import BaseRetriever
    from llama_index.core.base.embeddings.base import BaseEmbedding
    from llama_index.core.bridge.pydantic import PrivateAttr
    from llama_index.core.postprocessor.types import BaseNodePostprocessor
    from llama_index.core.schema import NodeWithScore, QueryBundle, TextNode
except ImportError:
    raise MissingExtraError("llama-index-core", "llama-index") from None


class Decoder2VecEmbedding(BaseEmbedding):
    """An encoder as LlamaIndex's embedding model; queries and texts get the prompts that the encoder has for them.

    Args:
        encoder: An `Encoder`, anything with `encode`, a model name or the folder of a saved encoder.
        normalize: Give the vectors the length 1.
        kwargs: Fields of `BaseEmbedding`, such as `embed_batch_size`.
    """

    normalize: bool = True
    _encoder: Any = PrivateAttr()

    def __init__(self, encoder: Any = DEFAULT_ENCODER, *, normalize: bool = True, **kwargs: Any) -> None:
        name = encoder if isinstance(encoder, str) else type(encoder).__name__
        super().__init__(**{"model_name": str(name), "normalize": normalize, **kwargs})
        self._encoder = resolve_encoder(encoder)

    @classmethod
    def class_name(cls) -> str:
        """Return the name under which LlamaIndex stores settings."""
        return "Decoder2VecEmbedding"

    def _get_query_embedding(self, query: str) -> list[float]:
        return embed(self._encoder, [query], "query", normalize=self.normalize)[0]

    def _get_text_embedding(self, text: str) -> list[float]:
        return self._get_text_embeddings([text])[0]

    def _get_text_embeddings(self, texts: list[str]) -> list[list[float]]:
        return embed(self._encoder, texts, "document", normalize=self.normalize)

    async def _aget_query_embedding(self, query: str) -> list[float]:
        return await asyncio.to_thread(self._get_query_embedding, query)

    async def _aget_text_embedding(self, text: str) -> list[float]:
        return await asyncio.to_thread(self._get_text_embedding, text)

    async def _aget_text_embeddings(self, texts: list[str]) -> list[list[float]]:
        return await asyncio.to_thread(self._get_text_embeddings, texts)


class Decoder2VecRetriever(BaseRetriever):
    """An index as LlamaIndex's retriever.

    Args:
        index: An `Index`, or its folder or address.
        similarity_top_k: Maximum number of nodes.
        mode: dense, lexical or hybrid.
        filter: Metadata that documents must have.
        reranker: Rescores the best 30 documents: anything with `rerank`, or an encoder.
        kwargs: Arguments of `BaseRetriever`.
    """

    def __init__(
        self,
        index: Any,
        similarity_top_k: int = 5,
        mode: str = "hybrid",
        filter: dict[str, Any] | None = None,
        reranker: Any = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.index, self.similarity_top_k, self.mode, self.filter = to_index(index), similarity_top_k, mode, filter
        self.reranker = None if reranker is None else to_reranker(reranker)

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        query = query_bundle.query_str
        hits = self.index.search(query, self.similarity_top_k, self.mode, self.filter, self.reranker)
        return [
            NodeWithScore(node=TextNode(id_=hit.id, text=hit.text, metadata=hit.metadata), score=hit.score)
            for hit in hits
        ]


class Decoder2VecRerank(BaseNodePostprocessor):
    """A reranker as LlamaIndex's postprocessor of nodes.

    Args:
        reranker: Anything with `rerank`, or an encoder, which scores pairs of a query and a text.
        top_n: Maximum number of nodes; None: all of them, in the new order.
        kwargs: Fields of `BaseNodePostprocessor`.
    """

    top_n: int | None = None
    _reranker: Any = PrivateAttr()

    def __init__(self, reranker: Any = DEFAULT_ENCODER, *, top_n: int | None = None, **kwargs: Any) -> None:
        super().__init__(**{"top_n": top_n, **kwargs})
        self._reranker = to_reranker(reranker)

    @classmethod
    def class_name(cls) -> str:
        """Return the name under which LlamaIndex stores settings."""
        return "Decoder2VecRerank"

    def _postprocess_nodes(
        self, nodes: list[NodeWithScore], query_bundle: QueryBundle | None = None
    ) -> list[NodeWithScore]:
        if query_bundle is None:
            raise InputError("To rerank nodes, give the query: `query_bundle` or `query_str`.")
        texts = [node.node.get_content() for node in nodes]
        best = best_first(self._reranker, query_bundle.query_str, texts, self.top_n)
        return [NodeWithScore(node=nodes[position].node, score=score) for position, score in best]
