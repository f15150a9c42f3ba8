/** The tab Match: for every document on the left side the best ones on the right side, with reasons. */

import { bar, create, formatScore, plural, table } from "./elements.js";
import { JOBS, RESUMES } from "./examples.js";
import { onSubmit, panelRequest, showError } from "./requests.js";
import { Side } from "./side.js";

export function startMatch(panel) {
  const form = panel.querySelector("form");
  const left = new Side(panel.querySelector("#match-left"), { noun: "job", placeholder: "Cloud engineer …" });
  const right = new Side(panel.querySelector("#match-right"), { noun: "resume", placeholder: "AWS and GCP, both certified …" });
  const send = panelRequest(panel, "match", (output, response) => show(output, response, left, right));

  onSubmit(form, () => {
    for (const side of [left, right]) side.addPastedText();
    const emptySide = [left, right].find((side) => !side.documents.length);
    if (emptySide) {
      showError(panel, `Add a ${emptySide.noun} first: paste it, or drop a file.`);
      emptySide.textarea.focus();
      return;
    }
    const requestDocuments = (side) => side.documents.map(({ id, text }) => ({ id, text }));
    const top = Number(panel.querySelector("#match-top").value);
    send({ left: requestDocuments(left), right: requestDocuments(right), top }, "Matching …");
  });
  form.querySelector("[data-example]").addEventListener("click", () => {
    left.replace(JOBS);
    right.replace(RESUMES);
    form.requestSubmit();
  });
  return {};
}

function show(output, { rankings, score_meaning: meaning }, left, right) {
  const [leftLabels, rightLabels] = [left, right].map((side) => new Map(side.documents.map(({ id, label }) => [id, label])));
  output.replaceChildren(create("p", { class: "hint" }, meaning), ...rankings.map((ranking) => create("section", { class: "ranking" },
    create("h3", {}, leftLabels.get(ranking.left) ?? ranking.left),
    create("ol", { class: "matches", role: "list" }, ...ranking.matches.map((match, index) =>
      matchCard(match, index, rightLabels.get(match.right) ?? match.right))))));
  return `${plural(right.documents.length, "resume")} ranked for ${plural(left.documents.length, "job")}, best first.`;
}

function matchCard(match, index, label) {
  const pairTable = (caption, pairs) => (pairs?.length
    ? table(caption, ["Job", "Resume", "By meaning"], pairs.map((pair) => [pair.left, pair.right, formatScore(pair.score)]), 2)
    : null);
  const reasons = [
    pairTable("Most similar sentences", match.pairs),
    pairTable("Sections, each with its best match", match.sections),
  ].filter(Boolean);
  return create("li", { class: "card" },
    create("div", { class: "match-head" },
      create("span", { class: "rank", "aria-hidden": "true" }, String(index + 1)),
      create("h4", {}, label),
      create("span", { class: "score" }, create("span", { class: "visually-hidden" }, "score "), match.score.toFixed(2)),
      bar(match.score)),
    create("p", { class: "score-parts" }, `By meaning ${match.dense.toFixed(2)}, terms in common ${percent(match.lexical)}; above ${percent(match.above)} of all pairs.`),
    termList("In both", match.matched, "matched"),
    termList("Missing", match.missing, "missing"),
    reasons.length ? create("details", { open: index === 0 }, create("summary", {}, "Sentences and sections"), ...reasons) : null);
}

const percent = (share) => `${Math.round(100 * share)} %`;

function termList(title, terms, kind) {
  if (!terms?.length) return null;
  return create("div", { class: `terms ${kind}` }, create("h5", {}, title), create("ul", {}, ...terms.map((term) => create("li", {}, term))));
}
