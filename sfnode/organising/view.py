"""The node as its organiser reads it: decisions and peers from the protocol machine, updates from the log.

All methods are synchronous and change nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import NamedTuple, Protocol

from sfprotocol.control_feed import ControlFeed
from sfprotocol.decisions import UNIT_ONE
from sfprotocol.fields import squares_of
from sfprotocol.frontier import FeedState
from sfprotocol.machine import Machine
from sfprotocol.messages import Feed, Segment
from sfprotocol.organised import Organised
from sfprotocol.run_state import RunState
from sfprotocol.segments import first_updates
from sfprotocol.signing import extend


class Boundary(NamedTuple):
    """A step of a feed at which a close may stop. All updates since the previous boundary are labelled with
    one epoch."""

    stop: int
    label: int
    chain: bytes
    """Chain hash after `stop` updates."""
    squares: int = 0
    """Sum of the squared scalars since the previous boundary. An update adds at most the square of its
    epoch's limit."""
    zeros: int = 0
    """Number of updates since the previous boundary that do not change the weights."""
    unit: int = UNIT_ONE
    """Value of a scalar of 1 since the previous boundary, in units of 2^-16 of scalar_delta (SPEC U11)."""


class Log(Protocol):
    """The log on the node's disk: the methods of `sfprotocol.host.Store` that an organiser needs."""

    def read(self, feed: Feed, first: int, max_updates: int) -> Segment | None: ...
    def past(self, feed: Feed, step: int) -> tuple[bytes, Segment]: ...
    def label(self, feed: Feed, step: int) -> tuple[int, int]: ...


class View:
    """A node of an organised run, with what it holds and receives."""

    def __init__(self, machine: Machine, log: Log) -> None:
        assert machine.organised is not None
        self._organised: Organised = machine.organised
        self._machine, self._log = machine, log

    @property
    def control(self) -> ControlFeed:
        """The control feed."""
        return self._organised.control.feed

    @property
    def run_state(self) -> RunState:
        """State of the run according to the control feed."""
        return self._organised.run_state

    def leads(self, now: float) -> bool:
        """Return whether this node organises, and more than half of the stand-ins have answered it
        recently."""
        return self._organised.control.elections.leads(now)

    def feeds(self) -> list[Feed]:
        """Return the known feeds."""
        return [state.feed for state in self._machine.frontier]

    def state(self, feed: Feed) -> FeedState:
        """Return how much of a feed is held, and at which step it is forked."""
        return self._machine.frontier.state(feed)

    def chain(self, feed: Feed, step: int) -> bytes:
        """Return the chain hash after `step` held updates."""
        return self._log.past(feed, step)[0]

    def boundary(self, feed: Feed, step: int) -> Boundary:
        """Return the boundary at a step, without sums over the updates before it."""
        return Boundary(step, self._log.label(feed, step)[0], self.chain(feed, step))

    def boundaries(self, feed: Feed, first: int) -> Iterator[Boundary]:
        """Yield the boundaries of held updates above step `first`: the ends of segments, the ends of labels
        within segments, and the steps at which closes stop."""
        run_state, step, stop = self.run_state, first, self.state(feed).next
        chain, number = self.chain(feed, first), run_state.number(feed)
        named_stops = [] if number is None else [one.stop for one in run_state.named_stops(number, first)]
        while step < stop:
            segment = self._log.read(feed, step, self._machine.run.form.segment_updates)
            assert segment is not None  # the disk has all updates up to the frontier
            for part in first_updates(segment.parts, stop - step):
                last = step + len(part.scalars)
                for end in (*(at for at in named_stops if step < at < last), last):
                    taken, rest = part.scalars[: end - step], part.scalars[end - step :]
                    chain = extend(chain, [part._replace(scalars=taken)])
                    part, step = part._replace(scalars=rest), end
                    rate = run_state.rate_from(part.epoch)
                    most = rate.limit**2 or math.inf
                    squares = int(sum(min(squares_of(values), most) for values in taken))
                    zeros = sum(not rate.moves(values) for values in taken)
                    yield Boundary(step, part.epoch, chain, squares, zeros, rate.unit)

    def peers(self) -> dict[str, int]:
        """Return the number of decisions that each linked peer claims to have, keyed by peer."""
        links = [link for link in self._machine.links.values() if link.greeted]
        return {link.peer: link.control.theirs.stop for link in links if link.control.theirs}

    def shown(self, feeds: Iterable[Feed]) -> dict[Feed, int]:
        """Return for each of these feeds the number of its held updates that some peer is known to hold,
        too."""
        frontier = self._machine.frontier
        links = [link for link in self._machine.links.values() if link.greeted]
        if any(link.agreed and link.known == frontier.known for link in links):
            return {feed: frontier.next(feed) for feed in feeds}
        most = {feed: max((link.has.get(feed, 0) for link in links), default=0) for feed in feeds}
        return {feed: min(frontier.next(feed), stop) for feed, stop in most.items()}

    def claimed(self, feed: Feed) -> bool:
        """Return whether a peer claims to have more of a feed than is held here."""
        held = self._machine.frontier.next(feed)
        return any(link.has.get(feed, 0) > held for link in self._machine.links.values())
