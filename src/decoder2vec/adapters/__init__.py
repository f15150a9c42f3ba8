"""Adapters: small trained parts that make a frozen model read differently."""
