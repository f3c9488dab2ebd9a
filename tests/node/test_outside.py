"""Below the seam nobody asks the system for what would be otherwise the next time (`sfnode.node.outside`)."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import sfnode

ROOT = Path(sfnode.__file__).parent

PACKAGES = ("node", "organising", "peers")

FORBIDDEN = {
    *("multiprocessing", "psutil", "secrets", "signal", "socket", "subprocess", "tempfile", "threading"),
    *("time", "uuid", "random.SystemRandom", "os.urandom", "concurrent.futures.ThreadPoolExecutor"),
}

ALLOWED = {
    "node/outside.py": "random.SystemRandom is the chance of a node that is not simulated",
    "node/samples.py": "how long answering took",
    "node/startup.py": "an event that a proof of work looks at",
    "node/training/engine_thread.py": "locks, and how long steps took",
    "node/training/model.py": "a lock, and the secret of an owner's rows",
    "node/training/limiter.py": "the processor time of this process",
    "peers/contacts.py": "a file and a page for people, with the date",
}
"""Modules with what they need of it for."""


def imported(file: Path) -> Iterator[str]:
    """The modules that a file imports, and the names that it imports from modules or reads of `os`."""
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{name.name}" for name in node.names)
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "os":
            yield f"os.{node.attr}"


@pytest.mark.parametrize("package", PACKAGES)
def test_nothing_is_asked_of_the_system_below_the_seam(package: str) -> None:
    found = {
        str(file.relative_to(ROOT)): names
        for file in sorted((ROOT / package).rglob("*.py"))
        if (names := FORBIDDEN & set(imported(file)))
    }
    assert {file: names for file, names in found.items() if file not in ALLOWED} == {}


def test_no_module_is_allowed_what_it_does_not_use() -> None:
    assert all(FORBIDDEN & set(imported(ROOT / file)) for file in ALLOWED)
