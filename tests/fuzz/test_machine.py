"""Machine and host under any course of events: honest hosts, a hostile peer, and any order of events.

Every rule is a kind of event, with bytes that say which and how. After each one the frontier is what is on
disk, what is on disk was signed by its origin and applied once, and no table outgrows its bound. In the end,
when everything works again, all hosts reach one state that holds everything that was on some disk, but for
what is cut.
"""

from __future__ import annotations

import random

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tests.fuzz import steps as fuzz_steps
from tests.fuzz.choices import Choices
from tests.fuzz.effort import EFFORT, TIMES
from tests.fuzz.healing import heal
from tests.fuzz.steps import Step, begin, course

HOW = st.binary(max_size=120)
"""Bytes that decide; a rule ignores those that it does not need."""


class Hosts(RuleBasedStateMachine):
    """One course of events, written by hypothesis."""

    @initialize(how=HOW, fresh_links=st.booleans())
    def begins(self, how: bytes, fresh_links: bool) -> None:
        self.arena = begin(Choices(how))
        self.fresh_links = fresh_links
        self.sound = True

    def _happens(self, step: Step, how: bytes) -> None:
        self.sound = False
        step(self.arena, Choices(how))
        self.sound = True

    @rule(how=HOW)
    def all_runs(self, how: bytes) -> None:
        self._happens(fuzz_steps.all_runs, how)

    @rule(how=HOW)
    def hostile_gets_a_link(self, how: bytes) -> None:
        self._happens(fuzz_steps.hostile_links, how)

    @rule(how=HOW)
    def hostile_says_something(self, how: bytes) -> None:
        self._happens(fuzz_steps.hostile_says, how)

    @rule(how=HOW)
    def hosts_get_a_link(self, how: bytes) -> None:
        self._happens(fuzz_steps.host_links, how)

    @rule(how=HOW)
    def a_link_breaks(self, how: bytes) -> None:
        self._happens(fuzz_steps.link_breaks, how)

    @rule(how=HOW)
    def a_dropped_link_is_closed(self, how: bytes) -> None:
        self._happens(fuzz_steps.dropped_link_closes, how)

    @rule(how=HOW)
    def a_frame_arrives_or_not(self, how: bytes) -> None:
        self._happens(fuzz_steps.frame_arrives, how)

    @rule(how=HOW)
    def a_machine_decides(self, how: bytes) -> None:
        self._happens(fuzz_steps.host_decides, how)

    @rule(how=HOW)
    def a_disk_commits(self, how: bytes) -> None:
        self._happens(fuzz_steps.host_commits, how)

    @rule(how=HOW)
    def a_host_computes(self, how: bytes) -> None:
        self._happens(fuzz_steps.host_computes, how)

    @rule(how=HOW)
    def time_passes(self, how: bytes) -> None:
        self._happens(fuzz_steps.time_passes, how)

    @rule(how=HOW)
    def a_host_crashes(self, how: bytes) -> None:
        self._happens(fuzz_steps.host_crashes, how)

    @rule(how=HOW)
    def a_host_starts(self, how: bytes) -> None:
        self._happens(fuzz_steps.host_starts, how)

    @rule(how=HOW)
    def a_disk_is_copied(self, how: bytes) -> None:
        self._happens(fuzz_steps.backup_is_taken, how)

    @rule(how=HOW)
    def a_disk_is_put_back(self, how: bytes) -> None:
        self._happens(fuzz_steps.backup_is_restored, how)

    @invariant()
    def every_frontier_is_what_is_on_disk_and_every_table_is_bounded(self) -> None:
        self._happens(lambda arena, _: arena.check(), b"")

    def teardown(self) -> None:
        if getattr(self, "sound", False):  # what has gone wrong already must not be hidden by what follows
            heal(self.arena, fresh_links=self.fresh_links)


Hosts.TestCase.settings = settings(EFFORT, max_examples=70 * TIMES, stateful_step_count=40)
TestHosts = Hosts.TestCase


@pytest.mark.parametrize("size", [100, 400, 1_600])
def test_courses_of_events_at_random_come_to_one_end(size: int) -> None:
    """Longer ones than hypothesis writes. What is printed on failure plays the course again."""
    for seed in range(25 * TIMES):
        data = random.Random(f"{size}/{seed}").randbytes(size)
        try:
            course(data)
        except Exception:
            print(f"fuzz_steps.course(bytes.fromhex('{data.hex()}'))")
            raise
