"""End of a course: the hostile peer is gone, everything works, and all hosts must reach one state.

The time for that is bounded: an update that takes longer counts as lost.
"""

from __future__ import annotations

from itertools import pairwise

from sfprotocol.messages import Feed
from tests.fuzz.arena import Arena, Host

LATENCY = 0.01
"""Seconds that one sweep takes."""

HEALING_TIME = 600.0
"""Seconds of virtual time within which all must be equal. Several times the longest that the protocol waits:
a minute for a history that did not verify (A7), half a minute for telling everything again (A6)."""

RECONNECT = 5.0
"""Seconds until hosts without a link meet again."""

QUIET = 70.0
"""Seconds in which equal hosts must stay equal and send nothing but Summaries."""

MAX_SWEEPS = 30_000
"""Maximum number of sweeps of one course. More are an endless loop."""

QUIET_FRAMES = 60
"""Maximum number of frames of one host in 20 s: 20 Summaries, and announcements of names."""


def heal(arena: Arena, *, fresh_links: bool) -> None:
    """Run until nothing changes. Raises AssertionError if it never ends, or ends in a wrong state."""
    told = {feed: _most(arena, feed) for feed in sorted(arena.stories.named)}
    for end in [end for end in arena.ends if end.hostile or fresh_links or end.out.far is None]:
        arena.close(end)
    for host in arena.hosts:
        host.commit()
        if not host.up:
            host.start()
        host.faults.clear()
    _until_equal(arena)
    if fresh_links:
        assert not any(host.faults for host in arena.hosts), [host.faults for host in arena.hosts]
    _check_union(arena, told)
    _stays(arena)


def _most(arena: Arena, feed: Feed) -> int:
    """Return the most updates of `feed` that any disk has."""
    return max(host.disk.log.stop(feed) for host in arena.hosts)


def _until_equal(arena: Arena) -> None:
    end, meeting = arena.now + HEALING_TIME, arena.now
    for _ in range(MAX_SWEEPS):
        if arena.now >= meeting:
            for one, other in pairwise(arena.hosts):
                arena.link(one, other)
            meeting = arena.now + RECONNECT
        if not _advance(arena, meeting) and _equal(arena):
            return
        if arena.now > end:
            break
    raise AssertionError(f"not equal after {HEALING_TIME:g} s: {_states(arena)}")


def _advance(arena: Arena, until: float) -> bool:
    """Do one sweep. If nothing is under way, advance to the next deadline."""
    busy = arena.sweep()
    arena.check()
    if busy:
        arena.now += LATENCY
    else:
        due = min(host.host.next_deadline() for host in arena.hosts)
        arena.now = max(arena.now, min(due, until))
    return busy


def _equal(arena: Arena) -> bool:
    return len({host.machine.frontier.digest() for host in arena.hosts}) == 1


def _states(arena: Arena) -> list[tuple[str, list[tuple[str, int, int, int]]]]:
    return [
        (
            host.name,
            [(s.feed.origin.hex()[:6], s.feed.incarnation, s.next, s.cut) for s in host.machine.frontier],
        )
        for host in arena.hosts
    ]


def _check_union(arena: Arena, told: dict[Feed, int]) -> None:
    """Check that all stored updates are admitted unless they are cut, and that only forked feeds are cut."""
    frontier = arena.hosts[0].machine.frontier
    for feed, stop in told.items():
        state = frontier.state(feed)
        if frontier.is_cut(feed):
            assert arena.stories.may_be_cut(feed), f"{feed} is cut and has never contradicted itself"
            assert state.next <= state.cut
        else:
            assert state.next >= stop, f"{stop} updates of {feed} were on a disk, {state.next} are admitted"


def _stays(arena: Arena) -> None:
    """Check that equal hosts stay equal and send nothing more."""
    digest, end = arena.hosts[0].machine.frontier.digest(), arena.now + QUIET
    while arena.now < end:
        _advance(arena, end)
        assert all(host.machine.frontier.digest() == digest for host in arena.hosts), _states(arena)
    before = _sent(arena.hosts)
    end = arena.now + 20.0
    while arena.now < end:
        _advance(arena, end)
    assert _sent(arena.hosts) - before <= QUIET_FRAMES * len(arena.hosts)


def _sent(hosts: list[Host]) -> int:
    return sum(host.sent for host in hosts)
