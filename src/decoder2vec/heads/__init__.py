"""What turns pooled states into the final vector."""
