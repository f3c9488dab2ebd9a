"""States of checkpoints, in memory and as files (SPEC O14). A state stands for all updates that count up to
an epoch.

A state has the step at which each feed continues, and the cores, which are the sums of the updates before
these steps. Every node can compute a state from the log, and compare the state's two digests with those that
the organiser signed. A state with other digests is never used. `plan` and `start` take from the decisions, in
one short call, all that the computation needs of them. The slow computation can then run on another thread
while more decisions arrive.

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
"""Number of newest checkpoints whose files are kept. A node prunes only the part of its log before the older
of the two. So a later decision about the epochs between the two needs nothing that was pruned."""

_NAMED = 16
"""Number of hexadecimal digits of a digest in a file name: enough to distinguish several checkpoints of one
epoch."""

_NAME = re.compile(rf"[0-9]{{1,10}}-[0-9a-f]{{{_NAMED}}}")

_MAGIC = b"sfckpt\x00\x01"
_HEAD = struct.Struct(">8sIII")
_FEED = struct.Struct(">IQ32sII")
_SUBSPACE = struct.Struct(">I")


@dataclass(frozen=True)
class CheckpointState:
    """The state of a run up to an epoch. A checkpoint is the organiser's decision that states the digests of
    such a state."""

    epoch: int
    bases: Mapping[int, Base]
    """Base of each feed, which is the step at which the feed continues. Keyed by feed number, in ascending
    order."""
    cores: Mapping[int, I64] = field(repr=False)
    """The cores that are not zero, keyed by subspace in ascending order. Each has the shape (layers, rows,
    columns)."""

    def decision(self, run_id: bytes) -> Checkpoint:
        """Return the decision, a Checkpoint, that states the digests of this state."""
        return Checkpoint(
            self.epoch, feeds_digest(run_id, self.bases.items()), core_digest(self.cores.items())
        )


class CheckpointPlan(NamedTuple):
    """The input of the computation of a state, as far as it follows from the decisions."""

    epoch: int
    stops: Mapping[int, tuple[Feed, NamedStop]]
    """Each feed, with the end of the steps that closes have listed. Keyed by feed number, in ascending
    order."""
    before: Mapping[Feed, Counted]
    """Updates that are already included in the previous state, with their weights, keyed by feed."""
    counted: Mapping[Feed, Counted]


def plan(run_state: RunState, epoch: int, previous: CheckpointState | None = None) -> CheckpointPlan:
    """Return the plan of the state up to `epoch`, which must be sealed, according to the decisions so far.
    The computation will begin with `previous`, the state of a usable checkpoint of this or an earlier epoch.
    If `previous` is None, it will begin at genesis."""
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
    """Compute a state from the log and from `previous`, which must be the argument that was given to `plan`.
    The call takes as long as reading the updates between the two states.

    Returns None if the log lacks listed updates, or has another history of a feed than the listed one. Raises
    UserError LOG_CORRUPT.
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
    """Return the base at which a feed continues after its listed steps, whose end is `end`. Return None if
    the log ends earlier, or has another history of the feed."""
    if update_log.stop(feed) < end.stop:
        return None
    chain, _ = update_log.past(feed, end.stop)
    if tag(end.salt, chain) != end.tag:
        return None
    return Base(feed, end.stop, chain, *update_log.label(feed, end.stop))


# -- files ---------------------------------------------------------------------------------------------


def encode(state: CheckpointState) -> bytes:
    """Return a state, encoded as the content of a file."""
    parts = [_HEAD.pack(_MAGIC, state.epoch, len(state.bases), len(state.cores))]
    parts += [_FEED.pack(number, *base[1:]) for number, base in state.bases.items()]
    for subspace, entries in state.cores.items():
        parts += [_SUBSPACE.pack(subspace), entries.astype("<i8", copy=False).tobytes()]
    return b"".join(parts)


def most_bytes(manifest: Manifest, run_state: RunState, epoch: int) -> int:
    """Return an upper bound, in bytes, on the size of a file with the state of a checkpoint of `epoch`, which
    must be sealed."""
    subspaces = manifest.parameters().subspace_of(epoch) + 1
    feeds = len(run_state.positions(epoch)) * _FEED.size
    return _HEAD.size + feeds + subspaces * (_SUBSPACE.size + manifest.core_bytes)


def decode(manifest: Manifest, run_state: RunState, data: bytes) -> CheckpointState:
    """Return the state that is encoded in `data`, the content of a file. `run_state` has the numbers of
    feeds. The caller must check the state's digests.

    Raises UserError LOG_CORRUPT for a file in another format. Allocates no more memory than the file's size.
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
    """Return the name of the file with the state of a checkpoint. If the organiser states the checkpoint of
    an epoch again, because fewer updates count, the new file has another name."""
    return f"{stated.epoch}-{listing(stated.feeds, stated.cores).hex()[:_NAMED]}"


def usable(folder: Path, run_state: RunState) -> list[Checkpoint]:
    """Return the usable checkpoints whose states are in this folder, in ascending order of epochs."""
    here = {file.name for file in _files(folder)}
    return [checkpoint for checkpoint in run_state.checkpoints if name(checkpoint) in here]


def _files(folder: Path) -> list[Path]:
    """Return the files with states in a folder, in ascending order of epochs."""
    with suppress(FileNotFoundError):
        return sorted((file for file in folder.iterdir() if _NAME.fullmatch(file.name)), key=_epoch)
    return []


def _epoch(file: Path) -> int:
    return int(file.name.partition("-")[0])


def keep(folder: Path, run_id: bytes, state: CheckpointState, needed: Iterable[int] = ()) -> None:
    """Write the file with a state, durably, and completely or not at all. Then remove files with earlier
    states of the same epoch, and the files of all other epochs except the KEPT newest ones and those in
    `needed`. Raises UserError DISK_FULL."""
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
    """Return the state of the checkpoint `stated` from its file. Return None if there is no file, for example
    because newer checkpoints replaced it. Raises UserError LOG_CORRUPT if the file's state has other digests
    than `stated`."""
    content = _content(folder, stated)
    return None if content is None else decode_stated(manifest, run_state, stated, content)


def _content(folder: Path, stated: Checkpoint) -> bytes | None:
    """Return the content of the file with the state of a checkpoint; None if there is no file."""
    path = folder / name(stated)
    with disk_faults(path), suppress(FileNotFoundError):
        return path.read_bytes()
    return None


def decode_stated(
    manifest: Manifest, run_state: RunState, stated: Checkpoint, data: bytes
) -> CheckpointState:
    """Return the state that is encoded in `data`. Raises UserError LOG_CORRUPT if its digests are not those
    of the checkpoint `stated`."""
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
    """Updates in the checkpoint's cores, with their weights, keyed by feed."""
    content: bytes = b""
    """Content of the file with the checkpoint's state. The content is read in advance, because a node removes
    the file when newer checkpoints come."""

    def state(self, manifest: Manifest, run_state: RunState | None) -> CheckpointState | None:
        """Return the checkpoint's state; None at genesis. Raises UserError LOG_CORRUPT if the state in
        `content` has other digests than the checkpoint."""
        if self.checkpoint is None or run_state is None:
            return None
        return decode_stated(manifest, run_state, self.checkpoint, self.content)


def start(folder: Path, run_state: RunState | None, update_log: UpdateLog) -> Start:
    """Return the point at which to begin: the newest checkpoint with a stored state after which the log has
    all updates that count now. If there is no such checkpoint, return genesis.

    Raises UserError CHECKPOINT_UNUSABLE if there is no such checkpoint and the computation cannot begin at
    genesis, because the beginning of the log was pruned.
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
