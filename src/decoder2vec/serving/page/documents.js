/** Files that a person gave, as documents: { id, text, shown }. What cannot be used is named and left out. */

const MOST = 10e6; // bytes; nobody's resume is as long, and a browser would stall
const TEXTS = ["text", "description"];
const TITLES = ["title", "label"];
const SECTIONS = ["summary", "skills", "experience", "education", "languages"];

/** { documents, leftOut }: leftOut holds one sentence for each file or line. */
export async function readFiles(files) {
  const documents = [];
  const leftOut = [];
  for (const file of files) {
    const [kind] = file.name.toLowerCase().match(/\.[a-z]+$/) ?? [""];
    if (![".txt", ".md", ".jsonl"].includes(kind)) leftOut.push(`${file.name}: only .txt, .md and .jsonl are read.`);
    else if (file.size > MOST) leftOut.push(`${file.name}: more than 10 MB.`);
    else await readOne(file, kind, documents, leftOut);
  }
  return { documents, leftOut };
}

async function readOne(file, kind, documents, leftOut) {
  let text;
  try {
    text = new TextDecoder("utf-8", { fatal: true }).decode(await file.arrayBuffer()).trim();
  } catch {
    leftOut.push(`${file.name}: cannot be read; is it UTF-8?`);
    return;
  }
  if (!text) leftOut.push(`${file.name}: no text in it.`);
  else if (kind !== ".jsonl") documents.push({ id: file.name, text, shown: file.name });
  else text.split(/\r?\n/).forEach((line, place) => {
    if (!line.trim()) return;
    const where = `${file.name}, line ${place + 1}`;
    const row = fromLine(line, where);
    if (typeof row === "string") leftOut.push(row);
    else documents.push(row);
  });
}

function fromLine(line, where) {
  let row;
  try {
    row = JSON.parse(line);
  } catch {
    return `${where}: not JSON.`;
  }
  const said = (name) => (typeof row?.[name] === "string" ? row[name].trim() : "");
  const first = (names) => names.map(said).find(Boolean) ?? "";
  const sections = SECTIONS.filter(said).map((name) => `${name[0].toUpperCase()}${name.slice(1)}\n${said(name)}`);
  const body = [first(TEXTS), ...sections].filter(Boolean).join("\n\n");
  if (!body) return `${where}: no text; it is looked for in the fields text and description.`;
  const title = first(TITLES);
  const id = ["string", "number"].includes(typeof row.id) && String(row.id).trim() ? String(row.id).trim() : where;
  // a name is shown and not sent: it says nothing about how well somebody fits
  return { id, text: title ? `${title}\n${body}` : body, shown: title || said("name") || id };
}
