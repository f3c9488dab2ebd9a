"""Validators: members who measure, for the organiser, what each feed has brought in an epoch (SPEC O18).

Theory of operation. The control feed names members; a lot that follows from the salt of a close says which
of them are its panel. What one of these has measured goes two ways round, each time over all links:

    its commitment   a digest of its figures, signed: from now on it cannot take over what others say
    its finding      the figures: FLOOD_TIME after the commitments of the whole panel are here, or if they
                     do not come REVEAL_AFTER its own commitment

Whoever has taken one finding of an epoch takes no more commitments; so none is taken before it is time. Each
message is passed on as long as the epoch has no seal, and again when its author repeats it; so what is kept
and passed on is bounded by what the control feed names, and a finding needs no signature. This module does
not know how figures are measured, and what becomes of them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field, replace
from heapq import nsmallest

from sfprotocol.counting import Counting
from sfprotocol.decisions import INCARNATIONS
from sfprotocol.events import Action, Counters, FindingHeard, LinkId, OwnFinding, Transmit
from sfprotocol.link import Link
from sfprotocol.messages import Commitment, Feed, Finding
from sfprotocol.own_feed import OwnFeed
from sfprotocol.rate_limit import FORGERY_COST
from sfprotocol.signing import Sign, signed_by
from sfprotocol.wire_codec import MAX_ENTRIES

PANEL = 5
"""Validators that measure an epoch: the median of five is one of an honest one's if two of them lie."""

FLOOD_TIME = 3.0
"""Seconds after which commitments have come to everybody who is to come by them without a loss: who takes a
finding before takes the others' no more."""

REVEAL_AFTER = 20.0
"""Seconds after which nobody is waited for who has not committed."""

TAKEN_AFTER = 10.0
"""Seconds after a commitment has come before which its finding is not taken while others are awaited: who is
quicker by less than that shuts nobody out. Half of REVEAL_AFTER, as the first commitments may be lost."""

COMMIT_AGAIN, COMMIT_REPEAT = 5.0, 4.0
"""Seconds after which an author repeats a commitment until it has revealed its finding, and for which others
do not pass the same one on again: one that is lost can be made up for several times before REVEAL_AFTER."""

SEND_AGAIN, REPEAT_TIME = 30.0, 20.0
"""The same for a finding, with its commitment before it, until the epoch is sealed."""

_COMMITMENT = b"sfnode-commitment"


def panel(members: Iterable[int], salt: bytes) -> tuple[int, ...]:
    """Return the members, by their numbers, on whom the lot falls for a close with this salt, in the order of
    their lots: PANEL of them, or all if there are fewer."""
    return tuple(nsmallest(PANEL, members, key=lambda member: _lot(member, salt)))


def _lot(member: int, salt: bytes) -> bytes:
    data = salt + member.to_bytes(4, "big")
    return hashlib.blake2b(data, digest_size=32, person=b"sfnode-panel").digest()


def finding_digest(run_id: bytes, salt: bytes, finding: Finding) -> bytes:
    """Return the 32 bytes to which a validator commits itself, of a close with this salt."""
    head = run_id + finding.origin + finding.epoch.to_bytes(4, "big") + salt
    numbers = finding.nonce.to_bytes(8, "big") + finding.rows.to_bytes(4, "big")
    parts = (
        part.feed.to_bytes(4, "big")
        + part.updates.to_bytes(4, "big")
        + part.worth.to_bytes(8, "big", signed=True)
        + part.score.to_bytes(8, "big", signed=True)
        for part in finding.parts
    )
    data = b"".join((head, numbers, *parts))
    return hashlib.blake2b(data, digest_size=32, person=b"sfnode-finding").digest()


def commitment_message(run_id: bytes, salt: bytes, commitment: Commitment) -> bytes:
    """Return what a validator signs, of a close with this salt."""
    epoch = commitment.epoch.to_bytes(4, "big")
    return b"".join((_COMMITMENT, run_id, commitment.origin, epoch, salt, commitment.digest))


@dataclass(slots=True)
class _Epoch:
    """The oldest closed epoch without a seal: what has come of its panel."""

    salt: bytes
    named: tuple[int, ...]
    """Members who were named."""
    panel: tuple[int, ...]
    commitments: dict[int, Commitment] = field(default_factory=dict)
    """Those that were taken, by members; so are the findings."""
    committed_at: dict[int, float] = field(default_factory=dict)
    """Time at which they came."""
    findings: dict[int, Finding] = field(default_factory=dict)
    passed: dict[tuple[type, int], float] = field(default_factory=dict)
    """Time at which a message of a member was last passed on."""
    own: int | None = None
    """Our number, once we have measured it."""
    figures: Finding | None = None
    """Our own figures."""
    reveal_at: float = float("inf")
    send_at: float = float("inf")
    """Time at which ours are sent again."""

    @property
    def drawn(self) -> tuple[bytes, tuple[int, ...]]:
        """The facts that the panel follows from, as `Counting.drawn_from` returns them."""
        return self.salt, self.named

    def may_pass(self, kind: type, member: int, now: float) -> bool:
        """Return whether a member's message may be passed on, and take note that it is."""
        wait = COMMIT_REPEAT if kind is Commitment else REPEAT_TIME
        if now - self.passed.get((kind, member), float("-inf")) < wait:
            return False
        self.passed[kind, member] = now
        return True

    def commit(self, member: int, commitment: Commitment, now: float) -> None:
        """Take a commitment; have our finding revealed soon if there is nobody to wait for."""
        self.commitments[member], self.committed_at[member] = commitment, now
        if self.is_full and self.reveal_at < float("inf"):
            self.reveal_at = min(self.reveal_at, now + FLOOD_TIME)

    @property
    def is_full(self) -> bool:
        """Whether the whole panel has committed itself."""
        return len(self.commitments) == len(self.panel)

    def reveal(self) -> list[Action]:
        """Take our own finding, which is sent from now on."""
        self.reveal_at = float("inf")
        assert self.own is not None  # or nothing were due
        assert self.figures is not None
        return [self.take(self.own, self.figures)]

    def take(self, member: int, finding: Finding) -> FindingHeard:
        """Take a finding."""
        self.findings[member] = finding
        return FindingHeard(member, finding.epoch, finding.rows, finding.parts)

    def ours(self) -> list[Commitment | Finding]:
        """Return our messages, as far as they are to be sent."""
        assert self.own is not None
        tables: tuple[dict[int, Commitment] | dict[int, Finding], ...] = self.commitments, self.findings
        return [table[self.own] for table in tables if self.own in table]


class Findings:
    """The commitments and findings that one machine has heard of, and its own."""

    def __init__(
        self, run_id: bytes, links: dict[LinkId, Link], own: OwnFeed, counters: Counters, sign: Sign
    ) -> None:
        """`sign` signs with the key of our own feed."""
        self._run_id = run_id
        self._links = links
        self._own = own
        self._counters = counters
        self._sign = sign
        self._epochs: dict[int, _Epoch] = {}

    # -- what others ask ---------------------------------------------------------------------------

    def panel(self, counting: Counting, epoch: int) -> tuple[int, ...]:
        """Return the numbers of the members who are to measure an epoch; none unless it is the oldest one
        that is closed and not sealed."""
        found = self._of(epoch, counting)
        return found.panel if found else ()

    def place(self, counting: Counting, epoch: int) -> int | None:
        """Return our place on the panel of an epoch of which our finding would be taken; else None."""
        found, member = self._of(epoch, counting), self._member(counting)
        if found is None or found.findings or member not in found.panel or member in found.commitments:
            return None
        return found.panel.index(member)

    def _member(self, counting: Counting) -> int | None:
        return _member(counting, self._own.feed.origin) if self._own.feed else None

    def _of(self, epoch: int, counting: Counting) -> _Epoch | None:
        """Return what there is of the oldest epoch that is closed and not sealed; None of another, or if it
        has no panel. Before the seals before it nobody can measure it: only who lies could be quick."""
        if not epoch == counting.sealed < counting.open_epoch:
            return None
        if epoch not in self._epochs:
            salt, members = counting.drawn_from(epoch)
            if not members:
                return None
            self._epochs[epoch] = _Epoch(salt, members, panel(members, salt))
        return self._epochs[epoch]

    # -- our own -----------------------------------------------------------------------------------

    def measured(self, event: OwnFinding, counting: Counting, now: float) -> list[Action]:
        """Commit us to what was measured here, if it would be taken."""
        feed, member = self._own.feed, self._member(counting)
        if feed is None or member is None or self.place(counting, event.epoch) is None:
            return []
        epoch = self._epochs[event.epoch]
        figures = Finding(event.epoch, feed.origin, event.nonce, event.rows, event.parts)
        if not _is_about(figures, counting.moved(event.epoch)):
            return []
        digest = finding_digest(self._run_id, epoch.salt, figures)
        unsigned = Commitment(event.epoch, feed.origin, digest, bytes(64))
        signature = self._sign(commitment_message(self._run_id, epoch.salt, unsigned))
        epoch.own, epoch.figures = member, figures
        epoch.reveal_at, epoch.send_at = now + REVEAL_AFTER, now
        epoch.commit(member, replace(unsigned, signature=signature), now)
        return self.wake(now)

    def deadline(self) -> float:
        """Return the time at which something of ours is to be sent."""
        return min((min(one.reveal_at, one.send_at) for one in self._epochs.values()), default=float("inf"))

    def wake(self, now: float) -> list[Action]:
        """Send what is due of ours."""
        actions: list[Action] = []
        for epoch in self._epochs.values():
            if now >= epoch.reveal_at:
                actions += epoch.reveal()
                epoch.send_at = now
            if now >= epoch.send_at:
                epoch.send_at = now + (SEND_AGAIN if epoch.own in epoch.findings else COMMIT_AGAIN)
                actions += [one for message in epoch.ours() for one in self._to_others(epoch, message)]
        return actions

    def introduce(self, link: Link) -> list[Action]:
        """Send a new neighbour what was taken, all commitments first: it may have lost another one, who has
        not passed it on."""
        epochs = self._epochs.values()
        committed = [Transmit(link.id, one) for epoch in epochs for one in epoch.commitments.values()]
        return [*committed, *(Transmit(link.id, one) for epoch in epochs for one in epoch.findings.values())]

    def decided(self, counting: Counting) -> None:
        """Forget epochs that are sealed by now, or were closed otherwise."""
        self._epochs = {
            epoch: found
            for epoch, found in self._epochs.items()
            if epoch == counting.sealed < counting.open_epoch and found.drawn == counting.drawn_from(epoch)
        }

    # -- others' -----------------------------------------------------------------------------------

    def heard(
        self, link: Link, message: Commitment | Finding, counting: Counting, now: float
    ) -> list[Action]:
        """Take in a validator's message, and pass it on unless that was done lately.

        Raises RemoteProtocolError (SPEC L8) when the sender has wasted too much.
        """
        epoch, member = self._of(message.epoch, counting), _member(counting, message.origin)
        if epoch is None or member is None or member not in epoch.panel:
            return []
        told: list[Action] = []
        if isinstance(message, Commitment):
            self._on_commitment(link, epoch, member, message, now)
            taken = epoch.commitments.get(member) == message
        else:
            told = self._on_finding(epoch, member, message, counting, now)
            taken = epoch.findings.get(member) == message
        if not taken or member == epoch.own or not epoch.may_pass(type(message), member, now):
            return told
        return [*told, *self._to_others(epoch, message, link)]

    def _on_commitment(
        self, link: Link, epoch: _Epoch, member: int, commitment: Commitment, now: float
    ) -> None:
        """Take a commitment in time, the first one of a member."""
        if member in epoch.commitments or epoch.findings:
            return
        message = commitment_message(self._run_id, epoch.salt, commitment)
        if not signed_by(commitment.origin, message, commitment.signature):
            link.waste.charge(FORGERY_COST, 0, now)
            return
        epoch.commit(member, commitment, now)
        self._counters.findings += 1

    def _on_finding(
        self, epoch: _Epoch, member: int, finding: Finding, counting: Counting, now: float
    ) -> list[Action]:
        """Take a finding that its author has committed itself to, unless it comes too early."""
        committed = epoch.commitments.get(member)
        if committed is None or member in epoch.findings:
            return []
        if not epoch.findings and not epoch.is_full and now < epoch.committed_at[member] + TAKEN_AFTER:
            return []
        if committed.digest != finding_digest(self._run_id, epoch.salt, finding):
            return []
        if not _is_about(finding, counting.moved(finding.epoch)):
            return []
        self._counters.findings += 1
        return [epoch.take(member, finding)]

    def _to_others(
        self, epoch: _Epoch, message: Commitment | Finding, source: Link | None = None
    ) -> list[Action]:
        """Send a message to all neighbours but one; before the first finding of an epoch all commitments, as
        whoever lacks one of them takes none after that."""
        first = isinstance(message, Finding) and len(epoch.findings) == 1
        before = epoch.commitments.values() if first else ()
        links = [link for link in self._links.values() if link.greeted and link is not source]
        return [Transmit(link.id, one) for link in links for one in (*before, message)]


def _member(counting: Counting, origin: bytes) -> int | None:
    """Return the number of the member with this key."""
    number = counting.number(Feed(origin, 0))
    return None if number is None else number // INCARNATIONS


def _is_about(finding: Finding, moved: Collection[int]) -> bool:
    """Return whether a finding is about some of the feeds that its close has named, each at most once."""
    feeds = [part.feed for part in finding.parts]
    return len(feeds) <= MAX_ENTRIES and feeds == sorted(set(feeds).intersection(moved))
