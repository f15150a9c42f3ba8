"""The page without a mouse, without eyes, on a phone, in the dark."""

from __future__ import annotations

import pytest

NAMES = """
return [...document.querySelectorAll("button, input, select, textarea, summary, [tabindex]")]
  .filter((one) => one.checkVisibility())
  .filter((one) => one.id !== "content")
  .filter((one) => !(one.labels?.length || one.getAttribute("aria-label") || one.innerText?.trim()))
  .map((one) => one.outerHTML)
"""
# the colour of a text and what lies behind it, both drawn on a canvas, since a colour can be written in many ways
CONTRAST = """
const ground = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
const paint = (...colours) => {
  ground.fillStyle = "#fff";
  ground.fillRect(0, 0, 1, 1);
  for (const colour of colours) { ground.fillStyle = colour; ground.fillRect(0, 0, 1, 1); }
  return [...ground.getImageData(0, 0, 1, 1).data].slice(0, 3);
};
const even = (one) => (one <= 0.04045 ? one / 12.92 : ((one + 0.055) / 1.055) ** 2.4);
const light = ([r, g, b]) => 0.2126 * even(r / 255) + 0.7152 * even(g / 255) + 0.0722 * even(b / 255);
const weak = [];
const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
let seen = 0;
for (let node = walker.nextNode(); node; node = walker.nextNode()) {
  const box = node.parentElement;
  if (!node.data.trim() || !box.checkVisibility() || box.closest(".unseen, .skip, noscript, option, .status")) continue;
  const grounds = [];
  for (let one = box; one; one = one.parentElement) grounds.unshift(getComputedStyle(one).backgroundColor);
  const style = getComputedStyle(box);
  const ink = box instanceof SVGElement ? style.fill : style.color;
  const [a, b] = [light(paint(...grounds)), light(paint(...grounds, ink))].sort((x, y) => y - x);
  seen += 1;
  if ((a + 0.05) / (b + 0.05) < 4.5) weak.push(`${node.data.trim()}: ${((a + 0.05) / (b + 0.05)).toFixed(2)}`);
}
return [seen, weak];
"""


def fill(person, tab):
    """Something to look at in a tab."""
    person.click(f"#tab-{tab}")
    if tab == "search":
        person.one("#search-query").send_keys("ferry\n")
    elif tab != "sweep":
        person.click(f"#{tab} [data-example]")
    seen = {"compare": ".curve .dot", "search": ".hits li", "match": ".matches li", "sweep": ".heat tbody td"}[tab]
    person.until(lambda: person.all(seen))


def test_tabs_are_walked_with_arrows_and_are_one_stop(person):
    from selenium.webdriver.common.keys import Keys

    def open_panels():
        return [panel.get_attribute("id") for panel in person.all("[role=tabpanel]") if panel.is_displayed()]

    person.one("#tab-compare").click()
    for key, name in (
        (Keys.ARROW_RIGHT, "search"),
        (Keys.ARROW_RIGHT, "match"),
        (Keys.END, "sweep"),
        (Keys.ARROW_RIGHT, "compare"),
        (Keys.ARROW_LEFT, "sweep"),
        (Keys.HOME, "compare"),
    ):
        person.press(key)
        assert person.focused().get_attribute("id") == f"tab-{name}"
        assert person.focused().get_attribute("aria-selected") == "true"
        assert open_panels() == [name]
        assert person.driver.execute_script("return location.hash") == f"#{name}"
    person.press(Keys.TAB)
    assert person.focused().get_attribute("id") == "compare-a"


def test_an_address_with_a_tab_in_it_opens_that_tab(person):
    person.visit("#match")
    assert person.one("#match").is_displayed() and not person.one("#compare").is_displayed()


def test_everything_can_be_done_from_the_keyboard(person, stub):
    from selenium.webdriver.common.keys import Keys

    person.press(Keys.TAB)
    assert person.focused().text == "To the content"
    person.press(Keys.ENTER, Keys.TAB, "A cat sleeps.", Keys.TAB, "A kitten naps.", Keys.TAB, Keys.ENTER)
    person.until(lambda: person.all("#compare .figure"))
    assert stub.bodies("/compare") == [{"a": "A cat sleeps.", "b": "A kitten naps."}]
    outline = "return getComputedStyle(document.activeElement).outlineStyle"
    assert person.driver.execute_script(outline) == "solid"


def test_the_cells_of_the_map_are_walked_with_arrows(person):
    from selenium.webdriver.common.keys import Keys

    def said():
        """What the cell with the focus is called; it begins with what is seen in it."""
        seen, _, name = person.focused().get_attribute("aria-label").partition(". ")
        assert seen == person.focused().text and person.one("#sweep .reading").text == name
        return name

    fill(person, "sweep")
    assert len(person.all(".heat [tabindex='0']")) == 1
    person.one(".heat [tabindex='0']").send_keys(Keys.ARROW_LEFT)
    assert said().startswith("prompteol_tight, layer 29:")
    person.press(Keys.ARROW_DOWN, Keys.HOME)
    assert said().startswith("prompteol, layer 0:")
    person.press(Keys.ARROW_LEFT, Keys.END)
    assert "layer 30 behind the final norm" in said()
    assert len(person.all(".heat [tabindex='0']")) == 1


@pytest.mark.parametrize("tab", ["compare", "search", "match", "sweep"])
def test_every_control_has_a_name_and_every_text_can_be_read_in_light_and_dark(person, tab):
    fill(person, tab)
    assert person.driver.execute_script(NAMES) == []
    for scheme in ("light", "dark"):
        person.window(1200, 900, scheme)
        seen, weak = person.driver.execute_script(CONTRAST)
        assert seen > 20 and weak == [], scheme


@pytest.mark.parametrize("tab", ["compare", "search", "match", "sweep"])
def test_nothing_sticks_out_on_a_phone(person, tab):
    person.window(360, 740)
    person.visit()
    fill(person, tab)
    assert person.driver.execute_script("return document.documentElement.scrollWidth") <= 360


def test_what_happened_is_said_aloud(person, stub):
    for panel in ("compare", "search", "match", "sweep"):
        assert person.one(f"#{panel} .status").get_attribute("role") == "status"
        assert person.one(f"#{panel} .problem").get_attribute("role") == "alert"
    fill(person, "compare")
    assert person.one("#compare .status").get_attribute("textContent") == "The similarity is 0.871."
    drawing = person.one(".curve")
    assert drawing.get_attribute("role") == "img"
    assert "from 0.341 at layer 0 to 0.761 at layer 30" in drawing.get_attribute("aria-label")
