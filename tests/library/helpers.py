"""Runs Python as a notebook does: cell by cell in one namespace, with `await` at the top level."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterable
from typing import Any


async def run_cells(cells: Iterable[str], name: str) -> dict[str, Any]:
    """Run these pieces of code one after the other; return what they have defined."""
    space: dict[str, Any] = {"__name__": name}
    for number, cell in enumerate(cells, 1):
        code = compile(cell, f"{name}:{number}", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        result = eval(code, space)
        if inspect.iscoroutine(result):
            await result
    return space
