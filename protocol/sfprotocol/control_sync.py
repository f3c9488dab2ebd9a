"""The exchange of the control feed with neighbours: announcing, requesting and forwarding decisions (SPEC
O12).

Peers tell each other how many decisions they have, and the peer with fewer decisions requests the missing
ones. New decisions are sent without a request if they are short. If the sequences of two peers differ, each
peer asks the other for earlier and earlier decisions, until two signatures at one position prove a fork.
`organised` applies the decisions to feeds.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass

from sfprotocol import decisions, messages
from sfprotocol.control_feed import ControlFeed
from sfprotocol.decisions import Revoke, RevokeInvitation
from sfprotocol.elections import Elections
from sfprotocol.errors import LocalProtocolError, RemoteProtocolError
from sfprotocol.events import Action, Counters, KeepAuthority, KeepControl, LinkId, Recounted, Transmit
from sfprotocol.frontier import Frontier
from sfprotocol.link import Link
from sfprotocol.rate_limit import FORGERY_COST
from sfprotocol.run_state import RunState
from sfprotocol.signing import Sign
from sfprotocol.wire_codec import MAX_ENTRIES

WANT_AGAIN = 5.0
"""Seconds without an answer after which decisions are requested again, so that a lost message costs little
time. The largest decision takes 15 s over a line of 100 kbit/s, so it is requested several times before it
has arrived."""

PUSHED_BYTES = 1024
"""Maximum total size, in bytes, of new decisions that are sent to neighbours without a request. Larger ones
are only announced, so that a node fetches them from one neighbour and does not get them from all."""

PAGE_BYTES = 200 * 1024
"""Maximum total size of the decisions in one message, in bytes. A single decision is sent even if it is
larger."""


@dataclass(frozen=True, slots=True)
class Kept:
    """The part of the control feed that a node has stored."""

    entries: tuple[messages.Entry, ...] = ()
    authority: tuple[messages.HigherWord, ...] = ()
    statement: messages.Statement | None = None
    """Our own latest statement as a stand-in; None if we have made none."""


NOTHING_KEPT = Kept()


class ControlSync:
    """The control feed of one machine, the state of the run that follows from it, and its exchange with
    neighbours."""

    def __init__(
        self, frontier: Frontier, links: dict[LinkId, Link], counters: Counters, *, kept: Kept
    ) -> None:
        """Raises RemoteProtocolError (SPEC O3) if the stored decisions do not follow one another or one is
        not validly signed."""
        run = frontier.run
        assert run.organised is not None
        self.feed = ControlFeed(run.organised)
        self.changed: set[int] = set()
        """Numbers of feeds whose listed steps or factors have changed since the `organised` module last
        emptied this set."""
        self.dropped = False
        """Whether stored decisions were dropped since the `organised` module last set this to False."""
        self._strange: list[messages.Feed] = []
        """Stored feeds whose origin is no member any more."""
        self._run = run
        self._frontier = frontier
        self._links = links
        self._counters = counters
        self._sign: Sign | None = None
        for message in kept.authority:
            self._take_authority(message)
        if self.feed.add(0, kept.entries) != len(kept.entries):
            raise RemoteProtocolError("O3", "stored decisions that do not follow or are not signed")
        for message in kept.authority:  # proofs about terms and stand-ins of the stored decisions
            self._take_authority(message)
        self.elections = Elections(
            self.feed, links, counters, grow=self._decided, prove=self._learn, own=kept.statement
        )
        self._refold()
        self.changed = set()

    @property
    def run_state(self) -> RunState:
        """The state of the run according to the stored decisions."""
        return self._run_state

    @property
    def claimed(self) -> tuple[int, str]:
        """The largest number of decisions that a neighbour claims to have, and the peer id of that neighbour.
        Only neighbours whose term is not earlier than ours are considered; (0, "") if there is none."""
        heads = [(link.control.theirs, link.peer) for link in self._links.values()]
        return max(
            ((head.stop, peer) for head, peer in heads if head and head.term >= self.feed.term),
            default=(0, ""),
        )

    @property
    def key(self) -> bytes:
        """The public key with which this node signs decisions, as the organiser or a stand-in; empty if this
        node has no such key."""
        return self.elections.key

    def sign(self, message: bytes) -> bytes:
        """Return the signature of `message` with the key whose public half is `key`. Raises
        LocalProtocolError if this node has no such key."""
        if self._sign is None:
            raise LocalProtocolError("a signature without a key")
        return self._sign(message)

    def hold(self, key: bytes, sign: Sign, now: float, *, restored: bool = False) -> None:
        """Set the key with which this node signs decisions from now on, as the organiser or a stand-in.
        `restored`: whether the key may have signed decisions that are unknown here."""
        self._sign = sign
        self.elections.hold(key, sign, now, restored=restored)

    # -- telling -----------------------------------------------------------------------------------

    def head(self) -> messages.ControlHead:
        return messages.ControlHead(self.feed.term, self.feed.stop, self.feed.chain)

    def introduce(self, link: Link) -> list[Action]:
        """Tell a new neighbour the head of our control feed, and all successions, proofs and statements that
        we have."""
        link.control.told = self.head()
        told: list[messages.Message] = [*self.feed.successions.values(), *self.feed.proofs(), self.head()]
        return [*(Transmit(link.id, message) for message in told), *self.elections.introduce(link)]

    def tell(self, link: Link, now: float) -> list[Action]:
        """Tell a neighbour the head of our control feed if it has changed since we last told it; request
        again decisions that the neighbour has not sent."""
        actions: list[Action] = []
        if link.control.told != self.head():
            link.control.told = self.head()
            actions.append(Transmit(link.id, self.head()))
        return [*actions, *self._ask(link, now)]

    # -- what comes in -----------------------------------------------------------------------------

    def heard_head(self, link: Link, head: messages.ControlHead, now: float) -> list[Action]:
        link.control.theirs = head
        return self._ask(link, now)

    def wanted(self, link: Link, want: messages.ControlWant, now: float) -> list[Action]:
        """Send the decisions from the wanted position on, up to the size of one message."""
        entries: list[messages.Entry] = []
        size = 0
        for entry in self.feed.entries[want.first : want.first + MAX_ENTRIES]:
            size += len(entry.record) + 80
            if entries and size > PAGE_BYTES:
                break
            entries.append(entry)
        if not entries:
            return []
        again = want.first < link.control.sent
        link.control.sent = max(link.control.sent, want.first + len(entries))
        if again:
            link.waste.charge(min(size, PAGE_BYTES), len(self._frontier), now)
        last = want.first + len(entries) == self.feed.stop
        proofs = self.feed.proofs() if last else ()  # they may be about terms that begin in these entries
        return [
            Transmit(link.id, message) for message in (messages.Control(want.first, tuple(entries)), *proofs)
        ]

    def heard(self, link: Link, control: messages.Control, now: float) -> list[Action]:
        """Add decisions that a peer has sent. Decisions that do not follow ours are not added. The peer is
        not at fault, because it may have another sequence."""
        link.control.asked_at = float("-inf")
        before = self.feed.stop
        result = self.feed.add(control.first, control.entries)
        if isinstance(result, messages.ControlFork):
            return self._learn(result, None, now)  # to the peer, too: it may know only one of the two
        if self.feed.stop - result < before:
            return [*self._dropped(self.feed.stop - result), *self._ask(link, now)]
        if not result:
            link.control.back = 2 * link.control.back + 1 if self._differs(link.control.theirs) else 0
            return self._ask(link, now)
        link.control.back = 0
        return [*self._grown(before, link), *self._ask(link, now), *self.elections.review(now)]

    def heard_authority(self, link: Link | None, message: messages.HigherWord, now: float) -> list[Action]:
        """Handle a succession or a proof; forward it if it is new here."""
        if link:
            link.waste.charge(FORGERY_COST, len(self._frontier), now)
        return self._learn(message, link, now)

    def _learn(self, message: messages.HigherWord, source: Link | None, now: float) -> list[Action]:
        """Store a succession or proof that is news, and send it to all neighbours but the `source`."""
        before = self.feed.stop
        if not self._take_authority(message):
            return []
        self._counters.decisions += 1
        others = [other for other in self._links.values() if other.greeted and other is not source]
        told: list[Action] = [Transmit(other.id, message) for other in others]
        dropped = self._dropped(self.feed.stop) if self.feed.stop < before else []
        self._tell_digest()
        asks = [action for other in self._links.values() for action in self._ask(other, now)]
        return [KeepAuthority(message), *dropped, *told, *asks, *self.elections.review(now)]

    def decide(self, record: bytes, now: float) -> list[Action]:
        """Sign and add a decision of the organiser at this node. If the run has stand-ins, only propose the
        decision to them. Do nothing if, because of a new fork or succession, our key does not sign the next
        decision. Raises LocalProtocolError if this node has no key."""
        before = self.feed.stop
        if self.feed.frozen or self.feed.misses_decisions:
            return []
        if self.elections.in_use:
            return self.elections.decide(record, now)
        if self.feed.add(before, [self.feed.sign(record, self.sign)]) != 1:
            return []  # another key signs now
        return [*self._grown(before, None), *self.elections.review(now)]

    def _decided(self, entries: tuple[messages.Entry, ...]) -> list[Action]:
        """Add decisions that more than half of the stand-ins hold."""
        before = self.feed.stop
        self.feed.add(before, entries)
        return self._grown(before, None)

    # -- consequences ------------------------------------------------------------------------------

    def _grown(self, before: int, source: Link | None) -> list[Action]:
        entries = tuple(self.feed.entries[before:])
        self._counters.decisions += len(entries)
        revoked = False
        for entry in entries:
            recorded = decisions.read(entry.record)
            self.changed |= self._run_state.apply(recorded)
            revoked = revoked or isinstance(recorded.decision, Revoke | RevokeInvitation)
        if self._strange:
            strange, self._strange = self._strange, self._strangers(self._strange)
            self.changed |= {n for feed in strange if (n := self._run_state.number(feed)) is not None}
        if revoked:  # once for all revocations, as it looks at every feed
            self.changed |= self._held()
        self._tell_digest()
        return [KeepControl(before, entries, ours=source is None), *self._pass_on(before, entries, source)]

    def _pass_on(
        self, first: int, entries: tuple[messages.Entry, ...], source: Link | None
    ) -> Iterable[Action]:
        short = sum(len(entry.record) + 80 for entry in entries) <= PUSHED_BYTES
        for link in self._links.values():
            if not link.greeted or link is source:
                continue
            theirs = link.control.theirs
            if short and theirs and theirs.stop >= first:
                if theirs.stop < self.feed.stop:
                    yield Transmit(link.id, messages.Control(first, entries))
            else:
                yield Transmit(link.id, self.head())
            link.control.told = self.head()

    def _dropped(self, first: int) -> list[Action]:
        """Compute the state of the run again from all decisions, after stored decisions from position `first`
        on were dropped or replaced."""
        self.dropped = True
        self._refold()
        left = (self._frontier.state(feed) for feed in self._strange)
        return [
            KeepControl(first, tuple(self.feed.entries[first:])),
            *(Recounted(state.feed, state.next) for state in left),
        ]

    def _refold(self) -> None:
        self._run_state = RunState.of(self._run)
        for entry in self.feed.entries:
            self._run_state.apply(decisions.read(entry.record))
        self.changed = self._held()
        self._strange = self._strangers(state.feed for state in self._frontier)
        self._frontier.decided_by(self._run_state)
        for link in self._links.values():
            link.names.strange_at = 0  # which feeds are strangers' has changed since the peer told its feeds
        self._tell_digest()

    def _held(self) -> set[int]:
        """Return the numbers of all stored feeds of members."""
        number = self._run_state.number
        return {n for state in self._frontier if (n := number(state.feed)) is not None}

    def _strangers(self, feeds: Iterable[messages.Feed]) -> list[messages.Feed]:
        """Return those of `feeds` whose origin is no member."""
        return [feed for feed in feeds if self._run_state.number(feed) is None]

    def _tell_digest(self) -> None:
        """Update the control feed's part of the state digest (SPEC O10)."""
        feed = self.feed
        forks = [
            fork.term.to_bytes(4, "big") + fork.stop.to_bytes(8, "big")
            for _, fork in sorted(feed.forks.items())
        ]
        said = b"".join((feed.stop.to_bytes(8, "big"), feed.chain, *forks, *sorted(feed.successions)))
        self._frontier.tell_control(hashlib.blake2b(said, digest_size=32).digest())

    def _take_authority(self, message: messages.HigherWord) -> bool:
        match message:
            case messages.ControlFork():
                return self.feed.freeze(message)
            case messages.DoubleVote():
                return self.feed.convict(message)
            case messages.Succession():
                return self.feed.succeed(message)

    # -- asking ------------------------------------------------------------------------------------

    def _differs(self, theirs: messages.ControlHead | None) -> bool:
        """Return whether the peer's head shows that it has decisions that are missing here, or another
        sequence."""
        if theirs is None:
            return False
        if theirs.stop > self.feed.stop:
            return True
        return self.feed.chains[theirs.stop] != theirs.chain

    def _ask(self, link: Link, now: float) -> list[Action]:
        """Ask for decisions that are missing here. If the two sequences differ, ask for earlier decisions."""
        theirs, control = link.control.theirs, link.control
        if theirs is None or now - control.asked_at < WANT_AGAIN or not self._differs(theirs):
            return []
        behind = theirs.stop > self.feed.stop and not control.back
        common = self.feed.stop if behind else min(theirs.stop, self.feed.stop) - max(1, control.back)
        if self.feed.forked and not behind:
            return []  # the fork is proven; a succession must decide between the two sequences
        control.asked_at = now
        return [Transmit(link.id, messages.ControlWant(max(0, common)))]
