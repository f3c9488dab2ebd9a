"""Decisions of organised runs for tests, and a slow, plain reference for what counts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import groupby

from sfprotocol import decisions, validation
from sfprotocol.frontier import Frontier
from sfprotocol.messages import Feed, RunParameters
from sfprotocol.quotas import LEAST_USUAL
from sfprotocol.run_state import NEVER, RunState, named_digest

SALT, DIGEST = b"s" * 8, b"d" * 32

Step = tuple[int, int]
"""One update: (number of its feed, step)."""


def origin(member: int) -> bytes:
    return member.to_bytes(32, "big")


def admit(member: int, quota: int = 100, invitation: int = 0) -> decisions.Admit:
    return decisions.Admit(origin(member), quota, invitation)


def tag(epoch: int, feed: int) -> bytes:
    return (epoch * 1000 + feed).to_bytes(decisions.TAG_BYTES, "big")


def close(
    epoch: int, moves: dict[int, int] | None = None, zeros: dict[int, int] | None = None
) -> decisions.Close:
    """Return the close that lists `moves[feed]` more steps of each feed, of which `zeros[feed]` have the
    scalar 0."""
    none = zeros or {}
    said = (decisions.Move(f, n, tag(epoch, f), none.get(f, 0)) for f, n in sorted((moves or {}).items()))
    return decisions.Close(epoch, SALT, tuple(said))


def closing(frontier: Frontier, salt: bytes = b"saltsalt") -> decisions.Close:
    """Return the close of the open epoch that lists all stored updates."""
    run_state, moves = frontier.run_state, []
    assert run_state is not None
    for state in frontier:
        number = run_state.number(state.feed)
        if number is not None and state.next > (named := run_state.named(number)):
            moves.append(decisions.Move(number, state.next - named, validation.tag(salt, state.chain)))
    return decisions.Close(run_state.open_epoch, salt, tuple(sorted(moves)))


def digest_named(
    run: RunParameters, run_state: RunState, epoch: int, past: Callable[[Feed, int], bytes]
) -> bytes:
    """Return the digest of listed steps for an epoch's seal. `past` returns the chain head of a feed
    before a step."""
    positions = run_state.positions(epoch).items()
    heads = [(number, stop, past(run_state.feed(number), stop)) for number, stop in positions]
    return named_digest(run.run_id, heads)


def seal(
    epoch: int,
    *,
    skip: tuple[int, ...] = (),
    recount: tuple[tuple[int, int], ...] = (),
    factor: int = decisions.FACTOR_ONE,
    rates: tuple[tuple[int, ...], ...] = (),
) -> decisions.Seal:
    return decisions.Seal(
        epoch,
        skip,
        tuple(decisions.Recount(*one) for one in recount),
        DIGEST,
        factor,
        tuple(decisions.RateFrom(*one) for one in rates),
    )


@dataclass
class Reference:
    """The updates that count and the updates that may be made, by SPEC O5-O8 and O20. It has one entry for
    each update, and one for each member and label."""

    budget: int
    first_rate: int
    epoch_updates: int = LEAST_USUAL
    members: list[bytes] = field(default_factory=list)
    own_quotas: dict[bytes, int] = field(default_factory=dict)
    """The quota of each vouched member; 0 for a stranger."""
    quotas: dict[tuple[bytes, int], int] = field(default_factory=dict)
    """Maximum number of updates with a label, keyed by (member, label)."""
    feeds: dict[tuple[bytes, int], int] = field(default_factory=dict)
    """The incarnation that a member uses with a label, keyed by (member, label)."""
    places: int = 0
    """Number of strangers who may still begin with the open label."""
    turn: int = 0
    """The member with whom the next turn begins."""
    out: set[bytes] = field(default_factory=set)
    """Revoked strangers."""
    zeros: set[Step] = field(default_factory=set)
    """Updates whose scalar is 0."""
    sizes: list[int] = field(default_factory=list)
    """Number of updates that each close lists."""
    first_named: set[int] = field(default_factory=set)
    """Feeds of which some close lists updates."""
    came_by: dict[bytes, int] = field(default_factory=dict)
    revoked: dict[bytes, int] = field(default_factory=dict)
    uses: list[int] = field(default_factory=list)
    revoked_invitations: dict[int, int] = field(default_factory=dict)
    closes: list[dict[int, set[Step]]] = field(default_factory=list)
    """For each epoch, the updates that its close lists, keyed by feed."""
    seals: list[decisions.Seal] = field(default_factory=list)
    factors: dict[Step, int] = field(default_factory=dict)
    """Factors of the updates that a seal has counted."""
    skipped: set[Step] = field(default_factory=set)
    void: set[Step] = field(default_factory=set)
    ended: set[int] = field(default_factory=set)
    finished: bool = False
    bases: dict[int, bytes] = field(default_factory=dict)
    """Published bases, keyed by subspace; a subspace has two epochs."""
    norm_limit: int = 0
    """Maximum norm of an update; 0 in a zeroth-order run."""

    def named(self, feed: int) -> set[Step]:
        return set().union(*(moved.get(feed, set()) for moved in self.closes))

    def stop(self, feed: int, epoch: int) -> int:
        """Return the number of a feed's steps that the closes up to `epoch` list."""
        return sum(len(moved.get(feed, ())) for moved in self.closes[: epoch + 1])

    @property
    def counted(self) -> int:
        counts = (s for s, factor in self.factors.items() if factor > 0 and s not in self.void)
        return sum(step not in self.zeros for step in counts)

    @property
    def complete(self) -> bool:
        return self.finished or self.counted >= self.budget

    def rate(self, epoch: int) -> tuple[int, int, int]:
        """Return rate, unit and limit of an epoch. Each seal with rates replaces all rates from its first
        one on."""
        schedule = {0: (self.first_rate, 65_536, self.norm_limit)}
        for one in self.seals:
            if one.rates:
                schedule = {e: rate for e, rate in schedule.items() if e < one.rates[0].epoch}
                schedule |= {rate.epoch: rate[1:] for rate in one.rates}
        return schedule[max(e for e in schedule if e <= epoch)]

    def revoked_from(self, member: bytes) -> int:
        by_invitation = self.revoked_invitations.get(self.came_by[member] - 1, NEVER)
        return min(self.revoked.get(member, NEVER), by_invitation)

    def factor(self, step: Step) -> int:
        if step in self.void or step in self.skipped:
            return 0
        if step not in self.named(step[0]) and step[0] in self.ended:
            return 0
        return self.factors.get(step, decisions.FACTOR_ONE)

    def spans(self, feed: int, held: int) -> tuple[tuple[int, int], ...]:
        factors = [(step, self.factor((feed, step))) for step in range(held)]
        return tuple(
            (max(step for step, _ in group) + 1, factor)
            for factor, group in ((f, list(g)) for f, g in groupby(factors, key=lambda one: one[1]))
        )

    def apply(self, decision: decisions.Decision) -> None:
        match decision:
            case decisions.Close():
                self._close(decision)
            case decisions.Seal():
                self._seal(decision)
            case decisions.Amend() | decisions.Void():
                self._take_back(decision)
            case decisions.Admit() | decisions.Invite() | decisions.Revoke() | decisions.RevokeInvitation():
                self._say_who(decision)
            case decisions.Budget(updates=updates):
                self.budget = updates
            case decisions.Finish():
                self.finished = True
            case decisions.Bases(subspace=subspace, digest=digest):
                if self.bases and subspace * 2 >= len(self.closes) + 1:
                    self.bases[subspace] = digest

    def _take_back(self, decision: decisions.Amend | decisions.Void) -> None:
        match decision:
            case decisions.Amend(feed=feed, epoch=epoch):
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
            case decisions.Void(first=first, last=last, members=members):
                if all(m < len(self.members) for m in members) and first <= last < len(self.seals):
                    for moved in self.closes[first : last + 1]:
                        for feed, steps in moved.items():
                            if not members or feed // 64 in members:
                                self.void |= steps
                                self.skipped -= steps

    def _say_who(
        self, decision: decisions.Admit | decisions.Invite | decisions.Revoke | decisions.RevokeInvitation
    ) -> None:
        match decision:
            case decisions.Admit(origin=member, quota=quota, invitation=invitation):
                if member in self.members:
                    self.own_quotas[member] = max(quota, self.own_quotas[member])
                elif invitation == 0 or self._has_use(invitation - 1):
                    self._admit(member, quota, invitation)
            case decisions.Invite(uses=uses):
                self.uses.append(uses)
            case decisions.Revoke(member=number, epoch=epoch) if number < len(self.members):
                member = self.members[number]
                self.revoked[member] = min(epoch, self.revoked.get(member, NEVER))
                if epoch <= self.open_label:
                    self.out.add(member)
            case decisions.RevokeInvitation(invitation=number, epoch=epoch) if number < len(self.uses):
                self.revoked_invitations[number] = min(epoch, self.revoked_invitations.get(number, NEVER))

    def _has_use(self, invitation: int) -> bool:
        if invitation >= len(self.uses) or invitation in self.revoked_invitations:
            return False
        return self.uses[invitation] > 0

    def _close(self, one: decisions.Close) -> None:
        if self.finished or one.epoch != len(self.closes):
            return
        moved: dict[int, set[Step]] = {}
        for feed, steps, *_ in one.moves:
            first = len(self.named(feed))
            fits = steps > 0 and first + steps < 1 << 32
            if feed // 64 >= len(self.members) or feed in self.ended or not fits:
                return
            moved[feed] = {(feed, step) for step in range(first, first + steps)}
        for feed, steps, _, zeros in one.moves:
            self.zeros |= {(feed, step) for _, step in sorted(moved[feed])[steps - zeros :]}
        self.closes.append(moved)
        self.sizes.append(sum(steps for _, steps, *_ in one.moves))
        self._open(sorted(moved))

    # -- what may be made: SPEC O20 --------------------------------------------------------------------

    @property
    def open_label(self) -> int:
        return len(self.closes)

    @property
    def room(self) -> int:
        usual = max([LEAST_USUAL, *self.sizes[-4:]]) if self.sizes else self.epoch_updates
        return 2 * min(self.epoch_updates, usual)

    def credit(self, member: int) -> int:
        """Return the number of a member's updates that are applied before a seal judges them; 1 << 32 if
        there is no limit."""
        judged: list[int] = []
        for moved in self.closes[max(0, len(self.seals) - 16) : len(self.seals)]:
            steps = {step for feed, steps in moved.items() if feed // 64 == member for step in steps}
            counts = {step for step in steps - self.void if self.factors.get(step, 0) > 0}
            if steps & self.skipped:
                judged.append(0)
            elif counts:
                judged.append(min(len(counts), 4 * len(counts - self.zeros)))
        vouched = self.own_quotas[self.members[member]] > 0
        if not judged:
            return 1 << 32 if vouched else 0
        if not judged[-1]:
            return 0
        return 1 << 32 if vouched else 2 * max(judged)

    def _admit(self, member: bytes, quota: int, invitation: int) -> None:
        self.members.append(member)
        self.own_quotas[member], self.came_by[member] = quota, invitation
        if invitation:
            self.uses[invitation - 1] -= 1
        label = self.open_label
        self.feeds[member, label] = 0
        if quota:
            self.quotas[member, label] = quota
        elif not self.counted:
            self.quotas[member, label] = self.shared[1] if self.shared else self.room
        else:
            self.quotas[member, label] = 1 if self.places else 0
            self.places = max(0, self.places - 1)

    shared: tuple[int, int] | None = None
    """The open label, and each stranger's part of the share with it."""

    def _open(self, moved: list[int]) -> None:
        label = self.open_label
        for member in self.members:
            self.feeds[member, label] = self.feeds[member, label - 1]
        for feed in moved:
            if feed not in self.first_named:
                self.first_named.add(feed)
                self.feeds[self.members[feed // 64], label] = feed % 64
        waiting = []
        for number, member in enumerate(self.members):
            if quota := self.own_quotas[member]:
                self.quotas[member, label] = quota
            elif credit := self.credit(number):
                self.quotas[member, label] = min(credit, self.room)
            elif member not in self.out:
                waiting.append(number)
        self.places = max(1, self.room // 16)
        part = self.places // max(1, len(waiting)) if self.counted else self.room
        for number in waiting:
            self.quotas[self.members[number], label] = part
        if not part:
            turns = [n for n in waiting if n >= self.turn] + [n for n in waiting if n < self.turn]
            for place, number in enumerate(turns):
                self.quotas[self.members[number], label] = int(place < self.places)
            self.turn, part = turns[self.places - 1] + 1, 1
        self.shared = label, part

    def live(self, feed: int, held: int) -> tuple[tuple[int, int], ...]:
        """Return the spans of the first `held` steps of a feed for a node that makes updates."""
        member = self.members[feed // 64]
        goes_on = self.feeds[member, self.open_label] == feed % 64
        judged = len(set().union(*(moved.get(feed, set()) for moved in self.closes[: len(self.seals)])))
        stop = judged + (self.credit(feed // 64) if goes_on else 0)
        factors = [self.factor((feed, step)) if step < stop else 0 for step in range(held)]
        stops = [n for n in range(1, held + 1) if n == held or factors[n] != factors[n - 1]]
        return tuple((stop, factors[stop - 1]) for stop in stops)

    def _seal(self, one: decisions.Seal) -> None:
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
        if any((rate.limit > 0) != (self.norm_limit > 0) for rate in one.rates):
            return
        skipped = set().union(*(named[feed] for feed in one.skipped))
        self.seals.append(one)
        self.skipped = (self.skipped | skipped) - again
        for step in set().union(again, *named.values()) - skipped:
            self.factors[step] = one.factor


def fold(
    *said: decisions.Decision,
    budget: int = 1000,
    rate: int = 1 << 32,
    bases: bytes = b"",
    epoch_updates: int = LEAST_USUAL,
) -> RunState:
    run_state = RunState(
        budget=budget, rate=rate, bases=bases, subspace_epochs=2, epoch_updates=epoch_updates
    )
    for decision in said:
        run_state.apply(decisions.Recorded(decision))
    return run_state
