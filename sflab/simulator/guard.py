"""A guard against what would be otherwise the next time: it raises where a node asks the system for it."""

from __future__ import annotations

import os
import random
import secrets
import socket
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import psutil

from sfnode.virtual_time import NotInVirtualTimeError

ASKING: tuple[tuple[Any, str], ...] = (
    *((time, name) for name in ("time", "monotonic", "perf_counter", "process_time", "sleep")),
    *((secrets, name) for name in ("token_bytes", "token_hex", "randbits", "randbelow")),
    *((os, name) for name in ("urandom", "getpid")),
    *((uuid, name) for name in ("uuid1", "uuid4")),
    *((psutil, name) for name in ("Process", "cpu_times", "virtual_memory", "process_iter")),
    *((tempfile, name) for name in ("mkstemp", "mkdtemp", "gettempdir", "TemporaryDirectory")),
    *((socket, name) for name in ("getaddrinfo", "create_connection")),
    (random, "SystemRandom"),
    (subprocess, "Popen"),
    (threading.Thread, "start"),
)
"""What asks the system for the time, for chance, for what else runs here, or takes real time."""

HARMLESS = {
    "sfnode.store.data_folder": "the lock of a folder has the process in it, and waits for who only asks",
    "sfnode.store.identity": "a key is written under a name that nobody sees, and renamed",
    "sfnode.node.training.engine_thread": "how long steps take counts where the owner limits it",
    "sfnode.node.training.limiter": "the same of this process",
    "sfnode.peers.contacts": "a file for people says when it was written",
    "sfnode.node.state": "the status tells the process",
}
"""Modules that may ask, as nothing that a node does follows from it."""


@contextmanager
def guarded() -> Iterator[None]:
    """Have `sfnode` ask the system for nothing meanwhile. What it calls, such as SQLite, may."""
    before = [(module, name, getattr(module, name)) for module, name in ASKING]
    try:
        for module, name, function in before:
            setattr(module, name, _refusing(f"{module.__name__}.{name}", function))
        yield
    finally:
        for module, name, function in before:
            setattr(module, name, function)


def _refusing(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    def refuse(*arguments: Any, **settings: Any) -> Any:
        asking = sys._getframe(1).f_globals["__name__"]
        if asking.startswith("sfnode.") and asking not in HARMLESS:
            raise NotInVirtualTimeError(f"{asking} calls {name}: it is given that by its surroundings")
        return function(*arguments, **settings)

    return refuse
