/** Read the files that a user chose as documents: { id, text, label }. Unusable files and lines are listed and skipped. */

import { APIError, request } from "./api.js";

const MAX_BYTES = 6e6; // in base64 the server accepts no more, and no resume is that long
const TEXT_FIELDS = ["text", "description"];
const TITLE_FIELDS = ["title", "label"];
const SECTION_FIELDS = ["summary", "skills", "experience", "education", "languages"];

const READ_HERE = [".txt", ".md", ".jsonl"];
/** Endings of the files that can be read: some in the browser, the others by the server. */
export const ACCEPTED = [...READ_HERE, ".pdf", ".docx", ".pptx", ".html", ".htm", ".rst", ".eml", ".csv", ".tsv", ".xlsx"];

/** { documents, skipped }: `skipped` holds one sentence for each unusable file or line. */
export async function readFiles(files) {
  const documents = [];
  const skipped = [];
  for (const file of files) {
    const [extension] = file.name.toLowerCase().match(/\.[a-z]+$/) ?? [""];
    if (!ACCEPTED.includes(extension)) skipped.push(`${file.name}: this kind of file is not read; give ${ACCEPTED.join(", ")}.`);
    else if (file.size > MAX_BYTES) skipped.push(`${file.name}: larger than ${MAX_BYTES / 1e6} MB.`);
    else if (READ_HERE.includes(extension)) await readFile(file, extension, documents, skipped);
    else await readByServer(file, documents, skipped);
  }
  return { documents, skipped };
}

async function readByServer(file, documents, skipped) {
  try {
    const response = await request("documents", { name: file.name, content: await toBase64(file) });
    documents.push(...response.documents);
    skipped.push(...response.skipped);
  } catch (error) {
    if (!(error instanceof APIError)) throw error;
    skipped.push(`${file.name}: ${error.message}`);
  }
}

const toBase64 = (file) => new Promise((resolve, reject) => {
  const reader = new FileReader();
  reader.addEventListener("load", () => resolve(reader.result.slice(reader.result.indexOf(",") + 1)));
  reader.addEventListener("error", () => reject(new APIError("cannot be read.")));
  reader.readAsDataURL(file);
});

async function readFile(file, extension, documents, skipped) {
  let text;
  try {
    text = new TextDecoder("utf-8", { fatal: true }).decode(await file.arrayBuffer()).trim();
  } catch {
    skipped.push(`${file.name}: cannot be read; is it UTF-8?`);
    return;
  }
  if (!text) skipped.push(`${file.name}: empty.`);
  else if (extension !== ".jsonl") documents.push({ id: file.name, text, label: file.name });
  else text.split(/\r?\n/).forEach((line, index) => {
    if (!line.trim()) return;
    const parsed = parseLine(line, `${file.name}, line ${index + 1}`);
    if (typeof parsed === "string") skipped.push(parsed);
    else documents.push(parsed);
  });
}

/** The document of a JSON line, or a sentence that says what is wrong with it. */
function parseLine(line, location) {
  let row;
  try {
    row = JSON.parse(line);
  } catch {
    return `${location}: not JSON.`;
  }
  const field = (name) => (typeof row?.[name] === "string" ? row[name].trim() : "");
  const firstOf = (names) => names.map(field).find(Boolean) ?? "";
  const sections = SECTION_FIELDS.filter(field).map((name) => `${name[0].toUpperCase()}${name.slice(1)}\n${field(name)}`);
  const body = [firstOf(TEXT_FIELDS), ...sections].filter(Boolean).join("\n\n");
  if (!body) return `${location}: no text; put it into the field text or description.`;
  const title = firstOf(TITLE_FIELDS);
  const id = ["string", "number"].includes(typeof row.id) && String(row.id).trim() ? String(row.id).trim() : location;
  // a person's name is shown but not sent: it must not influence the score
  return { id, text: title ? `${title}\n${body}` : body, label: title || field("name") || id };
}
