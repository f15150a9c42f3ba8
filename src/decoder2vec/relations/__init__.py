"""Find relations between mentions, such as events or records: retrieve likely pairs, then classify only these."""
