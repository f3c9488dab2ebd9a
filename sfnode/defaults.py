"""Defaults that commands need which must start at once, and how the environment variable of a flag is called.

Imports nothing but the standard library. All else about a node's settings is in `sfnode.settings`, which
takes its own defaults from here where they are here.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal

PREFIX = "SFNODE_"
"""Starts the name of every environment variable."""

DATA_DIR = Path("~/.local/share/sfnode/node")
"""A node's folder; keys, run manifest, log and control socket lie in it."""

KEYS_DIR = Path("~/.local/share/sfnode/keys")
"""The folder in which `sfnode init` keeps the keys of the runs that its user organises: not that of a node,
which may be copied, shared or thrown away."""

PROFILES = Path("~/.local/share/sfnode/profiles")
"""The folder of the data folders that have names (`--profile`)."""

FOLDERS = Path("~/.local/share/sfnode/folders")
"""The list of data folders in which nodes of this user have run, a path a line; `sfnode list` reads it."""

CONFIG = Path("~/.config/sfnode/config.toml")
"""The configuration file."""

UNITS = Path("~/.config/systemd/user")
"""The folder of this user's systemd units."""

XDG = {"~/.config": "XDG_CONFIG_HOME", "~/.local/share": "XDG_DATA_HOME"}
"""Folders of the XDG base directory specification, by what stands for them in the defaults above."""


def in_xdg_home(path: Path) -> Path:
    """Return a path below one of the XDG folders, where its variable says that this is."""
    base = next(base for base in XDG if path.is_relative_to(base))
    home = Path(os.environ.get(XDG[base], ""))
    return home / path.relative_to(base) if home.is_absolute() else path.expanduser()


def located(path: Path) -> Path:
    """Return a path with `~` as the home; of a default, where the XDG variables say that it lies, or the
    place that it had before sfnode heeded these if it is there alone."""
    if path not in (DATA_DIR, KEYS_DIR, PROFILES, FOLDERS, CONFIG):
        return path.expanduser()
    new, old = in_xdg_home(path), path.expanduser()
    return old if old.exists() and not new.exists() else new


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


ANSWER_TOKENS, TEMPERATURE = 256, 0.7
"""Longest answer of a reward run of one's own, and the temperature at which answers are drawn."""
