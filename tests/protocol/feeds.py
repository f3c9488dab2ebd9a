"""Origins with known keys, the segments that they sign, and a log in memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import takewhile

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from sfprotocol.checkpoints import Base
from sfprotocol.decisions import Checkpoint
from sfprotocol.events import Admit, OwnUpdates, Rebase
from sfprotocol.fields import Values
from sfprotocol.frontier import UNCUT, Frontier
from sfprotocol.host import Host
from sfprotocol.messages import Branch, EpochScalars, Feed, Proof, RunParameters, Segment
from sfprotocol.segments import MAX_SEGMENT_UPDATES, first_updates, join, merge, without_front
from sfprotocol.signing import extend, head_message

RUN = RunParameters(bytes(range(32)), epoch_updates=50, update_budget=5000, scalar_bytes=2, scalar_limit=1000)


@cache
def signing_key(name: str) -> Ed25519PrivateKey:
    return Ed25519PrivateKey.from_private_bytes(name.encode().ljust(32, b"."))


@cache
def origin_of(name: str) -> bytes:
    return signing_key(name).public_key().public_bytes_raw()


Told = tuple[int, int]
"""One update: (epoch, scalar)."""

Parts = Sequence[EpochScalars]


def signed(name: str, incarnation: int, first: int, parts: Parts, before: Parts = ()) -> Segment:
    """Return the segment of the origin `name` with `parts` from step `first` on, after `before`."""
    feed = Feed(origin_of(name), incarnation)
    state = Frontier(RUN).state(feed)
    chain = extend(extend(state.chain, before), parts)
    segment = Segment(state.key, first, tuple(parts), b"")
    head = head_message(RUN.run_id, feed, segment.stop, chain)
    return replace(segment, signature=signing_key(name).sign(head))


def forked(name: str, incarnation: int = 1, before: Parts = (), scalars: tuple[int, int] = (1, 2)) -> Proof:
    """Return the proof that the origin `name` has signed two different updates after `before`."""
    feed, at = Feed(origin_of(name), incarnation), sum(len(part.scalars) for part in before)
    chain = extend(Frontier(RUN).state(feed).chain, before)
    parts = [(EpochScalars(0, (scalar,)),) for scalar in scalars]
    one, other = (Branch(part, signed(name, incarnation, at, part, before).signature) for part in parts)
    return Proof(feed, at, (chain, chain), (one, other))


def own_updates(host: Host, most: int, scalar: Callable[[], Values]) -> OwnUpdates | None:
    """Return the next updates of a host's own feed, at most `most`, as an engine would finish them now;
    None if none may be made. Posted updates count as made. The result is not posted."""
    machine, own = host.machine, host.machine.own
    if own is None or not machine.may_compute:
        return None
    state, run = machine.frontier.state(own), machine.run
    made = [event for event in host._events if isinstance(event, OwnUpdates) and event.feed == own]
    first = state.next + sum(event.count for event in made)
    allowed = machine.room - (first - state.next) if run.organised else run.longest_feed - first
    count = min(most, allowed, run.form.segment_updates)
    if count <= 0:
        return None
    epoch = max([state.epoch, machine.epoch, *(event.parts[-1].epoch for event in made)])
    return OwnUpdates(own, first, (EpochScalars(epoch, tuple(scalar() for _ in range(count))),))


@dataclass
class Log:
    """The log of one node: the segments of each feed, in the order of admission."""

    rows: dict[Feed, list[tuple[Segment, bytes]]] = field(default_factory=dict)
    cuts: dict[Feed, tuple[Proof, bytes]] = field(default_factory=dict)
    """The proof of the lowest cut of each cut feed, with the chain head at the cut."""
    organised: bool = False
    """Whether a segment may replace updates of another history."""
    checkpoint: Checkpoint | None = None
    bases: dict[Feed, Base] = field(default_factory=dict)
    """The bases of feeds in the checkpoint. Earlier updates cannot be read."""

    def append(self, admit: Admit) -> None:
        rows = self.rows.setdefault(admit.feed, [])
        first, segment = admit.segment.first, admit.segment
        if self.organised and rows and first < rows[-1][0].stop:
            kept = [row for row in rows if row[0].stop <= first]
            spanning = [row[0] for row in rows if row[0].first < first < row[0].stop]
            if spanning:
                head = first_updates(spanning[0].parts, first - spanning[0].first)
                parts = merge([*head, *segment.parts])
                segment = replace(segment, first=spanning[0].first, parts=parts)
            rows[:] = kept
        assert segment.first == self.stop(admit.feed), "admitted twice, or with a gap"
        rows.append((segment, admit.chain))

    def base(self, feed: Feed) -> int:
        return self.bases[feed].step if feed in self.bases else 0

    def rebase(self, rebase: Rebase) -> None:
        self.checkpoint = rebase.checkpoint
        for base in rebase.bases:
            self.bases[base.feed] = base
            rows = [row for row in self.rows.get(base.feed, []) if row[0].stop > base.step]
            if rows and rows[0][0].first < base.step:
                rows[0] = without_front(rows[0][0], base.step), rows[0][1]
            self.rows[base.feed] = rows

    def stop(self, feed: Feed) -> int:
        """Return the first step that is not stored."""
        rows = self.rows.get(feed)
        return rows[-1][0].stop if rows else self.base(feed)

    def label(self, feed: Feed, step: int) -> tuple[int, int]:
        """Return the epoch of the update before `step`, and the number of consecutive updates before
        `step` with this epoch."""
        epochs = [p.epoch for segment, _ in self.rows.get(feed, []) for p in segment.parts for _ in p.scalars]
        base = self.bases.get(feed)
        if base:
            epochs = [base.epoch] * base.labelled + epochs
            step += base.labelled - base.step
        before = epochs[:step][::-1]
        return (before[0], len(list(takewhile(lambda e: e == before[0], before)))) if before else (0, 0)

    def read(self, feed: Feed, first: int, max_updates: int = MAX_SEGMENT_UPDATES) -> Segment:
        """Return the updates from `first` on as one segment that ends at a signature (SPEC S6)."""
        assert first >= self.base(feed), "what is read is not kept"
        rows = (segment for segment, _ in self.rows[feed] if segment.stop > first)
        return join(rows, first, max_updates)

    def cut(self, proof: Proof, chain: bytes) -> None:
        assert proof.cut < self.cut_of(proof.feed), "cut again, and not lower"
        self.cuts[proof.feed] = proof, chain

    def evict(self, feed: Feed) -> None:
        self.rows.pop(feed, None)
        self.cuts.pop(feed, None)

    def cut_of(self, feed: Feed) -> int:
        return self.cuts[feed][0].cut if feed in self.cuts else UNCUT

    def past(self, run: RunParameters, feed: Feed, step: int) -> tuple[bytes, Segment]:
        """Return the chain head before `step`, and the updates from there to the next signature. Beyond
        the end the head is empty."""
        assert step >= self.base(feed), "what is read is not kept"
        state = Frontier(run).state(feed)
        chain, signature = self.bases[feed].chain if feed in self.bases else state.chain, bytes(64)
        for segment, head in self.rows.get(feed, []):
            if segment.stop > step:
                chain = extend(chain, first_updates(segment.parts, step - segment.first))
                return chain, without_front(segment, step)
            chain, signature = head, segment.signature
        return chain if step == self.stop(feed) else b"", Segment(state.key, step, (), signature)

    def frontier(self, run: RunParameters) -> Frontier:
        frontier = Frontier(run)
        if self.checkpoint:
            frontier.rebase(self.checkpoint, self.bases.values())
        for feed, rows in self.rows.items():
            if not rows:
                continue
            segment, chain = rows[-1]
            _, labelled = self.label(feed, segment.stop)
            frontier.advance(feed, segment.stop, chain, segment.parts[-1].epoch, labelled)
        for feed, (proof, chain) in self.cuts.items():
            frontier.cut(feed, proof.cut, chain)
        return frontier

    def updates(self) -> dict[Feed, list[Told]]:
        """Return the updates that count."""
        told = {
            feed: [(p.epoch, scalar) for segment, _ in rows for p in segment.parts for scalar in p.scalars]
            for feed, rows in self.rows.items()
        }
        run_state = {feed: updates[: self.cut_of(feed)] for feed, updates in told.items()}
        return {feed: updates for feed, updates in run_state.items() if updates}

    def copy(self) -> Log:
        return Log({feed: list(rows) for feed, rows in self.rows.items()}, dict(self.cuts))
