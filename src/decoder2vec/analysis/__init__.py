"""Analysis of a model: which layer to read, whether it is read correctly, where it can be cut, how its vectors lie."""
