"""An encoder for others to ask over HTTP: OpenAI's embeddings, search, matching and a page to look at."""
