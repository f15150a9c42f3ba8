"""An encoder that reads a text under several prompts, and one with a trained head."""

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

ASKED = 'In a word, "{text}" is "'
TEXTS = ["The bread is in the oven.", "Rain", "", "Two dogs run along the beach.", "Rain"]
PLAIN = (Reading(2), Reading(4, "lasttoken"))
PROMPTED = (Reading(3, "lasttoken"),)
BOTH = (PLAIN[0], Reading(3, "lasttoken", template=ASKED), PLAIN[1])


@pytest.fixture
def make(backbone):
    def encoder(readings=BOTH, head=None, **choices):
        return Encoder(backbone("tiny-llama"), EncoderSpec("tiny-llama", tuple(readings), **choices), head)

    return encoder


def side_by_side(make, texts, **kwargs):
    """The same from two encoders of one template each."""
    plain = make(PLAIN).encode(texts, **kwargs).reshape(-1, 2, 32)
    asked = make(PROMPTED, template=ASKED).encode(texts, **kwargs).reshape(-1, 1, 32)
    return np.concatenate([plain[:, :1], asked, plain[:, 1:]], axis=1).reshape(-1, 96)


def trained(head="gated", widths=(16, 8, 16), mixing="none", projection=None):
    torch.manual_seed(0)
    net = CodeNet(CodeSpec(32, widths, hidden=12, head=head, mixing=mixing, mixed_width=10 if mixing != "none" else 0))
    if head == "sum":
        torch.nn.init.normal_(net.pair.logits)
    calibration = Calibration((-0.5, 0.5, 1.0), (0.0, 0.3, 1.0)) if head in ("sum", "gated") else Calibration()
    return LayerwiseHead(net, calibration, projection)


def assert_close(found, expected, tolerance=1e-5):
    assert found.shape == expected.shape
    assert np.abs(found - expected).max() <= tolerance * np.abs(expected).max()


def test_two_templates_equal_two_encoders_side_by_side(make):
    encoder = make()
    assert encoder.dim == 96
    assert_close(encoder.encode(TEXTS), side_by_side(make, TEXTS))
    assert_close(encoder.encode(TEXTS[3])[None], side_by_side(make, TEXTS[3:4]))
    assert encoder.encode([]).shape == (0, 96)


def test_a_prompt_stands_before_every_template(make):
    assert_close(make().encode(TEXTS, prompt="Query: "), side_by_side(make, TEXTS, prompt="Query: "))
    named = make(prompts=(("query", "Query: "),))
    assert (named.encode_query(TEXTS) == named.encode(TEXTS, prompt="Query: ")).all()
    assert not np.allclose(named.encode_query(TEXTS), named.encode(TEXTS))


def test_a_prompt_with_a_slot_is_refused_where_there_are_several(make):
    with pytest.raises(InputError, match=r"several prompts; a prompt with \{text\} cannot replace them all"):
        make().encode(TEXTS, prompt="Query: {text}")
    assert_close(make(PLAIN).encode(TEXTS, prompt=ASKED), make(PLAIN, template=ASKED).encode(TEXTS))


def test_batches_do_not_change_the_vectors(make):
    assert_close(make().encode(TEXTS * 20, batch_size=1), make().encode(TEXTS * 20))


def test_many_texts_are_read_a_part_at_a_time(make, monkeypatch):
    encoder = make(head=trained("sum"))
    whole = encoder.encode(TEXTS)
    monkeypatch.setattr(Reader, "texts_per_chunk", 2)
    assert_close(encoder.encode(TEXTS), whole)


def test_texts_are_counted_once_whatever_the_number_of_templates(make):
    encoder, plain = make(), make(PLAIN)
    for each in (encoder, plain):
        each.encode(TEXTS)
    assert encoder.stats.texts == plain.stats.texts


def test_a_template_is_part_of_the_name_of_the_space(make):
    names = {
        make(readings, template=template).fingerprint
        for readings in (BOTH, (BOTH[0], BOTH[2], BOTH[1]), PLAIN)
        for template in ("{text}", "x {text}")
    }
    assert len(names) == 6


def test_a_wrong_template_is_refused_when_the_encoder_is_made(make):
    with pytest.raises(InputError, match=r"must contain \{text\}"):
        make([Reading(2, template="nothing")])


def test_templates_are_saved_and_loaded(make, tmp_path):
    encoder = make()
    loaded = Encoder.load(encoder.save(tmp_path / "e"), device="cpu", dtype="float32")
    assert loaded.spec == encoder.spec and loaded.fingerprint == encoder.fingerprint
    assert (loaded.encode(TEXTS) == encoder.encode(TEXTS)).all()


def test_further_files_are_saved_with_the_encoder_and_gone_with_it(make, tmp_path):
    folder = make().save(tmp_path / "e", extra_files={"README.md": b"# Mine\n", "seen.npy": b"\x00\xff"})
    assert (folder / "README.md").read_bytes() == b"# Mine\n"
    assert (folder / "seen.npy").read_bytes() == b"\x00\xff"
    assert Encoder.load(folder, device="cpu").dim == 96
    make().save(folder)
    assert sorted(path.name for path in folder.iterdir()) == ["encoder.json"]


# --- a trained head -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("head", ["gated", "mlp"])
def test_similarity_is_that_of_the_pair_head(head, make):
    """All with all, row by row, and the head's own network on the latents agree."""
    encoder = make(head=trained(head))
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


def test_the_dot_product_of_embeddings_is_the_weighted_sum_of_the_layers_cosines(make):
    encoder = make(head=trained("sum"))
    vectors = encoder.encode(TEXTS).astype(np.float64)
    assert np.linalg.norm(vectors, axis=1) == pytest.approx(1, abs=1e-6)
    explained = encoder.explain(TEXTS[0], TEXTS[3])
    weights = encoder.head.net.pair.weights().double().numpy()
    assert vectors[0] @ vectors[3] == pytest.approx(np.dot(weights, explained.cosines), abs=1e-6)
    assert float(encoder.similarity(vectors[0], vectors[3])) == pytest.approx(vectors[0] @ vectors[3], abs=1e-6)


@pytest.mark.parametrize("head", ["sum", "gated"])
def test_equal_texts_score_exactly_1(head, make):
    encoder = make(head=trained(head))
    assert (encoder.score(TEXTS, TEXTS) == 1).all()
    assert encoder.score("Rain", "Rain") == 1


def test_two_texts_score_one_number_and_lists_one_for_each_pair(make):
    encoder = make(head=trained("sum"))
    scores = encoder.score(TEXTS, TEXTS[::-1])
    assert scores.shape == (5,) and (scores >= 0).all() and (scores <= 1).all()
    one = encoder.score(TEXTS[0], TEXTS[4])
    assert isinstance(one, float) and one == pytest.approx(scores[0], abs=1e-4)
    assert encoder.score([], []).shape == (0,)


def test_without_a_trained_head_the_score_is_the_similarity_within_0_and_1(make):
    encoder = make()
    raw = encoder.similarity_pairwise(encoder.encode(TEXTS), encoder.encode(TEXTS[::-1])).numpy()
    np.testing.assert_allclose(encoder.score(TEXTS, TEXTS[::-1]), np.clip(raw, 0, 1), atol=1e-6)


@pytest.mark.parametrize(("left", "right"), [("a", ["b", "c"]), (["a", "b"], "c"), (["a"], ["b", "c"]), ("a", ["b"])])
def test_texts_that_are_not_pairs_are_not_scored(left, right, make):
    with pytest.raises(InputError, match="two texts, or two lists of the same length"):
        make().score(left, right)


@pytest.mark.parametrize("head", ["sum", "gated", "mlp"])
def test_an_explanation_has_a_row_for_each_reading_in_their_order(head, make):
    encoder = make(head=trained(head))
    found = encoder.explain(TEXTS[0], TEXTS[3])
    assert found.readings == encoder.spec.readings
    latents = torch.from_numpy(make().encode([TEXTS[0], TEXTS[3]]).reshape(2, 3, 32))
    for reading in range(3):
        net, alone = encoder.head.net, encoder.head.net.select_readings([reading])
        with torch.no_grad():
            code = alone(latents[:, reading][None])
        assert code.shape == (2, net.spec.widths[reading])
        assert found.cosines[reading] == pytest.approx(float(code[0] @ code[1]), abs=1e-5)
    assert found.score == pytest.approx(encoder.score(TEXTS[0], TEXTS[3]), abs=1e-4)
    if head != "mlp":
        assert sum(found.contributions) == pytest.approx(found.similarity - (head == "gated"), abs=1e-5)


@pytest.mark.parametrize(
    "head",
    [None, trained("sum", mixing="unified"), trained("sum", projection=torch.eye(40)[:, :5])],
    ids=["none", "unified", "cut"],
)
def test_an_encoder_without_a_block_for_each_layer_explains_nothing(head, make):
    with pytest.raises(UnsupportedError, match="Only an encoder with a block for each layer"):
        make(head=head).explain("a", "b")


@pytest.mark.parametrize("head", ["sum", "gated", "mlp"])
def test_a_trained_head_is_saved_and_loaded(head, make, tmp_path):
    encoder = make(head=trained(head))
    loaded = Encoder.load(encoder.save(tmp_path / "e"), device="cpu", dtype="float32")
    assert loaded.fingerprint == encoder.fingerprint != make(head=trained(head, widths=(8, 8, 8))).fingerprint
    assert (loaded.encode(TEXTS) == encoder.encode(TEXTS)).all()
    assert (loaded.score(TEXTS, TEXTS[::-1]) == encoder.score(TEXTS, TEXTS[::-1])).all()


def test_a_shortened_vector_has_lost_its_pair_head(make):
    encoder = make(head=trained("mlp"))
    short = encoder.encode(TEXTS, truncate_dim=7)
    with pytest.raises(InputError, match="compares whole vectors of 40 dimensions, not 7"):
        encoder.similarity(short, short)
