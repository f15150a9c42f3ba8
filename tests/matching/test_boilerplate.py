"""Boilerplate is removed in its context; a word that may name a skill stays a term."""

import pytest

from decoder2vec.matching.boilerplate import is_common, is_formality
from decoder2vec.matching.match import match_sides
from decoder2vec.matching.sides import Side, SideDocument
from decoder2vec.matching.terms import TermWeights, TextTerms, compare_terms
from toys.sides import LetterEncoder

SKILLS = {
    "programming": ["C++", "C#", "F#", ".NET", "ASP.NET", "Node.js", "R", "C", "Go", "Java", "T-SQL", "3D"],
    "medical": ["CPR", "X-ray", "CT", "triage", "wound care", "phlebotomy", "midwifery", "OR", "personal care"],
    "trade": [
        "MIG",
        "PLC",
        "fault finding",
        "CNC",
        "HVAC",
        "soldering",
        "plumbing",
        "forklift",
        "driving",
        "carpentry",
    ],
    "office": ["Excel", "Word", "PowerPoint", "Outlook", "HR", "payroll", "budgeting", "recruiting", "R&D", "SOP"],
    "other": ["social work", "teaching", "sales", "legal research", "public speaking", "leadership", "interviewing"],
    "languages": ["German", "English", "French", "Spanish", "Mandarin", "Polish", "American Sign Language"],
}
RESUME_LINES = ("{}, five years", "Skills: {}", "Experienced with {} and more", "- {}", "Ann knows {}.")
JOB_LINES = ("Experience with {} is required.", "* {}", "You have strong skills in {}, ideally for 3+ years")


def compare(text, other):
    terms = [TextTerms(text), TextTerms(other)]
    return compare_terms(*terms, TermWeights(one.stems for one in terms))


@pytest.mark.parametrize("skill", [skill for skills in SKILLS.values() for skill in skills])
def test_skills_are_matched_terms(skill):
    for job in JOB_LINES:
        for resume in RESUME_LINES:
            assert skill in compare(job.format(skill), resume.format(skill)).matched, (job, resume)


@pytest.mark.parametrize("skill", ["C++", "Go", "R", "Excel", "German", "leadership", "CT"])
def test_skills_are_missing_terms_and_reach_the_report(skill):
    assert skill in compare(f"Experience with {skill} is required.", "I bake bread.").missing
    sides = [Side(name, [SideDocument(name, f"Skills\n{skill}\nPython")]) for name in ("job", "resume")]
    assert skill in match_sides(*sides, LetterEncoder()).reasons[0, 0].terms.matched


def test_items_of_a_list_in_lower_case_are_terms():
    assert set(compare("python, r, go, excel", "go / c / r / excel").matched) == {"r", "go", "excel"}


@pytest.mark.parametrize(
    "line",
    [
        "Go above; Go to our place",
        "We go the extra mile and excel in what we do",
        "8 hr, 40 hrs, 2nd of June, $20k, 9am, the 1990s",
        "write to jobs@example.net or www.example.com/jobs",
        "Maple Street 12, Dayton, OH 45402",
        "5+ years of experience, excellent skills, strong candidates of our team",
        "W2 only, NY, Inc., EOE",
    ],
)
def test_boilerplate_in_context_is_no_term(line):
    assert TextTerms(line).stems <= {"extra", "mile", "write"}


def test_common_words_are_terms_that_weigh_little():
    terms = [TextTerms(text) for text in ("leadership, welding", *["bread"] * 9)]
    weights = TermWeights(one.stems for one in terms)
    assert is_common("leadership") and not is_common("weld")
    assert 0 < weights("leadership") < weights("weld") / 2


@pytest.mark.parametrize(
    "sentence",
    [
        "We are an Equal Opportunity Employer.",
        "All qualified applicants are considered without regard to race, color or religion.",
        "We participate in E-Verify.",
        "A background check is required prior to employment.",
        "You must pass a drug test.",
        "Reasonable accommodations may be made for individuals with disabilities.",
        "Competitive salary, medical, dental and vision insurance.",
        "Posted: 3 days ago",
        "Other duties as assigned",
        "References available upon request.",
        "W2 only, no C2C",
        "person@example.com",
    ],
)
def test_formalities_are_recognised(sentence):
    assert is_formality(sentence)


@pytest.mark.parametrize(
    "sentence",
    [
        "Processed dental insurance claims",
        "Ran background checks for 200 new hires",
        "Drug testing by gas chromatography",
        "Wrote affirmative action plans",
        "Posted on social media every day",
        "Taught families how to apply for benefits",
        "Designed salary ranges and benefits packages",
        "Completed I-9 and E-Verify for new staff",
        "Arranged reasonable accommodations at work",
        "Moderated a C2C marketplace",
    ],
)
def test_work_with_formalities_is_no_formality(sentence):
    assert not is_formality(sentence)
