/** What `d2v sweep` found: a map of templates and layers, for any pooling, direction and head, or the best of each. */

import { asking } from "./answers.js";
import { make } from "./elements.js";
import { heatMap } from "./heat_map.js";

const CHOICES = { pooling: "Pooling", attention: "Attention", head: "Head" };
const BEST = "the best";
const NONE = "This server has no sweep to show. Run `d2v sweep MODEL --data PAIRS --out DIR`, and start the server with `d2v serve ENCODER --sweep DIR/sweep.json`.";

export function startSweep(panel) {
  const form = panel.querySelector("form");
  const question = asking(panel, "sweep", (output, sweep) => show(output, sweep, form), NONE);
  let shown = false;
  return {
    /** Asked for when it is first looked at: the file is large, and most who come want something else. */
    async opened() {
      if (shown) return;
      shown = await question(undefined, "Reading the sweep …");
      form.hidden = !shown;
    },
  };
}

function show(output, sweep, form) {
  const rows = sweep.rows.filter((row) => Number.isFinite(row.spearman));
  const map = make("div", { class: "card" });
  const fields = Object.entries(CHOICES).map(([name, title]) => choice(name, title, rows));
  const wanted = () => fields.map((field) => field.querySelector("select")).filter((one) => one.value !== BEST);
  const redraw = () => {
    const chosen = rows.filter((row) => wanted().every((select) => row[select.name] === select.value));
    map.replaceChildren(chosen.length ? heatMap(chosen, describe) : make("p", {}, "Nothing was tried this way."));
  };
  form.replaceChildren(...fields);
  form.onchange = redraw;
  form.onsubmit = (event) => event.preventDefault();
  redraw();
  output.replaceChildren(make("p", { class: "winner" }, ...verdict(sweep)), map);
  return `${rows.length} combinations of ${sweep.model} on ${sweep.data.name}.`;
}

function choice(name, title, rows) {
  const values = [...new Set(rows.map((row) => row[name]))].sort();
  const options = [BEST, ...values].map((value) => make("option", { value }, value));
  return make("div", { class: "field" },
    make("label", { for: `sweep-${name}` }, title), make("select", { id: `sweep-${name}`, name }, ...options));
}

function verdict({ winner, test }) {
  const tested = test
    ? `, and ${test.spearman.toFixed(1)} on ${test.task}${test.spearman_95 ? ` (95 %: ${test.spearman_95.map((end) => end.toFixed(1)).join(" to ")})` : ""}`
    : "";
  return ["Best of all: ", make("strong", {}, `${winner.template}, ${place(winner)}`), ` with ${describe(winner)}: ${winner.spearman.toFixed(2)}${tested}.`];
}

const place = (row) => `layer ${row.layer}${row.normed ? " behind the final norm" : ""}`;

const describe = (row) => [row.pooling, row.attention, row.head === "none" ? "no head" : row.head].join(", ");
