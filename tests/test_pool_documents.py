"""Whole abstracts join the pool: from three formats, without what is evaluated, with titles and missing sentences."""

from __future__ import annotations

import gzip
import lzma
import random

import pytest

from documents import add_documents, cloze, read_acl, read_arxiv, read_trials

FILLER = "This sentence makes the abstract long enough to be a document of the pool in this test. " * 4
KNOWN = "Aspirin lowers the risk of a second stroke in older patients."


def abstract(subject):
    return f"We study {subject} in a large sample of observations. {FILLER}Our results on {subject} are new."


@pytest.fixture
def readers(tmp_path):
    arxiv, acl, trials = (tmp_path / name for name in ("arxiv", "acl", "trials"))
    for folder in (arxiv, acl, trials):
        folder.mkdir()
    rows = ["\tabstract\ttitle", f"0\t{abstract('stars')}\tOn stars", f"1\t{abstract('stars')}\tOn stars, again"]
    rows.append(f"2\t{abstract('strokes')} {KNOWN}\tOn strokes")
    with lzma.open(arxiv / "cs.tsv.xz", "wt", encoding="utf-8") as file:
        file.write("\n".join(rows) + "\n")
    paper = f"<paper><title>On <b>verbs</b></title><abstract>{abstract('verbs')}</abstract></paper>"
    (acl / "a.xml").write_text(f"<collection>{paper}<paper><title>No abstract</title></paper></collection>")
    body = abstract("doses")
    (trials / "1.txt").write_text(f"TITLE: \nOn pain\n\nABSTRACT.AIM:\n{abstract('pain')}\n\nBODY.METHODS:\n{body}\n")
    (trials / "2.txt").write_text(f"TITLE: On sleep\n\n  ABSTRACT:\n{abstract('sleep')}\n")
    return {"arxiv": read_arxiv(arxiv), "acl": read_acl(acl), "trials": read_trials(trials)}


def rows_of(file):
    return [line.split("\t") for line in gzip.open(file, "rt", encoding="utf-8").read().splitlines()[1:]]


def test_abstracts_are_read_once_and_without_what_is_evaluated(readers, tmp_path):
    (tmp_path / "test.tsv").write_text(f"text\n{KNOWN}\n", encoding="utf-8")
    add_documents(readers, tmp_path, [tmp_path / "test.tsv"])
    texts = rows_of(tmp_path / "texts-documents.tsv.gz")
    assert sorted(source for source, _ in texts) == [
        "acl-abstract",
        "arxiv-abstract",
        "trials-abstract",
        "trials-abstract",
        "trials-paragraph",
    ]
    assert not any(KNOWN in text for _, text in texts)
    pairs = rows_of(tmp_path / "pairs-documents.tsv.gz")
    titles = {title: text for source, title, text in pairs if source.endswith("-abstract")}
    assert set(titles) == {"On stars", "On verbs", "On pain", "On sleep"}
    assert titles["On pain"] == " ".join(abstract("pain").split())


def test_cloze_pairs_a_sentence_with_the_others():
    text = " ".join(abstract("rivers").split())
    sentence, rest = cloze(text, random.Random(0))
    assert sentence in text and len(rest.split()) + len(sentence.split()) == len(text.split())
    assert cloze("Too short. To have one.", random.Random(0)) is None
