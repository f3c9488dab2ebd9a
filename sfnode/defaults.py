"""Defaults for commands that must start at once, and the names of environment variables.

Imports only the standard library. All other defaults of a node are in `sfnode.settings`, which imports these.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal

PREFIX = "SFNODE_"
"""Prefix of every environment variable of sfnode."""

DATA_DIR = Path("~/.local/share/sfnode/node")
"""Default folder of a node, with its keys, manifest, log and control socket."""

KEYS_DIR = Path("~/.local/share/sfnode/keys")
"""Folder in which `sfnode init` keeps the keys of the runs that its user organises. It is outside the node's
folder, which may be copied, shared or thrown away."""

PROFILES = Path("~/.local/share/sfnode/profiles")
"""Parent folder of the data folders that have names (`--profile`)."""

FOLDERS = Path("~/.local/share/sfnode/folders")
"""File that lists the data folders in which nodes of this user ran, one path a line. `sfnode list` reads
it."""

CONFIG = Path("~/.config/sfnode/config.toml")
"""The configuration file."""

UNITS = Path("~/.config/systemd/user")
"""The folder of this user's systemd units."""

XDG = {"~/.config": "XDG_CONFIG_HOME", "~/.local/share": "XDG_DATA_HOME"}
"""Environment variables of the XDG base directory specification, keyed by the default folder that each of
them replaces."""


def in_xdg_home(path: Path) -> Path:
    """Return `path`, which is in one of the folders of `XDG`, moved to the folder that the environment
    variable names. If the variable is not set, return `path` with `~` expanded."""
    base = next(base for base in XDG if path.is_relative_to(base))
    home = Path(os.environ.get(XDG[base], ""))
    return home / path.relative_to(base) if home.is_absolute() else path.expanduser()


def located(path: Path) -> Path:
    """Return a path with `~` expanded. A default path is moved by `in_xdg_home`, unless it exists in the home
    folder and not at the new place."""
    if path not in (DATA_DIR, KEYS_DIR, PROFILES, FOLDERS, CONFIG):
        return path.expanduser()
    new, old = in_xdg_home(path), path.expanduser()
    return old if old.exists() and not new.exists() else new


OPEN_WORK_BITS = 21
"""Proof of work, in bits, that `sfnode init` by default requires for a feed of an open run. 21 bits need two
million hashes on average, which take a core 0.6 to 2 s."""

DEFAULT_LOSS: Literal["plain", "centred"] = "centred"
"""Default loss of a task with classes (SPEC T5)."""

SEARCH = True
"""Whether an organiser by default chooses factors and learning rates with line searches, if the run has
validation rows."""

LOCALHOST = "127.0.0.1"
"""Default address at which a node serves its dashboard and metrics."""


SPARE_BYTES = 64 << 20
"""Minimum free space on a node's disk, in bytes, because its log grows there."""


def variable(flag: str) -> str:
    """Return the environment variable of a flag: `--data-dir` has SFNODE_DATA_DIR."""
    return PREFIX + flag.removeprefix("--").replace("-", "_").upper()


ANSWER_TOKENS, TEMPERATURE = 256, 0.7
"""Default length of an answer in a reward run, in tokens, and default temperature at which answers are
drawn."""
