"""The classes for LangChain, by LangChain's own tests and by the encoder that they wrap."""

from __future__ import annotations

import numpy as np
import pytest
from langchain_core.documents import Document
from langchain_core.vectorstores import InMemoryVectorStore
from langchain_tests.integration_tests import EmbeddingsIntegrationTests, RetrieversIntegrationTests
from langchain_tests.unit_tests import EmbeddingsUnitTests

from decoder2vec.encoder import Encoder
from decoder2vec.errors import InputError
from decoder2vec.integrations.langchain import Decoder2VecEmbeddings, Decoder2VecReranker, Decoder2VecRetriever
from decoder2vec.maths.similarity import normalise
from decoder2vec.reranker import Reranker
from decoder2vec.search.index import Index

TEXTS = ["Cats sleep on the sofa.", "Ships sail to the islands.", "Bread is baked at night.", "Snow fell in May."]


@pytest.fixture(scope="module")
def encoder():
    prompts = {"query": "question: ", "document": "answer: "}
    return Encoder.from_pretrained("tiny-llama", device="cpu", pooling="mean", template="plain", prompts=prompts)


@pytest.fixture(scope="module")
def index(encoder, tmp_path_factory):
    index = Index.create(tmp_path_factory.mktemp("langchain") / "index", encoder)
    index.add([{"id": str(number), "text": text, "place": number % 2} for number, text in enumerate(TEXTS)])
    return index


class _Embeddings:
    embeddings_class = Decoder2VecEmbeddings

    @property
    def embedding_model_params(self):
        return {"encoder": "tiny-llama", "device": "cpu"}


class TestEmbeddingsByUnitTests(_Embeddings, EmbeddingsUnitTests):
    pass


class TestEmbeddingsByIntegrationTests(_Embeddings, EmbeddingsIntegrationTests):
    pass


class TestRetriever(RetrieversIntegrationTests):
    retriever_constructor = Decoder2VecRetriever
    retriever_query_example = "a sleeping cat"

    @pytest.fixture(autouse=True)
    def _index(self, index):
        type(self).retriever_constructor_params = {"index": index, "mode": "dense"}


def test_prompts_of_queries_and_documents_are_used(encoder):
    embeddings = Decoder2VecEmbeddings(encoder)
    np.testing.assert_allclose(embeddings.embed_documents(TEXTS), normalise(encoder.encode_document(TEXTS)), atol=1e-6)
    np.testing.assert_allclose(
        embeddings.embed_query("cats?"), normalise(encoder.encode_query(["cats?"]))[0], atol=1e-6
    )
    raw = Decoder2VecEmbeddings(encoder, normalize=False)
    np.testing.assert_allclose(raw.embed_query("cats?"), encoder.encode_query("cats?"), atol=1e-6)
    assert embeddings.embed_documents([]) == []


def test_vector_stores_of_langchain_rank_as_the_encoder(encoder):
    store = InMemoryVectorStore.from_texts(TEXTS, Decoder2VecEmbeddings(encoder))
    found = [document.page_content for document in store.similarity_search("a sleeping cat", k=4)]
    scores = encoder.similarity(encoder.encode_query("a sleeping cat"), encoder.encode_document(TEXTS))[0]
    assert found == [TEXTS[row] for row in np.argsort(-scores.numpy())]


def test_retriever_returns_the_hits_of_the_index(index):
    retriever = Decoder2VecRetriever(index=index.location, k=2, filter={"place": "1"})
    documents = retriever.invoke("ships on the sea")
    hits = index.search("ships on the sea", 2, filter={"place": "1"})
    assert [document.id for document in documents] == [hit.id for hit in hits]
    assert documents[0].page_content == TEXTS[1] and documents[0].metadata["place"] == 1
    assert documents[0].metadata["score"] == pytest.approx(hits[0].score)


def test_reranker_orders_documents(encoder):
    documents = [Document(page_content=text, metadata={"row": row}) for row, text in enumerate(TEXTS)]
    reranker = Decoder2VecReranker(reranker=encoder, top_n=3)
    best = reranker.compress_documents(documents, "Bread is baked at night.")
    scores = encoder.score(["Bread is baked at night."] * 4, TEXTS)
    assert [document.metadata["row"] for document in best] == list(np.argsort(-scores)[:3])
    assert best[0].page_content == TEXTS[2] and best[0].metadata["relevance_score"] == pytest.approx(1.0)
    assert "relevance_score" not in documents[2].metadata  # those that were given stay as they are
    assert reranker.compress_documents([], "x") == []
    with pytest.raises(InputError, match="1 text or more"):
        Decoder2VecReranker(reranker=encoder, top_n=0).compress_documents(documents, "x")


def test_a_saved_reranker_orders_documents(tmp_path):
    reranker = Reranker.from_pretrained("tiny-mamba", device="cpu")
    folder = reranker.save(tmp_path / "reranker")
    documents = [Document(page_content=text, metadata={"row": row}) for row, text in enumerate(TEXTS)]
    order = list(np.argsort(-reranker.score("bread", TEXTS)))
    for given in (str(folder), reranker, "likelihood:tiny-mamba"):
        best = Decoder2VecReranker(reranker=given).compress_documents(documents, "bread")
        assert [document.metadata["row"] for document in best] == order
