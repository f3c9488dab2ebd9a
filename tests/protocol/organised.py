"""Organised runs for tests: decisions in short, and a reference for what counts that is slow and plain."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import groupby

from sfprotocol.counting import NEVER, Counting
from sfprotocol.decisions import (
    FACTOR_ONE,
    TAG_BYTES,
    Admit,
    Amend,
    Bases,
    Budget,
    Close,
    Decision,
    Finish,
    Invite,
    Move,
    RateFrom,
    Recorded,
    Recount,
    Revoke,
    RevokeInvitation,
    Seal,
    Void,
)

SALT, DIGEST = b"s" * 8, b"d" * 32

Step = tuple[int, int]
"""One update: (number of its feed, step)."""


def origin(member: int) -> bytes:
    return member.to_bytes(32, "big")


def admit(member: int, quota: int = 100, invitation: int = 0) -> Admit:
    return Admit(origin(member), quota, invitation)


def tag(epoch: int, feed: int) -> bytes:
    return (epoch * 1000 + feed).to_bytes(TAG_BYTES, "big")


def close(epoch: int, moves: dict[int, int] | None = None) -> Close:
    """Return the close that names so many more steps of these feeds."""
    return Close(epoch, SALT, tuple(Move(f, n, tag(epoch, f)) for f, n in sorted((moves or {}).items())))


def seal(
    epoch: int,
    *,
    skip: tuple[int, ...] = (),
    recount: tuple[tuple[int, int], ...] = (),
    factor: int = FACTOR_ONE,
    rates: tuple[tuple[int, int], ...] = (),
) -> Seal:
    return Seal(
        epoch,
        skip,
        tuple(Recount(*one) for one in recount),
        DIGEST,
        factor,
        tuple(RateFrom(*one) for one in rates),
    )


@dataclass
class Reference:
    """What counts, written from SPEC O5-O8 with one entry for every single update."""

    budget: int
    first_rate: int
    members: list[bytes] = field(default_factory=list)
    quotas: dict[bytes, int] = field(default_factory=dict)
    came_by: dict[bytes, int] = field(default_factory=dict)
    revoked: dict[bytes, int] = field(default_factory=dict)
    uses: list[int] = field(default_factory=list)
    revoked_invitations: dict[int, int] = field(default_factory=dict)
    closes: list[dict[int, set[Step]]] = field(default_factory=list)
    """For each epoch the updates that its close has named, by feed."""
    seals: list[Seal] = field(default_factory=list)
    factors: dict[Step, int] = field(default_factory=dict)
    """Of the updates that a seal has counted."""
    skipped: set[Step] = field(default_factory=set)
    void: set[Step] = field(default_factory=set)
    ended: set[int] = field(default_factory=set)
    finished: bool = False
    bases: dict[int, bytes] = field(default_factory=dict)
    """Published bases by subspaces of two epochs."""

    def named(self, feed: int) -> set[Step]:
        return set().union(*(moved.get(feed, set()) for moved in self.closes))

    @property
    def counted(self) -> int:
        return sum(factor > 0 and step not in self.void for step, factor in self.factors.items())

    @property
    def complete(self) -> bool:
        return self.finished or self.counted >= self.budget

    def rate(self, epoch: int) -> int:
        """Return the rate: each seal replaces all rates from its first one on."""
        schedule = {0: self.first_rate}
        for one in self.seals:
            if one.rates:
                schedule = {e: rate for e, rate in schedule.items() if e < one.rates[0].epoch}
                schedule |= {rate.epoch: rate.rate for rate in one.rates}
        return schedule[max(e for e in schedule if e <= epoch)]

    def revoked_from(self, member: bytes) -> int:
        by_invitation = self.revoked_invitations.get(self.came_by[member] - 1, NEVER)
        return min(self.revoked.get(member, NEVER), by_invitation)

    def factor(self, step: Step) -> int:
        if step in self.void or step in self.skipped:
            return 0
        if step not in self.named(step[0]) and step[0] in self.ended:
            return 0
        return self.factors.get(step, FACTOR_ONE)

    def runs(self, feed: int, held: int) -> tuple[tuple[int, int], ...]:
        factors = [(step, self.factor((feed, step))) for step in range(held)]
        return tuple(
            (max(step for step, _ in group) + 1, factor)
            for factor, group in ((f, list(g)) for f, g in groupby(factors, key=lambda one: one[1]))
        )

    def apply(self, decision: Decision) -> None:
        match decision:
            case Close():
                self._close(decision)
            case Seal():
                self._seal(decision)
            case Amend() | Void():
                self._take_back(decision)
            case Admit() | Invite() | Revoke() | RevokeInvitation():
                self._say_who(decision)
            case Budget(updates=updates):
                self.budget = updates
            case Finish():
                self.finished = True
            case Bases(subspace=subspace, digest=digest):
                if self.bases and subspace * 2 >= len(self.closes) + 1:
                    self.bases[subspace] = digest

    def _take_back(self, decision: Amend | Void) -> None:
        match decision:
            case Amend(feed=feed, epoch=epoch):
                lost = set().union(*(moved.get(feed, set()) for moved in self.closes[epoch:]))
                if lost:
                    self.ended.add(feed)
                    self.closes = [
                        {f: steps - lost for f, steps in moved.items() if steps - lost}
                        for moved in self.closes
                    ]
                    self.factors = {s: factor for s, factor in self.factors.items() if s not in lost}
                    self.skipped -= lost
                    self.void -= lost
            case Void(first=first, last=last, members=members):
                if all(m < len(self.members) for m in members) and first <= last < len(self.seals):
                    for moved in self.closes[first : last + 1]:
                        for feed, steps in moved.items():
                            if not members or feed // 64 in members:
                                self.void |= steps
                                self.skipped -= steps

    def _say_who(self, decision: Admit | Invite | Revoke | RevokeInvitation) -> None:
        match decision:
            case Admit(origin=member, quota=quota, invitation=invitation):
                if member in self.members:
                    self.quotas[member] = max(quota, self.quotas[member])
                elif invitation == 0 or self._has_use(invitation - 1):
                    self.members.append(member)
                    self.quotas[member], self.came_by[member] = quota, invitation
                    if invitation:
                        self.uses[invitation - 1] -= 1
            case Invite(uses=uses):
                self.uses.append(uses)
            case Revoke(member=number, epoch=epoch) if number < len(self.members):
                member = self.members[number]
                self.revoked[member] = min(epoch, self.revoked.get(member, NEVER))
            case RevokeInvitation(invitation=number, epoch=epoch) if number < len(self.uses):
                self.revoked_invitations[number] = min(epoch, self.revoked_invitations.get(number, NEVER))

    def _has_use(self, invitation: int) -> bool:
        if invitation >= len(self.uses) or invitation in self.revoked_invitations:
            return False
        return self.uses[invitation] > 0

    def _close(self, one: Close) -> None:
        if self.finished or one.epoch != len(self.closes):
            return
        moved: dict[int, set[Step]] = {}
        for feed, steps, _ in one.moves:
            first = len(self.named(feed))
            fits = steps > 0 and first + steps < 1 << 32
            if feed // 64 >= len(self.members) or feed in self.ended or not fits:
                return
            moved[feed] = {(feed, step) for step in range(first, first + steps)}
        self.closes.append(moved)

    def _seal(self, one: Seal) -> None:
        if one.epoch != len(self.seals) or one.epoch >= len(self.closes):
            return
        named = self.closes[one.epoch]
        again: set[Step] = set()
        for feed, epoch in one.recounted:
            steps = self.closes[epoch].get(feed, set()) if epoch < one.epoch else set()
            if not steps or not steps <= self.skipped:
                return
            again |= steps
        if not set(one.skipped) <= set(named) or any(rate.epoch <= len(self.closes) for rate in one.rates):
            return
        skipped = set().union(*(named[feed] for feed in one.skipped))
        self.seals.append(one)
        self.skipped = (self.skipped | skipped) - again
        for step in set().union(again, *named.values()) - skipped:
            self.factors[step] = one.factor


def fold(*decisions: Decision, budget: int = 1000, rate: int = 1 << 32, bases: bytes = b"") -> Counting:
    counting = Counting(budget=budget, rate=rate, bases=bases, subspace_epochs=2)
    for decision in decisions:
        counting.apply(Recorded(decision))
    return counting
