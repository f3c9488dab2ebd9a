"""Caches of what is costly to compute, which share one budget of the process's memory.

A tokenizer keeps examples, and a model with a cut keeps states. A process may have several of both.
"""

from __future__ import annotations

from collections import OrderedDict
from threading import Lock
from typing import Generic, TypeVar
from weakref import WeakSet

BUDGET = 512 << 20
"""Maximum size of all caches, in bytes: states of 190,000 texts before a head of width 576, or the tokens of
all of SST-2 and half as many states. A machine of 8 GiB has that to spare."""

ENTRY_BYTES = 512
"""Bytes of an entry's objects beside its own data: key, tuple, dictionary entry and the heads of arrays or
tensors. Measured between 380 (a tensor) and 560 (an example of one sequence)."""

K = TypeVar("K")
V = TypeVar("V")


class BoundedCache(Generic[K, V]):
    """Values by key, of which the oldest make room. Any thread may call any method."""

    def __init__(self) -> None:
        self._entries: OrderedDict[K, tuple[V, int]] = OrderedDict()
        """Values, each with its bytes."""
        self.bytes = 0
        """Bytes of all entries, with their objects."""
        with _lock:
            _caches.add(self)

    def __contains__(self, key: K) -> bool:
        return key in self._entries

    def __getitem__(self, key: K) -> V:
        return self._entries[key][0]

    def get(self, key: K) -> V | None:
        """Return a value; None if it is missing."""
        entry = self._entries.get(key)
        return entry[0] if entry else None

    def put(self, key: K, value: V, size: int) -> None:
        """Keep a value of `size` bytes, at least until `make_room` is called."""
        with _lock:
            _, before = self._entries.pop(key, (value, 0))
            self._entries[key] = value, size + ENTRY_BYTES
            self.bytes += size + ENTRY_BYTES - before

    def make_room(self) -> None:
        """Forget the oldest entries while all caches together exceed BUDGET and this one an equal share."""
        with _lock:
            share, total = BUDGET // len(_caches), sum(cache.bytes for cache in _caches)
            while self.bytes > share and total > BUDGET:
                _, (_, size) = self._entries.popitem(last=False)
                self.bytes -= size
                total -= size


_caches: WeakSet[BoundedCache[object, object]] = WeakSet()
_lock = Lock()
