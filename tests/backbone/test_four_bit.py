"""4-bit weights: quantised inside the blocks only, used to encode and to train LoRA, refused where unsupported."""

from __future__ import annotations

import numpy as np
import peft
import pytest
import torch
from transformers import AutoModel

from decoder2vec.backbone import backbone as backbone_module
from decoder2vec.backbone.backbone import Backbone
from decoder2vec.encoder import Encoder
from decoder2vec.errors import Decoder2VecError, UnsupportedError
from decoder2vec.training.recipes.recipe import Trainer
from toys.texts import built
from toys.training import small_recipe, toy_data


def test_missing_bitsandbytes_is_reported_with_the_extra(monkeypatch):
    monkeypatch.setattr(backbone_module, "find_spec", lambda _: None)
    with pytest.raises(Decoder2VecError, match=r"bitsandbytes: pip install 'decoder2vec\[4bit\]'"):
        Backbone.load("tiny-llama", dtype="4bit")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A tiny Llama whose rows are blocks of 64 values: with AVX512, bitsandbytes computes no others correctly."""
    pytest.importorskip("bitsandbytes")
    folder = tmp_path_factory.mktemp("model") / "llama"
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 4, "num_key_value_heads": 2}
    built("llama", folder, **sizes, initializer_range=0.1)
    return folder


@pytest.fixture(scope="module")
def quantised(folder):
    return Backbone.load(folder, dtype="4bit")


def test_wrong_dequantisation_is_refused(folder, monkeypatch):
    functional = pytest.importorskip("bitsandbytes.functional")
    correct = functional.dequantize_4bit

    def one_block_is_wrong(packed, state, **options):
        weights = correct(packed, state, **options)
        weights.view(-1)[:64] *= 1.5
        return weights

    monkeypatch.setattr(functional, "dequantize_4bit", one_block_is_wrong)
    with pytest.raises(UnsupportedError, match=r"bitsandbytes dequantises weights of shape \(64, 64\) wrongly"):
        Backbone.load(folder, dtype="4bit")


def test_unsupported_machine_is_refused_in_one_sentence(folder, monkeypatch):
    bitsandbytes = pytest.importorskip("bitsandbytes")

    def broken(*_):
        raise RuntimeError("shape '[32, 0]' is invalid for input of size 16\nand more")

    monkeypatch.setattr(bitsandbytes.nn.Linear4bit, "forward", broken)
    with pytest.raises(UnsupportedError, match=r"in 4 bits on cpu \(shape '\[32, 0\]' .* 16\); use another dtype"):
        Backbone.load(folder, dtype="4bit")


def test_fused_kernel_without_backward_pass_is_not_used(folder, monkeypatch):
    """As on a CPU with AVX512-BF16, where bitsandbytes would use it after the first evaluation."""
    modules = pytest.importorskip("bitsandbytes.nn.modules")
    monkeypatch.setattr(modules, "has_avx512bf16", lambda: True)
    monkeypatch.setattr(modules, "_convert_weight_packed_for_cpu", lambda *_: pytest.fail("weights were repacked"))
    quantised = Backbone.load(folder, dtype="4bit")
    spec = Encoder.from_pretrained(folder).spec
    assert np.isfinite(Encoder(quantised, spec).encode(["cats sleep"])).all()


def test_only_weights_inside_the_blocks_are_quantised(quantised):
    quantised_weights = {
        name: weight.dtype for name, weight in quantised.model.named_parameters() if weight.dtype == torch.uint8
    }
    assert len(quantised_weights) == 4 * 7
    assert all(name.startswith("layers.") for name in quantised_weights)


def test_vectors_are_close_but_the_fingerprint_differs(folder, quantised):
    full = Backbone.load(folder)
    texts = ["cats sleep", "the dogs run over the long road in the rain"]
    near, exact = (Encoder(b, Encoder.from_pretrained(folder).spec).encode(texts) for b in (quantised, full))
    cosines = (near * exact).sum(1) / np.linalg.norm(near, axis=1) / np.linalg.norm(exact, axis=1)
    assert (cosines > 0.9).all()
    assert not np.allclose(near, exact, atol=1e-3)
    assert quantised.fingerprint == full.fingerprint
    assert quantised.effective_fingerprint != full.effective_fingerprint


def test_lora_on_4_bit_weights_also_fits_the_full_ones(folder, quantised, tmp_path):
    before = {name: weight.clone() for name, weight in quantised.model.named_parameters()}
    trainer = Trainer(small_recipe("lora"), toy_data(), quantised)
    result = trainer.run(0)
    assert result.notes["training"]["losses"][-1] < result.notes["training"]["losses"][0]
    assert all(torch.equal(before[name], weight) for name, weight in quantised.model.named_parameters())
    encoder, _ = trainer.export(result, tmp_path)
    saved = encoder.save(tmp_path / "e")
    expected = encoder.encode(["cats sleep"])
    assert np.array_equal(Encoder.load(saved, dtype="4bit").encode(["cats sleep"]), expected)
    full = peft.PeftModel.from_pretrained(AutoModel.from_pretrained(folder), saved / "adapter")
    ids = torch.tensor([quantised.tokenizer("cats sleep")["input_ids"]])
    with torch.no_grad():
        by_peft = full(input_ids=ids).last_hidden_state[0, -1].numpy()
    assert np.allclose(Encoder.load(saved).encode("cats sleep"), by_peft, atol=1e-5)


def test_full_training_of_4_bit_weights_is_refused(quantised):
    with pytest.raises(UnsupportedError, match="cannot be trained themselves"):
        Trainer(small_recipe("full"), toy_data(), quantised).run(0)
