"""Three documents to search."""

from __future__ import annotations

from decoder2vec.search.documents import Document

DOCUMENTS = [
    Document("cat", "The cat sleeps on the warm roof. It dreams of mice.", {"kind": "pet"}),
    Document("boat", "A boat leaves the harbour at seven. The wind is strong.", {"kind": "vehicle"}),
    Document("bread", "Fresh bread is baked every night. The oven is hot.", {"kind": "food"}),
]
