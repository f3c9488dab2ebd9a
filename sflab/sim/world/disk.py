"""A simulated disk: the host's store, with everything that was ever committed.

It keeps what the real one keeps (`store.log`): of every feed the signed segments in order, the proofs of cut
feeds, which feed is the node's own and, in an organised run, the decisions. A cut is a view: what lies behind
it no longer counts, but the signed segment that contains it can still be read and sent. So it is with what an
organiser's decisions leave out, except that a segment may then take the place of another history. How long a
commit takes, and whether it is lost with the power, the node says.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field, replace
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING, NamedTuple

from sflab.sim.world.violation import Violation
from sfprotocol import decisions
from sfprotocol.checkpoints import Base
from sfprotocol.control_sync import Kept
from sfprotocol.counting import Counting
from sfprotocol.decisions import Checkpoint
from sfprotocol.events import Admit, Rebase
from sfprotocol.frontier import Frontier
from sfprotocol.host import Commit, cut_chain
from sfprotocol.messages import Card, ControlFork, Entry, Feed, Proof, RunParameters, Segment, Succession
from sfprotocol.seeds import feed_key
from sfprotocol.segments import MAX_SEGMENT_UPDATES, drop_updates, first_updates, join, merge, without_front
from sfprotocol.signing import extend, genesis

if TYPE_CHECKING:
    from sflab.sim.world.checkpoints import State, Sum


class Row(NamedTuple):
    """A signed segment as it was admitted, and the chain head after it."""

    segment: Segment
    chain: bytes


@dataclass
class Shelf:
    """The stored part of one feed."""

    rows: list[Row] = field(default_factory=list)
    stops: list[int] = field(default_factory=list)
    """The stop of each row."""
    proof: Proof | None = None
    base: Base | None = None
    """The place at which the feed begins here; None: step 0."""

    @property
    def first(self) -> int:
        """The first step that is here, or would be."""
        return self.base.step if self.base else 0

    @property
    def stop(self) -> int:
        """The first step that is not here."""
        return self.stops[-1] if self.stops else self.first

    @property
    def counted(self) -> int:
        """The first step that does not count."""
        return min(self.stop, self.proof.cut) if self.proof else self.stop


class Disk:
    """The disk of one node. Raises Violation when it is told to keep what cannot be."""

    def __init__(self, run: RunParameters, own: Feed | None) -> None:
        self.run = run
        self.own = own
        self.shelves: dict[Feed, Shelf] = {}
        self.cards: dict[Feed, Card] = {}
        self.decided: list[Entry] = []
        """The control feed."""
        self.authority: list[Succession | ControlFork] = []
        self.states: dict[Checkpoint, State] = {}
        """States of checkpoints that are kept beside the log."""
        self.state: State | None = None
        """The one with which the log begins."""

    def append(self, commit: Commit) -> None:
        """Keep all of it."""
        for kept in commit.control:
            if kept.first > len(self.decided):
                raise Violation("gap", f"decision {kept.first} is kept; the disk has {len(self.decided)}")
            self.decided[kept.first :] = kept.entries
        self.authority += commit.authority
        for admit in commit.admits:
            self._append(admit)
        for cut in commit.cuts:
            self._cut(cut.proof)
        if commit.rebase:
            self._rebase(commit.rebase)
        self.cards.update({card.feed: card for card in commit.cards})
        self.own = commit.own or self.own

    def _append(self, admit: Admit) -> None:
        shelf = self.shelves.setdefault(admit.feed, Shelf())
        segment, first = admit.segment, admit.segment.first
        if first < shelf.stop and self.run.organised:
            segment = self._displace(shelf, segment)
        elif first < shelf.stop:
            raise Violation(
                "once", f"step {first} of a feed is admitted again; the disk ends at {shelf.stop}"
            )
        if segment.first > shelf.stop:
            raise Violation("gap", f"step {first} of a feed is admitted; the disk ends at {shelf.stop}")
        shelf.rows.append(Row(segment, admit.chain))
        shelf.stops.append(segment.stop)

    def _displace(self, shelf: Shelf, segment: Segment) -> Segment:
        """Drop what is here of the steps from where `segment` begins; return it from where there is a
        signature."""
        index = bisect_right(shelf.stops, segment.first)
        spanning = shelf.rows[index].segment
        del shelf.rows[index:], shelf.stops[index:]
        head = first_updates(spanning.parts, segment.first - spanning.first)
        return replace(segment, first=spanning.first, parts=merge((*head, *segment.parts)))

    def lose(self, feed: Feed, kept: int) -> None:
        """Lose what was kept of a feed from step `kept` on, and the signed segment in which it lies."""
        shelf = self.shelves.get(feed, Shelf())
        index = bisect_right(shelf.stops, kept)
        del shelf.rows[index:], shelf.stops[index:]

    def _rebase(self, rebase: Rebase) -> None:
        """Let feeds begin at their bases."""
        self.state = self.states[rebase.checkpoint]
        for base in rebase.bases:
            shelf = self.shelves.setdefault(base.feed, Shelf())
            shelf.rows = [row for row in shelf.rows if row.segment.stop > base.step]
            if shelf.rows and shelf.rows[0].segment.first < base.step:
                segment, chain = shelf.rows[0]
                shelf.rows[0] = Row(without_front(segment, base.step), chain)
            shelf.stops, shelf.base = [row.segment.stop for row in shelf.rows], base

    def _cut(self, proof: Proof) -> None:
        shelf = self.shelves.setdefault(proof.feed, Shelf())
        if shelf.proof is not None and proof.cut >= shelf.proof.cut:
            raise Violation("cut", f"a feed is cut at {proof.cut}, and was before at {shelf.proof.cut}")
        shelf.proof = proof

    # -- reading -----------------------------------------------------------------------------------

    def stop(self, feed: Feed) -> int:
        """Return the first step of a feed that is not on disk."""
        shelf = self.shelves.get(feed)
        return shelf.stop if shelf else 0

    def begins(self, feed: Feed) -> int:
        """Return the first step of a feed that is on disk, or would be."""
        shelf = self.shelves.get(feed)
        return shelf.first if shelf else 0

    def before(self, feed: Feed) -> Sum | None:
        """Return what counts of a feed before it begins here; None if it begins with step 0."""
        sums = self.state.sums if self.state else ()
        return next((one for one in sums if one.base.feed == feed), None)

    def counted(self, feed: Feed) -> int:
        """Return the first step of a feed that does not count."""
        shelf = self.shelves.get(feed)
        return shelf.counted if shelf else 0

    def proof(self, feed: Feed) -> Proof | None:
        """Return the proof of the lowest cut of a feed, if it is cut."""
        shelf = self.shelves.get(feed)
        return shelf.proof if shelf else None

    def read(self, feed: Feed, first: int, max_updates: int = MAX_SEGMENT_UPDATES) -> Segment | None:
        """Return what there is from `first` on, up to a signature (SPEC S6); None at the end."""
        shelf = self.shelves.get(feed)
        if shelf is None or first >= shelf.stop:
            return None
        _require_here(shelf, first)
        index = bisect_right(shelf.stops, first)
        rows = (row.segment for row in shelf.rows[index:])
        return join(rows, first, max_updates)

    def head(self, feed: Feed, step: int) -> bytes:
        """Return the chain head before `step`, which is at most the end."""
        shelf = self.shelves.get(feed)
        if shelf is None or step == 0:
            return genesis(self.run.run_id, feed)
        _require_here(shelf, step)
        if shelf.base and step == shelf.base.step:
            return shelf.base.chain
        index = bisect_right(shelf.stops, step - 1)
        if step == shelf.stops[index]:
            return shelf.rows[index].chain
        row = shelf.rows[index].segment
        before = self.head(feed, row.first)
        return extend(before, first_updates(row.parts, step - row.first))

    def past(self, feed: Feed, step: int) -> tuple[bytes, Segment]:
        """Return the chain head before `step`, and what is here from there to the next signature.

        At the end that is no updates, and the last signature; beyond it the head is empty, too.
        """
        shelf, key = self.shelves.get(feed), feed_key(self.run.run_id, *feed)
        if shelf is None or step > shelf.stop:
            return (b"" if step else genesis(self.run.run_id, feed)), Segment(key, step, (), bytes(64))
        if step == shelf.stop:
            last = shelf.rows[-1].segment.signature if shelf.rows else bytes(64)
            return self.head(feed, step), Segment(key, step, (), last)
        row = shelf.rows[bisect_right(shelf.stops, step)].segment
        parts = drop_updates(row.parts, step - row.first)
        return self.head(feed, step), Segment(key, step, parts, row.signature)

    def label(self, feed: Feed, step: int) -> tuple[int, int]:
        """Return the epoch of the update before `step`, and how many before `step` belong to it."""
        labels = self.labels(feed, step)
        return labels[-1] if labels else (0, 0)

    def labels(self, feed: Feed, stop: int) -> list[tuple[int, int]]:
        """Return the labels of the first `stop` steps with the number of updates of each, in order; of those
        before the feed's base, the last label alone."""
        shelf = self.shelves.get(feed)
        rows = [row.segment for row in shelf.rows if row.segment.first < stop] if shelf else []
        parts = [part for row in rows for part in first_updates(row.parts, stop - row.first)]
        labels = [(part.epoch, len(part.scalars)) for part in parts]
        if shelf and shelf.base:
            labels.insert(0, (shelf.base.epoch, shelf.base.labelled))
        groups = groupby(labels, key=itemgetter(0))
        return [(epoch, sum(count for _, count in group)) for epoch, group in groups]

    def frontier(self) -> Frontier:
        """Return the state that follows from what is on disk.

        Which of it an organiser has meant, the machine finds out when it starts.
        """
        frontier = Frontier(self.run)
        if self.run.organised:
            frontier.counting = self.counting()
        if self.state:
            frontier.rebase(self.state.checkpoint, [one.base for one in self.state.sums])
        for feed, shelf in self.shelves.items():
            at = shelf.stop if self.run.organised else shelf.counted
            if at:
                frontier.advance(feed, at, self.head(feed, at), *self.label(feed, at))
            if shelf.proof:
                frontier.cut(feed, shelf.proof.cut, cut_chain(self.run, shelf.proof))
                if self.run.organised and frontier.next(feed) < at:
                    at = frontier.next(feed)
                    frontier.go_back(feed, at, self.head(feed, at), *self.label(feed, at))
        return frontier

    def counting(self) -> Counting:
        """Return what counts by the decisions that are here."""
        counting = Counting.of(self.run)
        for entry in self.decided:
            counting.apply(decisions.read(entry.record))
        return counting

    def kept(self) -> Kept:
        """Return what is here of the control feed."""
        return Kept(tuple(self.decided), tuple(self.authority))

    def copy(self) -> Disk:
        """Return a backup: all feeds, all decisions and no cards."""
        twin = Disk(self.run, self.own)
        twin.decided, twin.authority = list(self.decided), list(self.authority)
        twin.states, twin.state = dict(self.states), self.state
        for feed, shelf in self.shelves.items():
            twin.shelves[feed] = replace(shelf, rows=list(shelf.rows), stops=list(shelf.stops))
        return twin


def _require_here(shelf: Shelf, step: int) -> None:
    if step < shelf.first:
        raise Violation("base", f"step {step} is read of a feed that begins with step {shelf.first} here")
