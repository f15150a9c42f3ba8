"""Errors on the page: a sentence is shown, and no input is lost."""

from __future__ import annotations

import pytest

MARKUP = "<img src=x onerror=alert(1)><script>alert(2)</script>&amp;"


def compare(user):
    user.find("#compare-a").clear()
    user.find("#compare-b").clear()
    user.find("#compare-a").send_keys("one")
    user.find("#compare-b").send_keys("two")
    user.click("#compare button[type=submit]")


def error_message(user, panel="compare"):
    return user.wait_until(lambda: user.find(f"#{panel} .error").text)


ERRORS = [
    (400, "a: the text is too long; cut it with `max_length`", "a: the text is too long; cut it with max_length."),
    (401, "Incorrect API key", "This server requires an API key. Enter it under “API key” above. Enter API key"),
    (404, None, "This server does not offer that."),
    (413, None, "The request is too large for the server; send less."),
    (429, "Too many tokens wait.", "Too many tokens wait. Try again in 7 seconds."),
    (500, None, "The server failed (status 500); its log says why."),
    (500, MARKUP, f"{MARKUP}."),
    (503, None, "The server is not ready."),
]


def test_error_is_shown_as_a_sentence_and_input_is_kept(user, stub):
    compare(user)
    user.wait_until(lambda: user.find_all("#compare .figure"))
    for status, message, sentence in ERRORS:
        stub.set_error("/compare", status, message, **{"Retry-After": "7"})
        user.click("#compare button[type=submit]")
        user.wait_until(lambda sentence=sentence: user.find("#compare .error").text == sentence)
        assert user.find("#compare-a").get_attribute("value") == "one"
        assert user.texts("#compare .figure") == []


def test_next_response_replaces_an_error(user, stub):
    good = stub.responses["/compare"]
    stub.set_error("/compare", 429, "Busy")
    compare(user)
    assert error_message(user) == "Busy. Try again in a second."
    stub.responses["/compare"] = good
    compare(user)
    user.wait_until(lambda: user.texts("#compare .figure") == ["0.871"])
    assert not user.find("#compare .error").is_displayed()


def test_response_of_unknown_format_is_an_error(user, stub):
    good = stub.responses["/compare"]
    for response in ({}, {"similarity": 1.0}, [], None, {"similarity": 1.0, "layers": 3}):
        stub.responses["/compare"] = good
        compare(user)
        user.wait_until(lambda: user.find_all("#compare .figure"))
        stub.responses["/compare"] = response
        user.click("#compare button[type=submit]")
        assert "has an unknown format" in error_message(user)
    user.driver.get_log("browser")  # it holds the reason


def test_unreachable_server_is_an_error(user):
    user.driver.execute_cdp_cmd("Network.enable", {})
    offline = {"offline": True, "latency": 0, "downloadThroughput": -1, "uploadThroughput": -1}
    user.driver.execute_cdp_cmd("Network.emulateNetworkConditions", offline)
    try:
        compare(user)
        assert error_message(user) == "The server does not answer. Is d2v serve still running?"
    finally:
        user.driver.execute_cdp_cmd("Network.emulateNetworkConditions", {**offline, "offline": False})
        user.driver.get_log("browser")


@pytest.mark.parametrize(
    ("tab", "option"),
    [("search", "--index INDEX"), ("describe", "--describe BRIDGE"), ("sweep", "--sweep DIR/sweep.json")],
)
def test_missing_index_bridge_or_sweep_shows_how_to_add_it(user, stub, tab, option):
    stub.set_error(f"/{tab}", 404, "Not Found")
    user.click(f"#tab-{tab}")
    if tab == "search":
        user.find("#search-query").send_keys("anything\n")
    elif tab == "describe":
        user.click("#describe [data-example]")
    user.wait_until(lambda: option in user.find(f"#{tab} .output").text)
    assert not user.find(f"#{tab} .error").is_displayed()
    if tab == "sweep":
        assert not user.find("#sweep form").is_displayed()


def test_empty_fields_get_the_focus_and_nothing_is_sent(user, stub):
    user.find("#compare-a").send_keys("one")
    user.click("#compare button[type=submit]")
    assert error_message(user) == "Enter two texts first."
    assert user.focused().get_attribute("id") == "compare-b"
    user.click("#tab-search")
    user.find("#search-query").send_keys("  \n")
    assert error_message(user, "search") == "Enter a query first."
    user.find("#search-query").send_keys("x")
    user.find("#search-filter").send_keys("kind\n")
    user.wait_until(lambda: "key=value" in error_message(user, "search"))
    user.click("#tab-match")
    user.click("#match button[type=submit]")
    assert error_message(user, "match").startswith("Add a job first")
    assert {path for path, _, _ in stub.requests} == {"/v1/models", "/health"}


def test_markup_in_data_is_shown_as_text(user, stub):
    snippet = {"text": MARKUP, "highlights": [[0, 5], [3, 9], [9, 9], [40, 999]]}
    stub.responses["/search"] = {
        "hits": [
            {"id": MARKUP, "score": 1.0, "text": f"{MARKUP} more", "metadata": {MARKUP: [MARKUP]}, "snippet": snippet}
        ]
    }
    reasons = {"sections": [{"left": MARKUP, "right": MARKUP, "score": 0.5}], "matched": [MARKUP], "missing": [MARKUP]}
    reasons |= {"pairs": [{"left": MARKUP, "right": MARKUP, "score": None}], "score": 0.5, "dense": 0.5, "lexical": 0.5}
    stub.responses["/match"] = {"rankings": [{"left": MARKUP, "matches": [{"right": MARKUP, **reasons}]}]}
    row = {"template": MARKUP, "attention": MARKUP, "layer": 0, "normed": False, "pooling": MARKUP, "head": MARKUP}
    row |= {"spearman": 1.0, "pearson": 1.0}
    stub.responses["/sweep"] = {"model": MARKUP, "data": {"name": MARKUP}, "winner": row, "rows": [row]}
    stub.responses["/v1/models"] = {"data": [{"id": MARKUP, "layer": [1, 2], "template": MARKUP}, {"id": MARKUP}]}
    user.open()
    user.click("#tab-search")
    user.find("#search-query").send_keys(f"{MARKUP}\n")
    user.wait_until(lambda: user.find_all(".hits li"))
    assert user.find(".snippet").text == MARKUP and user.find(".hits h3").text == MARKUP
    user.click("#tab-match")
    for side in ("left", "right"):
        user.find(f"#match-{side}-text").send_keys(MARKUP)
    user.click("#match button[type=submit]")
    user.wait_until(lambda: user.texts(".matches h4") == [MARKUP])
    user.click("#tab-sweep")
    user.wait_until(lambda: user.texts(".heat tbody th") == [MARKUP])
    assert user.find_all("main img, main script, .models img, .models script") == []


def test_api_key_is_used_and_can_be_removed(user, stub):
    models = stub.responses["/v1/models"]
    stub.set_error("/v1/models", 401, "no key")
    user.open()
    assert "requires an API key" in user.find("#models").text
    field = user.focused()  # the page has opened the form for it
    assert field.get_attribute("id") == "key-field" and field.get_attribute("type") == "password"
    stub.responses["/v1/models"] = models
    field.send_keys("secret-1\n")
    user.wait_until(lambda: "smollm2" in user.find("#models").text)
    assert stub.requests[-1][1]["Authorization"] == "Bearer secret-1"
    compare(user)
    user.wait_until(lambda: user.find_all("#compare .figure"))
    assert stub.requests[-1][1]["Authorization"] == "Bearer secret-1"
    assert user.driver.execute_script("return [localStorage.length, document.cookie]") == [0, ""]
    user.click("#key summary")
    user.click("#key-remove")
    user.wait_until(lambda: "Authorization" not in stub.requests[-1][1])
    assert user.driver.execute_script("return sessionStorage.length") == 0


def test_wrong_api_key_shows_a_button_to_change_it(user, stub):
    user.click("#key summary")
    user.find("#key-field").send_keys("schlüssel-✓\n")  # a header cannot hold these characters
    stub.set_error("/compare", 401, "wrong key")
    compare(user)
    assert error_message(user).startswith("The server does not accept this API key.")
    user.click("#compare .error button")
    assert user.focused().get_attribute("id") == "key-field"
