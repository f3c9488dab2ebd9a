"""Replaying a real run's log in the simulator: its updates flood among virtual clients, who find digests.

Every feed of the log begins at a client of its own; segments travel as they were signed, decisions as one
more origin. When nobody lacks anything, each client's digests are those that `sfnode verify` finds in the
folder. No model is needed. This module trains nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from sflab.baselines.clients import EdgeTraffic
from sflab.experiments.cell import CellNetwork
from sflab.experiments.flooding import Conditions, Flood
from sfnode.engine.core import Core, UpdateBatch
from sfnode.errors import Code, UserError
from sfnode.manifest import Manifest
from sfnode.store.checkout import last_seal
from sfnode.store.data_folder import Layout
from sfnode.store.log import UpdateLog
from sfnode.store.replay import counting_of, kept_control, sound_control, state_digest
from sfprotocol import wire_codec
from sfprotocol.control_sync import ControlSync, Kept
from sfprotocol.counting import named_digest
from sfprotocol.errors import RemoteProtocolError
from sfprotocol.events import Counters
from sfprotocol.frontier import Frontier
from sfprotocol.holding import labelled_after
from sfprotocol.messages import Control, Feed, RunParameters, Segment
from sfprotocol.seeds import feed_key, update_seeds
from sfprotocol.segments import MAX_SEGMENT_UPDATES, first_updates
from sfprotocol.signing import extend, genesis, verifies
from sfprotocol.weighing import NOTHING, Counted, once

MOST_ROUNDS = 10_000
"""Rounds after which a flood that has not reached all is given up."""


class Replayed(NamedTuple):
    """The state of all clients at the end, which is one and the same."""

    clients: int
    updates: int
    rounds: int
    digest: str
    named_digest: str | None
    """Digest of what was named up to the last seal; None in an open run."""
    core_digest: str
    bytes_per_edge: float


class _LoggedFeed(NamedTuple):
    feed: Feed
    segments: tuple[Segment, ...]

    def between(self, first: int, stop: int) -> list[Segment]:
        """Return the segments with these steps, of which a client has or lacks whole ones."""
        return [one for one in self.segments if first <= one.first and one.stop <= stop]


def replay(folder: Path, network: CellNetwork, seed: int) -> Replayed:
    """Flood the updates of a data folder; `network` with a client for each feed at least, else as many are
    taken.

    Raises UserError DATA_DIR_UNUSABLE, LOG_CORRUPT, and LOG_NOT_SIMULATED for a log that begins with a
    checkpoint or has forks, or where the clients' network falls apart.
    """
    layout = Layout(folder)
    manifest = Manifest.from_toml(layout.manifest)
    with UpdateLog.open(layout.log, manifest.run_id, read_only=True) as update_log:
        if update_log.bases() or update_log.cuts():
            raise _not_simulated(folder, "it begins with a checkpoint, or a feed in it is forked")
        feeds = [
            _LoggedFeed(tail.feed, tuple(_segments(update_log, tail.feed))) for tail in update_log.tails()
        ]
        with sound_control(update_log):
            control = kept_control(update_log)
    clients = max(network.clients, len(feeds), 1)
    return _Replay(manifest, feeds, control, network.model_copy(update={"clients": clients}), seed).run(
        folder
    )


def _segments(update_log: UpdateLog, feed: Feed) -> Iterator[Segment]:
    first = 0
    while (segment := update_log.read(feed, first, MAX_SEGMENT_UPDATES)) is not None:
        yield segment
        first = segment.stop


class _Replay:
    def __init__(
        self,
        manifest: Manifest,
        feeds: list[_LoggedFeed],
        control: Kept,
        network: CellNetwork,
        seed: int,
    ) -> None:
        self._manifest = manifest
        self._run: RunParameters = manifest.parameters()
        self._feeds = feeds
        self._entries, self._authority = control.entries, control.authority
        self._traffic = EdgeTraffic()
        self._flood = Flood(Conditions(network, seed), len(feeds) + 1, self._size, self._traffic)
        for number, one in enumerate(feeds):
            self._flood.known[number, number] = one.segments[-1].stop if one.segments else 0
        self._flood.known[0, -1] = len(self._entries)

    def run(self, folder: Path) -> Replayed:
        wanted = self._flood.known.max(0)
        rounds = 0
        while (self._flood.known < wanted).any():
            if rounds == MOST_ROUNDS:
                raise _not_simulated(
                    folder,
                    f"after {rounds:,} rounds some clients still lack updates, because their network has "
                    "parts without a link, or much churn and loss",
                )
            self._flood.round(rounds)
            rounds += 1
        return self._state(rounds)

    def _size(self, origin: int, first: int, stop: int) -> int:
        if origin == len(self._feeds):
            control = Control(first, self._entries[first:stop])
            return len(wire_codec.encode(control, *self._run.form))
        told = self._feeds[origin].between(first, stop)
        return sum(len(wire_codec.encode(one, *self._run.form)) for one in told)

    def _state(self, rounds: int) -> Replayed:
        """Work out the state of a client that has everything."""
        frontier = Frontier(self._run)
        if self._run.organised:
            self._verify_control(frontier)
        for one in self._feeds:
            chain = genesis(self._run.run_id, one.feed)
            for segment in one.segments:
                chain = extend(chain, segment.parts)
                if not verifies(self._run.run_id, one.feed, segment.stop, chain, segment.signature):
                    raise UserError(
                        Code.LOG_CORRUPT,
                        f"a segment that ends with step {segment.stop} is not signed by its origin",
                        "Run `sfnode verify` on the folder.",
                    )
                labelled = labelled_after(frontier.state(one.feed), segment.parts)
                frontier.advance(one.feed, segment.stop, chain, segment.parts[-1].epoch, labelled)
        counted = {one.feed: once(frontier.next(one.feed)) for one in self._feeds}
        named = None
        if self._run.organised:
            counted, named = self._sealed(frontier)
        return Replayed(
            clients=len(self._flood.known),
            updates=frontier.known,
            rounds=rounds,
            digest=state_digest(self._manifest, frontier).hex(),
            named_digest=named,
            core_digest=self._core(counted).digest().hex(),
            bytes_per_edge=self._traffic.per_edge,
        )

    def _verify_control(self, frontier: Frontier) -> None:
        """Verify all decisions, and let the frontier count by them."""
        kept = Kept(self._entries, self._authority)
        try:
            ControlSync(frontier, {}, Counters(), kept=kept, sign=None)
        except RemoteProtocolError as error:
            raise UserError(
                Code.LOG_CORRUPT, f"the control feed: {error}", "Run `sfnode verify` on the folder."
            ) from error

    def _sealed(self, frontier: Frontier) -> tuple[dict[Feed, Counted], str | None]:
        """Return what counts by the last seal, and the digest of what was named up to it."""
        checkout = last_seal(self._run, self._entries, frontier.next)
        if checkout.epoch is None:
            return {}, None
        counting = counting_of(self._run, self._entries)
        by_feed = {one.feed: one for one in self._feeds}
        heads = [
            (number, stop, self._head(by_feed[counting.feed(number)], stop))
            for number, stop in counting.positions(checkout.epoch).items()
            if stop
        ]
        return checkout.counted, named_digest(self._run.run_id, heads).hex()

    def _head(self, one: _LoggedFeed, stop: int) -> bytes:
        """Return the chain hash after so many updates."""
        parts = [part for segment in one.segments for part in segment.parts]
        return extend(genesis(self._run.run_id, one.feed), first_updates(parts, stop))

    def _core(self, counted: dict[Feed, Counted]) -> Core:
        """Return the core of what counts."""
        core = Core(*self._manifest.core_shape)
        for one in self._feeds:
            weighed = counted.get(one.feed, NOTHING)
            told = [(part.epoch, scalar) for s in one.segments for part in s.parts for scalar in part.scalars]
            factors: list[int] = []
            for run in weighed.runs:
                factors += [run.factor] * (run.stop - len(factors))
            epochs = [label for label, _ in told[: len(factors)]]
            scalars = [
                scalar * weighed.weight(label, factor)
                for (label, scalar), factor in zip(told, factors, strict=False)
            ]
            core.add(
                UpdateBatch(
                    np.array([self._run.subspace_of(label) for label in epochs], np.int64),
                    update_seeds(feed_key(self._run.run_id, *one.feed), 0, len(factors)),
                    np.array(scalars, np.int64),
                )
            )
        return core


def _not_simulated(folder: Path, reason: str) -> UserError:
    return UserError(
        Code.LOG_NOT_SIMULATED,
        f"the log in {folder} cannot be replayed by virtual clients: {reason}",
        "Take the folder of a node that keeps all history, and a network in which everybody is in touch.",
    )
