"""The components for Haystack, in pipelines and by the encoder that they wrap."""

from __future__ import annotations

import os

import numpy as np
import pytest

os.environ["HAYSTACK_TELEMETRY_ENABLED"] = "False"

from haystack import Document, Pipeline
from haystack.components.retrievers.in_memory import InMemoryEmbeddingRetriever
from haystack.document_stores.in_memory import InMemoryDocumentStore

from decoder2vec.encoder import Encoder
from decoder2vec.errors import UnsupportedError
from decoder2vec.integrations.haystack import (
    Decoder2VecDocumentEmbedder,
    Decoder2VecRanker,
    Decoder2VecRetriever,
    Decoder2VecTextEmbedder,
)
from decoder2vec.maths.similarity import normalise
from decoder2vec.reranker import Reranker
from decoder2vec.search.index import Index

TEXTS = ["Cats sleep on the sofa.", "Ships sail to the islands.", "Bread is baked at night.", "Snow fell in May."]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    prompts = {"query": "question: ", "document": "answer: "}
    encoder = Encoder.from_pretrained("tiny-llama", device="cpu", pooling="mean", template="plain", prompts=prompts)
    return encoder.save(tmp_path_factory.mktemp("haystack") / "encoder")


def test_pipeline_of_embedders_ranks_as_the_encoder(folder):
    encoder = Encoder.load(folder, device="cpu")
    documents = [Document(content=text) for text in TEXTS]
    embedded = Decoder2VecDocumentEmbedder(str(folder)).run(documents)["documents"]
    np.testing.assert_allclose(
        [document.embedding for document in embedded], normalise(encoder.encode_document(TEXTS)), atol=1e-6
    )
    store = InMemoryDocumentStore(embedding_similarity_function="cosine")
    store.write_documents(embedded)
    pipeline = Pipeline()
    pipeline.add_component("embedder", Decoder2VecTextEmbedder(str(folder)))
    pipeline.add_component("retriever", InMemoryEmbeddingRetriever(store, top_k=4))
    pipeline.connect("embedder.embedding", "retriever.query_embedding")
    found = pipeline.run({"embedder": {"text": "a sleeping cat"}})["retriever"]["documents"]
    scores = encoder.similarity(encoder.encode_query("a sleeping cat"), encoder.encode_document(TEXTS))[0]
    assert [document.content for document in found] == [TEXTS[row] for row in np.argsort(-scores.numpy())]


def test_chosen_metadata_is_embedded_before_the_content(folder):
    encoder = Encoder.load(folder, device="cpu")
    component = Decoder2VecDocumentEmbedder(encoder, meta_fields_to_embed=["title", "year"], embedding_separator=" | ")
    document = Document(content="Cats sleep.", meta={"title": "Pets", "year": None})
    vector = component.run([document])["documents"][0].embedding
    np.testing.assert_allclose(vector, normalise(encoder.encode_document(["Pets | Cats sleep."]))[0], atol=1e-6)
    assert component.run([])["documents"] == []


def test_retriever_and_ranker_work_in_a_pipeline(folder, tmp_path):
    index = Index.create(tmp_path / "index", folder)
    index.add([{"id": str(number), "text": text} for number, text in enumerate(TEXTS)])
    pipeline = Pipeline()
    pipeline.add_component("retriever", Decoder2VecRetriever(str(tmp_path / "index"), top_k=3))
    pipeline.add_component("ranker", Decoder2VecRanker(str(folder), top_k=2))
    pipeline.connect("retriever.documents", "ranker.documents")
    pipeline = Pipeline.loads(
        pipeline.dumps(), allowed_modules=["decoder2vec.integrations.haystack"]
    )  # as YAML and back
    query = "Ships sail to the islands."
    documents = pipeline.run({"retriever": {"query": query}, "ranker": {"query": query}})["ranker"]["documents"]
    assert len(documents) == 2 and documents[0].content == query and documents[0].score == pytest.approx(1.0)
    hits = index.search(query, 3)
    found = Decoder2VecRetriever(index).run(query, top_k=3)["documents"]
    assert [(document.id, document.score) for document in found] == [(hit.id, pytest.approx(hit.score)) for hit in hits]


def test_objects_cannot_be_written_to_yaml(folder):
    for component in (Decoder2VecTextEmbedder, Decoder2VecDocumentEmbedder, Decoder2VecRanker):
        given = component(Encoder.load(folder, device="cpu"))
        with pytest.raises(UnsupportedError, match="give the component a name or a folder"):
            given.to_dict()


def test_a_saved_reranker_orders_documents(tmp_path):
    reranker = Reranker.from_pretrained("tiny-mamba", device="cpu")
    ranker = Decoder2VecRanker(str(reranker.save(tmp_path / "reranker")))
    ranker.warm_up()
    best = ranker.run(query="bread", documents=[Document(content=text) for text in TEXTS])["documents"]
    order = np.argsort(-reranker.score("bread", TEXTS))
    assert [document.content for document in best] == [TEXTS[row] for row in order]
