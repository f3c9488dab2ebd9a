"""Writes the rows that come with sfnode, the `builtin:` sources of SPEC T1, as .jsonl files.

    python -m scripts.builtin_rows

They ship with the package, and never change: runs name them. A test asserts that they are what this writes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from scripts import orders, reviews, sums
from sfnode.tasks.dataset import SHIPPED

SOURCES: dict[str, Callable[[], Sequence[Mapping[str, Any]]]] = {
    f"{name}:{split}": partial(module.rows, split)
    for name, module in {"reviews": reviews, "orders": orders, "sums": sums}.items()
    for split in module.ROWS
}
"""Writes the rows of each source, by what follows `builtin:`."""


def lines(name: str) -> str:
    """Return the file of a source."""
    return "".join(f"{json.dumps(row, separators=(',', ':'))}\n" for row in SOURCES[name]())


if __name__ == "__main__":
    for name in SOURCES:
        (SHIPPED / f"{name.replace(':', '-')}.jsonl").write_text(lines(name), encoding="utf-8")
