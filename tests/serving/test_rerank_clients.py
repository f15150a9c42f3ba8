"""The clients of Cohere, Jina and TEI, those of LangChain, LlamaIndex and Haystack among them."""

from __future__ import annotations

import numpy as np
import pytest

from decoder2vec.reranker import Reranker

DOCUMENTS = ["a dog", "fresh bread from the oven", "the cat sleeps"]
QUERY = "bread"


@pytest.fixture(scope="module")
def reranker(own_cache):
    """A reranker that needs no training."""
    return Reranker.from_pretrained("tiny-llama", device="cpu", dtype="float32")


@pytest.fixture(scope="module")
def expected(reranker):
    """(index, relevance) of the documents, best first."""
    scores = np.exp(reranker.score(QUERY, DOCUMENTS))
    return [(int(index), pytest.approx(float(scores[index]), rel=1e-4)) for index in np.argsort(-scores)]


@pytest.fixture
def served(serving, reranker):
    with serving(reranker=reranker, reranker_name="rr", api_keys=["secret"]) as url:
        yield url


@pytest.mark.parametrize("version", ["Client", "ClientV2"])
def test_cohere(served, expected, version):
    cohere = pytest.importorskip("cohere", reason="no client of Cohere: pip install cohere")
    client = getattr(cohere, version)(api_key="secret", base_url=served)
    answer = client.rerank(model="rr", query=QUERY, documents=DOCUMENTS, top_n=2)
    assert [(hit.index, hit.relevance_score) for hit in answer.results] == expected[:2]
    with pytest.raises(cohere.core.api_error.ApiError) as error:
        client.rerank(model="none", query=QUERY, documents=DOCUMENTS)
    assert error.value.status_code == 404
    with pytest.raises(cohere.core.api_error.ApiError) as error:
        getattr(cohere, version)(api_key="wrong", base_url=served).rerank(model="rr", query=QUERY, documents=DOCUMENTS)
    assert error.value.status_code == 401


def test_cohere_of_langchain(served, expected):
    langchain = pytest.importorskip("langchain_cohere", reason="no client of LangChain: pip install langchain-cohere")
    documents = pytest.importorskip("langchain_core.documents")
    client = langchain.CohereRerank(cohere_api_key="secret", base_url=served, model="rr", top_n=2)
    ranked = client.compress_documents([documents.Document(page_content=text) for text in DOCUMENTS], QUERY)
    found = [(DOCUMENTS.index(each.page_content), each.metadata["relevance_score"]) for each in ranked]
    assert found == expected[:2]


def test_cohere_of_haystack(served, expected, monkeypatch):
    cohere = pytest.importorskip("haystack_integrations.components.rankers.cohere", reason="no cohere-haystack")
    haystack = pytest.importorskip("haystack")
    monkeypatch.setenv("COHERE_API_KEY", "secret")
    ranker = cohere.CohereRanker(model="rr", api_base_url=served, top_k=2)
    documents = ranker.run(query=QUERY, documents=[haystack.Document(content=text) for text in DOCUMENTS])["documents"]
    assert [(DOCUMENTS.index(document.content), document.score) for document in documents] == expected[:2]


def test_jina_of_haystack(served, expected, monkeypatch):
    jina = pytest.importorskip("haystack_integrations.components.rankers.jina", reason="no jina-haystack")
    haystack = pytest.importorskip("haystack")
    monkeypatch.setenv("JINA_API_KEY", "secret")
    ranker = jina.JinaRanker(model="rr", base_url=f"{served}/v1/rerank", top_k=2)
    answer = ranker.run(query=QUERY, documents=[haystack.Document(content=text) for text in DOCUMENTS])
    ranked = answer["documents"]
    assert [(DOCUMENTS.index(document.content), document.score) for document in ranked] == expected[:2]
    assert answer["meta"]["model"] == "rr" and answer["meta"]["usage"]["total_tokens"] > 3 * 20


def test_tei_of_llama_index(served, expected):
    tei = pytest.importorskip("llama_index.postprocessor.tei_rerank", reason="no llama-index-postprocessor-tei-rerank")
    schema = pytest.importorskip("llama_index.core.schema")
    nodes = [schema.NodeWithScore(node=schema.TextNode(text=text)) for text in DOCUMENTS]
    client = tei.TextEmbeddingInference(base_url=served, top_n=2, auth_token="Bearer secret")
    hits = client.postprocess_nodes(nodes, query_str=QUERY)
    assert [(DOCUMENTS.index(hit.node.get_content()), hit.score) for hit in hits] == expected[:2]
