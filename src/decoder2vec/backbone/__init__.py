"""A language model seen as: embeddings, blocks, final norm, tokenizer."""
