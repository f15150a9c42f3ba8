/** The index: a question, how to find, and the documents with their best sentence marked. */

import { asking, complain, onSend } from "./answers.js";
import { count, make, score } from "./elements.js";

const NONE = "This server has no index to search. Make one with `d2v index`, and start the server with `d2v serve ENCODER --index INDEX`.";

export function startSearch(panel) {
  const form = panel.querySelector("form");
  const [query, top, filter] = ["query", "top", "filter"].map((name) => panel.querySelector(`#search-${name}`));
  let asked = "";
  const question = asking(panel, "search", (output, answer) => show(output, answer, asked), NONE);

  function send() {
    asked = query.value.trim();
    const wanted = readFilter(filter.value);
    if (!asked || wanted === null) {
      complain(panel, asked ? "Write the filter as key=value, several with commas between them." : "Write what you are looking for first.");
      (asked ? filter : query).focus();
      return;
    }
    const body = { query: asked, top: Number(top.value), mode: form.querySelector("[name=mode]:checked").value };
    question(Object.keys(wanted).length ? { ...body, filter: wanted } : body, "Searching …");
  }

  onSend(form, send);
  // another way to look for what was asked already
  form.addEventListener("change", (event) => asked && event.target.matches("[name=mode], select") && send());
  return {};
}

/** "kind=note, year=2025" -> { kind: ["note"], year: ["2025"] }; a key named twice takes either; null if it is no filter. */
export function readFilter(text) {
  const wanted = new Map();
  for (const part of text.split(",").map((one) => one.trim()).filter(Boolean)) {
    const [, key, value] = part.match(/^([^=]+?)\s*=\s*(.+)$/) ?? [];
    if (!key) return null;
    wanted.set(key, [...(wanted.get(key) ?? []), value]);
  }
  return Object.fromEntries(wanted);
}

function show(output, { hits }, asked) {
  output.replaceChildren(hits.length
    ? make("ol", { class: "hits", role: "list" }, ...hits.map((hit) => make("li", { class: "card" }, ...found(hit))))
    : make("p", { class: "empty" }, "Nothing found. Try other words, or look by meaning."));
  return hits.length ? `${count(hits.length, "document")} for “${asked}”.` : `Nothing found for “${asked}”.`;
}

function found(hit) {
  const facts = Object.entries(hit.metadata ?? {}).map(([key, value]) =>
    make("div", {}, make("dt", {}, key), make("dd", {}, typeof value === "object" ? JSON.stringify(value) : String(value))));
  const longer = hit.text && hit.text.trim() !== hit.snippet.text.trim();
  return [
    make("div", { class: "hit-head" }, make("h3", {}, hit.id), make("span", { class: "score" },
      make("span", { class: "unseen" }, "score "), score(hit.score))),
    make("p", { class: "snippet" }, ...marked(hit.snippet)),
    facts.length ? make("dl", { class: "facts" }, ...facts) : null,
    longer ? make("details", {}, make("summary", {}, "More of the text"), make("p", { class: "whole" }, hit.text)) : null,
  ].filter(Boolean);
}

/** The text with its highlights. The server counts characters as Python does: an emoji is one, and here it is two. */
export function marked({ text, highlights = [] }) {
  const signs = Array.from(text);
  const parts = [];
  let done = 0;
  for (const [start, end] of [...highlights].sort((one, other) => one[0] - other[0])) {
    if (end <= Math.max(start, done)) continue;
    const from = Math.max(start, done);
    parts.push(signs.slice(done, from).join(""), make("mark", {}, signs.slice(from, end).join("")));
    done = end;
  }
  return [...parts, signs.slice(done).join("")];
}
