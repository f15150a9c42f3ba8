"""Measure anything that has `encode`."""
