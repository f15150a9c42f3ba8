/** Read the files that a user chose as documents: { id, text, label }. Unusable files and lines are listed and skipped. */

const MAX_BYTES = 10e6; // no resume is that long, and the browser would stall
const TEXT_FIELDS = ["text", "description"];
const TITLE_FIELDS = ["title", "label"];
const SECTION_FIELDS = ["summary", "skills", "experience", "education", "languages"];

/** { documents, skipped }: `skipped` holds one sentence for each unusable file or line. */
export async function readFiles(files) {
  const documents = [];
  const skipped = [];
  for (const file of files) {
    const [extension] = file.name.toLowerCase().match(/\.[a-z]+$/) ?? [""];
    if (![".txt", ".md", ".jsonl"].includes(extension)) skipped.push(`${file.name}: only .txt, .md and .jsonl are read.`);
    else if (file.size > MAX_BYTES) skipped.push(`${file.name}: larger than 10 MB.`);
    else await readFile(file, extension, documents, skipped);
  }
  return { documents, skipped };
}

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
