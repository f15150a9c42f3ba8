/** One side of a match: a text area, a file chooser that is also a drop zone, and the list of added documents. */

import { ACCEPTED, readFiles } from "./documents.js";
import { create, plural } from "./elements.js";

export class Side {
  constructor(container, { noun, placeholder }) {
    this.documents = [];
    this.noun = noun;
    this.pastedCount = 0;
    const fileInput = create("input", { type: "file", multiple: true, accept: ACCEPTED.join(","), class: "visually-hidden" });
    const addButton = create("button", { type: "button" }, "Add text");
    this.textarea = create("textarea", { id: `${container.id}-text`, rows: "4", placeholder });
    this.list = create("ul", { class: "documents", "aria-label": `${noun}s to match` });
    this.messages = create("div", { class: "messages", role: "status" });
    container.append(
      create("div", { class: "drop" },
        create("label", { for: this.textarea.id, class: "hint" }, `Paste a ${noun}, or drop files here: PDF, Word, text, CSV, Excel or JSON lines.`),
        this.textarea,
        create("div", { class: "actions" }, addButton, create("label", { class: "button" }, "Choose files", fileInput))),
      this.list, this.messages);
    addButton.addEventListener("click", () =>
      (this.addPastedText() ? this.textarea.focus() : this.showMessages(["There is no text to add yet."])));
    fileInput.addEventListener("change", async () => {
      await this.addFiles(fileInput.files);
      fileInput.value = ""; // so that the same file can be chosen again
    });
    this.enableDrop(container.querySelector(".drop"));
  }

  enableDrop(zone) {
    zone.addEventListener("dragover", () => zone.classList.add("over"));
    zone.addEventListener("dragleave", () => zone.classList.remove("over"));
    zone.addEventListener("drop", (event) => {
      zone.classList.remove("over");
      if (!event.dataTransfer.files.length) return;
      event.preventDefault();
      this.addFiles(event.dataTransfer.files);
    });
  }

  async addFiles(files) {
    this.showMessages([`Reading ${plural(files.length, "file")} …`]);
    const { documents, skipped } = await readFiles([...files]);
    this.add(documents, skipped);
  }

  /** Add the text in the text area as a document; return false if it is empty. */
  addPastedText() {
    const text = this.textarea.value.trim();
    if (!text) return false;
    this.pastedCount += 1;
    const [firstLine] = text.split("\n");
    const label = firstLine.length > 48 ? `${firstLine.slice(0, 47)}…` : firstLine;
    this.add([{ id: `pasted ${this.noun} ${this.pastedCount}`, text, label }]);
    this.textarea.value = "";
    return true;
  }

  /** Add documents; an id that exists already gets a number. */
  add(documents, skipped = []) {
    const ids = new Set(this.documents.map((doc) => doc.id));
    for (const doc of documents) {
      let suffix = "";
      for (let number = 2; ids.has(doc.id + suffix); number += 1) suffix = ` (${number})`;
      ids.add(doc.id + suffix);
      this.documents.push({ ...doc, id: doc.id + suffix, label: doc.label + suffix });
    }
    this.render();
    this.showMessages(documents.length ? [`${plural(documents.length, this.noun)} added.`] : [], skipped);
  }

  replace(documents) {
    this.documents = [];
    this.add(documents.map((doc) => ({ label: doc.id, ...doc })));
  }

  showMessages(sentences, skipped = []) {
    const reasons = skipped.map((reason) => create("li", {}, reason));
    this.messages.replaceChildren(...sentences.map((sentence) => create("p", {}, sentence)),
      ...(reasons.length ? [create("p", {}, "Skipped:"), create("ul", {}, ...reasons)] : []));
  }

  render() {
    this.list.replaceChildren(...this.documents.map((doc) => {
      const button = create("button", { type: "button", class: "remove", "aria-label": `Remove ${doc.label}` }, "×");
      button.addEventListener("click", () => this.remove(doc));
      return create("li", {}, create("span", {}, doc.label), button);
    }));
  }

  /** Remove a document and focus the next one, so that keyboard users keep their position. */
  remove(doc) {
    const index = this.documents.indexOf(doc);
    this.documents = this.documents.filter((other) => other !== doc);
    this.render();
    this.showMessages([`${doc.label} removed.`]);
    const buttons = this.list.querySelectorAll(".remove");
    (buttons[Math.min(index, buttons.length - 1)] ?? this.textarea).focus();
  }
}
