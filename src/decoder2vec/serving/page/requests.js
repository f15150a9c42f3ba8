/** Send the request of a tab, show that it is running, then its result or an error message. */

import { APIError, request } from "./api.js";
import { create, withCode } from "./elements.js";

export function openKeyForm() {
  const details = document.getElementById("key");
  details.open = true;
  details.querySelector("input").focus();
}

/** Show an error message in the panel; without a message, hide it. */
export function showError(panel, message, status) {
  const alert = panel.querySelector(".error");
  alert.hidden = !message;
  alert.replaceChildren(...withCode(message ?? ""));
  if (status !== 401) return;
  const button = create("button", { type: "button", class: "link" }, "Enter API key");
  button.addEventListener("click", openKeyForm);
  alert.append(" ", button);
}

/**
 * Return a function that sends a request and shows the response in the panel. A new request aborts the one before, so
 * responses never overtake each other. `show(output, response)` returns the text of the status line. `missing` is shown
 * instead of an error if the server does not have the resource (404).
 */
export function panelRequest(panel, path, show, missing) {
  const output = panel.querySelector(".output");
  const status = panel.querySelector(".status");
  let latest = null;

  return async function send(body, progress = "Working …") {
    latest?.abort();
    const controller = (latest = new AbortController());
    showError(panel);
    status.textContent = progress;
    panel.setAttribute("aria-busy", "true");
    try {
      const response = await request(path, body, controller.signal);
      if (controller.signal.aborted) return false;
      status.textContent = showResponse(() => show(output, response));
      return true;
    } catch (error) {
      if (controller.signal.aborted) return false;
      output.replaceChildren();
      status.textContent = "";
      if (!(error instanceof APIError)) throw error;
      if (error.status === 404 && missing) output.replaceChildren(create("p", { class: "empty" }, ...withCode(missing)));
      else showError(panel, error.message, error.status);
    } finally {
      if (controller === latest) panel.removeAttribute("aria-busy");
    }
    return false;
  };
}

function showResponse(show) {
  try {
    return show();
  } catch (error) {
    console.warn(error);
    throw new APIError("The server’s response has an unknown format; do page and server have the same version?");
  }
}

/** Call `submit` when a form is submitted, by its button or by Ctrl + Enter in a text. */
export function onSubmit(form, submit) {
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    submit();
  });
  form.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) form.requestSubmit();
  });
}
