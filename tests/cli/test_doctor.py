"""`d2v doctor`."""

from __future__ import annotations

import re
import shutil

from safetensors.torch import load_file, save_file

from decoder2vec.backbone.tiny import tiny_folder
from toys.command import d2v


def test_doctor_exits_with_0_if_all_checks_pass():
    result = d2v("doctor", "tiny-llama", "--device", "cpu")
    assert result.exit_code == 0
    assert "All 10 checks passed." in result.stdout
    assert "FAILED" not in result.stdout
    assert "llama, 4 layers x 32" in result.stderr


def test_doctor_exits_with_1_and_names_the_failed_check(tmp_path):
    broken = shutil.copytree(tiny_folder("tiny-llama"), tmp_path / "broken")
    weights = load_file(broken / "model.safetensors")
    weights[next(name for name in weights if name.endswith("layers.2.mlp.down_proj.weight"))][0, 0] = float("nan")
    save_file(weights, broken / "model.safetensors", metadata={"format": "pt"})
    result = d2v("doctor", broken, "--device", "cpu")
    assert result.exit_code == 1
    assert re.search(r"finite values\s+FAILED\s+\d+ values are not finite", result.stdout)
    assert re.search(r"\d of 10 checks failed: finite values", result.stderr)
