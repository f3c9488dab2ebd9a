"""Types of the answers of the control API, of the output of commands with `--json`, and of metrics. The
package imports neither the node nor the engine.

Its modules are loaded on first use, because importing pydantic would take longer than most commands take
otherwise.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any


def __getattr__(name: str) -> Any:
    try:
        return import_module(f"{__name__}.{name}")
    except ModuleNotFoundError as error:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}") from error
