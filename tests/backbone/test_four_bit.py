"""Weights of 4 bits: rounded inside the blocks only, read and trained beside, and said when they cannot be had."""

from __future__ import annotations

import numpy as np
import peft
import pytest
import torch
from transformers import AutoModel

from decoder2vec.backbone import backbone as four_bit
from decoder2vec.backbone.backbone import Backbone
from decoder2vec.backbone.tiny import tiny_folder
from decoder2vec.encoder import Encoder
from decoder2vec.errors import Decoder2VecError, UnsupportedError
from decoder2vec.training.recipes.recipe import Trainer
from toys.training import small_recipe, toy_data


def test_without_bitsandbytes_it_says_what_to_install(monkeypatch):
    monkeypatch.setattr(four_bit, "find_spec", lambda _: None)
    with pytest.raises(Decoder2VecError, match=r"bitsandbytes: pip install 'decoder2vec\[4bit\]'"):
        Backbone.load("tiny-llama", dtype="4bit")


@pytest.fixture(scope="module")
def rounded():
    pytest.importorskip("bitsandbytes")
    return Backbone.load("tiny-llama", dtype="4bit")


def test_what_this_machine_cannot_compute_is_refused_in_a_sentence(monkeypatch):
    bitsandbytes = pytest.importorskip("bitsandbytes")

    def broken(*_):
        raise RuntimeError("shape '[32, 0]' is invalid for input of size 16\nand more")

    monkeypatch.setattr(bitsandbytes.nn.Linear4bit, "forward", broken)
    with pytest.raises(UnsupportedError, match=r"in 4 bits on cpu \(shape '\[32, 0\]' .* 16\); use another dtype"):
        Backbone.load("tiny-llama", dtype="4bit")


def test_the_fused_kernel_without_a_backward_pass_is_not_used(monkeypatch):
    """As on a CPU with AVX512-BF16, where it would be taken after the first evaluation."""
    modules = pytest.importorskip("bitsandbytes.nn.modules")
    monkeypatch.setattr(modules, "has_avx512bf16", lambda: True)
    monkeypatch.setattr(modules, "_convert_weight_packed_for_cpu", lambda *_: pytest.fail("weights were repacked"))
    rounded = Backbone.load("tiny-llama", dtype="4bit")
    spec = Encoder.from_pretrained("tiny-llama").spec
    assert np.isfinite(Encoder(rounded, spec).encode(["cats sleep"])).all()


def test_weights_inside_the_blocks_are_rounded_and_no_others(rounded):
    kinds = {name: weight.dtype for name, weight in rounded.model.named_parameters() if weight.dtype == torch.uint8}
    assert len(kinds) == 4 * 7
    assert all(name.startswith("layers.") for name in kinds)


def test_rounded_weights_read_nearly_the_same_and_are_another_space(rounded):
    whole = Backbone.load("tiny-llama")
    texts = ["cats sleep", "the dogs run over the long road in the rain"]
    near, exact = (Encoder(b, Encoder.from_pretrained("tiny-llama").spec).encode(texts) for b in (rounded, whole))
    cosines = (near * exact).sum(1) / np.linalg.norm(near, axis=1) / np.linalg.norm(exact, axis=1)
    assert (cosines > 0.9).all()
    assert not np.allclose(near, exact, atol=1e-3)
    assert rounded.fingerprint == whole.fingerprint
    assert rounded.identity != whole.identity


def test_lora_is_trained_beside_rounded_weights_and_serves_the_exact_ones_too(rounded, tmp_path):
    before = {name: weight.clone() for name, weight in rounded.model.named_parameters()}
    trainer = Trainer(small_recipe("lora"), toy_data(), rounded)
    result = trainer.run(0)
    assert result.notes["training"]["losses"][-1] < result.notes["training"]["losses"][0]
    assert all(torch.equal(before[name], weight) for name, weight in rounded.model.named_parameters())
    encoder, _ = trainer.export(result, tmp_path)
    folder = encoder.save(tmp_path / "e")
    own = encoder.encode(["cats sleep"])
    assert np.array_equal(Encoder.load(folder, dtype="4bit").encode(["cats sleep"]), own)
    exact = peft.PeftModel.from_pretrained(AutoModel.from_pretrained(tiny_folder("tiny-llama")), folder / "adapter")
    ids = torch.tensor([rounded.tokenizer("cats sleep")["input_ids"]])
    with torch.no_grad():
        by_peft = exact(input_ids=ids).last_hidden_state[0, -1].numpy()
    assert np.allclose(Encoder.load(folder).encode("cats sleep"), by_peft, atol=1e-5)


def test_rounded_weights_are_not_trained_themselves(rounded):
    with pytest.raises(UnsupportedError, match="cannot be trained themselves"):
        Trainer(small_recipe("full"), toy_data(), rounded).run(0)
