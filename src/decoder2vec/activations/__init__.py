"""What a model computes on the way: captured and pooled per layer, kept on disk."""
