"""Evaluation of anything that has `encode`: tasks, baselines and mteb."""
