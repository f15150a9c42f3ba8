"""The page with a real server: a tiny model, a small index and a sweep."""

from __future__ import annotations

import importlib.util

import pytest

from toys import browser
from toys.page_stub import SWEEP_FILE
from toys.server import running

if importlib.util.find_spec("decoder2vec.serving.app") is None or importlib.util.find_spec("fastapi") is None:
    pytest.skip("no server: pip install 'decoder2vec[serve]'", allow_module_level=True)

KEY = "open-sesame"


@pytest.fixture(scope="module")
def address(driver, own_cache, one_thread, tmp_path_factory):
    """The URL of a server in a thread that requires an API key."""
    from decoder2vec.encoder import Encoder
    from decoder2vec.search.documents import Document
    from decoder2vec.search.index import Index

    app, service = (importlib.import_module(f"decoder2vec.serving.{name}") for name in ("app", "service"))
    folder = tmp_path_factory.mktemp("served") / "index"
    encoder = Encoder.from_pretrained("tiny-llama", device="cpu", dtype="float32")
    ferry = Document("ferry", "In a storm the ferry stays in port. Dogs travel free.", {"kind": "note"})
    bread = Document("bread", "The oven is on at three in the morning.", {"kind": "note"})
    Index.create(folder, encoder).add([ferry, bread])
    config = service.ServerConfig(encoder, "tiny-llama", folder, SWEEP_FILE)
    with running(app.create_app(config, [KEY]), must_end=False) as url:
        yield f"{url}/"


@pytest.fixture
def user(driver, address):
    """A user who has entered the API key."""
    user = browser.User(driver, address)
    user.set_window(1200, 900)
    user.open()
    user.wait_until(lambda: user.focused().get_attribute("id") == "key-field")
    user.focused().send_keys(f"{KEY}\n")
    user.wait_until(lambda: "tiny-llama" in user.find("#models").text)
    yield user
    assert [url for url in user.requested_urls() if not url.startswith(address)] == []
    assert user.console_errors() == []
    driver.execute_script("sessionStorage.clear()")


def test_every_tab_works_with_a_real_server(user):
    user.click("#compare [data-example]")
    user.wait_until(lambda: user.find_all("#compare .curve .dot"), 30)
    assert -1 <= float(user.find("#compare .figure").text.replace("−", "-")) <= 1

    user.click("#tab-search")
    user.find("#search-filter").send_keys("kind=note")
    user.find("#search-query").send_keys("when does the ferry stay in port\n")
    user.wait_until(lambda: user.texts(".hits h3"), 30)
    assert user.texts(".hits h3")[0] == "ferry"
    assert user.texts(".hits mark")[0] == "In a storm the ferry stays in port."

    user.click("#tab-match")
    user.click("#match [data-example]")
    user.wait_until(lambda: user.texts(".matches h4"), 30)
    assert sorted(user.texts(".matches h4")) == ["ines-carvalho.txt", "ruth-adeyemi.txt", "tomasz-wrona.txt"]
    assert "terraform" in user.find(".matches").text.lower()

    user.click("#tab-sweep")
    user.wait_until(lambda: user.find_all(".heat tbody td"))
    assert [panel.text for panel in user.find_all(".error") if panel.is_displayed()] == []
