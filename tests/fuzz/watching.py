"""Checks of whole nodes that must hold whatever a peer sends: observations during a case, judged at its end.

A callback's duration is the processor time of its thread, so the load of the machine does not matter. This
needs asyncio's own event loop, because uvloop does not expose its callbacks.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import time
from asyncio import events
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest

from sflab.simulator.invariants import SPARE, TABLES, entries
from sfnode.node.link_pump import MAX_QUEUED_FRAMES
from sfnode.organising.admission import MAX_PENDING
from sfnode.peers.address_book import MAX_BOOK, MAX_MET
from sfnode.peers.link_slots import MAX_LINKS
from sfprotocol.fork_resolution import MAX_INQUIRIES
from sfprotocol.host import MAX_UNHANDLED
from sfprotocol.messages import Feed
from sfprotocol.pulls import MAX_PULLS_PER_LINK
from tests.node.helpers import Node

LONGEST_CALLBACK = 0.5
"""Maximum processor seconds of one callback on the event loop: ten times those of a round."""

TASKS_PER_NODE = 64
"""Maximum number of a node's tasks besides those of its links."""

TASKS_PER_LINK = 8

BLAME = "dropped the link to %s, which broke rule %s"


class Watch(logging.Handler):
    """Collector of log records and of uncaught exceptions."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.unexpected: list[str] = []
        """Exceptions of tasks and callbacks, and errors that were logged."""
        self.blamed: list[tuple[str, str]] = []
        """Peers that broke a rule, with the rule."""
        self.longest = 0.0
        """Processor seconds of the longest callback."""

    def emit(self, record: logging.LogRecord) -> None:
        if record.msg == BLAME and isinstance(record.args, tuple):
            peer, fault = record.args
            self.blamed.append((str(peer), str(fault)))
        elif record.exc_info or record.levelno >= logging.ERROR or record.name == "asyncio":
            self.unexpected.append(logging.Formatter().format(record))

    def uncaught(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        self.unexpected.append(f"{context['message']}: {context.get('exception')!r}")

    def ran(self, seconds: float) -> None:
        self.longest = max(self.longest, seconds)

    def check(self, honest: Sequence[str]) -> None:
        """Raise AssertionError for forbidden observations."""
        assert not self.unexpected, "\n".join(self.unexpected)
        assert not [one for one in self.blamed if one[0] in honest], (
            f"honest nodes were blamed: {self.blamed}"
        )
        assert self.longest < LONGEST_CALLBACK, f"a callback took {self.longest:.2f} s of the processor"


@contextmanager
def watching() -> Iterator[Watch]:
    """Watch the running event loop, the log, and the duration of callbacks.

    Objects of earlier tests are hidden from the garbage collector meanwhile. In a process of thousands of
    tests it would search them for a second, within a callback.
    """
    gc.freeze()
    watch, loop, root = Watch(), asyncio.get_running_loop(), logging.getLogger()
    loop.set_exception_handler(watch.uncaught)
    root.addHandler(watch)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(events.Handle, "_run", _timed(events.Handle._run, watch.ran))
        try:
            yield watch
        finally:
            root.removeHandler(watch)
            loop.set_exception_handler(None)
            gc.unfreeze()


def _timed(run: Callable[[Any], None], told: Callable[[float], None]) -> Callable[[Any], None]:
    def timed(handle: Any) -> None:
        begun = time.thread_time()
        run(handle)
        told(time.thread_time() - begun)

    return timed


def look(nodes: Sequence[Node], named: set[Feed]) -> None:
    """Check that every node lives, and that its tables are within their bounds for the feeds that were
    `named`."""
    links = 0
    for node in nodes:
        check_alive(node)
        links += len(node.node.driver.pumps)
        _check_tables(node, named)
        _check_queues(node)
    tasks = len(asyncio.all_tasks())
    assert tasks <= TASKS_PER_NODE * len(nodes) + TASKS_PER_LINK * (links + 16), f"{tasks} tasks"


def check_alive(node: Node) -> None:
    """Raise the error that ended a node."""
    assert node._task is not None
    if node._task.done():
        node._task.result()
        raise AssertionError(f"{node.name} has ended, and does not say why")


def _check_tables(node: Node, named: set[Feed]) -> None:
    machine = node.machine
    feeds, links = len(named | {state.feed for state in machine.frontier}), len(machine.links)
    own = {state.feed for state in machine.frontier} - named
    assert len(machine.frontier) <= feeds
    assert len(own) <= 16, "feeds that nobody has named"
    assert entries(machine) <= (links + 1) * (TABLES * feeds + SPARE), f"{node.name} remembers too much"
    for link in machine.links.values():
        assert len(link.inbox.asked) <= MAX_PULLS_PER_LINK
        assert len(link.inquiries) <= MAX_INQUIRIES


def _check_queues(node: Node) -> None:
    running = node.node
    driver = running.driver
    assert len(driver.pumps) <= MAX_LINKS + 4, f"{node.name} has {len(driver.pumps)} links"
    for pump in driver.pumps.values():
        assert len(pump._outgoing) <= MAX_QUEUED_FRAMES
    for frames in driver._host._frames.values():
        assert len(frames) <= MAX_UNHANDLED + 1
    assert len(running.peering.book) <= MAX_BOOK + MAX_MET + 16
    if running.organising:
        assert len(running.organising.join_requests()) <= MAX_PENDING
