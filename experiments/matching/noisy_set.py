"""Write a noisy version of the jobs and resumes that come with the package: long, with headings and boilerplate.

    python experiments/matching/noisy_set.py OUT_FOLDER [--split test] [--jobs 2] [--resumes 6]

Real job advertisements and resumes are mostly about other things than the work: addresses, benefits, legal notices,
contract terms, soft skills, hobbies, references. Every document of the labelled set keeps its sentences and grades, and
gets such text around and between them, as a copy from a job board would have it. The field `content` holds the
original text, so that what comes from the noise can be told apart. All of it is written for the project; names,
addresses and companies are invented.
"""

from __future__ import annotations

import argparse
import json
import random
from pathlib import Path

from decoder2vec.matching.evaluation import FITS, LabelledSet, read_labelled_set
from decoder2vec.matching.sections import split_sentences
from decoder2vec.matching.sides import SideDocument

COMPANY_ENDINGS = ("Holdings LLC", "Staffing Inc.", "& Partners", "Group", "Solutions Corp.")
STATES = ("NY", "OH", "TX", "NV", "FL", "ID", "CA", "NJ", "MI")
SYLLABLES = ("bar", "ley", "nor", "vik", "tarn", "hol", "quill", "mar", "aver", "dun", "wick", "fair", "strat", "wol")
ABOUT = (
    "{company} is a leading provider with offices in {town} and Dublin, founded in 1987 and still owner-managed.",
    "At {company}, people are our greatest asset. We are passionate, dynamic and customer focused.",
    "Join a fast-growing, award-winning team of 450 colleagues in a modern office near the station in {town}.",
    "Our client, a well-known company based in {town}, is looking for a motivated individual to join its team.",
)
TERMS = (
    "Location: {town} (on site). Duration: 12+ months. W2 only, no C2C. Rate: DOE.",
    "Job type: full-time, permanent. Salary: $55,000 - $78,000 per year. Shift: 8 hr, Monday to Friday.",
    "Position: 1 opening. Job ID: 10{number}. Posted: 3 days ago. Reports to: HR Manager.",
    "Contract to hire, 40 hrs/week. US citizens and green card holders only. Interview: phone, then onsite.",
)
SOFT = (
    "Excellent written and verbal communication skills are required.",
    "Responsibilities include, but are not limited to, the following:",
    "The ideal candidate is a self-starter who thrives in a fast-paced environment.",
    "Must be able to multitask, prioritise and work under pressure as well as independently.",
    "Strong attention to detail and proven ability to meet deadlines.",
    "Proficient in MS Office (Word, Excel, PowerPoint, Outlook).",
    "Other duties as assigned by the supervisor.",
    "Minimum of 2 years of relevant experience or an equivalent combination of education and experience.",
)
BENEFITS = (
    "Competitive salary, 401(k) with company match, PTO, medical, dental and vision insurance.",
    "Paid holidays, tuition reimbursement, free parking and a friendly atmosphere.",
    "Employee discounts, referral bonus, life insurance and flexible spending accounts.",
    "Weekly pay, opportunities for advancement and a generous relocation package.",
)
LEGAL = (
    "{company} is an Equal Opportunity Employer. All qualified applicants will receive consideration for employment "
    "without regard to race, color, religion, sex, sexual orientation, gender identity, national origin, disability or "
    "veteran status.",
    "We participate in E-Verify. A background check and drug screen are required prior to employment. EOE/M/F/D/V.",
    "Reasonable accommodations may be made to enable individuals with disabilities to perform essential functions.",
)
APPLY = (
    "Please send your resume in Word format to jobs{number}@example.com or call (555) 01{number}.",
    "To apply, visit www.example.com/careers/{number} and quote the reference. No phone calls please.",
    "Only candidates selected for an interview will be contacted. Thank you for your interest in {company}.",
)
OBJECTIVE = (
    "Seeking a challenging position in a reputable organization where I can utilize my skills and grow professionally.",
    "Highly motivated and results-driven professional with a proven track record and a positive attitude.",
    "To obtain a responsible position with a growing company that offers opportunities for advancement.",
    "Dedicated team player with excellent communication skills and a strong work ethic.",
)
PERSONAL = (
    "{street} Street {number}, {town} · (555) 01{number} · {name}@example.com · linkedin.com/in/{name}",
    "Date of birth: on request. Nationality: US citizen. Marital status: married, two children. Own car.",
)
SKILL_NOISE = (
    "Team player, leadership, problem solving, time management, interpersonal skills.",
    "MS Office: Word, Excel, PowerPoint, Outlook. Typing speed 60 wpm.",
    "Fast learner, punctual, reliable, flexible, detail oriented, hard working.",
    "Languages: English (fluent), Spanish (basic).",
)
DUTY_NOISE = (
    "Responsible for day-to-day operations and other duties as assigned.",
    "Worked closely with cross-functional teams and management to achieve company goals.",
    "Attended weekly meetings, prepared reports for management and answered phone calls.",
    "Responsibilities included assisting customers, maintaining files and supporting colleagues.",
    "Recognised as employee of the month in {month} {year} for outstanding performance.",
)
SIDE_JOBS = (
    "Cashier, {company}, {town}, {month} {year}: operated the till, restocked shelves, helped customers.",
    "Summer job, {town}: waited tables, closed the bar, trained two new colleagues.",
    "Warehouse temp, {company}: picked and packed orders, loaded trucks during the season.",
    "Volunteer, food bank {town}: sorted donations and organised the Saturday rota.",
)
SCHOOL = (
    "High School Diploma, {town} Central High School, {year}. GPA 3.4. Dean's list.",
    "Associate degree in general studies, {town} Community College, {year}.",
    "First aid course, Red Cross, {year}. Driver's license, class C.",
)
HOBBIES = (
    "Hiking, cooking for friends, travelling and photography.",
    "Football coach of the under-twelves, crime novels, a vegetable garden.",
    "Choir, chess and restoring old bicycles.",
)
REFERENCES = (
    "References available upon request.",
    "I hereby declare that the above information is true to the best of my knowledge. Place: {town}. Date: {year}.",
)
MONTHS = ("January", "March", "June", "September", "November")
STREETS = ("Maple", "Second", "Harbor", "Linden", "Mill")


def main() -> None:
    """Write the folder: jobs.jsonl, resumes.jsonl, labels.tsv and families.tsv, as the labelled set has them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--split", default="test", help="families of occupations: train, dev or test")
    parser.add_argument("--jobs", type=int, default=2, help="jobs of each family")
    parser.add_argument("--resumes", type=int, default=6, help="resumes of each family")
    args = parser.parse_args()
    labelled = read_labelled_set()
    jobs, resumes = choose_documents(labelled, args.split, args.jobs, args.resumes)
    args.out.mkdir(parents=True, exist_ok=True)
    for name, side, indices, noisy in (
        ("jobs", labelled.jobs, jobs, noisy_job),
        ("resumes", labelled.resumes, resumes, noisy_resume),
    ):
        rows = [noisy_row(side.documents[index], noisy(side.documents[index])) for index in indices]
        text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
        (args.out / f"{name}.jsonl").write_text(text, encoding="utf-8")
    lines = ["job\tresume\tgrade\tkind"]
    for job in jobs:
        for resume in resumes:
            if grade := labelled.grades[job, resume]:
                ids = labelled.jobs.documents[job].id, labelled.resumes.documents[resume].id
                lines.append(f"{ids[0]}\t{ids[1]}\t{grade}\t")
    (args.out / "labels.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    families = sorted({labelled.jobs.documents[job].fields["family"] for job in jobs})
    rows_of_families = "".join(f"{family}\t{args.split}\n" for family in families)
    (args.out / "families.tsv").write_text(f"family\tsplit\n{rows_of_families}", encoding="utf-8")
    print(f"{args.out}: {len(jobs)} jobs, {len(resumes)} resumes")


def choose_documents(labelled: LabelledSet, split: str, n_jobs: int, n_resumes: int) -> tuple[list[int], list[int]]:
    """Return the first jobs of every family of the split, and resumes of it: those that fit first."""
    by_family: dict[str, list[int]] = {}
    for job in labelled.job_indices(split):
        by_family.setdefault(labelled.jobs.documents[job].fields["family"], []).append(job)
    jobs, resumes = [], []
    for family, of_family in by_family.items():
        chosen = of_family[:n_jobs]
        candidates = [n for n, doc in enumerate(labelled.resumes.documents) if doc.fields["family"] == family]
        candidates.sort(key=lambda resume: FITS not in labelled.grades[chosen, resume])
        jobs += chosen
        resumes += sorted(candidates[:n_resumes])
    return jobs, sorted(resumes)


def noisy_row(document: SideDocument, text: str) -> dict[str, str]:
    """Return the row of a noisy document; `content` is what it was made of."""
    content = "\n".join(filter(None, [document.title, document.text]))
    fields = {key: document.fields[key] for key in ("name", "family") if key in document.fields}
    return {"id": document.id, "title": document.title, **fields, "text": text, "content": content}


def noisy_job(document: SideDocument) -> str:
    """Return a job as a job board has it: about the company, the tasks, requirements, benefits and legal notices."""
    draw = _Drawer(document.id)
    sentences = split_sentences(document.text)
    half = (len(sentences) + 1) // 2
    tasks = draw.mixed(sentences[:half], draw.some(SOFT, 2))
    needs = draw.mixed(sentences[half:], draw.some(SOFT, 3))
    return "\n\n".join(
        (
            "\n".join(draw.some(TERMS, 2)),
            "About us\n" + " ".join(draw.some(ABOUT, 3)),
            "JOB DESCRIPTION:\n" + "\n".join(f"• {line}" for line in tasks),
            "Minimum Qualifications\n" + "\n".join(f"- {line}" for line in needs),
            "Benefits\n" + "\n".join(draw.some(BENEFITS, 3)),
            "EEO Statement\n" + " ".join(draw.some(LEGAL, 2)),
            "How to apply\n" + " ".join(draw.some(APPLY, 2)),
        )
    )


def noisy_resume(document: SideDocument) -> str:
    """Return a resume with contact data, an objective, soft skills, other jobs, school, hobbies and references."""
    draw = _Drawer(document.id)
    sentences = split_sentences(document.text)
    third = (len(sentences) + 2) // 3
    skills, duties = sentences[:third], sentences[third:]
    return "\n\n".join(
        (
            "\n".join(draw.some(PERSONAL, 2)),
            "OBJECTIVE\n" + " ".join(draw.some(OBJECTIVE, 2)),
            "KEY SKILLS\n" + "\n".join(f"• {line}" for line in draw.mixed(skills, draw.some(SKILL_NOISE, 3))),
            "PROFESSIONAL EXPERIENCE\n"
            + "\n".join(f"• {line}" for line in draw.mixed(duties, draw.some(DUTY_NOISE, 3))),
            "OTHER EMPLOYMENT\n" + "\n".join(draw.some(SIDE_JOBS, 3)),
            "EDUCATION\n" + "\n".join(draw.some(SCHOOL, 2)),
            "HOBBIES AND INTERESTS\n" + " ".join(draw.some(HOBBIES, 2)),
            "REFERENCES\n" + " ".join(draw.some(REFERENCES, 2)),
        )
    )


class _Drawer:
    """Draws noise for one document, the same on every machine and in every run."""

    def __init__(self, seed: str) -> None:
        self._random = random.Random(seed)
        self._values = {
            "company": f"{self._name()} {self._random.choice(COMPANY_ENDINGS)}",
            "town": f"{self._name()}, {self._random.choice(STATES)}",
            "month": self._random.choice(MONTHS),
            "year": str(self._random.randint(1998, 2022)),
            "number": str(self._random.randint(10, 99)),
            "street": self._random.choice(STREETS),
            "name": f"person{self._random.randint(100, 999)}",
        }

    def _name(self) -> str:
        return "".join(self._random.sample(SYLLABLES, 2)).capitalize()

    def some(self, texts: tuple[str, ...], count: int) -> list[str]:
        return [text.format(**self._values) for text in self._random.sample(texts, min(count, len(texts)))]

    def mixed(self, content: list[str], noise: list[str]) -> list[str]:
        """Return content and noise in a random order, each in its own order."""
        lines, first, second = list[str](), list(content), list(noise)
        while first or second:
            take_first = self._random.random() < len(first) / (len(first) + len(second))
            lines.append((first if take_first else second).pop(0))
        return lines


if __name__ == "__main__":
    main()
