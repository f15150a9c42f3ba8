"""Any decoder-only language model as embeddings, blocks, final norm and tokenizer; its attention, device and dtype."""
