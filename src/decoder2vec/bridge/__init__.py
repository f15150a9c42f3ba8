"""Bridges: vectors of any origin as soft tokens of a language model, to be searched by text or described in words."""
