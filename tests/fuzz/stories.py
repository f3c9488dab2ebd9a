"""Histories that origins have signed, which may branch, and the oracle of everything that was ever signed.

It does not depend on the state of any node.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from functools import cache

from sfprotocol.fields import Values
from sfprotocol.messages import Branch, Card, EpochScalars, Feed, Proof, RunParameters, Segment
from sfprotocol.seeds import feed_key
from sfprotocol.segments import drop_updates, first_updates
from sfprotocol.signing import card_message, extend, genesis, head_message
from tests.protocol.feeds import origin_of
from tests.protocol.feeds import signing_key as key_of

CELLS = int(os.environ.get("SFNODE_FUZZ_CELLS", "0"))
"""Number of scalars of an update; 0: one along a direction. Otherwise courses are those of a first-order
run."""

RUN = RunParameters(
    bytes(range(32)),
    epoch_updates=16,
    update_budget=320,
    scalar_bytes=2,
    scalar_limit=1000,
    version=4 if CELLS else 3,
    cells=CELLS,
)

Told = tuple[int, Values]
"""One update: its epoch and its values."""


def saying(scalar: int, cells: int = CELLS) -> Values:
    """Return the values of an update with this scalar. In a first-order run every second cell has the
    opposite sign."""
    return tuple(-scalar if cell % 2 else scalar for cell in range(cells)) if cells else scalar


Parts = tuple[EpochScalars, ...]


def flat(parts: Sequence[EpochScalars]) -> list[Told]:
    return [(epoch, scalar) for epoch, scalars in parts for scalar in scalars]


HISTORY = 40
"""Number of updates in every history of a hostile origin."""

BOUNDARY = 12
"""Step at which their label changes."""

NAMES = ("eve", "mal", "zed")

PARTINGS = (0, 3, 9)
"""Steps at which the second, third and fourth history of a forked feed part from the first."""


class Saga:
    """One feed of a hostile origin: one history, or several."""

    def __init__(
        self,
        name: str,
        incarnation: int,
        partings: Sequence[int],
        *,
        run: RunParameters = RUN,
        labels: tuple[int, int] = (0, 2),
        first: Sequence[int] = range(HISTORY),
    ) -> None:
        """Make the feed. Its `first` history has one label and then another; the others part from it at
        `partings`."""
        self.name = name
        self.run = run
        self.feed = Feed(origin_of(name), incarnation)
        self.key = feed_key(run.run_id, *self.feed)
        self.partings = (HISTORY, *partings)
        self.histories = [
            self._history(labels, [*first[:at], *(100 * branch + n for n in range(at, HISTORY))])
            for branch, at in enumerate(self.partings)
        ]

    def _history(self, labels: tuple[int, int], scalars: Sequence[int]) -> Parts:
        boundary = BOUNDARY if labels[0] != labels[1] else HISTORY
        said = [saying(scalar, self.run.cells) for scalar in scalars]
        parts = zip(labels, (tuple(said[:boundary]), tuple(said[boundary:])), strict=True)
        return tuple(EpochScalars(*part) for part in parts if part[1])

    def chain(self, branch: int, step: int) -> bytes:
        return extend(genesis(self.run.run_id, self.feed), first_updates(self.histories[branch], step))

    def sign(self, stop: int, chain: bytes) -> bytes:
        return _sign(self.name, self.run.run_id, self.feed, stop, chain)

    def segment(self, branch: int, first: int, stop: int, hops: int = 0) -> Segment:
        parts = drop_updates(first_updates(self.histories[branch], stop), first)
        return Segment(self.key, first, parts, self.sign(stop, self.chain(branch, stop)), hops)

    def branch(self, at: int, chain: bytes, parts: Parts) -> Branch:
        """Return a history that continues from any chain head, even one without known updates before it."""
        return Branch(parts, self.sign(at + len(flat(parts)), extend(chain, parts)))

    def fork(self, branch: int, count: int) -> Proof:
        """Return the proof that another history parts from the first one, at the step where they part."""
        at = self.partings[branch]
        chain = self.chain(0, at)
        first, second = (
            self.branch(at, chain, drop_updates(first_updates(self.histories[which], at + count), at))
            for which in (0, branch)
        )
        return Proof(self.feed, at, (chain, chain), (first, second))

    def invented(self, at: int, chains: tuple[bytes, bytes], empty: bool) -> Proof:
        """Return a valid proof of two histories that nobody has seen."""
        one, other = (
            ((), ())
            if empty
            else (
                (EpochScalars(0, (saying(1, self.run.cells),)),),
                (EpochScalars(0, (saying(2, self.run.cells),)),),
            )
        )
        branches = self.branch(at, chains[0], one), self.branch(at, chains[1], other)
        return Proof(self.feed, at, chains, branches)

    def card(self, step: int, name: str) -> Card:
        """Return the card with the name of this origin from `step` on."""
        unsigned = Card(self.feed, step, name, "", bytes(64))
        return replace(unsigned, signature=key_of(self.name).sign(card_message(self.run.run_id, unsigned)))


@cache
def _sign(name: str, run_id: bytes, feed: Feed, stop: int, chain: bytes) -> bytes:
    return key_of(name).sign(head_message(run_id, feed, stop, chain))


SAGAS = (
    *(Saga("eve", incarnation, PARTINGS) for incarnation in range(1, 5)),
    *(Saga("mal", incarnation, (5,)) for incarnation in range(1, 5)),
    *(Saga("zed", incarnation, ()) for incarnation in range(1, 3)),
)
"""Hostile feeds: so many that some remain uncut for long."""


class Stories:
    """The oracle: all histories that anybody ever signed."""

    def __init__(self) -> None:
        self._told: dict[Feed, list[list[Told]]] = {
            saga.feed: [flat(parts) for parts in saga.histories] for saga in SAGAS
        }
        self._heads: dict[bytes, list[Told]] = {}
        self.named: set[Feed] = set(self._told)
        """All feeds that anybody has named."""
        self.others = False
        """Whether unknown origins may sign, too."""
        self.split: set[Feed] = set()
        """Feeds of honest origins that forked after their node was restored from a backup."""

    def goes_on(self, feed: Feed, first: int, before: bytes, parts: Parts) -> None:
        """Extend the history of an honest origin after its chain head `before`."""
        past = self._heads[before] if first else []
        history = past + flat(parts)
        chain = before if first else genesis(RUN.run_id, feed)
        self._heads[extend(chain, parts)] = history
        known = self._told.setdefault(feed, [])
        known[:] = [other for other in known if other != past] + [history]
        self.named.add(feed)
        if len(known) > 1:
            self.split.add(feed)

    def told(self, feed: Feed, updates: list[Told]) -> bool:
        """Return whether the origin has signed these updates as the beginning of one history."""
        if feed not in self._told:
            return self.others
        return any(history[: len(updates)] == updates for history in self._told[feed])

    def may_be_cut(self, feed: Feed) -> bool:
        """Return whether the origin may have forked. Otherwise no proof can exist."""
        hostile = feed.origin in {origin_of(name) for name in NAMES}
        return hostile or feed in self.split or (self.others and feed not in self._told)
