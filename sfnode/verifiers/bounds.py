"""Bounds that keep the time for an answer below 10 ms, as tests/bench/verifiers.py measures it."""

from __future__ import annotations

MAX_ANSWER = 4096
"""Characters of an answer, or of a value of a row, that are looked at: about 1,000 tokens."""

MAX_NAME = 200
"""Characters of the name of a column, a function, a parameter, a module or a member of an object."""

MAX_MARKER = 64
"""Characters of a marker: searching takes up to this many comparisons for each character."""

MAX_LISTED = 64
"""Entries of any list in a verifier."""

MAX_DEPTH = 4
"""Verifiers within each other, the outermost counted."""

MAX_COST = 10
"""Costs of a verifier and those within it. A cost is a time in milliseconds that no answer reaches."""

WHITE_SPACE = " \t\n\v\f\r"
"""The white space of ASCII: no answer then depends on a version of Unicode."""
