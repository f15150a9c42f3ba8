/** Create elements from data. Strings become text nodes, so that nothing in the data can become markup. */

const SVG = "http://www.w3.org/2000/svg";

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== undefined && value !== null && value !== false) element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

/** create("p", { class: "hint" }, "some text", element) */
export const create = (tag, attributes = {}, ...children) => fill(document.createElement(tag), attributes, children);

/** The same for elements of an SVG. */
export const createSvg = (tag, attributes = {}, ...children) => fill(document.createElementNS(SVG, tag), attributes, children);

/** A table from rows of texts or elements; columns after the first `textColumns` hold numbers. */
export function table(caption, headers, rows, textColumns = 1) {
  const columnClass = (column) => (column < textColumns ? undefined : "number");
  const head = headers.map((name, column) => create("th", { scope: "col", class: columnClass(column) }, name));
  const body = rows.map((cells) =>
    create("tr", {}, ...cells.map((cell, column) => create("td", { class: columnClass(column) }, cell))));
  // wide tables scroll on their own; what scrolls must be reachable with the keyboard
  return create("div", { class: "scroll-x", tabindex: "0", role: "region", "aria-label": caption },
    create("table", {}, create("caption", {}, caption), create("thead", {}, create("tr", {}, ...head)), create("tbody", {}, ...body)));
}

/** A bar for a value between 0 and 1; screen readers get the value from the text next to it. */
export function bar(value) {
  const inner = create("span");
  inner.style.setProperty("width", `${(100 * Math.min(1, Math.max(0, value || 0))).toFixed(1)}%`);
  return create("span", { class: "bar", "aria-hidden": "true" }, inner);
}

/** A score with three decimals, four where it is small. */
export function formatScore(value) {
  if (typeof value !== "number" || !Number.isFinite(value)) return "–";
  return value.toFixed(Math.abs(value) < 0.1 && value !== 0 ? 4 : 3).replace("-", "−");
}

/** A sentence as nodes; text between backticks becomes code. */
export const withCode = (sentence) =>
  sentence.split(/`([^`]+)`/).map((part, index) => (index % 2 ? create("code", {}, part) : part));

/** 1 document, 2 documents. */
export const plural = (count, noun) => `${count} ${noun}${count === 1 ? "" : "s"}`;
