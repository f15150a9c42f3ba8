"""The encoder: shapes, prompts, saving, and agreement with sentence-transformers."""

from __future__ import annotations

import inspect
import json
import os
import shutil
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
from decoder2vec.errors import BackboneError, Decoder2VecError, EncoderError, InputError
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
"""Said aloud wherever an encoder is made by name, since the defaults may change."""


def encoder_of(backbone, name="tiny-llama", attention=None, readings=LAST, head=None, **choices):
    return Encoder(backbone(name, attention), EncoderSpec(name, tuple(readings), **choices), head)


@pytest.fixture
def encoder(backbone):
    return encoder_of(backbone)


def assert_close(found, expected, tolerance=1e-5):
    found, expected = np.asarray(found), np.asarray(expected)
    assert found.shape == expected.shape
    assert np.abs(found - expected).max() <= tolerance * np.abs(expected).max()


# --- shapes and order -----------------------------------------------------------------------------------------------


def test_a_string_gives_one_vector_and_a_list_gives_rows(encoder):
    one, rows = encoder.encode("Bread."), encoder.encode(["Bread."])
    assert (one.shape, rows.shape) == ((32,), (1, 32))
    assert one.dtype == rows.dtype == np.float32
    np.testing.assert_array_equal(one, rows[0])


@pytest.mark.parametrize("readings", [[Reading(1)], [Reading(1), Reading(3, "max")]])
def test_an_empty_list_gives_no_rows_of_full_width(backbone, readings):
    encoder = encoder_of(backbone, readings=readings)
    assert encoder.encode([]).shape == (0, 32 * len(readings)) == (0, encoder.dim)
    assert encoder.encode([], convert_to_tensor=True).shape == (0, encoder.dim)


def test_vectors_come_back_in_the_order_of_the_texts_also_when_texts_repeat(encoder):
    assert_close(encoder.encode(TEXTS), [encoder.encode(text) for text in TEXTS])


@pytest.mark.parametrize("batch_size", [1, 2, 1_000])
def test_the_batch_size_does_not_change_vectors(encoder, batch_size):
    assert_close(encoder.encode(TEXTS, batch_size=batch_size), encoder.encode(TEXTS))


@pytest.mark.parametrize("kind", [tuple, np.array, iter, lambda texts: dict.fromkeys(texts).keys()])
def test_any_collection_of_texts_will_do(encoder, kind):
    texts = ["a", "b", "c"]
    np.testing.assert_array_equal(encoder.encode(kind(texts)), encoder.encode(texts))


def test_several_readings_are_concatenated(backbone):
    readings = [Reading(1), Reading(4, "lasttoken", True), Reading(0, "max")]
    both = encoder_of(backbone, readings=readings)
    parts = [encoder_of(backbone, readings=[reading]).encode(TEXTS) for reading in readings]
    assert both.dim == both.get_embedding_dimension() == both.get_sentence_embedding_dimension() == 96
    assert_close(both.encode(TEXTS), np.concatenate(parts, axis=1))


def test_negative_layers_are_resolved_once(backbone):
    encoder = encoder_of(backbone, readings=[Reading(-2)])
    assert encoder.spec.readings == (Reading(3),)
    assert encoder.fingerprint == encoder_of(backbone, readings=[Reading(3)]).fingerprint


def test_convert_to_tensor_gives_the_same_numbers_on_the_models_device(encoder):
    found = encoder.encode(TEXTS, convert_to_tensor=True)
    assert isinstance(found, torch.Tensor)
    assert found.device == encoder.device
    np.testing.assert_array_equal(found.numpy(), encoder.encode(TEXTS))
    assert encoder.encode("a", convert_to_tensor=True).shape == (32,)
    assert isinstance(encoder.encode(TEXTS, convert_to_numpy=False), torch.Tensor)


# --- what follows pooling -------------------------------------------------------------------------------------------


def by_hand_normalised(rows):
    return np.array([[value / sum(x * x for x in row) ** 0.5 for value in row] for row in np.float64(rows).tolist()])


@pytest.mark.parametrize("how", ["argument", "spec"])
def test_normalised_vectors_have_length_one(backbone, encoder, how):
    if how == "argument":
        found = encoder.encode(TEXTS, normalize_embeddings=True)
    else:
        found = encoder_of(backbone, normalize=True).encode(TEXTS)
    assert found.dtype == np.float32
    assert_close(found, by_hand_normalised(encoder.encode(TEXTS)))


def test_vectors_are_cut_first_and_normalised_then(encoder):
    whole = encoder.encode(TEXTS)
    np.testing.assert_array_equal(encoder.encode(TEXTS, truncate_dim=10), whole[:, :10])
    found = encoder.encode(TEXTS, truncate_dim=10, normalize_embeddings=True)
    assert_close(found, by_hand_normalised(whole[:, :10]))
    assert encoder.encode("a", truncate_dim=10).shape == (10,)


@pytest.mark.parametrize("precision", ["int8", "uint8", "binary", "ubinary"])
@pytest.mark.parametrize("width", [None, 12])
def test_precisions_equal_sentence_transformers(encoder, precision, width):
    found = encoder.encode(TEXTS, precision=precision, truncate_dim=width)
    expected = quantize_embeddings(encoder.encode(TEXTS)[:, :width], precision)
    assert found.dtype == expected.dtype
    np.testing.assert_array_equal(found, expected)


def test_one_text_has_no_range_for_int8_and_is_refused_as_in_sentence_transformers(encoder):
    with pytest.raises(InputError):
        encoder.encode("a", precision="int8")


@pytest.mark.parametrize("texts", [["a"], []])
def test_an_unknown_precision_is_refused_whatever_the_texts(encoder, texts):
    with pytest.raises(InputError, match="int8"):
        encoder.encode(texts, precision="int4")


# --- prompts --------------------------------------------------------------------------------------------------------

PROMPTS = (("query", "Find: "), ("document", "Passage: "), ("whole", "<{text}> in one word:"))


def test_a_prompt_stands_in_front_and_is_not_pooled(backbone):
    plain, prefixed = encoder_of(backbone), encoder_of(backbone, template="Find: {text}")
    np.testing.assert_array_equal(plain.encode(TEXTS, prompt="Find: "), prefixed.encode(TEXTS))


def test_a_named_prompt_is_that_prompt(backbone):
    encoder = encoder_of(backbone, prompts=PROMPTS)
    assert encoder.prompts == dict(PROMPTS)
    for name, prompt in PROMPTS:
        np.testing.assert_array_equal(encoder.encode(TEXTS, prompt_name=name), encoder.encode(TEXTS, prompt=prompt))


def test_a_prompt_with_a_slot_replaces_the_template(backbone):
    encoder, other = encoder_of(backbone, template="x {text}"), encoder_of(backbone, template="<{text}> in one word:")
    np.testing.assert_array_equal(encoder.encode(TEXTS, prompt="<{text}> in one word:"), other.encode(TEXTS))


def test_a_prompt_wins_over_a_prompt_name_as_in_sentence_transformers(backbone):
    encoder = encoder_of(backbone, prompts=PROMPTS)
    both = encoder.encode(TEXTS, prompt="Other: ", prompt_name="query")
    np.testing.assert_array_equal(both, encoder.encode(TEXTS, prompt="Other: "))


def test_an_unknown_prompt_name_suggests_the_nearest(backbone, encoder):
    with pytest.raises(InputError, match="query"):
        encoder_of(backbone, prompts=PROMPTS).encode("a", prompt_name="qeury")
    with pytest.raises(InputError, match="no prompts"):
        encoder.encode("a", prompt_name="query")


NAMED = ["query", "document", "passage", "corpus", "other"]


@pytest.mark.parametrize("role", ["encode_query", "encode_document"])
@pytest.mark.parametrize("given", [{}, {"prompt": "P: "}, {"prompt": ""}, {"prompt_name": "other"}])
@pytest.mark.parametrize(
    "names", [[], ["query"], ["document"], NAMED, NAMED[::-1], ["corpus", "passage"], ["corpus"], ["other"]]
)
def test_roles_choose_their_prompt_by_sentence_transformers_rules(backbone, role, given, names):
    prompts = {name: f"{name}: " for name in names}
    asked = {}

    def note(inputs, prompt_name=None, prompt=None, **_):
        asked["prompt_name"], asked["prompt"] = prompt_name, prompt

    stand_in = SimpleNamespace(prompts=prompts, encode=note)
    getattr(SentenceTransformer, role)(stand_in, "a", **given)
    theirs = dict(asked)
    encoder = encoder_of(backbone, prompts=tuple(prompts.items()))
    encoder.encode = note
    getattr(encoder, role)("a", **given)
    assert asked == theirs


def test_roles_differ_only_where_there_are_prompts(backbone, encoder):
    for role in (encoder.encode_query, encoder.encode_document):
        np.testing.assert_array_equal(role(TEXTS), encoder.encode(TEXTS))
    prompted = encoder_of(backbone, prompts=PROMPTS)
    np.testing.assert_array_equal(prompted.encode_query(TEXTS), encoder.encode(TEXTS, prompt="Find: "))
    np.testing.assert_array_equal(prompted.encode_document("a"), encoder.encode("a", prompt="Passage: "))


# --- sentence-transformers ------------------------------------------------------------------------------------------


def sentence_transformer(folder, pooling):
    with quiet_transformers():
        return SentenceTransformer(modules=[Transformer(str(folder)), Pooling(32, pooling)], device="cpu")


@pytest.mark.parametrize("pooling", ["mean", "lasttoken", "weightedmean", "max", "cls"])
@pytest.mark.parametrize("name", ["tiny-llama", "tiny-qwen3"])
def test_the_normed_last_layer_equals_sentence_transformers(name, pooling):
    folder = tiny_folder(name)
    texts = [text for text in TEXTS if text]
    ours = Encoder.from_pretrained(folder, **{**PLAIN, "pooling": pooling}, normed=True, device="cpu")
    theirs = sentence_transformer(folder, pooling)
    assert_close(ours.encode(texts), theirs.encode(texts))
    assert_close(ours.encode(texts[0]), theirs.encode(texts[0]))
    kwargs = {"normalize_embeddings": True, "truncate_dim": 20}
    assert_close(ours.encode(texts, **kwargs), theirs.encode(texts, **kwargs))


def test_encode_takes_sentence_transformers_arguments_in_their_order():
    theirs = list(inspect.signature(SentenceTransformer.encode).parameters)
    ours = list(inspect.signature(Encoder.encode).parameters)
    shared = theirs[: theirs.index("truncate_dim") + 1]
    assert ours[: len(shared)] == shared


@pytest.mark.parametrize("name", ["cosine", "dot", "euclidean", "manhattan"])
def test_similarities_equal_sentence_transformers(backbone, name):
    encoder = encoder_of(backbone, similarity=name)
    left, right = encoder.encode(TEXTS), encoder.encode(TEXTS[::-1])
    assert encoder.similarity_fn_name == name
    torch.testing.assert_close(encoder.similarity(left, right), SimilarityFunction.to_similarity_fn(name)(left, right))
    torch.testing.assert_close(
        encoder.similarity_pairwise(left, right), SimilarityFunction.to_similarity_pairwise_fn(name)(left, right)
    )


# --- refusals -------------------------------------------------------------------------------------------------------


def test_unknown_arguments_are_refused_by_name(encoder):
    with pytest.raises(InputError, match="'normalise'"):
        encoder.encode(TEXTS, normalise=True)
    with pytest.raises(InputError, match="token_embeddings"):
        encoder.encode(TEXTS, output_value="token_embeddings")


@pytest.mark.parametrize("wrong", [None, 7, b"bytes", {"a": "b"}, 2.5])
def test_what_is_neither_text_nor_texts_is_refused(encoder, wrong):
    with pytest.raises(InputError, match=type(wrong).__name__):
        encoder.encode(wrong)


def test_a_wrong_text_in_a_list_is_named(encoder):
    with pytest.raises(InputError, match="Text 1 is NoneType"):
        encoder.encode(["a", None])


@pytest.mark.parametrize("size", [0, -1])
def test_a_batch_size_of_nothing_is_refused_as_in_sentence_transformers(encoder, size):
    with pytest.raises(ValueError, match="batch_size"):
        encoder.encode(["a"], batch_size=size)


@pytest.mark.parametrize(
    ("choice", "word"),
    [
        ({"similarity": "cosin"}, "cosine"),
        ({"readings": [Reading(9)]}, "layers 0"),
        ({"readings": [Reading(1, "avg")]}, "pooling"),
        ({"readings": []}, "at least one"),
        ({"on_overflow": "chop"}, "on_overflow"),
        ({"template": "one two three four five six seven {text}", "max_length": 4}, "max_length"),
    ],
)
def test_a_wrong_choice_is_refused_when_the_encoder_is_made(backbone, choice, word):
    with pytest.raises(InputError, match=word):
        encoder_of(backbone, **choice)


def test_a_choice_that_does_not_exist_is_refused_in_words():
    with pytest.raises(Decoder2VecError, match="max_len"):
        Encoder.from_pretrained("tiny-llama", max_len=100)


# --- making one -----------------------------------------------------------------------------------------------------


def test_from_pretrained_reads_what_it_is_asked_to(backbone):
    reads = {"layer": [1, -1], "pooling": "max", "normed": True, "template": "echo", "attention": "bidirectional"}
    choices = {"max_length": 199, "normalize": True, "prompts": {"query": "Find: "}, "similarity": "dot"}
    made = Encoder.from_pretrained("tiny-llama", **reads, **choices, device="cpu", dtype="float32")
    assert made.spec == EncoderSpec(
        backbone="tiny-llama",
        readings=(Reading(1, "max", True), Reading(4, "max", True)),
        template="Rewrite the sentence: {text}\nThe rewritten sentence: {text}",
        attention="bidirectional",
        max_length=199,
        normalize=True,
        similarity="dot",
        prompts=(("query", "Find: "),),
    )
    assert made.max_seq_length == 199
    by_hand = encoder_of(backbone, "tiny-llama", "bidirectional", made.spec.readings, template=made.spec.template)
    assert_close(made.encode(TEXTS), by_hand_normalised(by_hand.encode(TEXTS)))


def test_layer_numbers_of_numpy_are_numbers_too():
    assert Encoder.from_pretrained("tiny-llama", **{**PLAIN, "layer": np.int64(2)}).spec.readings == (Reading(2),)
    made = Encoder.from_pretrained("tiny-llama", **{**PLAIN, "layer": np.array([1, 2])})
    assert made.spec.readings == (Reading(1), Reading(2))


def test_the_limit_is_the_models_context_where_that_is_smaller(backbone):
    assert encoder_of(backbone, max_length=10_000).max_seq_length == 256
    assert encoder_of(backbone, "tiny-mamba", max_length=10_000).max_seq_length == 10_000


@pytest.mark.parametrize("kind", ["standardise", "whiten", "remove_top"])
def test_a_head_is_fitted_on_different_unnormalised_vectors(backbone, kind):
    encoder = encoder_of(backbone, normalize=True)
    made = encoder.with_head(kind, TEXTS)
    raw = encoder_of(backbone).encode(list(dict.fromkeys(TEXTS)))
    expected = AffineHead.fit(kind, raw)(encoder_of(backbone).encode(TEXTS))
    assert made.dim == expected.shape[1]
    assert_close(made.encode(TEXTS), by_hand_normalised(expected), tolerance=1e-3)


def test_one_text_is_too_little_for_a_head(encoder):
    with pytest.raises(InputError, match="2 different texts"):
        encoder.with_head("standardise", ["a", "a", "a"])


def test_the_tally_adds_up_over_calls(backbone):
    encoder = encoder_of(backbone)
    encoder.encode(TEXTS)
    encoder.encode("one more")
    assert encoder.stats.texts == len(set(TEXTS)) + 1
    assert encoder.stats.tokens > 0


def test_the_vectors_of_a_bfloat16_model_are_float32():
    encoder = Encoder.from_pretrained("tiny-llama", **PLAIN, device="cpu", dtype="bfloat16")
    assert encoder.backbone.dtype == torch.bfloat16
    assert encoder.encode(TEXTS).dtype == np.float32
    exact = Encoder.from_pretrained("tiny-llama", **PLAIN, device="cpu", dtype="float32").encode(TEXTS)
    assert_close(encoder.encode(TEXTS), exact, tolerance=0.05)


# --- the fingerprint ------------------------------------------------------------------------------------------------


def test_every_changed_choice_changes_the_fingerprint(backbone, tmp_path):
    base = encoder_of(backbone)
    build_tiny("llama", tmp_path, seed=1)
    fitted = AffineHead.fit("standardise", base.encode(TEXTS))
    others = [
        encoder_of(backbone, "tiny-qwen2"),
        Encoder(Backbone.load(tmp_path), base.spec),
        encoder_of(backbone, attention="bidirectional"),
        encoder_of(backbone, readings=[Reading(3)]),
        encoder_of(backbone, readings=[Reading(-1, "max")]),
        encoder_of(backbone, readings=[Reading(-1, normed=True)]),
        encoder_of(backbone, readings=[Reading(-1), Reading(1)]),
        encoder_of(backbone, readings=[Reading(1), Reading(-1)]),
        encoder_of(backbone, template="x {text}"),
        encoder_of(backbone, max_length=100),
        encoder_of(backbone, on_overflow="chunk"),
        encoder_of(backbone, normalize=True),
        encoder_of(backbone, similarity="dot"),
        encoder_of(backbone, prompts=(("query", "Q: "),)),
        encoder_of(backbone, prompts=(("query", "R: "),)),
        encoder_of(backbone, head=fitted),
        encoder_of(backbone, head=replace(fitted, map=fitted.map * 2)),
    ]
    names = [base.fingerprint, *(other.fingerprint for other in others)]
    assert len(set(names)) == len(names)


def test_the_same_choices_give_the_same_fingerprint_wherever_the_weights_lie(backbone, tmp_path):
    shutil.copytree(tiny_folder("tiny-llama"), tmp_path / "copy")
    elsewhere = Encoder.from_pretrained(tmp_path / "copy", **PLAIN)
    assert elsewhere.fingerprint == encoder_of(backbone).fingerprint


# --- saving ---------------------------------------------------------------------------------------------------------


def encoder_to_save(backbone, which):
    if which == "plain":
        return encoder_of(backbone)
    if which == "bidirectional":
        return encoder_of(backbone, attention="bidirectional")
    full = {"template": "x {text} y", "max_length": 77, "on_overflow": "chunk", "normalize": True, "prompts": PROMPTS}
    bare = encoder_of(backbone, readings=[Reading(2), Reading(4, "max", True)], similarity="dot", **full)
    return bare if which == "every choice" else bare.with_head(which, TEXTS)


@pytest.mark.parametrize("which", ["plain", "every choice", "bidirectional", "standardise", "whiten", "remove_top"])
@pytest.mark.parametrize("copy_backbone", [False, True])
def test_a_saved_encoder_gives_identical_vectors(backbone, tmp_path, which, copy_backbone):
    encoder = encoder_to_save(backbone, which)
    assert encoder.save(tmp_path / "saved", copy_backbone=copy_backbone) == tmp_path / "saved"
    for again in (Encoder.load(tmp_path / "saved"), Encoder.from_pretrained(str(tmp_path / "saved"))):
        np.testing.assert_array_equal(again.encode(TEXTS), encoder.encode(TEXTS))
        np.testing.assert_array_equal(again.encode_query(TEXTS), encoder.encode_query(TEXTS))
        assert again.fingerprint == encoder.fingerprint
        assert replace(again.spec, backbone="") == replace(encoder.spec, backbone="")
    description = json.loads((tmp_path / "saved" / "encoder.json").read_text())
    assert (description["fingerprint"], description["dim"]) == (encoder.fingerprint, encoder.dim)
    assert (tmp_path / "saved" / "backbone").is_dir() == copy_backbone
    assert [entry.name for entry in tmp_path.iterdir()] == ["saved"]


def test_a_folder_with_its_own_weights_stands_alone(tmp_path):
    shutil.copytree(tiny_folder("tiny-llama"), tmp_path / "model")
    encoder = Encoder.from_pretrained(tmp_path / "model", **PLAIN)
    encoder.save(tmp_path / "saved", copy_backbone=True)
    shutil.rmtree(tmp_path / "model")
    (tmp_path / "saved").rename(tmp_path / "moved")
    np.testing.assert_array_equal(Encoder.load(tmp_path / "moved").encode(TEXTS), encoder.encode(TEXTS))


@pytest.fixture
def model_nearby(tmp_path, monkeypatch):
    """A model in the folder `near/model`, with `near` as the working folder, and `far` another."""
    shutil.copytree(tiny_folder("tiny-llama"), tmp_path / "near" / "model")
    (tmp_path / "far").mkdir()
    monkeypatch.chdir(tmp_path / "near")
    return tmp_path


def test_an_encoder_of_a_relative_path_is_found_again_from_elsewhere(model_nearby, monkeypatch):
    encoder = Encoder.from_pretrained("model", **PLAIN)
    encoder.save("saved")
    monkeypatch.chdir(model_nearby / "far")
    again = Encoder.load(Path("..") / "near" / "saved")
    np.testing.assert_array_equal(again.encode(TEXTS), encoder.encode(TEXTS))
    assert again.fingerprint == encoder.fingerprint


def test_an_encoder_of_a_relative_path_can_be_saved_after_the_working_folder_has_changed(model_nearby, monkeypatch):
    monkeypatch.setattr("huggingface_hub.snapshot_download", lambda *_, **__: pytest.fail("the hub was asked"))
    encoder = Encoder.from_pretrained("model", **PLAIN)
    monkeypatch.chdir(model_nearby / "far")
    encoder.save(model_nearby / "saved")
    np.testing.assert_array_equal(Encoder.load(model_nearby / "saved").encode(TEXTS), encoder.encode(TEXTS))


def test_weights_that_have_changed_are_refused(tmp_path):
    build_tiny("llama", tmp_path / "model")
    Encoder.from_pretrained(tmp_path / "model", **PLAIN).save(tmp_path / "saved")
    build_tiny("llama", tmp_path / "model", seed=1)
    with pytest.raises(BackboneError, match="not those this encoder was made with"):
        Encoder.load(tmp_path / "saved")


@pytest.mark.parametrize("file", ["tokenizer.json", "config.json"])
def test_a_changed_tokenizer_or_config_is_refused(tmp_path, file):
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
    encoder_of(backbone).with_head("standardise", TEXTS).save(tmp_path / "saved", copy_backbone=True)
    encoder_of(backbone, readings=[Reading(1)]).save(tmp_path / "saved")
    assert Encoder.load(tmp_path / "saved").spec.readings == (Reading(1),)
    assert [entry.name for entry in (tmp_path / "saved").iterdir()] == ["encoder.json"]


def test_saving_into_an_empty_folder_is_fine(backbone, tmp_path):
    (tmp_path / "saved").mkdir()
    encoder_of(backbone).save(tmp_path / "saved")
    assert Encoder.load(tmp_path / "saved").fingerprint == encoder_of(backbone).fingerprint


def test_saving_into_a_link_writes_where_it_leads(backbone, tmp_path):
    (tmp_path / "disk").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "disk", target_is_directory=True)
    for _ in range(2):
        encoder_of(backbone).save(tmp_path / "link")
    assert (tmp_path / "link").is_symlink()
    assert Encoder.load(tmp_path / "disk").fingerprint == encoder_of(backbone).fingerprint


def test_saving_over_a_folder_that_is_no_encoder_is_refused_and_nothing_is_lost(backbone, tmp_path):
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter.txt").write_text("years of work")
    with pytest.raises(InputError, match="not an encoder"):
        encoder_of(backbone).save(tmp_path / "thesis")
    assert (tmp_path / "thesis" / "chapter.txt").read_text() == "years of work"
    assert [entry.name for entry in tmp_path.iterdir()] == ["thesis"]


def test_saving_over_a_file_is_refused_and_the_file_stays(backbone, tmp_path):
    (tmp_path / "notes").write_text("mine")
    with pytest.raises(InputError):
        encoder_of(backbone).save(tmp_path / "notes")
    assert (tmp_path / "notes").read_text() == "mine"


def test_saving_a_standalone_encoder_over_itself_keeps_its_weights(backbone, tmp_path):
    encoder_of(backbone).save(tmp_path / "saved", copy_backbone=True)
    loaded = Encoder.load(tmp_path / "saved")
    expected = loaded.encode(TEXTS)
    loaded.save(tmp_path / "saved")
    np.testing.assert_array_equal(Encoder.load(tmp_path / "saved").encode(TEXTS), expected)


def test_what_a_killed_save_left_behind_is_not_taken_for_the_encoder(backbone, tmp_path):
    encoder_of(backbone, readings=[Reading(1)]).save(tmp_path / "saved")
    (tmp_path / "saved").rename(tmp_path / ".saved.new")
    encoder_of(backbone, readings=[Reading(3)]).save(tmp_path / "saved")
    assert Encoder.load(tmp_path / "saved").spec.readings == (Reading(3),)


def test_a_save_that_fails_leaves_the_old_encoder(backbone, tmp_path, monkeypatch):
    encoder_of(backbone).save(tmp_path / "saved")

    def full(*_, **__):
        raise OSError("No space left on device")

    monkeypatch.setattr(shutil, "copytree", full)
    with pytest.raises(OSError, match="No space"):
        encoder_of(backbone, readings=[Reading(1)]).save(tmp_path / "saved", copy_backbone=True)
    monkeypatch.undo()
    assert Encoder.load(tmp_path / "saved").spec.readings == (Reading(4),)
    assert [entry.name for entry in tmp_path.iterdir()] == ["saved"]


def test_save_pretrained_is_save(backbone, tmp_path):
    encoder_of(backbone).save_pretrained(tmp_path / "saved")
    assert (tmp_path / "saved" / "encoder.json").is_file()


@pytest.mark.parametrize("content", [None, "not json", "{}", '{"spec": {}}', '{"spec": {"backbone": "tiny-llama"}}'])
def test_a_folder_that_is_no_encoder_is_refused_in_words(tmp_path, content):
    if content is not None:
        (tmp_path / "encoder.json").write_text(content)
    with pytest.raises(Decoder2VecError):
        Encoder.load(tmp_path)


def test_a_choice_of_a_later_version_is_refused(backbone, tmp_path):
    encoder_of(backbone).save(tmp_path / "saved")
    file = tmp_path / "saved" / "encoder.json"
    description = json.loads(file.read_text())
    description["spec"]["magic"] = 7
    file.write_text(json.dumps(description))
    with pytest.raises(EncoderError, match="magic"):
        Encoder.load(tmp_path / "saved")


def test_saved_files_can_be_read_by_others(backbone, tmp_path):
    encoder_of(backbone).with_head("standardise", TEXTS).save(tmp_path / "saved")
    mask = os.umask(0)
    os.umask(mask)
    for path in (tmp_path / "saved").rglob("*"):
        wanted = (0o777 if path.is_dir() else 0o666) & ~mask & 0o444
        assert path.stat().st_mode & wanted == wanted, path


# --- nothing is computed twice --------------------------------------------------------------------------------------


def test_a_text_that_repeats_is_computed_once(encoder, monkeypatch):
    rows = []
    real = Capture.__call__
    monkeypatch.setattr(Capture, "__call__", lambda self, batch: (rows.append(len(batch.ids)), real(self, batch))[1])
    encoder.encode(TEXTS * 10)
    assert sum(rows) == len(set(TEXTS))


def test_the_description_says_what_the_encoder_is(backbone):
    text = repr(encoder_of(backbone, readings=[Reading(2, "max", True), Reading(4)]).with_head("whiten", TEXTS))
    assert all(word in text for word in ("tiny-llama", "layer 2 normed, max", "layer 4, mean", "causal", "whiten"))


def test_using_the_tokenizer_with_padding_and_truncation_does_not_change_later_vectors():
    """transformers switches padding and truncation on in the shared tokenizer and leaves them on."""
    encoder = Encoder.from_pretrained("tiny-llama", layer=2, pooling="mean", template="plain")
    texts = ["A short one.", "A text that is a good deal longer than the first one."]
    before = encoder.encode(texts)
    encoder.tokenizer.pad_token = encoder.tokenizer.eos_token
    encoder.tokenizer(texts, padding=True, truncation=True, max_length=8)
    backend = encoder.tokenizer.backend_tokenizer
    assert len({len(encoding.ids) for encoding in backend.encode_batch(texts)}) == 1  # so the trap is set
    np.testing.assert_array_equal(encoder.encode(texts), before)
