"""Adapters on disk: read back as they were, refused where they do not belong or are damaged."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from decoder2vec.adapters.kv_prefix import KeyValuePrefix
from decoder2vec.adapters.lora import Lora
from decoder2vec.adapters.saving import load_adapter, save_adapter
from decoder2vec.adapters.soft_prompt import SoftPrompt
from decoder2vec.errors import InputError

MAKERS = {
    "soft_prompt": lambda model: SoftPrompt.initialise(model, 3, place="prepend", output="text"),
    "kv_prefix": lambda model: KeyValuePrefix.initialise(model, 3, depth=2),
    "lora": lambda model: Lora.initialise(model, 4, 8, 0.1, depth=2),
}
NUMBERS = {"lora": "adapter_model.safetensors"}


@pytest.fixture(params=MAKERS)
def written(request, backbone, tmp_path, shaken):
    """(adapter, its folder, the file of its numbers)."""
    adapter = shaken(MAKERS[request.param](backbone("tiny-llama")))
    save_adapter(adapter, tmp_path / "adapter", backbone("tiny-llama"))
    return adapter, tmp_path / "adapter", tmp_path / "adapter" / NUMBERS.get(request.param, "adapter.safetensors")


def test_an_adapter_is_read_as_it_was_written(written, backbone):
    adapter, folder, _ = written
    found = load_adapter(folder, backbone("tiny-llama"))
    assert type(found) is type(adapter) and found.settings() == adapter.settings()
    assert found.digest() == adapter.digest()
    assert all(torch.equal(one, other) for one, other in zip(found.parameters(), adapter.parameters(), strict=True))
    assert not any(parameter.requires_grad for parameter in found.parameters())


def test_an_adapter_of_another_model_is_refused(written, backbone):
    """Of the same widths, so that nothing else would stop it."""
    model, other = backbone("tiny-llama"), backbone("tiny-qwen2")
    assert (model.dim, model.n_layers) == (other.dim, other.n_layers)
    with pytest.raises(InputError, match="was made for other weights than those of tiny-qwen2") as caught:
        load_adapter(written[1], other)
    assert model.fingerprint in str(caught.value) and other.fingerprint in str(caught.value)


def test_a_change_of_any_number_changes_the_name(written):
    adapter = written[0]
    before = adapter.digest()
    *_, last = adapter.parameters()
    last.view(-1)[-1] += 1e-6
    assert adapter.digest() != before


def about(change):
    def damage(folder, numbers):
        found = json.loads((folder / "adapter.json").read_text())
        change(found)
        (folder / "adapter.json").write_text(json.dumps(found))

    return damage


def tensors(change):
    def damage(folder, numbers):
        save_file({name: tensor.contiguous() for name, tensor in change(load_file(numbers)).items()}, numbers)

    return damage


DAMAGES = {
    "no description": lambda folder, numbers: (folder / "adapter.json").unlink(),
    "half a description": lambda folder, numbers: (folder / "adapter.json").write_text('{"kind": "lo'),
    "a list": lambda folder, numbers: (folder / "adapter.json").write_text("[1, 2]"),
    "no kind": about(lambda found: found.pop("kind")),
    "another kind": about(lambda found: found.update(kind="hypernetwork")),
    "another setting": about(lambda found: found["settings"].update(colour="red")),
    "no settings": about(lambda found: found.update(settings=None)),
    "no numbers": lambda folder, numbers: numbers.unlink(),
    "an empty file": lambda folder, numbers: numbers.write_bytes(b""),
    "half the numbers": lambda folder, numbers: numbers.write_bytes(numbers.read_bytes()[:-40]),
    "no tensor": tensors(lambda found: {}),
    "another name": tensors(lambda found: {f"{name}s": tensor for name, tensor in found.items()}),
    "other widths": tensors(lambda found: {name: tensor[..., :1] for name, tensor in found.items()}),
    "one dimension less": tensors(lambda found: {name: tensor[0] for name, tensor in found.items()}),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_folder_is_refused_in_one_sentence(damage, written, backbone):
    _, folder, numbers = written
    DAMAGES[damage](folder, numbers)
    with pytest.raises(InputError) as caught:
        load_adapter(folder, backbone("tiny-llama"))
    said = str(caught.value)
    assert said.startswith((f"The adapter in {folder} is damaged", f"{folder} holds no adapter", "Unknown adapter"))
