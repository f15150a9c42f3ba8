"""Stands in for pytrec_eval where it cannot be built: mteb imports it, and only its retrieval metrics need it.

It must not be on the path where the real one is installed.
"""


class RelevanceEvaluator:
    """Refuses: a retrieval score that pytrec_eval did not compute is not mteb's."""

    def __init__(self, *_, **__):
        raise RuntimeError("Retrieval metrics need the real pytrec_eval; install pytrec-eval-terrier where it builds.")
