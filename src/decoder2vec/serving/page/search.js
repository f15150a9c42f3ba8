/** The tab Search: a query, search options, and the hits with their best sentence highlighted. */

import { request } from "./api.js";
import { create, formatScore, plural } from "./elements.js";
import { onSubmit, panelRequest, showError } from "./requests.js";

const NO_INDEX = "This server has no index to search. Make one with `d2v index`, and start the server with `d2v serve ENCODER --index INDEX`.";

export function startSearch(panel) {
  const form = panel.querySelector("form");
  const [query, top, filter, rerank] = ["query", "top", "filter", "rerank"].map((name) => panel.querySelector(`#search-${name}`));
  let lastQuery = "";
  const send = panelRequest(panel, "search", (output, response) => show(output, response, lastQuery), NO_INDEX);

  function submit() {
    lastQuery = query.value.trim();
    const conditions = parseFilter(filter.value);
    if (!lastQuery || conditions === null) {
      showError(panel, lastQuery ? "Write the filter as key=value, separated by commas." : "Enter a query first.");
      (lastQuery ? filter : query).focus();
      return;
    }
    const body = { query: lastQuery, top: Number(top.value), mode: form.querySelector("[name=mode]:checked").value };
    if (rerank.checked) body.rerank = true;
    send(Object.keys(conditions).length ? { ...body, filter: conditions } : body, "Searching …");
  }

  onSubmit(form, submit);
  // a changed option repeats the last search
  form.addEventListener("change", (event) => lastQuery && event.target.matches("[name=mode], select, [type=checkbox]") && submit());
  offerReranker(rerank);
  return {};
}

/** Show the option if the server has a reranker. */
async function offerReranker(checkbox) {
  const { reranker } = await request("health").catch(() => ({}));
  checkbox.parentElement.hidden = !reranker;
}

/** "kind=note, year=2025" -> { kind: ["note"], year: ["2025"] }; a repeated key allows either value; null if invalid. */
export function parseFilter(text) {
  const conditions = new Map();
  for (const condition of text.split(",").map((part) => part.trim()).filter(Boolean)) {
    const [, key, value] = condition.match(/^([^=]+?)\s*=\s*(.+)$/) ?? [];
    if (!key) return null;
    conditions.set(key, [...(conditions.get(key) ?? []), value]);
  }
  return Object.fromEntries(conditions);
}

function show(output, { hits }, query) {
  output.replaceChildren(hits.length
    ? create("ol", { class: "hits", role: "list" }, ...hits.map((hit) => create("li", { class: "card" }, ...hitContent(hit))))
    : create("p", { class: "empty" }, "Nothing found. Try other words, or search by meaning."));
  return hits.length ? `${plural(hits.length, "document")} for “${query}”.` : `Nothing found for “${query}”.`;
}

function hitContent(hit) {
  const metadata = Object.entries(hit.metadata ?? {}).map(([key, value]) =>
    create("div", {}, create("dt", {}, key), create("dd", {}, typeof value === "object" ? JSON.stringify(value) : String(value))));
  const hasMore = hit.text && hit.text.trim() !== hit.snippet.text.trim();
  return [
    create("div", { class: "hit-head" }, create("h3", {}, hit.id),
      hit.rank_before ? create("span", { class: "before" }, `before: ${hit.rank_before}`) : null,
      create("span", { class: "score" }, create("span", { class: "visually-hidden" }, "score "), formatScore(hit.score))),
    create("p", { class: "snippet" }, ...highlighted(hit.snippet)),
    metadata.length ? create("dl", { class: "metadata" }, ...metadata) : null,
    hasMore ? create("details", {}, create("summary", {}, "More of the text"), create("p", { class: "full-text" }, hit.text)) : null,
  ].filter(Boolean);
}

/** The text with its highlights. The server counts code points; an emoji is one of those and two UTF-16 units here. */
export function highlighted({ text, highlights = [] }) {
  const codePoints = Array.from(text);
  const nodes = [];
  let position = 0;
  for (const [start, end] of [...highlights].sort((a, b) => a[0] - b[0])) {
    if (end <= Math.max(start, position)) continue;
    const from = Math.max(start, position);
    nodes.push(codePoints.slice(position, from).join(""), create("mark", {}, codePoints.slice(from, end).join("")));
    position = end;
  }
  return [...nodes, codePoints.slice(position).join("")];
}
