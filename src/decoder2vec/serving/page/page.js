/** The page: its tabs, the API key and the models of the server. Each tab has a file of its own. */

import { hasKey, request, setKey } from "./api.js";
import { startCompare } from "./compare.js";
import { startDescribe } from "./describe.js";
import { create, withCode } from "./elements.js";
import { startMatch } from "./match.js";
import { openKeyForm } from "./requests.js";
import { startSearch } from "./search.js";
import { startSweep } from "./sweep.js";
import { startTabs } from "./tabs.js";

const byId = (id) => document.getElementById(id);

const modelFacts = (model) =>
  [
    ["layer", model.layer],
    ["pooling", model.pooling],
    ["template", model.template],
    ["fingerprint", model.fingerprint],
  ]
    .map(([name, value]) => [name, [value ?? []].flat().join(", ")]) // an encoder may read several layers
    .filter(([, value]) => value);

function modelElement(model) {
  const facts = modelFacts(model).map(([name, value]) =>
    create("div", {}, create("dt", {}, name), create("dd", { title: value }, value)));
  return create("div", { class: "model" }, create("strong", {}, model.id), create("dl", {}, ...facts));
}

async function showModels() {
  const container = byId("models");
  try {
    const { data } = await request("v1/models");
    const [first, ...others] = data;
    const more = others.length
      ? [create("details", {}, create("summary", {}, `and ${others.length} more`), ...others.map(modelElement))]
      : [];
    container.replaceChildren(...(first ? [modelElement(first), ...more] : ["This server has no model."]));
    return data;
  } catch (error) {
    container.replaceChildren(...withCode(error.message));
    if (error.status === 401) openKeyForm();
    return [];
  }
}

let models = showModels();
const panels = {
  compare: startCompare(byId("compare"), () => models),
  search: startSearch(byId("search")),
  match: startMatch(byId("match")),
  describe: startDescribe(byId("describe")),
  sweep: startSweep(byId("sweep")),
};

function showKeyState() {
  byId("key-state").textContent = hasKey() ? " in use" : "";
  byId("key-remove").hidden = !hasKey();
}

function changeKey(key) {
  setKey(key);
  byId("key-field").value = "";
  byId("key").open = false;
  byId("key").querySelector("summary").focus();
  showKeyState();
  models = showModels();
}

byId("key-form").addEventListener("submit", (event) => {
  event.preventDefault();
  changeKey(byId("key-field").value);
});
byId("key-remove").addEventListener("click", () => changeKey(""));
byId("key").addEventListener("keydown", (event) => {
  if (event.key !== "Escape") return;
  byId("key").open = false;
  byId("key").querySelector("summary").focus();
});
showKeyState();

// a file dropped outside a drop zone would replace the page, and the user's input with it
for (const type of ["dragover", "drop"]) window.addEventListener(type, (event) => event.preventDefault());

startTabs(document.querySelector("[role=tablist]"), (name) => panels[name]?.onOpen?.());
