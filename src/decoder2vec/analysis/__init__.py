"""Look into a model: which layer means most, and is it read correctly?"""
