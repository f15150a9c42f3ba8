"""Stub of pytrec_eval for machines where it cannot be built: mteb imports it, and only its retrieval metrics need it.

It must not be on the path if the real package is installed.
"""


class RelevanceEvaluator:
    """Refuses to compute: a retrieval score that pytrec_eval did not compute is not mteb's."""

    def __init__(self, *_, **__):
        raise RuntimeError("Retrieval metrics need the real pytrec_eval; install pytrec-eval-terrier where it builds.")
