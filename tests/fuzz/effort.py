"""Amount of fuzzing: small and repeatable by default; with SFNODE_FUZZ=100 a hundred times as much, at
random."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

TIMES = max(int(os.environ.get("SFNODE_FUZZ", "0")), 1)

# A decorator and not a profile, which would be everybody's. A failure prints a @reproduce_failure line: it
# can be played again where nothing is kept on disk.
EFFORT = settings(
    deadline=None,
    derandomize="SFNODE_FUZZ" not in os.environ,
    database=None,
    print_blob=True,
    max_examples=300 * TIMES,
    suppress_health_check=[HealthCheck.too_slow],
)
