"""Every short cut of training against the plain way: suffix, file, chunks, blocks computed twice or compiled."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch.utils.checkpoint import checkpoint

from decoder2vec.activations import prefix_kv
from decoder2vec.activations.prefix_kv import prefix_memory
from decoder2vec.adapters.soft_prompt import SoftPrompt
from decoder2vec.backbone.backbone import Backbone
from decoder2vec.backbone.tiny import TINY
from decoder2vec.backbone.training_modes import CompiledBlocks
from decoder2vec.config import Reading
from decoder2vec.errors import InputError, UnsupportedError
from decoder2vec.text.template import Template
from decoder2vec.text.tokens import Tokeniser
from decoder2vec.training import paths
from decoder2vec.training.batch_encoder import Path, choose_batch_encoder, suffix_encoder, token_encoder
from decoder2vec.training.recipes.adapter import ReadSettings
from toys.training import ADAPTER_RECIPES, gradients_of, module_and_task, small_recipe, toy_data

ATTENTIVE = [name for name, family in TINY.items() if "mamba" not in family]
TEXTS = ["cats sleep", "a", "the dogs run over the long road in the rain and sing of boats that sail", "kids play now"]
"""The third is longer than a sliding window, 16 tokens in the tiny models."""
READINGS = [Reading(4, "lasttoken", True), Reading(2, "mean")]
"""The top, and a layer below it."""


def prompts_of(backbone):
    return Tokeniser(backbone, Template.of("plain"), 64)(TEXTS).prompts


def prompted(backbone):
    torch.manual_seed(0)
    return backbone.with_adapter(SoftPrompt.start(backbone, 3))


def learned(part, rows, prompt):
    """Vectors, a loss with a weight of its own for every number, and the gradient of the prompt.

    The loss is linear, so that the gradient is no small difference of large terms, in which rounding would stand out.
    """
    prompt.zero_grad()
    vectors = part(rows)
    weights = torch.randn(vectors.shape, generator=torch.Generator().manual_seed(2))
    loss = (vectors.float() * weights).sum()
    loss.backward()
    return vectors.detach(), loss.detach(), prompt.vectors.grad.clone()


def assert_equal(found, expected):
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5 * other.abs().max().item())


# --- behind remembered texts ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("reading", READINGS, ids=str)
@pytest.mark.parametrize("name", ATTENTIVE)
def test_a_prompt_behind_remembered_keys_and_values_equals_the_whole_text(name, reading, backbone):
    adapted = prompted(backbone(name))
    prompts = prompts_of(adapted)
    assert len({len(prompt.ids) for prompt in prompts}) > 2 and len(prompts[2].ids) > 16
    naive = token_encoder(adapted, prompts, reading)
    kept, anew = (
        suffix_encoder(adapted, prefix_memory(adapted, prompts, reading.layer, cap), reading) for cap in (10**9, 0)
    )
    for rows in ([0, 1, 2, 3], [2]):
        expected = learned(naive, rows, adapted.adapter)
        assert_equal(learned(kept, rows, adapted.adapter), expected)
        assert_equal(learned(anew, rows, adapted.adapter), expected)


def test_the_order_of_texts_does_not_matter(backbone):
    adapted = prompted(backbone("tiny-llama"))
    prompts = prompts_of(adapted)
    for cap in (10**9, 0):
        part = suffix_encoder(adapted, prefix_memory(adapted, prompts, 4, cap), READINGS[0])
        assert_equal([part([3, 0, 2])], [part([0, 2, 3])[[2, 0, 1]]])


@pytest.fixture
def own_files(tmp_path, monkeypatch):
    monkeypatch.setattr(prefix_kv, "prefix_kv_root", lambda: tmp_path / "prefix_kv")
    return lambda: sorted((tmp_path / "prefix_kv").glob("*"))


def test_keys_and_values_are_found_again_and_not_computed_twice(backbone, own_files, monkeypatch):
    model = backbone("tiny-llama")
    prompts = prompts_of(model)
    first = prefix_memory(model, prompts, 4)([0, 1, 2])
    assert len(own_files()) == 1
    monkeypatch.setattr(prefix_kv._Kept, "_fill", lambda *_: pytest.fail("they lie on disk"))
    again = prefix_memory(model, prompts, 4)([0, 1, 2])
    for one, other in zip(first.layers, again.layers, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def test_files_are_told_apart_by_texts_depth_and_weights(backbone, own_files):
    model = backbone("tiny-llama")
    prompts = prompts_of(model)
    for backbone_, some, depth in (
        (model, prompts, 4),
        (model, prompts, 2),
        (model, prompts[1:], 4),
        (backbone("tiny-qwen2"), prompts, 4),
    ):
        prefix_memory(backbone_, some, depth)
    assert len(own_files()) == 4


def test_a_file_that_was_cut_short_is_made_anew(backbone, own_files):
    model = backbone("tiny-llama")
    prompts = prompts_of(model)
    expected = prefix_memory(model, prompts, 4)([0, 2]).layers[3][1].clone()
    file = own_files()[0]
    file.write_bytes(file.read_bytes()[:1000])
    assert torch.equal(prefix_memory(model, prompts, 4)([0, 2]).layers[3][1], expected)


def test_nothing_is_written_over_the_cap_and_the_cap_counts_bytes(backbone, own_files):
    model = backbone("tiny-llama")
    prompts = prompts_of(model)
    size = (
        sum(len(prompt.ids) for prompt in prompts) * 3 * 2 * 2 * 8 * 4
    )  # layers, keys and values, heads, width, bytes
    prefix_memory(model, prompts, 3, size - 1)
    assert own_files() == []
    prefix_memory(model, prompts, 3, size)
    assert [file.stat().st_size for file in own_files()] == [size]


def test_a_disk_without_room_is_not_filled(backbone, own_files, monkeypatch, caplog):
    model = backbone("tiny-llama")
    prompts = prompts_of(model)
    expected = prefix_memory(model, prompts, 4)([0, 2]).layers[3][1]
    own_files()[0].unlink()
    monkeypatch.setattr(prefix_kv.shutil, "disk_usage", lambda _: SimpleNamespace(free=1000))
    found = prefix_memory(model, prompts, 4)([0, 2]).layers[3][1]
    length = len(prompts[0].ids)
    torch.testing.assert_close(found[:, :, -length:], expected[:, :, -length:])
    assert own_files() == [] and "No space left on device" in caplog.text


def test_a_family_without_keys_and_values_takes_the_long_way(backbone):
    adapted = prompted(backbone("tiny-mamba"))
    prompts = prompts_of(adapted)
    with pytest.raises(UnsupportedError, match="mamba keeps no keys and values"):
        prefix_memory(adapted, prompts, 4)
    path = choose_batch_encoder(small_recipe("soft_prompt", tokens=3), adapted, prompts, READINGS[0])
    torch.testing.assert_close(path([0, 1]), token_encoder(adapted, prompts, READINGS[0])([0, 1]), rtol=1e-4, atol=1e-5)


def test_training_on_the_suffix_is_training_on_the_whole(backbone):
    """The same step by the path that is picked, with and without files, and by the plain one."""
    model = backbone("tiny-llama")
    found = []
    for cap in (10.0, 0.0):
        module, task = module_and_task(small_recipe("soft_prompt", cap_gb=cap), toy_data(), model)
        found.append(gradients_of(module, task, np.arange(8)))
    module, task = module_and_task(small_recipe("soft_prompt", checkpoint_blocks=True), toy_data(), model)
    found.append(gradients_of(module, task, np.arange(8)))
    for loss, gradients in found[:2]:
        assert loss == pytest.approx(found[2][0], rel=1e-5)
        assert_equal(gradients.values(), found[2][1].values())


# --- parts of a batch -----------------------------------------------------------------------------------------------


def compared(name, model, changes, **others):
    """Gradients of a recipe with some changes, and without them."""
    return [
        gradients_of(*module_and_task(small_recipe(name, **others, **change), toy_data(), model), np.arange(8))
        for change in (changes, {})
    ]


def assert_same_step(found, expected):
    assert found[0] == pytest.approx(expected[0], rel=1e-5)
    assert found[1].keys() == expected[1].keys()
    for name, gradient in expected[1].items():
        torch.testing.assert_close(found[1][name], gradient, rtol=1e-3, atol=2e-5 * float(gradient.abs().max()))


@pytest.mark.parametrize("name", ADAPTER_RECIPES)
def test_a_batch_in_chunks_has_the_loss_and_gradient_of_the_whole(name, backbone, monkeypatch):
    """On a model without dropout, where chunks cannot matter."""
    calls = []
    monkeypatch.setattr(paths, "checkpoint", lambda *args, **kwargs: calls.append(1) or checkpoint(*args, **kwargs))
    found, expected = compared(name, backbone("tiny-llama"), {"chunk": 40})
    assert len(calls) > 1, "the batch was meant to be cut"
    assert_same_step(found, expected)


def in_chunks(model, compute, monkeypatch):
    """LoRA with dropout in chunks, each of them computed in that way."""
    monkeypatch.setattr(paths, "checkpoint", compute)
    module, task = module_and_task(small_recipe("lora", dropout=0.3, chunk=40), toy_data(), model)
    return gradients_of(away_from_zeros(module), task, np.arange(8))


def away_from_zeros(lora):
    """The same with some change made: half of it starts from zeros, which would hide dropout and gradients."""
    with torch.no_grad():
        for parameter in lora.upper.values():
            parameter += torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)) / 10
    return lora


def test_dropout_is_replayed_when_a_chunk_is_computed_again(backbone, monkeypatch):
    """T18: with other dropout in the second pass gradients are silently those of another loss."""
    model = backbone("tiny-llama")
    expected = in_chunks(model, lambda part, texts, **_: part(texts), monkeypatch)
    assert_same_step(in_chunks(model, checkpoint, monkeypatch), expected)

    def forgetful(part, texts, **options):
        return checkpoint(part, texts, preserve_rng_state=False, **options)

    loss, gradients = in_chunks(model, forgetful, monkeypatch)
    assert loss == pytest.approx(expected[0], rel=1e-5)
    assert any((gradients[name] - right).abs().max() > 0.1 * right.abs().max() for name, right in expected[1].items())


def test_two_passes_with_dropout_differ_and_without_training_they_do_not(backbone):
    """T17: what is meant to be dropout is at work, and only in training."""
    module, task = module_and_task(small_recipe("lora", dropout=0.3), toy_data(), backbone("tiny-llama"))
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            if "upper" in name:
                parameter += 0.1
    assert task.loss(np.arange(8)).item() == task.loss(np.arange(8)).item()
    module.train()
    assert task.loss(np.arange(8)).item() != task.loss(np.arange(8)).item()
    module.eval()


def test_vectors_come_in_the_order_asked_for_whatever_the_parts(backbone):
    class Numbered:
        device, dim, n_layers = torch.device("cpu"), 1, 1

    path = Path(lambda rows: torch.tensor(rows, dtype=torch.float32)[:, None], [3, 9, 1, 9, 2, 5], Numbered(), 10)
    for rows in ([5, 0, 3, 1, 2, 4], [2], [1, 3]):
        assert path(rows)[:, 0].tolist() == rows
        with torch.no_grad():
            assert path(rows)[:, 0].tolist() == rows


# --- blocks computed twice ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", ["tiny-llama", "tiny-gpt2", "tiny-gemma3_text"])
@pytest.mark.parametrize("name", ADAPTER_RECIPES)
def test_blocks_computed_again_have_the_same_gradients(name, family, backbone):
    """T15, T16: prefixes are not dropped, and a frozen embedding does not stop the gradients of LoRA."""
    model = backbone(family)
    others = {"read": ReadSettings(layer=3, pooling="mean", normed=False)} | ({"dropout": 0.2} if name == "lora" else {})
    found, expected = compared(name, model, {"checkpoint_blocks": True}, **others)
    assert_same_step(found, expected)
    moving = [name for name, gradient in found[1].items() if gradient.abs().max() > 0]
    assert moving == [name for name in found[1] if "lower" not in name], "these are multiplied by zeros at first"


def test_blocks_are_really_computed_again_and_left_as_they_were(backbone):
    model, calls = backbone("tiny-llama"), []
    module, task = module_and_task(small_recipe("kv_prefix", checkpoint_blocks=True), toy_data(), model)
    handle = model.blocks[1].input_layernorm.register_forward_hook(lambda *_: calls.append(1))
    gradients_of(module, task, np.arange(8))
    again = len(calls)
    with torch.no_grad(), task.step_context():
        task.loss(np.arange(8))
    handle.remove()
    assert again == 2 * (len(calls) - again)
    assert not any("forward" in vars(block) for block in model.blocks)


def test_blocks_computed_again_look_where_they_should(backbone):
    model = backbone("tiny-gpt2")
    found, expected = compared("lora", model, {"checkpoint_blocks": True}, attention="bidirectional:2")
    assert_same_step(found, expected)
    model.set_attention("causal")


@pytest.mark.parametrize(
    "changes", [{"chunk": 40}, {"checkpoint_blocks": True}, {"chunk": 40, "checkpoint_blocks": True}]
)
@pytest.mark.parametrize("family", ["tiny-llama", "tiny-gpt2"])
def test_lora_beside_the_layers_is_still_there_when_they_are_computed_again(family, changes, backbone):
    """Against one pass with the change added to the weights, as for compiled blocks."""
    found = []
    for settings in (changes, {}):
        lora, task = module_and_task(small_recipe("lora", **settings), toy_data(), backbone(family))
        lora.compiled = not settings
        found.append(gradients_of(away_from_zeros(lora), task, np.arange(8)))
    assert_same_step(*found)
    assert all(gradient.abs().max() > 0 for gradient in found[0][1].values())


def test_a_prefix_survives_chunks_and_blocks_computed_again_together(backbone):
    found, expected = compared("kv_prefix", backbone("tiny-llama"), {"checkpoint_blocks": True, "chunk": 40})
    assert_same_step(found, expected)


# --- compiled blocks ------------------------------------------------------------------------------------------------


@pytest.fixture
def plainly_compiled(monkeypatch):
    """Traced as for a GPU, but run by torch's own kernels, so that no compiler is needed."""
    monkeypatch.setattr("decoder2vec.training.recipes.recipe.CompiledBlocks", partial(CompiledBlocks, backend="aot_eager"))
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    yield torch._dynamo.utils.counters["stats"]
    torch._dynamo.reset()


@pytest.mark.parametrize(
    ("name", "family"), [("lora", "tiny-llama"), ("kv_prefix", "tiny-gpt2"), ("soft_prompt", "tiny-llama")]
)
def test_compiled_blocks_have_the_same_gradients(name, family, backbone, plainly_compiled):
    found, expected = compared(name, backbone(family), {"compile_blocks": True}, read=ReadSettings(pooling="mean"))
    assert_same_step(found, expected)
    assert plainly_compiled["unique_graphs"] > 0


@pytest.mark.parametrize(("name", "family"), [("lora", "tiny-llama"), ("kv_prefix", "tiny-gpt2")])
def test_blocks_share_what_was_compiled_for_batches_of_all_sizes(name, family, plainly_compiled):
    """On a model of its own: once asked for hidden states, transformers leaves hooks that cut blocks into pieces."""
    module, task = module_and_task(small_recipe(name, compile_blocks=True), toy_data(), Backbone.load(family))
    for rows in (np.arange(8), np.arange(8, 13)):
        gradients_of(module, task, rows)
    assert 1 <= plainly_compiled["unique_graphs"] <= 2, "once for the first block, once for all others"


def test_blocks_are_compiled_for_training_only_and_left_as_they_were(backbone, plainly_compiled):
    model = backbone("tiny-gpt2")
    _, task = module_and_task(small_recipe("lora", compile_blocks=True), toy_data(), model)
    with torch.no_grad(), task.step_context():
        task.loss(np.arange(8))
    assert plainly_compiled["unique_graphs"] == 0
    assert not any("forward" in vars(block) for block in model.blocks)


def test_what_cannot_be_compiled_is_said_in_words(backbone):
    def broken(*_):
        raise RuntimeError("no compiler here")

    model = backbone("tiny-gpt2")
    torch._dynamo.reset()
    blocks = CompiledBlocks(model, backend=broken)
    states = torch.zeros(1, 3, model.dim, requires_grad=True)
    with (
        blocks.enabled(),
        pytest.raises(UnsupportedError, match=r"cannot be compiled here .*leave out compile_blocks"),
    ):
        model.blocks[0](states)
    torch._dynamo.reset()


def test_blocks_are_not_both_compiled_and_computed_again():
    with pytest.raises(InputError, match="set one of the two"):
        small_recipe("lora", compile_blocks=True, checkpoint_blocks=True)
