"""NaN and infinity are errors that name the text, in every command that would write or print them."""

from __future__ import annotations

import shutil

import numpy as np
import pytest
from safetensors.torch import load_file, save_file

from decoder2vec.backbone.tiny import tiny_folder
from decoder2vec.encoder import Encoder
from decoder2vec.errors import DataFileError, EncoderError
from decoder2vec.evaluation.api import evaluate
from decoder2vec.maths.similarity import check_finite
from decoder2vec.quick_encoder import QuickEncoder
from decoder2vec.report.sweep import sweep
from decoder2vec.text.files import ScoredPairs
from toys.command import SCORED_ROWS, d2v, write_rows


@pytest.fixture(scope="module", params=["nan", "inf"])
def broken(request, tmp_path_factory, own_cache):
    """A model with one weight that is not finite."""
    folder = shutil.copytree(tiny_folder("tiny-llama"), tmp_path_factory.mktemp("broken") / "model")
    weights = load_file(folder / "model.safetensors")
    weights[next(name for name in weights if name.endswith("layers.2.mlp.down_proj.weight"))][0, 0] = float(
        request.param
    )
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


COMMANDS = {
    "embed": "embed texts.txt --out out.npy --encoder",
    "similarity": "similarity A B --encoder",
    "index": "index texts.txt --out index --encoder",
    "eval": "eval --data pairs.tsv",
}


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS)
def test_vectors_that_are_not_finite_are_refused(command, broken, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "texts.txt").write_text("A dog runs.\nIt rains.\n")
    write_rows(tmp_path / "pairs.tsv", SCORED_ROWS)
    with pytest.raises(EncoderError, match=r"The vector of '.*' is not finite; load the model in float32"):
        d2v(*command.split(), broken)
    assert not (tmp_path / "out.npy").exists()


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_saved_encoder_in_numpy_refuses_them_too(broken, tmp_path):
    saved = Encoder.from_pretrained(broken, device="cpu", dtype="float32").save(tmp_path / "saved")
    assert QuickEncoder.load(saved)
    with pytest.raises(EncoderError, match="The vector of 'A' is not finite"):
        d2v("similarity", "A", "B", "--encoder", saved)


def test_first_such_text_is_named():
    vectors = np.ones((3, 2), np.float32)
    check_finite(vectors, ["a", "b", "c"])
    vectors[1, 1] = np.inf
    with pytest.raises(EncoderError, match="The vector of 'b' is not finite"):
        check_finite(vectors, ["a", "b", "c"])


UNDEFINED = {
    "one pair": ScoredPairs("mine", ["A"], ["B"], [3.0]),
    "equal scores": ScoredPairs("mine", ["A", "C", "E"], ["B", "D", "F"], [3.0] * 3),
}


@pytest.mark.parametrize("pairs", UNDEFINED.values(), ids=UNDEFINED)
def test_pairs_without_a_correlation_are_refused(pairs, tmp_path):
    message = "mine: every score is 3; a correlation needs pairs with different scores"
    with pytest.raises(DataFileError, match=message):
        evaluate(Encoder.from_pretrained("tiny-llama", device="cpu"), pairs)
    with pytest.raises(DataFileError, match=message):
        sweep("tiny-llama", pairs, out=tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_sweep_leaves_such_readings_out_and_says_so(broken, tmp_path):
    """Layers 3 and 4 are not finite, and the last one also after the final norm."""
    messages = []
    pairs = ScoredPairs("mine", *map(list, zip(*SCORED_ROWS, strict=True)))
    result = sweep(
        str(broken), pairs, templates=["plain"], poolings=["mean"], attentions=["causal"], notify=messages.append
    )
    assert {row.layer for row in result.rows} == {0, 1, 2}
    assert result.skipped == [message.removeprefix("left out: ") for message in messages if "left out" in message]
    assert result.skipped[0].startswith(
        "3 of 6 readings of plain, causal give vectors that are not finite, first layer 3"
    )
