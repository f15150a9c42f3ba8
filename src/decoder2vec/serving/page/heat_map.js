/** A table of templates and layers, coloured by score, walked through with the arrow keys. */

import { make } from "./elements.js";

/** rows: those of a sweep; of several for one template and layer the best is shown, and `describe(row)` says which. */
export function heatMap(rows, describe) {
  const best = new Map();
  const key = (template, column) => JSON.stringify([template, column]);
  for (const row of rows) {
    const at = key(row.template, columnOf(row));
    if (!(best.get(at)?.spearman >= row.spearman)) best.set(at, row);
  }
  const templates = [...new Set(rows.map((row) => row.template))];
  const columns = [...new Set(rows.map(columnOf))].sort((one, other) => order(one) - order(other));
  const cellOf = (template, column) => best.get(key(template, column));
  // on a narrow screen the layers go down the page, so that nothing has to be scrolled sideways
  const upright = matchMedia("(max-width: 44rem)").matches;
  const [down, across] = upright ? [columns, templates] : [templates, columns];
  const scores = [...best.values()].map((row) => row.spearman);
  const range = { low: Math.min(...scores), high: Math.max(...scores) };

  const reading = make("p", { class: "reading", "aria-hidden": "true" });
  const body = down.map((side) => make("tr", {}, make("th", { scope: "row" }, ...breakable(side)),
    ...across.map((top) => cell(upright ? cellOf(top, side) : cellOf(side, top), range, describe))));
  const grid = make("table", { class: upright ? "heat upright" : "heat", role: "grid", "aria-label": "Scores by template and layer" },
    make("thead", {}, make("tr", {}, make("td", { class: "corner" }, upright ? "layer" : "template"), ...across.map((name) => make("th", { scope: "col" }, ...breakable(name))))),
    make("tbody", {}, ...body));
  walkable(grid, reading);
  return make("div", {}, make("div", { class: "wide" }, grid), reading, legend(range),
    make("p", { class: "hint" }, "Arrow keys walk from cell to cell. Layer 0 is the embeddings; n stands for “behind the final norm”."));
}

/** A name that may go on in the next line behind each underscore. */
const breakable = (name) => name.split(/(?<=_)/).flatMap((part) => [part, make("wbr")]);

const columnOf = (row) => `${row.layer}${row.normed ? "n" : ""}`;
const order = (column) => parseInt(column, 10) + (column.endsWith("n") ? 0.5 : 0);

function cell(row, range, describe) {
  if (!row) return make("td", { tabindex: "-1", "aria-label": "– not tried", "data-said": "not tried" }, "–");
  const where = `${row.template}, layer ${row.layer}${row.normed ? " behind the final norm" : ""}`;
  const said = `${where}: ${row.spearman.toFixed(2)}. ${describe(row)}`;
  // in steps of a twentieth: between two of them the text changes colour, so that it can be read on all
  const share = range.high > range.low ? Math.round((20 * (row.spearman - range.low)) / (range.high - range.low)) / 20 : 1;
  const kinds = [share > 0.62 && "deep", share > 0.47 && "half", row.spearman === range.high && "peak"].filter(Boolean).join(" ");
  const shown = row.spearman.toFixed(0).replace("-", "−");
  // a name begins with what is seen, so that it can also be spoken to
  const made = make("td", { tabindex: "-1", "aria-label": `${shown}. ${said}`, "data-said": said, class: kinds }, shown);
  made.style.setProperty("--heat", `${(100 * share).toFixed(1)}%`);
  return made;
}

/** One stop for Tab; arrows, Home and End inside, as the pattern of a grid has it. */
function walkable(grid, reading) {
  const cells = [...grid.tBodies[0].rows].map((row) => [...row.cells].slice(1));
  const start = grid.querySelector(".peak") ?? cells[0][0];
  start.tabIndex = 0;
  reading.textContent = start.dataset.said;
  const tell = (event) => {
    const one = event.target.closest("[data-said]");
    if (one) reading.textContent = one.dataset.said;
  };
  grid.addEventListener("pointerover", tell);
  grid.addEventListener("focusin", (event) => {
    grid.querySelector("[tabindex='0']")?.setAttribute("tabindex", "-1");
    event.target.tabIndex = 0;
    tell(event);
  });
  grid.addEventListener("keydown", (event) => {
    const y = cells.findIndex((row) => row.includes(event.target));
    const x = cells[y]?.indexOf(event.target);
    const to = {
      ArrowRight: [y, x + 1], ArrowLeft: [y, x - 1], ArrowDown: [y + 1, x], ArrowUp: [y - 1, x],
      Home: [y, 0], End: [y, cells[0].length - 1],
    }[event.key];
    if (y < 0 || !to) return;
    event.preventDefault();
    cells[to[0]]?.[to[1]]?.focus();
  });
}

function legend({ low, high }) {
  return make("div", { class: "legend", "aria-hidden": "true" }, make("span", {}, low.toFixed(1).replace("-", "−")),
    make("span", { class: "ramp" }), make("span", {}, high.toFixed(1).replace("-", "−")));
}
