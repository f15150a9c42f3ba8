"""Norms, attention and MLPs in int8 as compiled loops: the same numbers, and for no module that computes others."""

from __future__ import annotations

import copy
from collections import Counter
from types import SimpleNamespace

import numba
import pytest
import torch
from torch import nn
from torch.nn import functional
from transformers import AutoConfig, AutoModel
from transformers.models.llama.modeling_llama import LlamaAttention

from decoder2vec.backbone import int8_fusion, int8_kernels, int8_linear
from decoder2vec.backbone.backbone import Backbone
from decoder2vec.backbone.int8_fusion import FusedAttention, FusedMLP, FusedNorm, fuse_blocks
from decoder2vec.backbone.int8_linear import Int8Linear, SharedInput, quantise_layers
from decoder2vec.backbone.int8_rounding import CompiledRounding, TorchRounding
from decoder2vec.backbone.kv_cache import read_only_cache
from decoder2vec.backbone.tiny import TINY
from decoder2vec.encoder import Encoder
from decoder2vec.errors import UnsupportedError
from decoder2vec.training.recipes.recipe import Trainer
from toys.training import small_recipe, toy_data

TEXTS = ["cats sleep", "the dogs run over the long road in the rain", ""]


@pytest.fixture
def compiled(monkeypatch):
    monkeypatch.setattr(int8_linear, "available_roundings", lambda: [CompiledRounding()])


def kinds(model):
    return Counter(type(vars(module).get("forward")) for module in model.modules())


def int8_or_none(name):
    try:
        return Backbone.load(name, device="cpu", dtype="int8")
    except UnsupportedError:
        return None


@pytest.mark.parametrize("name", TINY)
def test_every_family_gives_the_vectors_that_torch_gives(name, monkeypatch):
    monkeypatch.setattr(int8_linear, "available_roundings", lambda: [TorchRounding()])
    plain = int8_or_none(name)
    if plain is None:
        pytest.skip("no plain linear layers")
    monkeypatch.setattr(int8_linear, "available_roundings", lambda: [CompiledRounding()])
    fused = Backbone.load(name, device="cpu", dtype="int8")
    assert kinds(plain.model).keys() == {type(None)}
    vectors = []
    for backbone in (plain, fused):
        encoder = Encoder(backbone, Encoder.from_pretrained(name, device="cpu").spec)
        vectors.append(torch.from_numpy(encoder.encode(TEXTS)))
    # another order of additions may round a value the other way
    assert functional.cosine_similarity(*vectors).min() > 0.999


def test_norms_and_mlps_of_a_llama_are_fused(compiled):
    model = Backbone.load("tiny-llama", device="cpu", dtype="int8")
    blocks = len(model.blocks)
    counts = kinds(model.model)
    assert (counts[FusedNorm], counts[FusedAttention], counts[FusedMLP]) == (2 * blocks, blocks, blocks)
    assert not isinstance(vars(model.model.norm).get("forward"), FusedNorm)  # blocks alone are in int8


def test_layers_that_torch_rounds_are_left_alone(monkeypatch):
    monkeypatch.setattr(int8_linear, "available_roundings", lambda: [TorchRounding()])
    assert kinds(Backbone.load("tiny-llama", device="cpu", dtype="int8").model).keys() == {type(None)}


class RMSNorm(nn.Module):
    def __init__(self, change):
        super().__init__()
        self.weight, self.eps, self.change = nn.Parameter(torch.randn(48)), 1e-5, change

    def forward(self, x):
        normed = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps)
        return self.change(normed, self.weight)


@pytest.mark.parametrize("change", [lambda x, w: x * w, lambda x, w: x * (1 + w)])
@torch.inference_mode()
def test_a_norm_is_that_of_torch(change):
    norm, states = RMSNorm(change), torch.randn(3, 7, 48) * 10.0 ** torch.arange(-3, 4)[:, None]
    fused = FusedNorm.of(norm)
    torch.testing.assert_close(fused(states), norm(states), rtol=2e-6, atol=0)
    shuffled = states.transpose(0, 1)  # not contiguous
    torch.testing.assert_close(fused(shuffled), norm(shuffled), rtol=2e-6, atol=0)


class OtherEps(nn.Module):
    """Reads another number than that of the attribute."""

    def __init__(self):
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(48)), 1e-5

    def forward(self, x):
        return self.weight * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-3)


OTHER_NORMS = [
    nn.LayerNorm(48),
    nn.Linear(48, 48),
    nn.BatchNorm1d(48),
    OtherEps(),
    RMSNorm(lambda x, w: x * w + 0.01),
    RMSNorm(lambda x, w: x * w * x),
    RMSNorm(lambda x, w: (x.bfloat16() * w.bfloat16()).float()),
]


@pytest.mark.parametrize("module", OTHER_NORMS)
def test_other_modules_are_no_norms(module):
    module.eval()
    assert FusedNorm.of(module) is None


def test_a_norm_with_other_arguments_or_gradients_is_computed_as_before(compiled):
    norm = RMSNorm(lambda x, w: x * w)
    norm.forward = FusedNorm.of(norm)
    states = torch.randn(2, 48, requires_grad=True)
    norm(states).sum().backward()
    assert states.grad is not None
    assert torch.equal(norm(x=states), norm(states))


class MLP(nn.Module):
    def __init__(self, activation, bias=False):
        super().__init__()
        torch.manual_seed(0)
        shared, layers = SharedInput(CompiledRounding()), (nn.Linear(48, 96, bias=bias), nn.Linear(48, 96, bias=bias))
        self.gate_proj, self.up_proj = (Int8Linear(layer, shared=shared) for layer in layers)
        self.down_proj = Int8Linear(nn.Linear(96, 48), shared=shared)
        self.activation = activation

    def forward(self, x):
        return self.down_proj(self.activation(self.gate_proj(x)) * self.up_proj(x))


def gelu_tanh(x):
    return functional.gelu(x, approximate="tanh")


@pytest.mark.parametrize("size", [1e-3, 1.0, 100.0])
@pytest.mark.parametrize("activation", [functional.silu, gelu_tanh])
@torch.inference_mode()
def test_an_mlp_is_that_of_torch(activation, size):
    mlp, states = MLP(activation), size * torch.randn(3, 7, 48)
    fused, expected = FusedMLP.of(mlp), mlp(states)
    assert fused(states).shape == expected.shape
    assert (fused(states) - expected).norm() < 1e-3 * expected.norm()


@pytest.mark.parametrize(
    "mlp",
    [
        MLP(functional.gelu),
        MLP(functional.relu),
        MLP(torch.sigmoid),
        MLP(functional.silu, bias=True),
        nn.Linear(4, 4),
        SimpleNamespace(gate_proj=nn.Linear(4, 4), up_proj=nn.Linear(4, 4), down_proj=nn.Linear(4, 4)),
    ],
)
def test_other_mlps_are_not_fused(mlp):
    assert FusedMLP.of(mlp) is None


@pytest.mark.parametrize("path", ["mlp.up_proj", "self_attn.v_proj"])
def test_hooks_on_layers_inside_are_called(compiled, path):
    model = Backbone.load("tiny-llama", device="cpu", dtype="int8")
    encoder, called = Encoder(model, Encoder.from_pretrained("tiny-llama", device="cpu").spec), []
    before = encoder.encode(TEXTS)
    handle = model.blocks[1].get_submodule(path).register_forward_hook(lambda *_: called.append(1))
    during = encoder.encode(TEXTS)
    handle.remove()
    assert called and (before * during).sum() > 0.999 * (before * before).sum()
    called.clear()
    encoder.encode(TEXTS)
    assert not called


def attention_of(family, **sizes):
    """The attention of a block whose layers are in int8, and the model's rotations: (attention, positions -> turns)."""
    torch.manual_seed(0)
    wide = {"hidden_size": 64, "num_attention_heads": 8, "head_dim": 8, "intermediate_size": 128}
    config = AutoConfig.for_model(family, num_hidden_layers=1, vocab_size=50, **(wide | sizes))
    model = AutoModel.from_config(config).eval()
    for name, parameter in model.named_parameters():
        if "norm" in name or "bias" in name:
            nn.init.normal_(parameter, 1.0)
    quantise_layers(model.layers)
    return model.layers[0].self_attn, lambda ids: model.rotary_emb(torch.zeros(1), ids)


def inputs_of(turns, texts=3, tokens=7, **others):
    states = torch.randn(texts, tokens, 64)
    return {"hidden_states": states, "position_embeddings": turns(torch.arange(tokens)[None]), **others}


def assert_close(output, expected):
    """But for a value now and then that is rounded the other way."""
    assert (output - expected).norm() < 2e-3 * expected.norm()


def padding(*shape):
    """A mask in which every token sees some keys."""
    mask = torch.rand(*shape) < 0.5
    mask[..., 0] = True
    return mask


def added(mask):
    return torch.zeros(mask.shape).masked_fill(~mask, torch.finfo(torch.float32).min)


MASKS = {
    "causal": {"attention_mask": None},
    "bidirectional": {"attention_mask": None, "is_causal": False},
    "booleans": {"attention_mask": padding(3, 1, 7, 7)},
    "numbers": {"attention_mask": added(padding(3, 1, 7, 7))},
    "one for all texts": {"attention_mask": padding(1, 1, 7, 7)},
    "one for all tokens": {"attention_mask": padding(3, 1, 1, 7)},
}


@pytest.mark.parametrize("most_keys", [256, 2], ids=["all scores", "kernel of torch"])
@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
@pytest.mark.parametrize("n_shared", [8, 2, 1])
@torch.inference_mode()
def test_attention_is_that_of_torch(compiled, monkeypatch, n_shared, mask, most_keys):
    monkeypatch.setattr(int8_fusion, "_ALL_SCORES", most_keys)
    attention, turns = attention_of("llama", num_key_value_heads=n_shared)
    fused, inputs = FusedAttention.of(attention), inputs_of(turns, **mask)
    (output, weights), (expected, _) = fused(**inputs), attention(**inputs)
    assert weights is None
    assert_close(output, expected)


FAMILIES = {
    "qwen2": {"num_key_value_heads": 2},  # queries, keys and values have a bias
    "qwen3": {"num_key_value_heads": 2},  # heads are normed
    "gemma3_text": {"num_key_value_heads": 2},  # by other norms
}


@pytest.mark.parametrize("family", FAMILIES)
@torch.inference_mode()
def test_biases_and_norms_of_heads_are_those_of_torch(compiled, family):
    attention, _ = attention_of(family, **FAMILIES[family])
    _, turns = attention_of("llama")
    fused, inputs = FusedAttention.of(attention), inputs_of(turns, attention_mask=None)
    expected = attention(**inputs)[0]
    assert_close(fused(**inputs)[0], expected)


@torch.inference_mode()
def test_tokens_see_those_in_front_of_them(compiled):
    attention, turns = attention_of("llama", num_key_value_heads=2)
    fused, past = FusedAttention.of(attention), [torch.randn(3, 2, 5, 8), torch.randn(3, 2, 5, 8)]
    inputs = inputs_of(turns, attention_mask=padding(3, 1, 7, 12))
    output = fused(**inputs, past_key_values=read_only_cache([past]))[0]
    expected = attention(**inputs, past_key_values=read_only_cache([past]))[0]
    assert_close(output, expected)


@torch.inference_mode()
def test_masks_of_two_batches_are_not_mixed_up(compiled):
    attention, turns = attention_of("llama")
    fused = FusedAttention.of(attention)
    for _ in range(5):  # a new mask may get the address of one that was deleted
        inputs = inputs_of(turns, attention_mask=padding(3, 1, 7, 7))
        expected = attention(**inputs)[0]
        assert_close(fused(**inputs)[0], expected)


@torch.inference_mode()
def test_states_that_are_not_finite_stay_visible(compiled):
    attention, turns = attention_of("llama", num_key_value_heads=2)
    inputs = inputs_of(turns, attention_mask=None)
    inputs["hidden_states"][1, 3, 5] = torch.nan
    finite = FusedAttention.of(attention)(**inputs)[0].isfinite()
    assert finite[[0, 2]].all() and not finite[1, 3:].any()


@pytest.mark.parametrize(
    "asked",
    [{"output_attentions": True}, {"attention_mask": padding(3, 8, 7, 7)}, {"sliding_window": 2}],
    ids=["weights", "a mask for each head", "what is not known"],
)
@torch.inference_mode()
def test_other_requests_go_to_the_module(compiled, asked):
    attention, turns = attention_of("llama")
    fused, inputs = FusedAttention.of(attention), inputs_of(turns) | asked
    fused.original = lambda **_: "the module"
    assert fused(**inputs) == "the module"
    assert fused(**inputs_of(turns))[0].shape == (3, 7, 64)


class Changed(LlamaAttention):
    """Attention with a difference that its names do not show."""

    def __init__(self, source, change):
        nn.Module.__init__(self)
        self.__dict__.update(source.__dict__)
        self.change = change

    def forward(self, hidden_states, position_embeddings, attention_mask=None, **others):
        cos, sin = position_embeddings
        if self.change == "rotations":
            cos, sin = cos.roll(1, -1), sin.roll(1, -1)
        output, weights = super().forward(hidden_states, (cos, sin), attention_mask, **others)
        return {
            "output": (output * 1.01, weights),
            "triple": (output, weights, None),
            "weights": (output, torch.ones(1)),
        }.get(self.change, (output, weights))


@pytest.mark.parametrize("change", ["", "rotations", "output", "triple", "weights"])
def test_other_attention_is_not_fused(compiled, change):
    attention, _ = attention_of("llama")
    assert (FusedAttention.of(Changed(attention, change)) is None) == bool(change)


@pytest.mark.parametrize("family", ["gemma2", "olmo2"])
def test_limits_of_scores_and_norms_of_all_heads_are_not_fused(compiled, family):
    attention, _ = attention_of(family)
    assert FusedAttention.of(attention) is None


def test_a_copy_computes_with_its_own_weights(compiled):
    model = Backbone.load("tiny-llama", device="cpu", dtype="int8").model
    copied = copy.deepcopy(model.layers[0])
    states = torch.randn(2, 3, copied.mlp.gate_proj.in_features)
    turns = model.rotary_emb(states, torch.arange(3)[None])
    with torch.inference_mode():
        for block, factor in ((copied, 2), (model.layers[0], 1)):
            if block is copied:
                before = [block.mlp(states), block.self_attn(hidden_states=states, position_embeddings=turns)[0]]
                block.mlp.down_proj.scales *= 2
                block.self_attn.o_proj.scales *= 2
            after = [block.mlp(states), block.self_attn(hidden_states=states, position_embeddings=turns)[0]]
            assert all(torch.allclose(a, factor * b, atol=1e-6) for a, b in zip(after, before, strict=True))


def test_lora_changes_the_weights_of_fused_mlps(compiled, tmp_path):
    trainer = Trainer(small_recipe("lora"), toy_data(), Backbone.load("tiny-llama", device="cpu", dtype="float32"))
    encoder, _ = trainer.export(trainer.run(0), tmp_path)
    rounded = Encoder.load(encoder.save(tmp_path / "e"), device="cpu", dtype="int8")
    assert kinds(rounded.backbone.model)[FusedMLP] == len(rounded.backbone.blocks)
    near, exact = (torch.from_numpy(e.encode(TEXTS)) for e in (rounded, encoder))
    plain = Encoder(rounded.backbone.with_adapter(None), rounded.spec, rounded.head).encode(TEXTS)
    assert functional.cosine_similarity(near, exact).min() > 0.99
    assert not torch.allclose(near, torch.from_numpy(plain), atol=1e-3)


def test_loops_that_are_slower_are_not_used(monkeypatch, compiled):
    seconds = iter([2.0, 1.0, 2.0, 1.0, 1.0, 2.0])  # norm: the loop, then torch; attention and MLP the same
    monkeypatch.setattr(int8_fusion, "MIN_WIDTH", 1)
    monkeypatch.setattr(int8_fusion, "fastest_seconds", lambda *_: next(seconds))
    counts = kinds(Backbone.load("tiny-llama", device="cpu", dtype="int8").model)
    assert FusedNorm not in counts and FusedAttention not in counts and counts[FusedMLP] > 0


def test_blocks_without_int8_are_left_alone():
    model = Backbone.load("tiny-llama", device="cpu", dtype="float32")
    fuse_blocks(model.blocks)
    assert kinds(model.model).keys() == {type(None)}


def test_loops_are_compiled_where_no_folder_can_be_written(monkeypatch):
    real = numba.njit

    def njit(cache=False, **options):
        if cache:
            raise RuntimeError("cannot cache function: no locator available for file")
        return real(**options)

    monkeypatch.setattr(numba, "njit", njit)
    assert int8_kernels.compiled(lambda x: x + 1)(2) == 3
