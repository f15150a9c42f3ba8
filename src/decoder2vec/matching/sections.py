"""Split documents into sections by their headings, split texts into sentences, and pair the most similar sentences."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

WHOLE = "whole"
"""Kind of a text without headings."""
OTHER = "other"
"""Kind of a section with an unknown heading, and of the text before the first heading."""
COMPANY, OFFER, FORMALITIES = "company", "offer", "formalities"
"""Kinds of sections that are not about the work: the employer, pay and benefits, and contact data, notices, hobbies."""
_HEADINGS = {
    "summary": """summary; profile; about; about me; objective; career objective; personal statement; who i am; in
        short; professional summary; career summary; profil; kurzprofil; zusammenfassung; résumé; perfil; resumen;
        profilo""",
    "skills": """skills; key skills; core skills; technical skills; tools; strengths; strong points; know-how;
        competencies; competences; expertise; technologies; languages; kenntnisse; fähigkeiten; sprachen; compétences;
        langues; habilidades; competencias; idiomas; competenze; lingue""",
    "experience": """experience; work experience; professional experience; employment; employment history; work history;
        work; career; career history; positions; jobs; posts; practice; track record; where i worked; what i did; what i
        have done; what i do; in the classroom; projects; earlier; before; berufserfahrung; berufspraxis; werdegang;
        expérience; expérience professionnelle; experiencia; experiencia laboral; esperienza; esperienze
        professionali""",
    "education": """education; education and training; training; qualification; qualifications; certificates;
        certifications; certificate; credentials; degrees; diplomas; papers; school; background; licences; permits;
        ausbildung; bildung; studium; zeugnisse; formation; études; educación; formación; formazione; istruzione""",
    "tasks": """tasks; your tasks; duties; responsibilities; key responsibilities; the role; your role; role; the job;
        you will; what you will do; job description; description; summary of duties; duties and responsibilities; what
        you do; aufgaben; ihre aufgaben; missions; tareas; funciones""",
    "requirements": """requirements; required; you need; needed; we need; what you need; what you bring; you bring; must
        have; must haves; nice to have; your profile; who you are; we expect; we ask for; anforderungen; ihr profil;
        profil recherché; requisitos; requisiti""",
    COMPANY: """about us; about the company; about our company; the company; our company; company description; company
        overview; company profile; who we are; über uns; qui sommes-nous; quiénes somos; chi siamo""",
    OFFER: """we offer; what we offer; benefits; our offer; perks; perks and benefits; compensation; salary; pay; why
        join us; why us; wir bieten; nous offrons; ofrecemos""",
    FORMALITIES: """contact; contact details; contact information; contact us; personal details; personal data; personal
        information; address; references; referees; declaration; hobbies; interests; how to apply; apply; apply now;
        application; application process; next steps; eeo; eeo statement; equal opportunity; equal opportunity employer;
        equal employment opportunity; legal; disclaimer; privacy; kontakt; persönliche daten; hobbys; referenzen;
        bewerbung; coordonnées; loisirs; centres d'intérêt; références; datos personales; contacto; referencias;
        aficiones; contatti; dati personali; referenze""",
}
"""Kind of section -> its headings, in English, German, French, Spanish and Italian."""
_QUALIFIER = re.compile(
    r"^(?:additional|basic|core|desired|essential|general|job|key|main|minimum|other|our|preferred|previous|primary"
    r"|professional|relevant|required|selected|special|specific|technical|the|your)\s+"
)
"""Words before a heading that do not change its kind: "Minimum Qualifications"."""
_HEADING_MARKS = re.compile(r"^[\s#*_>\-–•=]*(?:\d+[.)]\s+)?|[\s*_#=:\-–]*$")
_INLINE_HEADING = re.compile(r"^[\s#*_]*(?P<heading>[^\W\d_][^:.;,–]{1,38}?)\**\s*(?::\**|\s[-–]\s)\s*(?P<rest>\S.*)$")
_HEADING_JOINT = re.compile(r"\s*(?:&|/|,|\band\b|\bund\b|\bet\b|\by\b)\s*")
_MAX_HEADING_WORDS = 5
"""A line with more words is not a heading only because of how it is written."""

# Resumes are written in lines, bullets and half sentences, so a line break or a semicolon also ends a sentence.
_SENTENCE_END = re.compile(r"(?<=[.!?])[\"'”’)\]]*\s+(?=[\"'“‘(\[]*[^\sa-z])|(?<=[。！？])|\s*[\r\n]+\s*|\s*;\s+")
_BULLET = re.compile(r"^[\s\-*•–#>]+")
_MIN_SENTENCE_WORDS = 2
"""A shorter line is a heading or a number rather than a statement; it is kept only where there is nothing else."""


@dataclass(frozen=True)
class Section:
    """A part of a document under one heading."""

    kind: str
    """summary, skills, experience, education, tasks, requirements, company, offer, formalities, whole or other."""
    text: str
    heading: str = ""
    """As written; empty if there is none."""

    @property
    def display_name(self) -> str:
        """Heading, or a description of the kind."""
        return self.heading or {WHOLE: "the whole text", OTHER: "opening"}.get(self.kind, self.kind)


class SentencePair(NamedTuple):
    """A sentence of each side and their similarity."""

    left: str
    right: str
    similarity: float


def split_sections(text: str, fields: Mapping[str, str] | None = None) -> list[Section]:
    """Return the sections of a text, then those given as fields; blank ones are left out.

    A heading is a line of its own that is a known heading or is written as one (Markdown, capitals, a colon at its
    end), or a known heading with a colon or dash before the text of its section.
    """
    sections = list(_text_sections(text))
    if len(sections) == 1 and not sections[0].heading:
        sections = [Section(WHOLE, sections[0].text)]
    kinds = [(field_kind(name), name, value) for name, value in (fields or {}).items()]
    return sections + [Section(kind, value.strip(), name) for kind, name, value in kinds if kind and value.strip()]


def section_kind(heading: str) -> str:
    """Return the kind of section that a heading starts, or an empty string if the heading is unknown.

    Of two headings in one ("Skills & Education") the first decides, if both are known.
    """
    name = " ".join(heading.casefold().replace("_", " ").split())
    if kind := _known_kind(name):
        return kind
    kinds = [_known_kind(part) for part in _HEADING_JOINT.split(name)]
    return kinds[0] if all(kinds) else ""


def field_kind(name: str) -> str:
    """Return the kind of section that a field of a table is; empty for an address, a salary and other fields."""
    kind = section_kind(name)
    return "" if kind in (COMPANY, OFFER, FORMALITIES) else kind


def _known_kind(name: str) -> str:
    kinds = _kind_of_heading()
    return kinds.get(name) or kinds.get(_QUALIFIER.sub("", name), "")


def split_statements(text: str) -> list[str]:
    """Return all sentences and lines of a text, single words included, without bullets."""
    return [line for piece in _SENTENCE_END.split(text) if (line := _BULLET.sub("", piece or "").strip())]


def split_sentences(text: str) -> list[str]:
    """Return the sentences of a text that say something, one per statement, without bullets."""
    lines = split_statements(text)
    sentences = [line for line in lines if len(line.split()) >= _MIN_SENTENCE_WORDS or not line.isascii()]
    return sentences or lines


def best_sentence_pairs(
    left: list[str],
    right: list[str],
    similarity: Callable[[list[str], list[str]], NDArray[Any]],
    max_pairs: int = 3,
    weight: Callable[[str], float] = lambda _: 1.0,
) -> list[SentencePair]:
    """Return the best pair, then the best of the remaining sentences, and so on.

    Args:
        left: Sentences of the left text.
        right: Sentences of the right text.
        similarity: Function of both lists that returns [left, right] similarities.
        max_pairs: Maximum number of pairs.
        weight: How much a sentence says; pairs are chosen by their similarity times the geometric mean of both weights.
    """
    if not left or not right or max_pairs < 1:
        return []
    similarities = np.asarray(similarity(left, right), np.float64)
    weights = [np.array([weight(sentence) for sentence in side]) for side in (left, right)]
    scores = similarities * np.sqrt(np.outer(*weights))
    pairs: list[SentencePair] = []
    for _ in range(min(max_pairs, *scores.shape)):
        row, column = divmod(int(scores.argmax()), scores.shape[1])
        pairs.append(SentencePair(left[row], right[column], float(similarities[row, column])))
        scores[row, :] = scores[:, column] = -np.inf
    return pairs


def _text_sections(text: str) -> Iterator[Section]:
    kind, heading, lines = OTHER, "", list[str]()
    for line in text.splitlines():
        parsed = _parse_heading(line)
        if parsed is None:
            lines.append(line.strip())
            continue
        if any(lines):
            yield Section(kind, "\n".join(filter(None, lines)), heading)
        kind, heading, remainder = parsed
        lines = [remainder]
    if any(lines):
        yield Section(kind, "\n".join(filter(None, lines)), heading)


def _parse_heading(line: str) -> tuple[str, str, str] | None:
    """Return kind, heading and the text after it if the line starts a section, else None."""
    bare = _HEADING_MARKS.sub("", line)
    bullet = line.lstrip().startswith(("-", "•", "* "))
    is_item = bullet and not line.rstrip().endswith((":", "-"))
    if not is_item and (kind := section_kind(bare)):
        return kind, bare, ""
    inline = _INLINE_HEADING.match(line)
    if inline and (kind := section_kind(inline["heading"])):
        return kind, inline["heading"].strip(), inline["rest"].strip()
    if not bare or len(bare.split()) > _MAX_HEADING_WORDS or bare[-1] in ".!?,;":
        return None
    marked = line.lstrip().startswith("#") or (line.rstrip().endswith(":") and not bullet)
    capitals = bare.isupper() and len(bare) > 3
    return (OTHER, bare, "") if marked or capitals else None


@cache
def _kind_of_heading() -> dict[str, str]:
    return {
        " ".join(name.split()): kind for kind, names in _HEADINGS.items() for name in names.split(";") if name.strip()
    }
