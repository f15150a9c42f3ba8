/** Two sides matched: for every document on the left the best on the right, each with its reasons. */

import { asking, complain, onSend } from "./answers.js";
import { bar, count, make, score, table } from "./elements.js";
import { JOBS, RESUMES } from "./examples.js";
import { Side } from "./side.js";

export function startMatch(panel) {
  const form = panel.querySelector("form");
  const left = new Side(panel.querySelector("#match-left"), { one: "job", many: "jobs", hint: "Cloud engineer …" });
  const right = new Side(panel.querySelector("#match-right"), { one: "resume", many: "resumes", hint: "AWS and GCP, both certified …" });
  const question = asking(panel, "match", (output, answer) => show(output, answer, left, right));

  onSend(form, () => {
    for (const side of [left, right]) side.takeText();
    const empty = [left, right].find((side) => !side.documents.length);
    if (empty) {
      complain(panel, `Add a ${empty.one} first: paste it, or drop a file.`);
      empty.text.focus();
      return;
    }
    const plain = (side) => side.documents.map(({ id, text }) => ({ id, text }));
    question({ left: plain(left), right: plain(right), top: Number(panel.querySelector("#match-top").value) }, "Matching …");
  });
  form.querySelector("[data-example]").addEventListener("click", () => {
    left.replace(JOBS);
    right.replace(RESUMES);
    form.requestSubmit();
  });
  return {};
}

function show(output, { rankings }, left, right) {
  const names = [left, right].map((side) => new Map(side.documents.map((one) => [one.id, one.shown])));
  output.replaceChildren(...rankings.map((ranking) => make("section", { class: "ranking" },
    make("h3", {}, names[0].get(ranking.left) ?? ranking.left),
    make("ol", { class: "matches", role: "list" }, ...ranking.matches.map((match, place) =>
      matchCard(match, place, names[1].get(match.right) ?? match.right))))));
  return `${count(right.documents.length, "resume")} ranked for ${count(left.documents.length, "job")}, the best first.`;
}

function matchCard(match, place, name) {
  const reasons = [
    match.pairs?.length ? table("Sentences that say the most alike", ["Job", "Resume", "By meaning"],
      match.pairs.map((pair) => [pair.left, pair.right, score(pair.score)]), 2) : null,
    match.sections?.length ? table("Sections, and the section that fits each best", ["Job", "Resume", "By meaning"],
      match.sections.map((section) => [section.left, section.right, score(section.score)]), 2) : null,
  ].filter(Boolean);
  return make("li", { class: "card" },
    make("div", { class: "match-head" },
      make("span", { class: "rank", "aria-hidden": "true" }, String(place + 1)),
      make("h4", {}, name),
      make("span", { class: "score" }, make("span", { class: "unseen" }, "score "), score(match.score)),
      bar(match.score)),
    make("p", { class: "parts" }, `${score(match.dense)} by meaning, ${score(match.lexical)} by words`),
    terms("In both", match.matched, "has"),
    terms("Missing", match.missing, "lacks"),
    reasons.length ? make("details", { open: place === 0 }, make("summary", {}, "Sentences and sections"), ...reasons) : null);
}

function terms(title, words, kind) {
  if (!words?.length) return null;
  return make("div", { class: `terms ${kind}` }, make("h5", {}, title), make("ul", {}, ...words.map((word) => make("li", {}, word))));
}
