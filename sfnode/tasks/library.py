"""The library that reads data sets of the hub and Parquet files: 0.2 GB, installed only where it is wanted.

All other data need nothing but sfnode. The library is loaded only when it is asked for, which takes a second.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

from sfnode.errors import Code, UserError

EXTRA = "datasets"
"""Name of the library, and of the extra that brings it."""

HUB, PARQUET = "hf:", ".parquet"
"""Beginning of the name of rows on the hub, and ending of that of a file."""


def require(*sources: str) -> None:
    """Raise UserError EXTRA_MISSING if one of these sources of rows needs the library, and it is not here."""
    for source in sources:
        if (source.startswith(HUB) or source.lower().endswith(PARQUET)) and find_spec(EXTRA) is None:
            raise UserError(
                Code.EXTRA_MISSING,
                f"{source} is read with the library `datasets`, which is not installed",
                "Install it beside sfnode: `pip install 'sfnode[datasets]'`, or so with `uv tool install "
                "--force` or `pipx install --force`. Data in .tsv, .csv and .jsonl files do without.",
            )


def datasets(source: str) -> Any:
    """Return the library, for this source of rows. Raises UserError EXTRA_MISSING."""
    require(source)
    import datasets as library  # type: ignore[import-untyped]

    return library
