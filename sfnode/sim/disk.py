"""A simulated disk: what is written is lost with the power until it is synced; then it stays.

It keeps what the real one keeps (`store.log`): of every feed the signed segments in order, the proofs of cut
feeds, and which feed is the node's own. A cut is a view: what lies behind it no longer counts, but the signed
segment that contains it can still be read and sent.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from sfnode.sim.failures import Violation
from sfprotocol.codec import MAX_SEGMENT_UPDATES
from sfprotocol.events import Action, Admit, ContinueAs, Cut, KeepCard
from sfprotocol.frontier import Frontier, drop_updates, first_updates
from sfprotocol.messages import Card, EpochScalars, Feed, Proof, RunParameters, Segment
from sfprotocol.seeds import feed_key
from sfprotocol.signing import extend, genesis


class Row(NamedTuple):
    """A signed segment as it was admitted, and the chain head after it."""

    segment: Segment
    chain: bytes


@dataclass
class Shelf:
    """One feed."""

    rows: list[Row] = field(default_factory=list)
    stops: list[int] = field(default_factory=list)
    """Of the rows."""
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
    """Of one node. What is read is what is synced."""

    def __init__(self, run: RunParameters, own: Feed | None) -> None:
        self.run = run
        self.own = own
        self.shelves: dict[Feed, Shelf] = {}
        self.cards: dict[Feed, Card] = {}
        self._unsynced: list[Action] = []

    def write(self, actions: Iterable[Action]) -> bool:
        """Note what has to be durable; whether there was anything."""
        before = len(self._unsynced)
        self._unsynced += [a for a in actions if isinstance(a, (Admit, Cut, KeepCard, ContinueAs))]
        return len(self._unsynced) > before

    @property
    def synced(self) -> bool:
        """Whether everything written is durable."""
        return not self._unsynced

    def sync(self) -> list[Admit]:
        """Everything written is on disk now; returns what was admitted. Raises Violation."""
        actions, self._unsynced = self._unsynced, []
        for action in actions:
            match action:
                case Admit():
                    self._append(action)
                case Cut(proof=proof):
                    self._cut(proof)
                case KeepCard(card=card):
                    self.cards[card.feed] = card
                case ContinueAs(feed=feed):
                    self.own = feed
        return [action for action in actions if isinstance(action, Admit)]

    def lose(self) -> None:
        """The power was cut: what was not synced is gone."""
        self._unsynced.clear()

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
        """The first step of a feed that is not on disk."""
        shelf = self.shelves.get(feed)
        return shelf.stop if shelf else 0

    def counted(self, feed: Feed) -> int:
        """The first step of a feed that does not count."""
        shelf = self.shelves.get(feed)
        return shelf.counted if shelf else 0

    def proof(self, feed: Feed) -> Proof | None:
        shelf = self.shelves.get(feed)
        return shelf.proof if shelf else None

    def read(self, feed: Feed, first: int) -> Segment | None:
        """From `first` on in one segment that ends where a signature is (SPEC S6); None at the end."""
        shelf = self.shelves.get(feed)
        if shelf is None or first >= shelf.stop:
            return None
        index = bisect_right(shelf.stops, first)
        taken = [shelf.rows[index].segment]
        for stop, row in zip(shelf.stops[index + 1 :], shelf.rows[index + 1 :], strict=True):
            if stop - first > MAX_SEGMENT_UPDATES:
                break
            taken.append(row.segment)
        if len(taken) == 1 and taken[0].first == first:
            return taken[0]
        parts = drop_updates(merge(taken), first - taken[0].first)
        return Segment(taken[0].feed_key, first, parts, taken[-1].signature)

    def head(self, feed: Feed, step: int) -> bytes:
        """The chain head before `step`, which is at most the end."""
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
        """The chain head before `step`, and what is here from there to the next signature (as `store.log`).

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
        """The state that follows from what is on disk."""
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
        """Everything that counts: (epoch, scalar) of every feed, in order."""
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
        """A backup: what is synced, and nothing else."""
        twin = Disk(self.run, self.own)
        for feed, shelf in self.shelves.items():
            twin.shelves[feed] = replace(shelf, rows=list(shelf.rows), stops=list(shelf.stops))
        return twin


def cut_chain(run: RunParameters, proof: Proof) -> bytes:
    """The chain head where the proof cuts its feed."""
    return proof.chains[0] if proof.cut else genesis(run.run_id, proof.feed)


def merge(segments: list[Segment]) -> tuple[EpochScalars, ...]:
    """The parts of consecutive segments, those of one epoch joined."""
    merged: list[tuple[int, list[int]]] = []
    for part in (part for segment in segments for part in segment.parts):
        if merged and merged[-1][0] == part.epoch:
            merged[-1][1].extend(part.scalars)
        else:
            merged.append((part.epoch, list(part.scalars)))
    return tuple(EpochScalars(epoch, tuple(scalars)) for epoch, scalars in merged)
