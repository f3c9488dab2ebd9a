"""Tests of caches, and of the budget that all caches of a process share."""

from __future__ import annotations

from weakref import WeakSet

import pytest

from sfnode.tasks import bounded_cache
from sfnode.tasks.bounded_cache import ENTRY_BYTES, BoundedCache


@pytest.fixture(autouse=True)
def room_for_eight(monkeypatch: pytest.MonkeyPatch) -> None:
    """Set the budget to eight entries, and hide caches of other tests."""
    monkeypatch.setattr(bounded_cache, "BUDGET", 8 * (ENTRY_BYTES + 1))
    monkeypatch.setattr(bounded_cache, "_caches", WeakSet())


def filled(count: int) -> BoundedCache[int, str]:
    """Return a cache with `count` values of one byte."""
    found = BoundedCache[int, str]()
    for key in range(count):
        found.put(key, str(key), 1)
    return found


def test_the_oldest_make_room_when_they_are_told_to() -> None:
    cache = filled(10)
    assert (cache[0], cache.get(10)) == ("0", None)
    cache.make_room()
    assert [key for key in range(10) if key in cache] == list(range(2, 10))


def test_a_value_that_is_put_again_counts_once() -> None:
    cache = filled(8)
    cache.put(0, "new", 1)
    cache.put(8, "8", 1)
    cache.make_room()
    assert (cache.get(0), cache.get(1), cache.bytes) == ("new", None, 8 * (ENTRY_BYTES + 1))


def test_a_full_cache_leaves_others_their_share_and_has_it_back_once_they_are_gone() -> None:
    full, other = filled(8), filled(6)
    other.make_room()
    full.make_room()
    assert (other.bytes, full.bytes) == (4 * (ENTRY_BYTES + 1),) * 2
    del other
    for key in range(8):
        full.put(key, "", 1)
    full.make_room()
    assert full.bytes == 8 * (ENTRY_BYTES + 1)
