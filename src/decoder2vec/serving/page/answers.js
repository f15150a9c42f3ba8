/** What every tab does with a question: say that it works, then show the answer, or a sentence why there is none. */

import { make, spoken } from "./elements.js";
import { Refusal, ask } from "./server.js";

export function openKey() {
  const box = document.getElementById("key");
  box.open = true;
  box.querySelector("input").focus();
}

/** Put a sentence, or nothing, into the panel's alert. */
export function complain(panel, sentence, status) {
  const problem = panel.querySelector(".problem");
  problem.hidden = !sentence;
  problem.replaceChildren(...spoken(sentence ?? ""));
  if (status !== 401) return;
  const button = make("button", { type: "button", class: "link" }, "Enter API key");
  button.addEventListener("click", openKey);
  problem.append(" ", button);
}

/**
 * A function that asks the server and shows what it says in the panel. A new question ends the one before, so
 * answers never overtake each other. `show(output, answer)` returns the sentence for the status line; `missing` says
 * what to do where the server does not offer this (404), which is no failure.
 */
export function asking(panel, path, show, missing) {
  const output = panel.querySelector(".output");
  const status = panel.querySelector(".status");
  let last = null;

  return async function question(body, working = "Reading …") {
    last?.abort();
    const mine = (last = new AbortController());
    complain(panel);
    status.textContent = working;
    panel.setAttribute("aria-busy", "true");
    try {
      const answer = await ask(path, body, mine.signal);
      if (mine.signal.aborted) return false;
      status.textContent = understood(() => show(output, answer));
      return true;
    } catch (error) {
      if (mine.signal.aborted) return false;
      output.replaceChildren();
      status.textContent = "";
      if (!(error instanceof Refusal)) throw error;
      if (error.status === 404 && missing) output.replaceChildren(make("p", { class: "empty" }, ...spoken(missing)));
      else complain(panel, error.message, error.status);
    } finally {
      if (mine === last) panel.removeAttribute("aria-busy");
    }
    return false;
  };
}

function understood(show) {
  try {
    return show();
  } catch (error) {
    console.warn(error);
    throw new Refusal("The server’s answer has a form that this page does not know; are both of one version?");
  }
}

/** Call `send` when a form is sent, by its button or by Ctrl + Enter in a text. */
export function onSend(form, send) {
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    send();
  });
  form.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) form.requestSubmit();
  });
}
