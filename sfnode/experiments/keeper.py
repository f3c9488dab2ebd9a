"""The node at client 0 of a simulated run: a real machine, its log on disk, and the organiser's desk.

It takes the signed segments that client 0 has received, as frames over a link whose far end is all clients
together, with a clock of its own that goes on only here. In an organised run its desk decides as the
daemon's: alone, as nobody else has the key. What it leaves is a data folder that `sfnode verify` reads.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterable
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from sfnode.errors import Code, UserError
from sfnode.experiments.problem import public
from sfnode.manifest import Manifest
from sfnode.node.driver import LogStore
from sfnode.organising.desk import OrganiserDesk
from sfnode.organising.events import DeskEvent, OwnerWish, Round, Sign
from sfnode.organising.judging import by_schedule
from sfnode.organising.policy import BOUNDS, Admission, OrganiserPolicy
from sfnode.organising.rates import Schedule
from sfnode.store.data_folder import Layout
from sfnode.store.disk_errors import disk_faults
from sfnode.store.log import UpdateLog
from sfnode.store.replay import frontier_of, kept_control
from sfprotocol import decisions, wire_codec
from sfprotocol.decisions import Admit, Close
from sfprotocol.events import LinkDown, LinkUp, OwnDecision, Received
from sfprotocol.host import Advanced, Host
from sfprotocol.machine import Machine
from sfprotocol.messages import PROTOCOL_VERSION, Claim, Control, Feed, Hello, Message, Segment, Summary
from sfprotocol.seeds import derive_key, stream
from sfprotocol.wire_codec import MAX_ENTRIES

LINK = 1
"""Number of the link to all clients."""

LONGEST_EPOCH = BOUNDS["longest_epoch"][1]
"""Seconds: epochs end by count, and by this only when the run is over."""

ROUND = 5.0
"""Seconds between two rounds of communication: a link is not silent for too long, and may bring some 150 kB
each time (SPEC L9)."""

TAG = bytes(4)
"""Tag of an empty feed, which is not looked at."""


class Keeper:
    """A run's node in the simulator."""

    def __init__(
        self, manifest: Manifest, folder: Path, feeds: Iterable[Feed], key: Ed25519PrivateKey
    ) -> None:
        """Begin anew in a folder that is empty, or has been used for this very run. `key` signs decisions, if
        the run is organised. Raises UserError BAD_OPTION, DISK_FULL, DATA_DIR_UNUSABLE."""
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
        if self._desk and not self.decided:
            for feed in self._feeds:
                self._tell(OwnerWish(Admit(feed.origin, manifest.organised.quota, 0)))
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
        self._desk = self._organiser() if self.run.organised else None
        self._signed = 0
        self._epochs = [0]
        """The open epoch by the number of decisions."""

    def _organiser(self) -> OrganiserDesk:
        policy = OrganiserPolicy(
            target_updates=self.run.epoch_updates,
            longest_epoch=LONGEST_EPOCH,
            seal_wait=0.0,
            admission=Admission.LINKS,
            quota=self._manifest.organised.quota,
            amend_after=None,
            checkpoint_epochs=None,
        )
        return OrganiserDesk(
            self.machine,
            self._store,
            key=public(self._key),
            policy=policy,
            judge=by_schedule(Schedule(self._manifest.training.schedule, self.run.rate)),
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
        self._hear(Hello(PROTOCOL_VERSION, self.run.run_id, 0, 0))
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

    def control_size(self, first: int, stop: int) -> int:
        """Return the bytes in which decisions `first .. stop - 1` travel."""
        assert self.machine.organised
        entries = tuple(self.machine.organised.control.feed.entries[first:stop])
        return len(wire_codec.encode(Control(first, entries), self.run.scalar_bytes))

    # -- what client 0 receives ------------------------------------------------------------------------

    def take(self, segments: Iterable[Segment]) -> None:
        """Take what client 0 has received in a round, and decide what is due."""
        self._now += ROUND
        for segment in segments:
            self._hear(segment)
        self._settle()

    def finish(self) -> None:
        """Close and seal what is left: the run is over."""
        self._host.post(LinkDown(LINK))
        self._settle()
        self._now += LONGEST_EPOCH + ROUND
        self._settle()

    def close(self) -> None:
        """Close the log."""
        self._log.close()

    def _hear(self, message: Message) -> None:
        self._host.post(Received(LINK, wire_codec.encode(message, self.run.scalar_bytes)))

    def _settle(self) -> None:
        """Let time pass until everything that was heard is in the log and nothing is left to decide."""
        while True:
            self._rounds()
            if not self._desk:
                return
            signed = self._signed
            self._now = max(self._now, self._desk.next_deadline())
            self._tell(Round())
            if self._signed == signed:
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
            if self._desk:
                self._tell(Round(moved))

    def _resting(self) -> bool:
        return self.machine.rests_until(LINK) > self._now

    def _tell(self, event: DeskEvent) -> None:
        assert self._desk
        for action in self._desk.handle(event, self._now):
            if isinstance(action, Sign):
                self._signed += 1
                self._host.post(OwnDecision(decisions.encode(action.decision)))

    # -- restarts --------------------------------------------------------------------------------------

    def state(self) -> bytes:
        """Return the log as it is now."""
        with sqlite3.connect(self._layout.log) as file, sqlite3.connect(":memory:") as copy:
            file.backup(copy)
            return copy.serialize()

    def restore(self, state: bytes) -> None:
        """Go on from the log as it was."""
        self.close()
        path = self._layout.log
        with disk_faults(path):
            _remove(path)
            path.write_bytes(state)
        self._open()
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
