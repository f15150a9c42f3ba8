"""Another engine is compared text by text; what it does differently is found where it was made different on purpose."""

from __future__ import annotations

import json
import threading
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest
import torch

from decoder2vec.adapters.lora import Lora
from decoder2vec.analysis.engines import compare_engines
from decoder2vec.encoder import Encoder, spec_from_kwargs
from decoder2vec.errors import EncoderError
from decoder2vec.evaluation import server_encoders
from decoder2vec.export.formats import export
from decoder2vec.gold import GOLD_TEXTS
from decoder2vec.text import tokens
from toys.command import d2v
from toys.docstrings import run_examples

OWN = {"layer": 3, "pooling": "lasttoken", "template": "prompteol", "max_length": 256}


@pytest.fixture(scope="module")
def make(backbone):
    """make(**choices) -> an encoder of a tiny model; without choices, that of all comparisons."""

    def encoder(model="tiny-llama", attention=None, **choices):
        return Encoder(backbone(model, attention), spec_from_kwargs(model, {**OWN, **choices}))

    return encoder


class Engine:
    """An engine whose vectors are a function of texts."""

    def __init__(self, encode):
        self.encode = encode


DIFFERENCES = {
    "pooling": ({"pooling": "mean"}, "It pools the mean; this encoder reads the last token."),
    "template": (
        {"template": "plain"},
        'It leaves out the template \'This sentence : "{text}" means in one word: "\'.',
    ),
    "norm": ({"normed": True}, "It applies the final norm, which this encoder does not."),
    "layer": ({"layer": 4}, "It reads layer 4; this encoder reads layer 3."),
    "length 1": ({"normalize": True}, "It scales vectors to length 1."),
    "truncation": ({"max_length": 128}, "It truncates texts at 128 tokens; this encoder at 256."),
    "two": (
        {"pooling": "mean", "layer": 4, "normed": True},
        "It pools the mean; this encoder reads the last token. "
        "It reads layer 4 after the final norm; this encoder reads layer 3.",
    ),
}


@pytest.mark.parametrize("name", DIFFERENCES)
def test_difference_is_named(name, make):
    choices, sentence = DIFFERENCES[name]
    comparison = compare_engines(make(), make(**choices))
    assert not comparison.agrees and comparison.diagnosis == sentence


def test_same_encoder_agrees(make):
    comparison = compare_engines(make(), make())
    assert comparison.agrees and comparison.diagnosis == "All texts have the same vectors."
    assert [row.text for row in comparison.texts] == list(GOLD_TEXTS)
    assert all(row.cosine > 1 - 1e-6 and row.difference < 1e-5 for row in comparison.texts)


def test_missing_normalisation_is_named(make):
    comparison = compare_engines(make(normalize=True), make())
    assert comparison.diagnosis == "It does not normalise vectors."
    assert min(row.cosine for row in comparison.texts) > 1 - 1e-5


def test_missing_prompt_and_prefix_are_named(make):
    ours = make(template="plain", prompts={"query": "Find this: "})
    asked = Engine(lambda texts: ours.encode(texts, prompt_name="query"))
    assert compare_engines(ours, asked).diagnosis == "It puts the prompt 'query' before each text."
    ours, whole = make(template="Sentence:\n{text}", pooling="mean"), make(template="plain", pooling="mean")
    pooled = Engine(lambda texts: whole.encode([f"Sentence:\n{text}" for text in texts]))
    assert compare_engines(ours, pooled).diagnosis.startswith("It pools the prompt before the text, too.")


@pytest.mark.parametrize(
    ("change", "sentence"),
    [("no bos", "It leaves out the BOS token."), ("two bos", "It puts the BOS token in front twice.")],
)
def test_missing_and_doubled_bos_are_named(change, sentence, make, monkeypatch):
    ours = make("tiny-gemma3_text")
    expected = tokens.Tokeniser.__call__
    bos = ours.tokenizer.bos_token_id

    def broken(self, texts, indices=None):
        result = expected(self, texts, indices)
        for index, prompt in enumerate(result.prompts):
            ids = prompt.ids[1:] if change == "no bos" else [bos, *prompt.ids]
            shift = len(ids) - len(prompt.ids)
            result.prompts[index] = tokens.Prompt(ids, max(0, prompt.start + shift), len(ids))
        return result

    with monkeypatch.context() as patch:
        patch.setattr(tokens.Tokeniser, "__call__", broken)
        vectors = dict(zip(GOLD_TEXTS, ours.encode(list(GOLD_TEXTS)), strict=True))
    engine = Engine(lambda texts: np.stack([vectors[text] for text in texts]))
    assert compare_engines(ours, engine).diagnosis.startswith(sentence)


def test_other_attention_is_named(make):
    theirs = Encoder.from_pretrained("tiny-llama", attention="bidirectional", device="cpu", dtype="float32", **OWN)
    diagnosis = compare_engines(make(), theirs).diagnosis
    assert diagnosis == "Its attention is bidirectional; that of this encoder is causal."
    assert make().backbone.attention == "causal"


def test_missing_adapter_and_head_are_named(make):
    bare = make()
    lora = Lora.initialise(bare.backbone, rank=4, alpha=8)
    for parameter in lora.parameters():
        parameter.data = torch.randn(parameter.shape, generator=torch.Generator().manual_seed(0)) * 0.2
    ours = Encoder(bare.backbone.with_adapter(lora.requires_grad_(False)), bare.spec)
    assert "without this encoder's adapter (lora)" in compare_engines(ours, bare).diagnosis
    fitted = bare.with_head("standardise", [f"The {n} dogs sleep." for n in range(40)])
    assert compare_engines(fitted, bare).diagnosis == "It leaves out the head (standardise)."


def test_rounding_is_told_from_other_differences(make):
    ours = make()
    half = Engine(lambda texts: ours.encode(texts).astype(np.float16))
    comparison = compare_engines(ours, half)
    assert comparison.agrees  # the numbers of a float16 differ by less than is allowed
    noise = np.random.default_rng(0).normal(size=(len(GOLD_TEXTS), ours.dim)).astype(np.float32)
    noise *= 0.02 / np.linalg.norm(noise, axis=1, keepdims=True)
    rows = {text: row for row, text in enumerate(GOLD_TEXTS)}

    def noisy(texts):
        vectors = ours.encode(texts)
        return vectors + noise[[rows[text] for text in texts]] * np.linalg.norm(vectors, axis=1, keepdims=True)

    assert "as a computation in bfloat16 does" in compare_engines(ours, Engine(noisy)).diagnosis


def test_cut_dimensions_and_stripped_texts_are_named(make):
    ours = make()
    cut = compare_engines(ours, Engine(lambda texts: ours.encode(texts, truncate_dim=16)))
    assert cut.diagnosis == "It returns the first 16 of 32 dimensions." and cut.texts[0].cosine is None
    stripped = Engine(lambda texts: ours.encode([text.strip() for text in texts]))
    assert compare_engines(ours, stripped).diagnosis == "It strips the white space around a text."


def test_other_weights_are_not_explained_away(make):
    assert "it seems to run other weights" in compare_engines(make(), make("tiny-qwen3")).diagnosis
    random = Engine(lambda texts: np.random.default_rng(0).normal(size=(len(texts), 7)).astype(np.float32))
    assert compare_engines(make(), random).diagnosis.startswith("It gives 7 dimensions, this encoder 32.")


def test_example_in_docstring_runs():
    run_examples(compare_engines)


# --- folders --------------------------------------------------------------------------------------------------------


def test_broken_sentence_transformers_folder_is_diagnosed(make, tmp_path, quick_exports):
    export(make(layer=4, normed=True, template="plain"), "sentence-transformers", tmp_path / "st")
    encoder = make(layer=4, normed=True, template="plain").save(tmp_path / "encoder")
    result = d2v("doctor", encoder, "--against", tmp_path / "st", "--device", "cpu")
    assert result.exit_code == 0 and "All texts have the same vectors." in result.stdout
    config = tmp_path / "st" / "1_Pooling" / "config.json"
    config.write_text(json.dumps({"word_embedding_dimension": 32, "pooling_mode": "mean"}), encoding="utf-8")
    result = d2v("doctor", encoder, "--against", tmp_path / "st", "--device", "cpu")
    assert result.exit_code == 1
    assert "It pools the mean; this encoder reads the last token." in result.stdout
    assert "Two dogs" in result.stdout and "cosine" in result.stdout


def test_onnx_folder_without_its_template_is_diagnosed(make, tmp_path):
    export(make(), "onnx", tmp_path / "onnx")
    assert compare_engines(make(), tmp_path / "onnx", device="cpu").agrees
    settings = tmp_path / "onnx" / "sentence_bert_config.json"
    content = json.loads(settings.read_text(encoding="utf-8"))
    del content["modality_config"]["message"]
    settings.write_text(json.dumps(content), encoding="utf-8")
    config = tmp_path / "onnx" / "config_sentence_transformers.json"
    config.write_text("{}", encoding="utf-8")
    diagnosis = compare_engines(make(), tmp_path / "onnx", device="cpu").diagnosis
    assert diagnosis.startswith("It leaves out the template")


# --- servers --------------------------------------------------------------------------------------------------------


@contextmanager
def server(encoder):
    """Answers as OpenAI's API and as TEI do, which refuse an empty text."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            texts = body["inputs"] if self.path == "/embed" else body["input"]
            if not all(texts):
                reply, status = {"error": "`inputs` cannot be empty", "error_type": "Empty"}, 400
            else:
                vectors, status = encoder.encode(texts).tolist(), 200
                data = [{"index": index, "embedding": vector} for index, vector in enumerate(vectors)]
                reply = vectors if self.path == "/embed" else {"data": data}
            content = json.dumps(reply).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_):
            pass

    httpd = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=httpd.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{httpd.server_port}"
    finally:
        httpd.shutdown()
        thread.join()
        httpd.server_close()


@pytest.mark.parametrize("path", ["/v1#model", "/embed"])
def test_servers_are_compared_and_refusals_reported(path, make):
    with server(make(pooling="mean")) as address:
        comparison = compare_engines(make(), address + path)
    assert comparison.diagnosis == (
        "It pools the mean; this encoder reads the last token. It refuses 1 of 16 texts, such as ''."
    )
    assert [row.text for row in comparison.texts if row.difference is None] == [""]


def test_server_that_is_not_there_is_an_error(make, monkeypatch):
    monkeypatch.setattr(server_encoders.time, "sleep", lambda _: None)
    with pytest.raises(EncoderError, match="failed 7 times"):
        compare_engines(make(), "http://127.0.0.1:9/embed")


def test_attention_of_half_a_model_is_compared(make):
    spec = replace(make().spec, attention="bidirectional:2")
    ours = Encoder(Encoder.from_pretrained("tiny-llama", attention="bidirectional:2", device="cpu").backbone, spec)
    assert compare_engines(ours, ours).agrees
