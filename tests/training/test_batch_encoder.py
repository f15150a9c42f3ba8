"""Every shortcut of training equals the plain way: cached prefixes, chunks, checkpointed and compiled blocks."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.utils.checkpoint import checkpoint

from decoder2vec.activations.prefix_kv import cache_keys_values
from decoder2vec.adapters.soft_prompt import SoftPrompt
from decoder2vec.backbone.backbone import Backbone
from decoder2vec.backbone.block_modes import CompiledBlocks
from decoder2vec.backbone.tiny import TINY
from decoder2vec.config import Reading
from decoder2vec.errors import InputError, UnsupportedError
from decoder2vec.text.template import Template
from decoder2vec.text.tokens import Tokeniser
from decoder2vec.training import batch_encoder
from decoder2vec.training.batch_encoder import BatchEncoder, choose_batch_encoder, suffix_encoder, token_encoder
from decoder2vec.training.recipes.adapter import ReadSettings
from toys.training import ADAPTER_RECIPES, gradients_of, module_and_task, small_recipe, toy_data

ATTENTION_MODELS = [name for name, family in TINY.items() if "mamba" not in family]
TEXTS = ["cats sleep", "a", "the dogs run over the long road in the rain and sing of boats that sail", "kids play now"]
"""The third is longer than the sliding window of the tiny models (16 tokens)."""
READINGS = [Reading(4, "lasttoken", True), Reading(2, "mean")]
"""The top layer, and one below it."""
CACHE_BYTES = (10**9, 0)
"""Keys and values are cached, or recomputed."""


def tokenised(backbone):
    return Tokeniser(backbone, Template.of("plain"), 64)(TEXTS).prompts


def with_soft_prompt(backbone):
    torch.manual_seed(0)
    return backbone.with_adapter(SoftPrompt.initialise(backbone, 3))


def vectors_and_gradient(encode, rows, prompt):
    """Vectors, a loss with a random weight for every value, and the gradient of the soft prompt.

    The loss is linear, so that the gradient is no small difference of large terms, which would amplify rounding.
    """
    prompt.zero_grad()
    vectors = encode(rows)
    weights = torch.randn(vectors.shape, generator=torch.Generator().manual_seed(2))
    loss = (vectors.float() * weights).sum()
    loss.backward()
    return vectors.detach(), loss.detach(), prompt.vectors.grad.clone()


def assert_all_close(tensors, expected_tensors):
    for tensor, expected in zip(tensors, expected_tensors, strict=True):
        torch.testing.assert_close(tensor, expected, rtol=1e-4, atol=1e-5 * expected.abs().max().item())


def assert_same_step(step, expected_step):
    """Compare (loss, gradients) of two ways to compute a training step."""
    (loss, gradients), (expected_loss, expected_gradients) = step, expected_step
    assert loss == pytest.approx(expected_loss, rel=1e-5)
    assert gradients.keys() == expected_gradients.keys()
    for name, expected in expected_gradients.items():
        torch.testing.assert_close(gradients[name], expected, rtol=1e-3, atol=2e-5 * float(expected.abs().max()))


def changed_and_plain_step(name, model, changes, **settings):
    """(loss, gradients) of a step with some settings changed, and without the changes."""
    return [
        gradients_of(*module_and_task(small_recipe(name, **settings, **change), toy_data(), model), np.arange(8))
        for change in (changes, {})
    ]


# --- cached keys and values -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("reading", READINGS, ids=str)
@pytest.mark.parametrize("name", ATTENTION_MODELS)
def test_soft_prompt_on_cached_prefix_equals_full_run(name, reading, backbone):
    adapted = with_soft_prompt(backbone(name))
    prompts = tokenised(adapted)
    assert len({len(prompt.ids) for prompt in prompts}) > 2 and len(prompts[2].ids) > 16
    full = token_encoder(adapted, prompts, reading)
    shortcuts = [
        suffix_encoder(adapted, cache_keys_values(adapted, prompts, reading.layer, size), reading)
        for size in CACHE_BYTES
    ]
    for rows in ([0, 1, 2, 3], [2]):
        expected = vectors_and_gradient(full, rows, adapted.adapter)
        for encode in shortcuts:
            assert_all_close(vectors_and_gradient(encode, rows, adapted.adapter), expected)


def test_order_of_texts_does_not_matter(backbone):
    adapted = with_soft_prompt(backbone("tiny-llama"))
    prompts = tokenised(adapted)
    for size in CACHE_BYTES:
        encode = suffix_encoder(adapted, cache_keys_values(adapted, prompts, 4, size), READINGS[0])
        assert_all_close([encode([3, 0, 2])], [encode([0, 2, 3])[[2, 0, 1]]])


def test_family_without_keys_and_values_encodes_all_tokens(backbone):
    adapted = with_soft_prompt(backbone("tiny-mamba"))
    prompts = tokenised(adapted)
    with pytest.raises(UnsupportedError, match="mamba has no keys and values"):
        cache_keys_values(adapted, prompts, 4)
    encoder = choose_batch_encoder(adapted, prompts, READINGS[0], extra_tokens=3, suffix_only=True, cache_bytes=10**9)
    expected = token_encoder(adapted, prompts, READINGS[0])([0, 1])
    torch.testing.assert_close(encoder([0, 1]), expected, rtol=1e-4, atol=1e-5)


def test_training_step_on_suffix_equals_full_step(backbone):
    """With cached keys and values, with recomputed ones, and with every token in every step."""
    model = backbone("tiny-llama")
    *shortcuts, full = (
        gradients_of(*module_and_task(small_recipe("soft_prompt", **changes), toy_data(), model), np.arange(8))
        for changes in ({"cap_gb": 10.0}, {"cap_gb": 0.0}, {"checkpoint_blocks": True})
    )
    for loss, gradients in shortcuts:
        assert loss == pytest.approx(full[0], rel=1e-5)
        assert_all_close(gradients.values(), full[1].values())


# --- chunks of a batch ----------------------------------------------------------------------------------------------


def without_zeros(lora):
    """LoRA with its upper matrices changed: they start as zeros, which would hide dropout and gradients."""
    with torch.no_grad():
        for parameter in lora.upper.values():
            parameter += torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)) / 10
    return lora


@pytest.mark.parametrize("name", ADAPTER_RECIPES)
def test_chunked_batch_has_same_loss_and_gradients(name, backbone, monkeypatch):
    """On a model without dropout, where chunks make no difference."""
    calls = []
    monkeypatch.setattr(
        batch_encoder, "checkpoint", lambda *args, **kwargs: calls.append(1) or checkpoint(*args, **kwargs)
    )
    chunked, whole = changed_and_plain_step(name, backbone("tiny-llama"), {"chunk": 40})
    assert len(calls) > 1, "the batch should be split"
    assert_same_step(chunked, whole)


def chunked_lora_step(model, compute_chunk, monkeypatch):
    """A step of LoRA with dropout, with each chunk computed by a function."""
    monkeypatch.setattr(batch_encoder, "checkpoint", compute_chunk)
    module, task = module_and_task(small_recipe("lora", dropout=0.3, chunk=40), toy_data(), model)
    return gradients_of(without_zeros(module), task, np.arange(8))


def test_recomputed_chunks_have_the_same_dropout(backbone, monkeypatch):
    """T18: with other dropout in the second pass, gradients are silently those of another loss."""
    model = backbone("tiny-llama")
    expected = chunked_lora_step(model, lambda encode, texts, **_: encode(texts), monkeypatch)
    assert_same_step(chunked_lora_step(model, checkpoint, monkeypatch), expected)

    def checkpoint_with_new_dropout(encode, texts, **options):
        return checkpoint(encode, texts, preserve_rng_state=False, **options)

    loss, gradients = chunked_lora_step(model, checkpoint_with_new_dropout, monkeypatch)
    assert loss == pytest.approx(expected[0], rel=1e-5)
    assert any((gradients[name] - right).abs().max() > 0.1 * right.abs().max() for name, right in expected[1].items())


def test_dropout_is_active_in_training_only(backbone):
    """T17."""
    module, task = module_and_task(small_recipe("lora", dropout=0.3), toy_data(), backbone("tiny-llama"))
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            if "upper" in name:
                parameter += 0.1
    assert task.loss(np.arange(8)).item() == task.loss(np.arange(8)).item()
    module.train()
    assert task.loss(np.arange(8)).item() != task.loss(np.arange(8)).item()
    module.eval()


def test_vectors_are_in_the_order_of_rows_in_any_chunks():
    class FakeBackbone:
        device, dim, n_layers = torch.device("cpu"), 1, 1
        model = torch.nn.Module()

    def encode_row_index(rows):
        return torch.tensor(rows, dtype=torch.float32)[:, None]

    encoder = BatchEncoder(encode_row_index, [3, 9, 1, 9, 2, 5], FakeBackbone(), 10)
    for rows in ([5, 0, 3, 1, 2, 4], [2], [1, 3]):
        assert encoder(rows)[:, 0].tolist() == rows
        with torch.no_grad():
            assert encoder(rows)[:, 0].tolist() == rows


def test_sharded_batch_that_does_not_fit_is_refused_where_torch_cannot_compute_it_twice(monkeypatch):
    class FakeBackbone:
        device, dim, n_layers = torch.device("cpu"), 1, 1
        model = torch.nn.Module()

    encoder = BatchEncoder(lambda rows: torch.ones(len(rows), 1), [3, 9, 1], FakeBackbone(), 10)
    encoder.is_sharded = True
    monkeypatch.setattr(batch_encoder, "FSDP_RECOMPUTES", False)
    assert len(encoder([0, 2])) == 2, "this one fits"
    with pytest.raises(UnsupportedError, match="batch smaller"):
        encoder([0, 1, 2])


# --- checkpointed blocks --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", ["tiny-llama", "tiny-gpt2", "tiny-gemma3_text"])
@pytest.mark.parametrize("name", ADAPTER_RECIPES)
def test_checkpointed_blocks_have_same_gradients(name, family, backbone):
    """T15, T16: prefixes are not dropped, and a frozen embedding does not stop the gradients of LoRA."""
    settings = {"read": ReadSettings(layer=3, pooling="mean", normed=False)}
    settings |= {"dropout": 0.2} if name == "lora" else {}
    checkpointed, plain = changed_and_plain_step(name, backbone(family), {"checkpoint_blocks": True}, **settings)
    assert_same_step(checkpointed, plain)
    with_gradient = [name for name, gradient in checkpointed[1].items() if gradient.abs().max() > 0]
    multiplied_by_zeros = [name for name in checkpointed[1] if {"lower", "down", "first"} & set(name.split("."))]
    assert with_gradient == [name for name in checkpointed[1] if name not in multiplied_by_zeros]


def test_blocks_run_twice_when_checkpointed_and_are_restored(backbone):
    model, calls = backbone("tiny-llama"), []
    module, task = module_and_task(small_recipe("kv_prefix", checkpoint_blocks=True), toy_data(), model)
    handle = model.blocks[1].input_layernorm.register_forward_hook(lambda *_: calls.append(1))
    gradients_of(module, task, np.arange(8))
    with_gradients = len(calls)
    with torch.no_grad(), task.step_context():
        task.loss(np.arange(8))
    handle.remove()
    assert with_gradients == 2 * (len(calls) - with_gradients)
    assert not any("forward" in vars(block) for block in model.blocks)


def test_checkpointed_blocks_keep_partial_attention(backbone):
    model = backbone("tiny-gpt2")
    steps = changed_and_plain_step("lora", model, {"checkpoint_blocks": True}, attention="bidirectional:2")
    assert_same_step(*steps)
    model.set_attention("causal")


@pytest.mark.parametrize(
    "changes", [{"chunk": 40}, {"checkpoint_blocks": True}, {"chunk": 40, "checkpoint_blocks": True}], ids=str
)
@pytest.mark.parametrize("family", ["tiny-llama", "tiny-gpt2"])
def test_lora_hooks_are_active_when_recomputed(family, changes, backbone):
    """Against one pass with the change added to the weights, as for compiled blocks."""
    steps = []
    for settings in (changes, {}):
        lora, task = module_and_task(small_recipe("lora", **settings), toy_data(), backbone(family))
        lora.compiled = not settings
        steps.append(gradients_of(without_zeros(lora), task, np.arange(8)))
    assert_same_step(*steps)
    assert all(gradient.abs().max() > 0 for gradient in steps[0][1].values())


def test_prefix_works_with_chunks_and_checkpointed_blocks(backbone):
    changes = {"checkpoint_blocks": True, "chunk": 40}
    assert_same_step(*changed_and_plain_step("kv_prefix", backbone("tiny-llama"), changes))


# --- compiled blocks ------------------------------------------------------------------------------------------------


def test_compiled_blocks_have_same_gradients(backbone, compile_counters):
    read = ReadSettings(pooling="mean")
    assert_same_step(
        *changed_and_plain_step("soft_prompt", backbone("tiny-llama"), {"compile_blocks": True}, read=read)
    )
    assert compile_counters["unique_graphs"] > 0


@pytest.mark.parametrize(("name", "family"), [("lora", "tiny-llama"), ("kv_prefix", "tiny-gpt2")])
def test_blocks_share_compiled_code_for_all_batch_sizes(name, family, compile_counters):
    """On a new model: once asked for hidden states, transformers leaves hooks that split a block's graph."""
    read, model = ReadSettings(pooling="mean"), Backbone.load(family, device="cpu", dtype="float32")
    compiled, plain = (
        module_and_task(small_recipe(name, read=read, **changes), toy_data(), model)
        for changes in ({"compile_blocks": True}, {})
    )
    for rows in (np.arange(8), np.arange(8, 13)):
        assert_same_step(gradients_of(*compiled, rows), gradients_of(*plain, rows))
    assert 1 <= compile_counters["unique_graphs"] <= 2, "one for the first block, one for all others"


def test_blocks_are_compiled_for_training_only_and_restored(backbone, compile_counters):
    model = backbone("tiny-gpt2")
    _, task = module_and_task(small_recipe("lora", compile_blocks=True), toy_data(), model)
    with torch.no_grad(), task.step_context():
        task.loss(np.arange(8))
    assert compile_counters["unique_graphs"] == 0
    assert not any("forward" in vars(block) for block in model.blocks)


def test_failed_compilation_has_a_clear_error(backbone):
    def broken_backend(*_):
        raise RuntimeError("no compiler here")

    model = backbone("tiny-gpt2")
    torch._dynamo.reset()
    blocks = CompiledBlocks(model, backend=broken_backend)
    states = torch.zeros(1, 3, model.dim, requires_grad=True)
    message = r"cannot be compiled here .*leave out compile_blocks"
    with blocks.enabled(), pytest.raises(UnsupportedError, match=message):
        model.blocks[0](states)
    torch._dynamo.reset()


def test_blocks_cannot_be_both_compiled_and_checkpointed():
    with pytest.raises(InputError, match="set one of the two"):
        small_recipe("lora", compile_blocks=True, checkpoint_blocks=True)
