"""The host of a machine: handles events in batches (rounds), makes their changes durable, carries out the
actions.

Theory of operation. All programs that run a machine (the daemon, the simulator, fuzzers, test swarms) need
the same loop with exactly this order: *durable, then sent, then applied*. A round has three phases:

    decide     handle events; return everything that must be durable as one Commit
    (commit)   the adapter makes the Commit durable, or crashes before
    carry_out  return all other actions, in order, as plain effects for the adapter

Events that arrive during a round wait for the next round. If the machine asks for something that is in the
log (Serve, ShowProof, Examine, Trace), the host looks it up, and the answer is an event of the next round.

Frames wait in one queue for each link, and links take turns, one frame each, so that a busy link does not
delay the frames of other links. A link that exceeds its rate rests, with its frames, until the machine lets
it continue. When the link's queue is full, the link is not read. Events that did not come from a link, such
as our own updates, never wait for frames (SPEC L9, L10).

The host knows no sockets, threads, disks or clocks: time is an argument, the log is a `Store`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol, TypeVar

from sfprotocol import events, messages, wire_codec
from sfprotocol.errors import LocalProtocolError
from sfprotocol.machine import Machine
from sfprotocol.signing import genesis

MAX_ROUND = 512
"""Maximum number of events in one round, and so in one commit. Bounds how long a frame waits for the disk."""

ROUND_TIME = 0.05
"""Seconds of real time after which a round takes no more events. Without this limit, a round with many long
segments, which take time to hash, would block the event loop."""

A = TypeVar("A")

MAX_UNHANDLED = 32
"""Maximum number of frames of one link that wait for the machine. At this number, the link is not read
(backpressure)."""


# -- the log -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Commit:
    """Changes of one round that become durable, all or none, before their effects are carried out."""

    admits: tuple[events.Admit, ...] = ()
    """Segments in the order of admission. In an organised run, a segment may begin before the end of the
    stored feed. Such a segment replaces the stored updates from its first step on, which belong to another
    history."""
    cuts: tuple[events.Cut, ...] = ()
    """Cuts in the order in which they were found. Each cut of a feed is at a lower step than the cut
    before."""
    evicted: tuple[messages.Feed, ...] = ()
    """Feeds of which no update counts from now on, even if `admits` or `cuts` contain such feeds (SPEC
    S8)."""
    cards: tuple[messages.Card, ...] = ()
    own: messages.Feed | None = None
    """Our own feed from now on; None if it has not changed."""
    control: tuple[events.KeepControl, ...] = ()
    """Changes of the control feed, in order."""
    authority: tuple[messages.HigherWord, ...] = ()
    statement: messages.Statement | None = None
    """Our own statement as a stand-in; None if it has not changed."""
    rebase: events.Rebase | None = None
    """New first steps of the log's feeds, applied after all other changes of this commit; None if they do not
    change."""


class Store(Protocol):
    """The log of one node, as far as the protocol needs it."""

    def append(self, commit: Commit) -> None:
        """Make `commit` durable, all of it or nothing. The adapter calls this method between `Host.decide`
        and `Host.carry_out`."""

    def read(self, feed: messages.Feed, first: int, max_updates: int) -> messages.Segment | None:
        """Return the updates of `feed` from step `first` on, up to a signature (SPEC S6); None if the log
        ends before `first`.

        Returns at most `max_updates` updates. If the first signature comes only after more updates than that,
        returns the updates up to it. This happens where one history has replaced another.
        """

    def past(self, feed: messages.Feed, step: int) -> tuple[bytes, messages.Segment]:
        """Return the chain head before `step`, and the updates from there to the next signature."""

    def label(self, feed: messages.Feed, step: int) -> tuple[int, int]:
        """Return the epoch of the last update before `step`, and the number of consecutive updates directly
        before `step` that belong to this epoch; (0, 0) if `step` is 0. Used in organised runs only."""

    def proof(self, feed: messages.Feed) -> messages.Proof | None:
        """Return the proof of the lowest cut of `feed`; None if it is not cut."""


def cut_chain(run: messages.RunParameters, proof: messages.Proof) -> bytes:
    """Return the chain head at the cut of `proof`, after the updates that still count (SPEC E4)."""
    return proof.chains[0] if proof.cut else genesis(run.run_id, proof.feed)


# -- effects -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Send:
    """Send this frame. After a Segment, post Writable once everything given to the link is written."""

    link: events.LinkId
    message: messages.Message
    frame: bytes
    """The encoding of `message`. Links that get the same message share one bytes object."""


@dataclass(frozen=True, slots=True)
class Close:
    """End the link once everything given to it is written, then post LinkDown."""

    link: events.LinkId
    fault: str | None
    """The SPEC rule that the peer broke, with the reason; None if the peer broke none."""


@dataclass(frozen=True, slots=True)
class Advanced:
    """Apply a change of `feed` to the model: until now the first `before` updates counted, from now on the
    first `stop` updates count.

    `stop` is below `before` after a cut, and equal to `before` if only factors have changed (see
    `Machine.spans`). In an organised run, every fork proof has this effect, even if the same updates count as
    before: the organiser must learn of the fork, as it lists no step after one. The updates themselves are in
    the store.
    """

    feed: messages.Feed
    before: int
    stop: int


Effect = Send | Close | Advanced | events.JoinRequested
"""A task for the adapter (the program around the host). A JoinRequested is an action of the machine, passed
on unchanged."""


# -- the host ----------------------------------------------------------------------------------------


class Host:
    """One machine and its store, run in rounds. Not thread-safe; never blocks."""

    def __init__(self, machine: Machine, store: Store) -> None:
        self.machine = machine
        self._store = store
        self._events: deque[events.Event] = deque()
        """Events that did not come from a link."""
        self._frames: dict[events.LinkId, deque[events.Received | events.LinkDown]] = {}
        """Queues of waiting frames, keyed by link; no queue is empty. If the link has ended, its LinkDown
        comes after its last frame."""
        self._turns: deque[events.LinkId] = deque()
        """Links with waiting frames that do not rest, in the order of their turns."""
        self._resting: dict[events.LinkId, float] = {}
        """Resting links with waiting frames, each with the time at which its rest ends (SPEC L9)."""
        self.taken = 0
        """Number of events handled by the last round."""
        self._links: set[events.LinkId] = set()
        """Open links; used for membership only, as a set has no order."""
        self._decided: list[events.Action] | None = None
        """Actions of the present round; None between rounds."""

    # -- events ------------------------------------------------------------------------------------

    @property
    def waiting(self) -> int:
        """Number of events that wait for a round; frames of resting links are not included."""
        return len(self._events) + sum(len(self._frames[link]) for link in self._turns)

    @property
    def busy(self) -> bool:
        """Whether a round has begun (`decide`) and has not ended (`carry_out`)."""
        return self._decided is not None

    def next_deadline(self) -> float:
        """Return the time at which a round must begin even if no event waits."""
        return min(self.machine.next_deadline(), *self._resting.values(), float("inf"))

    def post(self, event: events.Event) -> None:
        """Queue an event for the machine."""
        match event:
            case events.Received() | events.LinkDown():
                self._queue(event)
            case events.LinkUp(link=link):
                self._links.add(link)
                self._events.append(event)
            case events.OwnDecision():  # follows from the present state, which other events may change
                self._events.appendleft(event)
            case _:
                self._events.append(event)

    def _queue(self, event: events.Received | events.LinkDown) -> None:
        link = event.link
        if link not in self._frames:
            self._frames[link] = deque()
            self._turns.append(link)
        self._frames[link].append(event)
        if isinstance(event, events.LinkDown):
            self._links.discard(link)
            self._wake(link)

    def has_room(self, link: events.LinkId) -> bool:
        """Return whether another frame of this link may be posted. If not, stop reading the link."""
        return len(self._frames.get(link, ())) < MAX_UNHANDLED

    # -- a round -----------------------------------------------------------------------------------

    def decide(
        self, now: float, *, clock: Callable[[], float] | None = None, most: int = MAX_ROUND
    ) -> Commit | None:
        """Begin a round: handle up to `most` events, and after them a Wake if the machine's deadline has
        passed.

        With a `clock`, whose time is `now`, no more events are taken after ROUND_TIME. Returns the Commit
        that must be durable before `carry_out`; None if there is nothing to commit.
        """
        if self._decided is not None:
            raise LocalProtocolError("decide before the last round was carried out")
        actions: list[events.Action] = []
        for link in [link for link, until in self._resting.items() if until <= now]:
            self._wake(link)
        self.taken = 0
        while self.taken < most and (event := self._next(now)):
            self.taken += 1
            actions += self.machine.handle(event, now)
            if clock is not None and clock() - now > ROUND_TIME:
                break
        if now >= self.machine.next_deadline():
            actions += self.machine.handle(events.Wake(), now)
        self._decided = actions
        return commit_of(actions)

    def carry_out(self) -> list[Effect]:
        """End the round; return the effects, in order. The caller has made the Commit of the round durable.

        Raises LocalProtocolError if something is missing in the store.
        """
        if self._decided is None:
            raise LocalProtocolError("carry_out without a decided round")
        actions, self._decided = self._decided, None
        frames = _Frames(self._store, self.machine.run.form)
        effects: list[Effect] = []
        gone = {action.feed for action in actions if isinstance(action, events.Evict)}
        for action in actions:
            if isinstance(action, events.Serve | events.ShowProof | events.Examine) and action.feed in gone:
                self.post(events.Writable(action.link))  # the link waits for no segment
            elif effect := self._effect(action, frames):
                effects.append(effect)
        return effects

    def _next(self, now: float) -> events.Event | None:
        """Return the next event that did not come from a link, else the next frame of the link whose turn it
        is; None if nothing waits."""
        if self._events:
            return self._events.popleft()
        while self._turns:
            link = self._turns.popleft()
            frames, until = self._frames[link], self.machine.rests_until(link)
            if until > now and not isinstance(frames[-1], events.LinkDown):
                self._resting[link] = until
                continue
            while until > now and len(frames) > 1:
                frames.popleft()  # the link is gone and has exceeded its rate
            event = frames.popleft()
            if frames:
                self._turns.append(link)
            else:
                del self._frames[link]
            return event
        return None

    def _wake(self, link: events.LinkId) -> None:
        if self._resting.pop(link, None) is not None:
            self._turns.append(link)

    def _effect(self, action: events.Action, frames: _Frames) -> Effect | None:
        match action:
            case events.Transmit(link=link, message=message) if link in self._links:
                return Send(link, message, frames.of(message))
            case events.Serve(link=link) if link in self._links:
                return self._serve(action, frames)
            case events.ShowProof(link=link, feed=feed) if link in self._links:
                proof = frames.proof(feed)
                return Send(link, proof, frames.of(proof))
            case events.Drop(link=link, fault=fault) if link in self._links:
                self._links.discard(link)
                return Close(link, fault or None)
            case events.Admit(feed=feed, segment=segment, counted=counted) if counted:
                return Advanced(feed, segment.first, segment.first + counted)
            case events.Cut(proof=proof, stop=stop) if stop > proof.cut:
                return Advanced(proof.feed, stop, proof.cut)
            case events.Cut(proof=proof, stop=stop) if self.machine.organised:
                return Advanced(proof.feed, stop, self.machine.frontier.next(proof.feed))
            case events.Recounted(feed=feed, before=before) | events.Evict(feed=feed, stop=before):
                return Advanced(feed, before, self.machine.frontier.next(feed))
            case events.JoinRequested():
                return action
            case events.Examine():
                self._examine(action)
            case events.Trace(feed=feed, stop=stop) if self._keeps(feed, stop):
                self.post(
                    events.Traced(feed, stop, *self._store.past(feed, stop), *self._store.label(feed, stop))
                )
        return None  # durable by now, or for a link that is gone

    def _serve(self, serve: events.Serve, frames: _Frames) -> Send | None:
        stop = self.machine.frontier.next(serve.feed)
        if not self._keeps(serve.feed, serve.first) or stop <= serve.first:
            self.post(events.Writable(serve.link))
            return None
        segment = frames.segment(serve, stop)
        self.post(events.Served(serve.link, serve.feed, segment.stop, serve.hops))
        if segment.count > self.machine.run.form.segment_updates:
            # Only other nodes have an earlier signature.
            self.post(events.Writable(serve.link))
            return None
        return Send(serve.link, segment, frames.of(segment))

    def _examine(self, examine: events.Examine) -> None:
        feed, against = examine.feed, examine.against
        step = against.at if isinstance(against, messages.Proof) else against.first
        if not self._keeps(feed, step):
            return
        chain, ours = self._store.past(feed, step)
        self.post(events.Examined(examine.link, feed, against, chain, ours, self._store.proof(feed)))

    def _keeps(self, feed: messages.Feed, step: int) -> bool:
        """Return whether the log still has `feed` from this step on after the deletions of this round."""
        return step >= self.machine.frontier.base(feed).step


def commit_of(actions: list[events.Action]) -> Commit | None:
    """Return the changes in `actions` that must be durable before other actions are carried out; None if
    there are none."""

    def every(kind: type[A]) -> list[A]:
        return [action for action in actions if isinstance(action, kind)]

    commit = Commit(
        admits=tuple(every(events.Admit)),
        cuts=tuple(every(events.Cut)),
        evicted=tuple(action.feed for action in every(events.Evict)),
        cards=tuple(action.card for action in every(events.KeepCard)),
        own=next((action.feed for action in reversed(every(events.ContinueAs))), None),
        control=tuple(every(events.KeepControl)),
        authority=tuple(action.message for action in every(events.KeepAuthority)),
        statement=next((action.statement for action in reversed(every(events.KeepStatement))), None),
        rebase=next(reversed(every(events.Rebase)), None),
    )
    return None if commit == Commit() else commit


class _Frames:
    """The messages of one round as bytes. Each is read and encoded once for all its links."""

    def __init__(self, store: Store, form: messages.Form) -> None:
        self._store = store
        self._form = form
        self._encoded: dict[int, tuple[messages.Message, bytes]] = {}
        """Pairs (message, encoding), keyed by the message's identity: hashing a segment of 4,096 updates for
        each link would cost more than it saves. The message is stored so that its identity stays unique."""
        self._read: dict[tuple[messages.Feed, int], messages.Segment] = {}
        self._served: dict[tuple[messages.Feed, int, int], messages.Segment] = {}
        """Segments keyed by feed, first step and hop count: one object for every link that asks for it."""
        self._proofs: dict[messages.Feed, messages.Proof] = {}

    def of(self, message: messages.Message) -> bytes:
        """Return the encoding of `message`."""
        if id(message) not in self._encoded:
            self._encoded[id(message)] = message, wire_codec.encode(message, *self._form)
        return self._encoded[id(message)][1]

    def segment(self, serve: events.Serve, stop: int) -> messages.Segment:
        """Return the segment that a Serve asks for, with its hop count. It ends with the last signature at or
        before step `stop`, as later updates in the log do not count."""
        asked = serve.feed, serve.first, serve.hops
        if asked not in self._served:
            self._served[asked] = replace(self._from_log(serve.feed, serve.first, stop), hops=serve.hops)
        return self._served[asked]

    def _from_log(self, feed: messages.Feed, first: int, stop: int) -> messages.Segment:
        if (feed, first) not in self._read:
            segment = self._store.read(feed, first, min(self._form.segment_updates, stop - first))
            if segment is None:
                raise LocalProtocolError(f"the log ends before step {first}, which must be served")
            self._read[feed, first] = segment
        return self._read[feed, first]

    def proof(self, feed: messages.Feed) -> messages.Proof:
        """Return the proof that `feed` is cut."""
        if feed not in self._proofs:
            proof = self._store.proof(feed)
            if proof is None:
                raise LocalProtocolError("a proof that is to be shown is not in the log")
            self._proofs[feed] = proof
        return self._proofs[feed]
