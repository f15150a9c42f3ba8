"""A headless Chromium that a test can type into, and that remembers every request and message."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
DRIVER = shutil.which("chromedriver")
# the sandbox needs rights that root in a container does not have; the rest keeps Chromium from calling home
FLAGS = (
    "--headless=new --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync --disable-default-apps --disable-extensions --disable-dev-shm-usage "
    "--hide-scrollbars"
)


def start(profile: Path):
    """A driver with logs of the console and the network."""
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for flag in [*FLAGS.split(), f"--user-data-dir={profile}"]:
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
    driver.get("about:blank")
    driver.get_log("performance")  # what the first tab loaded
    return driver


class Person:
    """What somebody at the page does and sees."""

    def __init__(self, driver, address: str) -> None:
        self.driver, self.address, self.visits = driver, address, 0

    def visit(self, place: str = "") -> Person:
        """Open the page anew; the number makes it another page to the browser, also where only the tab differs."""
        self.visits += 1
        self.driver.get(f"{self.address}?{self.visits}{place}")
        self.until(lambda: self.one("#models").text)
        return self

    def one(self, selector: str):
        return self.driver.find_element("css selector", selector)

    def all(self, selector: str) -> list:
        return self.driver.find_elements("css selector", selector)

    def texts(self, selector: str) -> list[str]:
        return [one.text for one in self.all(selector)]

    def press(self, *keys: str) -> None:
        """Keys to whatever has the focus."""
        from selenium.webdriver import ActionChains

        ActionChains(self.driver).send_keys(*keys).perform()

    def focused(self):
        return self.driver.switch_to.active_element

    def until(self, true, seconds: float = 8.0):
        from selenium.common.exceptions import StaleElementReferenceException
        from selenium.webdriver.support.wait import WebDriverWait

        wait = WebDriverWait(self.driver, seconds, 0.05, [StaleElementReferenceException])
        return wait.until(lambda _: true())

    def click(self, selector: str) -> None:
        self.one(selector).click()

    def window(self, width: int, height: int, scheme: str = "light") -> None:
        """A screen of this size in light or dark."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        wanted = [
            {"name": "prefers-color-scheme", "value": scheme},
            {"name": "prefers-reduced-motion", "value": "reduce"},
        ]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": wanted})

    def console(self) -> list[str]:
        """Everything the browser complained of since the last time; refusals by the server are logged there, too."""
        lines = [line["message"] for line in self.driver.get_log("browser") if line["level"] != "INFO"]
        return [line for line in lines if "the server responded with a status of" not in line]

    def requests(self) -> list[str]:
        """Every address asked for over a network since the last time."""
        events = [json.loads(line["message"])["message"] for line in self.driver.get_log("performance")]
        sent = [event["params"]["request"]["url"] for event in events if event["method"] == "Network.requestWillBeSent"]
        return [url for url in sent if not url.startswith(("chrome:", "data:", "about:"))]
