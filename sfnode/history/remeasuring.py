"""Worths of members by figures that are measured anew, beside those of the organiser (SPEC O16).

For runs whose validation rows everybody has. Reads a log and changes nothing; carries out no policy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from sfnode.engine.core import Core
from sfnode.manifest import Manifest
from sfnode.organising.evaluation.evidence import MembersEvidence, parts_of
from sfnode.schema.history import Remeasured
from sfnode.store.log import UpdateLog
from sfnode.store.replay import changes, counted_anew
from sfprotocol import decisions
from sfprotocol.counting import Counting
from sfprotocol.decisions import INCARNATIONS, Part, Recount, Seal, Worth
from sfprotocol.messages import Entry, Feed
from sfprotocol.weighing import NOTHING, Counted, named

if TYPE_CHECKING:
    from sfnode.engine.trainer import Trainer

TOLERANCE = 0.05
"""Largest difference that agrees, beside all figures of an epoch: on one machine all digits were the same in
a real run; number formats differ, but bfloat16 and float32 were not compared in one."""


class _AskedFigure(NamedTuple):
    """An epoch whose figures are measured anew, and its states."""

    worth: Worth
    counting: Counting
    before: dict[Feed, Counted]
    step: dict[Feed, Counted]
    """The state with what made the step of the epoch."""
    named: dict[Feed, Counted]
    """The state with everything that the close has named."""


def remeasure(
    manifest: Manifest,
    update_log: UpdateLog,
    entries: Sequence[Entry],
    epochs: int,
    engine: Trainer,
    tell: Callable[[Remeasured], None],
) -> list[Remeasured]:
    """Measure the last so many epochs anew of which there are figures, and compare; `engine` has applied
    nothing yet. Raises UserError LOG_CORRUPT, DATA_*."""
    run, applied = manifest.parameters(), dict[Feed, Counted]()
    figures = _figures(entries)
    wanted = {epoch: figures[epoch] for epoch in sorted(figures)[-epochs:]}
    found = []
    for asked in _asked(manifest, entries, wanted):
        for batch in changes(update_log, applied, asked.before, run.subspace_of):
            engine.apply(batch)
        applied |= asked.before
        core = Core(*manifest.core_shape)
        core.put(engine.cores())
        for batch in changes(update_log, asked.before, asked.step, run.subspace_of):
            core.add(batch)
        updates = counted_anew(update_log, asked.before, asked.named, run.subspace_of)
        rows, epoch = asked.worth.rows, asked.worth.epoch
        shares, _ = engine.shares(core.cores(), list(updates.values()), rows, epoch)
        found.append(
            _compared(asked.worth, parts_of(dict(zip(updates, shares, strict=True)), asked.counting))
        )
        tell(found[-1])
    return found


def _figures(entries: Sequence[Entry]) -> dict[int, Worth]:
    """Return what decisions say of each epoch, those of one epoch together."""
    found: dict[int, Worth] = {}
    for entry in entries:
        decision = decisions.read(entry.record).decision
        if isinstance(decision, Worth):
            known = found[decision.epoch].parts if decision.epoch in found else ()
            found[decision.epoch] = replace(decision, parts=known + decision.parts)
    return found


def _asked(
    manifest: Manifest, entries: Sequence[Entry], wanted: Mapping[int, Worth]
) -> Iterator[_AskedFigure]:
    """Yield the epochs whose figures were told before their seals, with the states that were measured.

    What was left out of a step then is what the evidence of that moment said, and what the seal skipped for
    other reasons.
    """
    run = manifest.parameters()
    counting, origins = Counting.of(run), MembersEvidence.of(manifest.training)
    doubted: dict[int, set[int]] = {}
    for entry in entries:
        recorded = decisions.read(entry.record)
        match recorded.decision:
            case Worth(epoch=epoch) if epoch in wanted and epoch == counting.sealed < counting.open_epoch:
                moved = counting.moved(epoch)
                doubted.setdefault(epoch, {n for n in moved if not origins.trusts(n // INCARNATIONS)})
            case Seal(epoch=epoch, skipped=skipped) if epoch == counting.sealed and epoch in doubted:
                others = (n for n in skipped if origins.trusts(n // INCARNATIONS))
                left = doubted[epoch].union(n for n in others if Recount(n, epoch) not in origins.outliers)
                before, whole = named(counting, epoch - 1), named(counting, epoch)
                gone = {counting.feed(number) for number in left}
                step = {f: before.get(f, NOTHING) if f in gone else one for f, one in whole.items()}
                yield _AskedFigure(wanted[epoch], counting, before, step, whole)
        counting.apply(recorded)
        origins.take(recorded.decision)


def _compared(worth: Worth, found: Sequence[Part]) -> Remeasured:
    ours = {part.feed: part.worth for part in found}
    theirs = {part.feed: part.worth for part in worth.parts}
    off = sum(abs(theirs.get(feed, 0) - ours.get(feed, 0)) for feed in {*ours, *theirs})
    whole = sum(map(abs, theirs.values()))
    share = off / whole if whole else float(off > 0)
    return Remeasured(
        epoch=worth.epoch,
        rows=worth.rows,
        said=sum(theirs.values()),
        found=sum(ours.values()),
        off=share,
        agrees=share <= TOLERANCE,
    )
