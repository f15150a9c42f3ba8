"""Hierarchical attention: a sentence token sees its own sentence only, and the target reads sentence tokens by it.

The masks of DEPTH (Bamberger, Glick, Baskin, Belinkov) in a decoder: the shuffled text and the target are one row, and
the masks of encoder, decoder and cross-attention are the parts of one mask. The text is read in both directions, the
target from left to right. A sentence token in the text sees nothing but its sentence; one in the target sees nothing
but sentence tokens, those of the text and those before it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn import functional

from decoder2vec.backbone.attention import attention_blocks, restrict_attention, sight
from decoder2vec.backbone.blocks import find_blocks, text_config
from decoder2vec.errors import UnsupportedError

TARGET = 0
"""Number of the sentence of every token of the target."""
PADDING = -1

_PROBE_SENTENCES = [1, 1, 1, 1, 2, 2, 2, TARGET, TARGET, TARGET, TARGET, TARGET]
_PROBE_TOKENS = [1, 4, 9, 11]
"""Positions of sentence tokens in the text of the check, which is shorter than any attention window."""


def hierarchical_mask(sentences: Tensor, sentence_tokens: Tensor) -> Tensor:
    """[text, token, token] booleans: True where the row's token may attend to the column's.

    Args:
        sentences: [text, token] number of the sentence of each token, from 1; `TARGET` behind the text, then `PADDING`.
        sentence_tokens: [text, token] booleans: True for tokens that stand for a sentence.

    Returns:
        The mask. Padding is never seen; its own rows see the text, since no row may be empty.

    """
    in_text, in_target = sentences > TARGET, sentences == TARGET
    causal = torch.ones(2 * sentences.shape[1:], dtype=torch.bool, device=sentences.device).tril()
    same_sentence = sentences[:, :, None] == sentences[:, None, :]
    is_token_row, is_token_column = sentence_tokens[:, :, None], sentence_tokens[:, None, :]
    text_columns, target_columns = in_text[:, None, :], in_target[:, None, :]
    of_text = text_columns & (same_sentence | ~is_token_row)
    of_target = (text_columns | (target_columns & causal)) & (is_token_column | ~is_token_row)
    return torch.where(in_target[:, :, None], of_target, of_text)


@contextmanager
def hierarchical_attention(blocks: Iterable[nn.Module], mask: Tensor) -> Iterator[None]:
    """Context in which a bidirectional model attends as a `hierarchical_mask` says; all see cached tokens.

    Args:
        blocks: The blocks of the model.
        mask: [text, token, token] booleans.

    """

    def allowed(tokens: int, all_tokens: int, device: torch.device) -> Tensor:
        return functional.pad(mask.to(device)[:, None], (all_tokens - tokens, 0), value=True)

    handles = restrict_attention(blocks, allowed)
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def check_hierarchical_attention(model: nn.Module) -> None:
    """Verify block by block that `hierarchical_attention` works on the model.

    Every token of a short text is changed. No block may let a token see what the mask forbids, and every token must see
    something besides itself wherever the mask allows that.

    Raises:
        UnsupportedError: The family cannot attend this way.

    """
    try:
        verified = all(_attends_by_sentences(model, padded) for padded in (False, True))
    except RuntimeError:  # blocks that are not attention get a mask of the wrong shape
        verified = False
    if not verified:
        family = text_config(model.config).model_type
        raise UnsupportedError(f"{family} cannot attend to sentences and sentence tokens apart.")


def _attends_by_sentences(model: nn.Module, padded: bool) -> bool:
    """Check copies of one text, in each of which another token is changed; every second may be padded."""
    blocks = find_blocks(model)[1]
    device = next(model.parameters()).device
    n_tokens = len(_PROBE_SENTENCES)
    sentences = torch.tensor(_PROBE_SENTENCES, device=device).repeat(n_tokens, 1)
    if padded:
        sentences[1::2, -1] = PADDING
    is_token = torch.zeros_like(sentences, dtype=torch.bool)
    is_token[:, _PROBE_TOKENS] = True
    ids = torch.arange(7, 7 + n_tokens, device=device).remainder(text_config(model.config).vocab_size)
    mask = hierarchical_mask(sentences, is_token)
    is_real = sentences != PADDING
    columns = torch.arange(n_tokens, device=device)
    with hierarchical_attention(blocks, mask):
        seen = sight(model, ids.repeat(n_tokens, 1), is_real.long(), columns)  # [block, column, row]
    allowed = mask[columns, :, columns]  # [column, row]
    others = ~torch.eye(n_tokens, dtype=torch.bool, device=device)
    if (seen & ~allowed & others & is_real).any():
        return False
    with_attention = [index for index, _ in attention_blocks(list(blocks))]
    sees_another = (seen[with_attention] & others).any(dim=1)
    may_see_another = (allowed & others).any(dim=0)
    return bool((sees_another | ~may_see_another).all())
