"""Fast scans of Mamba and Mamba-2 are those of transformers, token by token, in value and gradient."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from family_models import FAMILIES, make_model
from state_space import chunked_recurrence, chunked_scan, fast_mixers, relative_gap

RERANKERS = Path(__file__).parents[1] / "experiments" / "rerankers"


def scan_by_token(x, step, decay, write, read):
    state, outputs = torch.zeros(x.shape[0], x.shape[2], decay.shape[1]), []
    for t in range(x.shape[1]):
        state = torch.exp(step[:, t, :, None] * decay) * state + (step[:, t] * x[:, t])[..., None] * write[:, t, None]
        outputs.append((state * read[:, t, None]).sum(-1))
    return torch.stack(outputs, 1)


@pytest.mark.parametrize("length", [1, 2, 5, 9, 37])
def test_recurrence_in_chunks_is_the_recurrence(length):
    decay, inputs = torch.rand(2, length, 3), torch.randn(2, length, 3)
    state, expected = torch.zeros(2, 3), []
    for t in range(length):
        state = decay[:, t] * state + inputs[:, t]
        expected.append(state)
    torch.testing.assert_close(chunked_recurrence(decay, inputs), torch.stack(expected, 1))


def test_chunked_scan_and_its_gradients_are_those_of_a_loop():
    assert relative_gap(scan_by_token, "cpu") < 1e-5


def test_a_wrong_scan_is_detected():
    assert relative_gap(lambda x, *others: chunked_scan(x, *others) + 1e-2 * x, "cpu") > 1e-4


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs triton")
def test_triton_kernels_are_the_chunked_scan():
    """In the interpreter of Triton, which runs the kernels on a CPU and must be chosen before triton is imported."""
    code = "import state_space, triton_scan; print(state_space.relative_gap(triton_scan.triton_scan, 'cpu'))"
    path = os.pathsep.join([str(RERANKERS), *filter(None, sys.path)])
    environment = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": path}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) < 1e-5


def losses_and_gradients(model, ids, mask=None):
    model.zero_grad(set_to_none=True)
    result = model(input_ids=ids, attention_mask=mask, use_cache=False).logits
    chosen = result if mask is None else result[mask.bool()]
    torch.log_softmax(chosen, -1).square().mean().backward()
    return chosen.detach(), {name: weight.grad.clone() for name, weight in model.named_parameters()}


@pytest.mark.parametrize("family", ["mamba", "mamba2"])
@pytest.mark.parametrize("length", [3, 7, 150])
def test_mixers_equal_those_of_transformers(family, length, one_thread, gap):
    torch.manual_seed(0)
    model = make_model(family, "tiny", 300, end=0)
    with torch.no_grad():  # new models have hardly any input-dependent steps
        for name, weight in model.named_parameters():
            if weight.ndim > 1 and "A_log" not in name:
                weight.mul_(3)
    ids = torch.randint(0, 300, (2, length))
    values, gradients = losses_and_gradients(model, ids)
    with fast_mixers():
        ours, our_gradients = losses_and_gradients(model, ids)
    assert gap(ours, values) < 1e-4
    for name, gradient in gradients.items():
        assert gap(our_gradients[name], gradient) < 1e-4, name


@pytest.mark.parametrize("family", FAMILIES)
def test_padding_on_the_right_changes_nothing(family, one_thread, gap):
    torch.manual_seed(0)
    model = make_model(family, "tiny", 300, end=0).eval()
    ids = torch.randint(2, 300, (1, 9))
    padded = torch.cat([ids, torch.ones(1, 6, dtype=torch.long)], 1)
    mask = (torch.arange(15) < 9).long()[None]
    with torch.no_grad(), fast_mixers():
        alone = model(input_ids=ids, use_cache=False).logits
        for options in ({}, {"attention_mask": mask}):
            assert gap(model(input_ids=padded, use_cache=False, **options).logits[:, :9], alone) < 1e-5


@pytest.mark.parametrize("family", FAMILIES)
def test_half_precision_is_near(family, one_thread, gap):
    """Autocast, as in training on a GPU, and weights in bfloat16, as in inference."""
    torch.manual_seed(0)
    model = make_model(family, "tiny", 300, end=0)
    ids = torch.randint(2, 300, (2, 80))
    with fast_mixers():
        exact = model(input_ids=ids, use_cache=False).logits.detach()
        with torch.autocast("cpu", torch.bfloat16):
            result = model(input_ids=ids, labels=ids, use_cache=False)
        result.loss.backward()
        assert gap(result.logits.detach().float(), exact) < 0.05
        assert all(weight.grad.isfinite().all() for weight in model.parameters() if weight.grad is not None)
        with torch.inference_mode():
            assert gap(model.to(torch.bfloat16)(input_ids=ids, use_cache=False).logits.float(), exact) < 0.05
