/** Have the server read the files that a user chose: documents { id, text, label }, and what was skipped. */

import { APIError, request } from "./api.js";

const MAX_BYTES = 6e6; // in base64 the server accepts no more, and no resume is that long

/** Endings of the files that the server reads. */
export const ACCEPTED = [
  ".txt", ".md", ".rst", ".html", ".htm", ".eml", ".pdf", ".docx", ".pptx", ".jsonl", ".csv", ".tsv", ".xlsx",
];

/** { documents, skipped }: `skipped` holds one sentence for each unusable file or line. */
export async function readFiles(files) {
  const documents = [];
  const skipped = [];
  for (const file of files) {
    const [extension] = file.name.toLowerCase().match(/\.[a-z]+$/) ?? [""];
    if (!ACCEPTED.includes(extension)) skipped.push(`${file.name}: this kind of file is not read; give ${ACCEPTED.join(", ")}.`);
    else if (file.size > MAX_BYTES) skipped.push(`${file.name}: larger than ${MAX_BYTES / 1e6} MB.`);
    else await readFile(file, documents, skipped);
  }
  return { documents, skipped };
}

async function readFile(file, documents, skipped) {
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
