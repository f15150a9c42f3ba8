"""Pages in a real browser (Debian's package `chromium`): no error, no request, fast, sortable, dark."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from html import unescape

import numpy as np
import pytest
from PIL import Image

from decoder2vec.matching.match import match_sides
from decoder2vec.matching.sides import Side, SideDocument
from decoder2vec.report.api import match_report
from decoder2vec.report.comparison_page import write_comparison
from decoder2vec.report.result_files import find_results
from decoder2vec.report.run_page import write_run_page
from decoder2vec.report.runs import find_runs
from toys.evaluations import make_dimensions, make_evaluation, make_sweep, write_evaluation
from toys.html_page import HOSTILE_TEXT

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no browser here: apt-get install chromium")
FLAGS = "--headless --no-sandbox --disable-gpu --disable-dev-shm-usage --disable-background-networking --no-first-run"


class Constant:
    """An encoder with the same vector for every text."""

    def encode(self, texts, **_):
        return np.ones((len(texts), 2))


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """A comparison with every section, and an encoder with a hostile name."""
    folder = tmp_path_factory.mktemp("evaluations")
    tasks = {"stsb-test": "sts", "scifact": "retrieval"}
    for number, (name, quality) in enumerate((("small", 0.7), ("large", 1.4), (HOSTILE_TEXT, 1.0))):
        write_evaluation(folder, *make_evaluation(name, quality, number, tasks), f"e{number}")
    write_evaluation(folder, *make_evaluation("BM25", 1.0, 9, {"scifact": "retrieval"}))
    for name, document in (("s", make_sweep(layers=30)), ("i", make_dimensions(layers=30))):
        (folder / f"{name}.json").write_text(json.dumps(document), encoding="utf-8")
    return write_comparison(find_results([folder]), [], folder / "report")


@pytest.fixture
def browse(tmp_path):
    """browse(file, *flags) -> what the browser printed, and the lines of its console."""

    def run(file, *flags):
        profile = f"--user-data-dir={tmp_path / 'profile'}"
        command = [CHROMIUM, *FLAGS.split(), "--enable-logging=stderr", profile, *flags]
        done = subprocess.run([*command, file.as_uri()], capture_output=True, text=True, timeout=120, check=True)
        return done.stdout, [line for line in done.stderr.splitlines() if "CONSOLE" in line]

    return run


def with_script(page, script, folder):
    """The page with a script of the test, and without the policy that would block it."""
    source = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", page.read_text(encoding="utf-8"))
    changed = folder / "changed.html"
    changed.write_text(source.replace("</body>", f"<script>{script}</script></body>"), encoding="utf-8")
    return changed


def test_console_is_silent_and_nothing_is_requested(page, browse):
    dom, console = browse(page, "--dump-dom")
    assert console == []
    assert "Comparison of 4 encoders" in dom
    assert "<button" in dom  # the script has run


def test_console_of_the_run_page_is_silent(complete_run, browse, tmp_path):
    for name in ("a", "b"):
        complete_run(f"runs/{name}", name)
    dom, console = browse(write_run_page(find_runs(tmp_path / "runs"), tmp_path / "out"), "--dump-dom")
    assert console == [] and "2 training runs" in dom and "<button" in dom


def test_console_of_the_match_page_is_silent(browse, tmp_path):
    side = Side("toys", [SideDocument("a", "Bread."), SideDocument("b", "Fish.")])
    dom, console = browse(match_report(match_sides(side, side, Constant()), tmp_path / "match.html"), "--dump-dom")
    assert console == [] and "toys matched with toys" in dom and "<script" not in dom


def test_policy_blocks_requests_and_foreign_scripts(page, browse, tmp_path):
    changed = tmp_path / "requests.html"
    source = page.read_text(encoding="utf-8")
    requests = '<img src="http://127.0.0.1:9/x.png"><script>window.evil = 1</script>'
    changed.write_text(source.replace('<main id="main">', f'<main id="main">{requests}'), encoding="utf-8")
    messages = [line for line in browse(changed, "--dump-dom")[1] if "Content Security Policy" in line]
    assert any("x.png" in line for line in messages) and any("inline script" in line for line in messages)


def test_page_is_small_and_opens_in_two_seconds(page, browse, tmp_path):
    assert page.stat().st_size < 3e6
    script = (
        "addEventListener('load', () => setTimeout(() => {"
        "document.title = performance.getEntriesByType('navigation')[0].loadEventEnd}))"
    )
    changed = with_script(page, script, tmp_path)
    milliseconds = float(re.search(r"<title>([\d.]+)</title>", browse(changed, "--dump-dom")[0])[1])
    assert 0 < milliseconds < 2000


def test_click_sorts_leaderboard_with_gaps_last(page, browse, tmp_path):
    script = (
        "const table = document.querySelector('table'), order = () => [...table.tBodies[0].rows].map("
        "row => row.cells[1].firstChild.textContent); const orders = [order()];"
        "for (const column of [3, 3, 1, 0]) { table.tHead.rows[0].cells[column].querySelector('button').click();"
        "orders.push([table.tHead.rows[0].cells[column].ariaSort, ...order()]) }"
        "document.title = JSON.stringify(orders)"
    )
    dom, _ = browse(with_script(page, script, tmp_path), "--dump-dom")
    start, down, up, by_name, by_rank = json.loads(unescape(re.search(r"<title>(.*?)</title>", dom)[1]))
    assert start == ["large", HOSTILE_TEXT, "small", "BM25"]
    assert down == ["descending", "large", HOSTILE_TEXT, "small", "BM25"]  # by STS, which BM25 lacks
    assert up == ["ascending", "small", HOSTILE_TEXT, "large", "BM25"]
    assert by_name == ["ascending", HOSTILE_TEXT, "BM25", "large", "small"]
    assert by_rank == ["ascending", *start]


def test_click_sorts_a_table_whose_first_column_is_names(page, browse, tmp_path):
    script = (
        "const table = [...document.querySelectorAll('table.sortable')].find(t => t.tHead.rows[0].cells[0].textContent "
        "=== 'encoder'), button = table.tHead.rows[0].cells[0].querySelector('button'), orders = [];"
        "for (let click = 0; click < 2; click++) { button.click(); orders.push([...table.tBodies[0].rows].map("
        "row => row.cells[0].firstChild.textContent)) } document.title = JSON.stringify(orders)"
    )
    dom, _ = browse(with_script(page, script, tmp_path), "--dump-dom")
    up, down = json.loads(unescape(re.search(r"<title>(.*?)</title>", dom)[1]))
    assert up == [HOSTILE_TEXT, "BM25", "large", "small"] and down == up[::-1]


def test_dark_theme_is_dark(page, browse, tmp_path):
    screenshot = tmp_path / "dark.png"
    browse(page, f"--screenshot={screenshot}", "--blink-settings=preferredColorScheme=0", "--window-size=1000,1200")
    with Image.open(screenshot) as image:
        pixels = image.convert("L").resize((50, 60)).tobytes()
    assert 15 < sum(pixels) / len(pixels) < 80
