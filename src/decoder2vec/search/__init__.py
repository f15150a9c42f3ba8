"""Document index with dense (embedding), lexical (BM25) and hybrid search, reranking and tuning."""
