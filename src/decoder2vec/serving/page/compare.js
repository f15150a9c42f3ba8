/** The tab Compare: the similarity of two texts, by the encoder and in every layer. */

import { curve } from "./curve.js";
import { bar, create, formatScore } from "./elements.js";
import { PAIRS } from "./examples.js";
import { onSubmit, panelRequest, showError } from "./requests.js";

/** `models` returns a promise of the server's models: the first one is used, and the layers it reads are marked. */
export function startCompare(panel, models) {
  const form = panel.querySelector("form");
  const [a, b] = form.querySelectorAll("textarea");
  let encoderLayers = [];
  const send = panelRequest(panel, "compare", (output, response) => show(output, response, encoderLayers));

  onSubmit(form, async () => {
    if (!a.value.trim() || !b.value.trim()) {
      showError(panel, "Enter two texts first.");
      (a.value.trim() ? b : a).focus();
      return;
    }
    encoderLayers = [(await models())[0]?.layer ?? []].flat();
    send({ a: a.value, b: b.value });
  });
  let nextExample = 0;
  form.querySelector("[data-example]").addEventListener("click", () => {
    [a.value, b.value] = PAIRS[nextExample++ % PAIRS.length];
    form.requestSubmit();
  });
  return {};
}

function show(output, { similarity, layers }, encoderLayers) {
  const points = layers.filter((point) => Number.isFinite(point.similarity)).sort((a, b) => a.layer - b.layer);
  output.replaceChildren(
    create("div", { class: "verdict card" },
      create("p", { class: "figure" }, formatScore(similarity)),
      create("div", {}, create("p", { class: "figure-name" }, "similarity"), bar(similarity))),
    create("div", { class: "card" },
      create("h3", {}, "Layer by layer"),
      points.length ? curve(points, encoderLayers) : create("p", {}, "This encoder has no layers to compare.")),
  );
  return `The similarity is ${formatScore(similarity)}.`;
}
