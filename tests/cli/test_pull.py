"""`d2v pull`."""

from __future__ import annotations

from decoder2vec.backbone.fingerprint import record_gguf_source
from toys.command import d2v


def test_pull_without_a_name_lists_builtin_models(tmp_path, monkeypatch):
    monkeypatch.setenv("D2V_CACHE", str(tmp_path))
    result = d2v("pull")
    lines = {line.split()[0]: line for line in result.stdout.splitlines() if line.strip()}
    assert result.exit_code == 0
    assert "Apache-2.0" in lines["smollm2-135m"] and lines["smollm2-135m"].split()[-1] == "no"
    assert "Gemma licence" in lines["gemma3-270m"]


def test_pull_prints_the_folder_of_an_installed_model(tmp_path, monkeypatch):
    monkeypatch.setenv("D2V_CACHE", str(tmp_path))
    folder = tmp_path / "models" / "smollm2-135m-b179c9523d0e"
    folder.mkdir(parents=True)
    (folder / "model.safetensors").write_bytes(b"weights")
    (tmp_path / "model.gguf").write_bytes(b"the file that was converted")
    record_gguf_source(folder, tmp_path / "model.gguf")
    result = d2v("pull", "smollm2-135m")
    assert (result.exit_code, result.stdout.strip()) == (0, str(folder))
    assert d2v("pull").stdout.count("yes") == 1
    assert d2v("pull", "smollm2-135m-general").stdout.strip() == str(folder)
