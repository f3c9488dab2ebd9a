"""One machine whose neighbours are the test itself: for saying to it what no honest peer would."""

from __future__ import annotations

from feeds import RUN, origin_of, signed, signing_key

from sfprotocol import PROTOCOL_VERSION, codec
from sfprotocol.events import (
    Action,
    Admit,
    ContinueAs,
    Drop,
    Event,
    LinkDown,
    LinkUp,
    Received,
    Serve,
    Transmit,
    Wake,
)
from sfprotocol.flood import NO_TAG
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
from sfprotocol.signing import extend

ANN, BOB, EVE = (Feed(origin_of(name), 1) for name in ("ann", "bob", "eve"))
NEW_INCARNATION = 77


def said(name: str, first: int, stop: int) -> Segment:
    """Steps `first .. stop - 1` of the first incarnation of `name`, whose scalars are the step numbers."""
    before = [EpochScalars(0, tuple(range(first)))] if first else []
    return signed(name, 1, first, [EpochScalars(0, tuple(range(first, stop)))], before)


class Scripted:
    """A machine for ann (or a relay), with the actions of its last event."""

    def __init__(
        self, own: Feed | None = None, *, run: RunParameters = RUN, proven: bool = True, past: int = 0
    ) -> None:
        """`past`: how many updates of ann its log holds at the start."""
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

    def event(self, event: Event) -> list[Action]:
        return self.machine.handle(event, self.now)

    def hear(self, link: int, *messages: Message) -> list[Action]:
        """What the machine does when these messages arrive."""
        frames = [codec.encode(message, self.machine.run.scalar_bytes) for message in messages]
        return [action for frame in frames for action in self.event(Received(link, frame))]

    def greet(self, number: int) -> list[Action]:
        """A peer comes and says hello."""
        self.event(LinkUp(number, f"peer {number}"))
        return self.hear(number, Hello(PROTOCOL_VERSION, self.machine.run.run_id, 0, 0))

    def link(self, number: int, *entries: Position) -> list[Action]:
        """A peer comes, says hello, and tells that it has `entries`."""
        return [*self.greet(number), *self.hear(number, self.summary(*entries))]

    def unlink(self, number: int) -> list[Action]:
        return self.event(LinkDown(number))

    def summary(self, *entries: Position, more: bool = False) -> Summary:
        """What a peer without forks says that has these positions."""
        claims = tuple(self.claim(*entry) for entry in sorted(entries))
        return Summary(more, 0, bytes(32), claims)

    def claim(self, feed: Feed, following: int) -> Claim:
        ours = self.machine.frontier.state(feed).claim()
        return ours if following and ours.next == following else Claim(feed, following, NO_TAG)

    def name(self, link: int, *feeds: Feed) -> list[Action]:
        """The peer teaches names and claims nothing."""
        return self.hear(link, self.summary(*(Position(feed, 0) for feed in feeds)))

    def wait(self, seconds: float) -> list[Action]:
        """Let time pass; the machine is woken whenever it wants to be."""
        end, actions = self.now + seconds, []
        while self.machine.next_deadline() <= end:
            self.now = max(self.now, self.machine.next_deadline())
            actions += self.event(Wake())
        self.now = end
        return actions


# -- what was done, briefly --------------------------------------------------------------------------


def wants(actions: list[Action]) -> list[tuple[int, tuple[Position, ...]]]:
    """The Wants among `actions` as (link, entries)."""
    sent = [action for action in actions if isinstance(action, Transmit)]
    return [(action.link, action.message.entries) for action in sent if isinstance(action.message, Want)]


def summaries(actions: list[Action]) -> list[tuple[int, Summary]]:
    sent = [action for action in actions if isinstance(action, Transmit)]
    return [(action.link, action.message) for action in sent if isinstance(action.message, Summary)]


def haves(actions: list[Action]) -> list[tuple[int, tuple[Ahead, ...]]]:
    """The announcements among `actions` as (link, entries)."""
    sent = [action for action in actions if isinstance(action, Transmit)]
    return [(action.link, action.message.entries) for action in sent if isinstance(action.message, Have)]


def prunes(actions: list[Action]) -> list[tuple[int, tuple[int, ...]]]:
    sent = [action for action in actions if isinstance(action, Transmit)]
    return [(action.link, action.message.feed_keys) for action in sent if isinstance(action.message, Prune)]


def serves(actions: list[Action]) -> list[Serve]:
    return [action for action in actions if isinstance(action, Serve)]


def admits(actions: list[Action]) -> list[Admit]:
    return [action for action in actions if isinstance(action, Admit)]


def drops(actions: list[Action]) -> list[Drop]:
    return [action for action in actions if isinstance(action, Drop)]


def continued(actions: list[Action]) -> list[Feed]:
    return [action.feed for action in actions if isinstance(action, ContinueAs)]
