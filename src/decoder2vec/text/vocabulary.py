"""The vocabulary of a BPE tokenizer: which tokens texts use, and a tokenizer that has only those.

BPE starts from the characters of a word and applies its merges in the order of their ranks. A token is always made by
the same merges, those that make it from its own characters. So a tokenizer that keeps a set of tokens, the tokens on
the way to each of them, and the merges among all these tokenises every text whose tokens it has exactly as the whole
tokenizer does. Other texts get smaller pieces, down to bytes.
"""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from decoder2vec.errors import InputError, UnsupportedError
from decoder2vec.progress import current_progress
from decoder2vec.storage import parse_json
from decoder2vec.text.template import Template
from decoder2vec.text.tokens import plain_backend, tokenising_batches

_BYTE = re.compile(r"<0x[0-9A-F]{2}>")
"""Tokens that a tokenizer falls back to for characters that it does not have."""
_UNUSED = re.compile(r"unused|reserved", re.IGNORECASE)
"""Special tokens that no text contains: the models were trained without them."""
_SPACE = "▁"


@dataclass(frozen=True)
class TokenCounts:
    """How often texts use each token."""

    counts: NDArray[np.int64]
    """[token id] occurrences."""
    first_texts: NDArray[np.int64]
    """[token id] index of the first text with the token; the number of texts if there is none."""
    n_texts: int

    def plus(self, others: TokenCounts, owners: Sequence[int]) -> TokenCounts:
        """Return the counts with those of other texts, each of which counts as a part of one of these.

        Args:
            others: Counts of other texts.
            owners: For each of the other texts, the index of the text that it belongs to; they do not decrease.
        """
        firsts = np.array([*owners, self.n_texts])[others.first_texts]
        return TokenCounts(self.counts + others.counts, np.minimum(self.first_texts, firsts), self.n_texts)

    @property
    def used(self) -> NDArray[np.intp]:
        """Ids of the used tokens, the most frequent first; of equally frequent ones the lower id."""
        ids = np.flatnonzero(self.counts)
        return ids[np.argsort(-self.counts[ids], kind="stable")]


@dataclass(frozen=True)
class TextTokens:
    """The token ids of texts, one after the other."""

    ids: NDArray[np.int64]
    starts: NDArray[np.int64]
    """Where each text starts in `ids`; every text has at least one token."""

    def __len__(self) -> int:
        return len(self.starts)

    def largest(self, values: NDArray[np.int64]) -> NDArray[np.int64]:
        """[text] the largest value of a text's tokens.

        Args:
            values: [token id] values.
        """
        return np.maximum.reduceat(values[self.ids], self.starts) if len(self) else np.empty(0, np.int64)


class Vocabulary:
    """Tokens and merges of a BPE tokenizer.

    Args:
        tokenizer: A fast tokenizer of transformers.

    Raises:
        UnsupportedError: The tokenizer is none of BPE, or marks the beginnings or ends of words.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._document = parse_json(tokenizer.backend_tokenizer.to_str())
        model = self._document["model"]
        if model["type"] != "BPE":
            raise UnsupportedError(f"The vocabulary of a {model['type']} tokenizer cannot be pruned; only BPE's can.")
        if model.get("continuing_subword_prefix") or model.get("end_of_word_suffix"):
            raise UnsupportedError("The vocabulary of a tokenizer that marks parts of words cannot be pruned.")
        self.ids: dict[str, int] = model["vocab"]
        self._merges = [_pair(merge) for merge in model["merges"]]
        self._added = {token["content"]: token for token in self._document["added_tokens"]}
        self._all_ids = {**self.ids, **{content: token["id"] for content, token in self._added.items()}}
        self._paths: dict[str, set[str]] = {}
        self.size = max(self._all_ids.values()) + 1
        """One more than the largest token id."""

    @cached_property
    def tokens(self) -> dict[int, str]:
        """Token by id, added tokens included."""
        return {id: token for token, id in self._all_ids.items()}

    @cached_property
    def _ranks(self) -> dict[tuple[str, str], int]:
        return {pair: rank for rank, pair in enumerate(self._merges)}

    def merge_path(self, token: str) -> set[str]:
        """Return the tokens that make a token: its characters, what they are merged to, and itself."""
        if token not in self._paths:
            self._paths[token] = self._find_path(token)
        return self._paths[token]

    def _find_path(self, token: str) -> set[str]:
        symbols = list(token)
        path = {token, *symbols}
        while len(symbols) > 1:
            ranks = [(self._ranks.get(pair), start) for start, pair in enumerate(pairwise(symbols))]
            possible = [(rank, start) for rank, start in ranks if rank is not None]
            if not possible:
                return {token}  # no merge makes it: it is special, a byte, or looked up as a whole word
            _, start = min(possible)
            symbols[start : start + 2] = [symbols[start] + symbols[start + 1]]
            path.add(symbols[start])
        return path

    def always_kept(self, ids: Iterable[int] = ()) -> set[str]:
        """Return the tokens that a pruned vocabulary needs whatever the texts are.

        Special tokens except unused and reserved ones, single characters, and bytes. Where characters fall back to
        bytes, only those of ASCII are kept.

        Args:
            ids: Further tokens, such as those that the model's config names.
        """
        model = self._document["model"]
        kept = {self.tokens[id] for id in self._tokenizer.all_special_ids if id in self.tokens}
        kept |= {content for content, token in self._added.items() if token["special"] and not _UNUSED.search(content)}
        kept |= {token for token in self.ids if _BYTE.fullmatch(token) or token in (_SPACE, model.get("unk_token"))}
        falls_back = bool(model.get("byte_fallback"))
        kept |= {token for token in self.ids if len(token) == 1 and (token.isascii() or not falls_back)}
        return kept.union(*(self.merge_path(self.tokens[id]) for id in ids if id in self.tokens))

    def rows_needed(self, counts: TokenCounts, ids: Iterable[int] = ()) -> dict[str, int]:
        """Return for each token that may be kept how many tokens are kept if it is; the most frequent come first.

        A token comes with its merge path. All tokens with a value up to N are a vocabulary of at most N.

        Args:
            counts: What the texts use.
            ids: Tokens to keep in any case.
        """
        always = self.always_kept(ids)
        needed = dict.fromkeys(always, len(always))
        for id in counts.used.tolist():
            new = [token for token in self.merge_path(self.tokens[id]) if token not in needed]
            needed.update(dict.fromkeys(new, len(needed) + len(new)))
        return needed

    def texts_needed(self, counts: TokenCounts, ids: Iterable[int] = ()) -> dict[str, int]:
        """Return for each token that may be kept how many texts must be counted until it is; 0 if it always is.

        Args:
            counts: What the texts use.
            ids: Tokens to keep in any case.
        """
        needed = dict.fromkeys(self.always_kept(ids), 0)
        used = counts.used
        for id in used[np.argsort(counts.first_texts[used], kind="stable")].tolist():
            for token in self.merge_path(self.tokens[id]):
                needed.setdefault(token, int(counts.first_texts[id]) + 1)
        return needed

    def by_id(self, values: Mapping[str, int]) -> NDArray[np.int64]:
        """[token id] values of tokens; the largest integer for those that have none."""
        array = np.full(self.size, np.iinfo(np.int64).max, np.int64)
        array[[self._all_ids[token] for token in values]] = list(values.values())
        return array

    def select(self, needed: Mapping[str, int], n_rows: int, limit: int | None = None) -> list[int]:
        """Return the old ids of the tokens to keep, in the order of their new ids.

        Args:
            needed: What `rows_needed` returned.
            n_rows: Rows of the model's embeddings.
            limit: Keep at most this many tokens.

        Raises:
            InputError: More tokens than the limit must be kept.
        """
        minimum = min(needed.values())
        if limit is not None and limit < minimum:
            raise InputError(f"A vocabulary of {limit:,} is too small: {minimum:,} tokens are always kept; give more.")
        kept = [token for token, rows in needed.items() if limit is None or rows <= limit]
        # the library tokenizers numbers added tokens after those of BPE; added ones may have no embedding
        of_bpe = sorted(self.ids[token] for token in kept if token in self.ids and self.ids[token] < n_rows)
        return of_bpe + sorted(self._all_ids[token] for token in kept if token not in self.ids)

    def pruned_tokenizer(self, kept: Sequence[int]) -> Any:
        """Return a tokenizer that has only the tokens `kept`, with new ids in that order."""
        from tokenizers import Tokenizer

        new_ids = {self.tokens[old]: new for new, old in enumerate(kept)}
        vocab = {token: new for token, new in new_ids.items() if token in self.ids}
        merges = [(a, b) for a, b in self._merges if a in vocab and b in vocab and a + b in vocab]
        model = {**self._document["model"], "vocab": vocab, "merges": merges}
        added = [{**token, "id": new_ids[content]} for content, token in self._added.items() if content in new_ids]
        document = {
            **self._document,
            "model": model,
            "added_tokens": sorted(added, key=lambda token: int(token["id"])),
            "post_processor": _with_new_ids(self._document["post_processor"], new_ids),
            "padding": None,
            "truncation": None,
        }
        tokenizer = copy.deepcopy(self._tokenizer)
        tokenizer._tokenizer = Tokenizer.from_str(json.dumps(document, ensure_ascii=False))
        return tokenizer

    def count(self, texts: Sequence[str], templates: Sequence[Template]) -> TokenCounts:
        """Count the tokens of all texts in all templates."""
        counts = np.zeros(self.size, np.int64)
        first_texts = np.full(self.size, len(texts), np.int64)
        for template in templates:
            index = 0
            for batch in encode_texts(self._tokenizer, texts, template):
                lengths = [len(ids) for ids in batch]
                ids = np.fromiter((id for row in batch for id in row), np.int64, sum(lengths))
                counts += np.bincount(ids, minlength=self.size)
                np.minimum.at(first_texts, ids, np.repeat(np.arange(index, index + len(batch)), lengths))
                index += len(batch)
        return TokenCounts(counts, first_texts, len(texts))

    def read(self, texts: Sequence[str], template: Template) -> TextTokens:
        """Return the tokens of the texts that have any."""
        rows = [
            np.array(ids, np.int64) for batch in encode_texts(self._tokenizer, texts, template) for ids in batch if ids
        ]
        lengths = np.array([len(row) for row in rows], np.int64)
        return TextTokens(np.concatenate([np.empty(0, np.int64), *rows]), np.cumsum(lengths) - lengths)


def encode_texts(tokenizer: Any, texts: Iterable[str], template: Template) -> Iterator[list[list[int]]]:
    """Yield the token ids of texts in a template, some texts at a time; special tokens are not added."""
    for batch in tokenising_batches(texts):
        prompts = [template.render(text)[0] for text in batch]
        encodings = plain_backend(tokenizer).encode_batch_fast(prompts, add_special_tokens=False)
        current_progress().advance(len(batch))
        yield [encoding.ids for encoding in encodings]


def _pair(merge: str | list[str]) -> tuple[str, str]:
    left, right = merge.split(" ") if isinstance(merge, str) else merge
    return left, right


def _with_new_ids(processor: Any, new_ids: Mapping[str, int]) -> Any:
    """A post-processor of tokenizer.json with the new ids of the special tokens that it adds."""
    if not isinstance(processor, dict):
        return processor
    changed = dict(processor)
    if "processors" in processor:
        changed["processors"] = [_with_new_ids(part, new_ids) for part in processor["processors"]]
    if processor["type"] == "TemplateProcessing":
        changed["special_tokens"] = {
            name: {**token, "ids": [new_ids[part] for part in token["tokens"]]}
            for name, token in processor["special_tokens"].items()
        }
    for end in ("cls", "sep"):  # of BERT and RoBERTa
        if end in processor:
            changed[end] = [processor[end][0], new_ids[processor[end][0]]]
    return changed
