"""Learning: data by column name, one training loop, the stages of each recipe."""
