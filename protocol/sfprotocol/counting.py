"""What counts in an organised run, as a function of its decisions alone (SPEC O5-O8).

A fold: decisions go in, in the order of the control feed, and nothing else does. A decision whose conditions
do not hold where it stands changes nothing, for everybody. This module knows no updates: of a feed it says
which steps were named, and with which factor they count. It knows no links, no keys and no time.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from sfprotocol.decisions import (
    FACTOR_ONE,
    INCARNATIONS,
    Admit,
    Amend,
    Budget,
    Close,
    Decision,
    Finish,
    Invite,
    RateFrom,
    Recorded,
    Revoke,
    RevokeInvitation,
    Seal,
    Void,
)
from sfprotocol.messages import Feed

MAX_EPOCHS = 65_536
MAX_MEMBERS = 1 << 24
"""Bounds on what one organiser's key can make everybody keep."""

NEVER = 1 << 32
"""An epoch or a step that does not come."""


class Run(NamedTuple):
    """Steps of a feed up to `stop` (from where the run before ends) that count with `factor`."""

    stop: int
    factor: int
    """In units of 2^-12; FACTOR_ONE for steps that no seal has judged yet."""


@dataclass(slots=True)
class Member:
    """An origin that the organiser has admitted."""

    origin: bytes
    quota: int
    invitation: int
    revoked: int = NEVER
    """Nothing with this epoch label, or a later one, counts unless it was named before."""


@dataclass(slots=True)
class Invitation:
    """The key of an invitation, and how many may still come by it."""

    key: bytes
    uses: int
    revoked: bool = False


class _Named(NamedTuple):
    """Steps that one close has named of one feed."""

    first: int
    stop: int
    tag: bytes


@dataclass(slots=True)
class _Closed:
    """One close, and its seal once there is one."""

    salt: bytes
    moves: dict[int, _Named]
    factor: int | None = None
    """None until the seal."""
    exceptions: dict[int, int] = field(default_factory=dict)
    """Factors of feeds to which the seal's does not apply: skipped, counted later, or void."""
    skipped: set[int] = field(default_factory=set)
    """Feeds that no seal has counted yet."""

    def factor_of(self, feed: int) -> int:
        if self.factor is None:
            return FACTOR_ONE
        return self.exceptions.get(feed, self.factor)


class Counting:
    """The state of an organised run after a sequence of decisions."""

    def __init__(self, *, budget: int, rate: int) -> None:
        """`budget` and `rate` (units of 2^-32) are the manifest's."""
        self.decisions = 0
        self.unsupported = False
        """Whether some decision is beyond this version: what counts from there on cannot be known here."""
        self.sealed = 0
        """Number of seals, which is the first epoch without one."""
        self.counted = 0
        """Updates that count, by the seals so far; a factor of 0 does not count."""
        self.budget = budget
        self.finished = False
        self.members: list[Member] = []
        self._member_of: dict[bytes, int] = {}
        self.invitations: list[Invitation] = []
        self._closes: list[_Closed] = []
        self._named: dict[int, list[int]] = {}
        """The epochs that have named something of each feed, ascending."""
        self._ended: dict[int, int] = {}
        """Steps at which feeds have been ended by an Amend."""
        self._rates = [RateFrom(0, rate)]

    # -- what others ask ---------------------------------------------------------------------------

    @property
    def open_epoch(self) -> int:
        """The label of a new update."""
        return len(self._closes)

    @property
    def complete(self) -> bool:
        """Whether the run is over: nobody makes updates any more."""
        return self.finished or self.counted >= self.budget

    def rate(self, epoch: int) -> int:
        """Return the rate of updates with this label, in units of 2^-32."""
        return next(rate.rate for rate in reversed(self._rates) if rate.epoch <= epoch)

    def rates(self) -> tuple[RateFrom, ...]:
        """Return all rates, in the order of epochs."""
        return tuple(self._rates)

    def member(self, origin: bytes) -> Member | None:
        """Return the member with this key; None if it has not been admitted."""
        number = self._member_of.get(origin)
        return None if number is None else self.members[number]

    def number(self, feed: Feed) -> int | None:
        """Return the number of a feed; None if nothing of it may be held."""
        member = self._member_of.get(feed.origin)
        if member is None or feed.incarnation >= INCARNATIONS:
            return None
        return member * INCARNATIONS + feed.incarnation

    def feed(self, number: int) -> Feed:
        """Return the feed with this number."""
        return Feed(self.members[number // INCARNATIONS].origin, number % INCARNATIONS)

    def named(self, feed: int, epoch: int = MAX_EPOCHS) -> int:
        """Return the first step of a feed that no close up to that of `epoch` has named: forks do not cut
        below it."""
        epochs = self._named.get(feed, [])
        last = bisect_right(epochs, epoch)
        return min(self._closes[epochs[last - 1]].moves[feed].stop, self.ended(feed)) if last else 0

    def ended(self, feed: int) -> int:
        """Return the step at which a feed was ended; NEVER if it was not."""
        return self._ended.get(feed, NEVER)

    def landmarks(self, feed: int) -> Iterator[tuple[int, bytes, bytes]]:
        """Yield (stop, salt, tag) of every close that named steps of a feed, in order: its chain hash there
        tells whether a history is the one that was meant."""
        for epoch in self._named.get(feed, ()):
            closed = self._closes[epoch]
            named = closed.moves[feed]
            if named.stop <= self.ended(feed):
                yield named.stop, closed.salt, named.tag

    def runs(self, feed: int, held: int) -> tuple[Run, ...]:
        """Return the factors of the first `held` steps of a feed; neighbours of equal factor are one run."""
        runs: list[Run] = []
        for epoch in self._named.get(feed, ()):
            closed = self._closes[epoch]
            _append(runs, Run(min(closed.moves[feed].stop, held), closed.factor_of(feed)))
        _append(runs, Run(held, FACTOR_ONE))
        return tuple(runs)

    def positions(self, epoch: int = MAX_EPOCHS) -> dict[int, int]:
        """Return the first step, by feed, that no close up to that of `epoch` has named, in the order of
        feeds; without those of which nothing is named."""
        found = {feed: self.named(feed, epoch) for feed in sorted(self._named)}
        return {feed: stop for feed, stop in found.items() if stop}

    def moved(self, epoch: int) -> tuple[int, ...]:
        """Return the feeds of which the close of `epoch` has named steps, in their order."""
        return tuple(self._closes[epoch].moves)

    def counts(self, feed: int, epoch: int) -> int:
        """Return how many steps of a feed that the close of `epoch` has named count by some seal."""
        closed = self._closes[epoch]
        if closed.factor is None or not closed.factor_of(feed):
            return 0
        named, ended = closed.moves[feed], self.ended(feed)
        return max(0, min(named.stop, ended) - min(named.first, ended))

    def counts_of(self, member: int) -> int:
        """Return how many updates of a member count by the seals so far."""
        feeds = range(member * INCARNATIONS, (member + 1) * INCARNATIONS)
        return sum(self.counts(feed, epoch) for feed in feeds for epoch in self._named.get(feed, ()))

    # -- decisions ---------------------------------------------------------------------------------

    def apply(self, recorded: Recorded) -> set[int]:
        """Take in the next decision; return the feeds whose named steps or factors have changed."""
        self.decisions += 1
        self.unsupported = self.unsupported or recorded.unsupported
        if self.unsupported:
            return set()
        return self._decide(recorded.decision)

    def _decide(self, decision: Decision) -> set[int]:
        match decision:
            case Close():
                return self._close(decision)
            case Seal():
                return self._seal(decision)
            case Amend(feed=feed, at=at):
                return self._amend(feed, at)
            case Void():
                return self._void(decision)
            case Revoke(member=member, epoch=epoch):
                return self._revoke([member], epoch)
            case RevokeInvitation(invitation=number, epoch=epoch) if number < len(self.invitations):
                self.invitations[number].revoked = True
                came = [n for n, member in enumerate(self.members) if member.invitation == number + 1]
                return self._revoke(came, epoch)
            case Admit():
                self._admit(decision)
            case Invite(key=key, uses=uses) if len(self.invitations) < MAX_MEMBERS:
                self.invitations.append(Invitation(key, uses))
            case Budget(updates=updates):
                self.budget = updates
            case Finish():
                self.finished = True
        return set()

    def _close(self, close: Close) -> set[int]:
        valid = close.epoch == self.open_epoch < MAX_EPOCHS and not self.finished
        moves: dict[int, _Named] = {}
        for feed, steps, tag in close.moves:
            first = self.named(feed)
            valid = valid and self._exists(feed) and 0 < steps < NEVER - first and feed not in self._ended
            moves[feed] = _Named(first, first + steps, tag)
        if not valid:
            return set()
        for feed in moves:
            self._named.setdefault(feed, []).append(close.epoch)
        self._closes.append(_Closed(close.salt, moves))
        return set(moves)

    def _seal(self, seal: Seal) -> set[int]:
        if seal.epoch != self.sealed or seal.epoch >= self.open_epoch:
            return set()
        closed = self._closes[seal.epoch]
        recounted = [recount for recount in seal.recounted if self._may_recount(recount.feed, recount.epoch)]
        known_skips = all(feed in closed.moves for feed in seal.skipped)
        known_recounts = len(recounted) == len(seal.recounted)
        if not (known_skips and known_recounts and all(rate.epoch > self.open_epoch for rate in seal.rates)):
            return set()
        self.sealed += 1
        closed.factor = seal.factor
        closed.skipped.update(seal.skipped)
        closed.exceptions.update(dict.fromkeys(seal.skipped, 0))
        for feed, epoch in recounted:
            self._closes[epoch].skipped.discard(feed)
            self._closes[epoch].exceptions[feed] = seal.factor
            self.counted += self.counts(feed, epoch)
        self.counted += sum(self.counts(feed, seal.epoch) for feed in closed.moves)
        self._rates = [known for known in self._rates if not seal.rates or known.epoch < seal.rates[0].epoch]
        self._rates += seal.rates
        return {*closed.moves, *(recount.feed for recount in recounted)}

    def _may_recount(self, feed: int, epoch: int) -> bool:
        return epoch < self.sealed and feed in self._closes[epoch].skipped and feed not in self._ended

    def _amend(self, feed: int, at: int) -> set[int]:
        if at >= min(self.named(feed), self.ended(feed)):
            return set()
        before = sum(self.counts(feed, epoch) for epoch in self._named[feed])
        self._ended[feed] = at
        self.counted -= before - sum(self.counts(feed, epoch) for epoch in self._named[feed])
        return {feed}

    def _void(self, void: Void) -> set[int]:
        known = all(member < len(self.members) for member in void.members)
        if not (known and void.first <= void.last < self.sealed):
            return set()
        changed: set[int] = set()
        for epoch in range(void.first, void.last + 1):
            closed = self._closes[epoch]
            for feed in closed.moves:
                counts = self.counts(feed, epoch)
                if (void.members and feed // INCARNATIONS not in void.members) or feed in closed.skipped:
                    continue
                closed.exceptions[feed] = 0
                self.counted -= counts
                changed.add(feed)
        return changed

    def _revoke(self, members: Iterable[int], epoch: int) -> set[int]:
        changed: set[int] = set()
        for number in members:
            if number < len(self.members) and epoch < self.members[number].revoked:
                self.members[number].revoked = epoch
                changed.update(range(number * INCARNATIONS, (number + 1) * INCARNATIONS))
        return changed

    def _admit(self, admit: Admit) -> None:
        known = self._member_of.get(admit.origin)
        if known is not None:  # a second admission raises the quota; it never undoes a revocation
            self.members[known].quota = max(self.members[known].quota, admit.quota)
            return
        if len(self.members) >= MAX_MEMBERS or not self._has_use(admit.invitation):
            return
        self._member_of[admit.origin] = len(self.members)
        self.members.append(Member(admit.origin, admit.quota, admit.invitation))

    def _has_use(self, invitation: int) -> bool:
        """Whether somebody may still come by this invitation, and take the use."""
        if invitation == 0:
            return True
        if invitation > len(self.invitations):
            return False
        known = self.invitations[invitation - 1]
        if known.revoked or known.uses == 0:
            return False
        known.uses -= 1
        return True

    # -- feeds -------------------------------------------------------------------------------------

    def _exists(self, feed: int) -> bool:
        return feed // INCARNATIONS < len(self.members)


def _append(runs: list[Run], run: Run) -> None:
    """Append a run unless it is empty; one that continues the last with its factor extends it."""
    if run.stop <= (runs[-1].stop if runs else 0):
        return
    if runs and runs[-1].factor == run.factor:
        runs.pop()
    runs.append(run)


def multiplier(rate: int, factor: int) -> int:
    """Return what an update's scalar is multiplied with, in units of 2^-32 (SPEC O8)."""
    return rate * factor >> 12


def named_digest(run_id: bytes, named: Iterable[tuple[int, int, bytes]]) -> bytes:
    """Return the named digest (SPEC O10) of (feed, stop, chain hash there), in the order of feeds.

    Feeds of which nothing is named are left out.
    """
    entries = (
        feed.to_bytes(4, "big") + stop.to_bytes(8, "big") + chain for feed, stop, chain in named if stop
    )
    return hashlib.blake2b(run_id + b"".join(entries), digest_size=32, person=b"sfnode-named").digest()
