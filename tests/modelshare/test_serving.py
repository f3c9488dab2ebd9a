"""Fair shares of a node's uplink, however often a peer asks and however many ids it has."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator

import pytest

from sfnode.modelshare import serving
from sfnode.modelshare.serving import ASKING_TIME, Shares
from sfnode.modelshare.sharing import SHARE_BURST, SHARE_RATE
from sfnode.transport.base import Asker
from sfprotocol.wire_codec import MAX_PART_BYTES

HONEST = Asker("honest", "/ip4/8.8.8.8/tcp/1")
TICK = 0.05

Asking = Callable[[int], Iterator[Asker]]
"""Returns the senders of the requests in a tick."""


def greedy(ids: int, ranges: int = 1) -> Asking:
    """Return a peer that requests more than the rate in every tick, under `ids` ids in `ranges` ranges."""

    def asking(tick: int) -> Iterator[Asker]:
        for number in range(4 * tick, 4 * tick + 4):
            yield Asker(f"stranger {number % ids}", f"/ip4/9.{number % ranges}.0.{number % 250}/tcp/1")

    return asking


def once_a_second(asker: Asker) -> Asking:
    """Return a peer that requests once a second, like a download that was told to come back later."""
    return lambda tick: iter([asker] * 20 if tick % round(1 / TICK) == 0 else [])


def sent(seconds: float, *asking: Asking) -> Counter[str]:
    """Return the bytes that `honest` and `stranger` got, over all ids of each."""
    divided, got = Shares(), Counter[str]()
    for tick in range(round(seconds / TICK)):
        for asker in (asker for one in asking for asker in one(tick)):
            if divided.take(asker, MAX_PART_BYTES, tick * TICK, rate=SHARE_RATE, burst=SHARE_BURST):
                got[asker.peer.partition(" ")[0]] += MAX_PART_BYTES
    return got


def test_who_asks_alone_gets_everything() -> None:
    assert sent(30, greedy(1))["stranger"] >= 0.99 * (SHARE_BURST + 30 * SHARE_RATE)


def test_all_together_never_get_more_than_the_whole() -> None:
    got = sent(30, greedy(50, 20), once_a_second(HONEST))
    assert got.total() <= SHARE_BURST + 30 * SHARE_RATE


@pytest.mark.parametrize(
    ("ids", "honest"),
    [(1, HONEST), (1000, HONEST), (1, Asker("honest", "/ip4/9.0.7.7/tcp/1"))],
    ids=["one stranger", "a thousand ids in one range", "both in one range"],
)
def test_a_stranger_that_asks_without_pause_leaves_half_to_another_peer(ids: int, honest: Asker) -> None:
    got = sent(30, greedy(ids), once_a_second(honest))
    assert got["honest"] >= 0.45 * got.total()


def test_a_share_works_however_many_there_are() -> None:
    divided = Shares()
    for number in range(2 * serving.MAX_RANGES):
        crowd = Asker("x", f"/ip4/9.{number % 256}.0.1/tcp/1")
        divided.take(crowd, 1, 0.0, rate=SHARE_RATE, burst=SHARE_BURST)
    assert divided.take(HONEST, MAX_PART_BYTES, 0.0, rate=SHARE_RATE, burst=SHARE_BURST)


def test_what_is_remembered_is_bounded_and_forgotten() -> None:
    divided = Shares()
    for number in range(3 * serving.MAX_RANGES):
        one = Asker(f"{number}", f"/ip4/{number % 200 + 11}.{number % 251}.0.1/tcp/1")
        divided.take(one, 1, 0.0, rate=1.0, burst=1e9)
        same_range = Asker(f"{number}", "/ip4/8.8.8.8/tcp/1")
        divided.take(same_range, 1, 0.0, rate=1.0, burst=1e9)
    assert len(divided._ranges) == serving.MAX_RANGES
    assert len(divided._ranges.get("0808", 0.0).peers) == serving.MAX_PEERS
    divided.take(HONEST, 1, ASKING_TIME + 1, rate=1.0, burst=1e9)
    assert len(divided._ranges) == 1
