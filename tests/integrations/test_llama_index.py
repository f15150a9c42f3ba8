"""The classes for LlamaIndex, in an index of LlamaIndex and by the encoder that they wrap."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
from llama_index.core import VectorStoreIndex
from llama_index.core.llms import MockLLM
from llama_index.core.schema import NodeWithScore, TextNode

from decoder2vec.encoder import Encoder
from decoder2vec.errors import InputError
from decoder2vec.integrations.llama_index import Decoder2VecEmbedding, Decoder2VecRerank, Decoder2VecRetriever
from decoder2vec.maths.similarity import normalise
from decoder2vec.reranker import Reranker
from decoder2vec.search.index import Index

TEXTS = ["Cats sleep on the sofa.", "Ships sail to the islands.", "Bread is baked at night.", "Snow fell in May."]


@pytest.fixture(scope="module")
def encoder():
    prompts = {"query": "question: ", "document": "answer: "}
    return Encoder.from_pretrained("tiny-llama", device="cpu", pooling="mean", template="plain", prompts=prompts)


def test_prompts_of_queries_and_texts_are_used(encoder):
    model = Decoder2VecEmbedding(encoder, embed_batch_size=2)
    expected = normalise(encoder.encode_document(TEXTS))
    np.testing.assert_allclose(model.get_text_embedding_batch(TEXTS), expected, atol=1e-6)
    np.testing.assert_allclose(asyncio.run(model.aget_text_embedding_batch(TEXTS)), expected, atol=1e-6)
    query = normalise(encoder.encode_query(["cats?"]))[0]
    np.testing.assert_allclose(model.get_query_embedding("cats?"), query, atol=1e-6)
    np.testing.assert_allclose(asyncio.run(model.aget_query_embedding("cats?")), query, atol=1e-6)


def test_indexes_of_llama_index_rank_as_the_encoder(encoder):
    nodes = [TextNode(text=text) for text in TEXTS]
    index = VectorStoreIndex(nodes, embed_model=Decoder2VecEmbedding(encoder))
    found = [hit.node.get_content() for hit in index.as_retriever(similarity_top_k=4).retrieve("a sleeping cat")]
    scores = encoder.similarity(encoder.encode_query("a sleeping cat"), encoder.encode_document(TEXTS))[0]
    assert found == [TEXTS[row] for row in np.argsort(-scores.numpy())]


def test_retriever_and_reranker_work_in_a_query_engine(encoder, tmp_path):
    index = Index.create(tmp_path / "index", encoder)
    index.add([{"id": str(number), "text": text} for number, text in enumerate(TEXTS)])
    retriever = Decoder2VecRetriever(str(tmp_path / "index"), similarity_top_k=3)
    nodes = retriever.retrieve("ships on the sea")
    hits = index.search("ships on the sea", 3)
    assert [node.node.node_id for node in nodes] == [hit.id for hit in hits]
    assert nodes[0].score == pytest.approx(hits[0].score)
    best = Decoder2VecRerank(encoder, top_n=2).postprocess_nodes(nodes, query_str="Ships sail to the islands.")
    assert len(best) == 2 and best[0].node.get_content() == TEXTS[1] and best[0].score == pytest.approx(1.0)

    from llama_index.core.query_engine import RetrieverQueryEngine

    engine = RetrieverQueryEngine.from_args(
        retriever, llm=MockLLM(), node_postprocessors=[Decoder2VecRerank(encoder, top_n=1)]
    )
    assert len(engine.query("ships").source_nodes) == 1


def test_reranking_without_a_query_is_an_error(encoder):
    nodes = [NodeWithScore(node=TextNode(text="a"), score=0.0)]
    with pytest.raises(InputError, match="give the query"):
        Decoder2VecRerank(encoder).postprocess_nodes(nodes)


def test_a_saved_reranker_orders_nodes(tmp_path):
    reranker = Reranker.from_pretrained("tiny-mamba", device="cpu")
    nodes = [NodeWithScore(node=TextNode(text=text), score=0.0) for text in TEXTS]
    processor = Decoder2VecRerank(str(reranker.save(tmp_path / "reranker")))
    best = processor.postprocess_nodes(nodes, query_str="bread")
    order = np.argsort(-reranker.score("bread", TEXTS))
    assert [node.node.get_content() for node in best] == [TEXTS[row] for row in order]
