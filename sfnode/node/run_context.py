"""The objects that a node has once it has joined its run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from sfnode.manifest import Manifest
from sfnode.node.outside import Outside
from sfnode.settings import Settings
from sfnode.store.data_folder import DataDir
from sfnode.store.log import UpdateLog
from sfnode.transport.base import Transport
from sfprotocol.machine import Machine


@dataclass(frozen=True, slots=True)
class RunContext:
    """The objects from which a node's parts are made. `clock` is the clock of `outside` if it has one, else
    the event loop's."""

    settings: Settings
    manifest: Manifest
    data_dir: DataDir
    log: UpdateLog
    transport: Transport
    machine: Machine
    """The protocol machine in the state of the log."""
    clock: Callable[[], float]
    outside: Outside
