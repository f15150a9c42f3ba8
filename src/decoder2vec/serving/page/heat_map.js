/** A table of templates and layers, coloured by score and navigated with the arrow keys. */

import { create } from "./elements.js";

/** rows: those of a sweep; each cell shows the best row of its template and layer, and `describe(row)` says which. */
export function heatMap(rows, describe) {
  const best = new Map();
  const key = (template, column) => JSON.stringify([template, column]);
  for (const row of rows) {
    const cellKey = key(row.template, columnOf(row));
    if (!(best.get(cellKey)?.spearman >= row.spearman)) best.set(cellKey, row);
  }
  const templates = [...new Set(rows.map((row) => row.template))];
  const columns = [...new Set(rows.map(columnOf))].sort((a, b) => sortValue(a) - sortValue(b));
  const bestRow = (template, column) => best.get(key(template, column));
  // on a narrow screen the layers are the rows, so that the table does not scroll sideways
  const transposed = matchMedia("(max-width: 44rem)").matches;
  const [rowNames, columnNames] = transposed ? [columns, templates] : [templates, columns];
  const scores = [...best.values()].map((row) => row.spearman);
  const range = { low: Math.min(...scores), high: Math.max(...scores) };

  const readout = create("p", { class: "readout", "aria-hidden": "true" });
  const body = rowNames.map((rowName) => create("tr", {}, create("th", { scope: "row" }, ...breakable(rowName)),
    ...columnNames.map((name) => cell(transposed ? bestRow(name, rowName) : bestRow(rowName, name), range, describe))));
  const headers = columnNames.map((name) => create("th", { scope: "col" }, ...breakable(name)));
  const grid = create("table", { class: transposed ? "heat transposed" : "heat", role: "grid", "aria-label": "Scores by template and layer" },
    create("thead", {}, create("tr", {}, create("td", { class: "corner" }, transposed ? "layer" : "template"), ...headers)),
    create("tbody", {}, ...body));
  addKeyboardNavigation(grid, readout);
  return create("div", {}, create("div", { class: "scroll-x" }, grid), readout, legend(range),
    create("p", { class: "hint" }, "Use the arrow keys to move between cells. Layer 0 is the embeddings; n means “after the final norm”."));
}

/** A name with a possible line break after each underscore. */
const breakable = (name) => name.split(/(?<=_)/).flatMap((part) => [part, create("wbr")]);

const columnOf = (row) => `${row.layer}${row.normed ? "n" : ""}`;
const sortValue = (column) => parseInt(column, 10) + (column.endsWith("n") ? 0.5 : 0);

function cell(row, range, describe) {
  if (!row) return create("td", { tabindex: "-1", "aria-label": "– not tried", "data-label": "not tried" }, "–");
  const location = `${row.template}, layer ${row.layer}${row.normed ? " after the final norm" : ""}`;
  const label = `${location}: ${row.spearman.toFixed(2)}. ${describe(row)}`;
  // in steps of 5 %: the text colour changes between two steps, so that it is readable on each
  const heat = range.high > range.low ? Math.round((20 * (row.spearman - range.low)) / (range.high - range.low)) / 20 : 1;
  const classes = [heat > 0.62 && "hot", heat > 0.47 && "warm", row.spearman === range.high && "best"].filter(Boolean).join(" ");
  const text = row.spearman.toFixed(0).replace("-", "−");
  // the accessible name starts with the visible text, as speech input needs it
  const element = create("td", { tabindex: "-1", "aria-label": `${text}. ${label}`, "data-label": label, class: classes }, text);
  element.style.setProperty("--heat", `${(100 * heat).toFixed(1)}%`);
  return element;
}

/** One tab stop; arrows, Home and End move inside, as in the ARIA grid pattern. */
function addKeyboardNavigation(grid, readout) {
  const cells = [...grid.tBodies[0].rows].map((row) => [...row.cells].slice(1));
  const start = grid.querySelector(".best") ?? cells[0][0];
  start.tabIndex = 0;
  readout.textContent = start.dataset.label;
  const updateReadout = (event) => {
    const target = event.target.closest("[data-label]");
    if (target) readout.textContent = target.dataset.label;
  };
  grid.addEventListener("pointerover", updateReadout);
  grid.addEventListener("focusin", (event) => {
    grid.querySelector("[tabindex='0']")?.setAttribute("tabindex", "-1");
    event.target.tabIndex = 0;
    updateReadout(event);
  });
  grid.addEventListener("keydown", (event) => {
    const y = cells.findIndex((row) => row.includes(event.target));
    const x = cells[y]?.indexOf(event.target);
    const target = {
      ArrowRight: [y, x + 1], ArrowLeft: [y, x - 1], ArrowDown: [y + 1, x], ArrowUp: [y - 1, x],
      Home: [y, 0], End: [y, cells[0].length - 1],
    }[event.key];
    if (y < 0 || !target) return;
    event.preventDefault();
    cells[target[0]]?.[target[1]]?.focus();
  });
}

function legend({ low, high }) {
  return create("div", { class: "legend", "aria-hidden": "true" }, create("span", {}, low.toFixed(1).replace("-", "−")),
    create("span", { class: "ramp" }), create("span", {}, high.toFixed(1).replace("-", "−")));
}
