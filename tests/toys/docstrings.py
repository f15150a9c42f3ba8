"""Runs the examples in docstrings."""

from __future__ import annotations

import doctest


def run_examples(function):
    """Run the examples in a function's docstring; fails if there are none or if one prints something else."""
    runner = doctest.DocTestRunner(verbose=False)
    for examples in doctest.DocTestFinder().find(function, globs={}):
        runner.run(examples)
    assert runner.tries > 0 and runner.failures == 0
