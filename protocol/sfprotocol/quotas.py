"""Quotas: how many updates each member may make with each epoch label, and in which of its feeds (SPEC O20).

A quota is fixed when its label is opened or its member is admitted. It never changes after that, so that an
update that may be held once may be held for good. Members whom an invitation or the organiser vouches for
have a quota of their own. A stranger's quota is its credit; without credit, an equal part of a small share.
This module knows members and labels; `run_state` knows the credit.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Iterable, Mapping
from operator import itemgetter
from typing import NamedTuple

EPOCHS_AHEAD = 2
"""Factor: all members together make at most EPOCHS_AHEAD times the usual number of updates of an epoch before
the next Close. This maximum is called the room. Further updates would be measured at outdated weights. In one
run, an epoch had 2,038 updates instead of 250 because the organiser was busy. That run ended at a loss of
0.544 instead of the usual 0.2."""

USUAL_OF = 4
"""Number of latest Closes that determine the usual number of updates of an epoch: it is that of the largest
of these Closes. The last Close alone would be misleading, because organisers cut some epochs short, and some
Closes list no update."""

LEAST_USUAL = 128
"""Minimum of the usual number of updates of an epoch. Without a minimum, the first epoch after a night
without training would be limited to a few updates."""

OTHERS = 2
"""Divisor: the updates of one member reduce the room of the others by at most half of the usual number of
updates of an epoch. So a single member cannot make all others wait by sending updates that it has not
measured."""

UNPROVEN_PART = 8
"""Divisor: all members without credit together have an eighth of the room. Half of this eighth is for
strangers known when a label opens, and half for strangers admitted later. The organiser, who closes an epoch
after a target number of updates, also counts updates of members without credit for at most an eighth of that
target."""

RECENT_SEALS = 16
"""Number of latest Seals from which credit is computed. They usually cover the last minutes of a run.
Strangers that turn hostile together need sixteen good epochs for each epoch that they spoil."""

CREDIT_GROWTH = 2
"""Factor: a stranger's credit is CREDIT_GROWTH times the largest number of its updates that a recent Seal has
counted. So a machine that is new, or was busy for a while, reaches its full pace after a few epochs."""

WITH_ZEROS = 4
"""Limit of the zeros (updates with the scalar 0) in the number from which a stranger's credit follows: with
them it is at most WITH_ZEROS times the number without them. In reward runs, three of four updates may be
zeros, and zeros use up the quota, too. When zeros gave no credit, strangers with 60 % zeros came to a
standstill: in each epoch they made four fifths of the updates of the epoch before."""

UNLIMITED = 1 << 32
"""Credit of a member for whom somebody vouches; larger than any number of updates."""

_SHARED = -1
"""Value in a list of quotas that stands for the member's part of the share of strangers without credit."""

_LABEL = itemgetter(0)


class Share(NamedTuple):
    """The quotas of all strangers without credit with one label. If there are more such strangers than
    updates to share, only some of them may make an update: it is their turn."""

    each: int
    first: int
    """Number of the first member whose turn it is."""
    stop: int
    """1 + number of the last member whose turn it is. If `stop` is not above `first`, the turn wraps around:
    it includes the numbers from `first` on and those below `stop`."""

    def of(self, member: int) -> int:
        """Return the quota of a stranger without credit, by its member number."""
        if self.first < self.stop:
            return self.each if self.first <= member < self.stop else 0
        return self.each if member >= self.first or member < self.stop else 0


class Quotas:
    """The quota of each member with each label, and the feed that the member uses with that label."""

    def __init__(self, room: int) -> None:
        """`room`: maximum number of updates that all members together make with the first label."""
        self._quotas: list[list[tuple[int, int]]] = []
        """Pairs (label, quota with this and later labels), by ascending label; one list for each member, by
        member number."""
        self._feeds: dict[int, list[tuple[int, int]]] = {}
        """Pairs (label, incarnation with this and later labels), by ascending label, keyed by member number;
        only for members that have left incarnation 0."""
        self._shares = [Share(room, 0, UNLIMITED)]
        """The Share of each label that was opened, in the order of labels."""
        self._strangers: set[int] = set()
        """Members for whom nobody vouches."""
        self._unproven: list[int] = []
        """Strangers without credit when the last label was opened, and later newcomers; ascending."""
        self._proven: set[int] = set()
        """Strangers with credit. Revoked members are neither here nor in `_unproven`."""
        self._cursor = 0
        """The member with whom the next turn begins."""
        self._newcomers = 0
        """Number of strangers who may still begin with the open label."""

    @property
    def open_label(self) -> int:
        """The label of a new update."""
        return len(self._shares) - 1

    def quota(self, member: int, label: int) -> int:
        """Return how many updates of a member may have this label; 0 if the member was admitted later."""
        said = self._quotas[member]
        place = bisect_right(said, label, key=_LABEL) - 1
        quota = said[place][1] if place >= 0 else 0
        return self._shares[label].of(member) if quota == _SHARED else quota

    def incarnation(self, member: int, label: int) -> int:
        """Return the incarnation of the feed that a member uses with this label."""
        said = self._feeds.get(member, [])
        place = bisect_right(said, label, key=_LABEL) - 1
        return said[place][1] if place >= 0 else 0

    def has_renewed(self, member: int) -> bool:
        """Return whether a member has ever used another incarnation than 0."""
        return member in self._feeds

    def is_stranger(self, member: int) -> bool:
        """Return whether nobody vouches for a member."""
        return member in self._strangers

    def own(self, member: int) -> int:
        """Return the quota that a member has because somebody vouches for it; 0 for a stranger."""
        return 0 if self.is_stranger(member) else self._quotas[member][-1][1]

    # -- decisions ---------------------------------------------------------------------------------

    def admit(self, quota: int, *, begun: bool) -> None:
        """Add the next member; it is a stranger if `quota` is 0. `begun`: whether any update of the run
        counts already."""
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
        """Raise a member's own quota from the next label on; do nothing if `quota` is not higher."""
        if quota <= self.own(member):
            return
        self.forget(member)
        self._strangers.discard(member)
        said, label = self._quotas[member], self.open_label + 1
        del said[bisect_left(said, label, key=_LABEL) :]
        said.append((label, quota))

    def forget(self, member: int) -> None:
        """Remove a member from the strangers with credit, or from those without."""
        self._proven.discard(member)
        if (place := self._place(member)) is not None:
            del self._unproven[place]

    def renew(self, member: int, incarnation: int) -> None:
        """Set the incarnation that a member uses from the next label on."""
        if self.incarnation(member, self.open_label + 1) != incarnation:
            self._feeds.setdefault(member, []).append((self.open_label + 1, incarnation))

    def open(self, room: int, credit: Callable[[int], int], changed: Iterable[int], *, begun: bool) -> None:
        """Open the next label.

        `room`: maximum number of updates of all members together. `credit`: returns a member's credit, which
        can have changed only for `changed` members and for strangers with credit. `begun`: whether any update
        of the run counts already.
        """
        shared = {member for member in changed if self._place(member) is not None}
        for member in sorted(shared | self._proven):
            self.forget(member)
            self._settle(member, min(room, credit(member)))
        self._newcomers = max(1, room // (2 * UNPROVEN_PART))
        self._shares.append(self._share(self._newcomers) if begun else Share(room, 0, UNLIMITED))

    def _settle(self, member: int, credit: int) -> None:
        """Set a stranger's quota with the next label."""
        if credit:
            self._proven.add(member)
        else:
            insort(self._unproven, member)
        said, label, quota = self._quotas[member], self.open_label + 1, credit or _SHARED
        if said[-1][1] != quota:
            said[bisect_left(said, label, key=_LABEL) :] = [(label, quota)]

    def _share(self, updates: int) -> Share:
        """Return how strangers without credit share this number of updates: equally, or one each in turns."""
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
    """Return how many more updates the member with number `own` should make with the open label. Further
    updates would be of no use before the next Close.

    `quota` is the quota of `own`, and `made` is the number of updates with this label, keyed by member
    number. Members without credit together reduce the room of others by at most an eighth (UNPROVEN_PART), or
    by half until the first updates of the run count.
    """
    most = room // EPOCHS_AHEAD // OTHERS
    taken = {True: 0, False: 0}
    for member, updates in made.items():
        if member != own:
            taken[credit(member) > 0] += min(updates, most)
    others = taken[True] + min(taken[False], room // (UNPROVEN_PART if begun else 2))
    return max(0, min(quota, room - others) - made.get(own, 0))
