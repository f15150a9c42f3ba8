"""One browser and one stub server for all tests of the page."""

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
    stub = page_stub.StubServer()
    server = page_stub.serve(stub)
    yield stub
    server.shutdown()


@pytest.fixture
def stub(running):
    running.reset()
    return running


@pytest.fixture
def user(driver, stub):
    """A user on a freshly loaded page; afterwards no other host was requested and the console has no errors."""
    user = browser.User(driver, stub.address)
    user.set_window(1200, 900)
    user.open()
    yield user
    assert [url for url in user.requested_urls() if not url.startswith(stub.address)] == []
    assert user.console_errors() == []
    driver.execute_script("sessionStorage.clear()")
