"""Templates of pairs: the prompt in which a model reads a document and a query together.

The document comes first by default: under causal attention only what follows can read it, so the tokens of the query
and the closing token have read both.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from decoder2vec.errors import InputError, unknown_name
from decoder2vec.text.tokens import Prompt, Tokeniser, TokenSource

DOCUMENT, QUERY = "{document}", "{query}"

PAIR_TEMPLATES = {
    "doc_query": "Document: {document}\n\nQuery: {query}",
    "query_doc": "Query: {query}\n\nDocument: {document}",
    "question": "Passage: {document}\nPlease write a question based on this passage.\nQuestion: {query}",
    "pair": "First: {document}\n\nSecond: {query}",
    "yes_no": ("Passage: {document}\nQuery: {query}\nIs the passage relevant to the query? Answer yes or no.\nAnswer:"),
}
"""Templates by name; any other string that contains {document} and {query} is a template too."""


@dataclass(frozen=True)
class PairTemplate:
    """A prompt with one `{document}` and one `{query}` slot."""

    string: str

    @classmethod
    def of(cls, name_or_string: str) -> PairTemplate:
        """Return a template by its name, or from a string that contains {document} and {query} once each."""
        if name_or_string in PAIR_TEMPLATES:
            return cls(PAIR_TEMPLATES[name_or_string])
        if name_or_string.count(DOCUMENT) != 1 or name_or_string.count(QUERY) != 1:
            error = unknown_name("template", name_or_string, PAIR_TEMPLATES)
            raise InputError(f"{error} A template of your own contains {DOCUMENT} and {QUERY} once each.")
        return cls(name_or_string)

    @property
    def ends_with_query(self) -> bool:
        """Whether the query follows the document and nothing follows the query."""
        return self.string.endswith(QUERY)

    def with_query(self, query: str) -> QueryTemplate:
        """Return the prompt around a document, with the query filled in."""
        head, tail = self.string.split(DOCUMENT)
        position = tail.find(QUERY)
        return QueryTemplate(head.replace(QUERY, query), tail.replace(QUERY, query), max(0, position))


@dataclass(frozen=True)
class QueryTemplate:
    """A prompt around a document that contains a query; its pooled part begins with the query if that comes last."""

    head: str
    tail: str
    query_begin: int
    """First character of the query in `tail`; 0 if it is in `head`."""
    slots: int = 1

    def render(self, document: str) -> tuple[str, int, int]:
        """Return the prompt, and begin and end of the document in it, in characters."""
        end = len(self.head) + len(document)
        return self.head + document + self.tail, len(self.head), end

    def pooled_from(self, document: str) -> int:
        """Return the character of the prompt from which on it is pooled."""
        return len(self.head) + len(document) + self.query_begin


@dataclass(frozen=True)
class PairTokeniser:
    """Turns pairs into prompts of at most `max_length` tokens; only the document is ever cut, unless said otherwise.

    Args:
        backbone: The model whose tokenizer is used.
        template: The prompt around query and document.
        max_length: Maximum number of tokens of a prompt, template and closing tokens included.
        closing: Tokens that end every prompt.
        cuts_query: Cut a query of more than half of the tokens, too: of two texts that are alike neither is a question
            that must be read to its end.
    """

    backbone: TokenSource
    template: PairTemplate
    max_length: int
    closing: Sequence[int] = ()
    cuts_query: bool = False

    def __call__(self, queries: Sequence[str], documents: Sequence[str]) -> tuple[list[Prompt], list[int]]:
        """Tokenise each query with its document.

        Returns:
            The prompts, whose spans begin with the query where it comes last, and the indices of the pairs that were
            cut.

        Raises:
            InputError: The template, or a query, leaves no room for a document.
        """
        rows_of: dict[str, list[int]] = {}
        for row, query in enumerate(queries):
            rows_of.setdefault(query, []).append(row)
        prompts = [Prompt([], 0, 0)] * len(queries)
        cut: list[int] = []
        n_added = self._trailing_special_tokens()
        for query, rows in rows_of.items():
            kept = self._beginning(query) if self.cuts_query else query
            tokenised = self._tokeniser(kept)([documents[row] for row in rows], rows)
            for row, prompt in zip(rows, tokenised.prompts, strict=True):
                ids = [*prompt.ids[: len(prompt.ids) - n_added], *self.closing]
                prompts[row] = Prompt(ids, min(prompt.start, len(ids) - 1), len(ids))
            cut += rows if kept != query else [rows[index] for index in tokenised.overlong]
        return prompts, sorted(cut)

    def _tokeniser(self, query: str) -> Tokeniser:
        try:
            return Tokeniser(self.backbone, self.template.with_query(query), self.max_length - len(self.closing))
        except InputError:
            if not query:
                raise InputError(
                    f"max_length {self.max_length} is too small for the template and a document; raise it."
                ) from None
            self._tokeniser("")  # raises where the template alone is the cause
            raise InputError(
                f"The query {query[:40]!r} leaves no room for a document in {self.max_length} tokens; shorten it, or "
                "raise max_length."
            ) from None

    def _beginning(self, query: str) -> str:
        """The query, or as much of it as takes half of the tokens."""
        offsets = self.backbone.tokenizer.backend_tokenizer.encode(query, add_special_tokens=False).offsets
        limit = max(1, self.max_length // 2)
        return query if len(offsets) <= limit else query[: offsets[limit - 1][1]]

    def _trailing_special_tokens(self) -> int:
        """Number of special tokens, such as EOS, that the tokenizer itself adds at the end of every text."""
        special = self.backbone.tokenizer.backend_tokenizer.encode("a").special_tokens_mask
        return next((count for count, is_special in enumerate(reversed(special)) if not is_special), 0)
