"""Texts: templates, token batches, and files of texts and pairs."""
