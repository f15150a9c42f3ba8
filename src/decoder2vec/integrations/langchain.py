"""LangChain: embeddings, a retriever over an index, and a reranker of documents."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from decoder2vec.config import DEFAULT_ENCODER
from decoder2vec.errors import MissingExtraError
from decoder2vec.integrations.arguments import best_first, embed, to_index, to_reranker
from decoder2vec.search.store import resolve_encoder

try:
    from langchain_core.callbacks import CallbackManagerForRetrieverRun, Callbacks
    from langchain_core.documents import BaseDocumentCompressor, Document
    from langchain_core.embeddings import Embeddings
    from langchain_core.retrievers import BaseRetriever
    from pydantic import Field, field_validator
except ImportError:
    raise MissingExtraError("langchain-core", "langchain") from None


class Decoder2VecEmbeddings(Embeddings):
    """An encoder as LangChain's `Embeddings`; queries and documents get the prompts that the encoder has for them.

    Args:
        encoder: An `Encoder`, anything with `encode`, a model name or the folder of a saved encoder.
        normalize: Give the vectors the length 1, as most vector stores expect.
        options: Options of `Encoder.from_pretrained`, where `encoder` is a name or folder.

    Example:
        >>> from decoder2vec.integrations.langchain import Decoder2VecEmbeddings
        >>> embeddings = Decoder2VecEmbeddings("tiny-llama")
        >>> len(embeddings.embed_query("How do cats sleep?"))
        32
    """

    def __init__(self, encoder: Any = DEFAULT_ENCODER, *, normalize: bool = True, **options: Any) -> None:
        self.encoder = resolve_encoder(encoder, **options)
        self.normalize = normalize

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        """Return the vectors of documents."""
        return embed(self.encoder, texts, "document", normalize=self.normalize)

    def embed_query(self, text: str) -> list[float]:
        """Return the vector of a query."""
        return embed(self.encoder, [text], "query", normalize=self.normalize)[0]


class Decoder2VecRetriever(BaseRetriever):
    """An index as LangChain's retriever. Documents have the metadata of the index, and their `score`.

    Example:
        >>> import decoder2vec as d2v
        >>> from decoder2vec.integrations.langchain import Decoder2VecRetriever
        >>> index = d2v.Index.create("my-index", "tiny-llama")
        >>> changes = index.add(["Cats sleep.", "Ships sail."])
        >>> [document.page_content for document in Decoder2VecRetriever(index=index, k=1).invoke("a sleeping cat")]
        ['Cats sleep.']
    """

    index: Any
    """An `Index`, or its folder or address."""
    k: int = 5
    """Maximum number of documents."""
    mode: str = "hybrid"
    """dense, lexical or hybrid."""
    filter: dict[str, Any] | None = None
    """Metadata that documents must have."""
    reranker: Any = None
    """Rescores the best 30 documents: anything with `rerank`, or an encoder."""

    @field_validator("index")
    @classmethod
    def _open(cls, index: Any) -> Any:
        return to_index(index)

    @field_validator("reranker")
    @classmethod
    def _load(cls, reranker: Any) -> Any:
        return None if reranker is None else to_reranker(reranker)

    def _get_relevant_documents(
        self, query: str, *, run_manager: CallbackManagerForRetrieverRun, k: int | None = None
    ) -> list[Document]:
        hits = self.index.search(query, k or self.k, self.mode, self.filter, self.reranker)
        return [
            Document(id=hit.id, page_content=hit.text, metadata={**hit.metadata, "score": hit.score}) for hit in hits
        ]


class Decoder2VecReranker(BaseDocumentCompressor):
    """A reranker as LangChain's document compressor. The score is kept as `relevance_score` of the metadata."""

    reranker: Any = Field(default=DEFAULT_ENCODER, validate_default=True)
    """Anything with `rerank`, or an encoder, which scores pairs of a query and a document."""
    top_n: int | None = None
    """Maximum number of documents; None: all of them, in the new order."""

    @field_validator("reranker")
    @classmethod
    def _load(cls, reranker: Any) -> Any:
        return to_reranker(reranker)

    def compress_documents(
        self, documents: Sequence[Document], query: str, callbacks: Callbacks | None = None
    ) -> Sequence[Document]:
        """Return the documents that answer the query best, best first."""
        best = best_first(self.reranker, query, [document.page_content for document in documents], self.top_n)
        return [
            documents[position].model_copy(
                update={"metadata": {**documents[position].metadata, "relevance_score": score}}
            )
            for position, score in best
        ]
