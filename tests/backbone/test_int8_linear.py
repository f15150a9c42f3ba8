"""Layers in int8: rounded like the plain formula, used to encode with adapters and heads, refused where unsupported."""

from __future__ import annotations

import threading

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from decoder2vec.analysis.doctor import doctor
from decoder2vec.backbone import int8_linear, int8_product, int8_rounding
from decoder2vec.backbone.backbone import Backbone
from decoder2vec.backbone.int8_linear import Int8Linear, SharedInput, quantise_layers
from decoder2vec.backbone.int8_product import OnnxRuntimeProduct, TorchProduct
from decoder2vec.backbone.int8_rounding import CompiledRounding, TorchRounding
from decoder2vec.base_model import load_base_model
from decoder2vec.encoder import Encoder
from decoder2vec.errors import Decoder2VecError, UnsupportedError
from decoder2vec.training.recipes.recipe import Trainer
from toys.command import d2v
from toys.texts import built
from toys.training import small_recipe, toy_data

PRODUCTS = [TorchProduct(), OnnxRuntimeProduct()]
ROUNDINGS = [TorchRounding(), CompiledRounding()]
TEXTS = ["cats sleep", "the dogs run over the long road in the rain", ""]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model") / "llama"
    built("llama", folder, hidden_size=64, intermediate_size=128, num_hidden_layers=4, num_key_value_heads=2)
    return folder


@pytest.fixture(scope="module")
def quantised(folder):
    return Backbone.load(folder, device="cpu", dtype="int8")


def rounded_product(inputs, weight, bias):
    """The definition, in numpy and float64, row by row."""

    def rounded(vector):
        scale = np.float32(np.abs(vector).max()) / np.float32(127)
        return np.rint(vector / scale).astype(np.int64), float(scale)

    result = np.empty((len(inputs), len(weight)))
    for i, row in enumerate(inputs):
        for j, weights in enumerate(weight):
            (a, a_scale), (b, b_scale) = rounded(row), rounded(weights)
            result[i, j] = (a @ b) * a_scale * b_scale + bias[j]
    return result


@pytest.mark.parametrize("rounding", ROUNDINGS)
@pytest.mark.parametrize("product", PRODUCTS)
def test_layer_is_the_rounded_product(product, rounding):
    torch.manual_seed(0)
    layer, inputs = nn.Linear(48, 24), torch.randn(2, 5, 48)
    inputs[0, 1, 7] = 900.0  # a token with an outlier rounds no other token
    with torch.inference_mode():
        output = Int8Linear(layer, product, SharedInput(rounding))(inputs)
    expected = rounded_product(inputs.flatten(0, 1).numpy(), layer.weight.detach().numpy(), layer.bias.detach().numpy())
    assert output.shape == (2, 5, 24)
    assert np.allclose(output.flatten(0, 1).numpy(), expected, rtol=1e-5, atol=1e-5)
    others = torch.tensor([row for row in range(10) if row != 1])
    exact = layer(inputs).flatten(0, 1)[others]
    assert (output.flatten(0, 1)[others] - exact).norm() < 0.02 * exact.norm()


def test_zeros_stay_zeros():
    layer = nn.Linear(8, 4, bias=False)
    with torch.inference_mode():
        assert torch.equal(Int8Linear(layer)(torch.zeros(3, 8)), torch.zeros(3, 4))


@pytest.fixture
def quantised_tensors(monkeypatch):
    """What layers rounded."""
    tensors, quantise_rows = [], TorchRounding.quantise_rows
    monkeypatch.setattr(
        TorchRounding, "quantise_rows", lambda self, *args: tensors.append(args[0]) or quantise_rows(self, *args)
    )
    return tensors


def test_layers_that_read_one_tensor_quantise_it_once(quantised_tensors, folder):
    encoder = Encoder.from_pretrained(folder, device="cpu", dtype="int8")
    quantised_tensors.clear()  # the weights
    encoder.encode(["cats sleep"])
    assert len(quantised_tensors) == 4 * 4  # inputs of attention, its output layer, gate and up, down


def test_threads_do_not_replace_what_another_has_quantised(quantised_tensors):
    shared, own, other = SharedInput(TorchRounding()), torch.randn(3, 8), torch.randn(3, 8)
    first = shared.quantise(own)
    thread = threading.Thread(target=shared.quantise, args=(other,))
    thread.start()
    thread.join()
    assert shared.quantise(own) is first
    assert len(quantised_tensors) == 2


@pytest.mark.parametrize("shape", [(1, 8), (7, 33), (300, 96)])
def test_both_roundings_give_the_same(shape):
    rng = np.random.default_rng(0)
    matrix = torch.from_numpy((rng.standard_normal(shape) * 10.0 ** rng.integers(-9, 9, (shape[0], 1))).astype("f4"))
    matrix[0] = 0.0
    matrix[-1, 0] = 1e4
    plain, compiled = (rounding.quantise_rows(matrix) for rounding in ROUNDINGS)
    assert torch.equal(plain.values, compiled.values) and torch.equal(plain.scales, compiled.scales)
    products = torch.from_numpy(rng.integers(-(10**7), 10**7, (shape[0], 5), dtype=np.int32))
    columns = torch.rand(5, 1)
    outputs = [rounding.scale_products(products, plain.scales, columns) for rounding in ROUNDINGS]
    assert torch.equal(*outputs)


@pytest.mark.parametrize("rounding", ROUNDINGS)
def test_values_halfway_are_rounded_to_even(rounding):
    row = torch.tensor([[127.0, 0.5, 1.5, 2.5, -0.5, -1.5, -2.5, 126.5]])
    assert rounding.quantise_rows(row).values.tolist() == [[127, 0, 2, 2, 0, -2, -2, 126]]


@pytest.mark.parametrize("rounding", ROUNDINGS)
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_numbers_that_are_not_finite_stay_visible(rounding, bad):
    layer = Int8Linear(nn.Linear(8, 4), shared=SharedInput(rounding))
    inputs = torch.randn(3, 8)
    inputs[1, 2] = bad
    with torch.inference_mode():
        finite = layer(inputs).isfinite()
    assert finite[0].all() and finite[2].all() and not finite[1].any()


@pytest.mark.parametrize("rounding", ROUNDINGS)
def test_rows_need_not_be_neighbours_in_memory(rounding):
    layer, inputs = Int8Linear(nn.Linear(6, 4), shared=SharedInput(rounding)), torch.randn(6, 5)
    with torch.inference_mode():
        assert torch.equal(layer(inputs.T), layer(inputs.T.contiguous()))


def test_tokens_of_an_earlier_pass_are_not_reused():
    layer = Int8Linear(nn.Linear(16, 8))
    with torch.inference_mode():
        for n in range(20):  # a new tensor may get the address of one that was deleted
            inputs = torch.full((1, 16), float(n))
            assert torch.allclose(layer(inputs), n * layer.weight.sum(1) + layer.bias, atol=1e-4)
            del inputs


def test_vectors_are_close_but_the_fingerprint_differs(folder, quantised):
    full = Backbone.load(folder, device="cpu", dtype="float32")
    near, exact = (Encoder(b, Encoder.from_pretrained(folder).spec).encode(TEXTS) for b in (quantised, full))
    cosines = (near * exact).sum(1) / np.linalg.norm(near, axis=1) / np.linalg.norm(exact, axis=1)
    assert (cosines > 0.995).all()
    assert not np.allclose(near, exact, atol=1e-6)
    assert quantised.fingerprint == full.fingerprint
    assert quantised.effective_fingerprint != full.effective_fingerprint
    assert (quantised.dtype_name, full.dtype_name) == ("int8", "float32")
    assert quantised.weight_bytes < full.weight_bytes


@pytest.mark.parametrize("rounding", ROUNDINGS)
def test_shared_keys_and_values_have_inputs_of_16_bits(tmp_path, monkeypatch, rounding):
    monkeypatch.setattr(int8_linear, "available_roundings", lambda: [rounding])
    folder = tmp_path / "llama"
    sizes = {"hidden_size": 64, "intermediate_size": 256, "num_attention_heads": 8, "num_key_value_heads": 1}
    built("llama", folder, **sizes)
    model = Backbone.load(folder, device="cpu", dtype="int8").model
    layers = {name.rpartition(".")[2]: module for name, module in model.named_modules() if "_proj" in name}
    bits = {name: getattr(layer, "input_bits", 32) for name, layer in layers.items()}
    shared = 16 if isinstance(rounding, CompiledRounding) else 32
    assert bits == {f"{n}_proj": shared if n in "kv" else 8 for n in ("q", "k", "v", "o", "gate", "up", "down")}


def test_other_narrow_layers_stay_in_float32():
    """Such as the layer that chooses experts."""
    block = nn.ModuleDict({"router": nn.Linear(32, 2), "up": nn.Linear(32, 96)})
    quantise_layers(nn.ModuleList([block]))
    assert type(block["router"]) is nn.Linear and isinstance(block["up"], Int8Linear)


@pytest.mark.parametrize("rounding", ROUNDINGS)
@pytest.mark.parametrize("product", PRODUCTS)
@torch.inference_mode()
def test_inputs_of_16_bits_leave_the_rounding_of_the_weight_alone(product, rounding):
    torch.manual_seed(0)
    linear, inputs = nn.Linear(48, 24), torch.randn(2, 5, 48)
    inputs[0, 1, 7] = 900.0
    layer = Int8Linear(linear, product, SharedInput(rounding), input_bits=16)
    expected = functional.linear(inputs.double(), layer.weight.double(), linear.bias.double())
    error = (layer(inputs) - expected).norm(dim=-1) / expected.norm(dim=-1)
    in_8_bits = Int8Linear(linear, product, SharedInput(rounding))(inputs)
    assert error.max() < 1e-4 < ((in_8_bits - expected).norm(dim=-1) / expected.norm(dim=-1)).min()


@torch.inference_mode()
def test_numbers_of_16_bits_are_two_integers():
    torch.manual_seed(0)
    matrix = torch.randn(6, 40) * 10.0 ** torch.arange(-3, 3)[:, None]
    plain, compiled = (rounding.quantise_rows(matrix, 16) for rounding in ROUNDINGS)
    assert torch.equal(plain.values, compiled.values) and torch.equal(plain.scales, compiled.scales)
    values, residuals = plain.values.double().chunk(2)
    assert torch.equal(plain.in_8_bits().values.double(), values) and (plain.bits, plain.in_8_bits().bits) == (16, 8)
    restored = (values + residuals / 254) * plain.scales
    assert ((restored - matrix).abs() <= plain.scales * 0.51 / 254).all()
    products, columns = torch.randint(-(10**6), 10**6, (12, 5), dtype=torch.int32), torch.rand(5, 1)
    expected = (products[:6] + products[6:].double() / 254) * plain.scales * columns.T
    for rounding in ROUNDINGS:
        scaled = rounding.scale_products(products, plain.scales, columns)
        torch.testing.assert_close(scaled.double(), expected, rtol=1e-5, atol=1e-5)


def test_the_same_rows_serve_8_and_16_bits(quantised_tensors):
    shared, inputs = SharedInput(TorchRounding()), torch.randn(3, 8)
    rows = shared.quantise(inputs, 16)
    assert torch.equal(shared.quantise(inputs).values, rows.values[:3])
    assert shared.quantise(inputs, 16) is rows
    assert len(quantised_tensors) == 1


def test_auto_is_never_int8(folder):
    assert not Backbone.load(folder, device="cpu").int8


def test_lora_is_merged_into_quantised_weights(folder, quantised, tmp_path):
    trainer = Trainer(small_recipe("lora"), toy_data(), Backbone.load(folder, device="cpu", dtype="float32"))
    encoder, _ = trainer.export(trainer.run(0), tmp_path)
    saved = encoder.save(tmp_path / "e")
    rounded = Encoder.load(saved, device="cpu", dtype="int8")
    assert rounded.fingerprint != encoder.fingerprint
    near, exact = rounded.encode(TEXTS), encoder.encode(TEXTS)
    plain = Encoder(rounded.backbone.with_adapter(None), rounded.spec, rounded.head).encode(TEXTS)
    cosines = (near * exact).sum(1) / np.linalg.norm(near, axis=1) / np.linalg.norm(exact, axis=1)
    assert (cosines > 0.99).all()
    assert not np.allclose(near, plain, atol=1e-3)
    assert np.array_equal(rounded.encode(TEXTS), near)  # the model was restored after each pass
    with pytest.raises(UnsupportedError, match="dtype='float32'"):
        rounded.backbone.adapter.merged_weights_by_path()


def test_an_encoder_saved_in_int8_loads_in_both(folder, quantised, tmp_path):
    encoder = Encoder(quantised, Encoder.from_pretrained(folder).spec).with_head("standardise", ["a", "b c", "d"])
    saved = encoder.save(tmp_path / "e")
    again = Encoder.load(saved, device="cpu", dtype="int8")
    assert again.fingerprint == encoder.fingerprint
    assert np.array_equal(again.encode(TEXTS), encoder.encode(TEXTS))
    assert Encoder.load(saved, device="cpu", dtype="float32").fingerprint != encoder.fingerprint


def test_doctor_passes_and_reports_the_memory(folder):
    messages = []
    checks = doctor(folder, device="cpu", dtype="int8", notify=messages.append)
    assert [check for check in checks if not check.passed] == []
    assert any(", int8, " in message and "MB of weights" in message for message in messages)


def test_training_is_refused(folder, quantised, tmp_path):
    with pytest.raises(UnsupportedError, match="int8 is for encoding"):
        load_base_model(folder, device="cpu", dtype="int8")
    with pytest.raises(UnsupportedError, match="no gradients"):
        Trainer(small_recipe("lora"), toy_data(), quantised).run(0)
    with pytest.raises(Decoder2VecError, match="another dtype than int8"):
        d2v("prune", "tiny-llama", "--layers", "2", "--out", tmp_path / "cut", "--dtype", "int8")


def test_other_devices_are_refused(folder, quantised):
    with pytest.raises(UnsupportedError, match="for CPUs"):
        Backbone.load(folder, device="meta", dtype="int8")
    with pytest.raises(UnsupportedError, match="for CPUs"):
        quantised.to("meta")


def test_a_slow_processor_is_refused_with_the_measurement(monkeypatch):
    seconds = iter([1.0, 1.0, 4.0])  # rounding, layers in float32 and int8
    monkeypatch.setattr(int8_linear, "fastest_seconds", lambda *_, **__: next(seconds))
    monkeypatch.setattr(int8_linear, "MIN_WIDTH", 1)
    monkeypatch.setattr(int8_linear, "available_products", lambda: [TorchProduct()])
    monkeypatch.setattr(int8_linear, "available_roundings", lambda: [TorchRounding()])
    with pytest.raises(UnsupportedError, match=r"in int8 has 0.25 times the speed of float32.*decoder2vec\[onnx\]"):
        quantise_layers(nn.ModuleList([nn.Sequential(nn.Linear(8, 8))]))


def test_a_fast_processor_reports_the_gain(monkeypatch):
    seconds = iter([1.0, 3.0, 1.0])
    monkeypatch.setattr(int8_linear, "fastest_seconds", lambda *_, **__: next(seconds))
    monkeypatch.setattr(int8_linear, "MIN_WIDTH", 1)
    monkeypatch.setattr(int8_linear, "available_products", lambda: [TorchProduct()])
    monkeypatch.setattr(int8_linear, "available_roundings", lambda: [TorchRounding()])
    assert "3 times the speed" in quantise_layers(nn.ModuleList([nn.Sequential(nn.Linear(8, 8))]))


def test_the_fastest_product_and_rounding_are_taken(monkeypatch):
    seconds = iter([2.0, 1.0, 3.0, 9.0, 1.0])  # rounding by torch, by Numba; layers in float32, torch, ONNX Runtime
    monkeypatch.setattr(int8_linear, "fastest_seconds", lambda *_, **__: next(seconds))
    monkeypatch.setattr(int8_linear, "MIN_WIDTH", 1)
    monkeypatch.setattr(int8_linear, "available_products", lambda: [TorchProduct(), OnnxRuntimeProduct()])
    blocks = nn.ModuleList([nn.Sequential(nn.Linear(8, 8))])
    assert "3 times the speed" in quantise_layers(blocks)
    assert isinstance(blocks[0][0]._product, OnnxRuntimeProduct)
    assert isinstance(blocks[0][0].shared.rounding, CompiledRounding)


def test_without_numba_torch_rounds(monkeypatch):
    monkeypatch.setattr(int8_rounding, "find_spec", lambda name: None)
    assert [type(rounding) for rounding in int8_rounding.available_roundings()] == [TorchRounding]


@pytest.mark.parametrize("product", PRODUCTS)
@pytest.mark.parametrize("shape", [(1, 8, 4), (7, 33, 5), (300, 64, 96)])
def test_products_are_exact(product, shape):
    n_rows, n_inputs, n_outputs = shape
    draw = np.random.default_rng(0).integers
    rows, weight = (draw(-127, 128, size).astype(np.int8) for size in ((n_rows, n_inputs), (n_outputs, n_inputs)))
    result = product(torch.from_numpy(rows), product.arrange(torch.from_numpy(weight)))
    assert np.array_equal(result.numpy(), rows.astype(np.int64) @ weight.T.astype(np.int64))


def test_products_of_onnx_runtime_have_as_many_threads_as_torch(monkeypatch):
    asked, session = [], int8_product._session
    monkeypatch.setattr(int8_product, "_session", lambda n_threads: asked.append(n_threads) or session(n_threads))
    matrix = torch.ones(2, 3, dtype=torch.int8)
    for n_threads in (1, 2):
        monkeypatch.setattr(torch, "get_num_threads", lambda n_threads=n_threads: n_threads)
        OnnxRuntimeProduct()(matrix, matrix)
        assert session(n_threads).get_session_options().intra_op_num_threads == n_threads
    assert asked == [1, 2]


def test_every_product_gives_the_same_vectors(folder, tmp_path, monkeypatch):
    """With a LoRA, whose merged weights are quantised, too."""
    trainer = Trainer(small_recipe("lora"), toy_data(), Backbone.load(folder, device="cpu", dtype="float32"))
    saved = trainer.export(trainer.run(0), tmp_path)[0].save(tmp_path / "e")
    vectors = []
    for product in PRODUCTS:
        monkeypatch.setattr(int8_linear, "available_products", lambda product=product: [product])
        vectors.append(Encoder.load(saved, device="cpu", dtype="int8").encode(TEXTS))
    assert np.array_equal(*vectors)


def test_a_wrong_kernel_is_refused(monkeypatch):
    """As on a processor that adds pairs of products in 16 bits."""
    exact = torch._int_mm
    monkeypatch.setattr(torch, "_int_mm", lambda a, b: exact(a, b).clamp(max=32_767))
    monkeypatch.setattr(int8_linear, "available_products", lambda: [TorchProduct()])
    with pytest.raises(UnsupportedError, match="wrongly"):
        quantise_layers(nn.ModuleList([nn.Sequential(nn.Linear(8, 8))]))


def test_a_model_without_linear_layers_is_refused():
    with pytest.raises(UnsupportedError, match="no plain linear layers"):
        Backbone.load("tiny-gpt2", device="cpu", dtype="int8")


def test_four_bits_are_refused_with_the_reason():
    with pytest.raises(UnsupportedError, match=r"int4 is not supported: on x86 .* use int8"):
        Backbone.load("tiny-llama", device="cpu", dtype="int4")


@pytest.mark.parametrize("command", ["similarity a b --encoder tiny-llama", "doctor tiny-llama"])
def test_commands_take_it(command):
    assert d2v(*command.split(), "--device", "cpu", "--dtype", "int8").exit_code == 0
