/** Questions to the server: an answer, or a Refusal whose message is a sentence for people. */

const KEPT = "decoder2vec-api-key";
let key = remembered();

function remembered() {
  try {
    return sessionStorage.getItem(KEPT) ?? "";
  } catch {
    return ""; // storage can be switched off; then the key lives as long as the page
  }
}

export const hasKey = () => key !== "";

/** Keep the key until the tab is closed; an empty one is forgotten. */
export function useKey(given) {
  key = given.trim();
  try {
    if (key) sessionStorage.setItem(KEPT, key);
    else sessionStorage.removeItem(KEPT);
  } catch {
    // see above
  }
}

export class Refusal extends Error {
  constructor(message, status = 0) {
    super(message);
    this.status = status;
  }
}

const OTHERWISE = {
  400: "The server could not use this request.",
  403: "This API key may not do that.",
  404: "This server does not offer that.",
  413: "That is more than the server takes at once; send less.",
  422: "The server could not use this request.",
  429: "The server is busy.",
  503: "The server is not ready.",
};

/** GET without a body, POST with one. Paths have no slash in front, so the page also works behind a prefix. */
export async function ask(path, body, signal) {
  const headers = { Accept: "application/json" };
  if (body !== undefined) headers["Content-Type"] = "application/json";
  // a header holds no sign beyond Latin-1; a key with others is wrong in any case, and the server shall say so
  if (key) headers.Authorization = `Bearer ${key.replace(/[^\x21-\xff]/g, "?")}`;
  const method = body === undefined ? "GET" : "POST";
  let answer;
  try {
    answer = await fetch(path, { method, headers, signal, cache: "no-store", body: body && JSON.stringify(body) });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Refusal("The server does not answer. Is `d2v serve` still running?");
  }
  const said = await answer.json().catch((error) => {
    if (error.name === "AbortError") throw error;
    return undefined;
  });
  if (!answer.ok) throw new Refusal(sentence(answer, said), answer.status);
  if (said === undefined) throw new Refusal("The server’s answer cannot be read.");
  return said;
}

function sentence(answer, said) {
  if (answer.status === 401) {
    return `${key ? "The server does not accept this API key." : "This server asks for an API key."} Enter it under “API key” above.`;
  }
  const message = said?.error?.message;
  const failed = `The server failed at this (status ${answer.status}); its log says why.`;
  const words = typeof message === "string" && message.trim() ? message.trim() : OTHERWISE[answer.status] ?? failed;
  const ended = /[.!?]$/.test(words) ? words : `${words}.`;
  const wait = Number(answer.headers.get("Retry-After"));
  if (answer.status === 429) return `${ended} Try again in ${wait > 1 ? `${Math.ceil(wait)} seconds` : "a second"}.`;
  return ended;
}
