"""Choose what feeds a target task: which frozen models, adapters and layers, alone or combined (reverse probing)."""
