"""Tests of `Encoder`: shapes, prompts, settings, saving, and equality with sentence-transformers."""

from __future__ import annotations

import inspect
import json
import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer, SimilarityFunction
from sentence_transformers.sentence_transformer.modules import Pooling, Transformer
from sentence_transformers.util.quantization import quantize_embeddings

from decoder2vec.activations.capture import Capture
from decoder2vec.backbone.backbone import Backbone
from decoder2vec.backbone.machine import quiet_transformers
from decoder2vec.backbone.tiny import build_tiny, tiny_folder
from decoder2vec.config import EncoderSpec, Reading
from decoder2vec.encoder import Encoder
from decoder2vec.errors import BackboneError, Decoder2VecError, EncoderError, InputError, UnsupportedError
from decoder2vec.heads.codes import CodeNet, CodeSpec
from decoder2vec.heads.layerwise import LayerwiseHead
from decoder2vec.heads.standardise import AffineHead

TEXTS = [
    "Knead the flour and water until the mixture feels smooth.",
    "A worn chain will slip.",
    "",
    "The release notes say that the new version starts up twice as fast on older phones, but uses more memory.",
    "A worn chain will slip.",
    "שלום 👍",
]


LAST = (Reading(-1),)
PLAIN = {"layer": -1, "pooling": "mean", "template": "plain"}
"""Explicit wherever an encoder is created by name, because the defaults may change."""


def make_encoder(backbone, name="tiny-llama", attention=None, readings=LAST, head=None, **settings):
    return Encoder(backbone(name, attention), EncoderSpec(name, tuple(readings), **settings), head)


@pytest.fixture
def encoder(backbone):
    return make_encoder(backbone)


def assert_close(actual, expected, tolerance=1e-5):
    actual, expected = np.asarray(actual), np.asarray(expected)
    assert actual.shape == expected.shape
    assert np.abs(actual - expected).max() <= tolerance * np.abs(expected).max()


# --- shapes and order -----------------------------------------------------------------------------------------------


def test_string_gives_a_vector_and_list_gives_rows(encoder):
    vector, rows = encoder.encode("Bread."), encoder.encode(["Bread."])
    assert (vector.shape, rows.shape) == ((32,), (1, 32))
    assert vector.dtype == rows.dtype == np.float32
    np.testing.assert_array_equal(vector, rows[0])


@pytest.mark.parametrize("readings", [[Reading(1)], [Reading(1), Reading(3, "max")]])
def test_empty_list_gives_zero_rows_of_full_dim(backbone, readings):
    encoder = make_encoder(backbone, readings=readings)
    assert encoder.encode([]).shape == (0, 32 * len(readings)) == (0, encoder.dim)
    assert encoder.encode([], convert_to_tensor=True).shape == (0, encoder.dim)


def test_vectors_keep_the_order_of_repeated_texts(encoder):
    assert_close(encoder.encode(TEXTS), [encoder.encode(text) for text in TEXTS])


@pytest.mark.parametrize("batch_size", [1, 2, 1_000])
def test_batch_size_does_not_change_vectors(encoder, batch_size):
    assert_close(encoder.encode(TEXTS, batch_size=batch_size), encoder.encode(TEXTS))


@pytest.mark.parametrize("kind", [tuple, np.array, iter, lambda texts: dict.fromkeys(texts).keys()])
def test_any_iterable_of_texts_is_accepted(encoder, kind):
    texts = ["a", "b", "c"]
    np.testing.assert_array_equal(encoder.encode(kind(texts)), encoder.encode(texts))


def test_several_readings_are_concatenated(backbone):
    readings = [Reading(1), Reading(4, "lasttoken", True), Reading(0, "max")]
    encoder = make_encoder(backbone, readings=readings)
    parts = [make_encoder(backbone, readings=[reading]).encode(TEXTS) for reading in readings]
    assert encoder.dim == encoder.get_embedding_dimension() == encoder.get_sentence_embedding_dimension() == 96
    assert_close(encoder.encode(TEXTS), np.concatenate(parts, axis=1))


def test_negative_layers_are_resolved_in_the_spec(backbone):
    encoder = make_encoder(backbone, readings=[Reading(-2)])
    assert encoder.spec.readings == (Reading(3),)
    assert encoder.fingerprint == make_encoder(backbone, readings=[Reading(3)]).fingerprint


def test_convert_to_tensor_gives_the_same_values(encoder):
    vectors = encoder.encode(TEXTS, convert_to_tensor=True)
    assert isinstance(vectors, torch.Tensor)
    assert vectors.device == encoder.device
    np.testing.assert_array_equal(vectors.numpy(), encoder.encode(TEXTS))
    assert encoder.encode("a", convert_to_tensor=True).shape == (32,)
    assert isinstance(encoder.encode(TEXTS, convert_to_numpy=False), torch.Tensor)


# --- normalisation and precision ------------------------------------------------------------------------------------


def normalise_by_hand(rows):
    return np.array([[value / sum(x * x for x in row) ** 0.5 for value in row] for row in np.float64(rows).tolist()])


@pytest.mark.parametrize("how", ["argument", "spec"])
def test_normalised_vectors_have_unit_length(backbone, encoder, how):
    if how == "argument":
        vectors = encoder.encode(TEXTS, normalize_embeddings=True)
    else:
        vectors = make_encoder(backbone, normalize=True).encode(TEXTS)
    assert vectors.dtype == np.float32
    assert_close(vectors, normalise_by_hand(encoder.encode(TEXTS)))


def test_rms_vectors_have_numbers_of_size_one(backbone, encoder):
    rms = make_encoder(backbone, normalize="rms")
    vectors = rms.encode(TEXTS)
    assert vectors.dtype == np.float32
    assert_close(vectors, normalise_by_hand(encoder.encode(TEXTS)) * 32**0.5)
    np.testing.assert_allclose((rms.encode(TEXTS, truncate_dim=10) ** 2).mean(axis=1), 1, rtol=1e-5)
    np.testing.assert_allclose(np.linalg.norm(rms.encode(TEXTS, normalize_embeddings=True), axis=1), 1, rtol=1e-5)


def test_unknown_normalisation_is_refused(backbone):
    with pytest.raises(InputError, match='normalize is False, True or "rms"'):
        make_encoder(backbone, normalize="l2")


def test_truncation_comes_before_normalisation(encoder):
    whole = encoder.encode(TEXTS)
    np.testing.assert_array_equal(encoder.encode(TEXTS, truncate_dim=10), whole[:, :10])
    vectors = encoder.encode(TEXTS, truncate_dim=10, normalize_embeddings=True)
    assert_close(vectors, normalise_by_hand(whole[:, :10]))
    assert encoder.encode("a", truncate_dim=10).shape == (10,)


@pytest.mark.parametrize("width", [0, -1])
def test_truncation_that_leaves_nothing_is_refused(encoder, width):
    with pytest.raises(InputError, match="truncate_dim must be 1 or more"):
        encoder.encode(TEXTS, truncate_dim=width)


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_move_to_a_gpu_that_is_not_there_is_refused(encoder):
    for device, what in (("cuda", "finds no device 'cuda' here"), ("gpu", "Unknown device 'gpu'")):
        with pytest.raises(InputError, match=what):
            encoder.encode(TEXTS, device=device)
        with pytest.raises(InputError, match=what):
            encoder.to(device)


@pytest.mark.parametrize("precision", ["int8", "uint8", "binary", "ubinary"])
@pytest.mark.parametrize("width", [None, 12])
def test_precisions_equal_sentence_transformers(encoder, precision, width):
    vectors = encoder.encode(TEXTS, precision=precision, truncate_dim=width)
    expected = quantize_embeddings(encoder.encode(TEXTS)[:, :width], precision)
    assert vectors.dtype == expected.dtype
    np.testing.assert_array_equal(vectors, expected)


def test_int8_of_one_text_is_refused(encoder):
    with pytest.raises(InputError):
        encoder.encode("a", precision="int8")


@pytest.mark.parametrize("texts", [["a"], []])
def test_unknown_precision_is_refused(encoder, texts):
    with pytest.raises(InputError, match="int8"):
        encoder.encode(texts, precision="int4")


# --- prompts --------------------------------------------------------------------------------------------------------

PROMPTS = (("query", "Find: "), ("document", "Passage: "), ("whole", "<{text}> in one word:"))


def test_prompt_is_put_in_front_and_not_pooled(backbone):
    plain, prefixed = make_encoder(backbone), make_encoder(backbone, template="Find: {text}")
    np.testing.assert_array_equal(plain.encode(TEXTS, prompt="Find: "), prefixed.encode(TEXTS))


def test_prompt_name_selects_the_prompt(backbone):
    encoder = make_encoder(backbone, prompts=PROMPTS)
    assert encoder.prompts == dict(PROMPTS)
    for name, prompt in PROMPTS:
        np.testing.assert_array_equal(encoder.encode(TEXTS, prompt_name=name), encoder.encode(TEXTS, prompt=prompt))


def test_prompt_with_a_slot_replaces_the_template(backbone):
    encoder = make_encoder(backbone, template="x {text}")
    other = make_encoder(backbone, template="<{text}> in one word:")
    np.testing.assert_array_equal(encoder.encode(TEXTS, prompt="<{text}> in one word:"), other.encode(TEXTS))


def test_prompt_takes_precedence_over_prompt_name(backbone):
    encoder = make_encoder(backbone, prompts=PROMPTS)
    vectors = encoder.encode(TEXTS, prompt="Other: ", prompt_name="query")
    np.testing.assert_array_equal(vectors, encoder.encode(TEXTS, prompt="Other: "))


def test_unknown_prompt_name_suggests_the_nearest(backbone, encoder):
    with pytest.raises(InputError, match="query"):
        make_encoder(backbone, prompts=PROMPTS).encode("a", prompt_name="qeury")
    with pytest.raises(InputError, match="no prompts"):
        encoder.encode("a", prompt_name="query")


NAMED = ["query", "document", "passage", "corpus", "other"]


@pytest.mark.parametrize("role", ["encode_query", "encode_document"])
@pytest.mark.parametrize("arguments", [{}, {"prompt": "P: "}, {"prompt": ""}, {"prompt_name": "other"}])
@pytest.mark.parametrize(
    "names", [[], ["query"], ["document"], NAMED, NAMED[::-1], ["corpus", "passage"], ["corpus"], ["other"]]
)
def test_roles_choose_prompts_as_sentence_transformers(backbone, role, arguments, names):
    prompts = {name: f"{name}: " for name in names}
    received = {}

    def record(inputs, prompt_name=None, prompt=None, **_):
        received["prompt_name"], received["prompt"] = prompt_name, prompt

    stub = SimpleNamespace(prompts=prompts, encode=record)
    getattr(SentenceTransformer, role)(stub, "a", **arguments)
    expected = dict(received)
    encoder = make_encoder(backbone, prompts=tuple(prompts.items()))
    encoder.encode = record
    getattr(encoder, role)("a", **arguments)
    assert received == expected


def test_query_and_document_differ_only_by_prompts(backbone, encoder):
    for role in (encoder.encode_query, encoder.encode_document):
        np.testing.assert_array_equal(role(TEXTS), encoder.encode(TEXTS))
    prompted = make_encoder(backbone, prompts=PROMPTS)
    np.testing.assert_array_equal(prompted.encode_query(TEXTS), encoder.encode(TEXTS, prompt="Find: "))
    np.testing.assert_array_equal(prompted.encode_document("a"), encoder.encode("a", prompt="Passage: "))


# --- sentence-transformers ------------------------------------------------------------------------------------------


def sentence_transformer(folder, pooling):
    with quiet_transformers():
        return SentenceTransformer(modules=[Transformer(str(folder)), Pooling(32, pooling)], device="cpu")


@pytest.mark.parametrize("pooling", ["mean", "lasttoken", "weightedmean", "max", "cls"])
@pytest.mark.parametrize("name", ["tiny-llama", "tiny-qwen3"])
def test_normed_last_layer_equals_sentence_transformers(name, pooling):
    folder = tiny_folder(name)
    texts = [text for text in TEXTS if text]
    ours = Encoder.from_pretrained(folder, **{**PLAIN, "pooling": pooling}, normed=True, device="cpu")
    expected = sentence_transformer(folder, pooling)
    assert_close(ours.encode(texts), expected.encode(texts))
    assert_close(ours.encode(texts[0]), expected.encode(texts[0]))
    kwargs = {"normalize_embeddings": True, "truncate_dim": 20}
    assert_close(ours.encode(texts, **kwargs), expected.encode(texts, **kwargs))


def test_encode_has_the_arguments_of_sentence_transformers():
    expected = list(inspect.signature(SentenceTransformer.encode).parameters)
    ours = list(inspect.signature(Encoder.encode).parameters)
    shared = expected[: expected.index("truncate_dim") + 1]
    assert ours[: len(shared)] == shared


@pytest.mark.parametrize("name", ["cosine", "dot", "euclidean", "manhattan"])
def test_similarities_equal_sentence_transformers(backbone, name):
    encoder = make_encoder(backbone, similarity=name)
    left, right = encoder.encode(TEXTS), encoder.encode(TEXTS[::-1])
    assert encoder.similarity_fn_name == name
    torch.testing.assert_close(encoder.similarity(left, right), SimilarityFunction.to_similarity_fn(name)(left, right))
    torch.testing.assert_close(
        encoder.similarity_pairwise(left, right), SimilarityFunction.to_similarity_pairwise_fn(name)(left, right)
    )


# --- invalid arguments ----------------------------------------------------------------------------------------------


def test_unknown_arguments_are_refused_by_name(encoder):
    with pytest.raises(InputError, match="'normalise'"):
        encoder.encode(TEXTS, normalise=True)
    with pytest.raises(InputError, match="token_embeddings"):
        encoder.encode(TEXTS, output_value="token_embeddings")


@pytest.mark.parametrize("wrong", [None, 7, b"bytes", {"a": "b"}, 2.5])
def test_invalid_inputs_are_refused(encoder, wrong):
    with pytest.raises(InputError, match=type(wrong).__name__):
        encoder.encode(wrong)


def test_invalid_text_in_a_list_is_named(encoder):
    with pytest.raises(InputError, match="Text 1 is NoneType"):
        encoder.encode(["a", None])


@pytest.mark.parametrize("size", [0, -1])
def test_batch_size_below_one_is_refused(encoder, size):
    with pytest.raises(ValueError, match="batch_size"):
        encoder.encode(["a"], batch_size=size)


@pytest.mark.parametrize(
    ("settings", "word"),
    [
        ({"similarity": "cosin"}, "cosine"),
        ({"readings": [Reading(9)]}, "layers 0"),
        ({"readings": [Reading(1, "avg")]}, "pooling"),
        ({"readings": []}, "at least one"),
        ({"on_overflow": "chop"}, "on_overflow"),
        ({"template": "one two three four five six seven {text}", "max_length": 4}, "max_length"),
    ],
)
def test_invalid_settings_are_refused_at_construction(backbone, settings, word):
    with pytest.raises(InputError, match=word):
        make_encoder(backbone, **settings)


def test_unknown_setting_is_refused_by_name():
    with pytest.raises(Decoder2VecError, match="max_len"):
        Encoder.from_pretrained("tiny-llama", max_len=100)


# --- from_pretrained ------------------------------------------------------------------------------------------------


def test_from_pretrained_applies_all_settings(backbone):
    reading = {"layer": [1, -1], "pooling": "max", "normed": True, "template": "echo", "attention": "bidirectional"}
    others = {"max_length": 199, "normalize": True, "prompts": {"query": "Find: "}, "similarity": "dot"}
    encoder = Encoder.from_pretrained("tiny-llama", **reading, **others, device="cpu", dtype="float32")
    assert encoder.spec == EncoderSpec(
        backbone="tiny-llama",
        readings=(Reading(1, "max", True), Reading(4, "max", True)),
        template="Rewrite the sentence: {text}\nThe rewritten sentence: {text}",
        attention="bidirectional",
        max_length=199,
        normalize=True,
        similarity="dot",
        prompts=(("query", "Find: "),),
    )
    assert encoder.max_seq_length == 199
    by_hand = make_encoder(
        backbone, "tiny-llama", "bidirectional", encoder.spec.readings, template=encoder.spec.template
    )
    assert_close(encoder.encode(TEXTS), normalise_by_hand(by_hand.encode(TEXTS)))


def test_numpy_integers_are_valid_layers():
    assert Encoder.from_pretrained("tiny-llama", **{**PLAIN, "layer": np.int64(2)}).spec.readings == (Reading(2),)
    encoder = Encoder.from_pretrained("tiny-llama", **{**PLAIN, "layer": np.array([1, 2])})
    assert encoder.spec.readings == (Reading(1), Reading(2))


def test_max_seq_length_is_capped_at_the_context_length(backbone):
    assert make_encoder(backbone, max_length=10_000).max_seq_length == 256
    assert make_encoder(backbone, "tiny-mamba", max_length=10_000).max_seq_length == 10_000


@pytest.mark.parametrize("kind", ["standardise", "whiten", "remove_top", "rotate"])
def test_head_is_fitted_on_unique_unnormalised_vectors(backbone, kind):
    encoder = make_encoder(backbone, normalize=True)
    with_head = encoder.with_head(kind, TEXTS)
    raw = make_encoder(backbone).encode(list(dict.fromkeys(TEXTS)))
    expected = AffineHead.fit(kind, raw)(make_encoder(backbone).encode(TEXTS))
    assert with_head.dim == expected.shape[1]
    assert_close(with_head.encode(TEXTS), normalise_by_hand(expected), tolerance=1e-3)


def test_head_needs_two_different_texts(encoder):
    with pytest.raises(InputError, match="2 different texts"):
        encoder.with_head("standardise", ["a", "a", "a"])


@pytest.mark.parametrize("argument", ["normalize_embeddings", "truncate_dim", "precision", "convert_to_tensor"])
def test_head_that_would_be_fitted_on_other_vectors_is_refused(encoder, argument):
    with pytest.raises(InputError, match=f"leave out {argument}"):
        encoder.with_head("standardise", TEXTS, **{argument: 1})


def test_trained_head_is_not_replaced(backbone):
    plain = make_encoder(backbone, readings=[Reading(2, "mean"), Reading(4, "mean")])
    trained = Encoder(plain.backbone, plain.spec, LayerwiseHead(CodeNet(CodeSpec(16, (32, 32)))))
    with pytest.raises(UnsupportedError, match="trained head"):
        trained.with_head("rotate", TEXTS)


def test_stats_add_up_over_calls(backbone):
    encoder = make_encoder(backbone)
    encoder.encode(TEXTS)
    encoder.encode("one more")
    assert encoder.stats.texts == len(set(TEXTS)) + 1
    assert encoder.stats.tokens > 0


def test_vectors_of_a_bfloat16_model_are_float32():
    encoder = Encoder.from_pretrained("tiny-llama", **PLAIN, device="cpu", dtype="bfloat16")
    assert encoder.backbone.dtype == torch.bfloat16
    assert encoder.encode(TEXTS).dtype == np.float32
    exact = Encoder.from_pretrained("tiny-llama", **PLAIN, device="cpu", dtype="float32").encode(TEXTS)
    assert_close(encoder.encode(TEXTS), exact, tolerance=0.05)


# --- the fingerprint ------------------------------------------------------------------------------------------------


def test_every_setting_changes_the_fingerprint(backbone, tmp_path):
    base = make_encoder(backbone)
    build_tiny("llama", tmp_path, seed=1)
    fitted = AffineHead.fit("standardise", base.encode(TEXTS))
    others = [
        make_encoder(backbone, "tiny-qwen2"),
        Encoder(Backbone.load(tmp_path), base.spec),
        make_encoder(backbone, attention="bidirectional"),
        make_encoder(backbone, readings=[Reading(3)]),
        make_encoder(backbone, readings=[Reading(-1, "max")]),
        make_encoder(backbone, readings=[Reading(-1, normed=True)]),
        make_encoder(backbone, readings=[Reading(-1), Reading(1)]),
        make_encoder(backbone, readings=[Reading(1), Reading(-1)]),
        make_encoder(backbone, template="x {text}"),
        make_encoder(backbone, max_length=100),
        make_encoder(backbone, on_overflow="chunk"),
        make_encoder(backbone, normalize=True),
        make_encoder(backbone, similarity="dot"),
        make_encoder(backbone, prompts=(("query", "Q: "),)),
        make_encoder(backbone, prompts=(("query", "R: "),)),
        make_encoder(backbone, head=fitted),
        make_encoder(backbone, head=replace(fitted, map=fitted.map * 2)),
    ]
    names = [base.fingerprint, *(other.fingerprint for other in others)]
    assert len(set(names)) == len(names)


def test_fingerprint_does_not_depend_on_the_path(backbone, tmp_path):
    shutil.copytree(tiny_folder("tiny-llama"), tmp_path / "copy")
    copied = Encoder.from_pretrained(tmp_path / "copy", **PLAIN)
    assert copied.fingerprint == make_encoder(backbone).fingerprint


# --- saving ---------------------------------------------------------------------------------------------------------


def make_variant(backbone, variant):
    if variant == "plain":
        return make_encoder(backbone)
    if variant == "bidirectional":
        return make_encoder(backbone, attention="bidirectional")
    settings = {
        "template": "x {text} y",
        "max_length": 77,
        "on_overflow": "chunk",
        "normalize": True,
        "prompts": PROMPTS,
    }
    plain = make_encoder(backbone, readings=[Reading(2), Reading(4, "max", True)], similarity="dot", **settings)
    return plain if variant == "all settings" else plain.with_head(variant, TEXTS)


@pytest.mark.parametrize("variant", ["plain", "all settings", "bidirectional", "standardise", "whiten", "remove_top"])
@pytest.mark.parametrize("copy_backbone", [False, True])
def test_saved_encoder_gives_identical_vectors(backbone, tmp_path, variant, copy_backbone):
    encoder = make_variant(backbone, variant)
    assert encoder.save(tmp_path / "saved", copy_backbone=copy_backbone) == tmp_path / "saved"
    for loaded in (Encoder.load(tmp_path / "saved"), Encoder.from_pretrained(str(tmp_path / "saved"))):
        np.testing.assert_array_equal(loaded.encode(TEXTS), encoder.encode(TEXTS))
        np.testing.assert_array_equal(loaded.encode_query(TEXTS), encoder.encode_query(TEXTS))
        assert loaded.fingerprint == encoder.fingerprint
        assert replace(loaded.spec, backbone="") == replace(encoder.spec, backbone="")
    description = json.loads((tmp_path / "saved" / "encoder.json").read_text())
    assert (description["fingerprint"], description["dim"]) == (encoder.fingerprint, encoder.dim)
    assert (tmp_path / "saved" / "backbone").is_dir() == copy_backbone
    assert [entry.name for entry in tmp_path.iterdir()] == ["saved"]


def test_folder_with_copied_weights_is_self_contained(tmp_path):
    shutil.copytree(tiny_folder("tiny-llama"), tmp_path / "model")
    encoder = Encoder.from_pretrained(tmp_path / "model", **PLAIN)
    encoder.save(tmp_path / "saved", copy_backbone=True)
    shutil.rmtree(tmp_path / "model")
    (tmp_path / "saved").rename(tmp_path / "moved")
    np.testing.assert_array_equal(Encoder.load(tmp_path / "moved").encode(TEXTS), encoder.encode(TEXTS))


@pytest.fixture
def model_nearby(tmp_path, monkeypatch):
    """A model in the folder `near/model`, with `near` as the working folder, and another folder `far`."""
    shutil.copytree(tiny_folder("tiny-llama"), tmp_path / "near" / "model")
    (tmp_path / "far").mkdir()
    monkeypatch.chdir(tmp_path / "near")
    return tmp_path


def test_relative_model_path_is_found_from_another_folder(model_nearby, monkeypatch):
    encoder = Encoder.from_pretrained("model", **PLAIN)
    encoder.save("saved")
    monkeypatch.chdir(model_nearby / "far")
    loaded = Encoder.load(Path("..") / "near" / "saved")
    np.testing.assert_array_equal(loaded.encode(TEXTS), encoder.encode(TEXTS))
    assert loaded.fingerprint == encoder.fingerprint


def test_relative_model_path_can_be_saved_from_elsewhere(model_nearby, monkeypatch):
    monkeypatch.setattr("huggingface_hub.snapshot_download", lambda *_, **__: pytest.fail("the hub was queried"))
    encoder = Encoder.from_pretrained("model", **PLAIN)
    monkeypatch.chdir(model_nearby / "far")
    encoder.save(model_nearby / "saved")
    np.testing.assert_array_equal(Encoder.load(model_nearby / "saved").encode(TEXTS), encoder.encode(TEXTS))


def test_changed_weights_are_refused(tmp_path):
    build_tiny("llama", tmp_path / "model")
    Encoder.from_pretrained(tmp_path / "model", **PLAIN).save(tmp_path / "saved")
    build_tiny("llama", tmp_path / "model", seed=1)
    with pytest.raises(BackboneError, match="not those this encoder was made with"):
        Encoder.load(tmp_path / "saved")


@pytest.mark.parametrize("file", ["tokenizer.json", "config.json"])
def test_changed_tokenizer_or_config_is_refused(tmp_path, file):
    shutil.copytree(tiny_folder("tiny-llama"), tmp_path / "model")
    Encoder.from_pretrained(tmp_path / "model", **PLAIN).save(tmp_path / "saved")
    other = tiny_folder("tiny-qwen2") if file == "tokenizer.json" else None
    if other:
        shutil.copy(other / file, tmp_path / "model" / file)
    else:
        config = json.loads((tmp_path / "model" / file).read_text())
        (tmp_path / "model" / file).write_text(json.dumps({**config, "rms_norm_eps": 0.01}))
    with pytest.raises(BackboneError, match="not those"):
        Encoder.load(tmp_path / "saved")


def test_saving_again_replaces_the_encoder(backbone, tmp_path):
    make_encoder(backbone).with_head("standardise", TEXTS).save(tmp_path / "saved", copy_backbone=True)
    make_encoder(backbone, readings=[Reading(1)]).save(tmp_path / "saved")
    assert Encoder.load(tmp_path / "saved").spec.readings == (Reading(1),)
    assert {entry.name for entry in (tmp_path / "saved").iterdir()} == {"encoder.json", "gold.json"}


def test_saving_into_an_empty_folder_works(backbone, tmp_path):
    (tmp_path / "saved").mkdir()
    make_encoder(backbone).save(tmp_path / "saved")
    assert Encoder.load(tmp_path / "saved").fingerprint == make_encoder(backbone).fingerprint


def test_saving_into_a_link_writes_to_its_target(backbone, tmp_path):
    (tmp_path / "disk").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "disk", target_is_directory=True)
    for _ in range(2):
        make_encoder(backbone).save(tmp_path / "link")
    assert (tmp_path / "link").is_symlink()
    assert Encoder.load(tmp_path / "disk").fingerprint == make_encoder(backbone).fingerprint


def test_saving_over_another_folder_is_refused(backbone, tmp_path):
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter.txt").write_text("years of work")
    with pytest.raises(InputError, match="is not empty"):
        make_encoder(backbone).save(tmp_path / "thesis")
    assert (tmp_path / "thesis" / "chapter.txt").read_text() == "years of work"
    assert [entry.name for entry in tmp_path.iterdir()] == ["thesis"]


def test_saving_over_a_file_is_refused(backbone, tmp_path):
    (tmp_path / "notes").write_text("mine")
    with pytest.raises(InputError):
        make_encoder(backbone).save(tmp_path / "notes")
    assert (tmp_path / "notes").read_text() == "mine"


def test_saving_over_itself_keeps_copied_weights(backbone, tmp_path):
    make_encoder(backbone).save(tmp_path / "saved", copy_backbone=True)
    loaded = Encoder.load(tmp_path / "saved")
    expected = loaded.encode(TEXTS)
    loaded.save(tmp_path / "saved")
    np.testing.assert_array_equal(Encoder.load(tmp_path / "saved").encode(TEXTS), expected)


def test_remains_of_a_killed_save_are_ignored(backbone, tmp_path):
    make_encoder(backbone, readings=[Reading(1)]).save(tmp_path / "saved")
    (tmp_path / "saved").rename(tmp_path / ".saved.new")
    make_encoder(backbone, readings=[Reading(3)]).save(tmp_path / "saved")
    assert Encoder.load(tmp_path / "saved").spec.readings == (Reading(3),)


def test_failed_save_keeps_the_old_encoder(backbone, tmp_path, monkeypatch):
    make_encoder(backbone).save(tmp_path / "saved")

    def fail(*_, **__):
        raise OSError("No space left on device")

    monkeypatch.setattr(shutil, "copytree", fail)
    with pytest.raises(OSError, match="No space"):
        make_encoder(backbone, readings=[Reading(1)]).save(tmp_path / "saved", copy_backbone=True)
    monkeypatch.undo()
    assert Encoder.load(tmp_path / "saved").spec.readings == (Reading(4),)
    assert [entry.name for entry in tmp_path.iterdir()] == ["saved"]


def test_save_pretrained_is_save(backbone, tmp_path):
    make_encoder(backbone).save_pretrained(tmp_path / "saved")
    assert (tmp_path / "saved" / "encoder.json").is_file()


@pytest.mark.parametrize("content", [None, "not json", "{}", '{"spec": {}}', '{"spec": {"backbone": "tiny-llama"}}'])
def test_folder_that_is_not_an_encoder_is_refused(tmp_path, content):
    if content is not None:
        (tmp_path / "encoder.json").write_text(content)
    with pytest.raises(Decoder2VecError):
        Encoder.load(tmp_path)


def test_unknown_field_of_a_later_version_is_refused(backbone, tmp_path):
    make_encoder(backbone).save(tmp_path / "saved")
    file = tmp_path / "saved" / "encoder.json"
    description = json.loads(file.read_text())
    description["spec"]["magic"] = 7
    file.write_text(json.dumps(description))
    with pytest.raises(EncoderError, match="magic"):
        Encoder.load(tmp_path / "saved")


def test_saved_files_are_readable_by_others(backbone, tmp_path):
    make_encoder(backbone).with_head("standardise", TEXTS).save(tmp_path / "saved")
    mask = os.umask(0)
    os.umask(mask)
    for path in (tmp_path / "saved").rglob("*"):
        readable = (0o777 if path.is_dir() else 0o666) & ~mask & 0o444
        assert path.stat().st_mode & readable == readable, path


# --- other ----------------------------------------------------------------------------------------------------------


def test_duplicate_texts_are_computed_once(encoder, monkeypatch):
    rows = []
    real = Capture.__call__
    monkeypatch.setattr(Capture, "__call__", lambda self, batch: (rows.append(len(batch.ids)), real(self, batch))[1])
    encoder.encode(TEXTS * 10)
    assert sum(rows) == len(set(TEXTS))


def test_repr_describes_the_encoder(backbone):
    text = repr(make_encoder(backbone, readings=[Reading(2, "max", True), Reading(4)]).with_head("whiten", TEXTS))
    assert all(word in text for word in ("tiny-llama", "layer 2 normed, max", "layer 4, mean", "causal", "whiten"))


def test_padding_calls_of_the_tokenizer_change_nothing():
    """transformers turns padding and truncation on in the shared tokenizer and leaves them on."""
    encoder = Encoder.from_pretrained("tiny-llama", layer=2, pooling="mean", template="plain")
    texts = ["A short one.", "A text that is a good deal longer than the first one."]
    before = encoder.encode(texts)
    encoder.tokenizer.pad_token = encoder.tokenizer.eos_token
    encoder.tokenizer(texts, padding=True, truncation=True, max_length=8)
    backend = encoder.tokenizer.backend_tokenizer
    lengths = {len(encoding.ids) for encoding in backend.encode_batch(texts)}
    assert len(lengths) == 1, "padding and truncation are still on"
    np.testing.assert_array_equal(encoder.encode(texts), before)


def test_threads_share_an_encoder():
    encoder = Encoder.from_pretrained("tiny-llama", device="cpu")
    other = Encoder(encoder.backbone, replace(encoder.spec, template="{text}"))
    texts = [[f"Cat number {row}.", "x " * (30 * row + 1)] for row in range(24)]
    expected = [(encoder.encode(pair), other.encode(pair)) for pair in texts]
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda pair: (encoder.encode(pair), other.encode(pair)), texts))
    np.testing.assert_allclose(found, expected, atol=1e-5)
