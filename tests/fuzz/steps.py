"""Events in an arena, one function for each kind. The fuzzer chooses the events and their details."""

from __future__ import annotations

import random
from collections.abc import Callable

from tests.fuzz.arena import Arena, Host
from tests.fuzz.choices import Choices
from tests.fuzz.healing import heal
from tests.fuzz.hostile import MIXTURES, greeting, written

DELAYS = (0.0, 0.01, 0.1, 0.25, 0.5, 1.0, 2.5, 11.0, 61.0)
"""Durations in seconds: below, at and above every deadline of the protocol."""

MAX_STEPS = 400
"""Maximum number of steps of one course that is read from bytes."""

MAX_HOSTILE_LINKS = 6


Step = Callable[[Arena, Choices], None]


def host_links(arena: Arena, choices: Choices) -> None:
    """Link two hosts."""
    arena.link(choices.pick(arena.hosts), choices.pick(arena.hosts))


def hostile_links(arena: Arena, choices: Choices) -> None:
    """Link the hostile peer with a host."""
    host = choices.pick(arena.hosts)
    if host.up and len(arena.hostile_ends) < MAX_HOSTILE_LINKS:
        end = arena.link_hostile(host)
        for frame in greeting(arena, choices):
            arena.inject(end, frame)


def link_breaks(arena: Arena, choices: Choices) -> None:
    if ends := arena.ends:
        arena.close(choices.pick(ends))


def hostile_says(arena: Arena, choices: Choices) -> None:
    """Send up to eight messages of the hostile peer, mostly about one feed and mostly on one link."""
    if not any(not end.dropped for end in arena.hostile_ends):
        hostile_links(arena, choices)
    ends = [end for end in arena.hostile_ends if not end.dropped]
    if not ends:
        return
    arena.focus, favourite, mixture = choices.below(256), choices.pick(ends), choices.pick(MIXTURES)
    for _ in range(1 + choices.below(8)):
        end = choices.pick(ends) if choices.flip(4) else favourite
        arena.inject(end, written(arena, choices, mixture))


def frame_arrives(arena: Arena, choices: Choices) -> None:
    """Deliver a frame, lose it, deliver it twice, or before others."""
    if ends := [end for end in arena.ends if end.out.flight]:
        end = choices.pick(ends)
        arena.deliver(end, index=choices.below(8), keep=choices.flip(4), lose=choices.flip(4))


def host_decides(arena: Arena, choices: Choices) -> None:
    """Let a host decide on some of the queued events. Nothing is carried out yet."""
    choices.pick(arena.hosts).decide(1 + choices.below(8))


def host_commits(arena: Arena, choices: Choices) -> None:
    host = choices.pick(arena.hosts)
    host.commit()
    arena.note_own(host)


def host_computes(arena: Arena, choices: Choices) -> None:
    host = choices.pick(arena.hosts)
    arena.note_own(host)
    host.compute(1 + choices.below(5))


def time_passes(arena: Arena, choices: Choices) -> None:
    arena.now += choices.pick(DELAYS)
    if choices.flip():
        arena.now = max(arena.now, min(host.host.next_deadline() for host in arena.hosts))


def all_runs(arena: Arena, choices: Choices) -> None:
    """Let everything work for a while."""
    for _ in range(1 + choices.below(6)):
        arena.sweep()
        arena.now += 0.01


def dropped_link_closes(arena: Arena, choices: Choices) -> None:
    """Close a link that a machine has dropped."""
    if ends := [end for end in arena.ends if end.dropped]:
        arena.close(choices.pick(ends))


def host_crashes(arena: Arena, choices: Choices) -> None:
    host = choices.pick(arena.hosts)
    if host.up:
        host.crash(power_cut=choices.flip())


def host_starts(arena: Arena, choices: Choices) -> None:
    start(arena, choices.pick(arena.hosts))


def start(arena: Arena, host: Host) -> None:
    if not host.up:
        host.start()
        arena.note_own(host)


def backup_is_taken(arena: Arena, choices: Choices) -> None:
    host = choices.pick(arena.hosts)
    host.backup = host.disk.copy()


def backup_is_restored(arena: Arena, choices: Choices) -> None:
    """Restore an old disk, which may lack updates that were sent."""
    host = choices.pick(arena.hosts)
    if host.backup is None:
        return
    if host.up:
        host.crash(power_cut=False)
    host.disk, host.backup = host.backup, None
    arena.digest_of.pop(host.name, None)
    start(arena, host)


STEPS: tuple[Step, ...] = (
    all_runs,
    hostile_says,
    hostile_links,
    host_links,
    frame_arrives,
    host_decides,
    host_commits,
    host_computes,
    time_passes,
    link_breaks,
    dropped_link_closes,
    host_crashes,
    host_starts,
    backup_is_taken,
    backup_is_restored,
)

OFTEN = (
    8 * (hostile_says,)
    + 6 * (all_runs,)
    + 4 * (host_decides, host_commits, host_computes, host_links, host_starts)
)
"""Steps that occur more often in a course that is read from bytes. Otherwise no host would be up."""


def begin(choices: Choices) -> Arena:
    """Return an arena with some links."""
    arena = Arena(2 + choices.below(3), relay=choices.flip())
    for one, other in zip(arena.hosts, arena.hosts[1:], strict=False):
        arena.link(one, other)
    return arena


def course(data: bytes) -> None:
    """Run a whole course of events that is read from bytes, and its end. Raises the first failure."""
    choices = Choices(data)
    arena = begin(choices)
    for _ in range(MAX_STEPS):
        if choices.exhausted:
            break
        choices.pick((*STEPS, *OFTEN))(arena, choices)
        arena.check()
    heal(arena, fresh_links=choices.flip())


def courses(size: int, count: int) -> None:
    """Run courses of random bytes. A failure prints what repeats it."""
    for seed in range(count):
        data = random.Random(f"{size}/{seed}").randbytes(size)
        try:
            course(data)
        except Exception:
            print(f"tests.fuzz.steps.course(bytes.fromhex('{data.hex()}'))")
            raise
