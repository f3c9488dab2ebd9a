"""Published bases that are made anew at sealed weights once those of now have served for long enough.

They serve from the next epoch on; the one that is open meanwhile ends with them. Whoever has the model makes
them, one set at a time.
"""

from __future__ import annotations

from sfnode.organising import owner_decisions
from sfnode.organising.evaluation.searching import Search
from sfnode.organising.events import MakeBases
from sfprotocol.counting import Counting
from sfprotocol.decisions import Bases

MAKE_AGAIN = 600.0
"""Seconds until bases are tried again that could not be made: a lack of memory does not go away at once."""


class Renewal:
    """The bases that one organiser has made, from one start to the next."""

    def __init__(self, every: int, search: Search | None, now: float) -> None:
        """`every`: updates for which bases serve; 0: for ever."""
        self._every = every
        self._search = search
        self.making = False
        """Whether bases are being made: nothing is closed meanwhile, so that members wait for them once they
        have made what an epoch has room for, along directions that are used up."""
        self._made: bytes | None = None
        """The digest of those that were made and not signed yet."""
        self._from = now
        """The time from which on others may be made."""

    def due(self, counting: Counting, now: float) -> Bases | MakeBases | None:
        """Return the bases that were made; have new ones made once the latest have served for long enough."""
        if self._made is not None:
            decision, self._made = Bases(counting.next_subspace(), self._made), None
            return decision if owner_decisions.refusal(counting, decision) is None else None
        if not self.making and now >= self._from and self._is_worn(counting):
            self.making = True
            return MakeBases(counting.sealed - 1)
        return None

    def made(self, digest: bytes | None, now: float) -> None:
        """Take the digest of what was made; None if that has failed."""
        self.making, self._made = False, digest
        self._from = now if digest else now + MAKE_AGAIN

    def cuts(self, counting: Counting) -> bool:
        """Return whether the open epoch is to be closed with whatever it has: the one after it has other
        bases."""
        return self._every > 0 and counting.served_from() == counting.open_epoch + 1

    def _is_worn(self, counting: Counting) -> bool:
        """Return whether what is sealed, at whose weights others would be made, has used the latest bases for
        long enough, others would yet be used, and the rate at which they were used stays."""
        first, ends = counting.served_from(), counting.promised >= counting.budget
        ends = ends or not counting.may_begin(counting.next_subspace())
        if not self._every or first is None or first >= counting.sealed or ends:
            return False
        if self._search and self._search.cuts(counting):
            return False
        return sum(map(counting.closed_updates, range(first, counting.sealed))) >= self._every
