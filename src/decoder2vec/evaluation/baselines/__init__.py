"""What every table should stand beside: BM25, sentence-transformers, static embeddings, chance."""
