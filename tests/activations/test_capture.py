"""Tests of `decoder2vec.activations.capture`: which layers run, the model's inputs, and the removal of hooks."""

from __future__ import annotations

import pytest
import torch
from transformers import AutoModel

from decoder2vec.activations.capture import Capture
from decoder2vec.backbone.machine import quiet_transformers
from decoder2vec.backbone.tiny import tiny_folder
from decoder2vec.config import Reading
from decoder2vec.errors import InputError
from decoder2vec.text.batches import collate
from decoder2vec.text.tokens import Prompt

PROMPTS = [
    Prompt(list(range(30, 52)), 0, 22),
    Prompt([40, 41, 42], 1, 3),
    Prompt(list(range(60, 69)), 2, 9),
]
READINGS = [Reading(layer, "mean", normed) for layer in range(5) for normed in (False, True)]


@pytest.fixture
def calls(backbone):
    """How often each block of tiny-llama ran."""
    blocks = backbone("tiny-llama").blocks
    counts = [0] * len(blocks)

    def counting(index):
        def hook(*_):
            counts[index] += 1

        return hook

    handles = [block.input_layernorm.register_forward_hook(counting(index)) for index, block in enumerate(blocks)]
    yield counts
    for handle in handles:
        handle.remove()


def count_hooks(model):
    return sum(len(module._forward_hooks) + len(module._forward_pre_hooks) for module in model.modules())


def run(model, readings, prompts=PROMPTS, side="right"):
    with torch.inference_mode():
        return Capture(model, readings)(collate(prompts, model.pad_token_id, side=side))


def plain_hidden_states(name, ids):
    with quiet_transformers():
        model = AutoModel.from_pretrained(tiny_folder(name)).eval()
    with torch.inference_mode():
        return model(input_ids=torch.tensor([ids]), output_hidden_states=True).hidden_states


def test_vectors_are_float32_per_text_and_reading(backbone):
    vectors = run(backbone("tiny-llama"), READINGS)
    assert vectors.shape == (3, 10, 32)
    assert vectors.dtype == torch.float32


def test_readings_keep_their_order_and_duplicates(backbone):
    readings = [Reading(3, "max"), Reading(0), Reading(3, "max"), Reading(3), Reading(1, "cls", True)]
    vectors = run(backbone("tiny-llama"), readings)
    for column, reading in enumerate(readings):
        torch.testing.assert_close(vectors[:, column], run(backbone("tiny-llama"), [reading])[:, 0], rtol=0, atol=0)


def test_negative_layers_count_from_the_top(backbone):
    model = backbone("tiny-llama")
    for negative, layer in ((-1, 4), (-2, 3), (-5, 0)):
        assert torch.equal(run(model, [Reading(negative)]), run(model, [Reading(layer)]))


@pytest.mark.parametrize("layer", [0, 1, 3, 4])
def test_layers_above_the_last_requested_one_do_not_run(layer, backbone, calls):
    run(backbone("tiny-llama"), [Reading(0), Reading(layer)])
    assert calls == [1] * layer + [0] * (4 - layer)


def test_all_layers_are_read_in_one_pass(backbone, calls):
    run(backbone("tiny-llama"), READINGS)
    assert calls == [1, 1, 1, 1]


def test_repeated_passes_give_identical_vectors(backbone):
    model = backbone("tiny-gpt2")
    assert torch.equal(run(model, READINGS), run(model, READINGS))


@pytest.mark.parametrize("name", ["tiny-gpt2", "tiny-llama", "tiny-mistral", "tiny-gemma2", "tiny-falcon", "tiny-opt"])
@pytest.mark.parametrize("attention", ["causal", "bidirectional"])
def test_padding_on_either_side_changes_nothing(name, attention, backbone):
    model = backbone(name, attention)
    alone = torch.cat([run(model, READINGS, [prompt]) for prompt in PROMPTS])
    for side in ("right", "left"):
        vectors = run(model, READINGS, side=side)
        assert (vectors - alone).abs().max() <= 1e-5 * alone.abs().max()


def test_pooled_span_is_that_of_the_prompt(backbone):
    vectors = run(backbone("tiny-gpt2"), [Reading(2)])
    for row, prompt in enumerate(PROMPTS):
        states = plain_hidden_states("tiny-gpt2", prompt.ids)[2][0]
        expected = sum(states[position] for position in range(prompt.start, prompt.end)) / (prompt.end - prompt.start)
        torch.testing.assert_close(vectors[row, 0], expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("attention", ["causal", "bidirectional"])
def test_mask_is_passed_only_where_it_is_needed(attention, backbone):
    capture = Capture(backbone("tiny-llama", attention), [Reading(1)])
    full = collate(PROMPTS[:1], 0)
    assert set(capture.model_inputs(full)) == {"input_ids"}
    padded = set(capture.model_inputs(collate(PROMPTS, 0)))
    assert padded == ({"input_ids"} if attention == "causal" else {"input_ids", "attention_mask"})


def test_left_padding_passes_mask_and_positions(backbone):
    inputs = Capture(backbone("tiny-llama"), [Reading(1)]).model_inputs(collate(PROMPTS, 0, side="left"))
    for row, prompt in enumerate(PROMPTS):
        width = len(prompt.ids)
        assert inputs["attention_mask"][row].tolist() == [0] * (22 - width) + [1] * width
        assert inputs["position_ids"][row, 22 - width :].tolist() == list(range(width))


def test_hooks_are_removed(backbone):
    model = backbone("tiny-llama")
    before = count_hooks(model.model)
    run(model, READINGS)
    assert count_hooks(model.model) == before


def test_hooks_are_removed_after_an_error(backbone):
    model = backbone("tiny-llama")
    before, expected = count_hooks(model.model), run(model, READINGS)
    with pytest.raises(IndexError):
        run(model, READINGS, [Prompt([10**6], 0, 1)])
    assert count_hooks(model.model) == before
    assert torch.equal(run(model, READINGS), expected)


def test_backbone_needs_no_gradients(backbone):
    model = backbone("tiny-llama")
    assert not any(parameter.requires_grad for parameter in model.model.parameters())
    assert not model.model.training


def test_lm_head_is_not_loaded(backbone):
    assert not any("lm_head" in name for name, _ in backbone("tiny-gpt2").model.named_modules())


def test_empty_readings_are_refused(backbone):
    with pytest.raises(InputError, match="at least one"):
        Capture(backbone("tiny-llama"), [])


def test_unknown_pooling_suggests_the_nearest(backbone):
    with pytest.raises(InputError, match="lasttoken"):
        Capture(backbone("tiny-llama"), [Reading(1, "last_token")])


@pytest.mark.parametrize("layer", [5, -6, 1.0, "1", None])
def test_missing_layer_lists_the_existing_ones(layer, backbone):
    with pytest.raises(InputError, match=r"layers 0 \(embeddings\) to 4"):
        Capture(backbone("tiny-llama"), [Reading(layer)])
