"""Tests of `Encoder` with several templates, and with a trained layerwise head."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from decoder2vec.activations.extract import Reader
from decoder2vec.config import EncoderSpec, Reading
from decoder2vec.encoder import Encoder
from decoder2vec.errors import InputError, UnsupportedError
from decoder2vec.heads.calibration import Calibration
from decoder2vec.heads.codes import CodeNet, CodeSpec
from decoder2vec.heads.layerwise import LayerwiseHead

QUESTION = 'In a word, "{text}" is "'
TEXTS = ["The bread is in the oven.", "Rain", "", "Two dogs run along the beach.", "Rain"]
PLAIN = (Reading(2), Reading(4, "lasttoken"))
PROMPTED = (Reading(3, "lasttoken"),)
BOTH = (PLAIN[0], Reading(3, "lasttoken", template=QUESTION), PLAIN[1])


@pytest.fixture
def make(backbone):
    def encoder(readings=BOTH, head=None, **settings):
        return Encoder(backbone("tiny-llama"), EncoderSpec("tiny-llama", tuple(readings), **settings), head)

    return encoder


def encode_separately(make, texts, **kwargs):
    """The same vectors from two encoders with one template each."""
    plain = make(PLAIN).encode(texts, **kwargs).reshape(-1, 2, 32)
    questioned = make(PROMPTED, template=QUESTION).encode(texts, **kwargs).reshape(-1, 1, 32)
    return np.concatenate([plain[:, :1], questioned, plain[:, 1:]], axis=1).reshape(-1, 96)


def random_head(head="gated", widths=(16, 8, 16), mixing="none", projection=None):
    torch.manual_seed(0)
    net = CodeNet(CodeSpec(32, widths, hidden=12, head=head, mixing=mixing, mixed_width=10 if mixing != "none" else 0))
    if head == "sum":
        torch.nn.init.normal_(net.pair.logits)
    calibration = Calibration((-0.5, 0.5, 1.0), (0.0, 0.3, 1.0)) if head in ("sum", "gated") else Calibration()
    return LayerwiseHead(net, calibration, projection)


def assert_close(actual, expected, tolerance=1e-5):
    assert actual.shape == expected.shape
    assert np.abs(actual - expected).max() <= tolerance * np.abs(expected).max()


def test_two_templates_equal_two_encoders(make):
    encoder = make()
    assert encoder.dim == 96
    assert_close(encoder.encode(TEXTS), encode_separately(make, TEXTS))
    assert_close(encoder.encode(TEXTS[3])[None], encode_separately(make, TEXTS[3:4]))
    assert encoder.encode([]).shape == (0, 96)


def test_prompt_is_put_in_front_of_every_template(make):
    assert_close(make().encode(TEXTS, prompt="Query: "), encode_separately(make, TEXTS, prompt="Query: "))
    with_prompts = make(prompts=(("query", "Query: "),))
    assert (with_prompts.encode_query(TEXTS) == with_prompts.encode(TEXTS, prompt="Query: ")).all()
    assert not np.allclose(with_prompts.encode_query(TEXTS), with_prompts.encode(TEXTS))


def test_prompt_with_a_slot_needs_a_single_template(make):
    with pytest.raises(InputError, match=r"several prompts; a prompt with \{text\} cannot replace them all"):
        make().encode(TEXTS, prompt="Query: {text}")
    assert_close(make(PLAIN).encode(TEXTS, prompt=QUESTION), make(PLAIN, template=QUESTION).encode(TEXTS))


def test_batch_size_does_not_change_vectors(make):
    assert_close(make().encode(TEXTS * 20, batch_size=1), make().encode(TEXTS * 20))


def test_many_texts_are_encoded_in_chunks(make, monkeypatch):
    encoder = make(head=random_head("sum"))
    whole = encoder.encode(TEXTS)
    monkeypatch.setattr(Reader, "texts_per_chunk", 2)
    assert_close(encoder.encode(TEXTS), whole)


def test_stats_count_texts_once_for_several_templates(make):
    encoder, plain = make(), make(PLAIN)
    for model in (encoder, plain):
        model.encode(TEXTS)
    assert encoder.stats.texts == plain.stats.texts


def test_templates_change_the_fingerprint(make):
    names = {
        make(readings, template=template).fingerprint
        for readings in (BOTH, (BOTH[0], BOTH[2], BOTH[1]), PLAIN)
        for template in ("{text}", "x {text}")
    }
    assert len(names) == 6


def test_invalid_template_is_refused_at_construction(make):
    with pytest.raises(InputError, match=r"must contain \{text\}"):
        make([Reading(2, template="nothing")])


def test_templates_are_saved_and_loaded(make, tmp_path):
    encoder = make()
    loaded = Encoder.load(encoder.save(tmp_path / "e"), device="cpu", dtype="float32")
    assert loaded.spec == encoder.spec and loaded.fingerprint == encoder.fingerprint
    assert (loaded.encode(TEXTS) == encoder.encode(TEXTS)).all()


def test_extra_files_are_saved_and_replaced(make, tmp_path):
    folder = make().save(tmp_path / "e", extra_files={"README.md": b"# Mine\n", "seen.npy": b"\x00\xff"})
    assert (folder / "README.md").read_bytes() == b"# Mine\n"
    assert (folder / "seen.npy").read_bytes() == b"\x00\xff"
    assert Encoder.load(folder, device="cpu").dim == 96
    make().save(folder)
    assert sorted(path.name for path in folder.iterdir()) == ["encoder.json", "gold.json"]


# --- a trained head -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("head", ["gated", "mlp"])
def test_similarity_equals_that_of_the_pair_head(head, make):
    """`similarity`, `similarity_pairwise` and the network on the latents agree."""
    encoder = make(head=random_head(head))
    vectors = encoder.encode(TEXTS)
    table = encoder.similarity(vectors, vectors[:3])
    assert table.shape == (5, 3)
    rows = encoder.similarity_pairwise(vectors[[4, 1, 3]], vectors[[0, 2, 1]])
    assert torch.allclose(rows, torch.stack([table[4, 0], table[1, 2], table[3, 1]]), atol=1e-6)
    latents = torch.from_numpy(make().encode(TEXTS).reshape(5, 3, 32).swapaxes(0, 1).copy())
    with torch.no_grad():
        expected = encoder.head.net.score(latents[:, [4, 1, 3]], latents[:, [0, 2, 1]])
    assert torch.allclose(rows, expected, atol=1e-5)
    assert torch.allclose(encoder.similarity(vectors, vectors), encoder.similarity(vectors, vectors).T, atol=1e-6)


def test_dot_product_is_the_weighted_sum_of_cosines(make):
    encoder = make(head=random_head("sum"))
    vectors = encoder.encode(TEXTS).astype(np.float64)
    assert np.linalg.norm(vectors, axis=1) == pytest.approx(1, abs=1e-6)
    explanation = encoder.explain(TEXTS[0], TEXTS[3])
    weights = encoder.head.net.pair.weights().double().numpy()
    assert vectors[0] @ vectors[3] == pytest.approx(np.dot(weights, explanation.cosines), abs=1e-6)
    assert float(encoder.similarity(vectors[0], vectors[3])) == pytest.approx(vectors[0] @ vectors[3], abs=1e-6)


@pytest.mark.parametrize("head", ["sum", "gated"])
def test_equal_texts_score_exactly_1(head, make):
    encoder = make(head=random_head(head))
    assert (encoder.score(TEXTS, TEXTS) == 1).all()
    assert encoder.score("Rain", "Rain") == 1


def test_score_of_strings_is_a_float_and_of_lists_an_array(make):
    encoder = make(head=random_head("sum"))
    scores = encoder.score(TEXTS, TEXTS[::-1])
    assert scores.shape == (5,) and (scores >= 0).all() and (scores <= 1).all()
    single_score = encoder.score(TEXTS[0], TEXTS[4])
    assert isinstance(single_score, float) and single_score == pytest.approx(scores[0], abs=1e-4)
    assert encoder.score([], []).shape == (0,)


def test_score_without_a_trained_head_is_clipped_similarity(make):
    encoder = make()
    raw = encoder.similarity_pairwise(encoder.encode(TEXTS), encoder.encode(TEXTS[::-1])).numpy()
    np.testing.assert_allclose(encoder.score(TEXTS, TEXTS[::-1]), np.clip(raw, 0, 1), atol=1e-6)


@pytest.mark.parametrize(("left", "right"), [("a", ["b", "c"]), (["a", "b"], "c"), (["a"], ["b", "c"]), ("a", ["b"])])
def test_inputs_of_different_length_are_not_scored(left, right, make):
    with pytest.raises(InputError, match="two texts, or two lists of the same length"):
        make().score(left, right)


@pytest.mark.parametrize("head", ["sum", "gated", "mlp"])
def test_explanation_has_one_row_per_reading(head, make):
    encoder = make(head=random_head(head))
    explanation = encoder.explain(TEXTS[0], TEXTS[3])
    assert explanation.readings == encoder.spec.readings
    latents = torch.from_numpy(make().encode([TEXTS[0], TEXTS[3]]).reshape(2, 3, 32))
    for reading in range(3):
        net, single = encoder.head.net, encoder.head.net.select_readings([reading])
        with torch.no_grad():
            code = single(latents[:, reading][None])
        assert code.shape == (2, net.spec.widths[reading])
        assert explanation.cosines[reading] == pytest.approx(float(code[0] @ code[1]), abs=1e-5)
    assert explanation.score == pytest.approx(encoder.score(TEXTS[0], TEXTS[3]), abs=1e-4)
    if head != "mlp":
        assert sum(explanation.contributions) == pytest.approx(explanation.similarity - (head == "gated"), abs=1e-5)


@pytest.mark.parametrize(
    "head",
    [None, random_head("sum", mixing="unified"), random_head("sum", projection=torch.eye(40)[:, :5])],
    ids=["none", "unified", "reduced"],
)
def test_encoder_without_a_block_per_layer_explains_nothing(head, make):
    with pytest.raises(UnsupportedError, match="Only an encoder with a block for each layer"):
        make(head=head).explain("a", "b")


@pytest.mark.parametrize("head", ["sum", "gated", "mlp"])
def test_trained_head_is_saved_and_loaded(head, make, tmp_path):
    encoder = make(head=random_head(head))
    loaded = Encoder.load(encoder.save(tmp_path / "e"), device="cpu", dtype="float32")
    assert loaded.fingerprint == encoder.fingerprint != make(head=random_head(head, widths=(8, 8, 8))).fingerprint
    assert (loaded.encode(TEXTS) == encoder.encode(TEXTS)).all()
    assert (loaded.score(TEXTS, TEXTS[::-1]) == encoder.score(TEXTS, TEXTS[::-1])).all()


def test_truncated_vectors_cannot_use_the_pair_head(make):
    encoder = make(head=random_head("mlp"))
    truncated = encoder.encode(TEXTS, truncate_dim=7)
    with pytest.raises(InputError, match="compares whole vectors of 40 dimensions, not 7"):
        encoder.similarity(truncated, truncated)
