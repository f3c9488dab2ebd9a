"""The node at client 0 of a simulated run: a real machine, its log on disk, and the organiser.

It takes the signed segments that client 0 has received, as frames over a link whose far end is all clients
together, with a clock of its own that goes on only here. In an organised run its organiser decides as
the daemon's: alone, as nobody else has the key. What it leaves is a data folder that `sfnode verify` reads.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from sflab.experiments.problem import public
from sfnode.engine.core import Core, UpdateBatch
from sfnode.errors import Code, UserError
from sfnode.manifest import Manifest
from sfnode.node.driver import LogStore
from sfnode.organising.evaluation.judging import at_rate
from sfnode.organising.events import (
    BasesMade,
    Evaluate,
    EvaluationEnded,
    Event,
    MakeBases,
    OwnerDecision,
    Round,
    Sign,
)
from sfnode.organising.guard import Rows
from sfnode.organising.organiser import LOOK_INTERVAL, Organiser
from sfnode.organising.policy import Admission, OrganiserPolicy
from sfnode.organising.view import View
from sfnode.store.data_folder import Layout
from sfnode.store.disk_errors import disk_faults
from sfnode.store.log import UpdateLog
from sfnode.store.replay import changes, counted_anew, frontier_of, kept_control
from sfprotocol import decisions, wire_codec
from sfprotocol.counting import NEVER, Counting, Run
from sfprotocol.decisions import FACTOR_ONE, Admit, Bases, Budget, Close, Recount
from sfprotocol.events import LinkDown, LinkUp, OwnDecision, Received
from sfprotocol.host import Advanced, Host
from sfprotocol.machine import Machine
from sfprotocol.messages import Claim, Control, Feed, Hello, Message, Segment, Summary
from sfprotocol.seeds import I64, derive_key, stream
from sfprotocol.weighing import NOTHING, Counted, differences, once
from sfprotocol.wire_codec import MAX_ENTRIES

LINK = 1
"""Number of the link to all clients."""

LONGEST_EPOCH = 604_800.0
"""Seconds: epochs end by count, and by this only when the run is over."""

LONGEST_WAIT = 86_400.0
"""Seconds: results come at once."""

ROUND = 5.0
"""Seconds between two rounds of communication: a link is not silent for too long, and may bring some 150 kB
each time (SPEC L9)."""

TAG = bytes(4)
"""Tag of an empty feed, which is not looked at."""


class Correction(NamedTuple):
    """Steps `first` to `stop` of a feed that count otherwise from a decision on."""

    decision: int
    feed: Feed
    first: int
    stop: int
    before: int
    """Their factor until then."""
    factor: int


Named = Mapping[Feed, tuple[UpdateBatch, I64]]
"""Updates of each feed, with their scalars as they were sent, and the factors of these in cores."""

Measure = Callable[[Evaluate, Mapping[int, I64], Mapping[int, I64], Named], EvaluationEnded]
"""Measures at once what the organiser asks for, from the cores of the seals before to those of the epoch, and
of the updates that this one has named."""


Make = Callable[[Mapping[int, I64]], bytes]
"""Makes bases at once, at the weights with these cores, and returns their digest."""


class Keeper:
    """A run's node in the simulator."""

    def __init__(
        self,
        manifest: Manifest,
        folder: Path,
        feeds: Iterable[Feed],
        key: Ed25519PrivateKey,
        measure: Measure | None = None,
        make: Make | None = None,
        renew_updates: int = 0,
        *,
        search: bool = True,
        guard: bool = False,
        origins: bool = False,
    ) -> None:
        """Begin anew in a folder that is empty, or has been used for this very run. `key` signs decisions, if
        the run is organised; with `measure` it is evaluated, factors and rates are found by line searches
        unless `search` is false, and a `guard` watches over it; with `origins` seals skip the work of members
        whom the evidence does not speak for; with `make` bases are renewed every so many updates. Raises
        UserError BAD_OPTION, DISK_FULL, DATA_DIR_UNUSABLE."""
        self._measure, self._make = measure, make
        self._renew_updates, self._origins = renew_updates, origins
        self._search, self._guard = search and measure is not None, guard
        self.run = manifest.parameters()
        self._layout = Layout(folder)
        with disk_faults(folder):
            folder.mkdir(parents=True, exist_ok=True)
            _check(folder, self._layout, manifest)
            _remove(self._layout.log)
            self._layout.manifest.write_text(manifest.to_toml(), encoding="utf-8")
        self._feeds = list(feeds)
        self._key = key
        self._manifest = manifest
        self._now = 0.0
        self._open()
        if self._organiser and not self.decided:
            for feed in self._feeds:
                self._tell(OwnerDecision(Admit(feed.origin, manifest.organised.quota, 0)))
                self._settle()
        self._meet()

    def _open(self) -> None:
        self._log = UpdateLog.open(self._layout.log, self.run.run_id)
        self.machine = Machine(
            self.run,
            frontier_of(self.run, self._log),
            own=None,
            sign=self._key.sign,
            draw_incarnation=lambda: 0,
            proven=True,
            now=self._now,
            control=kept_control(self._log),
            sign_control=self._key.sign if self.run.organised else None,
        )
        self._store = LogStore(self._log, self.run, lambda feed: None)
        self._host = Host(self.machine, self._store)
        self._organiser = self._start_organiser() if self.run.organised else None
        self._acted = 0
        self._counting = Counting.of(self.run)
        """State of the run by the decisions of which `corrections` has told."""
        self._live: dict[Feed, tuple[Run, ...]] = {}
        """Factors by these decisions, to the end of all steps, where not all are 1."""
        self._epochs = [0]
        """The open epoch by the number of decisions."""

    def _start_organiser(self) -> Organiser:
        policy = OrganiserPolicy(
            target_updates=self.run.epoch_updates,
            longest_epoch=LONGEST_EPOCH,
            seal_wait=LONGEST_WAIT if self._measure else 0.0,
            search_rows=self._manifest.data.validation_limit if self._search else 0,
            origins=self._origins,
            guard=self._guard,
            renew_updates=self._renew_updates if self._make else 0,
            update_forwards=self._manifest.update_forwards,
            admission=Admission.LINKS,
            quota=self._manifest.organised.quota,
            amend_after=None,
            checkpoint_epochs=None,
        )
        return Organiser(
            View(self.machine, self._store),
            policy,
            at_rate(self.run.rate),
            key=public(self._key),
            draw=self._draw,
            alone=True,
            now=self._now,
        )

    def _draw(self, count: int) -> bytes:
        """Return bytes that follow from the run and from how much was decided."""
        key = derive_key(b"sfnode simulated salt", self.run.run_id, self.decided.to_bytes(8, "big"))
        return stream(key, 0, count).astype("u1").tobytes()

    def _meet(self) -> None:
        """Let the link come up and teach the names of all feeds."""
        self._host.post(LinkUp(LINK, "clients"))
        self._hear(Hello(self.run.version, self.run.run_id, 0, 0))
        for start in range(0, len(self._feeds), MAX_ENTRIES):
            claims = tuple(Claim(feed, 0, TAG) for feed in sorted(self._feeds)[start : start + MAX_ENTRIES])
            last = start + MAX_ENTRIES >= len(self._feeds)
            self._hear(Summary(not last, 0, self.machine.frontier.digest(), claims))
        self._settle()

    # -- what others ask -------------------------------------------------------------------------------

    @property
    def decided(self) -> int:
        """Number of decisions so far."""
        return self.machine.organised.control.feed.stop if self.machine.organised else 0

    def open_epoch(self, known: int) -> int:
        """Return the epoch that is open by the first `known` decisions."""
        assert self.machine.organised
        entries = self.machine.organised.control.feed.entries
        for entry in entries[len(self._epochs) - 1 :]:
            closes = isinstance(decisions.read(entry.record).decision, Close)
            self._epochs.append(self._epochs[-1] + closes)
        return self._epochs[known]

    @property
    def complete(self) -> bool:
        """Whether nobody makes updates any more."""
        return self.machine.organised is not None and self.machine.organised.counting.complete

    def sealed_cores(self) -> Mapping[int, I64]:
        """Return the cores by the seals so far."""
        assert self.machine.organised
        return self._cores(self.machine.organised.counting.sealed - 1)

    def rate(self, label: int) -> int:
        """Return the rate of updates with this label, in units of 2^-32."""
        assert self.machine.organised
        return self.machine.organised.counting.rate(label)

    @property
    def bases(self) -> tuple[Bases, ...]:
        """The published bases as of now; those of subspaces that have begun do not change."""
        return self.machine.organised.counting.bases if self.machine.organised else ()

    def corrections(self, made: Mapping[Feed, int]) -> list[Correction]:
        """Return what decisions since the last call have changed of the factors of steps, of which so many
        are made, in the weights of those who make updates."""
        assert self.machine.organised
        counting, found = self._counting, []
        for entry in self.machine.organised.control.feed.entries[counting.decisions :]:
            decision = counting.decisions
            for number in sorted(counting.apply(decisions.read(entry.record))):
                feed, now = counting.feed(number), counting.live(number, NEVER)
                before = Counted(self._live.get(feed, once(NEVER).runs))
                self._live[feed] = now
                found += [
                    Correction(decision, feed, one.first, min(one.stop, made[feed]), one.before, one.now)
                    for one in differences(before, Counted(now))
                    if one.first < made[feed]
                ]
        return found

    def factor(self, feed: Feed) -> int:
        """Return the factor with which the next update of a feed counts as long as no seal has judged it."""
        return self._live[feed][-1].factor if feed in self._live else FACTOR_ONE

    def counted(self) -> dict[Feed, int]:
        """Return how many updates of each feed count by the seals so far."""
        assert self.machine.organised
        counting = self.machine.organised.counting
        named = self.machine.organised.named(counting.sealed - 1)
        return {
            feed: sum(one.stop - one.first for one in differences(NOTHING, counted) if one.now)
            for feed, counted in named.items()
        }

    def control_size(self, first: int, stop: int) -> int:
        """Return the bytes in which decisions `first .. stop - 1` travel."""
        assert self.machine.organised
        entries = tuple(self.machine.organised.control.feed.entries[first:stop])
        return len(wire_codec.encode(Control(first, entries), *self.run.form))

    # -- what client 0 receives ------------------------------------------------------------------------

    def take(self, segments: Iterable[Segment]) -> None:
        """Take what client 0 has received in a round, and decide what is due."""
        self._now += ROUND
        for segment in segments:
            self._hear(segment)
        self._settle()

    def finish(self, segments: Iterable[Segment], made: Mapping[Feed, int]) -> None:
        """Take what client 0 has received last, and close and seal all that is left of what feeds have made:
        the run is over."""
        self._expect_no_more(made)
        self.take(segments)
        self._expect_no_more(made)
        self._host.post(LinkDown(LINK))
        self._settle()
        self._now += LONGEST_EPOCH + ROUND
        self._settle()

    def _expect_no_more(self, made: Mapping[Feed, int]) -> None:
        """Set the budget of an organised run to what counts and what is still to be named of these updates:
        its organiser knows that it ends."""
        if self.machine.organised is None:
            return
        counting, left = self.machine.organised.counting, 0
        for feed, stop in made.items():
            number, member = counting.number(feed), counting.member(feed.origin)
            if number is not None and member and member.revoked == NEVER:
                left += stop - counting.named(number)
        self._tell(OwnerDecision(Budget(counting.promised + left)))

    def close(self) -> None:
        """Close the log."""
        self._log.close()

    def _hear(self, message: Message) -> None:
        self._host.post(Received(LINK, wire_codec.encode(message, *self.run.form)))

    def _settle(self) -> None:
        """Let time pass until everything that was heard is in the log and nothing is left to decide."""
        while True:
            self._rounds()
            if not self._organiser:
                return
            acted = self._acted
            self._now = max(self._now, self._organiser.next_deadline())
            self._tell(Round())
            # an epoch that was open for too short a time is closed soon
            soon = self._organiser.next_deadline() < self._now + LOOK_INTERVAL
            if self._acted == acted and not soon:
                return

    def _rounds(self) -> None:
        while self._host.waiting or self._resting():
            if not self._host.waiting:
                self._now = max(self._now, self._host.next_deadline())
            commit = self._host.decide(self._now)
            if commit is not None:
                self._store.append(commit)
            effects = self._host.carry_out()
            moved = tuple(effect.feed for effect in effects if isinstance(effect, Advanced))
            if self._organiser:
                self._tell(Round(moved))

    def _resting(self) -> bool:
        return self.machine.rests_until(LINK) > self._now

    def _tell(self, event: Event) -> None:
        assert self._organiser
        for action in self._organiser.handle(event, self._now):
            match action:
                case Sign(decision=decision):
                    self._acted += 1
                    self._host.post(OwnDecision(decisions.encode(decision)))
                case Evaluate(epoch=epoch) if self._measure:
                    self._acted += 1
                    cores = self._cores(epoch - 1), self._cores(epoch, action.skipped, action.recounted)
                    self._tell(self._measure(action, *cores, self._named_by(epoch)))
                case MakeBases(epoch=epoch) if self._make:
                    self._acted += 1
                    self._tell(BasesMade(self._make(self._cores(epoch))))

    def _named_by(self, epoch: int) -> Named:
        """Return the updates that the close of an epoch has named and that count, with their weights."""
        assert self.machine.organised
        named = self.machine.organised.named
        return counted_anew(self._log, named(epoch - 1), named(epoch), self.run.subspace_of)

    def _cores(
        self, epoch: int, skipped: Iterable[int] = (), recounted: Iterable[Recount] = ()
    ) -> Mapping[int, I64]:
        """Return the cores of what closes up to that of `epoch` have named, as it counts now, without what
        that one has named of the feeds `skipped`, and with what is `recounted`."""
        assert self.machine.organised
        core = Core(*self._manifest.core_shape)
        for batch in changes(self._log, {}, self.machine.organised.named(epoch, skipped, recounted)):
            core.add(batch)
        return core.cores()

    # -- restarts --------------------------------------------------------------------------------------

    @property
    def memory(self) -> dict[str, Any] | None:
        """The memory of the search, if there is one."""
        search = self._organiser.search if self._organiser else None
        return search.memory if search else None

    def state(self) -> bytes:
        """Return the log as it is now."""
        with sqlite3.connect(self._layout.log) as file, sqlite3.connect(":memory:") as copy:
            file.backup(copy)
            return copy.serialize()

    @property
    def rows(self) -> Rows:
        """Losses of rows that the guard knows, if there is one."""
        guard = self._organiser.guard if self._organiser else None
        return guard.rows if guard else {}

    def restore(
        self, state: bytes, memory: Mapping[str, Any] | None = None, rows: Rows | None = None
    ) -> None:
        """Go on from the log as it was, and from what the search and the guard knew."""
        self.close()
        path = self._layout.log
        with disk_faults(path):
            _remove(path)
            path.write_bytes(state)
        self._open()
        if memory and self._organiser and self._organiser.search:
            self._organiser.search.remember(memory)
        if rows and self._organiser and self._organiser.guard:
            self._organiser.guard.rows.update(rows)
        self._meet()


def _check(folder: Path, layout: Layout, manifest: Manifest) -> None:
    """Raise UserError BAD_OPTION for a folder with something else in it than a log of this simulated run."""
    same = layout.manifest.exists() and Manifest.from_toml(layout.manifest).run_id == manifest.run_id
    if os.listdir(folder) and not same:
        raise UserError(
            Code.BAD_OPTION,
            f"{folder} is not empty, and the log of a simulated run takes a folder of its own",
            "Name a new folder with --write-log.",
        )


def _remove(log: Path) -> None:
    """Remove a log that is not open."""
    for name in (log, Path(f"{log}-wal"), Path(f"{log}-shm")):
        name.unlink(missing_ok=True)
