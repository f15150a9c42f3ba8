"""Functions on arrays and tensors: pooling, similarity, losses, metrics, geometry. No model and no file is touched."""
