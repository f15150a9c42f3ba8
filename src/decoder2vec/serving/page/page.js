/** The page: tabs, the key, and which model answers. Each tab is a file of its own. */

import { openKey } from "./answers.js";
import { startCompare } from "./compare.js";
import { make, spoken } from "./elements.js";
import { startMatch } from "./match.js";
import { startSearch } from "./search.js";
import { ask, hasKey, useKey } from "./server.js";
import { startSweep } from "./sweep.js";
import { tabs } from "./tabs.js";

const at = (id) => document.getElementById(id);

const facts = (model) =>
  [
    ["layer", model.layer],
    ["pooling", model.pooling],
    ["template", model.template],
    ["fingerprint", model.fingerprint],
  ]
    .map(([name, value]) => [name, [value ?? []].flat().join(", ")]) // an encoder may read several layers
    .filter(([, value]) => value);

function described(model) {
  const said = facts(model).map(([name, value]) =>
    make("div", {}, make("dt", {}, name), make("dd", { title: value }, value)));
  return make("div", { class: "model" }, make("strong", {}, model.id), make("dl", {}, ...said));
}

async function showModels() {
  const place = at("models");
  try {
    const { data } = await ask("v1/models");
    const [first, ...others] = data;
    const more = others.length
      ? [make("details", {}, make("summary", {}, `and ${others.length} more`), ...others.map(described))]
      : [];
    place.replaceChildren(...(first ? [described(first), ...more] : ["This server has no model."]));
    return data;
  } catch (error) {
    place.replaceChildren(...spoken(error.message));
    if (error.status === 401) openKey();
    return [];
  }
}

let models = showModels();
const panels = {
  compare: startCompare(at("compare"), () => models),
  search: startSearch(at("search")),
  match: startMatch(at("match")),
  sweep: startSweep(at("sweep")),
};

function showKey() {
  at("key-state").textContent = hasKey() ? " in use" : "";
  at("key-forget").hidden = !hasKey();
}

function changeKey(key) {
  useKey(key);
  at("key-field").value = "";
  at("key").open = false;
  at("key").querySelector("summary").focus();
  showKey();
  models = showModels();
}

at("key-form").addEventListener("submit", (event) => {
  event.preventDefault();
  changeKey(at("key-field").value);
});
at("key-forget").addEventListener("click", () => changeKey(""));
at("key").addEventListener("keydown", (event) => {
  if (event.key !== "Escape") return;
  at("key").open = false;
  at("key").querySelector("summary").focus();
});
showKey();

// a file dropped beside its place would replace the page, and what was typed with it
for (const kind of ["dragover", "drop"]) window.addEventListener(kind, (event) => event.preventDefault());

tabs(document.querySelector("[role=tablist]"), (name) => panels[name]?.opened?.());
