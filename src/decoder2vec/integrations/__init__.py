"""Encoders, indexes and rerankers as classes of other libraries: LangChain, LlamaIndex and Haystack."""
