"""The public functions of the report package."""

from __future__ import annotations

import subprocess
import sys

import pytest

import decoder2vec.report
from decoder2vec.errors import DataFileError, InputError
from decoder2vec.report import api
from toys.evaluations import make_evaluation, write_evaluation


def test_report_accepts_one_path_and_uses_its_folder(tmp_path):
    file = write_evaluation(tmp_path, *make_evaluation("a", tasks={"scifact": "retrieval"}))
    messages = []
    page = api.report(str(file), notify=messages.append)
    assert page == tmp_path / "report" / "index.html" and page.is_file()
    assert messages == ["1 encoder"]
    assert f"<code>d2v report {file}</code>" in page.read_text(encoding="utf-8")


@pytest.mark.parametrize("name", ["index.html", "report.md", "changes.json"])
def test_file_of_the_user_is_kept(name, tmp_path):
    file = [
        write_evaluation(tmp_path / label, *make_evaluation(label, tasks={"scifact": "retrieval"})) for label in "ab"
    ]
    page = tmp_path / "site" / name
    page.parent.mkdir()
    page.write_text("years of work on decoder2vec")
    with pytest.raises(InputError, match=f"site holds {name}, which is no report; choose another folder"):
        api.report(file, tmp_path / "site")
    assert [path.read_text() for path in page.parent.iterdir()] == ["years of work on decoder2vec"]
    page.unlink()
    for _ in range(2):  # a report may be replaced
        api.report(file, tmp_path / "site")
    page.write_text("years of work on decoder2vec")  # beside the other file of a report
    with pytest.raises(InputError, match=f"site holds {name}, which is no report"):
        api.report(file, tmp_path / "site")
    assert page.read_text() == "years of work on decoder2vec"


def test_package_is_callable_like_its_function(complete_run, tmp_path):
    complete_run("runs/step5")
    page = decoder2vec.report([tmp_path / "runs"], tmp_path / "out")
    assert page == tmp_path / "out" / "index.html" and "Training run step5" in page.read_text(encoding="utf-8")
    assert decoder2vec.report.api is api


def test_missing_path_is_refused(tmp_path):
    with pytest.raises(InputError, match="give at least one file or folder"):
        api.report([])
    with pytest.raises(DataFileError, match="absent is neither a file nor a folder"):
        api.report(tmp_path / "absent")


def test_importing_the_package_is_light():
    command = "import sys, decoder2vec.report.api; print({'torch', 'numpy', 'matplotlib'} & sys.modules.keys())"
    done = subprocess.run([sys.executable, "-c", command], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
