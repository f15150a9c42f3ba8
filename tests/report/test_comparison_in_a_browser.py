"""The page in a real browser (Debian's package `chromium`): no error, no request, quick to open, sortable."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from html import unescape

import pytest
from PIL import Image

from decoder2vec.report.comparison_page import write_comparison
from decoder2vec.report.result_files import gather
from toys.evaluations import make_dimensions, make_evaluation, make_sweep, write_evaluation
from toys.html_page import EVIL

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no browser here: apt-get install chromium")
FLAGS = "--headless --no-sandbox --disable-gpu --disable-dev-shm-usage --disable-background-networking --no-first-run"


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """A page with everything on it, and an evil name."""
    place = tmp_path_factory.mktemp("evaluations")
    tasks = {"stsb-test": "sts", "scifact": "retrieval"}
    for number, (name, quality) in enumerate((("small", 0.7), ("large", 1.4), (EVIL, 1.0))):
        write_evaluation(place, *make_evaluation(name, quality, number, tasks), f"e{number}")
    write_evaluation(place, *make_evaluation("BM25", 1.0, 9, {"scifact": "retrieval"}))
    for name, document in (("s", make_sweep(layers=30)), ("i", make_dimensions(layers=30))):
        (place / f"{name}.json").write_text(json.dumps(document), encoding="utf-8")
    return write_comparison(gather([place]), [], place / "report")


@pytest.fixture
def browse(tmp_path):
    """browse(file, *flags) -> what the browser printed: the page as it stands, and what its console said."""

    def run(file, *flags):
        own = f"--user-data-dir={tmp_path / 'profile'}"
        command = [CHROMIUM, *FLAGS.split(), "--enable-logging=stderr", own, *flags]
        done = subprocess.run([*command, file.as_uri()], capture_output=True, text=True, timeout=120, check=True)
        return done.stdout, [line for line in done.stderr.splitlines() if "CONSOLE" in line]

    return run


def with_script(page, script, place):
    """The page with a script of ours in it, which its own rules would not allow."""
    source = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", page.read_text(encoding="utf-8"))
    changed = place / "changed.html"
    changed.write_text(source.replace("</body>", f"<script>{script}</script></body>"), encoding="utf-8")
    return changed


def test_the_console_stays_silent_and_nothing_is_asked_for(page, browse):
    dom, console = browse(page, "--dump-dom")
    assert console == []
    assert "Comparison of 4 encoders" in dom
    assert "<button" in dom  # the script has run


def test_a_page_that_asks_for_something_outside_would_be_noticed(page, browse, tmp_path):
    changed = tmp_path / "asks.html"
    source = page.read_text(encoding="utf-8")
    asks = '<main><img src="http://127.0.0.1:9/x.png"><script>window.evil = 1</script>'
    changed.write_text(source.replace("<main>", asks), encoding="utf-8")
    said = [line for line in browse(changed, "--dump-dom")[1] if "Content Security Policy" in line]
    assert any("x.png" in line for line in said) and any("inline script" in line for line in said)


def test_it_is_small_and_opens_in_less_than_two_seconds(page, browse, tmp_path):
    assert page.stat().st_size < 3e6
    script = (
        "addEventListener('load', () => setTimeout(() => {"
        "document.title = performance.getEntriesByType('navigation')[0].loadEventEnd}))"
    )
    changed = with_script(page, script, tmp_path)
    took = float(re.search(r"<title>([\d.]+)</title>", browse(changed, "--dump-dom")[0])[1])
    assert 0 < took < 2000


def test_the_leaderboard_is_sorted_by_a_click_and_gaps_stay_below(page, browse, tmp_path):
    script = (
        "const table = document.querySelector('table'), order = () => [...table.tBodies[0].rows].map("
        "row => row.cells[1].firstChild.textContent); const said = [order()];"
        "for (const column of [3, 3, 1, 0]) { table.tHead.rows[0].cells[column].querySelector('button').click();"
        "said.push([table.tHead.rows[0].cells[column].ariaSort, ...order()]) }"
        "document.title = JSON.stringify(said)"
    )
    dom, _ = browse(with_script(page, script, tmp_path), "--dump-dom")
    start, down, up, names, places = json.loads(unescape(re.search(r"<title>(.*?)</title>", dom)[1]))
    assert start == ["large", EVIL, "small", "BM25"]
    assert down == ["descending", "large", EVIL, "small", "BM25"]  # by STS, which BM25 has none of
    assert up == ["ascending", "small", EVIL, "large", "BM25"]
    assert names == ["ascending", EVIL, "BM25", "large", "small"]
    assert places == ["ascending", *start]


def test_it_is_dark_where_people_want_it_dark(page, browse, tmp_path):
    picture = tmp_path / "dark.png"
    browse(page, f"--screenshot={picture}", "--blink-settings=preferredColorScheme=0", "--window-size=1000,1200")
    with Image.open(picture) as image:
        pixels = image.convert("L").resize((50, 60)).tobytes()
    assert 15 < sum(pixels) / len(pixels) < 80
