"""What the page does when something is wrong: a sentence, and nothing lost."""

from __future__ import annotations

import pytest

EVIL = "<img src=x onerror=alert(1)><script>alert(2)</script>&amp;"


def compare(person):
    person.one("#compare-a").clear()
    person.one("#compare-b").clear()
    person.one("#compare-a").send_keys("one")
    person.one("#compare-b").send_keys("two")
    person.click("#compare button[type=submit]")


def problem(person, panel="compare"):
    return person.until(lambda: person.one(f"#{panel} .problem").text)


REFUSALS = [
    (400, "a: the text is too long; cut it with `max_length`", "a: the text is too long; cut it with max_length."),
    (401, "Incorrect API key", "This server asks for an API key. Enter it under “API key” above. Enter API key"),
    (404, None, "This server does not offer that."),
    (413, None, "That is more than the server takes at once; send less."),
    (429, "Too many tokens wait.", "Too many tokens wait. Try again in 7 seconds."),
    (500, None, "The server failed at this (status 500); its log says why."),
    (500, EVIL, f"{EVIL}."),
    (503, None, "The server is not ready."),
]


def test_a_refusal_is_shown_as_a_sentence_and_what_was_typed_stays(person, stub):
    compare(person)
    person.until(lambda: person.all("#compare .figure"))
    for status, message, sentence in REFUSALS:
        stub.refuse("/compare", status, message, **{"Retry-After": "7"})
        person.click("#compare button[type=submit]")
        person.until(lambda sentence=sentence: person.one("#compare .problem").text == sentence)
        assert person.one("#compare-a").get_attribute("value") == "one"
        assert person.texts("#compare .figure") == []


def test_after_a_refusal_the_next_answer_takes_its_place(person, stub):
    good = stub.answers["/compare"]
    stub.refuse("/compare", 429, "Busy")
    compare(person)
    assert problem(person) == "Busy. Try again in a second."
    stub.answers["/compare"] = good
    compare(person)
    person.until(lambda: person.texts("#compare .figure") == ["0.871"])
    assert not person.one("#compare .problem").is_displayed()


def test_an_answer_of_another_form_is_said_to_be_one(person, stub):
    good = stub.answers["/compare"]
    for answer in ({}, {"similarity": 1.0}, [], None, {"similarity": 1.0, "layers": 3}):
        stub.answers["/compare"] = good
        compare(person)
        person.until(lambda: person.all("#compare .figure"))
        stub.answers["/compare"] = answer
        person.click("#compare button[type=submit]")
        assert "has a form that this page does not know" in problem(person)
    person.driver.get_log("browser")  # which holds the reason, for those who look


def test_a_server_that_is_gone_is_said_to_be(person):
    person.driver.execute_cdp_cmd("Network.enable", {})
    gone = {"offline": True, "latency": 0, "downloadThroughput": -1, "uploadThroughput": -1}
    person.driver.execute_cdp_cmd("Network.emulateNetworkConditions", gone)
    try:
        compare(person)
        assert problem(person) == "The server does not answer. Is d2v serve still running?"
    finally:
        person.driver.execute_cdp_cmd("Network.emulateNetworkConditions", {**gone, "offline": False})
        person.driver.get_log("browser")


@pytest.mark.parametrize(("tab", "cure"), [("search", "--index INDEX"), ("sweep", "--sweep DIR/sweep.json")])
def test_what_a_server_does_not_offer_is_told_with_the_cure(person, stub, tab, cure):
    stub.refuse(f"/{tab}", 404, "Not Found")
    person.click(f"#tab-{tab}")
    if tab == "search":
        person.one("#search-query").send_keys("anything\n")
    person.until(lambda: cure in person.one(f"#{tab} .output").text)
    assert not person.one(f"#{tab} .problem").is_displayed()
    if tab == "sweep":
        assert not person.one("#sweep form").is_displayed()


def test_empty_fields_are_pointed_at_and_nothing_is_sent(person, stub):
    person.one("#compare-a").send_keys("one")
    person.click("#compare button[type=submit]")
    assert problem(person) == "Write a text on both sides first."
    assert person.focused().get_attribute("id") == "compare-b"
    person.click("#tab-search")
    person.one("#search-query").send_keys("  \n")
    assert problem(person, "search") == "Write what you are looking for first."
    person.one("#search-query").send_keys("x")
    person.one("#search-filter").send_keys("kind\n")
    person.until(lambda: "key=value" in problem(person, "search"))
    person.click("#tab-match")
    person.click("#match button[type=submit]")
    assert problem(person, "match").startswith("Add a job first")
    assert {path for path, _, _ in stub.asked} == {"/v1/models"}


def test_markup_in_the_data_is_shown_as_text_everywhere(person, stub):
    snippet = {"text": EVIL, "highlights": [[0, 5], [3, 9], [9, 9], [40, 999]]}
    stub.answers["/search"] = {
        "hits": [{"id": EVIL, "score": 1.0, "text": f"{EVIL} more", "metadata": {EVIL: [EVIL]}, "snippet": snippet}]
    }
    reasons = {"sections": [{"left": EVIL, "right": EVIL, "score": 0.5}], "matched": [EVIL], "missing": [EVIL]}
    reasons |= {"pairs": [{"left": EVIL, "right": EVIL, "score": None}], "score": 0.5, "dense": 0.5, "lexical": 0.5}
    stub.answers["/match"] = {"rankings": [{"left": EVIL, "matches": [{"right": EVIL, **reasons}]}]}
    row = {"template": EVIL, "attention": EVIL, "layer": 0, "normed": False, "pooling": EVIL, "head": EVIL}
    row |= {"spearman": 1.0, "pearson": 1.0}
    stub.answers["/sweep"] = {"model": EVIL, "data": {"name": EVIL}, "winner": row, "rows": [row]}
    stub.answers["/v1/models"] = {"data": [{"id": EVIL, "layer": [1, 2], "template": EVIL}, {"id": EVIL}]}
    person.visit()
    person.click("#tab-search")
    person.one("#search-query").send_keys(f"{EVIL}\n")
    person.until(lambda: person.all(".hits li"))
    assert person.one(".snippet").text == EVIL and person.one(".hits h3").text == EVIL
    person.click("#tab-match")
    for side in ("left", "right"):
        person.one(f"#match-{side}-text").send_keys(EVIL)
    person.click("#match button[type=submit]")
    person.until(lambda: person.texts(".matches h4") == [EVIL])
    person.click("#tab-sweep")
    person.until(lambda: person.texts(".heat tbody th") == [EVIL])
    assert person.all("main img, main script, .models img, .models script") == []


def test_a_key_opens_a_server_that_asks_for_one_and_is_forgotten_on_request(person, stub):
    models = stub.answers["/v1/models"]
    stub.refuse("/v1/models", 401, "no key")
    person.visit()
    assert "asks for an API key" in person.one("#models").text
    field = person.focused()  # the page has opened the place for it
    assert field.get_attribute("id") == "key-field" and field.get_attribute("type") == "password"
    stub.answers["/v1/models"] = models
    field.send_keys("secret-1\n")
    person.until(lambda: "smollm2" in person.one("#models").text)
    assert stub.asked[-1][1]["Authorization"] == "Bearer secret-1"
    compare(person)
    person.until(lambda: person.all("#compare .figure"))
    assert stub.asked[-1][1]["Authorization"] == "Bearer secret-1"
    assert person.driver.execute_script("return [localStorage.length, document.cookie]") == [0, ""]
    person.click("#key summary")
    person.click("#key-forget")
    person.until(lambda: "Authorization" not in stub.asked[-1][1])
    assert person.driver.execute_script("return sessionStorage.length") == 0


def test_a_wrong_key_is_said_to_be_wrong_and_the_way_to_another_is_a_click(person, stub):
    person.click("#key summary")
    person.one("#key-field").send_keys("schlüssel-✓\n")  # not even a header could hold this one
    stub.refuse("/compare", 401, "wrong key")
    compare(person)
    assert problem(person).startswith("The server does not accept this API key.")
    person.click("#compare .problem button")
    assert person.focused().get_attribute("id") == "key-field"
