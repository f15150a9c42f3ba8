/** Two texts, their similarity, and that of every layer. */

import { asking, complain, onSend } from "./answers.js";
import { curve } from "./curve.js";
import { bar, make, score } from "./elements.js";
import { PAIRS } from "./examples.js";

/** `models` gives a promise of the server's models: the first one answers, and what it reads is marked. */
export function startCompare(panel, models) {
  const form = panel.querySelector("form");
  const [a, b] = form.querySelectorAll("textarea");
  let own = [];
  const question = asking(panel, "compare", (output, answer) => show(output, answer, own));

  onSend(form, async () => {
    if (!a.value.trim() || !b.value.trim()) {
      complain(panel, "Write a text on both sides first.");
      (a.value.trim() ? b : a).focus();
      return;
    }
    own = [(await models())[0]?.layer ?? []].flat();
    question({ a: a.value, b: b.value });
  });
  let next = 0;
  form.querySelector("[data-example]").addEventListener("click", () => {
    [a.value, b.value] = PAIRS[next++ % PAIRS.length];
    form.requestSubmit();
  });
  return {};
}

function show(output, { similarity, layers }, own) {
  const points = layers.filter((point) => Number.isFinite(point.similarity)).sort((one, other) => one.layer - other.layer);
  output.replaceChildren(
    make("div", { class: "verdict card" },
      make("p", { class: "figure" }, score(similarity)),
      make("div", {}, make("p", { class: "figure-name" }, "similarity"), bar(similarity))),
    make("div", { class: "card" },
      make("h3", {}, "Layer by layer"),
      points.length ? curve(points, own) : make("p", {}, "This encoder does not say what its layers do.")),
  );
  return `The similarity is ${score(similarity)}.`;
}
