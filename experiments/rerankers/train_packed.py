"""Train rerankers on pairs without labels, with packed batches on one GPU, and measure what matters for them.

The positives are pairs that belong together (titles and abstracts, questions and answers, a sentence and what surrounds
it); the negatives are near neighbours by the vectors of teachers, which are bi-encoders. A query with its documents is
a group: cross-entropy of the positive, and the divergence from the teachers' similarities.

`d2v train --recipe rerank` trains a reranker on any model and data, resumes and reports. This script has one reading
and one way to train, and all tokens and all vectors of the teachers are in memory: `study.py` runs it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from itertools import islice

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from decoder2vec.activations.capture import Capture
from decoder2vec.adapters.lora import Lora
from decoder2vec.backbone.backbone import Backbone
from decoder2vec.backbone.batch import Packing, TokenBatch
from decoder2vec.backbone.block_modes import CompiledBlocks, computing_in
from decoder2vec.config import Reading
from decoder2vec.reranker import Reranker, RerankerSpec
from token_table import Rows, TokenTable

TEMPLATES = {"document first": "{document}\n\n{query}", "query first": "{query}\n\n{document}"}
"""Nothing of these templates is one token with a text, so that the tokens of texts can be put together."""

_NEAREST = 60
"""Negatives are drawn from this many nearest documents of the same source."""
_FALSE_NEGATIVE = 0.95
"""A document that is more similar than this share of the positive's similarity is no negative."""
_QUERIES_AT_ONCE = 4096
_DOCUMENT_TOKENS, _QUERY_TOKENS = 320, 96
READING = Reading(-1, "lasttoken", normed=True)


@dataclass(frozen=True)
class Settings:
    """Settings of a run."""

    negatives: int = 7
    order: str = "document first"
    teacher: float = 1.0
    """Weight of the divergence from the teachers' similarities; 0: cross-entropy alone."""
    temperature: float = 0.05
    """What the teachers' cosines are divided by."""
    rate: float = 6e-4
    steps: int = 1600
    """The learning rate falls to zero by then. Batches have the same number of tokens, whatever the variant."""
    batch_tokens: int = 49_152
    balance: float = 0.7
    """Sources are drawn in proportion to this power of their sizes."""
    seed: int = 0


@dataclass(frozen=True)
class Groups:
    """Queries with one positive and mined negatives each."""

    queries: Rows
    documents: NDArray[np.intp]
    """[queries, 1 + negatives], the positive first."""
    similarities: NDArray[np.float32]
    """[queries, 1 + negatives] mean cosines of the teachers."""


@torch.no_grad()
def mine(pairs: NDArray[np.intp], teachers: Sequence[Tensor], count: int, seed: int = 0) -> Groups | None:
    """Draw `count` negatives for each [query, document] pair from the nearest documents of the other pairs.

    Args:
        pairs: [pairs, 2] rows of texts.
        teachers: [texts, dim] unit vectors of each teacher.
        count: Number of negatives; a query with fewer candidates is left out.
        seed: Of the draw.

    Returns:
        The groups, or None if no query is left.
    """
    documents = np.unique(pairs[:, 1])
    if len(documents) <= count:
        return None
    device = teachers[0].device
    generator = torch.Generator(device).manual_seed(seed)
    rows = torch.from_numpy(documents).to(device)
    candidates = [of[rows] for of in teachers]
    found: list[tuple[Tensor, Tensor, Tensor]] = []
    for chunk in torch.from_numpy(pairs).to(device).split(_QUERIES_AT_ONCE):
        queries, positives = chunk.T
        pooled = zip(teachers, candidates, strict=True)
        scores = torch.stack([(of[queries] @ those.T).float() for of, those in pooled]).mean(0)
        own = torch.stack([(of[queries] * of[positives]).sum(1).float() for of in teachers]).mean(0)
        scores.masked_fill_(rows == positives[:, None], -2)
        scores.masked_fill_(scores > _FALSE_NEGATIVE * own[:, None], -2)
        near, places = scores.topk(min(_NEAREST, len(rows)), dim=1)
        draw = torch.rand(near.shape, generator=generator, device=device).masked_fill(near <= -2, -1)
        chance, chosen = draw.topk(count, dim=1)
        enough = chance[:, -1] >= 0
        group = torch.cat([positives[:, None], rows[places.gather(1, chosen)]], 1)
        similarity = torch.cat([own[:, None], near.gather(1, chosen)], 1)
        found.append((queries[enough], group[enough], similarity[enough]))
    queries, groups, similarities = (torch.cat(parts).cpu().numpy() for parts in zip(*found, strict=True))
    return Groups(queries, groups, similarities) if len(queries) else None


@dataclass(frozen=True)
class PairPacker:
    """Puts the tokens of queries and documents together to prompts, and packs them."""

    table: TokenTable
    between: NDArray[np.int32]
    """Tokens between the two texts."""
    closing: int
    opening: int = 0
    """Tokens that the tokenizer puts before every text, such as BOS; a prompt has them once."""

    @classmethod
    def of(cls, backbone: Backbone, table: TokenTable) -> PairPacker:
        """With the tokens that this model's tokenizer puts before texts, and between two of them."""
        encode = backbone.tokenizer.backend_tokenizer.encode
        alone, both = encode("a"), encode("a\n\na")
        opening = alone.special_tokens_mask.index(0)
        between = both.ids[opening + 1 : len(both.ids) - len(alone.ids) + opening]
        return cls(table, np.array(between, np.int32), backbone.closing_token_id, opening)

    def tokens(self, row: int, limit: int) -> NDArray[np.int32]:
        """The first tokens of a text, without those before every text."""
        start = self.table.starts[row] + self.opening
        return self.table.token_ids[start : start + min(limit, self.table.lengths[row] - self.opening)]

    def prompt(self, query: int, document: int, order: str) -> NDArray[np.int32]:
        """The tokens of a prompt."""
        parts = [self.tokens(document, _DOCUMENT_TOKENS), self.between, self.tokens(query, _QUERY_TOKENS)]
        if order == "query first":
            parts.reverse()
        opening = self.table.token_ids[self.table.starts[query] :][: self.opening]
        return np.concatenate([opening, *parts, np.array([self.closing], np.int32)])

    def pack(self, prompts: Sequence[NDArray[np.int32]]) -> TokenBatch:
        """One packed row."""
        packing = replace(Packing.of([len(prompt) for prompt in prompts]), groups=None)  # one attention to compile
        row = torch.from_numpy(np.concatenate(prompts).astype(np.int64))[None]
        begins, ends = packing.boundaries[:-1].long(), packing.boundaries[1:].long()
        return TokenBatch(row, torch.ones_like(row), begins, ends, packing=packing)


def draw_batches(
    groups: dict[str, Groups], packer: PairPacker, settings: Settings, device: torch.device
) -> Iterator[tuple[TokenBatch, Tensor, int]]:
    """Endless packed batches of one source each: prompts, [queries, 1 + negatives] similarities, tokens."""
    rng = np.random.default_rng(settings.seed)
    sources = list(groups)
    sizes = np.array([len(groups[source].queries) for source in sources]) ** settings.balance
    waiting: dict[str, list[int]] = {source: [] for source in sources}
    while True:
        source = sources[rng.choice(len(sources), p=sizes / sizes.sum())]
        of, order = groups[source], waiting[source]
        prompts: list[NDArray[np.int32]] = []
        similarities = []
        n_tokens = 0
        while not prompts or n_tokens < settings.batch_tokens * 0.9:
            if not order:
                order.extend(rng.permutation(len(of.queries)).tolist())
            row = order.pop()
            chosen = [0, *(1 + rng.permutation(of.documents.shape[1] - 1)[: settings.negatives])]
            group = [packer.prompt(of.queries[row], document, settings.order) for document in of.documents[row][chosen]]
            n_tokens += sum(map(len, group))
            if prompts and n_tokens > settings.batch_tokens:
                order.append(row)
                break
            prompts += group
            similarities.append(of.similarities[row][chosen])
        batch = packer.pack(prompts)
        teacher = torch.from_numpy(np.stack(similarities)).to(device)
        yield batch.to(device), teacher, int(batch.ids.numel())


def group_loss(scores: Tensor, teacher: Tensor, settings: Settings) -> Tensor:
    """Cross-entropy of the positives, plus the divergence from the teachers' similarities.

    Args:
        scores: [queries, 1 + negatives] scores, the positive first.
        teacher: Cosines of the teachers, likewise.
        settings: Weights.
    """
    logarithms = functional.log_softmax(scores, dim=1)
    loss = -logarithms[:, 0].mean()
    if settings.teacher:
        targets = functional.log_softmax(teacher / settings.temperature, dim=1)
        loss = loss + settings.teacher * functional.kl_div(logarithms, targets, reduction="batchmean", log_target=True)
    return loss


def train(
    backbone: Backbone,
    lora: Lora | None,
    compiled: CompiledBlocks | None,
    batches: Iterator[tuple[TokenBatch, Tensor, int]],
    settings: Settings,
) -> tuple[Tensor, dict[str, float]]:
    """Train LoRA, or all weights without it, and a linear score.

    Args:
        backbone: The model.
        lora: What is trained; None trains all weights of the model.
        compiled: The blocks of the model, compiled.
        batches: Endless batches of `draw_batches`.
        settings: Settings of the run.

    Returns:
        The weights of the score, and a summary.
    """
    torch.manual_seed(settings.seed)
    head = nn.Parameter(torch.randn(backbone.dim, device=backbone.device) * 0.01)
    trained: nn.Module = lora or backbone.model
    trained.requires_grad_(True)
    capture = Capture(backbone.with_adapter(lora), [READING])
    parameters = [*trained.parameters(), head]
    on_gpu = backbone.device.type == "cuda"
    optimiser = torch.optim.AdamW(parameters, betas=(0.9, 0.98), weight_decay=0.01, fused=on_gpu)
    dtype = torch.bfloat16 if on_gpu else torch.float32
    began, n_tokens, n_queries = time.perf_counter(), 0, 0
    losses: list[Tensor] = []
    for step, (batch, teacher, tokens) in enumerate(islice(batches, settings.steps)):
        for parameter_group in optimiser.param_groups:
            parameter_group["lr"] = settings.rate * min((step + 1) / 40, 1 - step / settings.steps)
        with computing_in(backbone.model, dtype), compiled.enabled() if compiled else nullcontext():
            scores = capture(batch)[:, 0].float() @ head
            loss = group_loss(scores.view(teacher.shape), teacher, settings)
            loss.backward()
        nn.utils.clip_grad_norm_(parameters, 1.0)
        optimiser.step()
        optimiser.zero_grad()
        losses.append(loss.detach())
        n_tokens, n_queries = n_tokens + tokens, n_queries + len(teacher)
    trained.requires_grad_(False)
    last = float(torch.stack(losses[-100:]).mean())  # waits for the GPU
    seconds = time.perf_counter() - began
    return head.detach(), {"queries": n_queries, "tokens": n_tokens, "seconds": seconds, "loss": last}


def new_reranker(backbone: Backbone, lora: Lora | None, head: Tensor, settings: Settings) -> Reranker:
    """The trained reranker."""
    spec = RerankerSpec(backbone.name, method="linear", template=TEMPLATES[settings.order], max_length=512)
    return Reranker(backbone.with_adapter(lora), spec, head)
