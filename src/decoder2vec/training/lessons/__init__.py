"""What a model that is adapted can learn from, one lesson a file: contrast, scores, dropout, masked tokens."""
