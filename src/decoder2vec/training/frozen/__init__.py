"""FREEZE: small encoders that learn to read the layers of a model that is left as it is."""
