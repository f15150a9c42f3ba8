"""The page of a migration: how much of the search stays, and for sample queries what is found before and after.

It runs no script.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from decoder2vec.report.html import Cell, Html, Section, Table, folded, join, page, paragraph, table
from decoder2vec.search.comparison import FoundText, QueryChange
from decoder2vec.search.migration import Migration

_TITLE_CHARACTERS = 120
"""Of a query that are shown: a text of the index may be long."""


def migration_page(result: Migration, command: str = "") -> str:
    """The page of a migration.

    Args:
        result: What `migrate` returned.
        command: The command that makes the page, for its footer.
    """
    way = f"mapped: {result.map}" if result.map else "texts embedded again"
    cards = [
        ("old encoder", result.old_encoder, ""),
        ("new encoder", result.new_encoder, ""),
        ("chunks", f"{result.chunks:,}", way if result.is_switched else f"{way}; not done yet"),
    ]
    if quality := result.quality:
        what = "recall@10 of relevant documents" if quality.is_judged else "ten nearest texts"
        interval = f"{100 * quality.low:.1f} to {100 * quality.high:.1f} (95 %)"
        cards.append((f"kept of the new encoder's {what}", f"{100 * quality.recall:.1f} %", interval))
        if quality.old_recall is not None:
            cards.append(("the same by old vectors", f"{100 * quality.old_recall:.1f} %", ""))
    sections = [
        Section("overview", "Sample queries", _overview(result)),
        Section("queries", "What each query finds", join(*(_query(*each) for each in enumerate(result.changes)))),
    ]
    summary = f"The sample queries search {result.searched}." if result.searched else ""
    title = f"{result.index} with another encoder"
    return page(title, sections, kind="migration report", summary=summary, cards=cards, command=command)


def _overview(result: Migration) -> Html:
    """One row for each query: how many of its texts stay."""
    is_mapped = any(change.embedded_again is not None for change in result.changes)
    headings = ["query", "kept of the old", *(["kept of embedding again"] if is_mapped else []), "first text stays"]
    rows = []
    for number, change in enumerate(result.changes):
        true = [_share(change.kept_of_true)] if is_mapped else []
        first = change.before[:1] == change.after[:1] if change.before else None
        stays = Cell("not known" if first is None else "yes" if first else "no")
        rows.append([Cell(_title(change), link=f"#query-{number}"), _share(change.kept), *true, stays])
    note = "What the old encoder finds is not known, because the index does not hold that encoder."
    is_known = all(change.before is not None for change in result.changes)
    data = Table("Sample queries", "share of the first ten texts", headings, rows)
    return join(table(data, with_title=False), paragraph("" if is_known else note, muted=True))


def _title(change: QueryChange) -> str:
    return textwrap.shorten(change.query, _TITLE_CHARACTERS, placeholder=" ...")


def _share(share: float | None) -> Cell:
    return Cell("not known") if share is None else Cell(f"{100 * share:.0f} %", share)


def _query(number: int, change: QueryChange) -> Html:
    """The texts of a query side by side; those that were not found before are marked."""
    columns: list[tuple[str, Sequence[FoundText]]] = []
    if change.before is not None:
        columns.append(("before", change.before))
    columns.append(("after", change.after))
    if change.embedded_again is not None:
        columns.append(("by embedding again", change.embedded_again))
    known = None if change.before is None else {found.id for found in change.before}
    rows = []
    for rank in range(max(len(found) for _, found in columns)):
        cells = [_text(found[rank] if rank < len(found) else None, name, known) for name, found in columns]
        rows.append([Cell(str(rank + 1)), *cells])
    headings = ["#", *(name for name, _ in columns)]
    data = Table(_title(change), "", headings, rows, text_columns=range(1, len(headings)))
    return folded(_title(change), table(data, with_title=False), is_open=True, id=f"query-{number}")


def _text(found: FoundText | None, column: str, known: set[str] | None) -> Cell:
    if found is None:
        return Cell("")
    is_new = column == "after" and known is not None and found.id not in known
    return Cell(found.text, small=f"{found.id}{' · new' if is_new else ''}", mark="higher" if is_new else "")
