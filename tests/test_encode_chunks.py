"""Vectors of chunks that are read together, against plain loops over the states of transformers' own models."""

from __future__ import annotations

import logging
from itertools import pairwise

import numpy as np
import pytest
import torch
from tokenizers import processors
from transformers import AutoModelForCausalLM, AutoTokenizer

from decoder2vec import SentenceVectors
from decoder2vec.activations.rerouting import reroute
from decoder2vec.adapters.kv_prefix import KeyValuePrefix
from decoder2vec.adapters.lora import Lora
from decoder2vec.adapters.soft_prompt import SoftPrompt
from decoder2vec.backbone.backbone import Backbone
from decoder2vec.backbone.tiny import TINY, build_tiny, tiny_folder
from decoder2vec.config import EncoderSpec, Reading
from decoder2vec.encoder import Encoder, spec_from_kwargs
from decoder2vec.errors import InputError, TextError, UnsupportedError
from decoder2vec.heads.standardise import AffineHead
from decoder2vec.maths.pooling import POOLINGS
from decoder2vec.text.sentences import sentence_spans
from decoder2vec.text.template import TEMPLATES, Template
from decoder2vec.text.windows import WindowTokeniser

TEXT = (
    "Knead the flour and water until smooth. The bread rises for an hour! Does it smell of yeast? "
    "Then bake it at a high heat. שלום 👍 to all who eat it."
)
SPANS = sentence_spans(TEXT)
PARTS = list(pairwise([0, *(end for _, end in SPANS)]))
"""All of the text: a space may be a token of its own."""
LONG = " ".join(f"{number} boats sailed in the rain that fell on day {number}." for number in range(40))
LONG_SPANS = sentence_spans(LONG)


@pytest.fixture(scope="module", autouse=True)
def small_models(one_thread):
    """Run on one thread: the models are too small for more."""


def make(backbone, name="tiny-gpt2", attention=None, adapter=None, head=None, exact=False, **settings):
    model = backbone(name, attention)
    model = model.with_adapter(adapter(model)) if adapter else model
    settings = {"layer": -2, "pooling": "mean", "template": "plain", **settings}
    return Encoder(model, spec_from_kwargs(name, settings), head, exact=exact)


def close(actual, expected, tolerance=2e-5):
    actual, expected = np.asarray(actual, np.float64), np.asarray(expected, np.float64)
    assert actual.shape == expected.shape
    assert np.isfinite(actual).all()
    assert np.abs(actual - expected).max() <= tolerance * max(1e-6, np.abs(expected).max())


# --- references: transformers and loops -----------------------------------------------------------------------------


def pool(name, states):
    """Pooling of [token, dim] states by plain loops."""
    if name in ("lasttoken", "cls"):
        return states[-1 if name == "lasttoken" else 0]
    if name == "max":
        return states.max(axis=0)
    weights = [token + 1 if name == "weightedmean" else 1 for token in range(len(states))]
    total = sum(weight * state for weight, state in zip(weights, states, strict=True))
    return total if name == "sum" else total / sum(weights)


def states_of(folder, ids, layer):
    model = AutoModelForCausalLM.from_pretrained(folder).eval()
    with torch.no_grad():
        output = model(torch.tensor([ids]), output_hidden_states=True)
    return output.hidden_states[layer][0].double().numpy()


@pytest.mark.parametrize("pooling", POOLINGS)
@pytest.mark.parametrize("name", ["tiny-gpt2", "tiny-qwen2"])
def test_vectors_equal_a_loop_over_the_states_of_transformers(backbone, name, pooling):
    tokenizer = AutoTokenizer.from_pretrained(tiny_folder(name))
    encoding = tokenizer("Title: " + TEXT, return_offsets_mapping=True)
    states = states_of(tiny_folder(name), encoding["input_ids"], 3)
    expected = []
    for begin, end in SPANS:
        tokens = [
            token
            for token, (first, last) in enumerate(encoding["offset_mapping"])
            if any(first <= character + 7 < last for character in range(begin, end))
        ]
        expected.append(pool(pooling, states[tokens]))
    encoder = make(backbone, name, layer=3, pooling=pooling, template="Title: {text}")
    close(encoder.encode_chunks(TEXT, SPANS), expected)


def test_what_follows_a_text_follows_every_chunk(backbone):
    """Under prompteol, the vector of a chunk is read where that of a text is: at the end of the template."""
    before, after = TEMPLATES["prompteol"].split("{text}")
    rendered, ends = before, []
    for number, (begin, end) in enumerate(SPANS):
        rendered += TEXT[begin - 1 if number else 0 : end] + after
        ends.append(len(rendered))
    tokenizer = AutoTokenizer.from_pretrained(tiny_folder("tiny-gpt2"))
    encoding = tokenizer(rendered, return_offsets_mapping=True)
    states = states_of(tiny_folder("tiny-gpt2"), encoding["input_ids"], 4)
    lasts = [max(i for i, (_, stop) in enumerate(encoding["offset_mapping"]) if stop <= end) for end in ends]
    encoder = make(backbone, layer=-1, pooling="lasttoken", template="prompteol", normed=True)
    close(encoder.encode_chunks(TEXT, SPANS), states[lasts])


def test_eos_follows_every_chunk(tmp_path):
    """An encoder that pools the EOS token finds one behind each chunk."""
    build_tiny("llama", tmp_path / "model")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "model")
    template = processors.TemplateProcessing(single="<bos> $A <eos>", special_tokens=[("<bos>", 1), ("<eos>", 0)])
    tokenizer.backend_tokenizer.post_processor = template
    tokenizer.save_pretrained(tmp_path / "model")
    ids, lasts = [1], []
    for number, (begin, end) in enumerate(SPANS):
        ids += tokenizer(TEXT[begin - 1 if number else 0 : end], add_special_tokens=False)["input_ids"] + [0]
        lasts.append(len(ids) - 1)
    states = states_of(tmp_path / "model", ids, 3)
    encoder = Encoder.from_pretrained(
        tmp_path / "model", layer=3, pooling="lasttoken", template="plain", device="cpu", dtype="float32"
    )
    close(encoder.encode_chunks(TEXT, SPANS), states[lasts])
    close(encoder.encode_chunks(TEXT, [(0, len(TEXT))])[0], encoder.encode(TEXT))


# --- every family, attention, pooling, template, adapter and head ---------------------------------------------------


@pytest.mark.parametrize("name", sorted(TINY))
def test_chunks_of_every_family_add_up_to_the_text(backbone, name):
    encoder = make(backbone, name, pooling="sum", template="Text: {text}")
    close(encoder.encode_chunks(TEXT, PARTS).sum(axis=0), encoder.encode(TEXT))


@pytest.mark.parametrize("attention", ["causal", "bidirectional", "bidirectional:2"])
@pytest.mark.parametrize("template", ["plain", "prompteol", "echo", "Title: {text}"])
@pytest.mark.parametrize("name", ["tiny-gpt2", "tiny-llama", "tiny-opt"])
def test_span_of_the_whole_text_gives_the_vector_of_encode(backbone, name, template, attention):
    if attention != "causal" and name == "tiny-opt":
        attention = "causal"
    readings = tuple(Reading(layer, pooling, True) for layer in (1, 4) for pooling in POOLINGS if pooling != "cls")
    spec = EncoderSpec(name, readings, Template.of(template).string, attention)
    encoder = Encoder(backbone(name, attention), spec)
    for text in (TEXT, " blank at both ends \n", "x"):
        close(encoder.encode_chunks(text, [(0, len(text))])[0], encoder.encode(text))


@pytest.mark.parametrize("end", [end for _, end in SPANS])
def test_last_token_of_a_causal_model_reads_the_text_up_to_the_end_of_the_chunk(backbone, end):
    encoder = make(backbone, pooling="lasttoken")
    close(encoder.encode_chunks(TEXT, [(end - 3, end)])[0], encoder.encode(TEXT[:end]))


def test_bidirectional_chunks_have_seen_what_follows(backbone):
    encoder = make(backbone, "tiny-llama", "bidirectional")
    first = SPANS[:1]
    seen, unseen = encoder.encode_chunks(TEXT, first)[0], encoder.encode_chunks(TEXT[: first[0][1]], first)[0]
    assert np.abs(seen - unseen).max() > 1e-3


ADAPTERS = {
    "lora": lambda model: Lora.initialise(model, 2, 4),
    "kv_prefix": lambda model: KeyValuePrefix.initialise(model, 3),
    "soft_prompt_before": lambda model: SoftPrompt.initialise(model, 3, position="prepend", output="text"),
    "soft_prompt_behind": lambda model: SoftPrompt.initialise(model, 3, position="append", output="text"),
    "prepend": lambda model: reroute(model, "prepend:2-3").adapter,
    "kv": lambda model: reroute(model, "kv:2-3").adapter,
}


@pytest.mark.parametrize("adapter", ADAPTERS)
def test_chunks_add_up_with_every_adapter(backbone, adapter):
    torch.manual_seed(0)
    encoder = make(backbone, "tiny-llama", adapter=ADAPTERS[adapter], pooling="sum", template="Text: {text}")
    if adapter == "lora":
        for parameter in encoder.backbone.adapter.parameters():
            torch.nn.init.normal_(parameter, std=0.1)
    texts, parts = [TEXT, "Rain fell. It was cold."], [PARTS, [(0, 10), (10, 23)]]
    for text, vectors in zip(texts, encoder.encode_chunks(texts, parts), strict=True):
        close(vectors.sum(axis=0), encoder.encode(text))


def test_head_and_normalisation_follow_pooling(backbone):
    head = AffineHead.fit("whiten", np.random.default_rng(0).normal(size=(200, 64)).astype(np.float32))
    encoder = make(backbone, layer=[2, 3], normalize=True, head=head)
    vectors = encoder.encode_chunks(TEXT, [(0, len(TEXT)), *SPANS])
    close(vectors[0], encoder.encode(TEXT))
    close(np.linalg.norm(vectors, axis=1), np.ones(len(vectors)))


def test_readings_under_several_templates(backbone):
    readings = (Reading(2, "mean", template="Title: {text}"), Reading(3, "lasttoken", template="{text} means"))
    encoder = Encoder(backbone("tiny-llama"), EncoderSpec("tiny-llama", readings))
    close(encoder.encode_chunks(TEXT, [(0, len(TEXT))])[0], encoder.encode(TEXT))


def test_prompts_are_read_in_front_of_the_text(backbone):
    encoder = make(backbone, prompts={"document": "Represent: "})
    by_name = encoder.encode_chunks(TEXT, SPANS, prompt_name="document")
    np.testing.assert_array_equal(by_name, encoder.encode_chunks(TEXT, SPANS, prompt="Represent: "))
    close(by_name, make(backbone, template="Represent: {text}").encode_chunks(TEXT, SPANS))


# --- windows --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("template", ["plain", "prompteol", "echo"])
def test_every_chunk_is_read_with_context_on_both_sides(backbone, template):
    model, length = backbone("tiny-gpt2"), 128
    windows = WindowTokeniser(model, Template.of(template), length)(LONG, LONG_SPANS)
    assert sorted(windows.chunk_indices) == list(range(len(LONG_SPANS)))
    tokenizer = model.tokenizer
    numbers = iter(windows.chunk_indices)
    for prompt in windows.prompts:
        assert len(prompt.ids) <= length
        words = tokenizer.decode(prompt.ids)
        for chunk in prompt.chunks:
            number = next(numbers)
            sentence = LONG[slice(*LONG_SPANS[number])]
            assert sentence in tokenizer.decode([prompt.ids[token] for token in chunk]).strip()
            begin, end = LONG_SPANS[number]  # the end of the sentence before and the beginning of the one behind
            assert LONG[max(0, begin - 7) : begin].strip() in words
            assert LONG[end : end + 8].strip() in words


def test_vectors_of_windows_equal_those_of_transformers(backbone):
    """Each window alone through transformers; the tokens of a chunk are those that spell its sentence."""
    model = backbone("tiny-gpt2")
    windows = WindowTokeniser(model, Template.of("plain"), 96)(LONG, LONG_SPANS)
    expected = {}
    numbers = iter(windows.chunk_indices)
    for prompt in windows.prompts:
        states = states_of(tiny_folder("tiny-gpt2"), prompt.ids, 3)
        text = model.tokenizer.decode(prompt.ids)
        for _ in prompt.chunks:
            number = next(numbers)
            sentence = LONG[slice(*LONG_SPANS[number])]
            begin, offsets = text.index(sentence), model.tokenizer(text, return_offsets_mapping=True)["offset_mapping"]
            tokens = [i for i, (a, b) in enumerate(offsets) if b > begin and a < begin + len(sentence)]
            expected[number] = states[tokens].mean(axis=0)
    assert len(windows.prompts) > 5
    vectors = make(backbone, layer=3, max_length=96).encode_chunks(LONG, LONG_SPANS)
    close(vectors, [expected[number] for number in range(len(LONG_SPANS))])


def test_a_text_that_fits_is_one_window_and_a_larger_window_reads_more(backbone):
    model = backbone("tiny-gpt2")
    n_tokens = len(model.tokenizer(TEXT)["input_ids"])
    assert len(WindowTokeniser(model, Template.of("plain"), n_tokens)(TEXT, SPANS).prompts) == 1
    assert len(WindowTokeniser(model, Template.of("plain"), n_tokens - 1)(TEXT, SPANS).prompts) == 2
    short = make(backbone, max_length=n_tokens // 2)
    close(short.encode_chunks(TEXT, SPANS, window=n_tokens), make(backbone).encode_chunks(TEXT, SPANS))
    with pytest.raises(InputError, match="max_length 257 is over the model's context of 256 tokens"):
        short.encode_chunks(TEXT, SPANS, window=257)


def test_spans_may_overlap_in_any_order(backbone):
    spans = [(50, 90), (0, len(LONG)), (10, 60), (1800, 1900), (50, 90)]
    encoder = make(backbone, "tiny-falcon", max_length=1024)  # its context has no limit
    together = encoder.encode_chunks(LONG, spans)
    close(together, [encoder.encode_chunks(LONG, [span])[0] for span in spans])


@pytest.mark.parametrize("exact", [False, True])
def test_vectors_do_not_depend_on_the_batch(backbone, exact):
    encoder = make(backbone, "tiny-llama", "bidirectional", exact=exact)
    texts = [LONG[:900], TEXT, "One.", LONG, ""]
    spans = [sentence_spans(text) for text in texts]
    together = encoder.encode_chunks(texts, spans)
    alone = [encoder.encode_chunks(*both) for both in zip(texts, spans, strict=True)]
    assert [len(vectors) for vectors in together] == [len(each) for each in spans]
    for one, other in zip(together[:-1], alone[:-1], strict=True):
        np.testing.assert_array_equal(one, other) if exact else close(one, other)
    assert alone[-1].shape == together[-1].shape == (0, 32)


# --- sentences, limits and errors -----------------------------------------------------------------------------------


def test_sentences_come_with_their_spans(backbone):
    encoder = make(backbone)
    result = encoder.encode_sentences(TEXT)
    assert isinstance(result, SentenceVectors)
    assert result.spans == SPANS
    np.testing.assert_array_equal(result.vectors, encoder.encode_chunks(TEXT, SPANS))
    both = encoder.encode_sentences([TEXT, ""])
    close(both[0].vectors, result.vectors)
    assert both[1].spans == []
    assert both[1].vectors.shape == (0, 32)
    assert encoder.encode_sentences([]) == []


@pytest.mark.parametrize(
    ("spans", "message"),
    [
        ([(3, 3)], r"Text 0 has the span \(3, 3\), which is empty or outside of its"),
        ([(0, 4), (-1, 4)], r"span \(-1, 4\), which is empty"),
        ([(0, 4000)], r"span \(0, 4000\), which is empty or outside"),
        ([(0.0, 4)], r"has the span \(0.0, 4\); give \(begin, end\) in characters"),
        ([7], "has the span 7; give"),
        (["ab"], "has the span 'ab'; give"),
    ],
)
def test_wrong_spans_are_errors_of_one_sentence(backbone, spans, message):
    with pytest.raises(InputError, match=message):
        make(backbone).encode_chunks(TEXT, spans)


def test_lists_of_different_lengths_are_an_error(backbone):
    with pytest.raises(InputError, match="There are 2 texts and spans of 1; give a list of spans for each text"):
        make(backbone).encode_chunks([TEXT, TEXT], [SPANS])


def test_chunk_longer_than_a_window(backbone, caplog):
    """Truncated, averaged over its parts, or refused, as texts are by `encode`."""
    spans = [(0, 1000)]
    ids = backbone("tiny-gpt2").tokenizer(LONG[:1000])["input_ids"]
    with caplog.at_level(logging.WARNING):
        truncated = make(backbone, max_length=64).encode_chunks(LONG, spans)[0]
    assert "1 chunk(s) over 64 tokens were truncated" in caplog.text
    states = states_of(tiny_folder("tiny-gpt2"), ids[:64], 3)
    close(truncated, states.mean(axis=0))
    averaged = make(backbone, max_length=64, on_overflow="chunk").encode_chunks(LONG, spans)[0]
    windows = WindowTokeniser(backbone("tiny-gpt2"), Template.of("plain"), 64, "chunk")(LONG, spans)
    states = [
        states_of(tiny_folder("tiny-gpt2"), prompt.ids, 3)[list(chunk)]
        for prompt in windows.prompts
        for chunk in prompt.chunks
    ]
    assert sum(map(len, states)) == len(ids)  # every token of the chunk is pooled once
    close(averaged, np.concatenate(states).mean(axis=0))
    with pytest.raises(TextError, match=r"has the chunk \(0, 1000\), over the limit of 64 tokens; give shorter chunks"):
        make(backbone, max_length=64, on_overflow="error").encode_chunks(LONG, spans)


def test_window_without_room_for_text_is_an_error(backbone):
    with pytest.raises(InputError, match="leaves no room for the text"):
        make(backbone, template="prompteol").encode_chunks(LONG, LONG_SPANS, window=12)


def test_cls_of_a_bos_token_and_a_pooled_prompt_are_refused(backbone):
    with pytest.raises(UnsupportedError, match="Pooling cls takes the BOS token, which all chunks of a text share"):
        make(backbone, "tiny-llama", pooling="cls").encode_chunks(TEXT, SPANS)
    adapter = lambda model: SoftPrompt.initialise(model, 3, position="append", output="prompt")  # noqa: E731
    with pytest.raises(UnsupportedError, match="pools its soft prompt, which reads a text as a whole"):
        make(backbone, adapter=adapter).encode_chunks(TEXT, SPANS)


def test_characters_that_the_tokenizer_drops_get_the_vector_of_encode(tmp_path):
    from tokenizers import normalizers

    build_tiny("gpt2", tmp_path / "model")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "model")
    tokenizer.backend_tokenizer.normalizer = normalizers.Replace("\N{SNOWMAN}", "")
    tokenizer.save_pretrained(tmp_path / "model")
    encoder = Encoder(
        Backbone.load(tmp_path / "model", device="cpu", dtype="float32"),
        spec_from_kwargs("x", {"layer": 3, "pooling": "mean", "template": "plain"}),
    )
    text = "Snow fell. \N{SNOWMAN} It was cold."
    vectors = encoder.encode_chunks(text, [(0, 10), (11, 12), (13, len(text))])
    close(vectors[1], encoder.encode("\N{SNOWMAN}"))
    close(vectors[0], encoder.encode_chunks(text, [(0, 10)])[0])
