"""An index of documents, and search in it: by meaning, by words, by both, and once more in pairs."""
