"""`d2v report` on encoders trained in the test and on evaluations."""

from __future__ import annotations

import json
import re
import shutil

from decoder2vec.encoder import Encoder
from toys.command import d2v
from toys.evaluations import make_evaluation, write_evaluation


def test_report_on_an_encoder_is_written_into_its_folder(trained, tmp_path):
    folder = shutil.copytree(trained("step5", pretrain="autoencoder", head="mlp", loss="mse"), tmp_path / "mine")
    result = d2v("report", folder)
    assert result.exit_code == 0
    assert result.stdout.strip() == str(folder / "report" / "index.html")
    assert "1 run: step5" in result.stderr
    names = {file.stem for file in (folder / "report").glob("*.png")}
    of_run = {f"step5-{name}" for name in ("layers", "autoencoders", "worth", "training", "errors")}
    assert names == {"ladder", *of_run}
    d2v("report", folder, "--out", tmp_path / "asked", "--paper-examples")
    assert {file.stem for file in (tmp_path / "asked").glob("*.png")} == {"ladder", "examples", *of_run}
    pages = [(page / "index.html").read_text(encoding="utf-8") for page in (folder / "report", tmp_path / "asked")]
    assert ["Supreme Court" in page for page in pages] == [False, True], "a pair of the paper"
    page = (folder / "report" / "index.html").read_text(encoding="utf-8")
    results = json.loads((folder / "results.json").read_text(encoding="utf-8"))
    assert "Not shown" not in page
    assert f"{results['mean']['dev']['dev']['spearman']:.2f} ± " in page
    assert Encoder.from_pretrained(folder, device="cpu").dim  # the report in its folder does not break the encoder


def test_report_on_encoder_folders_and_result_files(trained, tmp_path):
    runs, results = tmp_path / "runs", tmp_path / "results"
    results.mkdir()
    for name, settings in (("step0", {"widths": (0,), "loss": "none", "head": "each"}), ("sum", {"head": "sum"})):
        shutil.copytree(trained(name, **settings), runs / "freeze" / name)
        shutil.copy(trained(name, **settings) / "results.json", results / f"{name}.json")
    assert "2 runs: step0, sum" in d2v("report", runs, "--out", tmp_path / "one").stderr
    page = (tmp_path / "one" / "index.html").read_text(encoding="utf-8")
    assert "this encoder has only one reading" in page and "nothing was trained in this run" in page
    assert not (runs / "report").exists()

    assert "2 runs: step0, sum" in d2v("report", results, "--out", tmp_path / "two").stderr
    assert {file.stem for file in (tmp_path / "two").glob("*.png")} == {"ladder", "sum-training"}


def test_report_without_results_names_what_to_give(mistake, tmp_path):
    (tmp_path / "empty").mkdir()
    for name in ("absent", "empty"):
        assert re.match(rf"error: .*{name}.*give an encoder made by `d2v train`", mistake("report", tmp_path / name))
    assert list((tmp_path / "empty").iterdir()) == []


def test_report_names_a_damaged_file(mistake, trained, tmp_path):
    folder = shutil.copytree(trained("sum", head="sum"), tmp_path / "mine")
    (folder / "run.json").write_text('{"layers": {', encoding="utf-8")
    assert re.match(r"error: .*run\.json holds no JSON", mistake("report", folder))


def test_report_into_an_unwritable_folder_is_an_error(mistake, trained, tmp_path):
    (tmp_path / "file").write_text("x", encoding="utf-8")
    message = mistake("report", trained("sum", head="sum"), "--out", tmp_path / "file" / "below")
    assert re.match(r"error: Cannot write to .*below: Not a directory; choose another folder: --out", message)


def test_report_on_evaluations_compares_them(trained, tmp_path):
    for name, quality in (("a", 0.7), ("b", 1.3)):
        write_evaluation(tmp_path / "evals", *make_evaluation(name, quality, tasks={"scifact": "retrieval"}))
    folder = shutil.copytree(trained("sum", head="sum"), tmp_path / "mine")
    result = d2v("report", tmp_path / "evals", folder)
    assert result.exit_code == 0
    out = tmp_path / "evals" / "report"
    assert result.stdout.strip() == str(out / "index.html")
    assert "2 encoders, 1 training run" in result.stderr
    assert "b is better than a" in (out / "report.md").read_text(encoding="utf-8")
    page = (out / "index.html").read_text(encoding="utf-8")
    assert "b is better than a" in page and 'id="training"' in page


def test_report_on_a_file_lists_damaged_files_next_to_it(mistake, tmp_path):
    file = write_evaluation(tmp_path / "evals", *make_evaluation("a", tasks={"scifact": "retrieval"}))
    assert d2v("report", file).stdout.strip() == str(tmp_path / "evals" / "report" / "index.html")
    (tmp_path / "evals" / "bad.json").write_text("{", encoding="utf-8")
    assert "left out: " in d2v("report", tmp_path / "evals").stderr
    assert re.match(r"error: .*bad\.json holds no JSON", mistake("report", file, tmp_path / "evals" / "bad.json"))
    assert re.match(r"error: .*absent is neither a file nor a folder", mistake("report", file, tmp_path / "absent"))
