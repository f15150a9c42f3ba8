"""The page by keyboard, with a screen reader, on a phone, and in the dark colour scheme."""

from __future__ import annotations

import pytest

UNNAMED_CONTROLS = """
return [...document.querySelectorAll("button, input, select, textarea, summary, [tabindex]")]
  .filter((element) => element.checkVisibility())
  .filter((element) => element.id !== "content")
  .filter((element) => !(element.labels?.length || element.getAttribute("aria-label") || element.innerText?.trim()))
  .map((element) => element.outerHTML)
"""
# colours can be written in many ways, so text and background are painted on a canvas and read back
CONTRAST = """
const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
const paint = (...colours) => {
  canvas.fillStyle = "#fff";
  canvas.fillRect(0, 0, 1, 1);
  for (const colour of colours) { canvas.fillStyle = colour; canvas.fillRect(0, 0, 1, 1); }
  return [...canvas.getImageData(0, 0, 1, 1).data].slice(0, 3);
};
const linear = (value) => (value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4);
const luminance = ([r, g, b]) => 0.2126 * linear(r / 255) + 0.7152 * linear(g / 255) + 0.0722 * linear(b / 255);
const weak = [];
const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
let count = 0;
for (let node = walker.nextNode(); node; node = walker.nextNode()) {
  const element = node.parentElement;
  if (!node.data.trim() || !element.checkVisibility()) continue;
  if (element.closest(".visually-hidden, .skip-link, noscript, option, .status")) continue;
  const backgrounds = [];
  for (let box = element; box; box = box.parentElement) backgrounds.unshift(getComputedStyle(box).backgroundColor);
  const style = getComputedStyle(element);
  const colour = element instanceof SVGElement ? style.fill : style.color;
  const [a, b] = [luminance(paint(...backgrounds)), luminance(paint(...backgrounds, colour))].sort((x, y) => y - x);
  count += 1;
  if ((a + 0.05) / (b + 0.05) < 4.5) weak.push(`${node.data.trim()}: ${((a + 0.05) / (b + 0.05)).toFixed(2)}`);
}
return [count, weak];
"""


def show_result(user, tab):
    """Open a tab and make it show a result."""
    user.click(f"#tab-{tab}")
    if tab == "search":
        user.find("#search-query").send_keys("ferry\n")
    elif tab != "sweep":
        user.click(f"#{tab} [data-example]")
    result = {
        "compare": ".curve .dot",
        "search": ".hits li",
        "match": ".matches li",
        "describe": "#describe .card p",
        "sweep": ".heat tbody td",
    }[tab]
    user.wait_until(lambda: user.find_all(result))


def test_arrow_keys_move_between_tabs(user):
    from selenium.webdriver.common.keys import Keys

    def open_panels():
        return [panel.get_attribute("id") for panel in user.find_all("[role=tabpanel]") if panel.is_displayed()]

    user.find("#tab-compare").click()
    for key, name in (
        (Keys.ARROW_RIGHT, "search"),
        (Keys.ARROW_RIGHT, "match"),
        (Keys.ARROW_RIGHT, "describe"),
        (Keys.END, "sweep"),
        (Keys.ARROW_RIGHT, "compare"),
        (Keys.ARROW_LEFT, "sweep"),
        (Keys.HOME, "compare"),
    ):
        user.press(key)
        assert user.focused().get_attribute("id") == f"tab-{name}"
        assert user.focused().get_attribute("aria-selected") == "true"
        assert open_panels() == [name]
        assert user.driver.execute_script("return location.hash") == f"#{name}"
    user.press(Keys.TAB)
    assert user.focused().get_attribute("id") == "compare-a"


def test_url_fragment_opens_its_tab(user):
    user.open("#match")
    assert user.find("#match").is_displayed() and not user.find("#compare").is_displayed()


def test_page_is_usable_with_the_keyboard(user, stub):
    from selenium.webdriver.common.keys import Keys

    user.press(Keys.TAB)
    assert user.focused().text == "Skip to content"
    user.press(Keys.ENTER, Keys.TAB, "A cat sleeps.", Keys.TAB, "A kitten naps.", Keys.TAB, Keys.ENTER)
    user.wait_until(lambda: user.find_all("#compare .figure"))
    assert stub.bodies("/compare") == [{"a": "A cat sleeps.", "b": "A kitten naps."}]
    outline = "return getComputedStyle(document.activeElement).outlineStyle"
    assert user.driver.execute_script(outline) == "solid"


def test_arrow_keys_move_between_cells_of_the_heat_map(user):
    from selenium.webdriver.common.keys import Keys

    def label():
        """The accessible name of the focused cell, which starts with its visible text."""
        visible, _, name = user.focused().get_attribute("aria-label").partition(". ")
        assert visible == user.focused().text and user.find("#sweep .readout").text == name
        return name

    show_result(user, "sweep")
    assert len(user.find_all(".heat [tabindex='0']")) == 1
    user.find(".heat [tabindex='0']").send_keys(Keys.ARROW_LEFT)
    assert label().startswith("prompteol_tight, layer 29:")
    user.press(Keys.ARROW_DOWN, Keys.HOME)
    assert label().startswith("prompteol, layer 0:")
    user.press(Keys.ARROW_LEFT, Keys.END)
    assert "layer 30 after the final norm" in label()
    assert len(user.find_all(".heat [tabindex='0']")) == 1


@pytest.mark.parametrize("tab", ["compare", "search", "match", "describe", "sweep"])
def test_controls_have_names_and_texts_have_contrast(user, tab):
    show_result(user, tab)
    assert user.driver.execute_script(UNNAMED_CONTROLS) == []
    for scheme in ("light", "dark"):
        user.set_window(1200, 900, scheme)
        count, weak = user.driver.execute_script(CONTRAST)
        assert count > 20 and weak == [], scheme


@pytest.mark.parametrize("tab", ["compare", "search", "match", "describe", "sweep"])
def test_page_fits_a_phone_screen(user, tab):
    user.set_window(360, 740)
    user.open()
    show_result(user, tab)
    assert user.driver.execute_script("return document.documentElement.scrollWidth") <= 360


def test_status_and_errors_are_announced(user, stub):
    for panel in ("compare", "search", "match", "sweep"):
        assert user.find(f"#{panel} .status").get_attribute("role") == "status"
        assert user.find(f"#{panel} .error").get_attribute("role") == "alert"
    show_result(user, "compare")
    assert user.find("#compare .status").get_attribute("textContent").startswith("The similarity is 0.871: As similar")
    chart = user.find(".curve")
    assert chart.get_attribute("role") == "img"
    assert "from 0.341 at layer 0 to 0.761 at layer 30" in chart.get_attribute("aria-label")
