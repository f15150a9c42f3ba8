/** HTTP requests to the server: a parsed response, or an APIError whose message can be shown to the user. */

const STORAGE_KEY = "decoder2vec-api-key";
let apiKey = loadKey();

function loadKey() {
  try {
    return sessionStorage.getItem(STORAGE_KEY) ?? "";
  } catch {
    return ""; // storage can be disabled; then the key lives as long as the page
  }
}

export const hasKey = () => apiKey !== "";

/** Store the API key until the tab is closed; an empty key removes it. */
export function setKey(key) {
  apiKey = key.trim();
  try {
    if (apiKey) sessionStorage.setItem(STORAGE_KEY, apiKey);
    else sessionStorage.removeItem(STORAGE_KEY);
  } catch {
    // storage is disabled, see above
  }
}

export class APIError extends Error {
  constructor(message, status = 0) {
    super(message);
    this.status = status;
  }
}

const DEFAULT_MESSAGES = {
  400: "The server could not use this request.",
  403: "This API key may not do that.",
  404: "This server does not offer that.",
  413: "The request is too large for the server; send less.",
  422: "The server could not use this request.",
  429: "The server is busy.",
  503: "The server is not ready.",
};

/** GET without a body, POST with one. Paths are relative, so that the page also works behind a path prefix. */
export async function request(path, body, signal) {
  const headers = { Accept: "application/json" };
  if (body !== undefined) headers["Content-Type"] = "application/json";
  // headers hold only Latin-1; a key with other characters is wrong anyway, and the server should reject it
  if (apiKey) headers.Authorization = `Bearer ${apiKey.replace(/[^\x21-\xff]/g, "?")}`;
  const method = body === undefined ? "GET" : "POST";
  let response;
  try {
    response = await fetch(path, { method, headers, signal, cache: "no-store", body: body && JSON.stringify(body) });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new APIError("The server does not answer. Is `d2v serve` still running?");
  }
  const content = await response.json().catch((error) => {
    if (error.name === "AbortError") throw error;
    return undefined;
  });
  if (!response.ok) throw new APIError(errorMessage(response, content), response.status);
  if (content === undefined) throw new APIError("The server’s response cannot be read.");
  return content;
}

function errorMessage(response, content) {
  if (response.status === 401) {
    return `${apiKey ? "The server does not accept this API key." : "This server requires an API key."} Enter it under “API key” above.`;
  }
  const sent = content?.error?.message;
  const unknown = `The server failed (status ${response.status}); its log says why.`;
  const message = typeof sent === "string" && sent.trim() ? sent.trim() : DEFAULT_MESSAGES[response.status] ?? unknown;
  const sentence = /[.!?]$/.test(message) ? message : `${message}.`;
  const seconds = Number(response.headers.get("Retry-After"));
  if (response.status === 429) return `${sentence} Try again in ${seconds > 1 ? `${Math.ceil(seconds)} seconds` : "a second"}.`;
  return sentence;
}
