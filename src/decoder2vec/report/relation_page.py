"""The page of predicted relations: scores if relations are known, then every relation with its texts and reasons.

It runs no script.
"""

from __future__ import annotations

from collections.abc import Sequence

from decoder2vec.matching.terms import TextTerms
from decoder2vec.relations.matcher import PredictedRelation, RelationResult
from decoder2vec.relations.mentions import NONE, Mention
from decoder2vec.relations.metrics import LabelScores, RelationScores
from decoder2vec.report.html import (
    Cell,
    Html,
    Section,
    Table,
    bar,
    join,
    page,
    paragraph,
    table,
    tag,
    terms,
)

_MAX_RELATIONS = 500
"""Relations on the page, the most probable ones; a file of data has all."""
_MAX_MISSED = 200


def relation_page(result: RelationResult, command: str = "") -> str:
    """The page of a result.

    Args:
        result: The candidates with their labels.
        command: The command that makes the page, for its footer.
    """
    found = result.relations
    overlooked = [each for each in result.candidates if each.label == NONE and each.known not in (None, NONE)]
    sections = [
        Section("scores", "Scores", _scores(result.scores) if result.scores else Html()),
        Section("relations", f"{len(found)} relations", _relation_list(found)),
        Section("overlooked", "Known relations that were classified as none", _relation_list(overlooked)),
        Section("not-retrieved", "Known relations that were not retrieved", _not_retrieved(result)),
    ]
    summary = (
        f"{len(result.candidates):,} of {result.mentions.n_pairs:,} pairs of {len(result.mentions.mentions):,} "
        "mentions were near enough to be classified; all others count as not related. A pair is related where the "
        f"probability of any relation is {result.threshold:.2f} or more."
    )
    cards = _cards(result.scores) if result.scores else ()
    return page("Relations", sections, kind="relation report", summary=summary, cards=cards, command=command)


def _cards(scores: RelationScores) -> list[tuple[str, str, str]]:
    overall = scores.overall
    parts = f"precision {_percent(overall.precision)}, recall {_percent(overall.recall)}"
    return [
        ("F1 of relations", _percent(overall.f1), parts),
        (f"Recall@{scores.k}", _percent(scores.recall_at_k), "known relations that were retrieved"),
        (
            "Pairs not classified",
            _percent(scores.reduction_ratio),
            f"{scores.n_classified:,} of {scores.n_pairs:,} were",
        ),
    ]


def _scores(scores: RelationScores) -> Html:
    rows = [_score_row(label, each) for label, each in scores.labels.items()]
    footer = _score_row("all", scores.overall)
    headings = ["label", "precision", "recall", "F1", "known"]
    data = Table("Scores by label", "in percent, pairs without a relation left out", headings, rows, footer=footer)
    return join(table(data), paragraph(f"Accuracy on all pairs: {_percent(scores.accuracy)}.", muted=True))


def _score_row(label: str, scores: LabelScores) -> Sequence[Cell]:
    shares = (scores.precision, scores.recall, scores.f1)
    return [Cell(label), *(Cell(f"{100 * share:.1f}") for share in shares), Cell(str(scores.support))]


def _relation_list(relations: Sequence[PredictedRelation]) -> Html:
    items = [_relation(each) for each in relations[:_MAX_RELATIONS]]
    left_out = len(relations) - len(items)
    note = f"The {_MAX_RELATIONS} most probable are shown; a .json report has all." if left_out else ""
    return join(paragraph(note, muted=True), tag("ol", *items, class_="matches")) if items else Html()


def _relation(relation: PredictedRelation) -> Html:
    """One relation: the two mentions, the label with its probability, and the reasons."""
    head = tag(
        "div",
        tag("span", _verdict(relation), class_="rank"),
        tag("h4", f"{relation.head.id} → {relation.tail.id}: {relation.label}"),
        tag("span", tag("span", "probability ", class_="hidden"), f"{relation.probability:.2f}", class_="score"),
        bar(relation.probability),
        class_="match-head",
    )
    others = sorted(relation.probabilities.items(), key=lambda each: -each[1])
    reasons = (
        f"Neighbour {relation.rank} of {relation.head.id} by meaning, with a similarity of {relation.similarity:.2f}; "
        f"probabilities: {', '.join(f'{label} {value:.2f}' for label, value in others)}."
    )
    if relation.known is not None:
        reasons += f" Known label: {relation.known}."
    body = (
        tag("p", reasons, class_="score-parts"),
        paragraph(_marked(relation.head)),
        paragraph(_marked(relation.tail)),
        terms("In both", _common_words(relation), "matched"),
    )
    return join(tag("li", tag("details", tag("summary", head), *body, class_="match", open=True)), Html("\n"))


def _verdict(relation: PredictedRelation) -> str:
    """Whether a prediction is right, where that is known."""
    return "" if relation.known is None else "✓" if relation.known == relation.label else "✗"


def _marked(mention: Mention) -> Html:
    """The text of a mention with the mention itself highlighted."""
    if mention.span is None:
        return join(mention.text)
    start, end = mention.span
    return join(mention.text[:start], tag("mark", mention.trigger), mention.text[end:])


def _common_words(relation: PredictedRelation) -> list[str]:
    if relation.head.text == relation.tail.text:
        return []
    head, tail = TextTerms(relation.head.text), TextTerms(relation.tail.text)
    return [word for stems, word in head.phrases.items() if len(stems) == 1 and stems[0] in tail.stems]


def _not_retrieved(result: RelationResult) -> Html:
    heads = {result.mentions.mentions[index].id: result.mentions.mentions[index] for index in result.mentions.heads}
    tails = {result.mentions.mentions[index].id: result.mentions.mentions[index] for index in result.mentions.tails}

    shown = result.not_retrieved[:_MAX_MISSED]
    rows = [
        [
            Cell(f"{each.head} → {each.tail}"),
            Cell(each.label),
            Cell(heads[each.head].marked),
            Cell(tails[each.tail].marked),
        ]
        for each in shown
    ]
    caption = f"{len(shown)} of {len(result.not_retrieved)}; a larger k finds more of them"
    headings = ["relation", "label", "head", "tail"]
    return table(Table("Not retrieved", caption, headings, rows, text_columns=(1, 2, 3)))


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"
