"""Evaluation tasks, one kind in each file."""
