"""A simulated disk: the host's store, with everything that was ever committed.

It keeps what the real one keeps (`store.log`): of every feed the signed segments in order, the proofs of cut
feeds, and which feed is the node's own. A cut is a view: what lies behind it no longer counts, but the signed
segment that contains it can still be read and sent. How long a commit takes, and whether it is lost with the
power, the node says.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from sfnode.sim.world.violation import Violation
from sfprotocol.events import Admit
from sfprotocol.frontier import Frontier
from sfprotocol.host import Commit, cut_chain
from sfprotocol.messages import Card, Feed, Proof, RunParameters, Segment
from sfprotocol.seeds import feed_key
from sfprotocol.segments import drop_updates, first_updates, join
from sfprotocol.signing import extend, genesis
from sfprotocol.wire_codec import MAX_SEGMENT_UPDATES


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

    @property
    def stop(self) -> int:
        """The first step that is not here."""
        return self.stops[-1] if self.stops else 0

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

    def append(self, commit: Commit) -> None:
        """Keep all of it."""
        for admit in commit.admits:
            self._append(admit)
        for cut in commit.cuts:
            self._cut(cut.proof)
        self.cards.update({card.feed: card for card in commit.cards})
        self.own = commit.own or self.own

    def _append(self, admit: Admit) -> None:
        shelf = self.shelves.setdefault(admit.feed, Shelf())
        first = admit.segment.first
        if first < shelf.stop:
            raise Violation(
                "once", f"step {first} of a feed is admitted again; the disk ends at {shelf.stop}"
            )
        if first > shelf.stop:
            raise Violation("gap", f"step {first} of a feed is admitted; the disk ends at {shelf.stop}")
        shelf.rows.append(Row(admit.segment, admit.chain))
        shelf.stops.append(admit.segment.stop)

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
        index = bisect_right(shelf.stops, first)
        rows = (row.segment for row in shelf.rows[index:])
        return join(rows, first, max_updates)

    def head(self, feed: Feed, step: int) -> bytes:
        """Return the chain head before `step`, which is at most the end."""
        shelf = self.shelves.get(feed)
        if shelf is None or step == 0:
            return genesis(self.run.run_id, feed)
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

    def frontier(self) -> Frontier:
        """Return the state that follows from what is on disk."""
        frontier = Frontier(self.run)
        for feed, shelf in self.shelves.items():
            at = shelf.counted
            if at:
                frontier.advance(feed, at, self.head(feed, at), self._epoch(shelf, at))
            if shelf.proof:
                frontier.cut(feed, shelf.proof.cut, cut_chain(self.run, shelf.proof))
        return frontier

    def _epoch(self, shelf: Shelf, stop: int) -> int:
        row = shelf.rows[bisect_right(shelf.stops, stop - 1)].segment
        return first_updates(row.parts, stop - row.first)[-1].epoch

    def updates(self) -> dict[Feed, list[tuple[int, int]]]:
        """Return everything that counts: (epoch, scalar) of every feed, in order."""
        return {
            feed: [
                (epoch, scalar)
                for row in shelf.rows
                for epoch, scalars in row.segment.parts
                for scalar in scalars
            ][: shelf.counted]
            for feed, shelf in self.shelves.items()
        }

    def copy(self) -> Disk:
        """Return a backup: all feeds and no cards."""
        twin = Disk(self.run, self.own)
        for feed, shelf in self.shelves.items():
            twin.shelves[feed] = replace(shelf, rows=list(shelf.rows), stops=list(shelf.stops))
        return twin
