"""The past of a run, computed from the log in a folder: its history and the states of its seals.

This module only reads. The folder's node may be running meanwhile. A state consists of the cores at a seal. A
state is computed from the previously computed state, by adding the difference of the counted updates. So
computing the states of all seals in order reads the log about once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from sfnode.engine.core import Core
from sfnode.errors import Code, UserError
from sfnode.manifest import Manifest
from sfnode.node.startup import settled
from sfnode.organising.evaluation.evidence import MembersEvidence, parts_of
from sfnode.organising.reporting.run_history import RunHistory, name_of, parts
from sfnode.schema import history as told
from sfnode.store import checkpoint
from sfnode.store.checkout import Checkout, advance, at_seal, whole
from sfnode.store.data_folder import Layout
from sfnode.store.log import UpdateLog
from sfnode.store.replay import changes, counted_anew, kept_control
from sfprotocol import decisions
from sfprotocol.decisions import INCARNATIONS, Part, Recount, Seal, Worth
from sfprotocol.machine import Machine
from sfprotocol.messages import Entry, Feed, Succession
from sfprotocol.organised import Organised
from sfprotocol.run_state import NEVER, RunState
from sfprotocol.seeds import I64
from sfprotocol.segments import first_updates
from sfprotocol.weighing import NOTHING, Counted, named

if TYPE_CHECKING:
    from sfnode.engine.trainer import Trainer


def history(manifest: Manifest, update_log: UpdateLog) -> told.HistoryResult:
    """Return the decisions and seals of a run, or the epochs of an open run. Raises UserError LOG_CORRUPT."""
    machine = settled(manifest.parameters(), update_log)
    run_state = machine.organised.run_state if machine.organised else None
    counted = run_state.counted if run_state else machine.frontier.known
    budget = run_state.budget if run_state else manifest.training.update_budget
    return told.HistoryResult(
        run_id=manifest.run_id.hex(),
        run_name=manifest.name,
        sealed=run_state.sealed if run_state else None,
        counted=counted,
        waiting=_waiting(machine.organised) if machine.organised else 0,
        complete=run_state.complete if run_state else counted >= budget,
        budget=budget,
        parent=manifest.model.parent,
        entries=(_decisions if run_state else _epochs)(manifest, machine, update_log),
    )


def _waiting(organised: Organised) -> int:
    """Return the number of updates that wait for a seal."""
    run_state = organised.run_state
    closed = map(run_state.closed_updates, range(run_state.sealed, run_state.open_epoch))
    return sum(closed) + organised.unnamed


def _decisions(manifest: Manifest, machine: Machine, update_log: UpdateLog) -> list[told.HistoryEntry]:
    """Return the decisions of an organised run."""
    kept = kept_control(update_log)
    successions = (message for message in kept.authority if isinstance(message, Succession))
    decided = RunHistory(machine.run, machine.cards.names(), manifest.training).follow(kept.entries)
    return decided.entries(successions, update_log.arrivals())


def why(manifest: Manifest, update_log: UpdateLog, whom: str) -> told.WhyResult:
    """Return, for each round of a member's work, whether it counts and otherwise why not, according to the
    decisions in a log.

    `whom` is the member's number, its display name, or the beginning of its key. Raises UserError
    RUN_IS_OPEN, LOG_CORRUPT, and BAD_OPTION unless exactly one member matches.
    """
    if manifest.parameters().organised is None:
        raise UserError(
            Code.RUN_IS_OPEN, "in an open run nobody judges work: all of it counts", "Leave out --why."
        )
    machine = settled(manifest.parameters(), update_log)
    history = RunHistory(machine.run, machine.cards.names(), manifest.training).follow(update_log.control())
    members = list(enumerate(history.run_state.members))
    ways: list[Callable[[int, bytes], bool]] = [
        lambda number, _: whom == str(number),
        lambda _, origin: whom == name_of(origin, history.names),
        lambda _, origin: origin.hex().startswith(whom.lower()),
    ]
    matches = ([(n, one) for n, one in members if is_meant(n, one.origin)] for is_meant in ways)
    found = next(filter(None, matches), [])
    if len(found) != 1:
        what = f"--why: {len(found)} of {len(members)} members are {whom!r}"
        raise UserError(Code.BAD_OPTION, what, "`sfnode leaderboard --details` lists names and keys.")
    ((number, member),) = found
    return told.WhyResult(
        run_id=manifest.run_id.hex(),
        member=number,
        origin=member.origin.hex(),
        name=name_of(member.origin, history.names),
        revoked=None if member.revoked == NEVER else member.revoked,
        verdicts=history.verdicts_on(number),
    )


def _epochs(manifest: Manifest, machine: Machine, update_log: UpdateLog) -> list[told.HistoryEntry]:
    """Return the epochs of an open run, from the updates in the log that count."""
    counts: dict[int, Counter[bytes]] = {}
    names = machine.cards.names()
    for record in update_log.records():
        left = max(0, machine.frontier.next(record.feed) - record.segment.first)
        for part in first_updates(record.segment.parts, left):
            counts.setdefault(part.epoch, Counter())[record.feed.origin] += len(part.scalars)
    found = []
    for epoch, by_origin in sorted(counts.items()):
        updates = by_origin.total()
        entry = told.EpochEntry(
            epoch=epoch,
            named=updates,
            counted=updates,
            factor=None,
            rate=manifest.training.rate(epoch),
            digest=None,
            evaluation=None,
            origins=parts(by_origin, names),
        )
        text = f"round {epoch} has {updates:,} updates"
        found.append(told.HistoryEntry(position=None, term=None, kind="epoch", text=text, epoch=entry))
    return found


class Past:
    """The states of an organised run at its seals."""

    def __init__(self, manifest: Manifest, update_log: UpdateLog, data_dir: Path) -> None:
        """Read the log, and the checkpoint in `data_dir` if the log begins with one. Raises UserError
        RUN_IS_OPEN, LOG_CORRUPT, CHECKPOINT_UNUSABLE."""
        self.manifest = manifest
        self._log = update_log
        self.run = manifest.parameters()
        self.entries = update_log.control()
        if self.run.organised is None:
            at_seal(self.run, (), lambda feed: 0, 0)
        self.machine = settled(self.run, update_log)
        """Machine in the state of the log."""
        self.names = self.machine.cards.names()
        """The names in the cards of origins, keyed by origin."""
        self.history = RunHistory(self.run, self.names).follow(self.entries)
        """History of the run according to all decisions."""
        self.latest = self.history.run_state
        """Run state after all decisions."""
        self._core = Core(*manifest.core_shape)
        begins = checkpoint.start(Layout(data_dir).checkpoints, self.latest, update_log)
        self._applied = begins.counted
        if state := begins.state(manifest, self.latest):
            self._core.put(state.cores)
        self._known: dict[int, Checkout] = {}

    def checkout(self, epoch: int) -> Checkout:
        """Return the updates that counted when an epoch was sealed. Raises UserError as `at_seal`."""
        if epoch not in self._known:
            self._known[epoch] = at_seal(self.run, self.entries, self.machine.frontier.next, epoch)
        return self._known[epoch]

    def counted(self, epoch: int) -> Mapping[Feed, Counted]:
        """Return, for each feed, the updates that counted at the seal of `epoch`."""
        return self.checkout(epoch).counted

    def cores(self, wanted: Mapping[Feed, Counted]) -> dict[int, I64]:
        """Return the cores, in which the `wanted` updates are summed, keyed by subspace. Each core has the
        shape (layers, rank, rank). Raises as `replay.changes`."""
        advance(self._core, self._log, self._applied, wanted, self.run.subspace_of)
        self._applied = whole(self._applied, wanted)
        return {subspace: core.copy() for subspace, core in self._core.cores().items()}

    def result(self, epoch: int) -> told.CheckoutResult:
        """Return the digests of the state at the seal of `epoch`. Raises UserError as `at_seal`."""
        found = self.checkout(epoch)
        self.cores(found.counted)
        return told.CheckoutResult(
            run_id=self.run.run_id.hex(),
            epoch=epoch,
            updates=found.updates,
            named_digest=self.history.seals[epoch].digest.hex(),
            core_digest=self._core.digest().hex(),
        )


# -- worths of members, measured again and compared with the organiser's (SPEC O16) --------------------

TOLERANCE = 0.05
"""Maximum relative difference at which signed and measured worths are considered to agree. In a real run, on
one machine in float32, all digits were equal. With other number formats the differences should be larger, but
were not measured."""


def remeasure(
    manifest: Manifest,
    update_log: UpdateLog,
    entries: Sequence[Entry],
    epochs: int,
    engine: Trainer,
    tell: Callable[[told.Remeasured], None],
) -> list[told.Remeasured]:
    """Measure the worths of members' updates (their effects on the validation loss) again for the last
    `epochs` epochs that have signed worths. Compare them with the signed worths.

    `engine` must have the run's validation rows, and must not have applied any updates yet. Raises UserError
    LOG_CORRUPT, DATA_*.
    """
    run, applied, figures = manifest.parameters(), State(), _figures(entries)
    wanted = {epoch: figures[epoch] for epoch in sorted(figures)[-epochs:]}
    found = []
    for worth, run_state, before, step, after in _asked(manifest, entries, wanted):
        for batch in changes(update_log, applied, before, run.subspace_of):
            engine.apply(batch)
        applied |= before
        core = Core(*manifest.core_shape)
        core.put(engine.cores())
        for batch in changes(update_log, before, step, run.subspace_of):
            core.add(batch)
        updates = counted_anew(update_log, before, after, run.subspace_of)
        shares, _ = engine.shares(core.cores(), list(updates.values()), worth.rows, worth.epoch)
        found.append(_compared(worth, parts_of(dict(zip(updates, shares, strict=True)), run_state)))
        tell(found[-1])
    return found


def _figures(entries: Sequence[Entry]) -> dict[int, Worth]:
    """Return the signed worths, keyed by epoch. Several decisions about one epoch are joined into one."""
    found: dict[int, Worth] = {}
    for entry in entries:
        decision = decisions.read(entry.record).decision
        if isinstance(decision, Worth):
            known = found[decision.epoch].parts if decision.epoch in found else ()
            found[decision.epoch] = replace(decision, parts=known + decision.parts)
    return found


State = dict[Feed, Counted]


def _asked(
    manifest: Manifest, entries: Sequence[Entry], wanted: Mapping[int, Worth]
) -> Iterator[tuple[Worth, RunState, State, State, State]]:
    """Yield each wanted worth that was published before its epoch was sealed. With it come the run state
    before that seal and the updates at three points: before the epoch, after the step to be measured, and
    with all updates that the epoch's close lists.

    The step leaves out the feeds of members that the evidence doubted at that time, and the feeds that the
    seal skipped for other reasons.
    """
    run = manifest.parameters()
    run_state, origins = RunState.of(run), MembersEvidence.of(manifest.training)
    doubted: dict[int, set[int]] = {}
    for entry in entries:
        recorded = decisions.read(entry.record)
        match recorded.decision:
            case Worth(epoch=epoch) if epoch in wanted and epoch == run_state.sealed < run_state.open_epoch:
                moved = run_state.moved(epoch)
                doubted.setdefault(epoch, {n for n in moved if not origins.trusts(n // INCARNATIONS)})
            case Seal(epoch=epoch, skipped=skipped) if epoch == run_state.sealed and epoch in doubted:
                others = (n for n in skipped if origins.trusts(n // INCARNATIONS))
                left = doubted[epoch].union(n for n in others if Recount(n, epoch) not in origins.outliers)
                before, whole = named(run_state, epoch - 1), named(run_state, epoch)
                gone = {run_state.feed(number) for number in left}
                step = {f: before.get(f, NOTHING) if f in gone else one for f, one in whole.items()}
                yield wanted[epoch], run_state, before, step, whole
        run_state.apply(recorded)
        origins.take(recorded.decision)


def _compared(worth: Worth, found: Sequence[Part]) -> told.Remeasured:
    ours = {part.feed: part.worth for part in found}
    theirs = {part.feed: part.worth for part in worth.parts}
    off = sum(abs(theirs.get(feed, 0) - ours.get(feed, 0)) for feed in {*ours, *theirs})
    whole = sum(map(abs, theirs.values()))
    share = off / whole if whole else float(off > 0)
    return told.Remeasured(
        epoch=worth.epoch,
        rows=worth.rows,
        said=sum(theirs.values()),
        found=sum(ours.values()),
        off=share,
        agrees=share <= TOLERANCE,
    )
