"""Saved adapters load unchanged; those of another model and damaged ones are refused."""

from __future__ import annotations

import json

import pytest
import torch
from peft import PeftConfig
from safetensors.torch import load_file, save_file

from decoder2vec.adapters.bottleneck import Bottleneck, BottleneckConfig, Convolution, ConvolutionConfig
from decoder2vec.adapters.kv_prefix import KeyValuePrefix
from decoder2vec.adapters.lora import Lora
from decoder2vec.adapters.saving import load_adapter, save_adapter
from decoder2vec.adapters.soft_prompt import SoftPrompt
from decoder2vec.encoder import Encoder, spec_from_kwargs
from decoder2vec.errors import EncoderError, InputError, UnknownNameError

ADAPTERS = {
    "soft_prompt": lambda model: SoftPrompt.initialise(model, 3, position="prepend", output="text"),
    "kv_prefix": lambda model: KeyValuePrefix.initialise(model, 3, depth=2),
    "lora": lambda model: Lora.initialise(model, 4, 8, 0.1, depth=2),
    "bottleneck": lambda model: Bottleneck(model, BottleneckConfig(4, "post", ("mlp",), depth=2)),
    "conv": lambda model: Convolution(model, ConvolutionConfig(3, 4, last_relu=True, depth=2)),
}
WEIGHTS = {"lora": "adapter_model.safetensors"}


@pytest.fixture(params=ADAPTERS)
def saved(request, backbone, tmp_path, randomised):
    """(adapter, its folder, the file of its weights)."""
    adapter = randomised(ADAPTERS[request.param](backbone("tiny-llama")))
    save_adapter(adapter, tmp_path / "adapter", backbone("tiny-llama"))
    return adapter, tmp_path / "adapter", tmp_path / "adapter" / WEIGHTS.get(request.param, "adapter.safetensors")


def test_loaded_adapter_equals_the_saved_one(saved, backbone):
    adapter, folder, _ = saved
    loaded = load_adapter(folder, backbone("tiny-llama"))
    assert type(loaded) is type(adapter) and loaded.settings() == adapter.settings()
    assert loaded.digest() == adapter.digest()
    assert all(torch.equal(a, b) for a, b in zip(loaded.parameters(), adapter.parameters(), strict=True))
    assert not any(parameter.requires_grad for parameter in loaded.parameters())


def test_adapter_of_another_model_is_refused(saved, backbone):
    """The models have the same sizes, so that nothing else would raise an error."""
    model, other = backbone("tiny-llama"), backbone("tiny-qwen2")
    assert (model.dim, model.n_layers) == (other.dim, other.n_layers)
    with pytest.raises(InputError, match="was trained on other weights than those of tiny-qwen2") as caught:
        load_adapter(saved[1], other)
    assert model.fingerprint in str(caught.value) and other.fingerprint in str(caught.value)


def test_any_change_of_a_parameter_changes_the_digest(saved):
    adapter = saved[0]
    before = adapter.digest()
    *_, last = adapter.parameters()
    last.view(-1)[-1] += 1e-6
    assert adapter.digest() != before


def edit_description(change):
    def damage(folder, weights):
        description = json.loads((folder / "adapter.json").read_text())
        change(description)
        (folder / "adapter.json").write_text(json.dumps(description))

    return damage


def edit_tensors(change):
    def damage(folder, weights):
        save_file({name: tensor.contiguous() for name, tensor in change(load_file(weights)).items()}, weights)

    return damage


DAMAGES = {
    "no description": lambda folder, weights: (folder / "adapter.json").unlink(),
    "truncated description": lambda folder, weights: (folder / "adapter.json").write_text('{"kind": "lo'),
    "a list": lambda folder, weights: (folder / "adapter.json").write_text("[1, 2]"),
    "no kind": edit_description(lambda description: description.pop("kind")),
    "another kind": edit_description(lambda description: description.update(kind="hypernetwork")),
    "another setting": edit_description(lambda description: description["settings"].update(colour="red")),
    "no settings": edit_description(lambda description: description.update(settings=None)),
    "no weights": lambda folder, weights: weights.unlink(),
    "an empty file": lambda folder, weights: weights.write_bytes(b""),
    "truncated weights": lambda folder, weights: weights.write_bytes(weights.read_bytes()[:-40]),
    "no tensor": edit_tensors(lambda tensors: {}),
    "another name": edit_tensors(lambda tensors: {f"{name}s": tensor for name, tensor in tensors.items()}),
    "other widths": edit_tensors(lambda tensors: {name: tensor[..., :1] for name, tensor in tensors.items()}),
    "one dimension less": edit_tensors(lambda tensors: {name: tensor[0] for name, tensor in tensors.items()}),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_folder_is_refused_in_one_sentence(damage, saved, backbone):
    _, folder, weights = saved
    DAMAGES[damage](folder, weights)
    with pytest.raises(InputError if damage == "no description" else EncoderError) as caught:
        load_adapter(folder, backbone("tiny-llama"))
    starts = {
        "no description": f"{folder} holds no adapter",
        "another kind": f"The adapter in {folder} is of the unknown",
    }
    assert str(caught.value).startswith(starts.get(damage, f"The adapter in {folder} is damaged"))


@pytest.mark.parametrize(("dtype", "bytes_per_weight", "tolerance"), [("bfloat16", 2, 2**-8), ("int8", 1, 1 / 254)])
def test_lora_can_be_stored_in_fewer_bits(dtype, bytes_per_weight, tolerance, backbone, tmp_path, randomised):
    model = backbone("tiny-llama")
    lora = randomised(Lora.initialise(model, 4, 8))
    encoder = Encoder(model.with_adapter(lora), spec_from_kwargs("tiny-llama", {}))
    folder = encoder.save(tmp_path / "enc", lora_dtype=dtype)
    stored = load_file(folder / "adapter" / ("adapter.safetensors" if dtype == "int8" else WEIGHTS["lora"]))
    matrices = {name: tensor for name, tensor in stored.items() if name.endswith("weight")}
    assert {tensor.element_size() for tensor in matrices.values()} == {bytes_per_weight}
    loaded = Encoder.load(folder, device="cpu")
    for name, matrix in lora.peft_state_dict().items():
        restored = loaded.backbone.adapter.peft_state_dict()[name]
        largest = matrix.abs().amax(1 if "lora_A" in name else 0, keepdim=True)  # of each rank
        assert ((restored - matrix).abs() <= tolerance * largest + 1e-9).all()
    description = json.loads((folder / "encoder.json").read_text())
    assert description["fingerprint"] == loaded.fingerprint != encoder.fingerprint
    again = loaded.save(tmp_path / "again", lora_dtype=dtype)
    assert json.loads((again / "encoder.json").read_text())["fingerprint"] == loaded.fingerprint


def test_int8_is_not_mistaken_for_a_folder_of_peft(backbone, tmp_path):
    """peft would load the matrices without their scales, with no more than a warning."""
    model = backbone("tiny-llama")
    save_adapter(Lora.initialise(model, 4, 8), tmp_path, model, "int8")
    with pytest.raises(ValueError, match=r"adapter_config\.json"):
        PeftConfig.from_pretrained(tmp_path)


@pytest.mark.parametrize("adapted", [True, False])
def test_unknown_dtype_of_lora_is_refused(backbone, tmp_path, adapted):
    model = backbone("tiny-llama")
    adapter = Lora.initialise(model, 4, 8) if adapted else None
    encoder = Encoder(model.with_adapter(adapter), spec_from_kwargs("tiny-llama", {}))
    with pytest.raises(UnknownNameError, match="int8"):
        encoder.save(tmp_path / "enc", lora_dtype="int3")
    assert not (tmp_path / "enc").exists()
