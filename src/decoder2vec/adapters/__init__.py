"""Adapters: soft prompts, key-value prefixes, LoRA, bottlenecks and re-routing change what a frozen model computes."""
