"""sfnode: a peer-to-peer daemon that trains language models by SeedFlood (arXiv 2602.18181).

As a library it has the following names, each of which is loaded when it is first used (docs/library.md has an
example of each). `Manifest` describes a run, and `Settings` describe a node. `Node` is a node in this
process, `Client` and `SyncClient` talk to a node in another process, and `LocalSwarm` runs several nodes on
this machine. `Trainer` trains without a network. `UpdateLog` reads the updates of a run.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sfnode.control.client import Client, SyncClient
    from sfnode.daemon import Node
    from sfnode.engine.trainer import Trainer
    from sfnode.manifest import Manifest
    from sfnode.settings import Settings
    from sfnode.store.log import UpdateLog
    from sfnode.swarm import LocalSwarm

__version__ = "0.3.0"

__all__ = ["Client", "LocalSwarm", "Manifest", "Node", "Settings", "SyncClient", "Trainer", "UpdateLog"]

_MODULES = {
    "Client": "sfnode.control.client",
    "LocalSwarm": "sfnode.swarm",
    "Manifest": "sfnode.manifest",
    "Node": "sfnode.daemon",
    "Settings": "sfnode.settings",
    "SyncClient": "sfnode.control.client",
    "Trainer": "sfnode.engine.trainer",
    "UpdateLog": "sfnode.store.log",
}
"""Modules, keyed by the name that each defines."""


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'sfnode' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_MODULES[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
