"""Activations of a backbone: captured and pooled per layer, stored on disk, read back for training."""
