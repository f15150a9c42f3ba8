"""The page as somebody uses it: real clicks and typing in a real browser, against a made-up server."""

from __future__ import annotations

import json
import time
from itertools import pairwise

import pytest

from toys import page_stub

DROP = """
const [place, files] = arguments;
const carried = new DataTransfer();
for (const [name, text] of files) carried.items.add(new File([text], name));
for (const kind of ["dragover", "drop"]) {
  place.dispatchEvent(new DragEvent(kind, { dataTransfer: carried, bubbles: true, cancelable: true }));
}
"""


def documents(person, side):
    return person.texts(f"#match-{side} .documents li span")


def test_the_page_says_which_model_answers(person):
    said = person.one("#models").text
    for fact in ("smollm2-135m", "26", "lasttoken", "means in one word", "a30d061769047833"):
        assert fact in said


def test_two_texts_are_compared_layer_by_layer(person, stub):
    person.one("#compare-a").send_keys("A cat sleeps.")
    person.one("#compare-b").send_keys("A kitten naps.")
    person.click("#compare button[type=submit]")
    person.until(lambda: person.all("#compare .curve .dot"))
    assert stub.bodies("/compare") == [{"a": "A cat sleeps.", "b": "A kitten naps."}]
    assert person.one("#compare .figure").text == "0.871"
    assert len(person.all("#compare .curve .dot")) == 31
    person.click("#compare .as-table summary")
    rows = person.texts("#compare .as-table tbody tr")
    assert rows[:2] == ["0 0.341", "1 0.351"] and rows[26] == "26 (read) 0.871" and len(rows) == 31


def test_the_points_of_the_curve_lie_where_their_values_say(person, stub):
    person.click("#compare [data-example]")
    person.until(lambda: person.all("#compare .curve .dot"))
    places = [(float(dot.get_attribute("cx")), float(dot.get_attribute("cy"))) for dot in person.all(".curve .dot")]
    values = [point["similarity"] for point in page_stub.COMPARED["layers"]]
    steps = {round(b[0] - a[0], 3) for a, b in pairwise(places)}
    assert max(steps) - min(steps) < 0.01 and min(steps) > 0  # the layers at equal distances, from left to right
    slope = (places[-1][1] - places[0][1]) / (values[-1] - values[0])
    assert slope < 0  # up is more
    for (_, y), value in zip(places, values, strict=True):
        assert y == pytest.approx(places[0][1] + slope * (value - values[0]), abs=0.01)


def test_control_and_enter_compares_and_a_later_question_ends_an_earlier_one(person, stub):
    from selenium.webdriver.common.keys import Keys

    stub.slow = 0.6
    person.one("#compare-a").send_keys("one")
    person.one("#compare-b").send_keys("two", Keys.CONTROL, Keys.ENTER)
    person.until(lambda: stub.bodies("/compare"))
    assert person.one("#compare").get_attribute("aria-busy") == "true"
    stub.slow, stub.answers["/compare"] = 0.0, {"similarity": -0.25, "layers": []}
    person.click("#compare button[type=submit]")
    person.until(lambda: person.texts("#compare .figure") == ["−0.250"])
    person.until(lambda: stub.slept)
    time.sleep(0.1)
    assert person.texts("#compare .figure") == ["−0.250"]  # also when the first answer is there
    assert "does not say what its layers do" in person.one("#compare .output").text
    assert person.one("#compare").get_attribute("aria-busy") is None


def test_a_search_shows_the_documents_with_the_best_sentence_marked(person, stub):
    person.click("#tab-search")
    person.one("#search-query").send_keys("when does the boat not sail?\n")
    person.until(lambda: person.all(".hits li"))
    assert stub.bodies("/search") == [{"query": "when does the boat not sail?", "top": 10, "mode": "hybrid"}]
    assert person.texts(".hits h3") == ["notes/harbour.md", "handbook.pdf", "minutes/2024-11.txt"]
    expected = [
        one["snippet"]["text"][start:end]
        for one in page_stub.FOUND["hits"]
        for start, end in one["snippet"]["highlights"]
    ]
    assert person.texts(".hits mark") == expected  # also where signs stand before it that JavaScript counts twice
    assert "3 documents" in person.one("#search .status").text


def test_mode_number_and_filter_of_a_search_are_sent(person, stub):
    person.click("#tab-search")
    person.one("#search-filter").send_keys("kind=note, year=2024, year = 2025")
    person.one("#search-query").send_keys("ferry")
    person.click("#search-top option:nth-of-type(3)")
    person.click("#search input[value=lexical]")
    person.click("#search button[type=submit]")
    person.until(lambda: person.all(".hits li"))
    asked = {"query": "ferry", "top": 20, "mode": "lexical", "filter": {"kind": ["note"], "year": ["2024", "2025"]}}
    assert stub.bodies("/search") == [asked]
    person.click("#search input[value=dense]")  # another way to find the same, without asking again
    person.until(lambda: len(stub.bodies("/search")) == 2)
    assert stub.bodies("/search")[1] == {**asked, "mode": "dense"}


def test_nothing_found_is_said(person, stub):
    stub.answers["/search"] = {"hits": []}
    person.click("#tab-search")
    person.one("#search-query").send_keys("unicorns\n")
    person.until(lambda: "Nothing found for “unicorns”" in person.one("#search .status").text)


def test_a_pasted_job_and_dropped_resumes_are_matched_with_reasons(person, stub):
    person.click("#tab-match")
    person.one("#match-left-text").send_keys("Cloud engineer\nKeep our systems healthy.")
    lines = [{"id": 7, "title": "Analyst", "text": "Python."}, {"name": "Ruth", "skills": "Dough."}, {"id": "x"}]
    files = [
        ["ines.txt", "AWS and GCP."],
        ["more.jsonl", "\n".join(map(json.dumps, lines)) + "\n{not json"],
        ["photo.png", "x"],
        ["empty.md", " \n"],
    ]
    person.driver.execute_script(DROP, person.one("#match-right .drop"), files)
    person.until(lambda: len(documents(person, "right")) == 3)
    assert documents(person, "right") == ["ines.txt", "Analyst", "Ruth"]
    said = person.one("#match-right .said").text
    for sentence in (
        "3 resumes added.",
        "more.jsonl, line 3: no text",
        "line 4: not JSON",
        "photo.png: only",
        "empty.md: no",
    ):
        assert sentence in said
    person.click("#match button[type=submit]")
    person.until(lambda: person.all(".matches li.card"))
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
    assert person.texts(".ranking > h3") == ["Cloud engineer"]
    assert person.texts(".matches h4") == ["ines.txt", "Analyst", "Ruth"]
    best = person.one(".matches li.card").text
    for reason in ("1.000", "0.781 by meaning", "Terraform", "degree", "AWS and GCP, both certified.", "experience"):
        assert reason in best


def test_files_are_chosen_twice_without_confusion_and_removed_by_keyboard(person, tmp_path):
    from selenium.webdriver.common.keys import Keys

    file = tmp_path / "job.md"
    file.write_text("# Baker\nBread.", encoding="utf-8")
    (tmp_path / "latin.txt").write_bytes("Müller".encode("latin-1"))
    person.click("#tab-match")
    chooser = person.one("#match-left input[type=file]")
    chooser.send_keys(str(file))
    person.until(lambda: documents(person, "left") == ["job.md"])
    chooser.send_keys(str(file))
    person.until(lambda: documents(person, "left") == ["job.md", "job.md (2)"])
    chooser.send_keys(str(tmp_path / "latin.txt"))
    person.until(lambda: "latin.txt: cannot be read; is it UTF-8?" in person.one("#match-left .said").text)
    person.one("#match-left .remove").send_keys(Keys.ENTER)
    assert documents(person, "left") == ["job.md (2)"]
    assert person.focused().get_attribute("aria-label") == "Remove job.md (2)"


def test_the_sweep_is_a_map_of_the_best_scores(person, stub):
    sweep = stub.answers["/sweep"]
    person.click("#tab-sweep")
    person.until(lambda: person.all(".heat tbody td"))
    best = {}
    for row in sweep["rows"]:
        key = row["template"], f"{row['layer']}{'n' if row['normed'] else ''}"
        best[key] = max(best.get(key, -1e9), row["spearman"])
    layers = person.texts(".heat thead th")
    lines = person.driver.execute_script(
        "return [...document.querySelectorAll('.heat tbody tr')].map((row) => [...row.cells].map((cell) =>"
        " cell.tagName === 'TH' ? cell.textContent : cell.dataset.said))"
    )
    assert len(lines) == 4 and len(layers) == 32
    for template, *cells in lines:
        for layer, cell in zip(layers, cells, strict=True):
            assert f": {best[template, layer]:.2f}." in cell and cell.startswith(template)
    assert (
        "prompteol_tight, layer 30" in person.one(".winner").text and "74.1 on stsb-test" in person.one(".winner").text
    )


def test_the_map_of_one_pooling_shows_that_one_alone(person, stub):
    person.click("#tab-sweep")
    person.until(lambda: person.all(".heat tbody td"))
    for name, value in (("pooling", "mean"), ("attention", "bidirectional"), ("head", "none")):
        person.click(f"#sweep-{name} option[value={value}]")
    wanted = {"pooling": "mean", "attention": "bidirectional", "head": "none", "template": "plain", "layer": 12}
    row = next(row for row in stub.answers["/sweep"]["rows"] if row | wanted == row)
    cell = person.one(".heat td[data-said^='plain, layer 12:']").get_attribute("data-said")
    assert cell == f"plain, layer 12: {row['spearman']:.2f}. mean, bidirectional, no head"


def test_the_sweep_is_asked_for_only_when_it_is_looked_at_and_only_once(person, stub):
    assert stub.bodies("/sweep") == []
    for tab in ("sweep", "compare", "sweep"):
        person.click(f"#tab-{tab}")
        person.until(lambda: not person.all("[aria-busy]"))
    assert stub.bodies("/sweep") == [None]
