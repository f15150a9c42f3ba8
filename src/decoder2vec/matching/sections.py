"""The sections of a resume or job: skills, experience, education ... found by their headings, or one where none are."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

_HEADINGS = {
    "summary": """summary; profile; about; about me; about us; objective; personal statement; who i am; in short;
        professional summary; career summary; profil; kurzprofil; zusammenfassung; résumé; perfil; resumen; profilo""",
    "skills": """skills; key skills; core skills; technical skills; tools; strengths; strong points; know-how;
        competencies; competences; expertise; technologies; languages; kenntnisse; fähigkeiten; sprachen; compétences;
        langues; habilidades; competencias; idiomas; competenze; lingue""",
    "experience": """experience; work experience; professional experience; employment; employment history; work history;
        work; career; career history; positions; jobs; posts; practice; track record; where i worked; what i did;
        what i have done; what i do; in the classroom; projects; earlier; before; berufserfahrung; berufspraxis;
        werdegang; expérience; expérience professionnelle; experiencia; experiencia laboral; esperienza;
        esperienze professionali""",
    "education": """education; education and training; training; qualification; qualifications; certificates;
        certifications; certificate; credentials; degrees; diplomas; papers; school; background; licences; permits;
        ausbildung; bildung; studium; zeugnisse; formation; études; educación; formación; formazione; istruzione""",
    "tasks": """tasks; your tasks; duties; responsibilities; key responsibilities; the role; your role; role; the job;
        you will; what you will do; what you do; aufgaben; ihre aufgaben; missions; tareas; funciones""",
    "requirements": """requirements; required; you need; needed; we need; what you need; what you bring; you bring;
        must have; must haves; nice to have; your profile; who you are; we expect; we ask for; anforderungen;
        ihr profil; profil recherché; requisitos; requisiti""",
    "offer": """we offer; what we offer; benefits; our offer; perks; wir bieten; nous offrons; ofrecemos""",
}
WHOLE = "whole"
"""The kind of a text without headings."""
OTHER = "other"
"""The kind of a section whose heading says nothing that is known here, and of what stands before the first."""
_MARKS = re.compile(r"^[\s#*_>\-–•=]*(?:\d+[.)]\s+)?|[\s*_#=:\-–]*$")
_INLINE = re.compile(r"^[\s#*_]*(?P<heading>[^\W\d_][^:.;,–]{1,38}?)\**\s*(?::\**|\s[-–]\s)\s*(?P<rest>\S.*)$")
_LONGEST = 5
"""Words of the longest heading that is believed to be one only for how it is written."""


@dataclass(frozen=True)
class Section:
    """A stretch of a document under one heading."""

    kind: str
    text: str
    heading: str = ""
    """As it was written; empty if there is none."""

    @property
    def shown(self) -> str:
        """What people call it."""
        return self.heading or {WHOLE: "the whole text", OTHER: "opening"}.get(self.kind, self.kind)

    @property
    def words(self) -> int:
        """Its weight among the sections of a document."""
        return max(1, len(self.text.split()))


def split_sections(text: str, fields: Mapping[str, str] | None = None) -> list[Section]:
    """The sections of a text, then those that were given as fields of their own; blank ones are left out.

    A heading is a line of its own that is a known word, or is written as a heading (Markdown, capitals, a colon at its
    end), or a known word with a colon or dash before the text it heads.
    """
    found = list(_sections(text))
    if len(found) == 1 and not found[0].heading:
        found = [Section(WHOLE, found[0].text)]
    given = [(kind_of(name), name, value) for name, value in (fields or {}).items()]
    found += [Section(kind, value.strip(), name) for kind, name, value in given if kind and value.strip()]
    return found


def kind_of(heading: str) -> str:
    """The kind of section that a heading begins; empty if it is none that is known."""
    return _kinds().get(" ".join(heading.casefold().replace("_", " ").split()), "")


def _sections(text: str) -> Iterator[Section]:
    kind, heading, lines = OTHER, "", list[str]()
    for line in text.splitlines():
        new = _heading(line)
        if new is None:
            lines.append(line.strip())
            continue
        if any(lines):
            yield Section(kind, "\n".join(filter(None, lines)), heading)
        kind, heading, rest = new
        lines = [rest]
    if any(lines):
        yield Section(kind, "\n".join(filter(None, lines)), heading)


def _heading(line: str) -> tuple[str, str, str] | None:
    """Kind, heading and what else stands on a line that begins a section; None if it begins none."""
    bare = _MARKS.sub("", line)
    if kind := kind_of(bare):
        return kind, bare, ""
    inline = _INLINE.match(line)
    if inline and (kind := kind_of(inline["heading"])):
        return kind, inline["heading"].strip(), inline["rest"].strip()
    if not bare or len(bare.split()) > _LONGEST or bare[-1] in ".!?,;":
        return None
    bullet = line.lstrip().startswith(("-", "•", "* "))
    marked = line.lstrip().startswith("#") or (line.rstrip().endswith(":") and not bullet)
    capitals = bare.isupper() and len(bare) > 3
    return (OTHER, bare, "") if marked or capitals else None


@cache
def _kinds() -> dict[str, str]:
    return {
        " ".join(name.split()): kind for kind, names in _HEADINGS.items() for name in names.split(";") if name.strip()
    }


# Resumes are written in lines, bullets and half sentences: a line ends one, and so does a semicolon.
_END = re.compile(r"(?<=[.!?])[\"'”’)\]]*\s+(?=[\"'“‘(\[]*[^\sa-z])|(?<=[。！？])|\s*[\r\n]+\s*|\s*;\s+")
_BULLET = re.compile(r"^[\s\-*•–#>]+")
_FEWEST = 2
"""Words below which a line is a heading or a number rather than something said; where nothing else is, it is kept."""


class SentencePair(NamedTuple):
    """A sentence of each side and how alike they are."""

    left: str
    right: str
    similarity: float


def sentences(text: str) -> list[str]:
    """What a text says, one statement after the other; bullets are taken off."""
    found = [bare for part in _END.split(text) if (bare := _BULLET.sub("", part or "").strip())]
    return [one for one in found if len(one.split()) >= _FEWEST or not one.isascii()] or found


def best_pairs(
    left: list[str], right: list[str], similarity: Callable[[list[str], list[str]], NDArray[Any]], most: int = 3
) -> list[SentencePair]:
    """The best pair, then the best among sentences that are not in it, and so on: at most so many."""
    if not left or not right or most < 1:
        return []
    scores = np.array(similarity(left, right), np.float64)
    pairs: list[SentencePair] = []
    for _ in range(min(most, *scores.shape)):
        row, column = divmod(int(scores.argmax()), scores.shape[1])
        pairs.append(SentencePair(left[row], right[column], float(scores[row, column])))
        scores[row, :] = scores[:, column] = -np.inf
    return pairs
