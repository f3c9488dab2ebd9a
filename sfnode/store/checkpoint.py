"""States of checkpoints: what counts of the epochs up to one, as values and as files (SPEC O14).

A state says where each feed goes on, and has the cores of what came before. Everybody can compute it from the
log, and compare its two digests with those that the organiser has signed: only such a state is ever used.
What follows from decisions is looked up at once (`plan`, `start`), so that what takes long can be done in
another thread while more decisions come.

A file has, after its magic number: the epoch, the number of feeds and that of cores, u32 each; for each feed
what it adds to the feeds digest; for each core its subspace, u32, and its entries as int64, little-endian.
All other integers are big-endian. Its size follows from the decisions and the manifest.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np

from sfnode.engine.core import Core
from sfnode.engine.core import digest as core_digest
from sfnode.errors import Code, UserError
from sfnode.manifest import Manifest
from sfnode.store.disk_errors import disk_faults, sync_folder, write_whole
from sfnode.store.log import UpdateLog
from sfnode.store.replay import changes
from sfprotocol.checkpoints import Base, feeds_digest, listing
from sfprotocol.decisions import Checkpoint
from sfprotocol.messages import Feed
from sfprotocol.run_state import NamedStop, RunState
from sfprotocol.seeds import I64
from sfprotocol.validation import tag
from sfprotocol.weighing import Counted, named

KEPT = 2
"""Files of the newest checkpoints that are kept: a node prunes below the older one, so that a decision about
the epochs between them takes back nothing that it has let go."""

_NAMED = 16
"""Hexadecimal digits of a digest in the name of a file: enough to tell the statements of one epoch apart."""

_NAME = re.compile(rf"[0-9]{{1,10}}-[0-9a-f]{{{_NAMED}}}")

_MAGIC = b"sfckpt\x00\x01"
_HEAD = struct.Struct(">8sIII")
_FEED = struct.Struct(">IQ32sII")
_SUBSPACE = struct.Struct(">I")


@dataclass(frozen=True)
class CheckpointState:
    """The state that a checkpoint is the digest of."""

    epoch: int
    bases: Mapping[int, Base]
    """Points at which feeds go on, by their ascending numbers."""
    cores: Mapping[int, I64] = field(repr=False)
    """The cores that are not zero, (layers, rows, columns) each, by their ascending subspaces."""

    def decision(self, run_id: bytes) -> Checkpoint:
        """Return the decision that states this."""
        return Checkpoint(
            self.epoch, feeds_digest(run_id, self.bases.items()), core_digest(self.cores.items())
        )


class CheckpointPlan(NamedTuple):
    """Basis of a state, as decisions say it."""

    epoch: int
    stops: Mapping[int, tuple[Feed, NamedStop]]
    """Feeds, and the ends of what closes have named of them, by their ascending numbers."""
    before: Mapping[Feed, Counted]
    """Weights in the state from which the computation begins."""
    counted: Mapping[Feed, Counted]


def plan(run_state: RunState, epoch: int, previous: CheckpointState | None = None) -> CheckpointPlan:
    """Return what is to be computed, by the decisions so far, of the epochs up to `epoch`, which is sealed;
    from `previous`, a state of a checkpoint that is usable and not of a later epoch, or from nothing."""
    stops = {}
    for number, step in run_state.positions(epoch).items():
        mark = run_state.named_stop(number, step)
        assert mark is not None
        stops[number] = run_state.feed(number), mark
    return CheckpointPlan(
        epoch, stops, named(run_state, previous.epoch) if previous else {}, named(run_state, epoch)
    )


def compute(
    manifest: Manifest,
    update_log: UpdateLog,
    planned: CheckpointPlan,
    previous: CheckpointState | None = None,
) -> CheckpointState | None:
    """Compute a state from the log, and from `previous` as it was given to `plan`; takes as long as reading
    what came since.

    None if some of what was named is not in the log, or is of another history. Raises UserError LOG_CORRUPT.
    """
    bases = {}
    for number, (feed, end) in planned.stops.items():
        known = previous.bases.get(number) if previous else None
        base = known if known and known.step == end.stop else _base(update_log, feed, end)
        if base is None:
            return None
        bases[number] = base
    core = Core(*manifest.core_shape)
    core.put(previous.cores if previous else {})
    subspace_of = manifest.parameters().subspace_of
    for batch in changes(update_log, planned.before, planned.counted, subspace_of):
        core.add(batch)
    return CheckpointState(planned.epoch, bases, core.cores())


def _base(update_log: UpdateLog, feed: Feed, end: NamedStop) -> Base | None:
    """Return where a feed goes on after an end; None if the log does not have it up to there."""
    if update_log.stop(feed) < end.stop:
        return None
    chain, _ = update_log.past(feed, end.stop)
    if tag(end.salt, chain) != end.tag:
        return None
    return Base(feed, end.stop, chain, *update_log.label(feed, end.stop))


# -- files ---------------------------------------------------------------------------------------------


def encode(state: CheckpointState) -> bytes:
    """Return the content of the file of a state."""
    parts = [_HEAD.pack(_MAGIC, state.epoch, len(state.bases), len(state.cores))]
    parts += [_FEED.pack(number, *base[1:]) for number, base in state.bases.items()]
    for subspace, entries in state.cores.items():
        parts += [_SUBSPACE.pack(subspace), entries.astype("<i8", copy=False).tobytes()]
    return b"".join(parts)


def most_bytes(manifest: Manifest, run_state: RunState, epoch: int) -> int:
    """Return a bound of the size of the file of a checkpoint of `epoch`, which is sealed."""
    subspaces = manifest.parameters().subspace_of(epoch) + 1
    feeds = len(run_state.positions(epoch)) * _FEED.size
    return _HEAD.size + feeds + subspaces * (_SUBSPACE.size + manifest.core_bytes)


def decode(manifest: Manifest, run_state: RunState, data: bytes) -> CheckpointState:
    """Return the state in a file, whose feeds `run_state` names; its digests tell whether it is true.

    Raises UserError LOG_CORRUPT for what is not the file of a state. Allocates no more than the file's size.
    """
    try:
        magic, epoch, feeds, cores = _HEAD.unpack_from(data)
        size = _SUBSPACE.size + manifest.core_bytes
        at = _HEAD.size + feeds * _FEED.size
        _require(magic == _MAGIC and len(data) == at + cores * size)
        rows = [_FEED.unpack_from(data, _HEAD.size + row * _FEED.size) for row in range(feeds)]
        bases = {number: Base(run_state.feed(number), *base) for number, *base in rows}
        starts = range(at, len(data), size)
        subspaces = [_SUBSPACE.unpack_from(data, start)[0] for start in starts]
        _require(all(one < other for one, other in [*pairwise(bases), *pairwise(subspaces)]))
        _require(len(bases) == feeds)
    except (struct.error, IndexError, ValueError) as error:
        raise _damaged("it is not the state of a checkpoint") from error
    entries = {
        subspace: np.frombuffer(data, "<i8", manifest.dimensions, start + _SUBSPACE.size)
        for subspace, start in zip(subspaces, starts, strict=True)
    }
    shape = manifest.core_shape
    shaped = {k: core.reshape(shape).astype(np.int64, copy=False) for k, core in entries.items()}
    return CheckpointState(epoch, bases, shaped)


def _require(condition: bool) -> None:
    if not condition:
        raise ValueError


def name(stated: Checkpoint) -> str:
    """Return the name of the file of a state. An epoch has another one once it is stated anew, because some
    of it counts no more."""
    return f"{stated.epoch}-{listing(stated.feeds, stated.cores).hex()[:_NAMED]}"


def usable(folder: Path, run_state: RunState) -> list[Checkpoint]:
    """Return the checkpoints that are usable and whose states are in this folder, by ascending epochs."""
    here = {file.name for file in _files(folder)}
    return [checkpoint for checkpoint in run_state.checkpoints if name(checkpoint) in here]


def _files(folder: Path) -> list[Path]:
    """Return the files of states, by ascending epochs."""
    with suppress(FileNotFoundError):
        return sorted((file for file in folder.iterdir() if _NAME.fullmatch(file.name)), key=_epoch)
    return []


def _epoch(file: Path) -> int:
    return int(file.name.partition("-")[0])


def keep(folder: Path, run_id: bytes, state: CheckpointState, needed: Iterable[int] = ()) -> None:
    """Write the file of a state, durably and all or nothing; remove what was stated of its epoch before, and
    all others but the KEPT newest and those of the epochs `needed`. Raises UserError DISK_FULL."""
    path = folder / name(state.decision(run_id))
    with disk_faults(folder):
        folder.mkdir(exist_ok=True)
        write_whole(path, encode(state))
        here = _files(folder)
        epochs = {state.epoch, *needed, *sorted({_epoch(one) for one in here})[-KEPT:]}
        for one in here:
            if _epoch(one) not in epochs or (_epoch(one) == state.epoch and one != path):
                one.unlink(missing_ok=True)
        sync_folder(folder)


def load(folder: Path, manifest: Manifest, run_state: RunState, stated: Checkpoint) -> CheckpointState | None:
    """Return the state of a checkpoint from its file; None if it is not there any more, as its node keeps
    newer ones. Raises UserError LOG_CORRUPT if it is not the one which was stated."""
    content = _content(folder, stated)
    return None if content is None else decode_stated(manifest, run_state, stated, content)


def _content(folder: Path, stated: Checkpoint) -> bytes | None:
    """Return what the file of a state has; None if there is none."""
    path = folder / name(stated)
    with disk_faults(path), suppress(FileNotFoundError):
        return path.read_bytes()
    return None


def decode_stated(
    manifest: Manifest, run_state: RunState, stated: Checkpoint, data: bytes
) -> CheckpointState:
    """Return the state of a checkpoint. Raises UserError LOG_CORRUPT if it is not the one that was stated."""
    state = decode(manifest, run_state, data)
    if state.decision(manifest.parameters().run_id) != stated:
        raise _damaged(f"{name(stated)} is not what the organiser has stated")
    return state


def _damaged(problem: str) -> UserError:
    return UserError(
        Code.LOG_CORRUPT,
        f"a checkpoint cannot be used: {problem}",
        "Remove the folder `checkpoints` in the data folder; if the node does not start then, join again.",
    )


# -- starting from one ---------------------------------------------------------------------------------


class Start(NamedTuple):
    """Beginning of a refold."""

    checkpoint: Checkpoint | None = None
    """The one whose state it begins with; None: from genesis."""
    counted: Mapping[Feed, Counted] = {}
    """Steps of each feed that its cores have, with their weights."""
    content: bytes = b""
    """Content of its file, which is read at once: a node keeps newer states soon, and removes this one."""

    def state(self, manifest: Manifest, run_state: RunState | None) -> CheckpointState | None:
        """Return the state; None from genesis. Raises UserError LOG_CORRUPT if it is not the one stated."""
        if self.checkpoint is None or run_state is None:
            return None
        return decode_stated(manifest, run_state, self.checkpoint, self.content)


def start(folder: Path, run_state: RunState | None, update_log: UpdateLog) -> Start:
    """Return the newest checkpoint from which everything that counts now can be added up.

    Raises UserError CHECKPOINT_UNUSABLE if there is none, and the log has let go of what came before.
    """
    bases = update_log.bases()
    if run_state:
        for checkpoint in reversed(usable(folder, run_state)):
            counted = named(run_state, checkpoint.epoch)
            if any(base.step > _steps(counted.get(feed)) for feed, base in bases.items()):
                continue
            if (content := _content(folder, checkpoint)) is not None:
                return Start(checkpoint, counted, content)
    if bases:
        raise UserError(
            Code.CHECKPOINT_UNUSABLE,
            f"{folder.parent} has no history before a checkpoint that is not usable any more",
            "Start it again with --from-checkpoint once the organiser has signed a newer one, or join with "
            "an empty --data-dir.",
        )
    return Start()


def _steps(counted: Counted | None) -> int:
    return counted.spans[-1].stop if counted and counted.spans else 0


def prunable(folder: Path, run_state: RunState) -> Checkpoint | None:
    """Return the checkpoint below which history may go: of those that are usable, and whose states are here,
    the older one of the newest two; None if there are no two."""
    here = usable(folder, run_state)
    return here[-KEPT] if len(here) >= KEPT else None
