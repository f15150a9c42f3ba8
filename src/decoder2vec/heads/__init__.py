"""Heads: they turn the pooled states of a backbone into embeddings, and pairs of embeddings into scores."""
