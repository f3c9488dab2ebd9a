"""Measures an upgrade: this version on the folder of a node of the last release, beside peers of the latter.

    python -m benchmarks.upgrade

Prints the seconds from the start of this version to its own next update at a peer. Exit status 1 if that is
more than LIMIT. Raises AssertionError if an update is lost.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from tests.processes.test_upgrade import upgraded

LIMIT = 20.0


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="sfnode-upgrade-") as home:
        seconds = upgraded(Path(home))
    print(f"{seconds:.1f} s; limit {LIMIT:g}")
    sys.exit(seconds > LIMIT)


if __name__ == "__main__":
    main()
