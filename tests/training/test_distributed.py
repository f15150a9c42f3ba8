"""Two processes take the same training steps as one, and one of them writes the files."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from decoder2vec.backbone.backbone import Backbone
from decoder2vec.backbone.machine import choose_device
from decoder2vec.training import checkpoint, distributed
from decoder2vec.training.api import train
from decoder2vec.training.contrastive_examples import ContrastiveExamples
from decoder2vec.training.distributed import gather_rows, is_main_process, local_share
from decoder2vec.training.recipes import recipe as recipe_module
from toys.training import small_recipe, toy_data, toy_examples

RECIPES = ("soft_prompt", "lora", "full")


class Killed(Exception):
    """Stands for a process that is killed."""


# --- what each process runs -----------------------------------------------------------------------------------------


def train_three_steps(name, out, on_progress=lambda _: None, every=1):
    """Train on 21 examples in batches of 7; returns the history, and the trained parameters after the last step."""
    watched = {}
    real_fit = recipe_module.fit

    def fit(module, *args, **options):
        watched["module"] = module
        return real_fit(module, *args, **options)

    def copy_state(progress):
        watched["state"] = {name: tensor.detach().clone() for name, tensor in watched["module"].named_parameters()}
        on_progress(progress)

    backbone = Backbone.load("tiny-llama", device="cpu", dtype="float32")
    data = toy_data(contrastive=ContrastiveExamples.of(toy_examples()[:21]))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(recipe_module, "fit", fit)
        patch.setattr(checkpoint, "_SAVE_EVERY", 0.0)
        recipe = small_recipe(name, epochs=1, batch=7, every=every)
        result = train(recipe, data, backbone, out, on_progress=copy_state)
    history = result.results["seeds"][0]["notes"]["training"]
    return {"history": history, "fingerprint": result.encoder.fingerprint, "state": watched["state"]}


def train_killed_and_resumed(out):
    """Kill a run before its first evaluation, which is after the third step, and resume it."""
    steps = []

    def kill(progress):
        if progress.step == 2:
            raise Killed

    try:
        train_three_steps("soft_prompt", out, kill, every=3)
    except Killed:
        resumed = train_three_steps("soft_prompt", out, lambda progress: steps.append(progress.step), every=3)
        return resumed | {"steps": steps}


def main(folder):
    torch.set_num_threads(1)
    results = {name: train_three_steps(name, folder / name) for name in RECIPES}
    results["resumed"] = train_killed_and_resumed(folder / "resumed")
    results["uninterrupted"] = train_three_steps("soft_prompt", folder / "uninterrupted", every=3)
    results["rank and size"] = (distributed.rank(), distributed.world_size())
    torch.save(results, folder / f"{distributed.rank()}.pt")
    if not is_main_process():
        assert not (folder / "soft_prompt.unfinished").exists()


def run_two_processes(folder, cache):
    """Start this file as a script in two processes, as `accelerate launch` does; returns the results of each."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    processes = []
    for rank in "01":
        environment = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": "2"}
        environment |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        environment |= {"ACCELERATE_USE_CPU": "true", "OMP_NUM_THREADS": "1", "D2V_CACHE": cache}
        environment["PYTHONPATH"] = os.pathsep.join(sys.path)
        command = [sys.executable, __file__, str(folder)]
        processes.append(subprocess.Popen(command, env=os.environ | environment, stderr=subprocess.PIPE, text=True))
    try:
        errors = [process.communicate(timeout=240)[1] for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert [process.returncode for process in processes] == [0, 0], "\n".join(errors)
    return [torch.load(folder / f"{rank}.pt", weights_only=True) for rank in (0, 1)]


# --- two processes --------------------------------------------------------------------------------------------------


def test_two_processes_take_the_same_steps_as_one(own_cache, tmp_path):
    """A single test, since starting two processes takes as long as the rest of this file."""
    both = run_two_processes(tmp_path, own_cache)
    assert [results["rank and size"] for results in both] == [(0, 2), (1, 2)]
    for name in RECIPES:
        expected = train_three_steps(name, tmp_path / "single" / name)
        for results in both:
            assert_same_steps(results[name], expected)
    for name in (*RECIPES, "resumed"):
        saved = json.loads((tmp_path / name / "encoder.json").read_text())["fingerprint"]
        assert both[0][name]["fingerprint"] == both[1][name]["fingerprint"] == saved
        assert not (tmp_path / f"{name}.unfinished").exists()
    for results in both:
        assert results["resumed"].pop("steps")[0] == 3, "both resume from the checkpoint of the second step"
        assert results["resumed"]["history"] == results["uninterrupted"]["history"]
        assert results["resumed"]["fingerprint"] == results["uninterrupted"]["fingerprint"]


def assert_same_steps(result, expected):
    history, expected_history = result["history"], expected["history"]
    assert len(history["losses"]) == 3
    assert history["losses"] == pytest.approx(expected_history["losses"], rel=1e-5)
    assert history["scores"] == pytest.approx(expected_history["scores"], abs=1e-6)
    assert result["state"].keys() == expected["state"].keys()
    for name, tensor in expected["state"].items():
        torch.testing.assert_close(result["state"][name], tensor, rtol=1e-5, atol=1e-5)


def test_accelerate_launch_trains_like_one_process(tmp_path):
    """The whole command, as a user would start it."""
    rows = [f"{example.anchor}\t{example.positive}" for example in toy_examples()]
    data = tmp_path / "pairs.tsv"
    data.write_text("\n".join(["anchor\tpositive", *rows]) + "\n", encoding="utf-8")
    command = [str(Path(sys.executable).with_name("d2v")), "train", "--recipe", "lora", "--backbone", "tiny-llama"]
    command += ["--data", str(data), "--set", "training.batch=8", "--device", "cpu"]
    launch = [sys.executable, "-m", "accelerate.commands.launch", "--cpu", "--num_processes", "2"]
    launch += ["--num_machines", "1", "--mixed_precision", "no", "--dynamo_backend", "no"]
    histories = []
    for name, prefix in (("one", []), ("two", launch)):
        out = tmp_path / name
        run = subprocess.run([*prefix, *command, "--out", str(out)], capture_output=True, text=True, check=False)
        assert run.returncode == 0, run.stderr[-2000:]
        histories.append(json.loads((out / "results.json").read_text())["seeds"][0]["notes"]["training"])
    assert histories[1]["losses"] == pytest.approx(histories[0]["losses"], rel=1e-5)
    assert histories[1]["scores"] == pytest.approx(histories[0]["scores"], abs=1e-3)


# --- without another process ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("length", [1, 2, 5, 8])
@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_shares_cover_all_items_and_have_equal_length(length, world_size, monkeypatch):
    monkeypatch.setattr(distributed, "world_size", lambda: world_size)
    shares = []
    for rank in range(world_size):
        monkeypatch.setattr(distributed, "rank", lambda rank=rank: rank)
        shares.append(local_share(length))
    assert len({len(share) for share in shares}) == 1
    assert [index for share in shares for index in share][:length] == list(range(length))


def test_single_process_gathers_nothing_and_does_not_wait(monkeypatch):
    rows = torch.ones(3, 2, requires_grad=True)
    assert gather_rows(rows, 3) is rows
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    monkeypatch.setitem(sys.modules, "accelerate", None)
    distributed.init_processes()
    distributed.barrier()
    assert (distributed.rank(), distributed.world_size()) == (0, 1)


@pytest.mark.parametrize(("rank", "device"), [(None, "cuda"), ("0", "cuda:0"), ("1", "cuda:1"), ("2", "cuda:0")])
def test_each_process_uses_a_gpu_of_its_own(rank, device, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    if rank is not None:
        monkeypatch.setenv("LOCAL_RANK", rank)
    assert choose_device() == torch.device(device)
    assert choose_device("cuda:1") == torch.device("cuda:1"), "unless one is requested"


if __name__ == "__main__":
    main(Path(sys.argv[1]))
