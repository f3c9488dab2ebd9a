"""The state of an organised run: the updates that count, as a function of the run's decisions alone (SPEC
O5-O8).

The state is a fold over the decisions, in the order of the control feed, with no other input. A decision
whose conditions do not hold at its position changes nothing, for everybody. This module stores no updates. It
stores which steps of each feed are listed by Closes, and the factor of each step (`verdicts`). It knows no
links, no keys and no time.

Memory grows with the decisions: by 23 bytes for each feed in each Close, 550 bytes for each feed and 400
bytes for each member. The time for a decision grows with its length, the number of its changes and the number
of strangers with credit (`quotas`). A Void also scans (in C code) one byte for each of its epochs, or for
each Close that lists a feed of its members.
"""

from __future__ import annotations

import hashlib
from array import array
from bisect import bisect_left, bisect_right, insort
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter
from typing import NamedTuple

from sfprotocol import decisions, quotas
from sfprotocol.messages import Feed, RunParameters
from sfprotocol.verdicts import COUNTED, SKIPPED, NamedSteps

MAX_EPOCHS = (1 << 32) - 1
"""Maximum number of epochs of a run. Labels have 32 bits, and one of the 32-bit numbers is not used as an
epoch."""

PACE, PACE_TIME = 1536.0, 2.0
"""Maximum number of updates that all members together make in a second: PACE, or the usual number of updates
of an epoch divided by PACE_TIME, whichever is larger. An update reaches other members after some 0.2 s. All
updates made in that time are measured at the same weights. The training of a linear head, where an update
takes microseconds, diverges with 1,000 such updates. With 300 of them and the same learning rate, it does not
(docs/research-log.md)."""

MAX_MEMBERS = 1 << 24
"""Maximum number of members, and of invitations. With at most 2^24 members, feed numbers stay below 2^30."""

NEVER = 1 << 32
"""Number that stands for "no epoch" or "no step"; larger than every real one."""

_EPOCH, _SUBSPACE = attrgetter("epoch"), attrgetter("subspace")
_NOTHING = NamedSteps()


class Span(NamedTuple):
    """Consecutive steps of a feed with the same factor. A span begins at the end of the span before it, and
    ends before step `stop`."""

    stop: int
    factor: int
    """Factor in units of 2^-12; FACTOR_ONE for steps that no Seal has judged yet."""


class NamedStop(NamedTuple):
    """The step at which the listed steps of one feed in one Close end, with the tag of the feed's history up
    to there (SPEC O7)."""

    stop: int
    salt: bytes
    tag: bytes
    """Tag of the chain hash after `stop` steps."""


@dataclass(slots=True)
class PublishedInvitation:
    """The key of an invitation, and the number of newcomers whom it may still admit."""

    key: bytes
    uses: int
    revoked: int = NEVER
    """The first epoch label for which all members admitted by this invitation are revoked; NEVER if the
    invitation is not revoked."""


@dataclass(slots=True)
class Member:
    """An origin that the organiser has admitted."""

    origin: bytes
    invitation: PublishedInvitation | None
    revoked_itself: int = NEVER

    @property
    def revoked(self) -> int:
        """The first epoch label with which the member's updates do not count, unless a Close has already
        listed them; NEVER if the member is not revoked."""
        return min(self.revoked_itself, self.invitation.revoked if self.invitation else NEVER)


class _Closed(NamedTuple):
    salt: bytes
    steps: int
    """Number of listed steps."""
    updates: int
    """Number of listed updates that change the weights."""
    feeds: array[int]
    """Numbers of the feeds with listed steps, ascending."""


class RunState:
    """The state of an organised run after a sequence of decisions."""

    def __init__(
        self,
        *,
        budget: int,
        rate: int,
        norm_limit: int = 0,
        bases: bytes = b"",
        subspace_epochs: int = 1,
        epoch_updates: int = quotas.LEAST_USUAL,
        last_subspace: int = MAX_EPOCHS,
    ) -> None:
        """All arguments are parts of the manifest. `rate` is in units of 2^-32; `bases` is the digest of
        published bases, empty if bases are random."""
        self.decisions = 0
        self.unsupported = False
        """Whether one of the decisions is unknown to this version, so that the state of the run is unknown
        here."""
        self.sealed = 0
        """Number of Seals; also the first epoch without a Seal."""
        self.counted = 0
        """Number of updates that count by the Seals so far. Updates that do not change the weights are not
        included."""
        self.budget = budget
        self.finished = False
        self.members: list[Member] = []
        self.invitations: list[PublishedInvitation] = []
        self.checkpoints: list[decisions.Checkpoint] = []
        """The checkpoints that are usable now, in the order of epochs (SPEC O14)."""
        self.replaced: list[decisions.Bases] = []
        """Published bases that were replaced before their subspace began, in the order of replacement."""
        self._bases = [decisions.Bases(0, bases)] if bases else []
        """Published bases in the order of subspaces, from subspace 0 on; not every subspace has bases of its
        own."""
        self._subspace_epochs = subspace_epochs
        self._last_subspace = last_subspace
        self._member_of: dict[bytes, int] = {}
        self._closes: list[_Closed] = []
        self._voidable = bytearray()
        """One byte for each epoch: 0 if all listed steps of its Close are void, else 1."""
        self._feeds: dict[int, NamedSteps] = {}
        """The listed steps of each feed that has some, keyed by feed number."""
        self._numbers: dict[int, list[int]] = {}
        """The numbers of each member's feeds with listed steps, ascending, keyed by member number."""
        self._rates = [decisions.RateFrom(0, rate, decisions.UNIT_ONE, norm_limit)]
        self._epoch_updates = epoch_updates
        self.quotas = quotas.Quotas(self.room)
        self._credits: dict[int, tuple[int, int]] = {}
        """Cached pairs (credit, number of Seals up to which it is valid), keyed by member number."""
        self._judged: set[int] = set()
        """Members whose credit may have changed since the open epoch was opened."""

    @classmethod
    def of(cls, run: RunParameters) -> RunState:
        """Return the state of an organised run before its first decision."""
        return cls(
            budget=run.update_budget,
            rate=run.rate,
            norm_limit=run.norm_limit,
            bases=run.bases,
            subspace_epochs=run.subspace_epochs,
            epoch_updates=run.epoch_updates,
            last_subspace=run.last_subspace,
        )

    # -- what others ask ---------------------------------------------------------------------------

    @property
    def open_epoch(self) -> int:
        """The open epoch, which is the label of new updates."""
        return len(self._closes)

    @property
    def promised(self) -> int:
        """Number of updates that count, plus the number of updates in Closes without a Seal: most of these
        will count."""
        return self.counted + sum(closed.updates for closed in self._closes[self.sealed :])

    @property
    def complete(self) -> bool:
        """Whether the run is over: nobody makes updates any more."""
        return self.finished or self.counted >= self.budget

    @property
    def begun(self) -> bool:
        """Whether any update counts. Until then no stranger can have credit."""
        return self.counted > 0

    def usual_updates(self, most: int) -> int:
        """Return the usual number of updates of an epoch: the largest number of steps that one of the last
        USUAL_OF Closes lists, but at least LEAST_USUAL and at most `most`. Before the first Close, the result
        is `most`.

        Steps with the scalar 0 are included, because they use up quotas, too. Without them, the epochs of a
        run with many such steps would never grow, and members would wait for every Close. The manifest's
        `epoch_updates` cannot be used in place of this number: while an organiser searches for a rate, epochs
        are far shorter.
        """
        closes = range(max(0, self.open_epoch - quotas.USUAL_OF), self.open_epoch)
        largest = max((self._closes[epoch].steps for epoch in closes), default=most)
        return min(most, max(largest, quotas.LEAST_USUAL))

    @property
    def room(self) -> int:
        """Maximum number of updates of all members together with the label of the open epoch (SPEC O20)."""
        return quotas.EPOCHS_AHEAD * self.usual_updates(self._epoch_updates)

    def room_left(self, own: int, made: Mapping[int, int]) -> int:
        """Return how many more updates the member with number `own` may make in the open epoch. `made` is the
        number of updates in this epoch, keyed by member number."""
        quota = self.quotas.quota(own, self.open_epoch)
        room = min(self.room, quotas.EPOCHS_AHEAD * max(0, self.budget - self.promised))
        return quotas.room_left(room, own, quota, made, self.credit, begun=self.begun)

    @property
    def pace(self) -> float:
        """Maximum number of updates that one member makes in a second. The maximum for all members together
        (see PACE) is divided equally among those that were active in recent epochs."""
        active = max(
            (len(closed.feeds) for closed in self._closes[-quotas.USUAL_OF :]), default=len(self.members)
        )
        return max(PACE, self.usual_updates(self._epoch_updates) / PACE_TIME) / max(1, active)

    def goes_on_with(self, feed: int) -> bool:
        """Return whether the feed's member uses this feed for updates of the open epoch."""
        member, incarnation = divmod(feed, decisions.INCARNATIONS)
        return self.quotas.incarnation(member, self.open_epoch) == incarnation

    def credit(self, member: int) -> int:
        """Return a member's credit: how many of its updates are applied before a Seal has judged them (SPEC
        O20).

        The last RECENT_SEALS Seals are considered. The credit is 0 if the latest of them that judged the
        member has skipped a feed of the member, or counted no update of the member that changes the weights.
        Otherwise, the credit is UNLIMITED for a member whom somebody vouches for. For a stranger, it is
        CREDIT_GROWTH times the largest number of the stranger's updates that one of these Seals has counted;
        0 if none has counted any. Updates with the scalar 0 are included up to a limit (WITH_ZEROS).
        """
        credit, until = self._credits.get(member, (0, -1))
        if self.sealed > until:
            credit, until = self._credit(member)
            self._credits[member] = credit, until
        return credit

    def _credit(self, member: int) -> tuple[int, int]:
        counts: dict[int, tuple[int, int]] = {}
        skipped = set[int]()
        first = max(0, self.sealed - quotas.RECENT_SEALS)
        for number in self._named_of(member):
            for epoch, counted in self._feeds[number].judged(first, self.sealed):
                steps, moving = counts.get(epoch, (0, 0))
                if counted is None:
                    skipped.add(epoch)
                    counted = 0, 0
                counts[epoch] = steps + counted[0], moving + counted[1]
        stranger = self.quotas.is_stranger(member)
        if not counts:
            return 0 if stranger else quotas.UNLIMITED, MAX_EPOCHS
        last, until = max(counts), min(counts) + quotas.RECENT_SEALS
        if last in skipped or not counts[last][1]:
            return 0, until
        if not stranger:
            return quotas.UNLIMITED, until
        whole = (counts[epoch] for epoch in counts if epoch not in skipped)
        return quotas.CREDIT_GROWTH * max(
            min(steps, quotas.WITH_ZEROS * moving) for steps, moving in whole
        ), until

    @property
    def bases(self) -> tuple[decisions.Bases, ...]:
        """Published bases in the order of subspaces, from subspace 0 on; empty if bases are random. A
        subspace without bases of its own uses the latest earlier bases (SPEC O9)."""
        return tuple(self._bases)

    def bases_upto(self, subspace: int) -> tuple[decisions.Bases, ...]:
        """Return the published bases of this and earlier subspaces, in order. The last item of the result is
        used by this subspace."""
        return tuple(self._bases[: bisect_right(self._bases, subspace, key=_SUBSPACE)])

    def own_bases(self, subspace: int) -> bytes | None:
        """Return the digest of the bases published for this very subspace; None if it has none of its own."""
        place = self._place_of_bases(subspace)
        known = place < len(self._bases) and self._bases[place].subspace == subspace
        return self._bases[place].digest if known else None

    def _place_of_bases(self, subspace: int) -> int:
        return bisect_left(self._bases, subspace, key=_SUBSPACE)

    def may_begin(self, subspace: int) -> bool:
        """Return whether bases may be published for a subspace. The run must use published bases, and the
        subspace must be one of the run's and begin after the open epoch."""
        first = subspace * self._subspace_epochs
        return bool(self._bases) and subspace <= self._last_subspace and self.open_epoch < first < MAX_EPOCHS

    def next_subspace(self) -> int:
        """Return the first subspace for which bases may be published, if the run lasts until then."""
        return self.open_epoch // self._subspace_epochs + 1

    def served_from(self) -> int | None:
        """Return the first epoch in which the latest published bases are used; None if the run has no
        published bases."""
        return self._bases[-1].subspace * self._subspace_epochs if self._bases else None

    def has_new_bases(self, epoch: int) -> bool:
        """Return whether this epoch is the first one in which newly published bases are used."""
        subspace, later = divmod(epoch, self._subspace_epochs)
        return not later and self.own_bases(subspace) is not None

    def rate_from(self, epoch: int) -> decisions.RateFrom:
        """Return the rate of updates with this label, with the unit and the limit of a first-order run."""
        return self._rates[bisect_right(self._rates, epoch, key=_EPOCH) - 1]

    def rate(self, epoch: int) -> int:
        """Return the rate of updates with this label, in units of 2^-32."""
        return self.rate_from(epoch).rate

    def rates(self) -> tuple[decisions.RateFrom, ...]:
        """Return all rates, in the order of epochs."""
        return tuple(self._rates)

    def member(self, origin: bytes) -> Member | None:
        """Return the member with this key; None if it has not been admitted."""
        number = self._member_of.get(origin)
        return None if number is None else self.members[number]

    def member_number(self, origin: bytes) -> int | None:
        """Return the number of the member with this key; None if it has not been admitted."""
        return self._member_of.get(origin)

    def number(self, feed: Feed) -> int | None:
        """Return the number of a feed; None if no update of it may be held."""
        member = self._member_of.get(feed.origin)
        if member is None or feed.incarnation >= decisions.INCARNATIONS:
            return None
        return member * decisions.INCARNATIONS + feed.incarnation

    def feed(self, number: int) -> Feed:
        """Return the feed with this number."""
        return Feed(self.members[number // decisions.INCARNATIONS].origin, number % decisions.INCARNATIONS)

    def named(self, feed: int, epoch: int = MAX_EPOCHS) -> int:
        """Return the first step of a feed that is not listed by the Close of `epoch` or an earlier Close. A
        fork does not cut the feed before this step."""
        return self._steps(feed).stop_at(epoch)

    def ended(self, feed: int) -> int:
        """Return the step at which a feed was ended; NEVER if it was not."""
        known = self._steps(feed)
        return known.stop if known.ended else NEVER

    def named_stops(self, feed: int, above: int = 0, upto: int = NEVER) -> Iterator[NamedStop]:
        """Yield, in order, the ends of a feed's listed steps, one for each Close. Only ends after step
        `above` and up to step `upto` are included."""
        known = self._steps(feed)
        for place in range(bisect_right(known.stops, above), bisect_right(known.stops, upto)):
            yield self._named_stop(known, place)

    def named_stop(self, feed: int, held: int) -> NamedStop | None:
        """Return the last of the ends that `named_stops` yields within the first `held` steps of a feed; None
        if there is none."""
        known = self._steps(feed)
        place = bisect_right(known.stops, held) - 1
        return self._named_stop(known, place) if place >= 0 else None

    def _named_stop(self, feed: NamedSteps, place: int) -> NamedStop:
        return NamedStop(feed.stops[place], self._closes[feed.epochs[place]].salt, feed.tag(place))

    def spans(self, feed: int, held: int, recounted: Collection[int] = ()) -> tuple[Span, ...]:
        """Return the first `held` steps of a feed as spans of equal factor. Steps listed by the Closes of the
        epochs `recounted` have factor 1, as if a later Seal had counted them."""
        known = self._steps(feed)
        spans: list[Span] = []
        factors = known.factors[:]
        for epoch in recounted:
            if (place := known.place(epoch)) is not None:
                factors[place] = decisions.FACTOR_ONE
        first = place = 0
        for factor, places in groupby((*factors, 0 if known.ended else decisions.FACTOR_ONE)):
            place += len(list(places))
            stop = min(held, known.stops[place - 1] if place <= len(known.stops) else held)
            if stop > first:
                spans.append(Span(stop, factor))
            if stop == held:
                break
            first = stop
        return tuple(spans)

    def live(self, feed: int, held: int) -> tuple[Span, ...]:
        """Return the spans of the first `held` steps of a feed for a node that makes updates (SPEC O8).

        The result is like that of `spans`, but steps without a verdict count only within the member's credit,
        and only in the feed that the member uses now.
        """
        credit = self.credit(feed // decisions.INCARNATIONS) if self.goes_on_with(feed) else 0
        stop = self.named(feed, self.sealed - 1) + credit
        if held <= stop:
            return self.spans(feed, held)
        spans = self.spans(feed, stop)
        return (*(spans if not spans or spans[-1].factor else spans[:-1]), Span(held, 0))

    def positions(self, epoch: int = MAX_EPOCHS) -> dict[int, int]:
        """Return the first step that is not listed by the Close of `epoch` or an earlier Close, keyed by feed
        number in ascending order. Feeds without listed steps are left out."""
        found = {number: self.named(number, epoch) for number in sorted(self._feeds)}
        return {number: stop for number, stop in found.items() if stop}

    def moved(self, epoch: int) -> tuple[int, ...]:
        """Return the numbers of the feeds that the Seal of `epoch` may skip, ascending: those with steps that
        the Close of `epoch` lists and that no Amend has removed."""
        return tuple(feed for feed in self._closes[epoch].feeds if self._steps(feed).place(epoch) is not None)

    def counts(self, feed: int, epoch: int) -> int:
        """Return how many of a feed's steps in the Close of `epoch` count."""
        return self._steps(feed).counts(epoch)

    def factor(self, feed: int, epoch: int) -> int:
        """Return the factor of a feed's steps that the Close of `epoch` lists, in units of 2^-12; 0 if they
        do not count or no Seal has judged them."""
        return self._steps(feed).factor(epoch)

    def counts_of(self, member: int) -> int:
        """Return how many updates of a member the Seals so far have counted."""
        return sum(
            self.counts(number, epoch)
            for number in self._named_of(member)
            for epoch in self._feeds[number].epochs
        )

    def epochs_of(self, member: int) -> int:
        """Return the number of epochs whose Closes list updates of a member."""
        return len({epoch for number in self._named_of(member) for epoch in self._feeds[number].epochs})

    def closed_updates(self, epoch: int) -> int:
        """Return how many of the updates listed by the Close of `epoch` change the weights."""
        return self._closes[epoch].updates

    def is_skipped(self, named: decisions.Recount) -> bool:
        """Return whether a Seal may recount these steps: the Seal of their own epoch has skipped them, and no
        later decision has changed their verdict."""
        return self._steps(named.feed).verdict(named.epoch) == SKIPPED

    def skipped(self, member: int) -> list[decisions.Recount]:
        """Return the skipped steps of a member, in order."""
        return [
            decisions.Recount(number, epoch)
            for number in self._named_of(member)
            for epoch, verdict in zip(self._feeds[number].epochs, self._feeds[number].verdicts, strict=True)
            if verdict == SKIPPED
        ]

    # -- decisions ---------------------------------------------------------------------------------

    def apply(self, recorded: decisions.Recorded) -> set[int]:
        """Apply the next decision; return the numbers of the feeds whose listed steps or factors have
        changed.

        Every decision may also change which updates may be held (SPEC O6), even of feeds that are not
        returned.
        """
        self.decisions += 1
        self.unsupported = self.unsupported or recorded.unsupported
        if self.unsupported:
            return set()
        changed = self._decide(recorded.decision)
        members = {number // decisions.INCARNATIONS for number in changed}
        self._judged |= members
        for member in members:
            self._credits.pop(member, None)
            if self.quotas.has_renewed(member):  # which updates of one feed are live depends on the others
                changed.update(self._named_of(member))
        return changed

    def _decide(self, decision: decisions.Decision) -> set[int]:
        match decision:
            case decisions.Close():
                return self._close(decision)
            case decisions.Seal():
                return self._seal(decision)
            case decisions.Amend():
                return self._amend(decision)
            case decisions.Void():
                return self._void(decision)
            case decisions.Revoke() | decisions.RevokeInvitation():
                self._revoke(decision)
            case decisions.Admit():
                return self._admit(decision)
            case decisions.Invite(key=key, uses=uses) if len(self.invitations) < MAX_MEMBERS:
                self.invitations.append(PublishedInvitation(key, uses))
            case decisions.Budget(updates=updates):
                self.budget = updates
            case decisions.Finish():
                self.finished = True
            case decisions.Bases() | decisions.Checkpoint():
                self._state(decision)
        return set()

    def _state(self, decision: decisions.Bases | decisions.Checkpoint) -> None:
        """Store a Bases or a Checkpoint in place of an earlier one about the same subspace or epoch."""
        match decision:
            case decisions.Bases(subspace=subspace) if self.may_begin(subspace):
                place, before = self._place_of_bases(subspace), self.own_bases(subspace)
                if before not in (None, decision.digest):
                    self.replaced.append(self._bases[place])
                self._bases[place : place + (before is not None)] = [decision]
            case decisions.Checkpoint(epoch=epoch) if epoch < self.sealed:
                place = bisect_left(self.checkpoints, epoch, key=_EPOCH)
                known = place < len(self.checkpoints) and self.checkpoints[place].epoch == epoch
                self.checkpoints[place : place + known] = [decision]

    def _close(self, close: decisions.Close) -> set[int]:
        if self.finished or not close.epoch == self.open_epoch < MAX_EPOCHS:
            return set()
        numbers = array("I", (move.feed for move in close.moves))
        feeds = [self._feeds.get(number) or NamedSteps() for number in numbers]
        stops = [feed.stop + move.steps for feed, move in zip(feeds, close.moves, strict=True)]
        exist = not numbers or numbers[-1] < len(self.members) * decisions.INCARNATIONS
        move_on = all(move.steps > 0 for move in close.moves) and not any(feed.ended for feed in feeds)
        if not (exist and move_on and all(stop < NEVER for stop in stops)):
            return set()
        for feed, stop, move in zip(feeds, stops, close.moves, strict=True):
            feed.append(close.epoch, stop, move.tag, move.zeros)
        for number in numbers:
            if number not in self._feeds:  # its member now uses it in place of a lost feed
                member, incarnation = divmod(number, decisions.INCARNATIONS)
                self.quotas.renew(member, incarnation)
                insort(self._numbers.setdefault(member, []), number)
        self._feeds.update(zip(numbers, feeds, strict=True))
        steps, updates = sum(move.steps for move in close.moves), sum(move.moving for move in close.moves)
        self._closes.append(_Closed(close.salt, steps, updates, numbers))
        self._voidable.append(1)
        self.quotas.open(self.room, self.credit, self._judged, begun=self.begun)
        self._judged = set()
        return set(numbers)

    def _seal(self, seal: decisions.Seal) -> set[int]:
        if not self.sealed == seal.epoch < self.open_epoch:
            return set()
        feeds = self._closes[seal.epoch].feeds
        skips = (self._steps(feed).place(seal.epoch) is not None for feed in seal.skipped)
        recounts = (self.is_skipped(recount) for recount in seal.recounted)
        first_order = self._rates[0].limit > 0
        rates = (rate.epoch > self.open_epoch and (rate.limit > 0) is first_order for rate in seal.rates)
        if not (all(skips) and all(recounts) and all(rates)):
            return set()
        self.sealed += 1
        skipped = set(seal.skipped)
        for feed in feeds:
            verdict, factor = (SKIPPED, 0) if feed in skipped else (COUNTED, seal.factor)
            self._judge(feed, seal.epoch, verdict, factor)
        for feed, epoch in seal.recounted:
            self._judge(feed, epoch, COUNTED, seal.factor)
            self._forget_checkpoints(epoch)
        if seal.rates:
            del self._rates[bisect_left(self._rates, seal.rates[0].epoch, key=_EPOCH) :]
            self._rates += seal.rates
        return {*feeds, *(recount.feed for recount in seal.recounted), *self._expiring(seal.epoch)}

    def _expiring(self, sealed: int) -> Iterator[int]:
        """Return the numbers of the feeds of strangers whose credit may end with the Seal of epoch `sealed`,
        because the Seal that it was computed from is now too old."""
        oldest = sealed - quotas.RECENT_SEALS
        feeds = self._closes[oldest].feeds if oldest >= 0 else ()
        return (feed for feed in feeds if self.quotas.is_stranger(feed // decisions.INCARNATIONS))

    def _amend(self, amend: decisions.Amend) -> set[int]:
        known = self._steps(amend.feed)
        place = bisect_left(known.epochs, amend.epoch)
        if place == len(known.epochs):
            return set()
        self._forget_checkpoints(known.epochs[place])
        self.counted += known.void(place, len(known.epochs)) or 0
        known.end(place)
        return {amend.feed}

    def _void(self, void: decisions.Void) -> set[int]:
        known = all(member < len(self.members) for member in void.members)
        if not (known and void.first <= void.last < self.sealed):
            return set()
        changed: set[int] = set()
        for number in self._feeds_of(void):
            feed = self._feeds[number]
            places = bisect_left(feed.epochs, void.first), bisect_right(feed.epochs, void.last)
            first = feed.verdicts.find(COUNTED, *places)
            if first >= 0:
                self._forget_checkpoints(feed.epochs[first])
            counted = feed.void(*places)
            if counted is not None:
                self.counted += counted
                changed.add(number)
        return changed

    def _forget_checkpoints(self, epoch: int) -> None:
        """Drop the checkpoints of this and later epochs, as other updates of the epoch count now."""
        del self.checkpoints[bisect_left(self.checkpoints, epoch, key=_EPOCH) :]

    def _feeds_of(self, void: decisions.Void) -> Iterable[int]:
        """Return the numbers of the feeds that a Void may change."""
        if void.members:
            return (number for member in void.members for number in self._named_of(member))
        feeds: set[int] = set()
        epoch = void.first
        while (epoch := self._voidable.find(1, epoch, void.last + 1)) >= 0:
            feeds.update(self._closes[epoch].feeds)
            self._voidable[epoch] = 0
        return feeds

    def _revoke(self, revoke: decisions.Revoke | decisions.RevokeInvitation) -> None:
        match revoke:
            case decisions.Revoke(member=number, epoch=epoch) if number < len(self.members):
                member = self.members[number]
                member.revoked_itself = min(member.revoked_itself, epoch)
                if epoch <= self.open_epoch:
                    self.quotas.forget(number)
            case decisions.RevokeInvitation(invitation=number, epoch=epoch) if number < len(self.invitations):
                invitation = self.invitations[number]
                invitation.revoked = min(invitation.revoked, epoch)

    def _admit(self, admit: decisions.Admit) -> set[int]:
        known = self._member_of.get(admit.origin)
        if known is None:
            self._add_member(admit)
            return set()
        self.quotas.vouch(known, admit.quota)  # never undoes a revocation
        self._credits.pop(known, None)
        return set(self._named_of(known))

    def _add_member(self, admit: decisions.Admit) -> None:
        invitation = None
        if admit.invitation:
            if admit.invitation > len(self.invitations):
                return
            invitation = self.invitations[admit.invitation - 1]
            if invitation.revoked < NEVER or not invitation.uses:
                return
        if len(self.members) >= MAX_MEMBERS:
            return
        if invitation:
            invitation.uses -= 1
        self._member_of[admit.origin] = len(self.members)
        self.members.append(Member(admit.origin, invitation))
        self.quotas.admit(admit.quota, begun=self.begun)

    # -- feeds -------------------------------------------------------------------------------------

    def _named_of(self, member: int) -> Sequence[int]:
        """Return the numbers of a member's feeds with listed steps."""
        return self._numbers.get(member, ())

    def _steps(self, feed: int) -> NamedSteps:
        """Return the listed steps of a feed; read-only."""
        return self._feeds.get(feed, _NOTHING)

    def _judge(self, feed: int, epoch: int, verdict: int, factor: int) -> None:
        if (place := self._steps(feed).place(epoch)) is not None:
            self.counted += self._feeds[feed].judge(place, verdict, factor)


def multiplier(rate: int, factor: int, unit: int = decisions.UNIT_ONE) -> int:
    """Return the multiplier of an update's scalars, in units of 2^-32 (SPEC O8, U11)."""
    return rate * unit * factor >> 28


def named_digest(run_id: bytes, heads: Iterable[tuple[int, int, bytes]]) -> bytes:
    """Return the digest of all listed steps (SPEC O10); 32 bytes. `heads` has an item for every feed, in the
    order of feed numbers: (feed number, number of listed steps, chain hash after the listed steps)."""
    records = (
        number.to_bytes(4, "big") + stop.to_bytes(8, "big") + chain for number, stop, chain in heads if stop
    )
    return hashlib.blake2b(run_id + b"".join(records), digest_size=32, person=b"sfnode-named").digest()
