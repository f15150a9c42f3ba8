"""The page with the server it was made for, a tiny model, a small index and a sweep."""

from __future__ import annotations

import importlib.util
import threading
import time

import pytest

from toys import browser
from toys.page_stub import SWEEP

if importlib.util.find_spec("decoder2vec.serving.app") is None or importlib.util.find_spec("fastapi") is None:
    pytest.skip("no server: pip install 'decoder2vec[serve]'", allow_module_level=True)

KEY = "open-sesame"


@pytest.fixture(scope="module")
def address(driver, own_cache, one_thread, tmp_path_factory):
    """A server in a thread that asks for a key."""
    from decoder2vec.encoder import Encoder
    from decoder2vec.search.documents import Document
    from decoder2vec.search.index import Index

    app, service = (importlib.import_module(f"decoder2vec.serving.{name}") for name in ("app", "service"))
    folder = tmp_path_factory.mktemp("served") / "index"
    encoder = Encoder.from_pretrained("tiny-llama", device="cpu", dtype="float32")
    ferry = Document("ferry", "In a storm the ferry stays in port. Dogs travel free.", {"kind": "note"})
    bread = Document("bread", "The oven is on at three in the morning.", {"kind": "note"})
    Index.create(folder, encoder).add([ferry, bread])
    server = app.build_server(app.create_app(service.ServerConfig(encoder, "tiny-llama", folder, SWEEP), [KEY]))
    with app.bind("127.0.0.1", 0) as place:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [place]})
        thread.start()
        while not server.started and thread.is_alive():
            time.sleep(0.01)
        yield f"http://127.0.0.1:{place.getsockname()[1]}/"
        server.should_exit = True
        thread.join(timeout=60)


@pytest.fixture
def visitor(driver, address):
    """Somebody who knows the key."""
    somebody = browser.Person(driver, address)
    somebody.window(1200, 900)
    somebody.visit()
    somebody.until(lambda: somebody.focused().get_attribute("id") == "key-field")
    somebody.focused().send_keys(f"{KEY}\n")
    somebody.until(lambda: "tiny-llama" in somebody.one("#models").text)
    yield somebody
    assert [url for url in somebody.requests() if not url.startswith(address)] == []
    assert somebody.console() == []
    driver.execute_script("sessionStorage.clear()")


def test_every_tab_works_with_the_real_server(visitor):
    visitor.click("#compare [data-example]")
    visitor.until(lambda: visitor.all("#compare .curve .dot"), 30)
    assert -1 <= float(visitor.one("#compare .figure").text.replace("−", "-")) <= 1

    visitor.click("#tab-search")
    visitor.one("#search-filter").send_keys("kind=note")
    visitor.one("#search-query").send_keys("when does the ferry stay in port\n")
    visitor.until(lambda: visitor.texts(".hits h3"), 30)
    assert visitor.texts(".hits h3")[0] == "ferry"
    assert visitor.texts(".hits mark")[0] == "In a storm the ferry stays in port."

    visitor.click("#tab-match")
    visitor.click("#match [data-example]")
    visitor.until(lambda: visitor.texts(".matches h4"), 30)
    assert sorted(visitor.texts(".matches h4")) == ["ines-carvalho.txt", "ruth-adeyemi.txt", "tomasz-wrona.txt"]
    assert "terraform" in visitor.one(".matches").text.lower()

    visitor.click("#tab-sweep")
    visitor.until(lambda: visitor.all(".heat tbody td"))
    assert [panel.text for panel in visitor.all(".problem") if panel.is_displayed()] == []
