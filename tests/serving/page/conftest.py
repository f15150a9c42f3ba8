"""One browser and one made-up server for all tests of the page."""

from __future__ import annotations

import pytest

from toys import browser, page_stub


@pytest.fixture(scope="session")
def driver(tmp_path_factory):
    if not browser.CHROMIUM or not browser.DRIVER:
        pytest.skip("no Chromium with its driver here: apt-get install chromium chromium-driver")
    pytest.importorskip("selenium")
    driver = browser.start(tmp_path_factory.mktemp("chromium"))
    yield driver
    driver.quit()


@pytest.fixture(scope="session")
def running():
    stub = page_stub.Stub()
    server = page_stub.serve(stub)
    yield stub
    server.shutdown()


@pytest.fixture
def stub(running):
    running.reset()
    return running


@pytest.fixture
def person(driver, stub):
    """Somebody at a fresh page; afterwards nothing was asked of anyone else, and the browser complained of nothing."""
    somebody = browser.Person(driver, stub.address)
    somebody.window(1200, 900)
    somebody.visit()
    yield somebody
    assert [url for url in somebody.requests() if not url.startswith(stub.address)] == []
    assert somebody.console() == []
    driver.execute_script("sessionStorage.clear()")
