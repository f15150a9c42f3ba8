"""`d2v relate`: train, measure, save, predict, and one sentence for bad input."""

from __future__ import annotations

import json
import re

import pytest

from decoder2vec.errors import Decoder2VecError
from toys.command import d2v
from toys.html_page import HOSTILE_TEXT, Page

OPTIONS = ("--encoder", "tiny-llama", "--layer", 0, "--pooling", "mean", "--device", "cpu")


def write_lines(file, rows):
    file.write_text("\n".join(map(json.dumps, rows)), "utf-8")
    return file


@pytest.fixture
def files(tmp_path):
    """Sentences with a cause and an effect, and the relations that lead from the one to the other."""
    nouns = ("rain", "storm", "frost", "hail", "snow", "wind")
    mentions, relations = [], []
    for number, noun in enumerate(nouns):
        text = f"The {noun} broke the roof."
        spans = {"cause": (4, 4 + len(noun)), "effect": (5 + len(noun), 10 + len(noun))}
        for name, (start, end) in spans.items():
            row = {"id": f"{name} {number}", "document": number, "text": text, "start": start, "end": end}
            mentions.append(row)
        relations.append({"head": f"cause {number}", "tail": f"effect {number}", "label": "causes"})
    return write_lines(tmp_path / "mentions.jsonl", mentions), write_lines(tmp_path / "labels.jsonl", relations)


def test_training_prints_scores_and_saves_a_matcher_that_predicts(files, tmp_path):
    mentions, labels = files
    folder, page, data = tmp_path / "matcher", tmp_path / "relations.html", tmp_path / "relations.json"
    trained = d2v("relate", mentions, "--labels", labels, "--k", 1, "--save", folder, "--out", page, *OPTIONS)
    assert trained.exit_code == 0
    assert "by cross-validation" in trained.stdout
    assert "recall@1 of the retriever 100.0; classified 12 of 12 pairs, 0 % fewer" in trained.stdout
    assert re.search(r"^ *all .* 6\b", trained.stdout, re.M)
    assert (folder / "matcher.json").is_file() and "causes" in Page(page).text

    predicted = d2v("relate", mentions, "--matcher", folder, "--out", data)
    assert "recall@" not in predicted.stdout  # nothing is known
    measured = d2v("relate", mentions, "--matcher", folder, "--labels", labels)
    assert "known relations" in measured.stdout and "recall@1" in measured.stdout
    document = json.loads(data.read_text("utf-8"))
    assert document["scores"] is None and {each["label"] for each in document["relations"]} <= {"causes"}
    assert len(document["relations"]) == int(re.search(r"(\d+) relations", predicted.stdout)[1])


def test_two_tables_and_duplicates(tmp_path):
    rows = [{"id": n, "text": f"record {n // 2}, {'new' if n % 2 else 'old'}"} for n in range(12)]
    table = write_lines(tmp_path / "all.jsonl", rows)
    labels = tmp_path / "labels.tsv"
    labels.write_text("head\ttail\n" + "\n".join(f"{n + 1}\t{n}" for n in range(0, 12, 2)), "utf-8")
    same = d2v("relate", table, "--labels", labels, "--symmetric", "--k", 2, "--no-tune", *OPTIONS)
    assert "classified" in same.stdout and "of 66 pairs" in same.stdout
    old, new = (write_lines(tmp_path / f"{begin}.jsonl", rows[begin::2]) for begin in (0, 1))
    both = d2v("relate", new, old, "--labels", labels, "--k", 2, "--no-tune", *OPTIONS)
    assert "classified 12 of 36 pairs, 67 % fewer" in both.stdout


def test_page_shows_texts_escaped_with_reasons(tmp_path):
    import decoder2vec as d2v_package

    mentions = [
        d2v_package.Mention(f"{n} {HOSTILE_TEXT}", f"{HOSTILE_TEXT} fell {n}", (0, len(HOSTILE_TEXT)), str(n // 2))
        for n in range(8)
    ]
    relations = [d2v_package.Relation(mentions[n].id, mentions[n + 1].id, HOSTILE_TEXT) for n in range(0, 8, 2)]
    matcher = d2v_package.PairMatcher("tiny-llama", k=1, tune=False, device="cpu")
    result = matcher.fit(mentions, relations)
    page = Page(d2v_package.relation_report(result, tmp_path / "page.html", command="d2v relate x"))
    assert not {"script", "img", "iframe"} & set(page.tags) and page.policy.startswith("default-src 'none';")
    shown = len(result.relations) + sum(each.label == "NONE" != each.known for each in result.candidates)
    assert page.tags.count("mark") == 2 * shown > 0
    assert "Neighbour 1 of" in page.text and "Known label" in page.text and "d2v relate x" in page.text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "Give --labels"),
        (("--matcher", "m", "--k", 3), "belongs to the training"),
        (("--matcher", "m", "--no-tune"), "belongs to the training"),
        (("--matcher", "m", "--encoder", "tiny-gpt2"), "belongs to the training"),
        (("--matcher", "m", "--encoder", "smollm2-135m-general"), "belongs to the training"),
        (("--labels", "labels.jsonl", "--out", "page.pdf"), r"must end in \.html or \.json"),
        (("--matcher", "nothing"), "not the folder of a saved matcher"),
        (("--labels", "labels.jsonl", "--k", 0, *OPTIONS), "k is 0"),
        (("--labels", "unknown.jsonl", *OPTIONS), "there is no mention 'verdict'"),
        (("--labels", "empty.jsonl", *OPTIONS), "0 relations to learn from"),
    ],
)
def test_bad_input_gets_a_sentence(arguments, message, files, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_lines(tmp_path / "unknown.jsonl", [{"head": "cause 1", "tail": "verdict"}])
    write_lines(tmp_path / "empty.jsonl", [])
    with pytest.raises(Decoder2VecError, match=message):
        d2v("relate", files[0], *arguments)
