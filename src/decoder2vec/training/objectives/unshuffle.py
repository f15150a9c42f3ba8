"""Unshuffling (DEPTH): masked spans are restored, and shuffled sentences put back in order, behind the text.

Bamberger, Glick, Baskin and Belinkov, for a decoder: text and target are one row under one mask, see
`backbone.sentence_attention`. Every sentence has a token of its own, which sees that sentence only. What the next
sentence is, a pointer says by default: it compares the state before it with the states of the sentence tokens in the
text. With `head = "lm"` the label of the next sentence is generated, as in the paper.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from decoder2vec.adapters.sentence_tokens import SentenceTokens
from decoder2vec.backbone.attention import parse_attention
from decoder2vec.backbone.batch import move_to_device
from decoder2vec.backbone.lm_head import LMHead
from decoder2vec.backbone.sentence_attention import (
    PADDING,
    TARGET,
    check_hierarchical_attention,
    hierarchical_attention,
    hierarchical_mask,
)
from decoder2vec.errors import InputError, unknown_name
from decoder2vec.maths.losses import remaining_choices
from decoder2vec.text.batches import collate, plan_batches
from decoder2vec.text.sentences import split_sentences
from decoder2vec.text.shuffled import ShuffledText, Shuffling, outer_tokens
from decoder2vec.text.tokens import Prompt
from decoder2vec.training.context import InputSpec, TokenContext
from decoder2vec.training.data import TrainingData
from decoder2vec.training.loop import Rows
from decoder2vec.training.objectives.corpus import NEEDS_TOKEN_STATES, CorpusObjective, require_token_states
from decoder2vec.training.objectives.objective import HELD_OUT_LOSS, Loss, Metric, ObjectiveConfig
from decoder2vec.training.objectives.token_states import TokenStates, sum_over_texts

HEADS = ("pointer", "lm")
_SENTINELS = 100
_MAX_MASK_RATE = 0.5
"""With more, what is left of a text would say little about the rest."""


@dataclass(frozen=True)
class UnshuffleConfig(ObjectiveConfig):
    """Restoring masked spans and the order of sentences."""

    name: str = "unshuffle"
    head: str = "pointer"
    """pointer: points to the next sentence; lm: generates its label."""
    mask_rate: float = 0.3
    """Share of the tokens that is masked."""
    span: float = 3.0
    """Mean number of tokens of a masked span."""
    shuffle_p: float = 0.5
    """Probability that the sentences of a batch are shuffled."""
    sentence_tokens: int = 20
    """Number of sentence tokens; of a text with more sentences, the first ones are kept."""
    eosen_is_sentence_token: bool = False
    """Whether the token that ends a sentence, from which the next is predicted, sees sentence tokens only."""

    def __post_init__(self) -> None:
        if self.head not in HEADS:
            raise unknown_name("head", self.head, HEADS)
        if not 0 < self.mask_rate <= _MAX_MASK_RATE:
            raise InputError(
                f"The share of masked tokens lies above 0 and at most at {_MAX_MASK_RATE:g}, not at {self.mask_rate:g}."
            )
        if not 1 <= self.span < np.inf:
            raise InputError(f"The mean length of a masked span is 1 token or more, not {self.span:g}.")
        if not 0 <= self.shuffle_p <= 1:
            raise InputError(f"shuffle_p is a probability from 0 to 1, not {self.shuffle_p:g}.")
        if self.sentence_tokens < 2:
            raise InputError(f"There are 2 sentence tokens or more, not {self.sentence_tokens}.")


class UnshuffleObjective(CorpusObjective[UnshuffleConfig]):
    """Plain texts of several sentences, by the cross-entropy of masked spans and of the order of sentences."""

    names = ("unshuffle",)
    predicts_tokens = True
    config_class = UnshuffleConfig
    stage = "shuffled texts"
    unreadable = NEEDS_TOKEN_STATES
    unshuffler: Unshuffler

    def __init__(self, config: UnshuffleConfig, data: TrainingData, spec: InputSpec) -> None:
        require_token_states(config.name, spec)
        super().__init__(config, data, spec)
        if parse_attention(spec.attention) != ("bidirectional", 0):
            raise InputError("unshuffle reads shuffled texts in both directions; set attention to bidirectional.")
        self.train_sentences, self.dev_sentences = (
            [split_sentences(text)[: config.sentence_tokens] for text in texts]
            for texts in (self.train_texts, self.dev_texts)
        )
        if not any(len(sentences) > 1 for sentences in self.train_sentences):
            raise InputError("unshuffle learns the order of sentences, but no text has two; give longer texts.")

    @property
    def texts(self) -> list[str]:
        """All sentences."""
        texts = (*self.train_sentences, *self.dev_sentences)
        return list(dict.fromkeys(sentence for sentences in texts for sentence in sentences))

    def extra_modules(self, context: TokenContext) -> nn.Module:
        """Embeddings of the new tokens, which the encoder keeps, and the pointer."""
        self.unshuffler = Unshuffler(context, self.config)
        check_hierarchical_attention(context.backbone.model)
        context.backbone.sentence_tokens = self.unshuffler.tokens
        return self.unshuffler

    def loss(self, context: TokenContext) -> Loss:
        """The mean over all target tokens; one coin for each batch says whether its texts are shuffled."""
        texts = self._token_ids(context, self.train_sentences)
        usable = next((text for text in texts if text), None)
        if usable is None:
            raise InputError("No text has a token besides special ones; give other texts.")

        def loss(rows: Rows) -> Tensor:
            random = np.random.default_rng(int(torch.randint(2**62, ())))
            shuffle = bool(random.random() < self.config.shuffle_p)
            chosen = [texts[row] for row in rows if texts[row]] or [usable]
            shuffled = [self.unshuffler.shuffling(text, random, shuffle=shuffle) for text in chosen]
            return self.unshuffler.mean_loss(shuffled)

        return loss

    def metric(self, correlation: str) -> Metric:
        """The loss on held-out texts, also where there are dev pairs."""
        return HELD_OUT_LOSS

    def dev_metric(self, context: TokenContext) -> Callable[[], float]:
        """Minus the loss on held-out texts, all of them shuffled, in the same way in every evaluation."""
        shuffled = self._held_out(context)
        return lambda: -float(self.unshuffler.mean_loss(shuffled))

    def report(self, context: TokenContext) -> dict[str, Any]:
        """How often the next sentence of held-out texts is found among those that are left, in percent."""
        return {"order": self.unshuffler.order_accuracy(self._held_out(context))}

    def _held_out(self, context: TokenContext) -> list[ShuffledText]:
        random = np.random.default_rng(0)
        texts = filter(None, self._token_ids(context, self.dev_sentences))
        shuffled = [self.unshuffler.shuffling(text, random, shuffle=True) for text in texts]
        if not shuffled:
            raise InputError("No held-out text has a token besides special ones; give more texts.")
        return shuffled

    def _token_ids(self, context: TokenContext, texts: Sequence[Sequence[str]]) -> list[list[list[int]]]:
        """Tokens of each sentence of each text, cut so that a text with its sentence tokens fits twice into a row.

        Sentences are tokenised one by one: within a text all but the first would begin with a space.
        """
        special, limit = self.unshuffler.special, self.spec.max_length
        if context.backbone.context_length is not None:
            limit = min(limit, context.backbone.context_length // 2 - 1)
        result = []
        for sentences in texts:
            ids = [[token for token in prompt.ids if token not in special] for prompt in context.prompts_of(sentences)]
            result.append(_cut([sentence for sentence in ids if sentence], limit - self.unshuffler.n_outer_tokens))
        return result


def _cut(sentences: list[list[int]], limit: int) -> list[list[int]]:
    """The first sentences, with two more tokens each, that have at most `limit` tokens; the last may be cut."""
    kept = []
    for sentence in sentences:
        room = limit - 2
        if room < 1:
            break
        kept.append(sentence[:room])
        limit -= len(kept[-1]) + 2
    return kept


class _Rows(NamedTuple):
    """States of the rows of some texts, and where the target is in them."""

    states: Tensor
    """[text, token, width]."""
    begins: list[int]
    """Of each text, the position from whose state its first target token is predicted."""


class Unshuffler(nn.Module):
    """Computes the loss of shuffled texts; trains the embeddings of the new tokens, and the pointer."""

    def __init__(self, context: TokenContext, config: UnshuffleConfig) -> None:
        super().__init__()
        backbone = context.backbone
        self.context, self.config = context, config
        self.token_states, self.lm_head = TokenStates(context), LMHead(backbone)
        self.tokens = SentenceTokens.initialise(backbone, config.sentence_tokens, _SENTINELS)
        self.outputs = _output_embeddings(self.lm_head, self.tokens, backbone.model)
        """Output embeddings of the new tokens; None if they are the input embeddings."""
        self.lm_head.add_tokens(self.tokens.vectors if self.outputs is None else self.outputs)
        self.pointer = SentencePointer(backbone.dim).to(context.device) if config.head == "pointer" else None
        self.special, start = outer_tokens(context.tokenise)
        self.end = backbone.closing_token_id
        self.shuffling = Shuffling(self.tokens, self.end, start, mask_rate=config.mask_rate, span=config.span)
        self.n_outer_tokens = len(start) + 2
        """Tokens of a text outside of its sentences."""

    def mean_loss(self, texts: Sequence[ShuffledText]) -> Tensor:
        """Cross-entropy of the order and of the other target tokens, divided by the number of target tokens."""
        costs = [len(text.source) + len(text.target) for text in texts]
        total = sum_over_texts(self.context, costs, lambda chunk: self._loss_sum([texts[index] for index in chunk]))
        return total / sum(len(text.target) for text in texts)

    def _loss_sum(self, texts: Sequence[ShuffledText]) -> Tensor:
        rows = self._read(texts)
        predicted = [
            (row, begin + index, token)
            for row, (text, begin) in enumerate(zip(texts, rows.begins, strict=True))
            for index, token in enumerate(text.target)
            if self.pointer is None or not self._is_label(token)
        ]
        row, position, token = self._tensor(predicted).unbind(1)
        loss = self.lm_head.cross_entropy(rows.states[row, position], token)
        if self.pointer is None:
            return loss
        return loss - self._order_log_likelihoods(texts, rows).diagonal(dim1=1, dim2=2).sum()

    def _read(self, texts: Sequence[ShuffledText]) -> _Rows:
        """Run the model on texts, each with its target behind it, shifted by one."""
        backbone = self.context.backbone
        ids = [[*text.source, self.end, *text.target[:-1]] for text in texts]
        batch = collate([Prompt(row, 0, len(row)) for row in ids], backbone.pad_token_id).to(backbone.device)
        sentences = torch.full(batch.ids.shape, PADDING)
        for row, text in enumerate(texts):
            sentences[row, : len(ids[row])] = torch.tensor(text.sentences + [TARGET] * len(text.target))
        is_token = self.tokens.are_sentence_tokens(batch.ids, ends=self.config.eosen_is_sentence_token)
        mask = hierarchical_mask(move_to_device(sentences, backbone.device), is_token)
        with hierarchical_attention(backbone.blocks, mask):
            states = self.token_states.of_batch(self.tokens.adapt(batch, backbone.model))
        return _Rows(states, [len(text.source) for text in texts])

    def _is_label(self, token: int) -> bool:
        return self.tokens.first_id <= token < self.tokens.end_id

    def _tensor(self, values: Sequence[Any] | NDArray[np.int64]) -> Tensor:
        return move_to_device(torch.tensor(values), self.context.device)

    def _order_log_likelihoods(self, texts: Sequence[ShuffledText], rows: _Rows) -> Tensor:
        """[text, step, sentence] log-probabilities by the pointer, steps and sentences in the true order; 0: padding.

        The n-th sentence is pointed to from the state before its label in the target.
        """
        assert self.pointer is not None
        n_steps = max(len(text.order) for text in texts)
        sources, queries = np.zeros((2, len(texts), n_steps), np.int64)
        for row, (text, begin) in enumerate(zip(texts, rows.begins, strict=True)):
            sources[row, : len(text.order)] = text.order
            queries[row, : len(text.order)] = [begin + step for step in self._label_steps(text)]
        all_rows = torch.arange(len(texts), device=rows.states.device)[:, None]
        of_steps, of_sentences = (rows.states[all_rows, self._tensor(positions)] for positions in (queries, sources))
        counts = self._tensor([len(text.order) for text in texts])
        return remaining_choices(self.pointer(of_steps, of_sentences), counts)

    def _label_steps(self, text: ShuffledText) -> list[int]:
        """Which target tokens are labels of sentences."""
        return [index for index, token in enumerate(text.target) if self._is_label(token)]

    def order_accuracy(self, texts: Sequence[ShuffledText]) -> dict[str, Any]:
        """How often the next sentence is the likeliest of those that are left, where two or more are, in percent.

        The sentences before it are the true ones. A label that is generated must be the likeliest of all tokens to
        count as `generated`.
        """
        found, generated, chance, n_steps = 0, 0, 0.0, 0
        costs = [len(text.source) + len(text.target) for text in texts]
        encoder = self.context.batch_encoder
        for chunk in plan_batches(costs, encoder.budget, encoder.overhead):
            batch = [texts[index] for index in chunk]
            rows = self._read(batch)
            likelihoods = None if self.pointer is None else self._order_log_likelihoods(batch, rows).cpu()
            for row, text in enumerate(batch):
                count = len(text.order)
                if likelihoods is not None:
                    best = likelihoods[row, :count, :count].argmax(dim=1)
                else:
                    best, n_likeliest = self._generated(text, rows.states[row, rows.begins[row] :])
                    generated += n_likeliest
                found += int((best == torch.arange(count))[:-1].sum())
                chance += sum(1 / (count - step) for step in range(count - 1))
                n_steps += count - 1
        percent = {"accuracy": found, "chance": chance} | ({} if self.pointer else {"generated": generated})
        rates = {name: round(100 * value / max(1, n_steps), 2) for name, value in percent.items()}
        return {"texts": len(texts), "steps": n_steps, **rates}

    def _generated(self, text: ShuffledText, states: Tensor) -> tuple[Tensor, int]:
        """The likeliest of the labels that are left at each step, and how often the label is that of all tokens."""
        steps = self._label_steps(text)
        labels = torch.tensor([text.target[step] for step in steps])
        logits = self.lm_head(states[steps]).float().cpu()
        n_likeliest = int((logits.argmax(dim=1) == labels)[:-1].sum())
        scores = remaining_choices(logits[:, labels][None], torch.tensor([len(labels)]))
        return scores[0].argmax(dim=1), n_likeliest


class SentencePointer(nn.Module):
    """Scores q' W s of states of unit length, with which the next sentence is chosen; all are equal at the start."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(dim, dim))

    def forward(self, queries: Tensor, sentences: Tensor) -> Tensor:
        """[text, step, sentence] scores from [text, step, width] and [text, sentence, width] states."""
        queries, sentences = (functional.normalize(states.float(), dim=-1) for states in (queries, sentences))
        return queries @ self.weight @ sentences.transpose(1, 2)


def _output_embeddings(lm_head: LMHead, tokens: SentenceTokens, model: nn.Module) -> nn.Parameter | None:
    """New output embeddings, all equal to the mean; None for a model whose embeddings are those of its inputs."""
    embed: Any = model.get_input_embeddings()  # type: ignore[operator]
    first = torch.zeros(1, dtype=torch.long, device=embed.weight.device)
    if lm_head.is_tied and torch.equal(embed(first)[0], embed.weight[0]):  # some families scale what they read
        return None
    mean = lm_head.weight.detach().float().mean(dim=0)
    return nn.Parameter(mean.expand(len(tokens.vectors), -1).clone())
