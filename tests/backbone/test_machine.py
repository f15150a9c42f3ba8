"""Device, dtype and tokens per batch by machine."""

from __future__ import annotations

from typing import get_args

import pytest
import torch

from decoder2vec.backbone.machine import batch_overhead, choose_device, choose_dtype, token_budget
from decoder2vec.cli.options import Dtype
from decoder2vec.errors import Decoder2VecError, InputError

CPU, CUDA, MPS = map(torch.device, ("cpu", "cuda", "mps"))


@pytest.fixture
def machine(monkeypatch):
    def simulate(cuda=False, mps=False, bf16=False):
        monkeypatch.setattr(torch.cuda, "is_available", lambda: cuda)
        monkeypatch.setattr(torch.backends.mps, "is_available", lambda: mps)
        monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation=True: bf16)

    return simulate


@pytest.mark.parametrize(
    ("cuda", "mps", "expected"), [(True, False, CUDA), (True, True, CUDA), (False, True, MPS), (False, False, CPU)]
)
def test_fastest_device_is_chosen(machine, cuda, mps, expected):
    machine(cuda=cuda, mps=mps)
    assert choose_device() == expected


def test_requested_device_is_chosen(machine, monkeypatch):
    machine(cuda=True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert choose_device("cpu") == CPU
    assert choose_device(CPU) == CPU
    assert choose_device("cuda:1") == torch.device("cuda", 1)


@pytest.mark.parametrize(("device", "bf16"), [(CPU, True), (MPS, True), (CUDA, False)])
def test_float32_is_chosen_without_native_bfloat16(machine, device, bf16):
    machine(bf16=bf16)
    assert choose_dtype(device) == torch.float32


def test_bfloat16_is_chosen_on_a_gpu_that_supports_it(machine):
    machine(cuda=True, bf16=True)
    assert choose_dtype(CUDA) == torch.bfloat16


@pytest.mark.parametrize("device", [CPU, CUDA])
@pytest.mark.parametrize("requested", ["float32", "bfloat16", "float16", "float64"])
def test_requested_dtype_is_chosen_by_name_or_object(machine, device, requested):
    machine(cuda=True, bf16=True)
    assert choose_dtype(device, requested) == getattr(torch, requested)
    assert choose_dtype(device, getattr(torch, requested)) == getattr(torch, requested)


@pytest.mark.parametrize("wrong", ["flaot32", "sum", ""])
def test_unknown_dtype_is_refused(wrong):
    with pytest.raises(Decoder2VecError):
        choose_dtype(CPU, wrong)


def test_error_of_an_unknown_dtype_lists_all_that_a_user_can_give():
    help_text = get_args(Dtype)[1].help
    with pytest.raises(Decoder2VecError) as error:
        choose_dtype(CPU, "?")
    names = str(error.value).partition("Known: ")[2].rstrip(".").split(", ")
    assert "4bit" in names and all(name in help_text for name in names)


@pytest.mark.parametrize(
    ("requested", "cuda", "n_gpus"), [("cuda", False, 0), ("cuda:0", False, 0), ("cuda:2", True, 2), ("mps", False, 0)]
)
def test_device_that_is_not_there_is_refused(machine, monkeypatch, requested, cuda, n_gpus):
    machine(cuda=cuda)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: n_gpus)
    with pytest.raises(InputError, match=f"finds no device '{requested}' here; leave out the device"):
        choose_device(requested)


@pytest.mark.parametrize("wrong", ["gpu", "cpuu", ""])
def test_unknown_device_is_refused(wrong):
    with pytest.raises(Decoder2VecError):
        choose_device(wrong)


GIB = 1 << 30


def test_token_budget_grows_with_the_memory_of_a_gpu(monkeypatch):
    free = {}
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _=None: (free["bytes"], 80 * GIB))
    budgets = []
    for free["bytes"] in (1 * GIB, 8 * GIB, 70 * GIB):
        budgets.append(token_budget(CUDA, 2_048))
        assert token_budget(CUDA, 4_096) <= budgets[-1]
        assert budgets[-1] * 2_048 * 100 <= max(free["bytes"], 4_096 * 2_048 * 100)
    assert budgets == sorted(budgets)
    assert budgets[0] > token_budget(CPU, 2_048) >= 512


def test_a_dtype_with_fast_products_gets_fewer_batches_on_a_cpu():
    assert batch_overhead(CPU, 576, "bfloat16") > batch_overhead(CPU, 576, "float32")
    assert batch_overhead(CUDA, 576, "bfloat16") == batch_overhead(CUDA, 576)


@pytest.mark.parametrize(("machine", "is_smaller"), [("x86_64", True), ("aarch64", False)])
def test_batches_in_int8_fit_into_the_cache_of_x86(monkeypatch, machine, is_smaller):
    monkeypatch.setattr("platform.machine", lambda: machine)
    assert (token_budget(CPU, 576, "int8") < token_budget(CPU, 576, "float32")) == is_smaller
