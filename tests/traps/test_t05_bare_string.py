"""T5: a string is one text, not a list of characters."""

import numpy as np
import pytest

from decoder2vec.activations.extract import Extractor
from decoder2vec.config import Reading
from decoder2vec.encoder import Encoder
from decoder2vec.errors import InputError

TEXT = "abc"


@pytest.fixture(scope="module")
def encoder(own_cache):
    return Encoder.from_pretrained(
        "tiny-gpt2", template="plain", pooling="mean", normed=True, device="cpu", prompts={"query": "ask: "}
    )


def test_string_gives_one_vector(encoder, backbone, single_states, pool_by_loop, gap):
    """The mean over the tokens of the whole string; one vector per character is the faulty variant."""
    ids = encoder.tokenizer.encode(TEXT)
    expected = pool_by_loop("mean", single_states(backbone("tiny-gpt2"), ids)[-1])
    assert encoder.encode(TEXT).shape == (encoder.dim,)
    assert gap(encoder.encode(TEXT), expected) < 1e-5
    np.testing.assert_array_equal(encoder.encode(TEXT), encoder.encode([TEXT])[0])
    assert encoder.encode(TEXT, convert_to_tensor=True).shape == (encoder.dim,)

    characters = encoder.encode(list(TEXT))
    assert characters.shape == (3, encoder.dim)
    assert all(gap(row, expected) > 1e-2 for row in characters)


@pytest.mark.parametrize("method", ["encode_query", "encode_document"])
def test_string_with_a_prompt_gives_one_vector(encoder, method):
    """The other methods agree with a list of one text."""
    vector = getattr(encoder, method)(TEXT)
    assert vector.shape == (encoder.dim,)
    np.testing.assert_array_equal(vector, getattr(encoder, method)([TEXT])[0])


def test_single_vector_can_be_compared(encoder):
    """The vector of a string is accepted where rows are expected."""
    assert encoder.similarity(encoder.encode(TEXT), encoder.encode([TEXT, "x"])).shape == (1, 2)


@pytest.mark.parametrize("wrong", [b"abc", {"a": "b"}, 3, None, ["a", None], [["a", "b"]]])
def test_other_types_are_refused(encoder, wrong):
    """They are never converted to texts."""
    with pytest.raises(InputError):
        encoder.encode(wrong)


def test_extractor_does_not_read_a_string_as_characters(backbone):
    """One row or an error; three rows of characters would be the same fault one level below the encoder."""
    extractor = Extractor(backbone("tiny-gpt2"), [Reading(2)])
    try:
        latents = extractor(TEXT)
    except InputError:
        return
    assert latents.shape[0] == 1


def test_head_is_not_fitted_on_the_characters_of_a_string(encoder):
    """A head is fitted on several texts, so a string must be refused."""
    with pytest.raises(InputError):
        encoder.with_head("standardise", TEXT)
