/** One side of a match: a place to type, to choose files and to drop them, and the list of what is there. */

import { readFiles } from "./documents.js";
import { count, make } from "./elements.js";

export class Side {
  constructor(box, { one, many, hint }) {
    this.documents = [];
    this.one = one;
    this.pasted = 0;
    const files = make("input", { type: "file", multiple: true, accept: ".txt,.md,.jsonl", class: "unseen" });
    const add = make("button", { type: "button" }, "Add text");
    this.text = make("textarea", { id: `${box.id}-text`, rows: "4", placeholder: hint });
    this.list = make("ul", { class: "documents", "aria-label": `${many} to match` });
    this.said = make("div", { class: "said", role: "status" });
    box.append(
      make("div", { class: "drop" },
        make("label", { for: this.text.id, class: "hint" }, `Paste a ${one}, or drop .txt, .md or .jsonl files here.`),
        this.text,
        make("div", { class: "actions" }, add, make("label", { class: "button" }, "Choose files", files))),
      this.list, this.said);
    add.addEventListener("click", () => (this.takeText() ? this.text.focus() : this.say(["There is no text to add yet."])));
    files.addEventListener("change", async () => {
      await this.take(files.files);
      files.value = ""; // so that the same file can be chosen again
    });
    this.dropsOn(box.querySelector(".drop"));
  }

  dropsOn(place) {
    place.addEventListener("dragover", () => place.classList.add("over"));
    place.addEventListener("dragleave", () => place.classList.remove("over"));
    place.addEventListener("drop", (event) => {
      place.classList.remove("over");
      if (!event.dataTransfer.files.length) return;
      event.preventDefault();
      this.take(event.dataTransfer.files);
    });
  }

  async take(files) {
    const { documents, leftOut } = await readFiles([...files]);
    this.add(documents, leftOut);
  }

  /** What was typed becomes a document; true if there was anything. */
  takeText() {
    const text = this.text.value.trim();
    if (!text) return false;
    this.pasted += 1;
    const [line] = text.split("\n");
    this.add([{ id: `pasted ${this.one} ${this.pasted}`, text, shown: line.length > 48 ? `${line.slice(0, 47)}…` : line }]);
    this.text.value = "";
    return true;
  }

  /** Two documents never share an id: the second of a name gets a number. */
  add(documents, leftOut = []) {
    const taken = new Set(this.documents.map((one) => one.id));
    for (const one of documents) {
      let id = one.id;
      for (let number = 2; taken.has(id); number += 1) id = `${one.id} (${number})`;
      taken.add(id);
      this.documents.push({ ...one, id, shown: one.shown === one.id ? id : one.shown });
    }
    this.render();
    this.say(documents.length ? [`${count(documents.length, this.one)} added.`] : [], leftOut);
  }

  replace(documents) {
    this.documents = [];
    this.add(documents.map((one) => ({ shown: one.id, ...one })));
  }

  say(sentences, leftOut = []) {
    const left = leftOut.map((reason) => make("li", {}, reason));
    this.said.replaceChildren(...sentences.map((one) => make("p", {}, one)),
      ...(left.length ? [make("p", {}, "Left out:"), make("ul", {}, ...left)] : []));
  }

  render() {
    this.list.replaceChildren(...this.documents.map((one) => {
      const remove = make("button", { type: "button", class: "remove", "aria-label": `Remove ${one.shown}` }, "×");
      remove.addEventListener("click", () => this.remove(one));
      return make("li", {}, make("span", {}, one.shown), remove);
    }));
  }

  /** The focus goes to the next in the list, so that a keyboard does not lose its place. */
  remove(one) {
    const place = this.documents.indexOf(one);
    this.documents = this.documents.filter((other) => other !== one);
    this.render();
    this.say([`${one.shown} removed.`]);
    const buttons = this.list.querySelectorAll(".remove");
    (buttons[Math.min(place, buttons.length - 1)] ?? this.text).focus();
  }
}
