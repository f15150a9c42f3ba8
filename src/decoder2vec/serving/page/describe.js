/** The tab Describe: what the vector of a text says in words, and what the bridge says without any vector. */

import { create } from "./elements.js";
import { onSubmit, panelRequest, showError } from "./requests.js";

const EXAMPLE = "A woman plays a slow piano piece while rain falls on the city.";
const NO_BRIDGE = "This server describes no vectors. Train a bridge on vectors of its encoder with `d2v bridge VECTORS --loss lm --out BRIDGE`, and start the server with `d2v serve ENCODER --describe BRIDGE`.";

export function startDescribe(panel) {
  const form = panel.querySelector("form");
  const textarea = panel.querySelector("textarea");
  const send = panelRequest(panel, "describe", show, NO_BRIDGE);

  onSubmit(form, () => {
    if (!textarea.value.trim()) {
      showError(panel, "Enter a text first.");
      textarea.focus();
      return;
    }
    send({ text: textarea.value }, "Describing …");
  });
  form.querySelector("[data-example]").addEventListener("click", () => {
    textarea.value = EXAMPLE;
    form.requestSubmit();
  });
  return {};
}

function show(output, { description, without_vector: blind }) {
  output.replaceChildren(create("div", { class: "card" },
    create("h3", {}, "The vector says"), create("p", {}, description || "(nothing)"),
    create("h3", {}, "Without a vector"), create("p", { class: "hint" }, blind || "(nothing)")));
  return "Only what differs from the text without a vector is due to the vector.";
}
