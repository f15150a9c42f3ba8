"""Several processes take the same training steps as one, and one of them writes the files and prints."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from decoder2vec.backbone.backbone import Backbone
from decoder2vec.backbone.machine import choose_device
from decoder2vec.backbone.sharding import is_sharded, shard_weights, whole_tensors
from decoder2vec.errors import InputError, OtherProcessError, StorageError, UnsupportedError
from decoder2vec.training import checkpoint, distributed, loop
from decoder2vec.training.api import train
from decoder2vec.training.batch_encoder import FSDP_RECOMPUTES
from decoder2vec.training.contrastive_examples import ContrastiveExamples
from decoder2vec.training.data import TrainingData
from decoder2vec.training.distributed import gather_rows, local_share
from decoder2vec.training.loop import Schedule
from decoder2vec.training.objectives.crop import CropConfig
from decoder2vec.training.objectives.distill import DistillConfig
from decoder2vec.training.objectives.mntp import MNTPConfig
from decoder2vec.training.objectives.simcse import SimCSEConfig, SimCSEObjective
from decoder2vec.training.objectives.token_states import TokenStates
from decoder2vec.training.recipes import recipe as recipe_module
from decoder2vec.training.recipes.adapter import ReadSettings
from decoder2vec.training.recipes.freeze import FreezeRecipe
from decoder2vec.training.teachers import Teacher
from toys.texts import built, plain_data
from toys.training import attached, small_recipe, toy_data, toy_examples, toy_pairs

MEAN = ReadSettings(pooling="mean")
TEACHER = Teacher("random:16")


class Killed(Exception):
    """Stands for a process that is killed."""


def triplets():
    """21 examples: three batches of 7, which two processes cannot halve."""
    return toy_data(contrastive=ContrastiveExamples.of(toy_examples()[:21]))


def scored_pairs():
    return TrainingData(toy_pairs("train"), (toy_pairs(),), texts=tuple(toy_pairs().texts()), scale=(0, 1))


def steps_of(name, **changes):
    """A small recipe that takes three steps and evaluates after each."""
    return small_recipe(name, **{"epochs": 1, "batch": 7, "every": 1, **changes})


FREEZE_STEPS = Schedule(epochs=1, batch=4, rate=1e-2, evaluate_every=1)
CASES = {
    "soft_prompt": lambda: (steps_of("soft_prompt"), triplets()),
    "lora": lambda: (steps_of("lora"), triplets()),
    "full": lambda: (steps_of("full"), triplets()),
    "GradCache": lambda: (steps_of("lora", chunk=60), triplets()),
    "rerank": lambda: (steps_of("rerank"), triplets()),
    "distill": lambda: (steps_of("lora", batch=5, objective=DistillConfig(teachers=(TEACHER,))), plain_data()),
    "crop": lambda: (steps_of("lora", batch=5, objective=CropConfig(min_words=2), read=MEAN), plain_data()),
    "simcse": lambda: (steps_of("lora", batch=5, objective=SimCSEConfig(temperature=0.5), read=MEAN), plain_data()),
    "mntp": lambda: (steps_of("full", batch=5, objective=MNTPConfig(), attention="bidirectional"), plain_data()),
    "4bit": lambda: (steps_of("lora"), triplets()),
    "fsdp lora": lambda: (steps_of("lora", fsdp=True, read=ReadSettings(layer=3)), triplets()),
    "fsdp full": lambda: (steps_of("full", fsdp=True, chunk=60 if FSDP_RECOMPUTES else 0), triplets()),
    "fsdp distill": lambda: (
        steps_of("full", batch=5, fsdp=True, checkpoint_blocks=True, objective=DistillConfig(teachers=(TEACHER,))),
        plain_data(),
    ),
    "freeze": lambda: (
        FreezeRecipe(widths=(8,), dropout=0.1, head="sum", pretraining=FREEZE_STEPS, training=FREEZE_STEPS),
        scored_pairs(),
    ),
}

# --- what each process runs -----------------------------------------------------------------------------------------


def run_case(name, out, on_progress=lambda _: None, case=None):
    """Train; returns the histories, and the trained parameters and their gradients after the last step."""
    watched, histories, real_fit = {}, [], recipe_module.fit

    def fit(module, *args, **options):
        watched["module"] = module
        histories.append(real_fit(module, *args, **options))
        return histories[-1]

    def watch(progress):
        trained = {key: tensor for key, tensor in watched["module"].named_parameters() if tensor.requires_grad}
        gradients = {key: tensor.grad for key, tensor in trained.items() if tensor.grad is not None}
        watched["is_sharded"] = is_sharded(watched["module"])
        for part, tensors in (("weights", trained), ("gradients", gradients)):
            whole = whole_tensors(tensors, keep=True)
            watched[part] = {key: tensor.detach().clone() for key, tensor in whole.items()}
        on_progress(progress)

    recipe, data = case or CASES[name]()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(recipe_module, "fit", fit)
        patch.setattr(checkpoint, "_SAVE_EVERY", 0.0)
        if name == "simcse":  # dropout differs between processes; it is on only when training is prepared
            patch.setattr(SimCSEObjective, "loss", without_dropout(SimCSEObjective.loss))
        model, dtype = (llama_64(), "4bit") if name == "4bit" else ("tiny-llama", "float32")
        result = train(recipe, data, model, out, device="cpu", dtype=dtype, on_progress=watch)
    return {
        "losses": [loss for history in histories for loss in history.losses],
        "scores": [score for history in histories for score in history.scores],
        "weights": watched["weights"],
        "gradients": watched["gradients"],
        "is_sharded": watched["is_sharded"],
        "fingerprint": result.model.fingerprint,
    }


def llama_64():
    """A tiny Llama that can be quantised on every CPU: its rows are blocks of 64 values."""
    folder = Path(os.environ["D2V_CACHE"]) / "llama-64"
    if not folder.is_dir():
        sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_key_value_heads": 2}
        built("llama", folder, **sizes, initializer_range=0.1)
    return folder


def without_dropout(prepare):
    def loss(objective, context):
        prepared = prepare(objective, context)
        objective.step_context = lambda _: torch.autograd.set_detect_anomaly(False)
        return prepared

    return loss


def train_until_killed(out, kind):
    """Kill a run before its first evaluation, which is after the third step; its checkpoint stays."""

    def kill(progress):
        if progress.step == 1:
            raise Killed

    with pytest.raises((Killed, OtherProcessError)):
        run_case("crop", out, kill, case=RESUMED[kind]())


def resume(out, kind):
    """Finish a killed run; the result also has the steps that were trained."""
    steps = []
    result = run_case("crop", out, lambda progress: steps.append(progress.step), case=RESUMED[kind]())
    return result | {"steps": steps}


def crops(name, **changes):
    """Crops are drawn in every step, so the random numbers must be those of an uninterrupted run, too."""
    settings = {"batch": 5, "every": 0, "epochs": 2, "objective": CropConfig(min_words=2), "read": MEAN}
    return steps_of(name, **settings, **changes), plain_data()


RESUMED = {"lora": lambda: crops("lora"), "fsdp": lambda: crops("full", fsdp=True)}


def vectors_with_dropout():
    """Vectors of one text in every row of two batches, while LoRA drops half of its inputs."""
    recipe = small_recipe("lora", dropout=0.5)
    context, module, task = attached(recipe, triplets(), Backbone.load("tiny-llama", device="cpu", dtype="float32"))
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.normal_(generator=torch.Generator().manual_seed(1))
    module.train()
    with task.step_context():
        return [context.encode([3] * 4).detach() for _ in range(2)], torch.get_rng_state()


def main(folder):
    torch.set_num_threads(1)
    results = {name: run_case(name, folder / name) for name in CASES}
    for kind in RESUMED:
        for after in ("one", "two"):
            train_until_killed(folder / f"two then {after} {kind}", kind)
        for before in ("one", "two"):
            results[f"{before} {kind}"] = resume(folder / f"{before} then two {kind}", kind)
    results["dropout"] = vectors_with_dropout()
    results["rank and size"] = (distributed.rank(), distributed.world_size())
    torch.save(results, folder / f"{distributed.rank()}.pt")


# --- two processes --------------------------------------------------------------------------------------------------


TORCHRUN = ("torch.distributed.run", "--standalone", "--nproc-per-node", "2")


def launch(launcher, command, cache):
    """Run a command in two processes on this machine; both end when one fails."""
    environment = {"OMP_NUM_THREADS": "1", "D2V_CACHE": cache, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-m", *launcher, *map(str, command)]
    with subprocess.Popen(
        command, env=os.environ | environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            stdout, stderr = process.communicate(timeout=600)
        except subprocess.TimeoutExpired:
            process.terminate()  # not killed, so that the launcher ends its processes
            stdout, stderr = process.communicate()
    return process.returncode, stdout, stderr


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("processes")


@pytest.fixture(scope="module")
def two_processes(own_cache, folder):
    """The results of both processes; started once, since that takes as long as the rest of this file."""
    llama_64()
    for kind in RESUMED:
        train_until_killed(folder / f"one then two {kind}", kind)
    code, _, errors = launch(TORCHRUN, [__file__, folder], own_cache)
    assert code == 0, errors[-4000:]
    return [torch.load(folder / f"{rank}.pt", weights_only=False) for rank in (0, 1)]


def test_torchrun_starts_two_processes(two_processes):
    assert [results["rank and size"] for results in two_processes] == [(0, 2), (1, 2)]


@pytest.mark.parametrize("name", CASES)
def test_two_processes_take_the_same_steps_as_one(name, two_processes, folder, tmp_path):
    expected = run_case(name, tmp_path / name)
    for results in two_processes:
        assert_same_steps(results[name], expected)
        assert results[name]["is_sharded"] == (name.startswith("fsdp") and name != "fsdp lora")
    kind = "reranker" if name == "rerank" else "encoder"
    saved = json.loads((folder / name / f"{kind}.json").read_text())["fingerprint"]
    assert {results[name]["fingerprint"] for results in two_processes} == {saved}
    assert not (folder / f"{name}.unfinished").exists()


def assert_same_steps(result, expected):
    assert len(expected["losses"]) >= 2
    assert result["losses"] == pytest.approx(expected["losses"], rel=1e-5)
    assert result["scores"] == pytest.approx(expected["scores"], rel=1e-5, abs=1e-6)
    for part in ("gradients", "weights"):
        assert result[part].keys() == expected[part].keys()
    for name, gradient in expected["gradients"].items():
        torch.testing.assert_close(result["gradients"][name], gradient, rtol=1e-4, atol=1e-5)
    for name, weight in expected["weights"].items():  # by norm: Adam amplifies the rounding of the smallest gradients
        assert (result["weights"][name] - weight).norm() <= 1e-4 * weight.norm()


@pytest.mark.parametrize("kind", RESUMED)
def test_runs_resume_with_another_number_of_processes(kind, two_processes, folder, tmp_path):
    expected = run_case("crop", tmp_path / "uninterrupted", case=RESUMED[kind]())
    resumed = [results[f"{before} {kind}"] for results in two_processes for before in ("one", "two")]
    for result in (*resumed, resume(folder / f"two then one {kind}", kind)):
        assert result["steps"][0] == 2, "a run resumes from the checkpoint of the first step"
        assert_same_steps(result, expected)


def test_processes_drop_different_inputs(two_processes):
    """Each process encodes two of the four rows; all have the same text."""
    (first, state), (second, other_state) = (results["dropout"] for results in two_processes)
    for batch, gathered in zip(first, second, strict=True):
        torch.testing.assert_close(batch, gathered)
        assert torch.cdist(batch, batch)[~torch.eye(4, dtype=bool)].min() > 0.01
    assert (first[0] - first[1]).abs().amax(dim=1).min() > 0.01, "and others in every step"
    assert torch.equal(state, other_state), "the random numbers they share stay the same"


# --- the whole command ----------------------------------------------------------------------------------------------

ACCELERATE = ("accelerate.commands.launch", "--multi_gpu", "--num_processes", "2", "--num_machines", "1")
ACCELERATE += ("--mixed_precision", "no", "--dynamo_backend", "no", "--main_process_port")

STEPS = "training.steps=6"


def command(data, out):
    train_options = ["--recipe", "lora", "--backbone", "tiny-llama", "--data", data, "--out", out]
    return ["-m", "decoder2vec", "train", *train_options, "--set", STEPS, "--device", "cpu"]


@pytest.fixture
def pairs_file(tmp_path):
    rows = [f"{example.anchor}\t{example.positive}" for example in toy_examples()]
    file = tmp_path / "pairs.tsv"
    file.write_text("\n".join(["anchor\tpositive", *rows]) + "\n", encoding="utf-8")
    return file


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


def test_accelerate_launch_trains_like_one_process(own_cache, pairs_file, tmp_path):
    """As a user would start it. With --cpu accelerate starts one process, unless MPI is there to start more."""
    # accelerate 1.1 chooses no port by itself
    code, output, errors = launch((*ACCELERATE, free_port()), command(pairs_file, tmp_path / "two"), own_cache)
    assert code == 0, errors[-4000:]
    train("lora", pairs_file, "tiny-llama", tmp_path / "one", settings=[STEPS], device="cpu")
    results = [json.loads((tmp_path / name / "results.json").read_text()) for name in ("one", "two")]
    one, two = (found["seeds"][0]["notes"]["training"] for found in results)
    assert two["losses"] == pytest.approx(one["losses"], rel=1e-5)
    assert two["scores"] == pytest.approx(one["scores"], abs=1e-3)
    assert results[1]["processes"] == 2 and "processes" not in results[0]
    assert output.count("lora on tiny-llama") == 1 and errors.count("wrote the encoder") == 1, "one process prints"


FAILING = """
import os
from decoder2vec.cli import main
from decoder2vec.errors import DivergedError
from decoder2vec.training.objectives.contrastive import ContrastiveConfig

def fail(*args, **options):
    raise DivergedError("This process fails.")

if os.environ["RANK"] == "1":
    ContrastiveConfig.info_nce = fail
main()
"""


def test_error_of_one_process_ends_all_with_one_sentence(own_cache, pairs_file, tmp_path, quick_python):
    """The main process waits for the other one, and prints nothing about it; without a launcher that would end it."""
    group = {**os.environ, "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port()}
    processes = [
        quick_python.start(
            FAILING, *command(pairs_file, tmp_path / "out")[2:], env={**group, "RANK": rank, "LOCAL_RANK": rank}
        )
        for rank in "01"
    ]
    outputs, errors = map("".join, zip(*(process.communicate() for process in processes), strict=True))
    assert [process.returncode for process in processes] == [1, 1]
    assert errors.count("error:") == errors.count("error: This process fails.") == 1
    own_output = [line for line in outputs.splitlines() if line.strip() and not line.startswith("[Gloo]")]  # torch 2.9
    assert "Traceback" not in errors and not own_output
    assert not (tmp_path / "out").exists()


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
    distributed.init_processes(torch.device("cpu"))
    distributed.barrier()
    assert (distributed.rank(), distributed.world_size()) == (0, 1)


def test_single_process_of_accelerate_is_reported(monkeypatch):
    """As `accelerate launch --cpu --num_processes 2` starts it."""
    messages = []
    for name in ("WORLD_SIZE", "RANK"):
        monkeypatch.delenv(name, raising=False)
    for name, value in (("MASTER_ADDR", "127.0.0.1"), ("ACCELERATE_USE_CPU", "True")):
        distributed.init_processes(torch.device("cpu"), messages.append)
        assert not messages
        monkeypatch.setenv(name, value)
    distributed.init_processes(torch.device("cpu"), messages.append)
    assert len(messages) == 1 and "torchrun starts several" in messages[0]


def test_checkpoint_that_not_all_processes_can_read_is_refused(monkeypatch, tmp_path):
    monkeypatch.setattr(loop, "broadcast", lambda compute: compute() + 3)
    with pytest.raises(StorageError, match=r"Not all processes can read the checkpoint .*; give an --out on a disk"):
        run_case("lora", tmp_path / "lora")


# --- FSDP -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("soft_prompt", {}, "for lora and full, not for soft_prompt"),
        ("kv_prefix", {}, "for lora and full, not for kv_prefix"),
        ("lora", {"compile_blocks": True}, "set one of fsdp and compile_blocks"),
        ("full", {"keep": 0.5}, "set one of the two, and merge later"),
    ],
)
def test_settings_that_exclude_fsdp_are_refused(name, settings, message):
    with pytest.raises(InputError, match=message):
        small_recipe(name, fsdp=True, **settings)


def test_models_that_cannot_be_sharded_are_refused(backbone):
    model = backbone("tiny-llama")
    with pytest.raises(UnsupportedError, match="does not shard 4-bit weights"):
        shard_weights(replace(model, four_bit=True), torch.device("cpu"), torch.float32)
    with pytest.raises(UnsupportedError, match="GPUs with CUDA, or CPUs, not mps"):
        shard_weights(model, torch.device("mps"), torch.float32)
    with pytest.raises(UnsupportedError, match="predict tokens do not train with FSDP"):
        TokenStates(SimpleNamespace(is_sharded=True))


@pytest.mark.parametrize(("rank", "device"), [(None, "cuda"), ("0", "cuda:0"), ("1", "cuda:1"), ("2", "cuda:0")])
def test_each_process_uses_a_gpu_of_its_own(rank, device, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    if rank is not None:
        monkeypatch.setenv("LOCAL_RANK", rank)
    assert choose_device() == torch.device(device)
    assert choose_device("cuda") == torch.device(device)
    assert choose_device("cuda:1") == torch.device("cuda:1"), "unless one is requested"


if __name__ == "__main__":
    main(Path(sys.argv[1]))
