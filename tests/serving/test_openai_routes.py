"""OpenAI's routes used by the clients of OpenAI and LangChain, compared with the encoder used directly."""

from __future__ import annotations

import base64
import hashlib
import json
import struct
import sys
from concurrent.futures import ThreadPoolExecutor

import httpx
import numpy as np
import openai
import pytest
import tiktoken
from langchain_openai import OpenAIEmbeddings

from decoder2vec.encoder import Encoder
from decoder2vec.evaluation.baselines import load_encoder
from decoder2vec.serving.limits import Limits
from decoder2vec.serving.tokens import TokenCounter

JSON_HEADER = {"Content-Type": "application/json"}
CL100K_URL = "https://openaipublic.blob.core.windows.net/encodings/cl100k_base.tiktoken"
TEXTS = ["A cat sleeps.", "Kätzchen 🐈 träumen", "", "The boat leaves at seven, unless the wind is too strong."]


@pytest.fixture(scope="module")
def openai_client(url):
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as opened:
        yield opened


@pytest.fixture
def vocabulary(monkeypatch, tmp_path):
    """A tokenizer of single bytes that tiktoken has in its cache as cl100k_base, for client and server."""
    byte_ranks = {bytes([byte]): byte for byte in range(256)}
    encoding = tiktoken.Encoding("bytes", pat_str=r"[\s\S]", mergeable_ranks=byte_ranks, special_tokens={})
    monkeypatch.setattr(tiktoken, "get_encoding", lambda name: {"cl100k_base": encoding}[name])
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(tmp_path))
    (tmp_path / hashlib.sha1(CL100K_URL.encode()).hexdigest()).touch()
    return encoding


def unit_vectors(encoder, texts):
    """The vectors of an encoder, scaled to length 1 in float64."""
    vectors = encoder.encode(texts).astype(np.float64)
    return vectors / np.sqrt((vectors**2).sum(axis=-1, keepdims=True))


def test_openai_client_gets_unit_vectors_of_the_encoder(openai_client, offline):
    expected = unit_vectors(offline, TEXTS)
    assert not np.allclose(expected, offline.encode(TEXTS), atol=1e-2)  # the encoder itself does not normalise
    response = openai_client.embeddings.create(model="tiny", input=TEXTS)  # requests base64 by default
    assert [item.index for item in response.data] == [0, 1, 2, 3]
    np.testing.assert_allclose([item.embedding for item in response.data], expected, atol=1e-5)
    vector = openai_client.embeddings.create(model="tiny", input=TEXTS[0], encoding_format="float").data[0].embedding
    np.testing.assert_allclose(vector, expected[0], atol=1e-5)


def test_raw_vectors_are_those_of_encode(serving, offline):
    with serving(normalize=False) as url, openai.OpenAI(base_url=f"{url}/v1", api_key="none") as client:
        for dimensions in (None, 5):
            options = {} if dimensions is None else {"dimensions": dimensions}
            data = client.embeddings.create(model="tiny", input=TEXTS, **options).data
            expected = offline.encode(TEXTS, truncate_dim=dimensions)
            np.testing.assert_allclose([item.embedding for item in data], expected, atol=1e-5, rtol=1e-5)
        assert client.models.retrieve("tiny").model_dump()["normalize"] is False


@pytest.mark.parametrize(("normalize", "length"), [(True, 1), ("rms", 5**0.5)])
def test_raw_keeps_the_length_that_the_encoder_gives(serving, encoder, normalize, length):
    """An encoder with `normalize` normalises after truncation, and so does its server."""
    served = Encoder.from_pretrained("tiny-llama", device="cpu", dtype="float32", normalize=normalize)
    with serving(encoder=served, normalize=False) as url, httpx.Client(base_url=url) as client:
        body = {"input": TEXTS, "dimensions": 5}
        vectors = [item["embedding"] for item in client.post("/v1/embeddings", json=body).json()["data"]]
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), length, atol=1e-5)


def test_cached_vectors_are_normalised_once(openai_client, offline):
    for _ in range(2):
        (item,) = openai_client.embeddings.create(model="tiny", input="Encoded, then cached.").data
        np.testing.assert_allclose(item.embedding, unit_vectors(offline, "Encoded, then cached."), atol=1e-5)


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
    np.testing.assert_allclose(vector, unit_vectors(offline, TEXTS[0]), atol=1e-5)


def test_langchain_gets_the_vectors_when_it_sends_texts(url, offline):
    embeddings = OpenAIEmbeddings(
        model="tiny", base_url=f"{url}/v1", api_key="none", check_embedding_ctx_length=False, max_retries=0
    )
    np.testing.assert_allclose(embeddings.embed_documents(TEXTS), unit_vectors(offline, TEXTS), atol=1e-5)
    np.testing.assert_allclose(embeddings.embed_query(TEXTS[1]), unit_vectors(offline, TEXTS[1]), atol=1e-5)


def test_langchain_gets_the_vectors_by_default(url, offline, vocabulary):
    embeddings = OpenAIEmbeddings(model="tiny", base_url=f"{url}/v1", api_key="none", max_retries=0)
    np.testing.assert_allclose(embeddings.embed_documents(TEXTS), unit_vectors(offline, TEXTS), atol=1e-5)
    np.testing.assert_allclose(embeddings.embed_query(TEXTS[1]), unit_vectors(offline, TEXTS[1]), atol=1e-5)


@pytest.mark.parametrize("ids", [[1, 2, 3], [[1, 2], [3]]])
def test_token_ids_without_vocabulary_are_a_400(openai_client, ids, monkeypatch, tmp_path):
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(tmp_path))
    with pytest.raises(openai.BadRequestError, match=r"cl100k_base is not in .*check_embedding_ctx_length=False"):
        openai_client.embeddings.create(model="tiny", input=ids)


def test_token_ids_without_tiktoken_are_a_400(openai_client, monkeypatch):
    monkeypatch.setitem(sys.modules, "tiktoken", None)
    with pytest.raises(openai.BadRequestError, match=r"tiktoken is not installed.*check_embedding_ctx_length=False"):
        openai_client.embeddings.create(model="tiny", input=[1, 2, 3])


def test_vocabulary_that_arrives_later_is_used(openai_client, monkeypatch, tmp_path, request):
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(tmp_path / "empty"))
    with pytest.raises(openai.BadRequestError):
        openai_client.embeddings.create(model="tiny", input=[1])
    request.getfixturevalue("vocabulary")
    assert openai_client.embeddings.create(model="tiny", input=[1]).data


def test_token_ids_of_another_vocabulary_are_a_400(serving, vocabulary):
    """LangChain takes a model named gpt2 for OpenAI's and sends ids of its vocabulary, which mean other texts here."""
    with serving(name="gpt2") as url, httpx.Client(base_url=url) as client:
        response = client.post("/v1/embeddings", json={"model": "gpt2", "input": [1, 2]})
    error = response.json()["error"]
    assert response.status_code == 400 and error["code"] == "token_ids" and "'gpt2'" in error["message"]


def test_token_ids_are_decoded_with_their_vocabulary(openai_client, offline, vocabulary):
    rows = [vocabulary.encode(text) for text in TEXTS if text]
    data = openai_client.embeddings.create(model="tiny", input=rows).data
    expected = unit_vectors(offline, [text for text in TEXTS if text])
    np.testing.assert_allclose([item.embedding for item in data], expected, atol=1e-5)
    vector = openai_client.embeddings.create(model="tiny", input=rows[0]).data[0].embedding
    np.testing.assert_allclose(vector, expected[0], atol=1e-5)
    for wrong in ([256], [-1], [2**70]):
        with pytest.raises(openai.BadRequestError, match="token id"):
            openai_client.embeddings.create(model="tiny", input=wrong)


def test_models_list_what_decides_their_vectors(openai_client, offline):
    (model,) = openai_client.models.list().data
    info = model.model_dump()
    assert info["id"] == "tiny" and info["fingerprint"] == offline.fingerprint
    assert (info["layer"], info["pooling"]) == (offline.backbone.n_layers, "lasttoken")
    assert info["template"] == offline.spec.template and info["normalize"] is True
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
            np.testing.assert_allclose(vectors, unit_vectors(expected, TEXTS), atol=1e-5)


def test_own_client_gives_the_vectors_of_the_encoder(serving, offline, monkeypatch):
    monkeypatch.setenv("D2V_API_KEY", "good")
    texts = [f"Loaf {number}" for number in range(100)]
    with serving(api_keys=("good",)) as address:
        client = load_encoder(f"{address}/v1#tiny")
        assert np.allclose(client.encode(texts), unit_vectors(offline, texts), atol=1e-5)
        assert client.dim == offline.dim


@pytest.mark.parametrize("value", [[], [[]], None, 5, ["a", 1]], ids=str)
def test_input_that_is_no_text_says_what_to_give(client, value):
    response = client.post("/v1/embeddings", json={"input": value})
    assert response.status_code == 400
    assert response.json()["error"]["message"] == "input: give a text, or a list of one text or more."


def test_long_texts_are_counted_in_pieces(offline, monkeypatch):
    texts = ["A short text.", "word " * 500, "", "x" * 3000]
    whole = TokenCounter(offline).count(texts, truncate=False)
    monkeypatch.setattr("decoder2vec.serving.tokens.CHARACTERS_AT_ONCE", 600)
    monkeypatch.setattr("decoder2vec.text.tokens.CHARACTERS_AT_ONCE", 600)
    pieces = TokenCounter(offline).count(texts, truncate=False)
    assert pieces[0] == whole[0] and pieces[2] == whole[2]
    assert all(abs(piece - count) <= 2 * 6 for piece, count in zip(pieces, whole, strict=True))


# --- late chunking --------------------------------------------------------------------------------------------------

CHUNKS = ["Berlin is the capital of Germany.", "It has 3.7 million inhabitants. ", "The city", "lies on the Spree."]
DOCUMENT = "Berlin is the capital of Germany. It has 3.7 million inhabitants. The city lies on the Spree."
SPANS = [(0, 33), (34, 66), (66, 74), (75, 93)]


def late(client, chunks, **body):
    return client.post("/v1/embeddings", json={"input": chunks, "late_chunking": True, **body})


def late_vectors(client, chunks, **body):
    response = late(client, chunks, **body)
    assert response.status_code == 200, response.text
    return [item["embedding"] for item in response.json()["data"]]


def unit(vectors):
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def test_late_chunks_are_those_of_encode_chunks(client, offline):
    expected = unit(offline.encode_chunks(DOCUMENT, SPANS))
    vectors = late_vectors(client, CHUNKS)
    np.testing.assert_allclose(vectors, expected, atol=1e-5)
    assert not np.allclose(vectors[1:], unit_vectors(offline, CHUNKS)[1:], atol=1e-3)
    np.testing.assert_allclose(late_vectors(client, CHUNKS), expected, atol=1e-5)
    plain = client.post("/v1/embeddings", json={"input": CHUNKS, "late_chunking": False}).json()["data"]
    np.testing.assert_allclose([item["embedding"] for item in plain], unit_vectors(offline, CHUNKS), atol=1e-5)


def test_late_chunks_through_the_openai_client(openai_client, offline):
    response = openai_client.embeddings.create(
        model="tiny", input=CHUNKS, dimensions=5, extra_body={"late_chunking": True}
    )
    assert [item.index for item in response.data] == [0, 1, 2, 3]
    expected = unit(offline.encode_chunks(DOCUMENT, SPANS)[:, :5])
    np.testing.assert_allclose([item.embedding for item in response.data], expected, atol=1e-5)
    before = offline.stats.tokens
    offline.encode(DOCUMENT)
    assert response.usage.total_tokens == offline.stats.tokens - before


def test_one_late_chunk_is_the_whole_text(client, offline):
    for given in (DOCUMENT, [DOCUMENT]):
        np.testing.assert_allclose(late_vectors(client, given), unit_vectors(offline, [DOCUMENT]), atol=1e-5)


def test_long_documents_are_read_in_windows(client, offline):
    chunks = [f"Part {number} of the long document tells of the sea." for number in range(120)]
    spans, end = [], 0
    for chunk in chunks:
        spans.append((end, end + len(chunk)))
        end += len(chunk) + 1
    expected = unit(offline.encode_chunks(" ".join(chunks), spans))
    response = late(client, chunks)
    assert response.json()["usage"]["total_tokens"] > offline.max_seq_length
    np.testing.assert_allclose([item["embedding"] for item in response.json()["data"]], expected, atol=1e-5)


def test_documents_of_many_clients_share_the_queue(client, offline):
    """Also beside plain texts, and with different numbers of chunks."""
    requests = [CHUNKS[:count] for count in (1, 2, 3, 4)] * 2
    with ThreadPoolExecutor(16) as pool:
        late_answers = [pool.submit(late_vectors, client, chunks) for chunks in requests]
        plain = [pool.submit(client.post, "/v1/embeddings", json={"input": f"Loaf {row}"}) for row in range(8)]
        answers = [answer.result() for answer in late_answers]
        vectors = [answer.result().json()["data"][0]["embedding"] for answer in plain]
    for chunks, answer in zip(requests, answers, strict=True):
        expected = offline.encode_chunks(DOCUMENT[: SPANS[len(chunks) - 1][1]], SPANS[: len(chunks)])
        np.testing.assert_allclose(answer, unit(expected), atol=1e-5)
    np.testing.assert_allclose(vectors, unit_vectors(offline, [f"Loaf {row}" for row in range(8)]), atol=1e-5)


@pytest.mark.parametrize(
    ("body", "param", "message"),
    [
        ({"input": ["One.", ""]}, "input", "no text may be empty, but input.1 is"),
        ({"input": []}, "input", "give a text"),
        ({"input": ["One."], "late_chunking": "yes"}, "late_chunking", "valid boolean"),
        ({"input": ["One."], "dimensions": 10_000}, "dimensions", "has only"),
        ({"input": ["One.", "\ud800"]}, None, "surrogate"),
    ],
    ids=str,
)
def test_late_chunks_that_cannot_be_used_are_a_400(client, body, param, message):
    response = client.post("/v1/embeddings", content=json.dumps({"late_chunking": True, **body}), headers=JSON_HEADER)
    error = response.json()["error"]
    assert response.status_code == 400 and message in error["message"] and error["param"] == param


def test_late_chunks_have_the_limits_of_texts(serving):
    limits = Limits(max_texts=3, max_request_tokens=50)
    with serving(limits=limits) as url, httpx.Client(base_url=url) as client:
        for chunks, code in ((["One."] * 4, "too_many_texts"), (["word " * 60], "too_many_tokens")):
            response = late(client, chunks)
            assert response.status_code == 413 and response.json()["error"]["code"] == code
        assert late(client, ["One."] * 3).status_code == 200


def test_encoders_that_cannot_read_chunks_together_are_a_400(serving, offline):
    class OnlyEncodes:
        dim = 2

        def encode(self, texts):
            return np.ones((len(texts), 2), np.float32)

    cls = Encoder.from_pretrained("tiny-llama", device="cpu", dtype="float32", pooling="cls", template="plain")
    for served in (OnlyEncodes(), cls):
        with serving(encoder=served) as url, httpx.Client(base_url=url) as client:
            error = late(client, CHUNKS).json()["error"]
            assert error["code"] == "unsupported" and error["type"] == "invalid_request_error"
            assert client.post("/v1/embeddings", json={"input": CHUNKS}).status_code == 200


def test_schema_has_late_chunking(client):
    schema = client.get("/openapi.json").json()["components"]["schemas"]["EmbeddingsRequest"]["properties"]
    assert schema["late_chunking"]["type"] == "boolean" and schema["late_chunking"]["default"] is False
