"""Words to make sentences of, for tests that need many different ones."""

NOUNS = ["dog", "cat", "sun", "tree", "house", "car", "boat", "man", "woman", "child"]
NOUNS += ["bread", "wine", "song", "book", "road"]
VERBS = ["runs", "sleeps", "shines", "falls", "grows", "sings", "reads", "waits", "burns", "opens"]
