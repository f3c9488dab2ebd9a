"""Quotas: the updates that each member may make with each label, and in which feed (SPEC O20).

A quota is settled when its label is opened, or when its member is admitted, and never changes after that:
what may be held once may be held for good. Members whom an invitation or the organiser vouches for have a
quota of their own. Strangers have what they have earned, and without that an equal part of a small share.
This module knows members and labels; who has earned how much is told by `run_state`.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Iterable, Mapping
from operator import itemgetter
from typing import NamedTuple

EPOCHS_AHEAD = 2
"""Epochs of updates that all members together make for one close. More of them are measured at weights that
are long known to be poor: a run one of whose epochs had 2,038 updates instead of 250, as the organiser was
busy with the one before, ended at a loss of 0.544, where 0.2 was usual."""

USUAL_OF = 4
"""Closes whose largest one says how many updates an epoch has as things are: an organiser cuts epochs short,
and ones that name nothing count what has waited."""

LEAST_USUAL = 128
"""Updates that an epoch may have whatever the last ones had: after a night in which nobody trained those of
the morning need not begin with five."""

OTHERS = 2
"""Parts of an epoch, one of which counts of what one other member has made: several have to collude to make
everybody else wait, by updates that they have not measured."""

UNPROVEN_PART = 8
"""Part of the room, and of what closes an epoch, that all together have who have no credit. Half of it is for
the strangers of whom it is known when a label is opened, half for those who come while it is open."""

RECENT_SEALS = 16
"""Seals whose verdicts say what credit a member has: a run's last minutes, and sixteen good epochs for each
one that many strangers who turn at once can spoil."""

CREDIT_GROWTH = 2
"""Times as many updates as the most of a stranger that one close of late has named and a seal has counted,
that are taken at their word: a machine that is new or was busy is at its pace after a few epochs."""

WITH_ZEROS = 4
"""Times as many updates as move anything that give credit, if so many have counted with them: who has rewards
makes zeros between them, in three updates of four, say, and its quota is for all it makes. With moving ones
alone strangers with 60 % zeros came to a standstill: each epoch had four fifths of the one before."""

UNLIMITED = 1 << 32
"""The credit of a member who was vouched for."""

_SHARED = -1
"""Stands for a stranger's part of the share among the quotas of its labels."""

_LABEL = itemgetter(0)


class Share(NamedTuple):
    """The quota with one label of each stranger without credit."""

    each: int
    first: int
    """Number of the first member whose turn it is."""
    stop: int
    """Number after the last one; not above `first` where the turn goes on with the lowest number."""

    def of(self, member: int) -> int:
        """Return the quota of a member."""
        if self.first < self.stop:
            return self.each if self.first <= member < self.stop else 0
        return self.each if member >= self.first or member < self.stop else 0


class Quotas:
    """The quotas of all members with all labels, and the feed that each has with each of them."""

    def __init__(self, room: int) -> None:
        """`room`: the updates that all members together make with the first label."""
        self._quotas: list[list[tuple[int, int]]] = []
        """(label, quota with it and those that follow) of each member, ascending."""
        self._feeds: dict[int, list[tuple[int, int]]] = {}
        """(label, incarnation with it and those that follow) of members who have had another one than 0."""
        self._shares = [Share(room, 0, UNLIMITED)]
        """The share with each label that was opened."""
        self._strangers: set[int] = set()
        """Members for whom nobody vouches."""
        self._unproven: list[int] = []
        """Those of them without credit as the last label was opened, and who have come since; ascending."""
        self._proven: set[int] = set()
        """Those of them with credit. Who is revoked is in neither."""
        self._cursor = 0
        """The member with whom the next turn begins."""
        self._newcomers = 0
        """Strangers who may still begin with the open label."""

    @property
    def open_label(self) -> int:
        """The label of a new update."""
        return len(self._shares) - 1

    def quota(self, member: int, label: int) -> int:
        """Return how many updates of a member may have a label that was opened; 0 before its admission."""
        said = self._quotas[member]
        place = bisect_right(said, label, key=_LABEL) - 1
        quota = said[place][1] if place >= 0 else 0
        return self._shares[label].of(member) if quota == _SHARED else quota

    def incarnation(self, member: int, label: int) -> int:
        """Return the incarnation in which a member makes its updates with a label."""
        said = self._feeds.get(member, [])
        place = bisect_right(said, label, key=_LABEL) - 1
        return said[place][1] if place >= 0 else 0

    def has_renewed(self, member: int) -> bool:
        """Return whether a member has had another incarnation than 0."""
        return member in self._feeds

    def is_stranger(self, member: int) -> bool:
        """Return whether nobody vouches for a member."""
        return member in self._strangers

    def own(self, member: int) -> int:
        """Return the quota that a member has of its own; 0 of a stranger."""
        return 0 if self.is_stranger(member) else self._quotas[member][-1][1]

    # -- decisions ---------------------------------------------------------------------------------

    def admit(self, quota: int, *, begun: bool) -> None:
        """Take in the next member; with quota 0 a stranger. `begun`: something counts in the run."""
        label, member = self.open_label, len(self._quotas)
        if quota:
            self._quotas.append([(label, quota)])
            return
        first = self._shares[label].each if not begun else 1 if self._newcomers else 0
        self._newcomers -= begun and self._newcomers > 0
        self._quotas.append([(label, first), (label + 1, _SHARED)])
        self._strangers.add(member)
        self._unproven.append(member)

    def vouch(self, member: int, quota: int) -> None:
        """Give a member a quota of its own from the next label on, if that is more than it has of its own."""
        if quota <= self.own(member):
            return
        self.forget(member)
        self._strangers.discard(member)
        said, label = self._quotas[member], self.open_label + 1
        del said[bisect_left(said, label, key=_LABEL) :]
        said.append((label, quota))

    def forget(self, member: int) -> None:
        """Take a member from the strangers who share, and from those with credit: it is revoked."""
        self._proven.discard(member)
        if (place := self._place(member)) is not None:
            del self._unproven[place]

    def renew(self, member: int, incarnation: int) -> None:
        """Have a member make its updates in another incarnation from the next label on."""
        if self.incarnation(member, self.open_label + 1) != incarnation:
            self._feeds.setdefault(member, []).append((self.open_label + 1, incarnation))

    def open(self, room: int, credit: Callable[[int], int], changed: Iterable[int], *, begun: bool) -> None:
        """Open the next label. `room`: the updates that all together make with it; `credit` of a member,
        which has changed at most for those `changed` and for strangers who had some. `begun`: something
        counts."""
        shared = {member for member in changed if self._place(member) is not None}
        for member in sorted(shared | self._proven):
            self.forget(member)
            self._settle(member, min(room, credit(member)))
        self._newcomers = max(1, room // (2 * UNPROVEN_PART))
        self._shares.append(self._share(self._newcomers) if begun else Share(room, 0, UNLIMITED))

    def _settle(self, member: int, credit: int) -> None:
        """Say what a stranger may make with the next label."""
        if credit:
            self._proven.add(member)
        else:
            insort(self._unproven, member)
        said, label, quota = self._quotas[member], self.open_label + 1, credit or _SHARED
        if said[-1][1] != quota:
            said[bisect_left(said, label, key=_LABEL) :] = [(label, quota)]

    def _share(self, updates: int) -> Share:
        """Return how so many updates are shared out: alike, or one each for those whose turn it is."""
        if len(self._unproven) <= updates:
            return Share(updates // max(1, len(self._unproven)), 0, UNLIMITED)
        first = bisect_left(self._unproven, self._cursor) % len(self._unproven)
        last = (first + updates - 1) % len(self._unproven)
        self._cursor = self._unproven[last] + 1
        return Share(1, self._unproven[first], self._cursor)

    def _place(self, member: int) -> int | None:
        place = bisect_left(self._unproven, member)
        return place if place < len(self._unproven) and self._unproven[place] == member else None


def room_left(
    room: int, own: int, quota: int, made: Mapping[int, int], credit: Callable[[int], int], *, begun: bool
) -> int:
    """Return how many more updates member `own` makes with the open label, of which its quota allows `quota`
    and all members have `made` so many: no more than is of use until the next close.

    Those without credit take UNPROVEN_PART of the room from others at most, all together, and half of it
    while nothing counts in the run.
    """
    most = room // EPOCHS_AHEAD // OTHERS
    taken = {True: 0, False: 0}
    for member, updates in made.items():
        if member != own:
            taken[credit(member) > 0] += min(updates, most)
    others = taken[True] + min(taken[False], room // (UNPROVEN_PART if begun else 2))
    return max(0, min(quota, room - others) - made.get(own, 0))
