"""Texts: templates, tokens, batches, and files of texts, pairs and triplets."""
