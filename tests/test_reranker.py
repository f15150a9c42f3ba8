"""Rerankers: scores against plain transformers on every family, batches, truncation, saving and loading."""

from __future__ import annotations

import json
import logging
from functools import cache

import numpy as np
import pytest
import torch
from tokenizers import processors
from transformers import AutoModelForCausalLM, AutoTokenizer

from decoder2vec.activations import extract, shared_beginning
from decoder2vec.activations.capture import Capture
from decoder2vec.adapters.lora import Lora
from decoder2vec.backbone.backbone import Backbone
from decoder2vec.backbone.kv_cache import compute_key_values
from decoder2vec.backbone.machine import quiet_transformers
from decoder2vec.backbone.tiny import TINY, tiny_folder
from decoder2vec.encoder import Encoder
from decoder2vec.errors import BackboneError, EncoderError, InputError, UnknownNameError, UnsupportedError
from decoder2vec.gold import GoldVectors
from decoder2vec.reranker import Reranker, RerankerSpec
from decoder2vec.text.batches import collate
from decoder2vec.text.pair_template import PAIR_TEMPLATES, PairTemplate, PairTokeniser
from toys.texts import built

METHODS = ("linear", "likelihood", "yes_no")
QUERY = "Why is the loaf dense?"
DOCUMENTS = [
    "If the loaf is dense and gummy, the yeast was probably too old, or the dough was too cold to rise.",
    "",
    "Bread",
    "Knead the flour and water.",
    "Steam in the first ten minutes of baking helps the crust turn crisp and brown.",
]
TEMPLATES = {"linear": "doc_query", "likelihood": "question", "yes_no": "yes_no"}


@pytest.fixture(autouse=True)
def quiet(one_thread):
    """Tiny models on one thread."""


def head_of(backbone):
    return torch.randn(backbone.dim, generator=torch.Generator().manual_seed(1))


@cache
def make_on(backbone, method, **settings):
    head = head_of(backbone) if method == "linear" else None
    return Reranker(backbone, RerankerSpec(backbone.name, method, **settings), head)


@pytest.fixture
def make(backbone):
    """make(family, method, **settings) -> a reranker with a random head."""
    return lambda family, method="linear", **settings: make_on(backbone(family), method, **settings)


# --- against plain transformers -------------------------------------------------------------------------------------


@cache
def plain_model(name):
    with quiet_transformers():
        return AutoModelForCausalLM.from_pretrained(tiny_folder(name)).eval()


@torch.inference_mode()
def plain_score(name, method, query, document):
    """The score of one pair by its definition: a pass of transformers over one prompt without padding."""
    model, tokenizer = plain_model(name), AutoTokenizer.from_pretrained(tiny_folder(name))
    head, tail = PAIR_TEMPLATES[TEMPLATES[method]].format(document=document, query="{query}").split("{query}")
    encoded = tokenizer(head + query + tail, return_offsets_mapping=True)
    ids = encoded["input_ids"]
    if method == "linear":
        ids = [*ids, tokenizer.eos_token_id]
    if method == "yes_no":
        yes, no = (tokenizer(answer, add_special_tokens=False)["input_ids"] for answer in (" yes", " no"))
        while yes[0] == no[0]:
            ids, yes, no = [*ids, yes[0]], yes[1:], no[1:]
    if method == "linear":
        state = model.base_model(input_ids=torch.tensor([ids]), use_cache=False).last_hidden_state[0, -1]
        weights = torch.randn(len(state), generator=torch.Generator().manual_seed(1))
        return float(state @ weights)
    logits = model(input_ids=torch.tensor([ids]), use_cache=False).logits[0].double()
    if method == "yes_no":
        return float(logits[-1, yes[0]] - logits[-1, no[0]])
    query_tokens = [i for i, (_, end) in enumerate(encoded["offset_mapping"]) if end > len(head)]
    return float(np.mean([logits[i - 1].log_softmax(0)[ids[i]] for i in query_tokens]))


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", TINY)
def test_scores_equal_a_plain_pass_alone_and_in_every_batch(name, method, make, gap, monkeypatch):
    reranker = make(name, method)
    expected = [plain_score(name, method, QUERY, document) for document in DOCUMENTS]
    assert len(set(np.round(expected, 6))) == len(DOCUMENTS)
    alone = [float(reranker.score(QUERY, [document])[0]) for document in DOCUMENTS]
    assert gap(alone, expected) < 1e-5
    assert gap(reranker.score(QUERY, DOCUMENTS), expected) < 1e-5
    assert gap(reranker.score(QUERY, DOCUMENTS[::-1])[::-1], expected) < 1e-5
    monkeypatch.setattr(Backbone, "batch_overhead", 10**6)
    assert gap(reranker.score(QUERY, DOCUMENTS), expected) < 1e-5, "all in one padded batch"


def test_pairs_of_several_queries_equal_the_scores_of_each(make, gap):
    reranker = make("tiny-llama")
    queries = ["dense loaf", "the longest of all queries about bread and dough", "dense loaf", ""]
    documents = [*DOCUMENTS[:3], "Knead."]
    expected = [reranker.score(query, [document])[0] for query, document in zip(queries, documents, strict=True)]
    assert gap(reranker.score_pairs(queries, documents), expected) < 1e-5


# --- one document, many queries -------------------------------------------------------------------------------------

QUERIES = [
    "Why is the loaf dense?",
    "yeast",
    "?",
    "the longest of all queries about bread, dough and crust",
    "crisp crust",
]
PASSAGE = " ".join(f"{DOCUMENTS[0]} {DOCUMENTS[4]} {number}" for number in range(2))


def crossed(documents):
    """Every query with every document, query by query."""
    return [query for query in QUERIES for _ in documents], [*documents] * len(QUERIES)


def without_sharing(monkeypatch):
    monkeypatch.setattr("decoder2vec.reranker.SharedBeginning.groups", lambda *_: [])


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", TINY)
def test_a_document_of_many_queries_is_computed_once_with_the_same_scores(name, method, make, gap, monkeypatch):
    """Documents longer than the windows of the tiny models, so that a window spans document and query."""
    reranker = make(name, method)
    queries, documents = crossed([PASSAGE, DOCUMENTS[4], PASSAGE[10:], "Bread"])
    expected = [plain_score(name, method, query, text) for query, text in zip(queries, documents, strict=True)]
    before = reranker.stats.tokens
    assert gap(reranker.score_pairs(queries, documents), expected) < 1e-5
    computed = reranker.stats.tokens - before
    prompts, _ = reranker._tokeniser(queries, documents)
    assert computed < 0.5 * sum(len(prompt.ids) for prompt in prompts)
    passes = []

    def count(backbone, **inputs):
        passes.append(len(inputs["input_ids"]))
        return compute_key_values(backbone, **inputs)

    monkeypatch.setattr(shared_beginning, "compute_key_values", count)
    monkeypatch.setattr(Backbone, "batch_overhead", 10**6)
    assert gap(reranker.score_pairs(queries, documents), expected) < 1e-5
    assert passes in ([3], [4]) or (not passes and "mamba" in name), "all documents in one padded pass"


@pytest.mark.parametrize("name", ["tiny-llama", "tiny-mamba"])
def test_a_document_is_shared_with_lora_and_where_it_is_cut(name, backbone, gap, monkeypatch):
    model = backbone(name)
    lora = Lora.initialise(model, 2, 4)
    with torch.no_grad():
        for matrix in lora.upper.values():
            matrix.normal_(std=0.1, generator=torch.Generator().manual_seed(2))
    adapted = model.with_adapter(lora)
    queries, documents = crossed([PASSAGE, DOCUMENTS[0]])
    reranker = Reranker(adapted, RerankerSpec(name, "linear", max_length=100), head_of(model))
    scores = reranker.score_pairs(queries, documents)
    assert reranker.stats.tokens < 0.8 * sum(len(prompt.ids) for prompt in reranker._tokeniser(queries, documents)[0])
    assert gap(scores, make_on(model, "linear", max_length=100).score_pairs(queries, documents)) > 1e-3, "LoRA counts"
    without_sharing(monkeypatch)
    assert gap(scores, reranker.score_pairs(queries, documents)) < 1e-5


def test_sharing_in_small_batches_gives_the_same_scores(make, gap, monkeypatch):
    reranker = make("tiny-gpt2", "likelihood")
    queries, documents = crossed([PASSAGE, DOCUMENTS[0]])
    scores = reranker.score_pairs(queries, documents)
    monkeypatch.setattr(shared_beginning, "_PAST_BUDGET", 0)
    monkeypatch.setattr("decoder2vec.reranker._PAIRS_PER_CHUNK", 4)
    assert gap(reranker.score_pairs(queries, documents), scores) < 1e-5


@pytest.mark.parametrize("case", ["attention", "family", "few"])
def test_documents_are_not_shared_where_it_is_impossible_or_does_not_pay(case, gap, monkeypatch):
    reranker = Reranker.from_pretrained("tiny-llama", device="cpu", dtype="float32")
    queries, documents = crossed([PASSAGE]) if case != "few" else (["yeast", "dough"], ["Bread"] * 2)
    if case == "attention":
        reranker.backbone.set_attention("bidirectional")
    if case == "family":

        def refuse(*_, **__):
            raise UnsupportedError("no keys and values")

        monkeypatch.setattr(shared_beginning, "compute_key_values", refuse)
    scores = reranker.score_pairs(queries, documents)
    assert reranker.stats.tokens == sum(len(prompt.ids) for prompt in reranker._tokeniser(queries, documents)[0])
    without_sharing(monkeypatch)
    assert gap(reranker.score_pairs(queries, documents), scores) < 1e-5


@pytest.mark.parametrize("family", ["tiny-mamba", "tiny-mamba2"])
def test_left_padding_enters_the_state(family, make, gap, monkeypatch):
    """The trap: padded on the left, as by cross-encoders that read index -1, a score depends on its neighbours."""
    reranker = make(family)
    expected = [plain_score(family, "linear", QUERY, document) for document in DOCUMENTS]
    monkeypatch.setattr(Backbone, "batch_overhead", 10**6)
    assert gap(reranker.score(QUERY, DOCUMENTS), expected) < 1e-5
    monkeypatch.setattr(extract, "collate", lambda prompts, pad_token_id: collate(prompts, pad_token_id, side="left"))
    monkeypatch.setattr(Capture, "model_inputs", lambda _, batch: {"input_ids": batch.ids})
    assert gap(reranker.score(QUERY, DOCUMENTS), expected) > 1e-2


def test_the_closing_token_has_read_both_texts(make):
    reranker = make("tiny-gpt2")
    assert reranker.score("cats", ["dogs"])[0] != reranker.score("cats", ["birds"])[0]
    assert reranker.score("cats", ["dogs"])[0] != reranker.score("boats", ["dogs"])[0]


# --- prompts --------------------------------------------------------------------------------------------------------


def test_the_document_comes_first_and_the_closing_token_last(backbone):
    model = backbone("tiny-gpt2")
    (prompt,), cut = PairTokeniser(model, PairTemplate.of("doc_query"), 64, [0])(["cats"], ["dogs"])
    text = model.tokenizer.decode(prompt.ids)
    assert text == "Document: dogs\n\nQuery: cats<eos>" and cut == []
    assert model.tokenizer.decode(prompt.ids[prompt.start :]) in ("cats<eos>", " cats<eos>")


@pytest.mark.parametrize("template", ["doc_query", "query_doc", "yes_no"])
@pytest.mark.parametrize("family", ["tiny-gpt2", "tiny-llama"])
def test_only_the_document_is_cut(template, family, backbone):
    """A document of thousands of tokens keeps the whole query, the template and the closing token."""
    model, query = backbone(family), "why is the loaf dense and gummy in winter?"
    document = "".join(f" bread {number}" for number in range(2000))
    (prompt,), cut = PairTokeniser(model, PairTemplate.of(template), 80, [0])([query], [document])
    text = model.tokenizer.decode(prompt.ids).removeprefix("<bos>")
    head, tail = PAIR_TEMPLATES[template].replace("{query}", query).split("{document}")
    assert 70 <= len(prompt.ids) <= 80 and cut == [0] and prompt.ids[-1] == 0
    assert text.startswith(head) and text.endswith(tail + "<eos>")
    kept = text.removeprefix(head).removesuffix("<eos>").removesuffix(tail)
    assert kept and document.startswith(kept)


def test_cut_documents_are_reported_once(make, caplog):
    reranker = make("tiny-gpt2", max_length=64)
    with caplog.at_level(logging.WARNING):
        scores = reranker.score("cats", ["dogs " * 500, "dogs " * 600, "dogs"])
    assert [record.message for record in caplog.records] == ["2 document(s) were cut to fit into 64 tokens."]
    assert scores[0] == pytest.approx(scores[1], abs=1e-5)


def test_a_query_that_leaves_no_room_raises(make):
    with pytest.raises(InputError, match="leaves no room for a document in 64 tokens; shorten it, or raise max_length"):
        make("tiny-gpt2", max_length=64).score("why " * 100, ["dogs"])


def test_a_limit_that_the_template_alone_exceeds_is_named(make):
    with pytest.raises(InputError, match=r"max_length 3 is too small for the template.*; raise it"):
        make("tiny-gpt2", max_length=3)


def test_slots_in_texts_are_text(backbone):
    model = backbone("tiny-gpt2")
    (prompt,), _ = PairTokeniser(model, PairTemplate.of("doc_query"), 64)(["{document}"], ["{query} {text}"])
    assert model.tokenizer.decode(prompt.ids) == "Document: {query} {text}\n\nQuery: {document}"


def test_a_tokenizer_that_adds_eos_itself_adds_no_second_one():
    model = Backbone.load("tiny-gpt2", device="cpu", dtype="float32")
    model.tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single="$A <eos>", special_tokens=[("<eos>", 0)]
    )
    for closing, end in (([0], "cats<eos>"), ([], "cats")):
        (prompt,), _ = PairTokeniser(model, PairTemplate.of("doc_query"), 64, closing)(["cats"], ["dogs"])
        assert model.tokenizer.decode(prompt.ids).endswith(f"Query: {end}")
        assert prompt.ids.count(0) == len(closing)


@pytest.mark.parametrize("template", ["nothing", "{document}", "{query}", "{document} {document} {query}"])
def test_a_template_has_both_slots_once(template):
    with pytest.raises(InputError, match=r"contains {document} and {query} once each"):
        PairTemplate.of(template)


def test_the_likelihood_is_that_of_the_end():
    with pytest.raises(InputError, match=r"end the template with {query}"):
        RerankerSpec("m", "likelihood", "{query} {document}")


# --- the public class -----------------------------------------------------------------------------------------------


def test_rank_and_rerank_agree_with_score(make):
    reranker = make("tiny-llama")
    scores = reranker.score(QUERY, DOCUMENTS)
    assert reranker.rerank(QUERY, DOCUMENTS) == scores.tolist()
    hits = reranker.rank(QUERY, DOCUMENTS)
    assert [hit["corpus_id"] for hit in hits] == np.argsort(-scores).tolist()
    best = reranker.rank(QUERY, DOCUMENTS, top_k=1, return_documents=True)
    assert best == [{**hits[0], "text": DOCUMENTS[hits[0]["corpus_id"]]}]
    assert reranker.score(QUERY, []).shape == (0,) and reranker.rank(QUERY, []) == []
    before = reranker.stats.texts
    reranker.score(QUERY, DOCUMENTS)
    assert reranker.stats.texts == before + len(DOCUMENTS) and reranker.stats.tokens > 0


@pytest.mark.parametrize("method", METHODS)
def test_unit_scores_keep_the_order(method, make):
    reranker = make("tiny-gpt2", method)
    scores = reranker.score(QUERY, DOCUMENTS)
    unit = reranker.unit_scores(scores)
    assert (unit > 0).all() and (unit < 1).all() and (np.argsort(unit) == np.argsort(scores)).all()


def test_wrong_inputs_raise_one_sentence(make, tmp_path):
    reranker = make("tiny-gpt2")
    for call in (
        lambda: reranker.score(["a", "b"], ["c"]),
        lambda: reranker.score("a", ["c", None]),
        lambda: reranker.score("a", "c"),
        lambda: reranker.score("\ud83d", ["c"]),
        lambda: reranker.score_pairs(["a"], ["b", "c"]),
        lambda: Reranker.from_pretrained("tiny-gpt2", method="linear"),
        lambda: Reranker.from_pretrained("tiny-gpt2", method="cosine"),
        lambda: Reranker(reranker.backbone, RerankerSpec("m", "linear"), None),
        lambda: Reranker(reranker.backbone, RerankerSpec("m", "linear"), torch.zeros(3)),
        lambda: make("tiny-gpt2", max_length=4),
        lambda: Reranker.load(tmp_path),
    ):
        with pytest.raises(InputError) as error:
            call()
        assert len(str(error.value).splitlines()) == 1
    with pytest.raises(UnknownNameError, match="likelihood"):
        RerankerSpec("m", "likelyhood")


def test_an_encoder_is_no_reranker(tmp_path):
    Encoder.from_pretrained("tiny-gpt2", device="cpu").save(tmp_path / "encoder")
    with pytest.raises(InputError, match="is an encoder"):
        Reranker.from_pretrained(tmp_path / "encoder")


# --- saving ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", METHODS)
def test_a_saved_reranker_gives_identical_scores(method, make, tmp_path):
    reranker = make("tiny-llama", method, max_length=100)
    folder = reranker.save(tmp_path / "reranker", copy_backbone=method == "linear", extra_files={"README.md": b"card"})
    loaded = Reranker.from_pretrained(folder, device="cpu", dtype="float32")
    assert loaded.fingerprint == reranker.fingerprint and loaded.spec.max_length == 100
    assert (loaded.score(QUERY, DOCUMENTS) == reranker.score(QUERY, DOCUMENTS)).all()
    assert (folder / "README.md").read_bytes() == b"card"
    gold = GoldVectors.read(folder)
    difference, allowed = gold.compare(loaded.gold_scores(gold.texts), "float32")
    assert difference < allowed
    loaded.save(folder)  # over itself
    assert (Reranker.load(folder, device="cpu", dtype="float32").score(QUERY, DOCUMENTS)).shape == (len(DOCUMENTS),)
    with pytest.raises(InputError, match="leave out method"):
        Reranker.from_pretrained(folder, method="yes_no")


def test_a_saved_reranker_loads_in_8_bits(tmp_path):
    model = tmp_path / "model"
    built("llama", model, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_key_value_heads=2)
    reranker = Reranker.from_pretrained(model, device="cpu", dtype="float32")
    loaded = Reranker.load(reranker.save(tmp_path / "reranker"), device="cpu", dtype="int8")
    documents = ["A cat sleeps.", "Stocks fell on Monday."]
    assert loaded.fingerprint != reranker.fingerprint
    assert loaded.score("a cat", documents) == pytest.approx(reranker.score("a cat", documents), rel=0.05)


def test_a_folder_with_other_files_is_not_replaced(make, tmp_path):
    folder = make("tiny-llama").save(tmp_path / "reranker")
    (folder / "thesis.txt").write_text("years of work")
    with pytest.raises(InputError):
        make("tiny-llama").save(folder)
    assert (folder / "thesis.txt").exists()


def test_a_changed_folder_raises(make, tmp_path):
    folder = make("tiny-llama").save(tmp_path / "reranker")
    file = folder / "reranker.json"
    description = json.loads(file.read_text())

    def load_with(**changes):
        file.write_text(json.dumps({**description, **changes}))
        return Reranker.load(folder, device="cpu", dtype="float32")

    load_with()
    with pytest.raises(EncoderError, match="not the one that was saved"):
        load_with(spec={**description["spec"], "max_length": 99})
    with pytest.raises(BackboneError, match="are not those"):
        load_with(backbone_fingerprint="0")
    with pytest.raises(EncoderError, match="format 2"):
        load_with(format=2)
    load_with()
    (folder / "head.safetensors").write_bytes(b"torn")
    with pytest.raises(EncoderError, match="cannot be read"):
        load_with()
