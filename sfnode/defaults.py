"""Defaults that commands need which must start at once, and how the environment variable of a flag is called.

Imports nothing but the standard library. All else about a node's settings is in `sfnode.settings`, which
takes its own defaults from here where they are here.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

PREFIX = "SFNODE_"
"""Starts the name of every environment variable."""

DATA_DIR = Path("~/.sfnode")
"""A node's folder; keys, run manifest, log and control socket lie in it."""

KEYS_DIR = Path("~/.local/share/sfnode/keys")
"""The folder in which `sfnode init` keeps the keys of the runs that its user organises: not that of a node,
which may be copied, shared or thrown away."""

PROFILES = Path("~/.local/share/sfnode/profiles")
"""The folder of the data folders that have names (`--profile`): not in DATA_DIR, which users delete."""

FOLDERS = Path("~/.local/share/sfnode/folders")
"""The list of data folders in which nodes of this user have run, a path a line; `sfnode list` reads it."""

OPEN_WORK_BITS = 21
"""Bits of work that `sfnode init` asks of a feed of an open run: two million hashes, 0.6 to 2 s of a core."""

DEFAULT_LOSS: Literal["plain", "centred"] = "centred"
"""Loss of a task with classes, unless options of `sfnode init` name one (SPEC T5)."""

SEARCH = True
"""Whether an organiser finds factors and rates by line searches, where the run has validation rows."""

LOCALHOST = "127.0.0.1"
"""Address at which a node serves its dashboard and metrics unless its owner names another."""


SPARE_BYTES = 64 << 20
"""Bytes that must stay free on a node's disk: its log goes on growing there."""


def variable(flag: str) -> str:
    """Return the environment variable of a flag: `--data-dir` has SFNODE_DATA_DIR."""
    return PREFIX + flag.removeprefix("--").replace("-", "_").upper()
