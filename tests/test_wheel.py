"""The wheel has all that the package needs, where nothing of the source is at hand."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "decoder2vec"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The wheel, built as `make wheel` does, from a copy: setuptools leaves files beside the source."""
    folder = tmp_path_factory.mktemp("wheel")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder)
    shutil.copytree(SOURCE, folder / "src" / "decoder2vec", ignore=shutil.ignore_patterns("__pycache__"))
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--disable-pip-version-check", "--no-deps"]
    subprocess.run([*command, "--wheel-dir", str(folder), str(folder)], check=True, capture_output=True, cwd=folder)
    return next(folder.glob("decoder2vec-*.whl"))


@pytest.fixture(scope="module")
def run(wheel, tmp_path_factory):
    """run(*arguments) -> what `python` with the installed wheel and without the source prints."""
    folder = tmp_path_factory.mktemp("elsewhere")
    zipfile.ZipFile(wheel).extractall(folder / "installed")
    environment = {**os.environ, "PYTHONPATH": str(folder / "installed")}

    def run(*arguments):
        command = [sys.executable, *map(str, arguments)]
        done = subprocess.run(command, capture_output=True, text=True, cwd=folder, env=environment, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert str(folder) in run("-c", "import decoder2vec; print(decoder2vec.__file__)")
    return run


def test_wheel_has_every_file_of_the_package(wheel):
    expected = {
        f"decoder2vec/{file.relative_to(SOURCE).as_posix()}"
        for file in SOURCE.rglob("*")
        if file.is_file() and "__pycache__" not in file.parts
    }
    assert expected <= set(zipfile.ZipFile(wheel).namelist())


def test_commands_run_from_the_wheel(run, tmp_path):
    assert run("-m", "decoder2vec", "--version").startswith("decoder2vec ")
    assert float(run("-m", "decoder2vec", "similarity", "a cat", "a dog", "--encoder", "tiny-llama")) <= 1
    documents = tmp_path / "documents.jsonl"
    documents.write_text('{"text": "Cats sleep."}\n{"text": "Ships sail."}\n')
    run("-m", "decoder2vec", "index", documents, "--encoder", "tiny-llama", "--out", tmp_path / "index")
    assert "Cats sleep." in run("-m", "decoder2vec", "search", tmp_path / "index", "sleeping cats")


def test_data_of_the_package_is_found_from_the_wheel(run):
    code = (
        "import decoder2vec as d2v\n"
        "from decoder2vec.encoder_folder import saved_encoder_folder\n"
        "from decoder2vec.matching.evaluation import built_in_folder\n"
        "assert (saved_encoder_folder('smollm2-135m-general') / 'adapter' / 'adapter.safetensors').is_file()\n"
        "assert (built_in_folder() / 'jobs.jsonl').is_file()\n"
        "from fastapi.testclient import TestClient\n"
        "app = d2v.create_app(d2v.ServerConfig(d2v.Encoder.from_pretrained('tiny-llama'), name='tiny'))\n"
        "with TestClient(app, 'http://localhost') as client:\n"
        "    print(client.get('/').status_code)\n"
    )
    assert run("-c", code).strip().endswith("200")
