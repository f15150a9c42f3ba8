"""Vectors of more texts than fit into memory: into one file, or into a folder of parts by many processes."""
