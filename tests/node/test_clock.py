"""This machine's clock, compared with those of peers."""

from __future__ import annotations

from collections.abc import Mapping
from random import Random

import pytest

from sfnode.errors import Code
from sfnode.node.outside import ClockCheck
from sfnode.transport.base import TransportError
from sfnode.transport.memory import MemoryTransport, Network

HOURS = 3 * 3600.0


async def compared(ahead: Mapping[str, float | None]) -> ClockCheck:
    """A check among peers whose clocks are so many seconds ahead of ours; None does not answer."""

    async def ask(address: str) -> float:
        seconds = ahead[address]
        if seconds is None:
            raise TransportError("gone")
        return seconds

    check = ClockCheck(ask, lambda: list(ahead))
    await check.compare()
    return check


@pytest.mark.parametrize(
    ("ahead", "said"),
    [
        ({"a": HOURS, "b": HOURS - 1, "c": None}, "this clock is 180 minutes behind the clocks of 2 peers"),
        ({"a": -90.0}, "this clock is 90 s ahead of the clock of a peer"),
        ({"a": 0.3, "b": -0.2, "c": HOURS}, None),
        ({"a": None}, None),
        ({}, None),
    ],
)
async def test_a_clock_far_from_those_of_most_peers_is_told_of(
    ahead: Mapping[str, float | None], said: str | None
) -> None:
    problem = (await compared(ahead)).problem
    assert (problem and problem.what.partition(":")[0]) == said
    assert problem is None or problem.code == Code.CLOCK_DIFFERS


async def test_the_warning_goes_when_the_clock_is_right_again_and_stays_while_nobody_answers() -> None:
    ahead: dict[str, float | None] = {"a": HOURS}
    check = await compared(ahead)
    ahead["a"] = None
    await check.compare()
    assert check.problem
    ahead["a"] = 0.0
    await check.compare()
    assert check.problem is None


async def test_a_transport_tells_how_far_another_clock_is_ahead() -> None:
    network = Network(Random(0))
    late, right = MemoryTransport(network, "late", clock=-HOURS), MemoryTransport(network, "right")
    await late.start()
    await right.start()
    assert await late.clock_ahead("/memory/right/p2p/right") == HOURS
    assert await right.clock_ahead("/memory/late/p2p/late") == -HOURS
