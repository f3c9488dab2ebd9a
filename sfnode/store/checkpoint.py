"""States of checkpoints: the updates that count up to an epoch, as values and as files (SPEC O14).

A state has the step at which each feed continues, and the cores, which are the sums of the updates before
these steps. Every node can compute it from the log, and compare its two digests with the signed ones. A state
with other digests is never used. `plan` and `start` look up at once what follows from decisions. The slow
rest can then run on another thread while more decisions come.

A file has, after its magic number: the epoch, the number of feeds and the number of cores, u32 each; for each
feed its part of the input of the feeds digest; for each core its subspace, u32, and its entries as int64,
little-endian. All other integers are big-endian. The size of a file follows from the decisions and the
manifest.
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
"""Number of newest checkpoints whose files are kept. A node prunes its log before the older of the two, so
that a decision about the epochs between them needs nothing that was pruned."""

_NAMED = 16
"""Number of hexadecimal digits of a digest in the name of a file: enough to distinguish several checkpoints
of one epoch."""

_NAME = re.compile(rf"[0-9]{{1,10}}-[0-9a-f]{{{_NAMED}}}")

_MAGIC = b"sfckpt\x00\x01"
_HEAD = struct.Struct(">8sIII")
_FEED = struct.Struct(">IQ32sII")
_SUBSPACE = struct.Struct(">I")


@dataclass(frozen=True)
class CheckpointState:
    """The state of a run up to an epoch: the object whose digests a checkpoint states."""

    epoch: int
    bases: Mapping[int, Base]
    """Bases, at which feeds continue, keyed by the number of the feed, in ascending order."""
    cores: Mapping[int, I64] = field(repr=False)
    """The cores that are not zero, keyed by subspace in ascending order, (layers, rows, columns) each."""

    def decision(self, run_id: bytes) -> Checkpoint:
        """Return the decision, a Checkpoint, that states the digests of this state."""
        return Checkpoint(
            self.epoch, feeds_digest(run_id, self.bases.items()), core_digest(self.cores.items())
        )


class CheckpointPlan(NamedTuple):
    """The part of a state that follows from the decisions, before the rest is computed."""

    epoch: int
    stops: Mapping[int, tuple[Feed, NamedStop]]
    """Each feed, with the end of the steps that closes have listed. Keyed by the number of the feed, in
    ascending order."""
    before: Mapping[Feed, Counted]
    """Updates already included in the previous state, with their weights, keyed by feed."""
    counted: Mapping[Feed, Counted]


def plan(run_state: RunState, epoch: int, previous: CheckpointState | None = None) -> CheckpointPlan:
    """Return the plan of the state of all epochs up to `epoch`, which must be sealed, according to the
    decisions so far. The computation will begin with `previous`, the state of a usable checkpoint of this or
    an earlier epoch, or at genesis if it is None."""
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
    """Compute a state from the log and from `previous`, as given to `plan`. Takes as long as reading the
    updates between the two states.

    Returns None if listed updates are missing in the log, or belong to another history. Raises UserError
    LOG_CORRUPT.
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
    """Return the point at which a feed continues after `end`; None if the log does not reach it or has
    another history there."""
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
    """Return an upper bound, in bytes, of the size of a file of a checkpoint of `epoch`, which is sealed."""
    subspaces = manifest.parameters().subspace_of(epoch) + 1
    feeds = len(run_state.positions(epoch)) * _FEED.size
    return _HEAD.size + feeds + subspaces * (_SUBSPACE.size + manifest.core_bytes)


def decode(manifest: Manifest, run_state: RunState, data: bytes) -> CheckpointState:
    """Return the state in the content of a file. `run_state` tells which feed has which number. The caller
    must check the state's digests.

    Raises UserError LOG_CORRUPT for a file in another format. Allocates no more than the file's size.
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
    """Return the name of the file of a state. If the checkpoint of an epoch is stated again, because fewer
    updates count, its file has another name."""
    return f"{stated.epoch}-{listing(stated.feeds, stated.cores).hex()[:_NAMED]}"


def usable(folder: Path, run_state: RunState) -> list[Checkpoint]:
    """Return the usable checkpoints whose states are in this folder, in ascending order of epochs."""
    here = {file.name for file in _files(folder)}
    return [checkpoint for checkpoint in run_state.checkpoints if name(checkpoint) in here]


def _files(folder: Path) -> list[Path]:
    """Return the files of states, in ascending order of epochs."""
    with suppress(FileNotFoundError):
        return sorted((file for file in folder.iterdir() if _NAME.fullmatch(file.name)), key=_epoch)
    return []


def _epoch(file: Path) -> int:
    return int(file.name.partition("-")[0])


def keep(folder: Path, run_id: bytes, state: CheckpointState, needed: Iterable[int] = ()) -> None:
    """Write the file of a state, durably and all or nothing. Remove earlier states of its epoch, and the
    files of all other epochs except the KEPT newest epochs and those in `needed`. Raises UserError
    DISK_FULL."""
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
    """Return the state of a checkpoint from its file; None if there is no file, such as after newer
    checkpoints. Raises UserError LOG_CORRUPT if the state is not the stated one."""
    content = _content(folder, stated)
    return None if content is None else decode_stated(manifest, run_state, stated, content)


def _content(folder: Path, stated: Checkpoint) -> bytes | None:
    """Return the content of the file of a state; None if there is no file."""
    path = folder / name(stated)
    with disk_faults(path), suppress(FileNotFoundError):
        return path.read_bytes()
    return None


def decode_stated(
    manifest: Manifest, run_state: RunState, stated: Checkpoint, data: bytes
) -> CheckpointState:
    """Return the state in `data`. Raises UserError LOG_CORRUPT if it is not the state of the checkpoint
    `stated`."""
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
    """The point at which a computation of cores begins: a checkpoint or genesis."""

    checkpoint: Checkpoint | None = None
    """Checkpoint with whose state the computation begins; None if it begins at genesis."""
    counted: Mapping[Feed, Counted] = {}
    """Steps of each feed in the checkpoint's cores, with the weights of their updates."""
    content: bytes = b""
    """Content of the checkpoint's file. The file is read at once, because a node removes it when newer
    checkpoints come."""

    def state(self, manifest: Manifest, run_state: RunState | None) -> CheckpointState | None:
        """Return the checkpoint's state; None at genesis. Raises UserError LOG_CORRUPT if `content` is not
        the stated state."""
        if self.checkpoint is None or run_state is None:
            return None
        return decode_stated(manifest, run_state, self.checkpoint, self.content)


def start(folder: Path, run_state: RunState | None, update_log: UpdateLog) -> Start:
    """Return the newest stored checkpoint after which the log has all updates that count now; genesis if
    there is no such checkpoint.

    Raises UserError CHECKPOINT_UNUSABLE if there is none and the beginning of the log was pruned, so that the
    computation cannot begin at genesis.
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
    """Return the checkpoint before which the log may be pruned: the older of the two newest usable
    checkpoints whose states are stored. None if there are fewer than two."""
    here = usable(folder, run_state)
    return here[-KEPT] if len(here) >= KEPT else None
