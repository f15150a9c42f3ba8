"""Serve an encoder over HTTP: OpenAI's embeddings API, search, matching, reranking and a web page."""
