/** The tab Compare: the similarity of two texts, by the encoder and in every layer. */

import { curve } from "./curve.js";
import { create, formatScore } from "./elements.js";
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

function show(output, { similarity, scale, layers }, encoderLayers) {
  const points = layers.filter((point) => Number.isFinite(point.similarity)).sort((a, b) => a.layer - b.layer);
  const sentence = meaning(similarity, scale);
  output.replaceChildren(
    create("div", { class: "verdict card" },
      create("p", { class: "figure" }, formatScore(similarity)),
      create("div", {}, create("p", { class: "figure-name" }, sentence), scaleBar(similarity, scale))),
    create("div", { class: "card" },
      create("h3", {}, "Layer by layer"),
      points.length ? curve(points, encoderLayers, similarity) : create("p", {}, "This encoder has no layers to compare.")),
  );
  return `The similarity is ${formatScore(similarity)}: ${sentence}`;
}

/** A similarity in words. Every encoder has a level of its own, so it is compared with pairs that are known. */
function meaning(similarity, { unrelated, paraphrases }) {
  if (similarity >= paraphrases.low && similarity > unrelated.high) return "As similar as paraphrases are with this encoder.";
  if (similarity <= unrelated.high) return "No more similar than unrelated sentences are with this encoder.";
  const middle = (unrelated.high + paraphrases.low) / 2;
  if (similarity >= middle) return "Nearly as similar as paraphrases are with this encoder.";
  return "A little more similar than unrelated sentences are with this encoder.";
}

/** A scale up to 1 with the ranges of unrelated sentences and paraphrases, and a mark at the similarity. */
function scaleBar(similarity, { unrelated, paraphrases }) {
  const low = Math.min(unrelated.low, paraphrases.low, similarity);
  const position = (value) => `${(100 * Math.max(0, Math.min(1, (value - low) / (1 - low || 1)))).toFixed(1)}%`;
  const range = (name, { low: from, high: to }) => {
    const zone = create("span", { class: `zone ${name}` });
    zone.style.setProperty("left", position(from));
    zone.style.setProperty("right", `calc(100% - ${position(to)})`);
    return zone;
  };
  const mark = create("span", { class: "mark" });
  mark.style.setProperty("left", position(similarity));
  const label = (name, words, { low: from, high: to }) =>
    create("li", { class: name }, `${words}: ${from.toFixed(2)} to ${to.toFixed(2)}`);
  return create("div", {},
    create("div", { class: "scale", "aria-hidden": "true" }, range("unrelated", unrelated), range("paraphrases", paraphrases), mark),
    create("ul", { class: "scale-key" }, label("unrelated", "unrelated sentences", unrelated), label("paraphrases", "paraphrases", paraphrases)));
}
