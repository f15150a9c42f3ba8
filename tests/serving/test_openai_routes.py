"""OpenAI's routes used by the clients of OpenAI and LangChain, compared with the encoder used directly."""

from __future__ import annotations

import base64
import struct

import httpx
import numpy as np
import openai
import pytest
import tiktoken
from langchain_openai import OpenAIEmbeddings

from decoder2vec.evaluation.baselines import load_encoder
from decoder2vec.serving import tokens

TEXTS = ["A cat sleeps.", "Kätzchen 🐈 träumen", "", "The boat leaves at seven, unless the wind is too strong."]


@pytest.fixture(scope="module")
def openai_client(url):
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as opened:
        yield opened


def test_openai_client_gets_the_vectors_of_the_encoder(openai_client, offline):
    response = openai_client.embeddings.create(model="tiny", input=TEXTS)  # requests base64 by default
    assert [item.index for item in response.data] == [0, 1, 2, 3]
    np.testing.assert_allclose([item.embedding for item in response.data], offline.encode(TEXTS), atol=1e-5, rtol=1e-5)
    vector = openai_client.embeddings.create(model="tiny", input=TEXTS[0], encoding_format="float").data[0].embedding
    np.testing.assert_allclose(vector, offline.encode(TEXTS[0]), atol=1e-5, rtol=1e-5)


def test_usage_counts_the_tokens_that_the_model_reads(openai_client, offline):
    before = offline.stats.tokens
    offline.encode(TEXTS)
    expected = offline.stats.tokens - before
    usage = openai_client.embeddings.create(model="tiny", input=TEXTS).usage
    assert usage.prompt_tokens == usage.total_tokens == expected
    long = "word " * 5000
    assert openai_client.embeddings.create(model="tiny", input=long).usage.total_tokens == offline.max_seq_length


def test_dimensions_truncate_and_then_normalise(openai_client, offline):
    for dimensions in (1, 5, offline.dim):
        data = openai_client.embeddings.create(model="tiny", input=TEXTS, dimensions=dimensions).data
        truncated = offline.encode(TEXTS)[:, :dimensions]
        expected = truncated / np.linalg.norm(truncated, axis=1, keepdims=True)
        np.testing.assert_allclose([item.embedding for item in data], expected, atol=1e-5)
    with pytest.raises(openai.BadRequestError, match="dimensions"):
        openai_client.embeddings.create(model="tiny", input=TEXTS, dimensions=offline.dim + 1)


def test_base64_is_little_endian_float32(client, offline):
    body = {"model": "tiny", "input": TEXTS[0], "encoding_format": "base64"}
    packed = base64.b64decode(client.post("/v1/embeddings", json=body).json()["data"][0]["embedding"])
    assert len(packed) == 4 * offline.dim
    vector = struct.unpack(f"<{offline.dim}f", packed)
    np.testing.assert_allclose(vector, offline.encode(TEXTS[0]), rtol=1e-5, atol=1e-5)


def test_langchain_gets_the_vectors_when_it_sends_texts(url, offline):
    embeddings = OpenAIEmbeddings(
        model="tiny", base_url=f"{url}/v1", api_key="none", check_embedding_ctx_length=False, max_retries=0
    )
    np.testing.assert_allclose(embeddings.embed_documents(TEXTS), offline.encode(TEXTS), atol=1e-5, rtol=1e-5)
    np.testing.assert_allclose(embeddings.embed_query(TEXTS[1]), offline.encode(TEXTS[1]), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("ids", [[1, 2, 3], [[1, 2], [3]]])
def test_token_ids_without_vocabulary_are_a_400(openai_client, ids, monkeypatch, tmp_path):
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(tmp_path))
    tokens.tiktoken_vocabulary.cache_clear()
    with pytest.raises(openai.BadRequestError, match="check_embedding_ctx_length=False"):
        openai_client.embeddings.create(model="tiny", input=ids)


def test_token_ids_are_decoded_with_their_vocabulary(openai_client, offline, monkeypatch):
    byte_ranks = {bytes([byte]): byte for byte in range(256)}
    vocabulary = tiktoken.Encoding("bytes", pat_str=r"[\s\S]", mergeable_ranks=byte_ranks, special_tokens={})
    monkeypatch.setattr(tokens, "tiktoken_vocabulary", lambda: vocabulary)
    rows = [vocabulary.encode(text) for text in TEXTS if text]
    data = openai_client.embeddings.create(model="tiny", input=rows).data
    expected = offline.encode([text for text in TEXTS if text])
    np.testing.assert_allclose([item.embedding for item in data], expected, atol=1e-5, rtol=1e-5)
    vector = openai_client.embeddings.create(model="tiny", input=rows[0]).data[0].embedding
    np.testing.assert_allclose(vector, expected[0], atol=1e-5, rtol=1e-5)
    for wrong in ([256], [-1], [2**70]):
        with pytest.raises(openai.BadRequestError, match="token id"):
            openai_client.embeddings.create(model="tiny", input=wrong)


def test_models_list_what_decides_their_vectors(openai_client, offline):
    (model,) = openai_client.models.list().data
    info = model.model_dump()
    assert info["id"] == "tiny" and info["fingerprint"] == offline.fingerprint
    assert (info["layer"], info["pooling"]) == (offline.backbone.n_layers, "lasttoken")
    assert info["template"] == offline.spec.template
    assert openai_client.models.retrieve("tiny").model_dump() == info


@pytest.mark.parametrize(
    "name", ["text-embedding-3-small", "../../etc/passwd", "..%2f..%2fx", "tiny/", "\x00", "a" * 200]
)
def test_unknown_model_is_a_404(openai_client, name):
    with pytest.raises(openai.NotFoundError) as caught:
        openai_client.embeddings.create(model=name, input="x")
    assert caught.value.code == "model_not_found" and caught.value.param == "model"


def test_adapters_are_served_under_their_own_names(encoder, offline, serving, tmp_path):
    """Requests alternate between both names: a batch must not mix their texts."""
    import torch

    from decoder2vec.adapters.soft_prompt import SoftPrompt
    from decoder2vec.encoder import Encoder

    prompt = SoftPrompt(torch.randn(2, offline.backbone.dim, generator=torch.Generator().manual_seed(0)))
    adapted = Encoder(offline.backbone.with_adapter(prompt), offline.spec)
    adapted.save(tmp_path / "adapted")
    served = Encoder(encoder.backbone.with_adapter(None), encoder.spec)
    served.backbone.adapters = {}
    served.add_adapter("soft", tmp_path / "adapted")
    with serving(encoder=served) as url, httpx.Client(base_url=url) as client:
        names = [model["id"] for model in client.get("/v1/models").json()["data"]]
        assert names == ["tiny", "soft"]
        for name, expected in [("tiny", offline), ("soft", adapted)] * 2:
            body = {"model": name, "input": TEXTS}
            vectors = [item["embedding"] for item in client.post("/v1/embeddings", json=body).json()["data"]]
            np.testing.assert_allclose(vectors, expected.encode(TEXTS), atol=1e-5, rtol=1e-5)


def test_own_client_gives_the_vectors_of_the_encoder(serving, offline, monkeypatch):
    monkeypatch.setenv("D2V_API_KEY", "good")
    texts = [f"Loaf {number}" for number in range(100)]
    with serving(api_keys=("good",)) as address:
        client = load_encoder(f"{address}/v1#tiny")
        assert np.allclose(client.encode(texts), offline.encode(texts), atol=1e-5)
        assert client.dim == offline.dim
