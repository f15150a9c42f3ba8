"""Two processes make the steps that one would make, and one of them writes."""

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
from decoder2vec.backbone.machine import pick_device
from decoder2vec.training import adapting, checkpoint, processes
from decoder2vec.training.api import train
from decoder2vec.training.contrastive_examples import ContrastiveExamples
from decoder2vec.training.distributed import gather, is_main_process, local_share
from decoder2vec.training.plan import Plan
from toys.training import small_recipe, toy_data, toy_examples

RECIPES = ("soft_prompt", "lora", "full")


class Killed(Exception):
    pass


def three_steps(name, out, on_progress=lambda _: None, every=1):
    """Train on 21 examples in batches of 7; returns losses, and what was trained after the last step."""
    seen = {}
    plain = adapting.fit

    def fit(module, *args, **options):
        seen["module"] = module
        return plain(module, *args, **options)

    def look(note):
        state = seen["module"].named_parameters()
        seen["state"] = {name: tensor.detach().clone() for name, tensor in state}
        on_progress(note)

    backbone = Backbone.load("tiny-llama", device="cpu", dtype="float32")
    data = toy_data(contrastive=ContrastiveExamples.of(toy_examples()[:21]))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(adapting, "fit", fit)
        patch.setattr(checkpoint, "_SAVE_EVERY", 0.0)
        plan = Plan("toy", recipe=small_recipe(name, epochs=1, batch=7, every=every))
        outcome = train(plan, data, backbone, out, on_progress=look)
    history = outcome.results["seeds"][0]["notes"]["training"]
    return {"history": history, "fingerprint": outcome.encoder.fingerprint, "state": seen["state"]}


def killed_and_resumed(out):
    """Before the first look at dev, which comes after the third step."""
    steps = []

    def kill(note):
        if note.step == 2:
            raise Killed

    try:
        three_steps("soft_prompt", out, kill, every=3)
    except Killed:
        return three_steps("soft_prompt", out, lambda note: steps.append(note.step), every=3) | {"steps": steps}


def main(folder):
    """What each process does."""
    torch.set_num_threads(1)
    found = {name: three_steps(name, folder / name) for name in RECIPES}
    found["resumed"] = killed_and_resumed(folder / "resumed")
    found["unbroken"] = three_steps("soft_prompt", folder / "unbroken", every=3)
    found["place"] = (processes.rank(), processes.count())
    torch.save(found, folder / f"{processes.rank()}.pt")
    if not is_main_process():
        assert not (folder / "soft_prompt.unfinished").exists()


def start_two(folder, cache):
    """Two processes, started as `accelerate launch` starts them; returns what each found."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    started = []
    for rank in "01":
        known = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        known |= {"ACCELERATE_USE_CPU": "true", "OMP_NUM_THREADS": "1", "D2V_CACHE": cache}
        known["PYTHONPATH"] = os.pathsep.join(sys.path)
        command = [sys.executable, __file__, str(folder)]
        started.append(subprocess.Popen(command, env=os.environ | known, stderr=subprocess.PIPE, text=True))
    try:
        said = [process.communicate(timeout=240)[1] for process in started]
    finally:
        for process in started:
            process.kill()
    assert [process.returncode for process in started] == [0, 0], "\n".join(said)
    return [torch.load(folder / f"{rank}.pt", weights_only=True) for rank in (0, 1)]


def test_two_processes_make_the_steps_that_one_would_make(own_cache, tmp_path):
    """One test for all of it: starting two processes takes as long as the rest of this file."""
    both = start_two(tmp_path, own_cache)
    assert [found["place"] for found in both] == [(0, 2), (1, 2)]
    for name in RECIPES:
        expected = three_steps(name, tmp_path / "alone" / name)
        for found in both:
            assert_same_steps(found[name], expected)
    for name in (*RECIPES, "resumed"):
        written = json.loads((tmp_path / name / "encoder.json").read_text())["fingerprint"]
        assert both[0][name]["fingerprint"] == both[1][name]["fingerprint"] == written
        assert not (tmp_path / f"{name}.unfinished").exists()
    for found in both:
        assert found["resumed"].pop("steps")[0] == 3, "both took up the checkpoint of the second step"
        assert found["resumed"]["history"] == found["unbroken"]["history"]
        assert found["resumed"]["fingerprint"] == found["unbroken"]["fingerprint"]


def assert_same_steps(found, expected):
    history, alone = found["history"], expected["history"]
    assert len(history["losses"]) == 3
    assert history["losses"] == pytest.approx(alone["losses"], rel=1e-5)
    assert history["scores"] == pytest.approx(alone["scores"], abs=1e-6)
    assert found["state"].keys() == expected["state"].keys()
    for name, tensor in expected["state"].items():
        torch.testing.assert_close(found["state"][name], tensor, rtol=1e-5, atol=1e-5)


# --- parts, without any other process -------------------------------------------------------------------------------


@pytest.mark.parametrize("length", [1, 2, 5, 8])
@pytest.mark.parametrize("many", [1, 2, 3])
def test_parts_cover_everything_and_are_equally_long(length, many, monkeypatch):
    monkeypatch.setattr(processes, "count", lambda: many)
    parts = []
    for rank in range(many):
        monkeypatch.setattr(processes, "rank", lambda rank=rank: rank)
        parts.append(local_share(length))
    assert len({len(part) for part in parts}) == 1
    assert [number for part in parts for number in part][:length] == list(range(length))


def test_a_single_process_gathers_nothing_and_waits_for_nobody(monkeypatch):
    rows = torch.ones(3, 2, requires_grad=True)
    assert gather(rows, 3) is rows
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    monkeypatch.setitem(sys.modules, "accelerate", None)
    processes.join()
    processes.barrier()
    assert (processes.rank(), processes.count()) == (0, 1)


@pytest.mark.parametrize(("rank", "device"), [(None, "cuda"), ("0", "cuda:0"), ("1", "cuda:1"), ("2", "cuda:0")])
def test_each_process_takes_a_gpu_of_its_own(rank, device, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    if rank is not None:
        monkeypatch.setenv("LOCAL_RANK", rank)
    assert pick_device() == torch.device(device)
    assert pick_device("cuda:1") == torch.device("cuda:1"), "unless one is asked for"


if __name__ == "__main__":
    main(Path(sys.argv[1]))


def test_accelerate_launch_trains_as_one_process_does(tmp_path):
    """The whole command, as a user would start it."""
    rows = [f"{example.anchor}\t{example.positive}" for example in toy_examples()]
    data = tmp_path / "pairs.tsv"
    data.write_text("\n".join(["anchor\tpositive", *rows]) + "\n", encoding="utf-8")
    command = [str(Path(sys.executable).with_name("d2v")), "train", "--recipe", "lora", "--backbone", "tiny-llama"]
    command += ["--data", str(data), "--set", "training.batch=8", "--device", "cpu"]
    launch = [sys.executable, "-m", "accelerate.commands.launch", "--cpu", "--num_processes", "2"]
    launch += ["--num_machines", "1", "--mixed_precision", "no", "--dynamo_backend", "no"]
    histories = []
    for name, start in (("one", []), ("two", launch)):
        out = tmp_path / name
        done = subprocess.run([*start, *command, "--out", str(out)], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr[-2000:]
        histories.append(json.loads((out / "results.json").read_text())["seeds"][0]["notes"]["training"])
    assert histories[1]["losses"] == pytest.approx(histories[0]["losses"], rel=1e-5)
    assert histories[1]["scores"] == pytest.approx(histories[0]["scores"], abs=1e-3)
