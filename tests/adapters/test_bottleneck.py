"""Bottleneck and convolution adapters against numpy, torch's own convolution and models with wrapped modules."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from scipy.special import erf
from torch import nn
from torch.nn import functional

from decoder2vec.activations.capture import Capture
from decoder2vec.activations.shared_beginning import SharedBeginning
from decoder2vec.adapters.bottleneck import (
    Bottleneck,
    BottleneckConfig,
    BottleneckNetwork,
    Convolution,
    ConvolutionConfig,
    ConvolutionNetwork,
    TextBounds,
)
from decoder2vec.adapters.merging import merge_adapters
from decoder2vec.backbone.backbone import Backbone
from decoder2vec.backbone.branches import find_branches
from decoder2vec.backbone.tiny import TINY
from decoder2vec.config import EncoderSpec, Reading
from decoder2vec.encoder import Encoder
from decoder2vec.errors import InputError, UnknownNameError, UnsupportedError
from decoder2vec.export.formats import export
from decoder2vec.text.batches import collate, pack
from decoder2vec.text.tokens import Prompt
from decoder2vec.training.recipes.bottleneck import BottleneckRecipe, ConvolutionRecipe
from toys.regression import equal_states, state_of

MODULES = {
    **dict.fromkeys(TINY, ("self_attn", "mlp")),
    **dict.fromkeys(("tiny-gpt2", "tiny-gpt_neo", "tiny-gptj"), ("attn", "mlp")),
    "tiny-gpt_neox": ("attention", "mlp"),
    "tiny-opt": ("self_attn", "fc2"),
    "tiny-falcon": ("self_attention", "mlp"),
    "tiny-bloom": ("self_attention.dense", "mlp.dense_4h_to_h"),  # the modules around them add the residual
    **dict.fromkeys(("tiny-mamba", "tiny-mamba2"), ("mixer",)),
}
"""What each family adds to the residual stream, read in the code of transformers."""

ADAPTERS = {
    "bottleneck": lambda model: Bottleneck(model, BottleneckConfig(5)),
    "post norm": lambda model: Bottleneck(model, BottleneckConfig(5, norm="post")),
    "kernel 1": lambda model: Convolution(model, ConvolutionConfig(1, 0, last_relu=True)),
    "kernel 3": lambda model: Convolution(model, ConvolutionConfig(3, 5)),
    "kernel 4": lambda model: Convolution(model, ConvolutionConfig(4, 5)),
}


# --- networks -------------------------------------------------------------------------------------------------------


def noisy(module):
    torch.manual_seed(3)
    for parameter in module.requires_grad_(False).parameters():
        parameter += 0.3 * torch.randn_like(parameter)
    return module


@pytest.mark.parametrize("norm", ["none", "post"])
def test_bottleneck_equals_numpy(norm):
    network = noisy(BottleneckNetwork(6, 4, norm))
    x = np.random.default_rng(0).normal(size=(2, 3, 6))
    state = {name: tensor.double().numpy() for name, tensor in network.state_dict().items()}
    down = x @ state["down.weight"].T + state["down.bias"]
    result = x + (down * (1 + erf(down / 2**0.5)) / 2) @ state["up.weight"].T + state["up.bias"]
    if norm == "post":
        mean, variance = result.mean(-1, keepdims=True), result.var(-1, keepdims=True)
        result = (result - mean) / np.sqrt(variance + 1e-5) * state["norm.weight"] + state["norm.bias"]
    np.testing.assert_allclose(network(torch.from_numpy(x).float(), None).numpy(), result, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("last_relu", [False, True])
def test_kernel_1_equals_two_linear_layers(last_relu):
    network = noisy(ConvolutionNetwork(6, 6, 1, last_relu=last_relu, causal=True))
    first, second = nn.Linear(6, 6), nn.Linear(6, 6)
    for linear, layer in ((first, network.first), (second, network.second)):
        linear.load_state_dict({"weight": layer.weight[:, :, 0], "bias": layer.bias})
    x = torch.randn(2, 3, 6)
    with torch.no_grad():
        change = second(first(x).relu())
        torch.testing.assert_close(network(x, None), x + (change.relu() if last_relu else change))


def convolved_alone(network, x):
    """[token, dim] one text through torch's own convolutions, padded with zeros."""
    kernel = network.first.kernel_size[0]
    before = kernel - 1 if network.causal else (kernel - 1) // 2
    padding = (before, kernel - 1 - before)
    hidden = network.first(functional.pad(x.T[None], padding)).relu()
    return x + network.second(functional.pad(hidden, padding))[0].T


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("kernel", [2, 3, 5])
def test_convolution_of_a_batch_equals_each_text_alone(kernel, causal):
    network = noisy(ConvolutionNetwork(6, 4, kernel, last_relu=False, causal=causal))
    prompts = [Prompt(list(range(length)), 0, length) for length in (7, 1, 4)]
    texts = [torch.randn(len(prompt.ids), 6) for prompt in prompts]
    expected = [convolved_alone(network, text) for text in texts]
    for side in ("right", "left"):
        batch = collate(prompts, 0, side=side)
        states = torch.full((3, 7, 6), torch.nan)  # whatever padding holds, it must not matter
        states[batch.mask.bool()] = torch.cat(texts)
        result = network(states, TextBounds(batch))
        torch.testing.assert_close(result[batch.mask.bool()], torch.cat(expected), rtol=1e-4, atol=1e-5)
    packed = network(torch.cat(texts)[None], TextBounds(pack(prompts)))
    torch.testing.assert_close(packed[0], torch.cat(expected), rtol=1e-4, atol=1e-5)


def test_zeros_before_a_relu_would_never_be_trained():
    """Why the second convolution starts at zero only without the last ReLU."""
    for last_relu in (False, True):
        network = ConvolutionNetwork(6, 4, 1, last_relu=last_relu, causal=True)
        assert last_relu == bool(network.second.weight.any())
        nn.init.zeros_(network.second.weight)
        nn.init.zeros_(network.second.bias)
        network(torch.randn(2, 3, 6), None).square().sum().backward()
        assert bool(network.second.weight.grad.any()) != last_relu


def count(module):
    return sum(parameter.numel() for parameter in module.parameters())


def test_parameter_counts_of_the_paper():
    """48 blocks of width 1280, two adapters in each."""
    assert 96 * count(BottleneckNetwork(1280, 256, "post")) == 63_307_776 == 96 * (2 * 1280 * 256 + 256 + 3 * 1280)
    full_width = ConvolutionNetwork(1280, 1280, 1, last_relu=True, causal=True)
    assert 96 * count(full_width) == 96 * 2 * (1280**2 + 1280) == 314_818_560


# --- in a model -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", TINY)
def test_branches_are_found_in_every_family(family, backbone):
    model = backbone(family)
    for block, branches in zip(model.blocks, find_branches(model.model, model.blocks), strict=True):
        expected = [block.get_submodule(path) for path in MODULES[family]]
        assert [*branches] == ["attn", "mlp"][: len(expected)]
        assert all(found is module for found, module in zip(branches.values(), expected, strict=True))


class Wrapped(nn.Module):
    """A module followed by a network."""

    def __init__(self, module, network):
        super().__init__()
        self.module, self.network = module, network

    def __getattr__(self, name):
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(self.module, name)

    def forward(self, *args, **kwargs):
        output = self.module(*args, **kwargs)
        states = output[0] if isinstance(output, tuple) else output
        one_text = states.reshape(1, -1, states.shape[-1])
        length = one_text.shape[1]
        bounds = TextBounds(collate([Prompt(list(range(length)), 0, length)], 0))
        changed = self.network(one_text, bounds).view_as(states)
        return (changed, *output[1:]) if isinstance(output, tuple) else changed


def with_wrapped_modules(model, family, adapter):
    """A copy of the model whose modules are replaced by wrapped ones."""
    wrapped = copy.deepcopy(model.model)
    prefix = next(name for name, module in model.model.named_modules() if module is model.blocks)
    for index in range(model.n_layers):
        for branch, path in zip(("attn", "mlp"), MODULES[family], strict=False):
            parent, _, name = f"{prefix}.{index}.{path}".rpartition(".")
            module = wrapped.get_submodule(f"{parent}.{name}")
            setattr(wrapped.get_submodule(parent), name, Wrapped(module, adapter.inserted[f"{index}-{branch}"]))
    return wrapped


@pytest.mark.parametrize("kind", ["post norm", "kernel 3"])
@pytest.mark.parametrize("family", TINY)
@torch.no_grad()
def test_every_family_equals_wrapped_modules(family, kind, backbone, prompts_of, randomised):
    model = backbone(family)
    adapter = randomised(ADAPTERS[kind](model))
    reference = with_wrapped_modules(model, family, adapter)
    capture = Capture(model.with_adapter(adapter), [Reading(-1, "lasttoken", True), Reading(-1, "mean", True)])
    prompts = prompts_of(model)
    batches = [collate(prompts, model.pad_token_id, side=side) for side in ("right", "left")]
    vectors = [capture(batch) for batch in batches]
    for row, prompt in enumerate(prompts):
        states = reference(input_ids=torch.tensor([prompt.ids]), use_cache=False).last_hidden_state[0]
        expected = torch.stack([states[prompt.end - 1], states[prompt.start : prompt.end].mean(0)])
        for batch in vectors:
            torch.testing.assert_close(batch[row], expected, rtol=1e-3, atol=1e-4)
    plain = Capture(model, [Reading(-1, "mean", True)])(batches[0])[:, 0]
    assert (vectors[0][:, 1] - plain).abs().max() > 1e-2


@pytest.mark.parametrize("kind", ["bottleneck", "kernel 3"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@torch.no_grad()
def test_the_start_is_the_model_itself_bit_by_bit(kind, dtype, own_cache, prompts_of):
    model = Backbone.load("tiny-llama", device="cpu", dtype=dtype)
    batch = collate(prompts_of(model), model.pad_token_id)
    readings = [Reading(layer, "mean") for layer in range(1, 5)]
    plain = Capture(model, readings)(batch)
    assert torch.equal(Capture(model.with_adapter(ADAPTERS[kind](model)), readings)(batch), plain)


@torch.no_grad()
def test_the_norm_of_the_paper_disturbs_the_model_from_the_start(backbone, batch_of):
    model = backbone("tiny-llama")
    capture = Capture(model.with_adapter(ADAPTERS["post norm"](model)), [Reading(-1, "mean")])
    assert (capture(batch_of(model)) - Capture(model, [Reading(-1, "mean")])(batch_of(model))).abs().max() > 1e-2


@pytest.mark.parametrize("kind", ADAPTERS)
@torch.no_grad()
def test_packed_texts_equal_padded_ones(kind, backbone, prompts_of, randomised):
    model = backbone("tiny-llama")
    adapted = model.with_adapter(randomised(ADAPTERS[kind](model)))
    capture = Capture(adapted, [Reading(-1, "lasttoken"), Reading(2, "mean")])
    prompts = prompts_of(model)
    torch.testing.assert_close(capture(pack(prompts)), capture(collate(prompts, 0)), rtol=1e-4, atol=5e-5)


@torch.no_grad()
def states_of(model, ids):
    prompt = Prompt(ids, 0, len(ids))
    with model.adapter_enabled(collate([prompt], 0)):
        return model.model(input_ids=torch.tensor([ids]), use_cache=False).last_hidden_state[0]


@pytest.mark.parametrize("kernel", [2, 3])
def test_a_token_does_not_see_later_ones_under_causal_attention(kernel, backbone, randomised):
    """Convolutions that read both sides are detected; those of a kernel of 2 would read the same side as well."""
    model = backbone("tiny-llama")
    before, after = [9, 10, 11, 12, 13, 14], [9, 10, 11, 200, 13, 14]
    adapted = model.with_adapter(randomised(Convolution(model, ConvolutionConfig(kernel, 5))))
    assert torch.equal(states_of(adapted, before)[:3], states_of(adapted, after)[:3])
    assert not torch.equal(states_of(adapted, before)[3:], states_of(adapted, after)[3:])
    faulty = model.with_adapter(randomised(Convolution(model, ConvolutionConfig(kernel, 5, causal_depth=0))))
    assert not torch.equal(states_of(faulty, before)[:3], states_of(faulty, after)[:3])


@pytest.mark.parametrize(("attention", "causal"), [("bidirectional", 0), ("bidirectional:2", 2), ("causal", 4)])
def test_convolutions_read_the_side_that_attention_reads(attention, causal, own_cache, prompts_of, randomised):
    model = Backbone.load("tiny-llama", attention=attention, device="cpu", dtype="float32")
    adapter = randomised(Convolution(model, ConvolutionConfig(3, 5)))
    assert [adapter.inserted[f"{block}-mlp"].causal for block in range(4)] == [block < causal for block in range(4)]
    assert adapter.settings()["causal_depth"] == causal
    capture = Capture(model.with_adapter(adapter), [Reading(-1, "mean")])
    prompts = prompts_of(model)
    with torch.no_grad():
        alone = torch.cat([capture(collate([prompt], 0)) for prompt in prompts])
        for side in ("right", "left"):
            batch = capture(collate(prompts, model.pad_token_id, side=side))
            torch.testing.assert_close(batch, alone, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("where", [("attn",), ("mlp",)])
@pytest.mark.parametrize("depth", [0, 3])
def test_adapters_are_where_they_are_wanted(where, depth, backbone):
    model = backbone("tiny-gpt2")
    adapter = Bottleneck(model, BottleneckConfig(5, where=where, depth=depth))
    assert [*adapter.inserted] == [f"{block}-{where[0]}" for block in range(depth or 4)]
    assert count(adapter) == (depth or 4) * (2 * 32 * 5 + 5 + 32)


def test_the_model_is_unchanged_afterwards(backbone, batch_of, randomised):
    model = backbone("tiny-llama")
    before, batch = state_of(model.model), batch_of(model)
    adapter = randomised(ADAPTERS["kernel 3"](model)).requires_grad_(True)
    with adapter.enabled():  # as training nests them
        Capture(model.with_adapter(adapter), [Reading(-1, "mean")])(batch).sum().backward()
    assert all(parameter.grad is not None for parameter in adapter.parameters())
    assert all(parameter.grad is None for parameter in model.model.parameters())
    assert equal_states(state_of(model.model), before)
    assert not any(module._forward_hooks for module in model.model.modules())


def test_shared_beginnings_are_not_used_where_tokens_read_others(backbone):
    model = backbone("tiny-llama")
    prompts = [Prompt([*range(100), end], 0, 101) for end in (1, 2, 3)]
    shared = {
        kind: bool(SharedBeginning(model.with_adapter(make(model))).groups(prompts, [0] * 3, [100] * 3))
        for kind, make in ADAPTERS.items()
    }
    assert shared == {kind: kind not in ("kernel 3", "kernel 4") for kind in ADAPTERS}


@pytest.mark.parametrize("kind", ["post norm", "kernel 3"])
@torch.no_grad()
def test_the_average_of_adapters(kind, backbone, batch_of, randomised):
    model, batch = backbone("tiny-llama"), batch_of(backbone("tiny-llama"))
    first, second = randomised(ADAPTERS[kind](model)), randomised(ADAPTERS[kind](model), 0.2)
    merged = merge_adapters([first, second], [0.25, 0.75], "linear", model)
    for name, tensor in merged.state_dict().items():
        torch.testing.assert_close(tensor, 0.25 * first.state_dict()[name] + 0.75 * second.state_dict()[name])
    vectors = [Capture(model.with_adapter(a), [Reading(-1, "mean")])(batch) for a in (merged, first)]
    assert not torch.allclose(*vectors), "it runs on the model, and is not the first"


# --- refused --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda model: Bottleneck(model, BottleneckConfig(0)), "width of a bottleneck adapter is 1 or more, not 0"),
        (lambda model: Bottleneck(model, BottleneckConfig(norm="pre")), "Unknown norm 'pre'"),
        (lambda model: Bottleneck(model, BottleneckConfig(where=("ffn",))), "Unknown branch 'ffn'"),
        (lambda model: Convolution(model, ConvolutionConfig(0)), "kernel of a convolution adapter is 1 or more"),
        (lambda model: Bottleneck(model, BottleneckConfig(where=("mlp",))), "mamba has no mlp to adapt"),
        (lambda model: BottleneckRecipe(where=()), "where names the branches"),
        (lambda model: BottleneckRecipe(where=("ffn",)), "Unknown branch 'ffn'"),
        (lambda model: BottleneckRecipe(width=0), "width must be 1 or more"),
        (lambda model: BottleneckRecipe(norm="pre"), "Unknown norm 'pre'"),
        (lambda model: BottleneckRecipe(compile_blocks=True), "leave out compile_blocks"),
        (lambda model: BottleneckRecipe(fsdp=True), "leave out fsdp"),
        (lambda model: ConvolutionRecipe(kernel=0), "kernel must be 1 or more"),
    ],
)
def test_impossible_settings_are_refused_in_one_sentence(make, sentence, backbone):
    with pytest.raises((InputError, UnknownNameError, UnsupportedError), match=sentence) as caught:
        make(backbone("tiny-mamba"))
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize("format", ["sentence-transformers", "transformers", "peft"])
def test_formats_without_such_adapters_refuse_them(format, backbone, tmp_path):
    model = backbone("tiny-llama")
    encoder = Encoder(
        model.with_adapter(ADAPTERS["bottleneck"](model)), EncoderSpec(model.name, (Reading(4, "lasttoken", True),))
    )
    with pytest.raises(UnsupportedError) as caught:
        export(encoder, format, tmp_path / "exported")
    assert len(str(caught.value).splitlines()) == 1
    assert not (tmp_path / "exported").exists()


def test_a_convolution_without_a_batch_is_refused(backbone):
    model = backbone("tiny-llama")
    adapted = model.with_adapter(ADAPTERS["kernel 3"](model))
    with pytest.raises(UnsupportedError, match="must know where texts begin"), adapted.adapter_enabled():
        model.model(input_ids=torch.tensor([[1, 2]]))


def test_blocks_that_are_built_otherwise_are_refused(own_cache):
    """The norm of this model follows the sum, so that a block without branches is not the identity."""
    model = Backbone.load("tiny-opt", device="cpu", dtype="float32")
    for block in model.blocks:
        block.do_layer_norm_before = False
    with pytest.raises(UnsupportedError, match="The attention and the MLP of opt are not found"):
        Bottleneck(model, BottleneckConfig())
