"""Caches of values that are costly to compute. All caches of a process share one budget of memory.

A tokenizer has a cache of encoded examples. A model of which only the last layers are trained has a cache of
the hidden states that enter these layers. A process may have several caches of either kind.
"""

from __future__ import annotations

from collections import OrderedDict
from threading import Lock
from typing import Any, Generic, TypeVar
from weakref import WeakSet

BUDGET = 512 << 20
"""Maximum size of all caches together, in bytes. The hidden state of a text before a head, with 576 features,
takes 2.8 KB. The tokens of a row of SST-2 take about 1 KB. A machine with 8 GiB of memory can spare
BUDGET."""

ENTRY_BYTES = 512
"""Bytes that an entry takes besides its data: key, tuple, dictionary entry and a tensor's header. Measured
with 40,000 entries."""

K = TypeVar("K")
V = TypeVar("V")


class BoundedCache(Generic[K, V]):
    """Cache that maps keys to values. `make_room` removes the oldest entries. Any thread may call any
    method."""

    def __init__(self) -> None:
        self._entries: OrderedDict[K, tuple[V, int]] = OrderedDict()
        """Values with their sizes in bytes, in order of insertion."""
        self.bytes = 0
        """Size of all entries, with ENTRY_BYTES for each."""
        with _lock:
            _caches.add(self)

    def __contains__(self, key: K) -> bool:
        return key in self._entries

    def __getitem__(self, key: K) -> V:
        return self._entries[key][0]

    def get(self, key: K) -> V | None:
        """Return the value of a key; None if the key is not in the cache."""
        entry = self._entries.get(key)
        return entry[0] if entry else None

    def put(self, key: K, value: V, size: int) -> None:
        """Keep a value of `size` bytes, at least until `make_room` is called."""
        with _lock:
            _, before = self._entries.pop(key, (value, 0))
            self._entries[key] = value, size + ENTRY_BYTES
            self.bytes += size + ENTRY_BYTES - before

    def make_room(self) -> None:
        """Remove the oldest entries of this cache until all caches together are within BUDGET, or this cache
        is within an equal share of BUDGET."""
        with _lock:
            share, total = BUDGET // len(_caches), sum(cache.bytes for cache in _caches)
            while self.bytes > share and total > BUDGET:
                _, (_, size) = self._entries.popitem(last=False)
                self.bytes -= size
                total -= size


_caches: WeakSet[BoundedCache[Any, Any]] = WeakSet()
_lock = Lock()
