"""Tensors in, tensors out: no model, no file."""
