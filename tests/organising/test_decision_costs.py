"""Tests of the cost of decisions: reading a control feed full of one kind takes time linear in its length."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from functools import cache
from types import FrameType
from typing import Any, get_args

import pytest

from sfnode.organising.reporting.run_history import RunHistory
from sfprotocol import decisions
from sfprotocol.decisions import (
    Admit,
    Amend,
    Announce,
    Bases,
    Budget,
    Checkpoint,
    Close,
    Decision,
    Elected,
    Evaluated,
    Finish,
    Invite,
    Oversized,
    Part,
    Revoke,
    RevokeInvitation,
    Seal,
    StandIn,
    StandIns,
    Unknown,
    Validators,
    Void,
    Worth,
)
from sfprotocol.messages import Authority, Entry, RunParameters
from tests.protocol.organised import DIGEST, admit, close, origin, seal

FEW = 250
"""Number of decisions of a kind; the test compares it with twice as many. Calls are counted and not timed. A
call for each pair of decisions would show at a tenth of this number."""

RUN = RunParameters(
    bytes(32), 100, 1 << 31, 2, 1000, Authority(bytes(32), bytes(32), (), 1), 1 << 20, bases=DIGEST
)


def closes(count: int) -> list[Decision]:
    """Return closes, each of which lists a step of three members."""
    return [admit(0), admit(1, 0), admit(2, 0), *(close(n, {0: 1, 64: 1, 128: 1}) for n in range(count))]


def sealed(count: int) -> list[Decision]:
    return [*closes(count), *(seal(n, skip=(64,)) for n in range(count))]


def members(count: int) -> list[Decision]:
    return [admit(n, n % 2) for n in range(count)]


def invitations(count: int) -> list[Decision]:
    return [Invite(origin(k), 1) for k in range(count)]


def nothing(count: int) -> list[Decision]:
    return []


Story = Callable[[int], tuple[Callable[[int], list[Decision]], Iterable[Decision]]]

STORIES: dict[type, list[Story]] = {
    Close: [lambda n: (nothing, closes(n)), lambda n: (nothing, (close(epoch) for epoch in range(n)))],
    Seal: [
        lambda n: (closes, sealed(n)[3 + n :]),
        lambda n: (closes, (seal(e, skip=(0,), recount=((0, e - 1),) if e else ()) for e in range(n))),
        lambda n: (closes, (seal(e, rates=((n + 1 + e, 1),)) for e in range(n))),
    ],
    Amend: [lambda n: (sealed, (Amend(0, e) for e in range(n - 1, -1, -1)))],
    Admit: [
        lambda n: (nothing, (admit(k) for k in range(n))),
        lambda n: (nothing, (admit(k, 0) for k in range(n))),
        lambda n: (members, (admit(k, 2 + k) for k in range(n - 1, -1, -1))),
    ],
    Invite: [lambda n: (nothing, (Invite(origin(k), 1) for k in range(n)))],
    Revoke: [lambda n: (members, (Revoke(k, 0) for k in range(n)))],
    RevokeInvitation: [lambda n: (invitations, (RevokeInvitation(k, 0) for k in range(n)))],
    Void: [
        lambda n: (sealed, (Void(e, e, ()) for e in range(n))),
        lambda n: (sealed, (Void(0, n - 1, (0, 1, 2)[: 1 + e % 3]) for e in range(n))),
    ],
    Budget: [lambda n: (nothing, (Budget(k) for k in range(n)))],
    Finish: [lambda n: (nothing, (Finish() for _ in range(n)))],
    Bases: [
        lambda n: (nothing, (Bases(1 + k, origin(k)) for k in range(n))),
        lambda n: (nothing, (Bases(n - k, origin(k)) for k in range(n))),
        lambda n: (nothing, (Bases(1, origin(k)) for k in range(n))),
        lambda n: (nothing, (one for k in range(n // 2) for one in (Bases(1 + k, origin(k)), close(k)))),
    ],
    StandIns: [lambda n: (nothing, (StandIns((StandIn(k, origin(k)),)) for k in range(n)))],
    Elected: [lambda n: (nothing, (Elected(origin(k), ()) for k in range(n)))],
    Announce: [lambda n: (nothing, (Announce(str(k)) for k in range(n)))],
    Evaluated: [lambda n: (sealed, (Evaluated(k, "accuracy", k, 0, 1, 1, 9) for k in range(n)))],
    Checkpoint: [
        lambda n: (sealed, (Checkpoint(k, DIGEST, DIGEST) for k in range(n))),
        lambda n: (sealed, (Checkpoint(k, DIGEST, DIGEST) for k in range(n - 1, -1, -1))),
    ],
    Worth: [lambda n: (sealed, (Worth(k, 9, (Part(0, 1, 1, 1),)) for k in range(n)))],
    Validators: [lambda n: (members, (Validators((k,)) for k in range(n)))],
    Oversized: [lambda n: (sealed, (Oversized(k, (0,)) for k in range(n)))],
    Unknown: [lambda n: (nothing, (Unknown(13) for _ in range(n)))],
}
"""Stories for each kind that may be costly: earlier decisions, and `n` decisions of the kind."""


def entries(said: Iterable[Decision]) -> list[Entry]:
    records = (b"\x92\x0d\x90" if isinstance(one, Unknown) else decisions.encode(one) for one in said)
    return [Entry(0, record, bytes(64)) for record in records]


@cache
def beginning(make: Callable[[int], list[Decision]], count: int) -> list[Entry]:
    return entries(make(count))


def calls(work: Callable[[], Any]) -> int:
    """Return the number of calls of Python and C functions in `work`, resumed generators included."""
    number = 0

    def count(frame: FrameType, event: str, argument: Any) -> None:
        nonlocal number
        number += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        work()
    finally:
        sys.setprofile(None)
    return number


def cost(story: Story, count: int) -> int:
    """Return the number of calls for reading `count` decisions and asking once for all results."""
    make, asked = story(count)
    before = beginning(make, count)
    history, every = RunHistory(RUN).follow(before), [*before, *entries(asked)]

    def read() -> None:
        history.follow(every)
        assert len(history.entries()) <= len(every)
        history.members()
        history.verdict()

    return calls(read)


@pytest.mark.parametrize("kind", get_args(Decision), ids=lambda kind: kind.__name__)
def test_twice_as_many_decisions_cost_twice_as_much(kind: type) -> None:
    for story in STORIES[kind]:
        few, many = cost(story, FEW), cost(story, 2 * FEW)
        assert many < 2.2 * few
