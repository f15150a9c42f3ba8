"""T9: the start of the text in a prompt when a token spans the boundary."""

from dataclasses import replace

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from decoder2vec.config import Reading


def tokenizer_that_merges(left, right, bos=False):
    """A byte-level tokenizer without word boundaries whose only merge is `left` + `right`."""
    vocabulary = {"<eos>": 0, "<bos>": 1, "<pad>": 2}
    for letter in [*sorted(pre_tokenizers.ByteLevel.alphabet()), left + right]:
        vocabulary[letter] = len(vocabulary)
    backend = Tokenizer(models.BPE(vocabulary, [(left, right)]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    if bos:
        backend.post_processor = processors.TemplateProcessing(single="<bos> $A", special_tokens=[("<bos>", 1)])
    return PreTrainedTokenizerFast(tokenizer_object=backend, bos_token="<bos>", eos_token="<eos>")


def start_by_prefix(model, prefix):
    """The faulty variant of sentence-transformers and GritLM: the number of tokens of the prefix alone."""
    return len(model.tokenizer.encode(prefix))


def start_by_text(model, text, prompt):
    """The faulty variant of llm2vec: as many trailing tokens as the text alone has."""
    return len(prompt.ids) - len(model.tokenizer.encode(text, add_special_tokens=False))


@pytest.mark.parametrize("family", ["tiny-gpt2", "tiny-llama"])
def test_token_shared_by_prefix_and_text_is_pooled(
    family, backbone, tokenise, encode_batch, single_states, pool_by_loop, gap
):
    """The prefix ends in a space, which the tokenizer merges with the first word of the text."""
    model = backbone(family)
    prefix, text = "Query: ", "the cat"
    (prompt,) = tokenise(model, [text], prefix + "{text}")
    pieces = model.tokenizer.convert_ids_to_tokens(prompt.ids)
    assert pieces[prompt.start :] == ["Ġthe", "Ġc", "at"]
    assert start_by_prefix(model, prefix) == prompt.start + 1  # loses the first word
    assert start_by_text(model, text, prompt) == prompt.start - 1  # includes a token of the prefix

    states = single_states(model, prompt.ids)[-1]
    vector = encode_batch(model, [prompt], [Reading(-1, "mean", True)])[0, 0]
    assert gap(vector, pool_by_loop("mean", states[prompt.start :])) < 1e-5
    assert gap(vector, pool_by_loop("mean", states[start_by_prefix(model, prefix) :])) > 1e-2
    assert gap(vector, pool_by_loop("mean", states[start_by_text(model, text, prompt) :])) > 1e-2


@pytest.mark.parametrize("bos", [False, True])
@pytest.mark.parametrize("text", ["A dog", "B dog", "A", "é", "🙂 A", ' "A'])
def test_token_merged_with_the_opening_quote_is_pooled(text, bos, backbone, tokenise):
    """Every token with a character of the text is in the span, and the first of them holds the text's first."""
    model = replace(backbone("tiny-gpt2"), tokenizer=tokenizer_that_merges('"', "A", bos))
    template = 'Say "{text}" now'
    (prompt,) = tokenise(model, [text], template)
    rendered = template.replace("{text}", text)
    offsets = model.tokenizer(rendered, return_offsets_mapping=True)["offset_mapping"]
    first = template.index("{text}")
    assert all(begin < first + len(text) and end > first for begin, end in offsets[prompt.start : prompt.start + 1])
    assert all(end <= first for _, end in offsets[: prompt.start])
    assert prompt.end == len(offsets)

    spans_boundary = text.startswith("A")
    assert (start_by_prefix(model, 'Say "') != prompt.start) == spans_boundary


def test_merged_token_in_the_second_copy_is_pooled(backbone, tokenise):
    """With two copies, as in echo embeddings, the boundary of the second one counts."""
    model = replace(backbone("tiny-gpt2"), tokenizer=tokenizer_that_merges('"', "A"))
    (prompt,) = tokenise(model, ["A dog"], '"{text}" again "{text}"')
    pieces = model.tokenizer.convert_ids_to_tokens(prompt.ids)
    assert pieces[prompt.start :] == ['"A', "Ġ", "d", "o", "g", '"']
    assert start_by_prefix(model, '"A dog" again "') == prompt.start + 1


def test_prompt_passed_to_encode_is_not_pooled(backbone, own_cache, single_states, pool_by_loop, gap):
    """encode(prompt=...) is treated like a template."""
    from decoder2vec.encoder import Encoder

    encoder = Encoder.from_pretrained("tiny-llama", template="plain", pooling="mean", normed=True, device="cpu")
    prefix, text = "Query: ", "the cat"
    ids = encoder.tokenizer.encode(prefix + text)
    states = single_states(backbone("tiny-llama"), ids)[-1]
    assert gap(encoder.encode(text, prompt=prefix), pool_by_loop("mean", states[-3:])) < 1e-5
    wrong = states[len(encoder.tokenizer.encode(prefix)) :]
    assert gap(encoder.encode(text, prompt=prefix), pool_by_loop("mean", wrong)) > 1e-2
