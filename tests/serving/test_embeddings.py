"""OpenAI's routes, asked by OpenAI's own client and by LangChain's, against the encoder asked offline."""

from __future__ import annotations

import base64
import struct

import httpx
import numpy as np
import openai
import pytest
import tiktoken
from langchain_openai import OpenAIEmbeddings

from decoder2vec.serving import tokens as token_ids

TEXTS = ["A cat sleeps.", "Kätzchen 🐈 träumen", "", "The boat leaves at seven, unless the wind is too strong."]


@pytest.fixture(scope="module")
def asked(url):
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as opened:
        yield opened


def test_the_openai_client_gets_the_vectors_of_the_encoder(asked, offline):
    answer = asked.embeddings.create(model="tiny", input=TEXTS)  # it asks for base64 unless told otherwise
    assert [one.index for one in answer.data] == [0, 1, 2, 3]
    np.testing.assert_allclose([one.embedding for one in answer.data], offline.encode(TEXTS), atol=1e-5, rtol=1e-5)
    one = asked.embeddings.create(model="tiny", input=TEXTS[0], encoding_format="float").data[0].embedding
    np.testing.assert_allclose(one, offline.encode(TEXTS[0]), atol=1e-5, rtol=1e-5)


def test_tokens_are_counted_as_the_model_reads_them(asked, offline):
    before = offline.stats.tokens
    offline.encode(TEXTS)
    read = offline.stats.tokens - before
    usage = asked.embeddings.create(model="tiny", input=TEXTS).usage
    assert usage.prompt_tokens == usage.total_tokens == read
    long = "word " * 5000
    assert asked.embeddings.create(model="tiny", input=long).usage.total_tokens == offline.max_seq_length


def test_dimensions_cut_first_and_then_bring_to_unit_length(asked, offline):
    for dimensions in (1, 5, offline.dim):
        found = asked.embeddings.create(model="tiny", input=TEXTS, dimensions=dimensions).data
        cut = offline.encode(TEXTS)[:, :dimensions]
        expected = cut / np.linalg.norm(cut, axis=1, keepdims=True)
        np.testing.assert_allclose([one.embedding for one in found], expected, atol=1e-5)
    with pytest.raises(openai.BadRequestError, match="dimensions"):
        asked.embeddings.create(model="tiny", input=TEXTS, dimensions=offline.dim + 1)


def test_base64_is_float32_in_little_endian_order(client, offline):
    body = {"model": "tiny", "input": TEXTS[0], "encoding_format": "base64"}
    packed = base64.b64decode(client.post("/v1/embeddings", json=body).json()["data"][0]["embedding"])
    assert len(packed) == 4 * offline.dim
    given = struct.unpack(f"<{offline.dim}f", packed)
    np.testing.assert_allclose(given, offline.encode(TEXTS[0]), rtol=1e-5, atol=1e-5)


def test_langchain_works_when_it_sends_texts(url, offline):
    embeddings = OpenAIEmbeddings(
        model="tiny", base_url=f"{url}/v1", api_key="none", check_embedding_ctx_length=False, max_retries=0
    )
    np.testing.assert_allclose(embeddings.embed_documents(TEXTS), offline.encode(TEXTS), atol=1e-5, rtol=1e-5)
    np.testing.assert_allclose(embeddings.embed_query(TEXTS[1]), offline.encode(TEXTS[1]), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("ids", [[1, 2, 3], [[1, 2], [3]]])
def test_token_ids_are_refused_with_the_cure_where_their_vocabulary_is_not_there(asked, ids, monkeypatch, tmp_path):
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(tmp_path))
    token_ids.tiktoken_vocabulary.cache_clear()
    with pytest.raises(openai.BadRequestError, match="check_embedding_ctx_length=False"):
        asked.embeddings.create(model="tiny", input=ids)


def test_token_ids_are_decoded_where_their_vocabulary_is_there(asked, offline, monkeypatch):
    signs = {bytes([byte]): byte for byte in range(256)}
    vocabulary = tiktoken.Encoding("bytes", pat_str=r"[\s\S]", mergeable_ranks=signs, special_tokens={})
    monkeypatch.setattr(token_ids, "tiktoken_vocabulary", lambda: vocabulary)
    rows = [vocabulary.encode(text) for text in TEXTS if text]
    found = asked.embeddings.create(model="tiny", input=rows).data
    expected = offline.encode([text for text in TEXTS if text])
    np.testing.assert_allclose([one.embedding for one in found], expected, atol=1e-5, rtol=1e-5)
    one = asked.embeddings.create(model="tiny", input=rows[0]).data[0].embedding
    np.testing.assert_allclose(one, expected[0], atol=1e-5, rtol=1e-5)
    for wrong in ([256], [-1], [2**70]):
        with pytest.raises(openai.BadRequestError, match="token id"):
            asked.embeddings.create(model="tiny", input=wrong)


def test_models_say_what_their_vectors_are(asked, offline):
    (model,) = asked.models.list().data
    said = model.model_dump()
    assert said["id"] == "tiny" and said["fingerprint"] == offline.fingerprint
    assert (said["layer"], said["pooling"]) == (offline.backbone.n_layers, "lasttoken")
    assert said["template"] == offline.spec.template
    assert asked.models.retrieve("tiny").model_dump() == said


@pytest.mark.parametrize(
    "name", ["text-embedding-3-small", "../../etc/passwd", "..%2f..%2fx", "tiny/", "\x00", "a" * 200]
)
def test_an_unknown_model_is_not_found_and_nothing_is_opened(asked, name):
    with pytest.raises(openai.NotFoundError) as caught:
        asked.embeddings.create(model=name, input="x")
    assert caught.value.code == "model_not_found" and caught.value.param == "model"


def test_adapters_are_chosen_by_model_and_answers_are_not_mixed(encoder, offline, serving, tmp_path):
    """Both names in one run of requests: batches of one must not hold texts of the other."""
    import torch

    from decoder2vec.adapters.soft_prompt import SoftPrompt
    from decoder2vec.encoder import Encoder

    prompt = SoftPrompt(torch.randn(2, offline.backbone.dim, generator=torch.Generator().manual_seed(0)))
    adapted = Encoder(offline.backbone.with_adapter(prompt), offline.spec)
    adapted.save(tmp_path / "adapted")
    own = Encoder(encoder.backbone.with_adapter(None), encoder.spec)
    own.backbone.adapters = {}
    own.add_adapter("soft", tmp_path / "adapted")
    with serving(encoder=own) as url, httpx.Client(base_url=url) as client:
        names = [one["id"] for one in client.get("/v1/models").json()["data"]]
        assert names == ["tiny", "soft"]
        for name, expected in [("tiny", offline), ("soft", adapted)] * 2:
            body = {"model": name, "input": TEXTS}
            found = [one["embedding"] for one in client.post("/v1/embeddings", json=body).json()["data"]]
            np.testing.assert_allclose(found, expected.encode(TEXTS), atol=1e-5, rtol=1e-5)
