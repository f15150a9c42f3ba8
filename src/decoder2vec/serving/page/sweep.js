/** The tab Layers: the results of `d2v sweep` as a heat map, for any pooling, attention and head, or the best of each. */

import { create } from "./elements.js";
import { heatMap } from "./heat_map.js";
import { panelRequest } from "./requests.js";

const FILTERS = { pooling: "Pooling", attention: "Attention", head: "Head" };
const BEST = "the best";
const NO_SWEEP = "This server has no sweep to show. Run `d2v sweep MODEL --data PAIRS --out DIR`, and start the server with `d2v serve ENCODER --sweep DIR/sweep.json`.";

export function startSweep(panel) {
  const form = panel.querySelector("form");
  const send = panelRequest(panel, "sweep", (output, sweep) => show(output, sweep, form), NO_SWEEP);
  let loaded = false;
  return {
    /** Load the sweep when the tab is first opened: the file is large, and most visits do not need it. */
    async onOpen() {
      if (loaded) return;
      loaded = await send(undefined, "Loading the sweep …");
      form.hidden = !loaded;
    },
  };
}

function show(output, sweep, form) {
  const rows = sweep.rows.filter((row) => Number.isFinite(row.spearman));
  const map = create("div", { class: "card" });
  const fields = Object.entries(FILTERS).map(([name, title]) => filterField(name, title, rows));
  const activeFilters = () => fields.map((field) => field.querySelector("select")).filter((select) => select.value !== BEST);
  const redraw = () => {
    const filters = activeFilters();
    const selected = rows.filter((row) => filters.every((select) => row[select.name] === select.value));
    map.replaceChildren(selected.length ? heatMap(selected, describe) : create("p", {}, "The sweep has no results for this combination."));
  };
  form.replaceChildren(...fields);
  form.onchange = redraw;
  form.onsubmit = (event) => event.preventDefault();
  redraw();
  output.replaceChildren(create("p", { class: "winner" }, ...winnerText(sweep)), map);
  return `${rows.length} combinations of ${sweep.model} on ${sweep.data.name}.`;
}

function filterField(name, title, rows) {
  const values = [...new Set(rows.map((row) => row[name]))].sort();
  const options = [BEST, ...values].map((value) => create("option", { value }, value));
  return create("div", { class: "field" },
    create("label", { for: `sweep-${name}` }, title), create("select", { id: `sweep-${name}`, name }, ...options));
}

function winnerText({ winner, test }) {
  const interval = test?.spearman_95 ? ` (95 %: ${test.spearman_95.map((bound) => bound.toFixed(1)).join(" to ")})` : "";
  const testScore = test ? `, and ${test.spearman.toFixed(1)} on ${test.task}${interval}` : "";
  const layer = `layer ${winner.layer}${winner.normed ? " after the final norm" : ""}`;
  return ["Best: ", create("strong", {}, `${winner.template}, ${layer}`), ` with ${describe(winner)}: ${winner.spearman.toFixed(2)}${testScore}.`];
}

const describe = (row) => [row.pooling, row.attention, row.head === "none" ? "no head" : row.head].join(", ");
