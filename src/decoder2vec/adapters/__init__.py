"""Adapters: soft prompts, key-value prefixes and LoRA, which change what a frozen model computes."""
