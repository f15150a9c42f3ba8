"""A headless Chromium for tests of the page; it records every request and console message."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
DRIVER = shutil.which("chromedriver")
# the sandbox needs rights that root in a container does not have; the other flags stop Chromium's own network traffic
FLAGS = (
    "--headless=new --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync --disable-default-apps --disable-extensions --disable-dev-shm-usage "
    "--hide-scrollbars"
)


def start(profile: Path):
    """Start Chromium and return a driver with logs of console and network."""
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for flag in [*FLAGS.split(), f"--user-data-dir={profile}"]:
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
    driver.get("about:blank")
    driver.get_log("performance")  # discard what the first tab loaded
    return driver


class User:
    """Actions of a user on the page, and what the page shows."""

    def __init__(self, driver, address: str) -> None:
        self.driver, self.address, self.open_count = driver, address, 0

    def open(self, fragment: str = "") -> User:
        """Load the page; a query string with a counter forces a reload even where only the fragment differs."""
        self.open_count += 1
        self.driver.get(f"{self.address}?{self.open_count}{fragment}")
        self.wait_until(lambda: self.find("#models").text)
        return self

    def find(self, selector: str):
        return self.driver.find_element("css selector", selector)

    def find_all(self, selector: str) -> list:
        return self.driver.find_elements("css selector", selector)

    def texts(self, selector: str) -> list[str]:
        return [element.text for element in self.find_all(selector)]

    def press(self, *keys: str) -> None:
        """Send keys to the focused element."""
        from selenium.webdriver import ActionChains

        ActionChains(self.driver).send_keys(*keys).perform()

    def focused(self):
        return self.driver.switch_to.active_element

    def wait_until(self, condition, seconds: float = 8.0):
        from selenium.common.exceptions import StaleElementReferenceException
        from selenium.webdriver.support.wait import WebDriverWait

        wait = WebDriverWait(self.driver, seconds, 0.05, [StaleElementReferenceException])
        return wait.until(lambda _: condition())

    def click(self, selector: str) -> None:
        self.find(selector).click()

    def set_window(self, width: int, height: int, scheme: str = "light") -> None:
        """Emulate a screen of this size with the light or dark colour scheme."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        features = [
            {"name": "prefers-color-scheme", "value": scheme},
            {"name": "prefers-reduced-motion", "value": "reduce"},
        ]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})

    def console_errors(self) -> list[str]:
        """Return new warnings and errors of the console, except those for error statuses of the server."""
        lines = [line["message"] for line in self.driver.get_log("browser") if line["level"] != "INFO"]
        return [line for line in lines if "the server responded with a status of" not in line]

    def requested_urls(self) -> list[str]:
        """Return all URLs requested over the network since the last call."""
        events = [json.loads(line["message"])["message"] for line in self.driver.get_log("performance")]
        urls = [event["params"]["request"]["url"] for event in events if event["method"] == "Network.requestWillBeSent"]
        return [url for url in urls if not url.startswith(("chrome:", "data:", "about:"))]
