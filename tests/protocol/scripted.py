"""One machine whose neighbours are played by the test. They may send messages that no honest peer would
send."""

from __future__ import annotations

from typing import TypeVar

from sfprotocol import events, wire_codec
from sfprotocol.frontier import Frontier
from sfprotocol.machine import Machine
from sfprotocol.messages import (
    Ahead,
    Claim,
    EpochScalars,
    Feed,
    Have,
    Hello,
    Message,
    Position,
    Prune,
    RunParameters,
    Segment,
    Summary,
    Want,
)
from sfprotocol.plumtree import NO_TAG
from sfprotocol.signing import extend
from tests.protocol.feeds import RUN, origin_of, signed, signing_key

ANN, BOB, EVE = (Feed(origin_of(name), 1) for name in ("ann", "bob", "eve"))
NEW_INCARNATION = 77
M = TypeVar("M", bound=Message)


def said(name: str, first: int, stop: int) -> Segment:
    """Return steps `first .. stop - 1` of incarnation 1 of `name`, whose scalars are the step numbers."""
    before = [EpochScalars(0, tuple(range(first)))] if first else []
    return signed(name, 1, first, [EpochScalars(0, tuple(range(first, stop)))], before)


class Scripted:
    """The machine of ann, or of a relay."""

    def __init__(
        self, own: Feed | None = None, *, run: RunParameters = RUN, proven: bool = True, past: int = 0
    ) -> None:
        """`past` is the number of updates of ann that its log holds at the start."""
        self.now = 0.0
        frontier = Frontier(run)
        if past:
            parts = [EpochScalars(0, tuple(range(past)))]
            frontier.advance(ANN, past, extend(frontier.state(ANN).chain, parts), 0)
        self.machine = Machine(
            run,
            frontier,
            own=own,
            sign=signing_key("ann").sign,
            draw_incarnation=lambda: NEW_INCARNATION,
            proven=proven,
            now=0.0,
        )

    def event(self, event: events.Event) -> list[events.Action]:
        return self.machine.handle(event, self.now)

    def hear(self, link: int, *said: Message) -> list[events.Action]:
        """Let these messages arrive; return the actions of the machine."""
        frames = [wire_codec.encode(message, *self.machine.run.form) for message in said]
        return [action for frame in frames for action in self.event(events.Received(link, frame))]

    def greet(self, number: int) -> list[events.Action]:
        """Bring up a link to a peer that sends its Hello."""
        self.event(events.LinkUp(number, f"peer {number}"))
        return self.hear(number, Hello(self.machine.run.version, self.machine.run.run_id, 0, 0))

    def link(self, number: int, *entries: Position) -> list[events.Action]:
        """Bring up a link to a peer that sends its Hello and has `entries`."""
        return [*self.greet(number), *self.hear(number, self.summary(*entries))]

    def unlink(self, number: int) -> list[events.Action]:
        return self.event(events.LinkDown(number))

    def summary(self, *entries: Position, more: bool = False) -> Summary:
        """Return the Summary of a peer that knows no forks and has these positions."""
        claims = tuple(self.claim(*entry) for entry in sorted(entries))
        return Summary(more, 0, bytes(32), claims)

    def claim(self, feed: Feed, following: int) -> Claim:
        ours = self.machine.frontier.state(feed).claim()
        return ours if following and ours.next == following else Claim(feed, following, NO_TAG)

    def name(self, link: int, *feeds: Feed) -> list[events.Action]:
        """Let the peer teach names and claim nothing."""
        return self.hear(link, self.summary(*(Position(feed, 0) for feed in feeds)))

    def wait(self, seconds: float) -> list[events.Action]:
        """Let time pass, and wake the machine at each of its deadlines."""
        end, actions = self.now + seconds, []
        while self.machine.next_deadline() <= end:
            self.now = max(self.now, self.machine.next_deadline())
            actions += self.event(events.Wake())
        self.now = end
        return actions


def taught(*feeds: Feed, run: RunParameters = RUN) -> Scripted:
    """Return a relay with a link whose peer has taught these names and claims nothing."""
    host = Scripted(run=run)
    host.link(1)
    host.name(1, *feeds)
    return host


# -- parts of actions --------------------------------------------------------------------------------


def sent(actions: list[events.Action], kind: type[M]) -> list[tuple[int, M]]:
    """Return the messages of this type among `actions`, with their links."""
    told = [action for action in actions if isinstance(action, events.Transmit)]
    return [(action.link, action.message) for action in told if isinstance(action.message, kind)]


def wants(actions: list[events.Action]) -> list[tuple[int, tuple[Position, ...]]]:
    return [(link, want.entries) for link, want in sent(actions, Want)]


def summaries(actions: list[events.Action]) -> list[tuple[int, Summary]]:
    return sent(actions, Summary)


def haves(actions: list[events.Action]) -> list[tuple[int, tuple[Ahead, ...]]]:
    return [(link, have.entries) for link, have in sent(actions, Have)]


def prunes(actions: list[events.Action]) -> list[tuple[int, tuple[int, ...]]]:
    return [(link, prune.feed_keys) for link, prune in sent(actions, Prune)]


def serves(actions: list[events.Action]) -> list[events.Serve]:
    return [action for action in actions if isinstance(action, events.Serve)]


def admits(actions: list[events.Action]) -> list[events.Admit]:
    return [action for action in actions if isinstance(action, events.Admit)]


def drops(actions: list[events.Action]) -> list[events.Drop]:
    return [action for action in actions if isinstance(action, events.Drop)]


def continued(actions: list[events.Action]) -> list[Feed]:
    return [action.feed for action in actions if isinstance(action, events.ContinueAs)]
