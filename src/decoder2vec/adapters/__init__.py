"""Adapters: soft prompts, key-value prefixes, LoRA and re-routing, which change what a frozen model computes."""
