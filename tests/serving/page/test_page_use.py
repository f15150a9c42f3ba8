"""Use of the page: clicks and typing in a real browser, with a stub server."""

from __future__ import annotations

import json
import time
from itertools import pairwise

import pytest

from toys import page_stub

DROP = """
const [zone, files] = arguments;
const dataTransfer = new DataTransfer();
for (const [name, text] of files) dataTransfer.items.add(new File([text], name));
for (const type of ["dragover", "drop"]) {
  zone.dispatchEvent(new DragEvent(type, { dataTransfer, bubbles: true, cancelable: true }));
}
"""


def documents(user, side):
    return user.texts(f"#match-{side} .documents li span")


def test_page_shows_the_model(user):
    text = user.find("#models").text
    for fact in ("smollm2-135m", "26", "lasttoken", "means in one word", "a30d061769047833"):
        assert fact in text


def test_two_texts_are_compared_layer_by_layer(user, stub):
    user.find("#compare-a").send_keys("A cat sleeps.")
    user.find("#compare-b").send_keys("A kitten naps.")
    user.click("#compare button[type=submit]")
    user.wait_until(lambda: user.find_all("#compare .curve .dot"))
    assert stub.bodies("/compare") == [{"a": "A cat sleeps.", "b": "A kitten naps."}]
    assert user.find("#compare .figure").text == "0.871"
    assert len(user.find_all("#compare .curve .dot")) == 31
    user.click("#compare .as-table summary")
    rows = user.texts("#compare .as-table tbody tr")
    assert rows[:2] == ["0 0.341", "1 0.351"] and rows[26] == "26 (read) 0.871" and len(rows) == 31


def test_points_of_the_curve_match_their_values(user, stub):
    user.click("#compare [data-example]")
    user.wait_until(lambda: user.find_all("#compare .curve .dot"))
    dots = user.find_all(".curve .dot")
    points = [(float(dot.get_attribute("cx")), float(dot.get_attribute("cy"))) for dot in dots]
    values = [point["similarity"] for point in page_stub.COMPARE_RESPONSE["layers"]]
    steps = {round(b[0] - a[0], 3) for a, b in pairwise(points)}
    assert max(steps) - min(steps) < 0.01 and min(steps) > 0  # layers at equal distances, from left to right
    slope = (points[-1][1] - points[0][1]) / (values[-1] - values[0])
    assert slope < 0  # higher values are further up
    for (_, y), value in zip(points, values, strict=True):
        assert y == pytest.approx(points[0][1] + slope * (value - values[0]), abs=0.01)


def test_later_request_aborts_an_earlier_one(user, stub):
    from selenium.webdriver.common.keys import Keys

    stub.compare_delay = 0.6
    user.find("#compare-a").send_keys("one")
    user.find("#compare-b").send_keys("two", Keys.CONTROL, Keys.ENTER)
    user.wait_until(lambda: stub.bodies("/compare"))
    assert user.find("#compare").get_attribute("aria-busy") == "true"
    stub.compare_delay, stub.responses["/compare"] = 0.0, {"similarity": -0.25, "scale": page_stub.SCALE, "layers": []}
    user.click("#compare button[type=submit]")
    user.wait_until(lambda: user.texts("#compare .figure") == ["−0.250"])
    user.wait_until(lambda: stub.delayed_responses)
    time.sleep(0.1)
    assert user.texts("#compare .figure") == ["−0.250"]  # also after the first response was sent
    assert "has no layers to compare" in user.find("#compare .output").text
    assert user.find("#compare").get_attribute("aria-busy") is None


def test_search_highlights_the_best_sentence_of_each_hit(user, stub):
    user.click("#tab-search")
    user.find("#search-query").send_keys("when does the boat not sail?\n")
    user.wait_until(lambda: user.find_all(".hits li"))
    assert stub.bodies("/search") == [{"query": "when does the boat not sail?", "top": 10, "mode": "hybrid"}]
    assert user.texts(".hits h3") == ["notes/harbour.md", "handbook.pdf", "minutes/2024-11.txt"]
    expected = [
        hit["snippet"]["text"][start:end]
        for hit in page_stub.SEARCH_RESPONSE["hits"]
        for start, end in hit["snippet"]["highlights"]
    ]
    assert user.texts(".hits mark") == expected  # also after characters that JavaScript counts twice
    assert "3 documents" in user.find("#search .status").text


def test_search_sends_mode_top_and_filter(user, stub):
    user.click("#tab-search")
    user.find("#search-filter").send_keys("kind=note, year=2024, year = 2025")
    user.find("#search-query").send_keys("ferry")
    user.click("#search-top option:nth-of-type(3)")
    user.click("#search input[value=lexical]")
    user.click("#search button[type=submit]")
    user.wait_until(lambda: user.find_all(".hits li"))
    body = {"query": "ferry", "top": 20, "mode": "lexical", "filter": {"kind": ["note"], "year": ["2024", "2025"]}}
    assert stub.bodies("/search") == [body]
    user.click("#search input[value=dense]")  # a changed mode repeats the search
    user.wait_until(lambda: len(stub.bodies("/search")) == 2)
    assert stub.bodies("/search")[1] == {**body, "mode": "dense"}


def test_search_offers_a_reranker_and_shows_the_ranks_before(user, stub):
    assert not user.find("#search-rerank").is_displayed()  # this server has none
    stub.responses["/health"] = {"status": "ok", "model": "tiny", "reranker": "rr"}
    user.open()
    user.click("#tab-search")
    user.wait_until(lambda: user.find("#search-rerank").is_displayed())
    user.find("#search-query").send_keys("ferry\n")
    user.wait_until(lambda: user.find_all(".hits li"))
    assert user.texts(".hits .before") == []
    hits = [
        {**hit, "rank_before": rank} for hit, rank in zip(page_stub.SEARCH_RESPONSE["hits"], (7, 1, 2), strict=True)
    ]
    stub.responses["/search"] = {"hits": hits}
    user.click("#search-rerank")  # repeats the search
    user.wait_until(lambda: user.texts(".hits .before") == ["before: 7", "before: 1", "before: 2"])
    assert stub.bodies("/search")[1] == {"query": "ferry", "top": 10, "mode": "hybrid", "rerank": True}


def test_empty_search_result_is_reported(user, stub):
    stub.responses["/search"] = {"hits": []}
    user.click("#tab-search")
    user.find("#search-query").send_keys("unicorns\n")
    user.wait_until(lambda: "Nothing found for “unicorns”" in user.find("#search .status").text)


def test_pasted_job_and_dropped_resumes_are_matched(user, stub):
    user.click("#tab-match")
    user.find("#match-left-text").send_keys("Cloud engineer\nKeep our systems healthy.")
    lines = [{"id": 7, "title": "Analyst", "text": "Python."}, {"name": "Ruth", "skills": "Dough."}, {"id": "x"}]
    files = [
        ["ines.txt", "AWS and GCP."],
        ["more.jsonl", "\n".join(map(json.dumps, lines)) + "\n{not json"],
        ["photo.png", "x"],
        ["empty.md", " \n"],
    ]
    user.driver.execute_script(DROP, user.find("#match-right .drop"), files)
    user.wait_until(lambda: len(documents(user, "right")) == 3)
    assert documents(user, "right") == ["ines", "Analyst", "Ruth"]
    messages = user.find("#match-right .messages").text
    for sentence in (
        "3 resumes added.",
        "more.jsonl, line 3: no text",
        "more.jsonl, line 4: not JSON",
        "photo.png: this kind of file is not read",
        "empty.md: no text in it.",
    ):
        assert sentence in messages
    user.click("#match button[type=submit]")
    user.wait_until(lambda: user.find_all(".matches li.card"))
    assert stub.bodies("/match") == [
        {
            "left": [{"id": "pasted job 1", "text": "Cloud engineer\nKeep our systems healthy."}],
            "right": [
                {"id": "ines.txt", "text": "AWS and GCP."},
                {"id": "7", "text": "Analyst\nPython."},
                {"id": "more.jsonl, line 2", "text": "Skills\nDough."},
            ],
            "top": 5,
        }
    ]
    assert user.texts(".ranking > h3") == ["Cloud engineer"]
    assert user.texts(".matches h4") == ["ines", "Analyst", "Ruth"]
    best = user.find(".matches li.card").text
    for reason in (
        "0.52",
        "By meaning 0.78, terms in common 42 %; above 97 % of all pairs.",
        "Terraform",
        "degree",
        "AWS and GCP, both certified.",
        "experience",
    ):
        assert reason in best


def test_pdf_and_word_files_are_read_by_the_server(user, stub, tmp_path):
    user.click("#tab-match")
    chooser = user.find("#match-right input[type=file]")
    for name in ("ann.pdf", "broken.docx"):
        (tmp_path / name).write_bytes(b"AWS and GCP.")
        chooser.send_keys(str(tmp_path / name))
        user.wait_until(lambda name=name: name in [body["name"] for body in stub.bodies("/documents")])
    user.wait_until(lambda: "broken.docx: cannot be read." in user.find("#match-right .messages").text)
    assert documents(user, "right") == ["ann"]
    user.find("#match-left-text").send_keys("Cloud engineer")
    user.click("#match button[type=submit]")
    user.wait_until(lambda: user.find_all(".matches li.card"))
    assert stub.bodies("/match")[0]["right"] == [{"id": "ann.pdf", "text": "AWS and GCP."}]


@pytest.mark.parametrize(
    ("similarity", "words"),
    [
        (0.87, "As similar as paraphrases"),
        (0.6, "Nearly as similar"),
        (0.45, "A little more"),
        (0.1, "No more similar"),
    ],
)
def test_similarity_is_explained_by_the_scale_of_the_encoder(user, stub, similarity, words):
    stub.responses["/compare"] = {**stub.responses["/compare"], "similarity": similarity}
    user.click("#compare [data-example]")
    user.wait_until(lambda: user.texts("#compare .figure-name"))
    assert user.find("#compare .figure-name").text.startswith(words)
    assert user.texts("#compare .scale-key li") == ["unrelated sentences: 0.12 to 0.40", "paraphrases: 0.70 to 0.95"]


def test_value_of_a_head_is_marked_apart_from_the_curve(user, stub):
    user.click("#compare [data-example]")
    user.wait_until(lambda: user.find_all("#compare .curve .dot"))
    assert not user.find_all("#compare .own")  # the encoder's value is that of the layer it reads
    stub.responses["/compare"] = {**stub.responses["/compare"], "similarity": 0.154}
    user.click("#compare button[type=submit]")
    user.wait_until(lambda: user.find_all("#compare .own"))
    assert "the encoder: 0.154" in user.find("#compare .curve").text
    assert "computes 0.154 from them" in user.find("#compare .readout").text


def test_same_file_gets_a_number_and_is_removed_by_keyboard(user, tmp_path):
    from selenium.webdriver.common.keys import Keys

    file = tmp_path / "job.md"
    file.write_text("# Baker\nBread.", encoding="utf-8")
    (tmp_path / "cut.txt").write_bytes(b"Bread \x81")
    user.click("#tab-match")
    chooser = user.find("#match-left input[type=file]")
    chooser.send_keys(str(file))
    user.wait_until(lambda: documents(user, "left") == ["job"])
    chooser.send_keys(str(file))
    user.wait_until(lambda: documents(user, "left") == ["job", "job (2)"])
    chooser.send_keys(str(tmp_path / "cut.txt"))
    user.wait_until(lambda: "cut.txt: cannot be read." in user.find("#match-left .messages").text)
    user.find("#match-left .remove").send_keys(Keys.ENTER)
    assert documents(user, "left") == ["job (2)"]
    assert user.focused().get_attribute("aria-label") == "Remove job (2)"


def test_heat_map_shows_the_best_scores(user, stub):
    sweep = stub.responses["/sweep"]
    user.click("#tab-sweep")
    user.wait_until(lambda: user.find_all(".heat tbody td"))
    best = {}
    for row in sweep["rows"]:
        key = row["template"], f"{row['layer']}{'n' if row['normed'] else ''}"
        best[key] = max(best.get(key, -1e9), row["spearman"])
    layers = user.texts(".heat thead th")
    lines = user.driver.execute_script(
        "return [...document.querySelectorAll('.heat tbody tr')].map((row) => [...row.cells].map((cell) =>"
        " cell.tagName === 'TH' ? cell.textContent : cell.dataset.label))"
    )
    assert len(lines) == 4 and len(layers) == 32
    for template, *cells in lines:
        for layer, cell in zip(layers, cells, strict=True):
            assert f": {best[template, layer]:.2f}." in cell and cell.startswith(template)
    assert "prompteol_tight, layer 30" in user.find(".winner").text and "74.1 on stsb-test" in user.find(".winner").text


def test_heat_map_is_filtered_by_pooling(user, stub):
    user.click("#tab-sweep")
    user.wait_until(lambda: user.find_all(".heat tbody td"))
    for name, value in (("pooling", "mean"), ("attention", "bidirectional"), ("head", "none")):
        user.click(f"#sweep-{name} option[value={value}]")
    expected = {"pooling": "mean", "attention": "bidirectional", "head": "none", "template": "plain", "layer": 12}
    row = next(row for row in stub.responses["/sweep"]["rows"] if row | expected == row)
    cell = user.find(".heat td[data-label^='plain, layer 12:']").get_attribute("data-label")
    assert cell == f"plain, layer 12: {row['spearman']:.2f}. mean, bidirectional, no head"


def test_sweep_is_loaded_once_when_its_tab_is_opened(user, stub):
    assert stub.bodies("/sweep") == []
    for tab in ("sweep", "compare", "sweep"):
        user.click(f"#tab-{tab}")
        user.wait_until(lambda: not user.find_all("[aria-busy]"))
    assert stub.bodies("/sweep") == [None]
