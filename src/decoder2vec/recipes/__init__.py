"""One adaptation per file: what can be learned on top of a decoder, and from which readings."""
