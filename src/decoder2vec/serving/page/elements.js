/** Elements made from data. Strings go in as text, so nothing that stands in the data can become markup. */

const SVG = "http://www.w3.org/2000/svg";

function filled(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== undefined && value !== null && value !== false) element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

/** make("p", { class: "hint" }, "some text", another) */
export const make = (tag, attributes = {}, ...children) => filled(document.createElement(tag), attributes, children);

/** The same for what stands inside a drawing. */
export const draw = (tag, attributes = {}, ...children) => filled(document.createElementNS(SVG, tag), attributes, children);

/** A table from rows of texts or elements; columns from `texts` on hold numbers. */
export function table(caption, heads, rows, texts = 1) {
  const kind = (place) => (place < texts ? undefined : "number");
  const head = heads.map((name, place) => make("th", { scope: "col", class: kind(place) }, name));
  const lines = rows.map((cells) => make("tr", {}, ...cells.map((cell, place) => make("td", { class: kind(place) }, cell))));
  // wide tables scroll by themselves, and what scrolls must be reachable without a mouse
  return make("div", { class: "wide", tabindex: "0", role: "region", "aria-label": caption },
    make("table", {}, make("caption", {}, caption), make("thead", {}, make("tr", {}, ...head)), make("tbody", {}, ...lines)));
}

/** A length between 0 and 1 as a bar; the number itself stands beside it as text. */
export function bar(share) {
  const inner = make("span");
  inner.style.setProperty("width", `${(100 * Math.min(1, Math.max(0, share || 0))).toFixed(1)}%`);
  return make("span", { class: "bar", "aria-hidden": "true" }, inner);
}

/** A score as people read it: three digits behind the point, four where it is small. */
export function score(value) {
  if (typeof value !== "number" || !Number.isFinite(value)) return "–";
  return value.toFixed(Math.abs(value) < 0.1 && value !== 0 ? 4 : 3).replace("-", "−");
}

/** A sentence for people; what stands between backticks is something to type. */
export const spoken = (sentence) => sentence.split(/`([^`]+)`/).map((part, place) => (place % 2 ? make("code", {}, part) : part));

/** 1 document, 2 documents. */
export const count = (number, thing) => `${number} ${thing}${number === 1 ? "" : "s"}`;
